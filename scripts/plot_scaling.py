#!/usr/bin/env python3
"""Draws predicted scaling: tokens per second and where a step's time goes, from 1 to 1024 GPUs.

    ./train_gpt -e d12 -b 32 --estimate-scaling --gpu h200 -o out/zero1
    python3 scripts/plot_scaling.py out/zero1
    python3 scripts/plot_scaling.py out/zero1 out/zero3 --out scaling.png

Reads the scaling.json that --estimate-scaling writes into each directory. Nothing in it is measured, and the picture
says so.
"""

import argparse
import sys

from runs import RunError, continue_in_venv, next_to, read_scaling, start

if __name__ == "__main__":
    continue_in_venv("matplotlib", needed=True)
from plot_run import COLOURS, MARKERS, STYLE, plt, save


def draw_speed(axes, estimates):
    crossed = False
    for estimate, colour, marker in zip(estimates, COLOURS * len(estimates), MARKERS * len(estimates)):
        gpus = [p["gpus"] for p in estimate.points]
        speed = [p["tokens_per_s"] for p in estimate.points]
        axes.plot(gpus, [speed[0] * n for n in gpus], color=colour, linewidth=1.0, linestyle=":",
                  label="one GPU's speed times the GPUs" if estimate is estimates[0] else None)
        axes.plot(gpus, speed, color=colour, marker=marker, markersize=4, linewidth=1.4, label=estimate.label)
        too_large = [(n, s) for n, s, p in zip(gpus, speed, estimate.points) if not p["fits"]]
        if too_large:
            axes.scatter(*zip(*too_large), marker="x", s=70, color="#b00020", zorder=4,
                         label=None if crossed else "does not fit into memory")
            crossed = True
    axes.set_yscale("log")
    axes.set_ylabel("tokens per second\n(predicted)")
    axes.legend(frameon=False, fontsize=9)


def draw_efficiency(axes, estimates):
    for estimate, colour, marker in zip(estimates, COLOURS * len(estimates), MARKERS * len(estimates)):
        axes.plot([p["gpus"] for p in estimate.points], [100 * p["efficiency"] for p in estimate.points], color=colour,
                  marker=marker, markersize=4, linewidth=1.4)
    axes.axhline(100, color="#555555", linewidth=1.0, linestyle=":")
    axes.set_ylim(0, 108 * max(1, *(p["efficiency"] for e in estimates for p in e.points)))
    axes.set_ylabel("efficiency\n(compute, % of a step)")


def draw_step(axes, estimates):
    """Draws a group of bars for every number of GPUs: the time of a step, split into compute and waiting."""
    width = 0.8 / len(estimates)
    for i, (estimate, colour) in enumerate(zip(estimates, COLOURS * len(estimates))):
        at = [p["gpus"] * 2 ** (width * (i + 0.5) - 0.4) for p in estimate.points]
        wide = [x * (2 ** (width / 2) - 2 ** (-width / 2)) * 0.95 for x in at]
        compute = [p["compute_ms"] for p in estimate.points]
        axes.bar(at, compute, wide, color=colour, alpha=0.35, label="compute" if i == 0 else None)
        axes.bar(at, [p["exposed_ms"] for p in estimate.points], wide, bottom=compute, color=colour,
                 label="waiting for other ranks" if i == 0 else None)
    highest = max(p["compute_ms"] + p["exposed_ms"] for e in estimates for p in e.points)
    axes.set_ylim(0, 1.3 * highest)  # room for the legend
    axes.set_ylabel("time of a step\n(ms)")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper left")


def draw(estimates, out):
    plt.rcParams.update(STYLE)
    figure, (speed, efficiency, step) = plt.subplots(3, 1, figsize=(9, 8.5), sharex=True, layout="constrained",
                                                     gridspec_kw={"height_ratios": [2.2, 1, 1.3]})
    draw_speed(speed, estimates)
    draw_efficiency(efficiency, estimates)
    draw_step(step, estimates)
    gpus = [p["gpus"] for p in estimates[0].points]
    step.set_xscale("log", base=2)
    step.set_xticks(gpus, [str(n) for n in gpus])
    step.set_xlim(gpus[0] / 1.6, gpus[-1] * 1.6)
    step.set_xlabel("GPUs, each with the same batch")
    figure.align_ylabels()
    speed.set_title("Predicted scaling, not measured", loc="left", fontweight="bold", pad=22)
    subtitle = estimates[0].assumptions if len({e.assumptions for e in estimates}) == 1 else "predicted compute"
    speed.text(0, 1.025, subtitle, transform=speed.transAxes, fontsize=9, color="#555555")
    save(figure, out)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("estimates", nargs="+", metavar="DIR",
                        help="a directory with the scaling.json of --estimate-scaling -o")
    parser.add_argument("--out", metavar="FILE", help="the picture; default: scaling.png in the first directory")
    args = parser.parse_args(argv)
    out = args.out or next_to(args.estimates[0], "scaling.png")
    try:
        draw([read_scaling(path) for path in args.estimates], out)
    except RunError as error:
        raise SystemExit(str(error)) from error
    print(f"predicted scaling drawn to {out}")


if __name__ == "__main__":
    start(main)
