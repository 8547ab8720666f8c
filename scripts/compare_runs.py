#!/usr/bin/env python3
"""Compares runs with the first one, the reference, to answer: does FP8 follow BF16?

    python3 scripts/compare_runs.py runs/bf16 runs/fp8
    python3 scripts/compare_runs.py runs/bf16 runs/fp8 runs/current --max-gap 0.5% --from 1000 -o gap.png

Prints a table (losses, gaps, speed, matmuls by type, FP8 counters) and draws the curves, their gaps and the counters.
A gap is loss / (reference's loss) - 1. It is computed for the mean training loss of every window of steps (--window)
and for every validation. Only steps that both runs have are compared.

Exits with code 1 and a message if the comparison is not fair (the initial weights, the batches or the validation data
differ, only one run was validated in FP8, or an FP8 run made no FP8 matmuls) or a gap is above --max-gap; with code 2
if there is nothing to compare.
"""

import argparse
import json
import math
import os
import statistics
import sys
from dataclasses import dataclass

from runs import RunError, continue_in_venv, next_to, print_notes, printable, published_names, read_published, \
    read_runs, start

ROLES = {"x": "layer inputs (x)", "w": "weights (w)", "dout": "output gradients (dout)"}


@dataclass
class Gap:
    """A loss compared with the reference's, for a window of training steps or a validation."""

    first: int  # the steps that the gap covers
    last: int
    what: str  # "training", or the name of a validation loss
    reference: float
    loss: float

    @property
    def relative(self):
        comparable = math.isfinite(self.loss) and math.isfinite(self.reference) and self.reference != 0
        return self.loss / self.reference - 1 if comparable else math.inf

    @property
    def place(self):
        steps = f"steps {self.first}-{self.last}" if self.first != self.last else f"step {self.last}"
        return f"{self.what}, {steps}"


def mean(values):
    """The mean, or NaN if a value is not finite (null in the file)."""
    return math.nan if any(v is None for v in values) else statistics.fmean(values)


def median_speed(records):
    """The median of tokens per second, or None if no record has it."""
    speeds = [r["tokens_per_s"] for r in records if r.get("tokens_per_s") is not None]
    return statistics.median(speeds) if speeds else None


def by_step(run):
    return {record["step"]: record for record in run.steps}


def losses(run, name):
    """{step: loss} of a validation set; NaN where it is not finite."""
    return dict(run.val.get(name, [])) | {step: math.nan for lost, step in run.val_lost if lost == name}


def validation_sets(run):
    """The names of its validation losses."""
    return list(dict.fromkeys([*run.val, *sorted(name for name, _ in run.val_lost)]))


def validation_text(points):
    """The last of {step: loss}."""
    return f"{loss_text(points[max(points)])} (step {max(points)})" if points else "-"


def default_window(steps):
    """A tenth of the run, rounded to 1, 2 or 5 times a power of ten."""
    wanted = max(1.0, steps / 10)
    power = 10 ** math.floor(math.log10(wanted))
    return int(min((1, 2, 5, 10), key=lambda factor: abs(math.log(factor * power / wanted))) * power)


class Comparison:
    """A run compared with the reference."""

    def __init__(self, reference, run, window):
        self.reference, self.run = reference, run
        ours, theirs = by_step(run), by_step(reference)
        self.steps = sorted(ours.keys() & theirs.keys())
        self.pairs = [(theirs[step], ours[step]) for step in self.steps]
        self.windows = self._windows(window or default_window(max(self.steps, default=1)))
        # Steps after which only one of the runs was validated in FP8, whose rounding is in the loss.
        self.mixed = [step for step, precision in sorted(run.val_precision.items()) if step in reference.val_precision and
                      (precision == "fp8") != (reference.val_precision[step] == "fp8")]
        self.validations = []
        self.other_data = {}  # {name of a validation loss: first step at which the runs did not score the same}
        for name in validation_sets(reference):
            ours, theirs = losses(run, name), losses(reference, name)
            for step in sorted((ours.keys() & theirs.keys()) - set(self.mixed)):
                if same(reference.val_hash.get((name, step)), run.val_hash.get((name, step))) is False:
                    self.other_data.setdefault(name, step)
                else:
                    self.validations.append(Gap(step, step, name.replace("val_loss", "validation"), theirs[step], ours[step]))

    @property
    def is_empty(self):
        return not (self.steps or self.validations or self.mixed or self.other_data)

    def _windows(self, width):
        windows = {}
        for reference, ours in self.pairs:
            windows.setdefault((ours["step"] - 1) // width, []).append((reference, ours))
        return [Gap(pairs[0][1]["step"], pairs[-1][1]["step"], "training", mean([r["loss"] for r, _ in pairs]),
                    mean([o["loss"] for _, o in pairs])) for _, pairs in sorted(windows.items())]

    def worst(self, start):
        """The largest gap that lies entirely after step `start`, or None."""
        judged = [gap for gap in self.windows + self.validations if gap.first > start or gap.first == gap.last == start]
        return max(judged, key=lambda gap: abs(gap.relative), default=None)

    def speed_ratio(self):
        """Median tokens per second divided by the reference's. Leaves out the first step, which warms up."""
        theirs, ours = (median_speed(pair[i] for pair in self.pairs[1:]) for i in (0, 1))
        return ours / theirs if ours and theirs else None

    @property
    def branch(self):
        """The run of the two that continues a checkpoint of the other, or None. It has the same run_id, and begins later."""
        first, last = sorted((self.reference, self.run), key=lambda run: run.first_step)
        is_branch = same(first.info.get("run_id"), last.info.get("run_id")) and first.first_step < last.first_step
        return last if is_branch else None

    def same_weights(self):
        """True or False; None if it is unknown, or if the runs began at different steps of the same run."""
        return None if self.branch else same(self.reference.info.get("weights_hash"), self.run.info.get("weights_hash"))

    def weights_text(self):
        if self.branch:
            return f"{self.branch.name} continues step {self.branch.first_step - 1}"
        return known_text(self.same_weights(), "the same", "DIFFERENT")

    def why_other_weights(self):
        for run in (self.run, self.reference):
            if run.first_step > 1:
                return f"the records of {run.name} begin at step {run.first_step}, because it continues another checkpoint"
        return "--seed, the model or --init-from differ"

    def first_other(self, field):
        """The first step whose `field` differs, 0 if none does, or None if it is unknown."""
        known = [(a[field], b[field], b["step"]) for a, b in self.pairs if a.get(field) and b.get(field)]
        return next((step for a, b, step in known if a != b), 0) if known else None

    def first_other_batch(self):
        return self.first_other("batch_hash")

    def why_not_comparable(self):
        """A line if the validations of the runs do not measure the same, or none."""
        return [f"{self.run.name} was validated in {self.run.val_precision[step]} and {self.reference.name} in "
                f"{self.reference.val_precision[step]} (step {step}), and the rounding of an FP8 forward pass is only in one of "
                "the losses; compare what train_gpt eval gives for both" for step in self.mixed[:1]] + [
            f"{self.run.name} was not validated on the data of {self.reference.name} ({name}, step {step}; val_hash: the files, "
            "-m, -t or --doc-mask differ)" for name, step in self.other_data.items()]


def same(a, b):
    return a == b if a and b else None


def is_fp8(run):
    return run.config.get("precision") == "fp8"


def steps_without_fp8(run):
    return [r["step"] for r in run.steps if not r.get("products", {}).get("fp8")]


def failures(comparisons, runs, max_gap, start):
    """One line for each reason why the runs cannot be compared, or differ too much."""
    lines = []
    for run in runs:
        missing = steps_without_fp8(run) if is_fp8(run) else []
        if missing:
            lines.append(f"{run.name} is an FP8 run but made no FP8 matmuls in {len(missing)} of its "
                         f"{len(run.steps)} steps (the first: step {missing[0]})")
    for c in comparisons:
        if c.same_weights() is False:
            lines.append(f"{c.run.name} did not start with the weights of {c.reference.name} (weights_hash in run.json: "
                         f"{c.why_other_weights()})")
        if c.first_other_batch():
            lines.append(f"{c.run.name} did not train on the batches of {c.reference.name}, from step "
                         f"{c.first_other_batch()} on (batch_hash: the data, --seed or the batch size differ)")
        lines += c.why_not_comparable()
        worst = c.worst(start)
        if max_gap is None:
            continue
        if worst is None:
            lines.append(f"{c.run.name} has nothing in common with {c.reference.name} from step {start} on")
        elif not abs(worst.relative) <= max_gap:
            lines.append(f"{c.run.name}: the gap to {c.reference.name} is {percent(worst.relative)} ({worst.place}); "
                         f"{percent(max_gap, sign='')} is allowed")
    return lines


# ---- the table -----------------------------------------------------------------------------------------------------

def percent(fraction, sign="+"):
    return "not finite" if not math.isfinite(fraction) else f"{100 * fraction:{sign}.3f} %"


def loss_text(loss):
    return "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.4f}"


def time_text(seconds):
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def precision_text(run):
    precision = run.config.get("precision", "not known")
    if precision != "fp8":
        return precision
    layers = run.config.get("fp8-layers", "all")
    return f"fp8, {run.config.get('fp8-recipe')}" + (f", {layers}" if layers != "all" else "")


def products_text(run):
    """The matmuls of a micro-step by type, from the last record."""
    products = run.steps[-1].get("products", {}) if run.steps else {}
    return ", ".join(f"{kind} {count}" for kind, count in products.items() if count) or "-"


def worst_fraction(run, count):
    """The largest saturated or underflowed fraction of an FP8 tensor in any record, and the tensor's name."""
    found = [(t[count] / t["elements"], t["tensor"]) for record in run.fp8 for t in record["fp8"] if t["elements"]]
    if not found:
        return "-"
    fraction, tensor = max(found)
    return f"{fraction:.1e} {tensor}" if fraction else "0"


def val_precision_text(run):
    return ", then ".join(dict.fromkeys(str(precision) for _, precision in sorted(run.val_precision.items()))) or "-"


def rows_of_a_run(run, last_steps):
    last = run.steps[-1] if run.steps else {}
    sets = validation_sets(run)
    val = losses(run, "val_loss" if "val_loss" in sets else sets[0]) if sets else {}
    skipped, spikes = last.get("skipped", 0), sum("spike" in r for r in run.steps)
    best = min((step for step in val if math.isfinite(val[step])), key=lambda step: (val[step], step), default=None)
    speed = median_speed(run.steps)
    return {
        "date": str(run.info.get("date", "-")),
        "time in steps": time_text(sum(r.get("ms") or 0 for r in run.steps) / 1000),
        "precision": precision_text(run),
        "steps": f"{last.get('step', 0):,}",
        "tokens": f"{last.get('tokens', 0):,}",
        "training loss, last step": loss_text(last.get("loss")) if last else "-",
        "  mean of the last window": loss_text(mean([r["loss"] for r in run.steps[-last_steps:]])) if last else "-",
        "validation loss, last": validation_text(val),
        "  best": "-" if best is None else validation_text({best: val[best]}),
        "  computed in": val_precision_text(run),
        "tokens/s, median": "-" if speed is None else f"{speed:,.0f}",
        "matmuls per micro-step": products_text(run),
        "steps skipped / spikes": f"{skipped} / {spikes}",
        "FP8 saturated, at most": worst_fraction(run, "saturated"),
        "FP8 underflowed, at most": worst_fraction(run, "underflowed"),
    }


def machine_of(run):
    """Facts besides the flags on which the speed of a run depends. Of a resumed run, those of its last start."""
    started = (run.info.get("resumed") or [run.info])[-1]
    versions = started.get("versions")
    clocks = [r["sm_clock_mhz"] for r in run.steps if r.get("sm_clock_mhz")]
    return {
        "device": started.get("device"), "ranks": started.get("world"), "kernels": started.get("kernels"),
        **{f"  {name}": version for name, version in (versions if isinstance(versions, dict) else {}).items()},
        "card's clock, median": f"{statistics.median(clocks):.0f} MHz" if clocks else None,
    }


def known_text(value, yes, no):
    return "not recorded" if value is None else yes if value else no


def rows_of_a_comparison(c, start):
    worst, ratio = c.worst(start), c.speed_ratio()
    firsts = [gap for gap in c.validations if gap.what == c.validations[0].what]  # of the first set

    def per_step(other):
        return known_text(None if other is None else not other, f"the same, {len(c.steps)} steps",
                          f"DIFFERENT from step {other}")
    return {
        "gap, last validation": percent(firsts[-1].relative) if firsts else "-",
        "gap, last window": percent(c.windows[-1].relative) if c.windows else "-",
        "gap, largest" + (f" from step {start}" if start else ""):
            f"{percent(worst.relative)} ({worst.place})" if worst else "-",
        "speed vs. reference": f"{ratio:.2f} times" if ratio else "-",
        "weights at the start": c.weights_text(),
        "batches": per_step(c.first_other_batch()),
        "learning rates": per_step(c.first_other("lr")),
    }


def print_table(heads, rows):
    """Prints rows of the form (label, [cell, ...])."""
    heads, rows = [printable(head) for head in heads], [(name, [printable(c) for c in cells]) for name, cells in rows]
    widths = [max(len(str(cells[i])) for _, cells in [("", heads), *rows]) for i in range(len(heads))]
    label = max(len(name) for name, _ in rows)
    for name, cells in [("", heads), *rows]:
        print(f"{name:<{label}}" + "".join(f"   {cell:<{width}}" for cell, width in zip(cells, widths)).rstrip())


def summary(reference, comparisons, start):
    """Returns the heads and rows, as print_table() takes them, of a table with one column per run. A reference may
    stand alone.
    """
    runs = [reference] + [c.run for c in comparisons]
    windows = comparisons[0].windows if comparisons else Comparison(reference, reference, None).windows
    last_steps = windows[-1].last - windows[-1].first + 1 if windows else 1
    columns = [rows_of_a_run(run, last_steps) for run in runs]
    rows = [(name, [column[name] for column in columns]) for name in columns[0]]
    machines = [machine_of(run) for run in runs]
    for name in dict.fromkeys(name for machine in machines for name in machine):  # those that are not the same
        if any(machine.get(name) != machines[0].get(name) for machine in machines):
            rows.append((name, [str(machine.get(name) or "not recorded") for machine in machines]))
    beside = [rows_of_a_comparison(c, start) for c in comparisons]
    if beside:
        rows += [(name, ["-"] + [column[name] for column in beside]) for name in beside[0]]
    return [f"{reference.name} (reference)" if beside else reference.name] + [run.name for run in runs[1:]], rows


def gap_tables(reference, comparisons):
    """Yields (title, heads, rows) of the gaps of training windows and of validations, if there are any."""
    for kind, title in (("windows", "mean training loss"), ("validations", "validation loss")):
        places = {}
        for i, c in enumerate(comparisons):
            for gap in getattr(c, kind):
                label = gap.place.replace("training, ", "").replace("validation, ", "")
                row = places.setdefault((gap.what, gap.first), [label, loss_text(gap.reference), *["-"] * len(comparisons)])
                row[2 + i] = percent(gap.relative)
        if places:
            yield (f"Gap of the {title}", [reference.name] + [c.run.name for c in comparisons],
                   [(row[0], row[1:]) for _, row in sorted(places.items())])


def beside_published(published, run):
    """Returns (step, tokens, loss, published loss) for the validations of the first set within the published curve."""
    for step, loss in next(iter(run.val.values()), []):
        tokens = round(run.tokens_at(step))
        theirs = published.at(tokens)
        if theirs is not None:
            yield step, tokens, loss, theirs


def other_vocabularies(published, runs):
    """A line for each run whose losses are of other tokens than those of a published curve."""
    vocab = published.about.get("vocab")
    return [f"{run.name} has a vocabulary of {own}, and {published.name} one of {vocab}: losses per token of different tokenizers "
            "cannot be compared" for run in runs if vocab and (own := run.info.get("model", {}).get("vocab")) and str(own) != vocab]


def published_table(published, runs):
    """Returns heads, and a row for every number of tokens at which a run was validated."""
    rows = {}
    for i, run in enumerate(runs):
        for _, tokens, loss, theirs in beside_published(published, run):
            # Values between the published points are interpolated.
            between = "" if tokens in dict(published.points) else "~"
            row = rows.setdefault(tokens, [f"{between}{theirs:.4f}", *["-"] * len(runs)])
            row[1 + i] = f"{loss_text(loss)} ({percent(loss / theirs - 1)})"
    return [published.name, *(run.name for run in runs)], [(f"{tokens:,} tokens", row) for tokens, row in sorted(rows.items())]


def print_published(published, runs):
    print(f"\n{published.about['title']}, as published")
    for key in ("source", "settings", "validation", "level"):
        if key in published.about:
            print(f"{key + ':':<12}{published.about[key]}")
    tokens, loss = published.points[-1]
    print(f"{'end:':<12}{loss:.4f} after {tokens:,} tokens")
    heads, rows = published_table(published, runs)
    if rows:
        print_table(heads, rows)
        print("~: on a straight line between its points")
    else:
        print("No run has validated within that curve.")


def print_report(reference, comparisons, start):
    print_table(*summary(reference, comparisons, start))
    for title, heads, rows in gap_tables(reference, comparisons):
        print(f"\n{title}")
        print_table(heads, rows)


def number(value):
    """A number for JSON, which has none that are not finite."""
    return value if value is not None and math.isfinite(value) else None


def facts_of(run):
    """The run's part of --json."""
    last = run.steps[-1] if run.steps else {}
    return {"name": run.name, "precision": run.config.get("precision"), "steps": last.get("step", 0),
            "tokens": last.get("tokens", 0), "loss": last.get("loss"), "tokens_per_s": median_speed(run.steps),
            "validations": {name: {step: number(loss) for step, loss in sorted(losses(run, name).items())}
                            for name in validation_sets(run)}}


def facts_of_comparison(c, start):
    worst = c.worst(start)
    return {**facts_of(c.run), "same_weights": c.same_weights(), "first_other_batch": c.first_other_batch(),
            "speed_ratio": c.speed_ratio(), "largest_gap": number(worst.relative) if worst else None,
            "gaps": [{"what": gap.what, "first": gap.first, "last": gap.last, "reference": number(gap.reference),
                      "loss": number(gap.loss), "gap": number(gap.relative)} for gap in c.windows + c.validations]}


def print_json(facts, reasons):
    """Prints one object, and returns the exit code."""
    print(json.dumps({**facts, "failures": reasons}, allow_nan=False))
    return 1 if reasons else 0


# ---- the picture ---------------------------------------------------------------------------------------------------

def draw_gaps(axes, comparisons, colours, max_gap):
    axes.axhline(0, color="#555555", linewidth=1)
    for c, colour in zip(comparisons, colours):
        finite = [gap for gap in c.windows if math.isfinite(gap.relative)]
        axes.plot([(gap.first + gap.last) / 2 for gap in finite], [100 * gap.relative for gap in finite], color=colour,
                  marker="o", markersize=3, linewidth=1.2, label=f"{c.run.name}: training")
        finite = [gap for gap in c.validations if math.isfinite(gap.relative)]
        axes.plot([gap.last for gap in finite], [100 * gap.relative for gap in finite], color=colour, marker="D",
                  markersize=5, markerfacecolor="white", linewidth=1.2, linestyle="--", label=f"{c.run.name}: validation")
    if max_gap is not None:
        for limit in (-100 * max_gap, 100 * max_gap):
            axes.axhline(limit, color="#b03030", linewidth=1, linestyle=":",
                         label="--max-gap" if limit > 0 else None)
    axes.set_ylabel("gap to the\nreference (%)")
    # Above the axes, because the curves may cover any place inside.
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    axes.margins(y=0.15)


def role_of(tensor):
    return tensor["tensor"].rsplit(".", 1)[-1]


def counters(run, role):
    """By record, for all tensors of one role: the steps, the shares lost to saturation and to underflow, and the
    smallest, median and largest of their scales.
    """
    steps, lost, spread = [], {"underflowed": [], "saturated": []}, []
    for record in run.fp8:
        tensors = [t for t in record["fp8"] if role_of(t) == role and t["elements"] and t["scale"]]
        if not tensors:
            continue
        steps.append(record["step"])
        elements = sum(t["elements"] for t in tensors)
        for count, values in lost.items():
            values.append(sum(t[count] for t in tensors) / elements)
        each = sorted(t["scale"] for t in tensors)
        spread.append((each[0], statistics.median(each), each[-1]))
    return steps, lost, spread


def draw_counters(fractions, scales, runs, colours, role):
    for run, colour in zip(runs, colours):
        steps, lost, spread = counters(run, role)
        fractions.plot(steps, lost["underflowed"], color=colour, linewidth=1.3, label=f"{run.name}: underflowed")
        fractions.plot(steps, lost["saturated"], color=colour, linewidth=1.3, linestyle=":", label=f"{run.name}: saturated")
        if steps:
            low, middle, high = zip(*spread)
            scales.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            scales.plot(steps, middle, color=colour, linewidth=1.3, label=run.name)
    fractions.set_yscale("symlog", linthresh=1e-6)
    fractions.set_ylim(0, 1)
    fractions.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
    scales.set_yscale("log", base=2)
    fractions.set_title(ROLES[role], fontsize=10, loc="left")


def draw_published(axes, gap_axes, published, reference):
    """Draws the published curve at the steps at which the reference has seen as many tokens, as far as it reaches.
    Draws its gap too if no other run has one.
    """
    if gap_axes:
        gaps = [(step, 100 * (loss / theirs - 1)) for step, _, loss, theirs in beside_published(published, reference)]
        gap_axes.axhline(0, color="#555555", linewidth=1)
        gap_axes.plot(*(zip(*gaps) if gaps else ((), ())), marker="D", markersize=5, linewidth=1.2)
        gap_axes.set_ylabel("gap to the\npublished (%)")
    last = reference.tokens_at(reference.steps[-1]["step"]) if reference.steps else 0
    points = [(reference.step_at(tokens), loss) for tokens, loss in published.points if tokens <= last]
    if points:
        axes.plot(*zip(*points), color="#111111", linewidth=1, marker="x", markersize=4, label=f"{published.name}, published")
        axes.legend(frameon=False, fontsize=9)


def draw(reference, comparisons, out, max_gap, published=None):
    import plot_run as plot

    plt = plot.plt
    plt.rcParams.update(plot.STYLE)
    runs = [reference] + [c.run for c in comparisons]
    colour_of = dict(zip(map(id, runs), plot.COLOURS * len(runs)))
    fp8_runs = [run for run in runs if run.fp8]
    figure = plt.figure(figsize=(10, 11 if fp8_runs else 7), layout="constrained")
    grid = figure.add_gridspec(4 if fp8_runs else 2, 3, height_ratios=[3, 1.6, 1.3, 1.3] if fp8_runs else [3, 1.6])
    loss = figure.add_subplot(grid[0, :])
    gap = figure.add_subplot(grid[1, :], sharex=loss)
    floors = [run.floor for run in runs if run.floor is not None]
    plot.draw_loss(loss, runs, floors[0] if floors else None, lambda run, step: step)
    if published:
        draw_published(loss, None if comparisons else gap, published, reference)
    compared = ", ".join(c.run.name for c in comparisons)
    title = f"{compared} compared with {reference.name}" if compared else f"{reference.name} compared with {published.name}"
    loss.set_title(title, loc="left", fontweight="bold", pad=22 if reference.title else 8)
    if reference.title:
        loss.text(0, 1.025, f"{reference.name}: {reference.title}", transform=loss.transAxes, fontsize=9, color="#555555")
    if comparisons:
        draw_gaps(gap, comparisons, [colour_of[id(c.run)] for c in comparisons], max_gap)
    loss.tick_params(labelbottom=False)
    gap.set_xlabel("optimizer step")
    gap.set_xlim(left=0)
    first = None
    for column, role in enumerate(ROLES if fp8_runs else []):
        fractions = figure.add_subplot(grid[2, column], sharex=loss, sharey=first[0] if first else None)
        scales = figure.add_subplot(grid[3, column], sharex=loss)
        draw_counters(fractions, scales, fp8_runs, [colour_of[id(run)] for run in fp8_runs], role)
        fractions.tick_params(labelbottom=False, labelleft=first is None)
        scales.set_xlabel("optimizer step")
        if first is None:
            first = fractions, scales
            fractions.set_ylabel("share of the\nelements cast")
            scales.set_ylabel("scale: median,\nsmallest to largest")
            fractions.legend(frameon=False, fontsize=8)
    figure.align_ylabels([loss, gap] + ([*first] if first else []))
    plot.save(figure, out)


# ---- the command ---------------------------------------------------------------------------------------------------

def fraction(text):
    """Parses 0.005 or 0.5%."""
    number = text.strip()
    value = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    if not value >= 0:
        raise ValueError(text)
    if value > 0.1 and not number.endswith("%"):
        raise argparse.ArgumentTypeError(f"{number} would allow {100 * value:g} %; for {number} percent write {number}%")
    return value


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", metavar="A", help="the reference: a run directory (train_gpt --out) or metrics.jsonl")
    parser.add_argument("others", nargs="*", metavar="B", help="runs to compare with it")
    parser.add_argument("--published", metavar="NAME",
                        help="also draw a published curve of validation losses, by tokens: "
                             f"{', '.join(published_names())}, or a file like those in scripts/published")
    parser.add_argument("--max-gap", type=fraction, metavar="X",
                        help="largest gap allowed, either way, as a fraction or in percent: 0.005 or 0.5%%")
    parser.add_argument("--window", type=int, metavar="N", help="training steps per window; default: a tenth of the run")
    parser.add_argument("--from", type=int, default=0, metavar="STEP", dest="start",
                        help="judge only windows and validations from this step on: early ones differ by chance")
    parser.add_argument("-o", "--out", metavar="FILE", help="the picture; default: compare.png in A's directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead; no picture")
    args = parser.parse_args(argv)
    if not args.others and not args.published:
        parser.error("the following arguments are required: B, or --published")
    if args.window is not None and args.window < 1:
        parser.error("--window: at least 1")
    return args


def main(argv=None):
    args = parse(argv)
    if argv is None:
        continue_in_venv("matplotlib")  # without it there is a table and no picture
    try:
        reference, *others = read_runs([args.reference, *args.others])
        comparisons = [Comparison(reference, run, args.window) for run in others]
        published = read_published(args.published) if args.published else None
        for path in args.others:
            if os.path.realpath(path) == os.path.realpath(args.reference):
                raise RunError(f"{path} is the reference itself")
        for c in comparisons:
            if same(reference.info.get("run_id"), c.run.info.get("run_id")) and reference.steps == c.run.steps:
                raise RunError(f"{c.run.name} is a copy of {reference.name}: the same run, with the same times of its steps")
            if c.is_empty:
                raise RunError(f"{c.run.name} and {reference.name} have no step in common")
    except RunError as error:
        print(f"compare_runs: {error}", file=sys.stderr)
        return 2
    print_notes([reference, *others])
    reasons = failures(comparisons, [reference, *others], args.max_gap, args.start)
    reasons += other_vocabularies(published, [reference, *others]) if published else []
    if args.json:
        facts = {"reference": facts_of(reference), "runs": [facts_of_comparison(c, args.start) for c in comparisons]}
        if published:
            facts["published"] = {run.name: [dict(zip(("step", "tokens", "loss", "published"), point))
                                             for point in beside_published(published, run)] for run in [reference, *others]}
        return print_json(facts, reasons)
    print_report(reference, comparisons, args.start)
    if published:
        print_published(published, [reference, *others])
    out = args.out or next_to(args.reference, "compare.png")
    try:
        draw(reference, comparisons, out, args.max_gap, published)
        print(f"\ncurves, gaps and FP8 counters drawn to {out}")
    except ModuleNotFoundError:
        print("\nno picture: matplotlib is missing (pip install matplotlib, or scripts/setup.sh)")
    except RunError as error:
        print(f"compare_runs: {error}", file=sys.stderr)
        return 2
    for reason in reasons:
        print(f"FAILED: {reason}")
    return 1 if reasons else 0


if __name__ == "__main__":
    start(main)
