"""Part 8: tokens per second of PyTorch and of llm.c on the same card, next to part 5's. PyTorch trains in BF16 by
autocast, eagerly and compiled, with its own flash attention, fused AdamW and a vocabulary padded to 50304. llm.c is
measured if its program is in the pack, as peers/train_gpt2cu_cudnn or peers/train_gpt2cu (without cuDNN).
"""

import json
import os
import re
import subprocess
import sys

from kernel_families import SEQ, SHAPES
from tools import ROOT, Part, loader_environment
from training import SIZES, rate

VOCAB, STEPS, HEAD_DIM = 50304, 15, 64
# The batch of part 5 does not fit into 80 GB here.
SMALLER_BATCH = {"1558M": 8}


def torch_program(size, compiled, batch):
    """Runs in a process of its own."""
    sys.path.insert(0, os.path.join(ROOT, "dev"))
    import torch
    from bench_peers import torch_gpt2, torch_steps
    torch.set_float32_matmul_precision("high")
    layers, channels = SHAPES[size]
    model = torch_gpt2(layers, channels // HEAD_DIM, channels, VOCAB, SEQ)
    print(json.dumps(torch_steps(model, VOCAB, batch, SEQ, STEPS, "bf16", "cuda", compiled)))


def measure_torch(session, size, how):
    batch = SMALLER_BATCH.get(size, SIZES[size][1])
    done = session.run(["python3", __file__, size, str(int(how == "compiled")), batch], 180, log=f"torch_{size}_{how}")
    lines = [line for line in done.output.splitlines() if line.startswith("[")]
    if done.code != 0 or not lines:
        return {"done": False, "code": done.code, "output": done.tail()}
    version = subprocess.run(["python3", "-c", "import torch; print(torch.__version__)"], capture_output=True,
                             text=True, check=False).stdout.strip()
    return {"version": version, **rate(batch, json.loads(lines[-1]), batch * SEQ)}


def measure_llm_c(session, size, program):
    """Trains from random weights on the session's shard, without evaluation and samples."""
    model, batch = SIZES[size]
    batch = SMALLER_BATCH.get(size, batch)
    train = session.shard("train")
    env, _ = loader_environment([program], session.programs)
    done = session.run([program, "-i", train, "-j", train, "-e", model, "-b", batch, "-t", SEQ, "-d", batch * SEQ,
                        "-x", STEPS, "-v", 10000, "-m", 1, "-s", 0, "-h", 0, "-l", 6e-4, "-q", 0.0, "-u", 60, "-n", 0,
                        "-y", 0], 120, env, os.path.basename(program) + "_" + size)
    ms = [float(value) for value in re.findall(r"\| ([\d.]+) ms \|", done.output)]
    return rate(batch, ms, batch * SEQ) if len(ms) == STEPS else {"done": False, "code": done.code, "output": done.tail()}


def part8(session):
    part = Part(session, 8, "peers")
    if session.dry:  # neither PyTorch nor llm.c is needed to test the session, so test only the arithmetic
        part.item("arithmetic", lambda: rate(2, [9.0, 4.0, 4.0], 2 * SEQ))
    for size in () if session.dry else ("124M", "1558M"):
        for name in ("train_gpt2cu_cudnn", "train_gpt2cu"):
            program = os.path.join(session.pack, "peers", name)
            if os.path.exists(program):
                part.item(f"llm.c {name} {size}", lambda: measure_llm_c(session, size, program), 15)
        for how in ("eager", "compiled") if size == "124M" else ("eager",):  # 48 layers take minutes to compile
            part.item(f"PyTorch {how} {size}", lambda: measure_torch(session, size, how), 30)
    part.finish()


if __name__ == "__main__":
    torch_program(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]))
