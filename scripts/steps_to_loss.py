#!/usr/bin/env python3
"""How many steps do runs need to reach the same loss? Use this for runs that should differ (optimizer, model, learning
rate), and compare_runs.py for runs that should agree.

    python3 scripts/steps_to_loss.py runs/adamw runs/muon
    python3 scripts/steps_to_loss.py runs/adamw runs/muon --loss 3.4 --loss 3.3 -o steps.png

The losses are those of the first run after an eighth, a quarter, a half and all of its steps, or the values of --loss.
A run reaches a loss at its first validation at or below it, so --val-every sets the resolution. With several validation
sets, it is the first that all runs have. A run that continues a checkpoint of another directory lacks the steps before
it, so if its first validation is below a loss already, the table says "or before". Prints a table and draws the curves.

Exits with code 1 and a message if runs did not train or were not validated on the same data, or only some were
validated in FP8, and with code 2 if there is nothing to compare.
"""

import argparse
import statistics
import sys

from compare_runs import Comparison, facts_of, loss_text, losses as losses_of, precision_text, print_json, print_table, \
    validation_text
from runs import RunError, continue_in_venv, next_to, print_notes, read_runs, start


def validations(run):
    """[(step, loss)] of the first validation set, without losses that are not finite."""
    points = next(iter(run.val.values()), [])
    if not points:
        raise RunError(f"{run.name} has no validation loss that is finite" if run.val_lost else
                       f"{run.name} has no validation losses (train with --val)")
    return points


def put_common_set_first(runs):
    """The first validation set of each run becomes one that all have."""
    common = next((name for name in runs[0].val if all(name in run.val for run in runs)), None)
    if common is None and all(run.val for run in runs):
        raise RunError("the runs have no validation set in common; train with the same --val NAME=GLOB")
    for run in runs if common else []:
        run.val = {common: run.val[common], **run.val}


def losses_on_the_way(points):
    """The first run's losses at the last validations within an eighth, a quarter, a half and all of the steps, highest
    first. Validations before the first step do not count.
    """
    last = points[-1][0]
    until = [[loss for step, loss in points if 0 < step <= last / part] for part in (8, 4, 2, 1)]
    return sorted({losses[-1] for losses in until if losses}, reverse=True)


def step_of(points, loss):
    """The first step with this loss or a lower one, or None."""
    return next((step for step, value in points if value <= loss), None)


def or_before(run, loss):
    """True if the run may have reached the loss before its first validation, because it lacks its first steps."""
    return run.first_step > 1 and validations(run)[0][1] <= loss


def facts(run):
    config, times = run.config, [r["ms"] for r in run.steps[1:] if r.get("ms")]
    return {
        "model": run.info.get("model", {}).get("architecture", "gpt2"),
        "parameters": f"{run.info.get('model', {}).get('parameters', 0):,}",
        "optimizer": config.get("optimizer", "not recorded"),
        "peak learning rate": str(config.get("lr", "not recorded")),
        "precision": precision_text(run),
        "steps": f"{run.steps[-1]['step']:,}" if run.steps else "-",
        "ms a step, median": f"{statistics.median(times):.1f}" if times else "-",
        "validation loss, last": validation_text(losses_of(run, next(iter(run.val), ""))),
    }


def reached_text(run, loss, reference):
    step = step_of(validations(run), loss)
    if step is None:
        return "not reached"
    if or_before(run, loss):
        return f"{step:,} or before"
    return f"{step:,} ({step / reference:.2f} times)" if reference else f"{step:,}"


def print_report(runs, losses):
    heads, columns = [run.name for run in runs], [facts(run) for run in runs]
    print_table(heads, [(name, [column[name] for column in columns]) for name in columns[0]])
    print("\nSteps to a validation loss")
    rows = []
    for loss in losses:
        reference = None if or_before(runs[0], loss) else step_of(validations(runs[0]), loss)
        rows.append((loss_text(loss), [reached_text(run, loss, reference if i else None) for i, run in enumerate(runs)]))
    print_table(heads, rows)


def draw(runs, losses, out):
    import plot_run as plot

    plot.plt.rcParams.update(plot.STYLE)
    figure, axes = plot.plt.subplots(figsize=(9, 5), layout="constrained")
    floors = [run.floor for run in runs if run.floor is not None]
    plot.draw_loss(axes, runs, floors[0] if floors else None, lambda run, step: step)
    for loss in losses:
        reached = [step_of(validations(run), loss) for run in runs]
        steps = [step for step in reached if step is not None]
        axes.plot(steps, [loss] * len(steps), color="#777777", linewidth=0.9, zorder=1)
        for i, (step, colour) in enumerate(zip(reached, plot.COLOURS * len(runs))):
            if step is not None:  # labels of other runs go below the curve, so that neighbours stay legible
                text = f"{step:,}" + (" or before" if or_before(runs[i], loss) else "")
                axes.annotate(text, (step, loss), xytext=(0, 7 if i % 2 == 0 else -16), ha="center", color=colour,
                              textcoords="offset points", fontsize=9,
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})
    axes.set_xlabel("optimizer step")
    axes.set_xlim(left=0)
    axes.set_title("Steps to the same loss", loc="left", fontweight="bold")
    plot.save(figure, out)


def failures(runs):
    """A line for every run whose batches differ from the first run's, or whose validations measure something else."""
    for run in runs[1:]:
        comparison = Comparison(runs[0], run, None)
        yield from comparison.why_not_comparable()
        step = comparison.first_other_batch()
        if step:
            yield (f"{run.name} did not train on the batches of {runs[0].name}, from step {step} on (batch_hash: the data, "
                   "--seed or the batch size differ)")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories (train_gpt --out); the first is the reference")
    parser.add_argument("--loss", type=float, action="append", metavar="X", help="steps to this loss (may be repeated)")
    parser.add_argument("-o", "--out", metavar="FILE", help="the picture; default: steps.png in the first run's directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead; no picture")
    args = parser.parse_args(argv)
    if argv is None:
        continue_in_venv("matplotlib")  # without it there is a table and no picture
    try:
        runs = read_runs(args.runs)
        print_notes(runs)
        put_common_set_first(runs)
        points = [validations(run) for run in runs]
        losses = sorted(args.loss or losses_on_the_way(points[0]), reverse=True)
        if not losses:
            raise RunError(f"{runs[0].name} has no finite validation loss after step 0; name losses with --loss")
        reasons = list(failures(runs))
        if args.json:
            return print_json({"runs": [facts_of(run) for run in runs], "steps_to_loss": [
                {"loss": loss, "steps": {run.name: step_of(validations(run), loss) for run in runs},
                 "or_before": [run.name for run in runs if or_before(run, loss)]} for loss in losses]}, reasons)
        print_report(runs, losses)
    except RunError as error:
        print(f"steps_to_loss: {error}", file=sys.stderr)
        return 2
    out = args.out or next_to(args.runs[0], "steps.png")
    try:
        draw(runs, losses, out)
        print(f"\ncurves drawn to {out}")
    except ModuleNotFoundError:
        print("\nno picture: matplotlib is missing (pip install matplotlib, or scripts/setup.sh)")
    except RunError as error:
        print(f"steps_to_loss: {error}", file=sys.stderr)
        return 2
    for reason in reasons:
        print(f"FAILED: {reason}")
    return 1 if reasons else 0


if __name__ == "__main__":
    start(main)
