#!/usr/bin/env python3
"""Times training steps of train_gpt_cpu, of PyTorch and of llm.c in turn, and prints how they compare.

    python3 dev/bench_peers.py [--rounds 3] [--threads 1,2] [--shapes 124M,4x128] [--llm-c DIR] [--torch-python PYTHON]

All programs train the same GPT-2 (learned positions, GELU, tied head, AdamW) on random tokens in batches of 4 x 64: the
size that llm.c's CPU program has built in. PyTorch runs eagerly, with scaled_dot_product_attention, fused AdamW and, in
BF16, autocast; it is left out if the Python has no torch. llm.c is left out without a checkout (--llm-c), and it has
FP32 only. A round runs each program once; a program's time is the median of its steps after warm-up. A ratio is the
median of the rounds' ratios, with the lowest and the highest in brackets. Quote ratios: times depend on the machine.
"""

import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BATCH, SEQ, WARMUP = 4, 64, 5
# layers, heads, channels, vocabulary, steps after warm-up
SHAPES = {"124M": (12, 12, 768, 50257, 4), "4x128": (4, 4, 128, 50257, 20), "2x64": (2, 2, 64, 257, 200)}


# ---- train_gpt_cpu ---------------------------------------------------------------------------------------------------


def ours(program, shape, precision, threads, _):
    layers, heads, channels, vocab, steps = SHAPES[shape]
    flags = f"--layers {layers} --heads {heads} --channels {channels} --vocab {vocab} --context {SEQ} -t {SEQ} -b {BATCH}"
    output = run([program, *flags.split(), "--precision", precision, "--bench", "--stop-after", str(steps + WARMUP)],
                 threads)
    return float(re.search(r"^bench: ([\d.]+) ms per step", output, re.MULTILINE)[1])


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_gpt2(layers, heads, channels, vocab, context, linear=None):
    """GPT-2 as a PyTorch module that returns the loss. `linear`: the class of the blocks' layers, else nn.Linear."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    linear = linear or nn.Linear

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
            self.qkv, self.proj = linear(channels, 3 * channels), linear(channels, channels)
            self.fc, self.fc_proj = linear(channels, 4 * channels), linear(4 * channels, channels)

        def forward(self, x):
            q, k, v = (z.view(*x.shape[:2], heads, -1).transpose(1, 2)
                       for z in self.qkv(self.ln1(x)).split(channels, dim=-1))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(out.transpose(1, 2).reshape(x.shape))
            return x + self.fc_proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, channels), nn.Embedding(context, channels)
            self.blocks, self.ln = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(channels)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.ln(x), self.wte.weight)
            return F.cross_entropy(logits.view(-1, vocab), targets.reshape(-1))

    torch.manual_seed(1337)
    model = Gpt2()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return model


def torch_steps(model, vocab, batch, seq, steps, precision, device="cpu", compiled=False):
    """Milliseconds of each training step with AdamW; in BF16 with autocast. `compiled` by torch.compile()."""
    import torch
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if compiled else model
    times = []
    for _ in range(steps):
        tokens = torch.randint(vocab, (batch, seq + 1)).to(device)
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the step to end
        times.append((time.perf_counter() - start) * 1e3)
    return times


def torch_steps_on_cpu(shape, precision, threads):
    """Milliseconds of each step, in a process of its own."""
    import torch
    torch.set_num_threads(threads)
    layers, heads, channels, vocab, steps = SHAPES[shape]
    return torch_steps(torch_gpt2(layers, heads, channels, vocab, SEQ), vocab, BATCH, SEQ, steps + WARMUP, precision)


def pytorch(python, shape, precision, threads, _):
    output = run([python, __file__, "--torch-steps", shape, precision, str(threads)], threads)
    return statistics.median(json.loads(output)[WARMUP:])


# ---- llm.c -----------------------------------------------------------------------------------------------------------


def build_llm_c(checkout, directory):
    """Compiles train_gpt2.c with the flags of its Makefile."""
    program = directory / "train_gpt2"
    subprocess.run(["cc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", f"-I{checkout}",
                    f"{checkout}/train_gpt2.c", "-lm", "-o", str(program)], check=True)
    return program


def write_llm_c_inputs(shape, directory):
    """The model and token files that train_gpt2.c opens in its working directory: random weights, random tokens."""
    layers, heads, channels, vocab, _ = SHAPES[shape]
    padded = -(-vocab // 128) * 128
    draw = random.Random(1337)
    # The same 4096 weights again and again: times do not depend on ordinary values.
    row = struct.pack("<4096f", *(draw.gauss(0, 0.02) for _ in range(4096)))
    per_block = 12 * channels * channels + 13 * channels
    count = (padded + SEQ) * channels + layers * per_block + 2 * channels
    with open(directory / "gpt2_124M.bin", "wb") as file:
        file.write(struct.pack("<256i", 20240326, 3, SEQ, vocab, layers, heads, channels, padded, *[0] * 248))
        for at in range(0, count, 4096):
            file.write(row[: 4 * min(4096, count - at)])
    data = directory / "dev/data/tinyshakespeare"
    data.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        tokens = [draw.randrange(vocab) for _ in range(60 * BATCH * SEQ)]
        header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
        (data / f"tiny_shakespeare_{split}.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def llm_c(program, shape, _, threads, directory):
    steps = min(SHAPES[shape][4] + 2, 19)  # at its twentieth step it samples
    write_llm_c_inputs(shape, directory)
    process = subprocess.Popen(["stdbuf", "-oL", str(program)], cwd=directory, env=environment(threads),
                               stdout=subprocess.PIPE, text=True)
    times = []
    for line in process.stdout:
        if found := re.search(r"took ([\d.]+) ms", line):
            times.append(float(found[1]))
        if len(times) == steps:
            break
    process.kill()
    process.wait()
    if len(times) < steps:
        sys.exit(f"llm.c ended after {len(times)} steps")
    return statistics.median(times[2:])


# ---- rounds ----------------------------------------------------------------------------------------------------------


def environment(threads):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    return {**kept, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def run(command, threads):
    result = subprocess.run([str(part) for part in command], env=environment(threads), capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def compare(programs, shape, precision, threads, rounds, directory):
    times = {name: [] for name in programs}
    for _ in range(rounds):
        for name, (measure, program) in programs.items():
            times[name].append(measure(program, shape, precision, threads, directory))
    cells = [f"{statistics.median(times['train_gpt_cpu']):8.1f} ms"]
    for name in list(programs)[1:]:
        ratios = [peer / own for peer, own in zip(times[name], times["train_gpt_cpu"])]
        cells.append(f"{statistics.median(times[name]):9.1f} ms {statistics.median(ratios):6.2f} "
                     f"({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"{shape:6} {precision:5} {threads:7}  " + "  ".join(f"{cell:30}" for cell in cells).rstrip(), flush=True)


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "train_gpt_cpu")
    parser.add_argument("--llm-c", type=Path, help="a checkout of llm.c")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python that has torch (default: this one)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--torch-steps", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch_steps:
        shape, precision, threads = options.torch_steps
        print(json.dumps(torch_steps_on_cpu(shape, precision, int(threads))))
        return

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        programs = {"train_gpt_cpu": (ours, options.program)}
        if has_torch(options.torch_python):
            programs["PyTorch eager"] = (pytorch, options.torch_python)
        if options.llm_c:
            programs["llm.c"] = (llm_c, build_llm_c(options.llm_c.resolve(), directory))
        print("Median ms per step of 4 x 64 tokens, and that divided by the time of train_gpt_cpu (lowest to highest of the rounds).")
        print(f"{'shape':6} {'':5} threads  " + "  ".join(f"{name:30}" for name in programs).rstrip())
        for threads in dict.fromkeys(map(int, options.threads.split(","))):
            for shape in options.shapes.split(","):
                for precision in options.precisions.split(","):
                    chosen = {n: p for n, p in programs.items() if n != "llm.c" or precision == "fp32"}
                    compare(chosen, shape, precision, threads, options.rounds, directory)


if __name__ == "__main__":
    main()
