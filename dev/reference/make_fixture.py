"""Writes test/fixtures/gpt2_small.safetensors: the results of a small GPT-2 in float64 with PyTorch.

The model is GPT-2 as published, written out plainly so that it shares nothing with the code under test: pre-layernorm
blocks, learned positions, biases everywhere, tanh GELU, a head tied to the token embedding. README.md in this folder
describes the contents. --check compares gradients with finite differences.
"""
import argparse
import json
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save

LAYERS, CHANNELS, HEADS, VOCAB, CONTEXT = 2, 64, 2, 101, 48
STEPS, BATCH, TOKENS = 10, 2, 40  # 40 is not a multiple of 16, so kernels meet a partial last tile
LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0
LN_EPS = 1e-5
SEED = 20240613
MAX_BYTES = 1_000_000
HERE = os.path.dirname(os.path.abspath(__file__))
OUTPUT = os.path.join(HERE, "..", "..", "test", "fixtures", "gpt2_small.safetensors")


def initial_weights():
    """Not the usual initialization: the weights are spread out so that no gradient is zero or negligible. Values fit
    into bfloat16.
    """
    generator = torch.Generator().manual_seed(SEED)
    C, weights = CHANNELS, {}

    def add(name, shape, std, mean=0.0):
        values = mean + std * torch.randn(shape, generator=generator, dtype=torch.float64)
        weights[name] = values.to(torch.float32).to(torch.bfloat16).to(torch.float64)

    add("wte", (VOCAB, C), 0.12)
    add("wpe", (CONTEXT, C), 0.08)
    for layer in range(LAYERS):
        for name, kind, shape, std in [
            ("ln1", "norm", (C,), 0.1), ("qkv", "linear", (3 * C, C), 0.15), ("attn_proj", "linear", (C, C), 0.10),
            ("ln2", "norm", (C,), 0.1), ("fc", "linear", (4 * C, C), 0.12), ("fc_proj", "linear", (C, 4 * C), 0.08),
        ]:
            add(f"h.{layer}.{name}.weight", shape, std, mean=1.0 if kind == "norm" else 0.0)
            add(f"h.{layer}.{name}.bias", shape[:1], 0.05)
    add("lnf.weight", (C,), 0.1, mean=1.0)
    add("lnf.bias", (C,), 0.05)
    return weights


def make_tokens():
    """Tokens with something to learn: mostly a fixed successor of the previous token, otherwise a random token."""
    generator = torch.Generator().manual_seed(SEED + 1)
    tokens = torch.randint(VOCAB, (STEPS, BATCH, TOKENS + 1), generator=generator)
    follow = torch.rand((STEPS, BATCH, TOKENS + 1), generator=generator) < 0.6
    for t in range(1, TOKENS + 1):
        tokens[:, :, t] = torch.where(follow[:, :, t], (3 * tokens[:, :, t - 1] + 7) % VOCAB, tokens[:, :, t])
    return tokens


def forward(w, inputs):
    """Computes logits (B, T, V) from inputs (B, T)."""
    B, T = inputs.shape
    hidden = w["wte"][inputs] + w["wpe"][:T]

    def norm(x, name):
        centered = x - x.mean(-1, keepdim=True)
        variance = (centered * centered).mean(-1, keepdim=True)
        return centered / torch.sqrt(variance + LN_EPS) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    causal = torch.ones(T, T, dtype=torch.bool).tril()
    for layer in range(LAYERS):
        h = f"h.{layer}."
        q, k, v = (part.view(B, T, HEADS, CHANNELS // HEADS).transpose(1, 2)
                   for part in linear(norm(hidden, h + "ln1"), h + "qkv").split(CHANNELS, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(CHANNELS // HEADS)
        attention = scores.masked_fill(~causal, -math.inf).softmax(-1) @ v
        hidden = hidden + linear(attention.transpose(1, 2).reshape(B, T, CHANNELS), h + "attn_proj")
        x = linear(norm(hidden, h + "ln2"), h + "fc")
        gelu = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        hidden = hidden + linear(gelu, h + "fc_proj")
    return norm(hidden, "lnf") @ w["wte"].T


def loss_of(w, tokens):
    """Computes the mean cross-entropy from tokens (B, T + 1)."""
    logits = forward(w, tokens[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCAB).to(torch.promote_types(logits.dtype, torch.float32)),
                           tokens[:, 1:].reshape(-1))


def loss_and_gradients(weights, tokens, dtype=torch.float64):
    w = {name: value.detach().to(dtype, copy=True).requires_grad_() for name, value in weights.items()}
    loss = loss_of(w, tokens)
    loss.backward()
    return loss.item(), {name: value.grad.to(torch.float64) for name, value in w.items()}


def train(weights, tokens):
    """Trains with AdamW by its definition, everything in float64. Returns the losses and the norms before clipping."""
    w = {name: value.clone() for name, value in weights.items()}
    m = {name: torch.zeros_like(value) for name, value in w.items()}
    v = {name: torch.zeros_like(value) for name, value in w.items()}
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        loss, gradients = loss_and_gradients(w, tokens[step - 1])
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
        losses.append(loss)
        norms.append(norm)
        for name, g in gradients.items():
            g = g / norm * CLIP if norm > CLIP else g
            m[name] = BETA1 * m[name] + (1 - BETA1) * g
            v[name] = BETA2 * v[name] + (1 - BETA2) * g * g
            update = (m[name] / (1 - BETA1**step)) / (torch.sqrt(v[name] / (1 - BETA2**step)) + EPS)
            decay = DECAY if w[name].dim() == 2 else 0.0
            w[name] = w[name] - LR * (update + decay * w[name])
    return losses, norms


def check_finite_differences(weights, tokens, gradients):
    """Checks with central differences in float64, along a random direction and at the largest elements."""
    generator = torch.Generator().manual_seed(SEED + 2)
    for name in ["wte", "h.0.qkv.weight", "h.1.ln2.weight", "h.1.fc_proj.weight"]:
        direction = torch.randn(weights[name].shape, generator=generator, dtype=torch.float64)
        directions = [direction / direction.norm()]
        for index in gradients[name].abs().flatten().topk(3).indices:
            directions.append(torch.zeros(weights[name].numel(), dtype=torch.float64).index_fill(0, index, 1.0)
                              .view_as(weights[name]))
        for d in directions:
            size = 1e-5
            plus, minus = (loss_of({**weights, name: weights[name] + sign * size * d}, tokens).item()
                           for sign in (1, -1))
            numeric, exact = (plus - minus) / (2 * size), (gradients[name] * d).sum().item()
            error = abs(numeric - exact) / gradients[name].norm().item()
            assert error < 1e-7, f"{name}: finite difference {numeric}, gradient {exact}"
            print(f"check {name:20s} gradient {exact:+.10f}  finite difference {numeric:+.10f}")


def report(weights, tokens, gradients):
    """Prints norms, and the errors of the same code in float32 and bfloat16, which bound what a test can ask of a
    kernel.
    """
    _, single = loss_and_gradients(weights, tokens, torch.float32)
    _, half = loss_and_gradients(weights, tokens, torch.bfloat16)
    print(f"{'gradient of':24s} {'norm':>11s} {'fp32 error':>11s} {'bf16 error':>11s}")
    rows = {name: (slice(None), g) for name, g in gradients.items()}
    for layer in range(LAYERS):
        for part, letter in enumerate("qkv"):
            rows[f"  h.{layer}.qkv.bias {letter}"] = (slice(part * CHANNELS, (part + 1) * CHANNELS),
                                                      gradients[f"h.{layer}.qkv.bias"])
    for label in sorted(rows, key=lambda text: text.split()[0]):
        name, (part, g) = label.split()[0], rows[label]
        norm = g[part].norm().item()
        errors = [(other[name][part] - g[part]).norm().item() / norm for other in (single, half)]
        print(f"{label:24s} {norm:11.3e} {errors[0]:11.1e} {errors[1]:11.1e}")
        if not label.startswith(" "):
            assert norm > 1e-3 and errors[0] < 1e-5, f"the gradient of {label} drowns in rounding noise"


def write_sorted(path, tensors, metadata):
    """Writes the metadata in sorted order, so that equal runs give equal bytes; save() would use a random order."""
    raw = save(tensors, metadata)
    data_start = 8 + int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8:data_start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + raw[data_start:])
    return os.path.getsize(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=OUTPUT)
    parser.add_argument("--check", action="store_true", help="compare gradients with finite differences")
    options = parser.parse_args()
    torch.set_num_threads(1)  # fixes the order of summation

    weights, tokens = initial_weights(), make_tokens()
    _, gradients = loss_and_gradients(weights, tokens[0])
    report(weights, tokens[0], gradients)
    if options.check:
        check_finite_differences(weights, tokens[0], gradients)
    losses, norms = train(weights, tokens)
    print("losses     ", " ".join(f"{x:.6f}" for x in losses))
    print("grad norms ", " ".join(f"{x:.6f}" for x in norms))

    tensors = {name: value.to(torch.float32) for name, value in weights.items()}
    tensors |= {"grad." + name: value.to(torch.float32) for name, value in gradients.items()}
    tensors["tokens"] = tokens.to(torch.int32)
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    tensors["grad_norms"] = torch.tensor(norms, dtype=torch.float64)
    tensors["logits_sample"] = forward(weights, tokens[0, :1, :-1])[0, -4:].to(torch.float32).contiguous()
    numbers = dict(layers=LAYERS, channels=CHANNELS, heads=HEADS, vocab=VOCAB, context=CONTEXT, batch=BATCH,
                   seq=TOKENS, steps=STEPS, lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY, clip=CLIP,
                   layernorm_eps=LN_EPS, seed=SEED)
    size = write_sorted(options.out, tensors, {key: str(value) for key, value in numbers.items()})
    assert size < MAX_BYTES, f"{size} bytes are too many for a file kept in the repository"
    print(f"wrote {os.path.relpath(options.out)}: {len(tensors)} tensors, {size} bytes, "
          f"tokens {tokens.min()}..{tokens.max()}")


if __name__ == "__main__":
    main()
