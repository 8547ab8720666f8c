#!/usr/bin/env python3
"""Prints the table of predicted times in scripts/pretrain/README.md, from the --dry-run of each script's run.

    python3 dev/pretrain_table.py            needs a build of train_gpt or train_gpt_cpu
"""

import glob
import os
import re
import subprocess

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
    text = subprocess.run([script, "--dry-run", "--gpu", "h100"], env=env, check=True, capture_output=True,
                          text=True).stdout
    if ranks > 1:
        step = re.search(r"([\d.]+) ms(?:  recommended)?  this run$", text, re.MULTILINE)[1]
    else:
        step = re.search(r"^  total +([\d.]+) ms +([\d.]+) ms$", text, re.MULTILINE)[1 if precision == "bf16" else 2]
    with open(script, encoding="utf-8") as file:
        steps = int(re.search(r" -x (\d+)", file.read())[1])
    return float(step) * steps / 3.6e6


def row(script, program):
    cells = [f"`{os.path.basename(script)}`"]
    for ranks in RANKS:
        fp8, bf16 = (hours(script, ranks, precision, program) for precision in ("fp8", "bf16"))
        cells.append(f"{fp8:,.1f} h, ${fp8 * ranks * PRICE:,.0f} ({bf16:,.1f} h, ${bf16 * ranks * PRICE:,.0f})")
    return "| " + " | ".join(cells) + " |"


def default_program():
    found = [path for path in ("./train_gpt", "./train_gpt_cpu") if os.access(os.path.join(ROOT, path), os.X_OK)]
    return found[-1]


if __name__ == "__main__":
    for path in scripts():
        print(row(path, default_program()))
