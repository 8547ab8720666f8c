#!/usr/bin/env python3
"""Draws the curves of one or more runs: training and validation loss, learning rate, gradient norm.

    python3 scripts/plot_run.py out/demo
    python3 scripts/plot_run.py runs/bf16 runs/fp32 --out comparison.png --x tokens

Reads metrics.jsonl and run.json of each run directory. If the sidecar of a run's validation shards gives an entropy
floor, which no model's loss can go below, draws that floor too (the demo corpus has one); --floor sets it.
"""

import argparse
import sys

from runs import RunError, continue_in_venv, gaps, next_to, print_notes, read_runs, replacing, smooth, start

if __name__ == "__main__":
    continue_in_venv("matplotlib", needed=True)
import matplotlib

matplotlib.use("Agg")  # needs no display
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, ScalarFormatter

COLOURS = ["#2563a8", "#c4572c", "#2f8554", "#7d4fa3", "#a07916", "#4d4d4d"]
MARKERS = "osD^vP"
SMOOTH_OVER = 0.02  # of the run: the width of the window for the smoothed training loss
STYLE = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.color": "#e6e6e6", "grid.linewidth": 0.7, "axes.axisbelow": True}


def draw_loss(axes, runs, floor, x_of):
    several = len(runs) > 1
    for run, colour, marker in zip(runs, COLOURS * len(runs), MARKERS * len(runs)):
        prefix = f"{run.name}: " if several else ""
        losses = [r["loss"] for r in run.steps]
        x = [x_of(run, r["step"]) for r in run.steps]
        width = max(1, int(len(losses) * SMOOTH_OVER))
        axes.plot(x, gaps(losses), color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(x, smooth(losses, width), color=colour, linewidth=1.4, label=f"{prefix}training")
        for key, points in run.val.items():
            name = key.removeprefix("val_loss").removeprefix("_")
            label = f"{prefix}validation" + (f" ({name})" if name else "") + f", last {points[-1][1]:.4f}"
            val_colour = colour if several else COLOURS[1]
            axes.plot([x_of(run, s) for s, _ in points], [v for _, v in points], color=val_colour, marker=marker,
                      markersize=4, linewidth=1.2, linestyle="--" if several else "-", label=label, zorder=3)
    if floor is not None:
        axes.axhline(floor, color="#555555", linewidth=1.2, linestyle=":", zorder=1,
                     label=f"floor: the data's entropy, {floor:.4f}")
    # Logarithmic, because the large first losses of an untrained model would squeeze the rest.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=16, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("loss\n(nats per token)")
    axes.legend(frameon=False, fontsize=9)


def draw_field(axes, runs, name, label, x_of):
    for run, colour in zip(runs, COLOURS * len(runs)):
        axes.plot([x_of(run, r["step"]) for r in run.steps], gaps([r.get(name) for r in run.steps]), color=colour,
                  linewidth=1.0, label=run.name)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def draw(runs, floor, out, by_tokens):
    def x_of(run, step):
        return run.tokens_at(step) if by_tokens else step

    plt.rcParams.update(STYLE)
    figure, (loss, rate, norm) = plt.subplots(3, 1, figsize=(9, 7.5), sharex=True, layout="constrained",
                                              gridspec_kw={"height_ratios": [3.2, 1, 1]})
    draw_loss(loss, runs, floor, x_of)
    draw_field(rate, runs, "lr", "learning\nrate", x_of)
    draw_field(norm, runs, "norm", "gradient norm\n(before clipping)", x_of)
    rate_format = ScalarFormatter(useMathText=True)
    rate_format.set_powerlimits((-2, 3))
    rate.yaxis.set_major_formatter(rate_format)
    figure.align_ylabels()
    norm.set_xlabel("training tokens" if by_tokens else "optimizer step")
    if by_tokens:
        norm.xaxis.set_major_formatter(EngFormatter(sep=""))
    norm.set_xlim(left=0)
    title = ", ".join(run.name for run in runs)
    loss.set_title(title, loc="left", fontweight="bold", pad=22)
    if len(runs) == 1 and runs[0].title:
        loss.text(0, 1.025, runs[0].title, transform=loss.transAxes, fontsize=9, color="#555555")
    save(figure, out)


def save(figure, out):
    try:
        with replacing(out) as new:
            figure.savefig(new, dpi=130)
    except (OSError, ValueError) as error:  # ValueError: a format that is not known
        raise RunError(f"cannot draw to {out}: {error}") from error
    finally:
        plt.close(figure)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories (train_gpt --out) or metrics.jsonl files")
    parser.add_argument("--out", metavar="FILE", help="the picture; default: loss.png in the first run directory")
    parser.add_argument("--floor", type=float, metavar="X", help="draw this lowest possible loss")
    parser.add_argument("--x", choices=["step", "tokens"], default="step", help="the horizontal axis")
    args = parser.parse_args(argv)
    out = args.out or next_to(args.runs[0], "loss.png")
    try:
        runs = read_runs(args.runs)
        print_notes(runs)
        floors = [run.floor for run in runs if run.floor is not None]
        floor = args.floor if args.floor is not None else floors[0] if floors else None
        draw(runs, floor, out, args.x == "tokens")
    except RunError as error:
        raise SystemExit(str(error)) from error
    print(f"curves drawn to {out}")


if __name__ == "__main__":
    start(main)
