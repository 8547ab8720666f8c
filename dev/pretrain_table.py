#!/usr/bin/env python3
"""Prints the tables of predicted times, from --dry-run: that of the runs in scripts/pretrain/README.md, and with
--steps that of models and cards in dev/notes/performance.md.

    python3 dev/pretrain_table.py [--steps]       needs a build of train_gpt or train_gpt_cpu
"""

import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "scripts", "pretrain")
RANKS = (1, 8, 32)
PRICE = 3.5  # dollars per hour and H100, the price that llm.c's scripts assume


def scripts():
    """The scripts, by increasing work."""
    return sorted(glob.glob(os.path.join(SCRIPTS, "g*.sh")), key=lambda path: int(re.search(r"_(\d+)M", path)[1]))


def hours(script, ranks, precision, program):
    """The predicted hours of a whole run."""
    env = {**os.environ, "GPUS": str(ranks), "PRECISION": precision, "PROGRAM": program}
    for name in ("HOSTS", "NODES"):
        env.pop(name, None)
    text = subprocess.run([script, "--dry-run", "--json", "--gpu", "h100"], env=env, check=True, capture_output=True,
                          text=True).stdout
    return json.loads(text)["hours"]


def row(script, program):
    cells = [f"`{os.path.basename(script)}`"]
    for ranks in RANKS:
        fp8, bf16 = (hours(script, ranks, precision, program) for precision in ("fp8", "bf16"))
        cells.append(f"{fp8:,.1f} h, ${fp8 * ranks * PRICE:,.0f} ({bf16:,.1f} h, ${bf16 * ranks * PRICE:,.0f})")
    return "| " + " | ".join(cells) + " |"


def default_program():
    for path in (os.path.join(ROOT, name) for name in ("train_gpt_cpu", "train_gpt")):
        if os.access(path, os.X_OK):
            return path
    sys.exit("pretrain_table needs train_gpt or train_gpt_cpu: run make")


# ---- steps -------------------------------------------------------------------------------------------------------------

MODELS = {"d12": "124M", "d24": "355M", "d36": "774M", "d48": "1558M", "llama3-8b": "llama3-8b"}
SAVINGS = {"": 1, "--adam-moments bf16": 0.95}  # flags to try; the second must be 5 % faster
BATCHES = (64, 32, 16, 8, 4, 2, 1)
KINDS = ("matmuls", "attention", "elementwise", "optimizer")


def planned(program, gpu, flags):
    command = [program, "-t", "1024", "-x", "1", "--gpu", gpu, "--dry-run", "--json", *flags.split()]
    return json.loads(subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout)


def step_row(program, model, gpu, precision, *more):
    """Milliseconds of a micro-step, alone and as one of those of 524,288 tokens, where the run has most tokens/s; and
    the latter by kind, with its share of the optimizer.
    """
    model_flags = " ".join(("-e", model, "--precision", precision, *more))
    plans = [(planned(program, gpu, f"{model_flags} -b {batch} -d 524288 {flags}"), flags) for flags in SAVINGS
             for batch in BATCHES]
    plan, flags = max(plans, key=lambda found: found[0]["fits"] * found[0]["tokens_per_s"] * SAVINGS[found[1]])
    name = f"| {MODELS[model]} | {gpu.upper()} | {' '.join((precision, *more))} |"
    if not plan["fits"]:
        return f"{name} does not fit | | | | | | | |"
    one = planned(program, gpu, f"{model_flags} -b {plan['batch']} {flags}")
    level = plan["recompute"]
    shape = " ".join(filter(None, [str(plan["batch"]), f"-r {level}" * (level != "none"), flags]))
    parts = [one["step_ms"], *(ms / plan["micro_steps"] for ms in (plan["step_ms"], *map(plan["time"].get, KINDS)))]
    return f"{name} {shape} | " + " | ".join(f"{ms:.1f}" for ms in parts) + f" | {plan['tokens_per_s']:,.0f} |"


def print_steps(program):
    print("| model | card | precision | sequences | one micro-step | 524,288 tokens | matmuls | attention | element-wise "
          "| optimizer | tokens/s |")
    print("|---" * 11 + "|")
    for model in MODELS:
        gpu = "h200" if model == "llama3-8b" else "h100"  # it does not fit on one H100 without --offload
        for precision in (("fp8",), ("fp8", "--fp8-layers all"), ("bf16",)):
            print(step_row(program, model, gpu, *precision))


if __name__ == "__main__":
    if "--steps" in sys.argv:
        print_steps(default_program())
    else:
        for path in scripts():
            print(row(path, default_program()))
