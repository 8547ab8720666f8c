#!/usr/bin/env python3
"""Draws h100_fp8_gap.png from dev/gpu/results: what FP8 costs from a common checkpoint on, next to what chance does from
the start.

    .venv/bin/python dev/pictures/h100_fp8_gap.py
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts"))
from plot_run import COLOURS, MARKERS, STYLE, plt

BRANCHES = {"control from 350": "BF16, other rounding (control)", "delayed from 350": "FP8",
            "slow-sums from 350": "FP8, forward sums without fast accumulation", "grad-bf16 from 350": "FP8, backward matmuls in BF16"}
STARTS = [("2026-11-26", "bf16 1337", "BF16, kernels of the day before"), ("2026-11-27", "bf16 1337", "BF16"),
          ("2026-11-27", "control 1337", "BF16, two micro-steps"), ("2026-11-26", "delayed 1337", "FP8, the day before")]


def items(date):
    with open(os.path.join(HERE, "..", "gpu", "results", date + "_h100", "part4_training.json"), encoding="utf-8") as file:
        return json.load(file)["items"]


def draw_branches(axes):
    of_day = items("2026-11-27")
    for (name, label), colour, marker in zip(BRANCHES.items(), COLOURS, MARKERS):
        gaps = of_day[name]["training_gaps_percent"]
        middles = [(int(first) + int(last)) / 2 for first, last in (window.split(" to ") for window in gaps)]
        axes.plot([350, *middles], [0, *gaps.values()], color=colour, marker=marker, markersize=4, label=label)
    axes.axhline(0.25, color="#888888", linestyle=":")
    axes.text(352, 0.255, "aim", color="#666666", fontsize=8)
    axes.set_ylim(top=0.5)
    axes.set_title("From the checkpoint of step 350 on", loc="left")
    axes.set_ylabel("training loss, % above BF16")


def draw_starts(axes):
    reference = items("2026-11-26")["bf16 1337"]["val_loss"]
    for (date, name, label), colour, marker in zip(STARTS, COLOURS, MARKERS):
        losses = items(date)[name]["val_loss"]
        axes.plot([int(step) for step in losses], [(loss / reference[step] - 1) * 100 for step, loss in losses.items()],
                  color=colour, marker=marker, markersize=4, linestyle="--" if name.startswith("delayed") else "-",
                  label=f"{label}: {losses['700']:.4f}")
    axes.set_title("From random weights", loc="left")
    axes.set_ylim(top=7.5)
    axes.set_ylabel("validation loss, % above the lowest")


def main():
    with plt.rc_context(STYLE):
        figure, sides = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
        for axes, draw in zip(sides, (draw_branches, draw_starts)):
            draw(axes)
            axes.set_xlabel("optimizer step")
            axes.legend(frameon=False, fontsize=8, loc="upper left")
        figure.savefig(os.path.join(HERE, "h100_fp8_gap.png"), dpi=90, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
