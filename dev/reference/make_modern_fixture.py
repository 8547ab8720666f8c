"""Writes test/fixtures/modern.json: the results of Hugging Face's own classes for small models of architectures other
than GPT-2.

    python3 -m venv .venv && .venv/bin/pip install torch==2.15.0 transformers==5.24.0
    .venv/bin/python dev/reference/make_modern_fixture.py

Weights are not stored: pattern() computes them from their names, here and in test/model/modern_fixture.h. For each
gradient the file has its norm and its dot product with another pattern, which changes under any permutation. "steps"
has losses and gradient norms of AdamW. All products and sums are in float64; only norms and rotary angles, which the
classes compute in float32, are not.
"""

import json
import os

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, NanoChatConfig,
                          NanoChatForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

OUT = os.path.join(os.path.dirname(__file__), "..", "..", "test", "fixtures", "modern.json")
VOCAB, LENGTH, SHOWN = 101, 24, 16
STEPS, RATE, DECAY, CLIP = 20, 2e-3, 0.5, 1.0
COMMON = {"vocab_size": VOCAB, "num_hidden_layers": 2, "max_position_embeddings": 32, "attn_implementation": "eager",
          "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(
        hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=224, rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16}, **COMMON)),
    "llama_tied": (LlamaForCausalLM, LlamaConfig(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=2, intermediate_size=160, rms_norm_eps=1e-5,
        tie_word_embeddings=True, **COMMON)),
    "mistral": (MistralForCausalLM, MistralConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, intermediate_size=160,
        rms_norm_eps=1e-5, sliding_window=5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **COMMON)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(
        hidden_size=96, num_attention_heads=3, num_key_value_heads=1, intermediate_size=160, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **COMMON)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=96, num_attention_heads=4, num_key_value_heads=1, head_dim=32, intermediate_size=160,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **COMMON)),
    "nano": (NanoChatForCausalLM, NanoChatConfig(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=256,
        rms_norm_eps=1e-6, tie_word_embeddings=False, final_logit_softcapping=15.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, **COMMON)),
}


def pattern(name, count):
    """Multiples of 2^-11 in [-1, 1)."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) % 2**32
    x = (torch.arange(count, dtype=torch.int64) * 2654435761 + seed) % 2**32
    x = ((x ^ (x >> 16)) * 0x45D9F3B) % 2**32
    return ((x ^ (x >> 16)) % 4096 - 2048).double() / 2048


def rounded(x):
    return float(f"{x.item():.7g}")


def train(model):
    """AdamW from these weights. Matrices decay, vectors do not."""
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == decays], "weight_decay": decay}
              for decays, decay in ((True, DECAY), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):  # small_batch() of test/model/gpt2_fixture.h
        tokens = [(31 * step + i * i + 7) % VOCAB for i in range(LENGTH)]
        targets = torch.tensor([(3 * token + 1) % VOCAB for token in tokens])
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor([tokens])).logits[0], targets)
        loss.backward()
        norms.append(rounded(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        losses.append(rounded(loss))
    return {"rate": RATE, "decay": DECAY, "clip": CLIP, "losses": losses, "norms": norms}


def describe(make, config):
    config._attn_implementation = "eager"
    model = make(config).double().eval()
    config = model.config
    tensors = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = pattern(name, parameter.numel()).view(parameter.shape)
            parameter.copy_(1 + values / 4 if parameter.dim() == 1 else values / 8)
            tensors[name] = list(parameter.shape)
    tokens = [(7 * i * i + 3 * i) % VOCAB for i in range(LENGTH + 1)]
    inputs, targets = torch.tensor([tokens[:-1]]), torch.tensor(tokens[1:])
    logits = model(inputs).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, targets)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.double().flatten()
        gradients[name] = [rounded(gradient.norm()), rounded(gradient.dot(pattern("gradient " + name, gradient.numel())))]
    logits = [rounded(x) for x in logits[-1, :SHOWN]]
    steps = train(model)
    written = {key: value for key, value in config.to_diff_dict().items() if key != "transformers_version"}
    return {"config": written, "tensors": tensors, "tokens": tokens, "loss": rounded(loss),
            "logits": logits, "gradients": gradients, "steps": steps}


if __name__ == "__main__":
    torch.manual_seed(0)
    with open(OUT, "w") as file:
        lines = [f'"{name}": {json.dumps(describe(*model))}' for name, model in MODELS.items()]
        file.write("{" + ",\n".join(lines) + "}\n")
