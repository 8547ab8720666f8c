"""Part 8: tokens per second of PyTorch and of llm.c on the same card, next to part 5's. PyTorch trains in BF16 by
autocast, eagerly and compiled, and compiled with FP8 linear layers (torch_fp8.py), with its own flash attention, fused
AdamW and a vocabulary padded to 50304. llm.c is measured if its program is in the pack, as peers/train_gpt2cu_cudnn or
peers/train_gpt2cu (without cuDNN), and also with 524,288 tokens a step, as part 5's runs of a minute.
"""

import json
import os
import re
import subprocess
import sys

from kernel_families import SEQ, SHAPES
from tools import ROOT, Part, loader_environment
from training import SIZES, STEP, rate

VOCAB, STEPS, HEAD_DIM = 50304, 15, 64
HOW = {"124M": ("eager", "compiled", "compiled FP8"), "1558M": ("compiled", "compiled FP8")}
# The batch of part 5 does not fit into 80 GB here.
SMALLER_BATCH = {"1558M": 8}


def torch_program(size, how, batch):
    """Runs in a process of its own."""
    sys.path.insert(0, os.path.join(ROOT, "dev"))
    import torch
    from bench_peers import torch_gpt2, torch_steps
    from torch_fp8 import Fp8Linear
    torch.set_float32_matmul_precision("high")
    layers, channels = SHAPES[size]
    model = torch_gpt2(layers, channels // HEAD_DIM, channels, VOCAB, SEQ, Fp8Linear if "FP8" in how else None)
    print(json.dumps(torch_steps(model, VOCAB, batch, SEQ, STEPS, "bf16", "cuda", how != "eager")))


def measure_torch(session, size, how):
    batch = SMALLER_BATCH.get(size, SIZES[size][1])
    done = session.run(["python3", __file__, size, how, batch], 240, log=f"torch_{size}_{how}".replace(" ", "_"))
    lines = [line for line in done.output.splitlines() if line.startswith("[")]
    if done.code != 0 or not lines:
        return {"done": False, "code": done.code, "output": done.tail()}
    version = subprocess.run(["python3", "-c", "import torch; print(torch.__version__)"], capture_output=True,
                             text=True, check=False).stdout.strip()
    return {"version": version, **rate(batch, json.loads(lines[-1]), batch * SEQ)}


def measure_llm_c(session, size, program, micro_steps):
    """Trains from random weights on the session's shard, without evaluation and samples."""
    model, batch = SIZES[size]
    batch = SMALLER_BATCH.get(size, batch)
    train = session.shard("train")
    env, _ = loader_environment([program], session.programs)
    steps = STEPS if micro_steps == 1 else 4
    tokens = micro_steps * batch * SEQ
    done = session.run([program, "-i", train, "-j", train, "-e", model, "-b", batch, "-t", SEQ, "-d", tokens, "-x", steps,
                        "-v", 10000, "-m", 1, "-s", 0, "-h", 0, "-l", 6e-4, "-q", 0.0, "-u", 60, "-n", 0, "-y", 0],
                       120, env, f"{os.path.basename(program)}_{size}_{tokens}")
    ms = [float(value) for value in re.findall(r"\| ([\d.]+) ms \|", done.output)]
    return rate(batch, ms, tokens) if len(ms) == steps else {"done": False, "code": done.code, "output": done.tail()}


def part8(session):
    part = Part(session, 8, "peers")
    if session.dry:  # neither PyTorch nor llm.c is needed to test the session, so test only the arithmetic
        part.item("arithmetic", lambda: rate(2, [9.0, 4.0, 4.0], 2 * SEQ))
    for size in () if session.dry else ("124M", "1558M"):
        for name in ("train_gpt2cu_cudnn", "train_gpt2cu"):
            program = os.path.join(session.pack, "peers", name)
            if os.path.exists(program):
                part.item(f"llm.c {name} {size}", lambda: measure_llm_c(session, size, program, 1), 15)
                several = STEP // (SMALLER_BATCH.get(size, SIZES[size][1]) * SEQ)
                part.item(f"llm.c {name} {size} {STEP}", lambda: measure_llm_c(session, size, program, several), 90)
        for how in HOW[size]:  # 48 compiled layers take a minute or two before the first step
            part.item(f"PyTorch {how} {size}", lambda: measure_torch(session, size, how), 120)
    part.finish()


if __name__ == "__main__":
    torch_program(sys.argv[1], sys.argv[2], int(sys.argv[3]))
