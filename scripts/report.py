#!/usr/bin/env python3
"""Makes one HTML page about one or several runs. It works offline in any browser, also on a phone.

    python3 scripts/report.py runs/d12 -o d12.html
    python3 scripts/report.py runs/bf16 runs/fp8 -o both.html

It shows the configuration and its differences, curves (loss, learning rate, gradient norm, speed, loss scale), the gaps
to the first run as compare_runs.py computes them, values lost in casts to FP8, maps of every tensor over the steps
(amax; with --signals-every also update / weights, and gradient), memory, matmuls by type, samples, and warnings. For a
long run it stores the mean, smallest and largest value of every stretch of steps, so no spike is lost.
Needs no package.
"""

import argparse
import html
import json
import math
import os
import re
import statistics
import sys

from compare_runs import ROLES, Comparison, counters, failures, gap_tables, role_of, summary
from runs import TASK_SCORES, Run, RunError, is_number, next_to, read_runs, replacing, smooth, start, \
    with_ratios

PARTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report")
MOST_POINTS = 500  # per curve; a longer curve is drawn as this many stretches
MOST_CELLS = 30000  # for all maps of a group together, per quantity
MOST_COLUMNS = 100  # per map
MOST_SAMPLES = 12  # per run
SMOOTH_OVER = 0.02  # of the run: the width of the window for the smoothed training loss
OWN_TO_A_RUN = {"out"}  # flags that always differ between runs


# ---- curves --------------------------------------------------------------------------------------------------------

def rounded(value, digits=6):
    """Rounds a number, to keep the file small. None if it is not a number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def stretches(count, most):
    """Returns [(begin, end)]: at most `most` stretches of equal length, except that the last may be shorter."""
    width = max(1, -(-count // most))
    return [(begin, min(begin + width, count)) for begin in range(0, count, width)]


def curve(run, name, steps, values, *, ends=None, smoothed=None, stepped=False, style="line"):
    """A curve in the page's format: x, y, and for a point that stands for several, their first and last step and their
    smallest and largest value. `ends` gives the first and last step of values that themselves cover several steps.
    `smoothed` is drawn instead of the mean, with the values behind it. With `stepped`, the last value represents a
    stretch, because the mean would be a value that never occurred.
    """
    parts = stretches(len(steps), MOST_POINTS)
    long = len(parts) < len(steps)
    found = {"run": run, "name": name, "style": style, "smoothed": bool(smoothed), "x": [], "y": []}
    found |= {"first": [], "last": []} if long or ends else {}
    found |= {"low": [], "high": []} if long or smoothed else {}
    ends = ends or [(step, step) for step in steps]
    for begin, end in parts:
        finite = [v for v in values[begin:end] if v is not None and math.isfinite(v)]
        middle = (begin + end - 1) // 2
        mean = (finite[-1] if stepped else statistics.fmean(finite)) if finite else None
        found["x"].append(steps[end - 1 if stepped else middle])
        found["y"].append(rounded(smoothed[middle] if smoothed else mean))
        if "first" in found:
            found["first"].append(ends[begin][0])
            found["last"].append(ends[end - 1][1])
        if "low" in found:
            found["low"].append(rounded(min(finite, default=None)))
            found["high"].append(rounded(max(finite, default=None)))
    return found


def recorded(runs, key, name, **how):
    """Curves of a field of the training records, for the runs that have it."""
    curves = []
    for i, run in enumerate(runs):
        records = [r for r in run.steps if key in r]
        if any(r[key] is not None for r in records):
            curves.append(curve(i, name, [r["step"] for r in records], [r[key] for r in records], **how))
    return curves


def loss_curves(runs):
    curves = []
    for i, run in enumerate(runs):
        if run.steps:
            losses = [r["loss"] for r in run.steps]
            line = smooth(losses, max(1, int(len(losses) * SMOOTH_OVER)))
            curves.append(curve(i, "training", [r["step"] for r in run.steps], losses, smoothed=line))
        for key, points in run.val.items():
            name = key.removeprefix("val_loss").removeprefix("_")
            curves.append(curve(i, "validation" + (f" ({name})" if name else ""), *map(list, zip(*points)),
                                style="points"))
    return curves


def task_curves(runs):
    curves = []
    for i, run in enumerate(runs):
        scores = {}
        for record in run.other:
            for key, value in record.items():
                if key.endswith(TASK_SCORES) and isinstance(value, float):
                    scores.setdefault(key, {})[record["step"]] = value  # a later record of the same step wins
        curves += [curve(i, key, *map(list, zip(*sorted(points.items()))), style="points")
                   for key, points in scores.items()]
    return curves


def gap_curves(comparisons):
    curves = []
    for i, c in enumerate(comparisons, 1):
        for name, gaps, style in (("training", c.windows, "line"), ("validation", c.validations, "points")):
            if gaps:
                curves.append(curve(i, name, [(gap.first + gap.last) / 2 for gap in gaps],
                                    [100 * gap.relative for gap in gaps],
                                    ends=[(gap.first, gap.last) for gap in gaps], style=style))
    return curves


def fp8_charts(runs):
    charts = []
    for role, title in ROLES.items():
        lost, scales = [], []
        for i, run in enumerate(runs):
            steps, shares, spread = counters(run, role)
            if not steps:
                continue
            for style, (name, values) in zip(("line", "dotted"), shares.items()):
                lost.append(curve(i, name, steps, values, style=style))
            for name, values in zip(("smallest", "median", "largest"), zip(*spread)):
                scales.append(curve(i, name, steps, list(values), style="line" if name == "median" else "dotted"))
        charts.append(chart(f"lost-{role}", f"FP8, {title}: lost in the cast", "share of elements", lost, scale="share"))
        charts.append(chart(f"scale-{role}", f"FP8, {title}: scales", "", scales, scale="log"))
    return charts


def layer_charts(runs):
    charts = []
    for quantity, title, scale in (("update_ratio", "Tensors: norm of the update over that of the weights", "log"),
                                   ("gradient", "Tensors: norm of the gradient", "log"),
                                   ("max_logit", "Attention: largest logit of a layer", "linear")):
        curves = []
        for i, run in enumerate(runs):
            found = [(record["step"], [t[quantity] for t in with_ratios(record.get("signals", []))
                                        if isinstance(t.get(quantity), (int, float))]) for record in run.other]
            for name, of, style in (("median", statistics.median, "line"), ("largest", max, "dotted")):
                points = [(step, of(values)) for step, values in found if values]
                if points:
                    curves.append(curve(i, name, *map(list, zip(*points)), style=style))
        charts.append(chart(quantity.replace("_", "-"), title, "", curves, scale=scale))
    return charts


def chart(name, title, unit, curves, *, scale="linear", **more):
    return {"name": name, "title": title, "unit": unit, "scale": scale, "curves": curves, **more}


def charts_of(runs, comparisons):
    floors = [run.floor for run in runs if run.floor is not None]
    found = [
        chart("loss", "Loss", "nats per token", loss_curves(runs), scale="log", wide=True,
              level={"name": "floor: the data's entropy", "y": floors[0]} if floors else None),
        chart("gap", f"Gap of the loss to {runs[0].name}", "%", gap_curves(comparisons), wide=True,
              level={"name": "no gap", "y": 0}),
        chart("tasks", "Tasks", "share of right answers", task_curves(runs)),
        chart("lr", "Learning rate", "", recorded(runs, "lr", "learning rate", stepped=True)),
        chart("norm", "Gradient norm, before clipping", "", recorded(runs, "norm", "norm"), scale="log"),
        chart("speed", "Speed", "tokens/s", recorded(runs, "tokens_per_s", "tokens/s")),
        chart("loss-scale", "Loss scale", "", recorded(runs, "loss_scale", "loss scale", stepped=True), scale="log"),
        chart("skipped", "Steps skipped so far", "",
              recorded([run if any(r.get("skipped") for r in run.steps) else Run(run.name) for run in runs], "skipped",
                       "skipped", stepped=True)),
        chart("mfu", "Model FLOPs utilization", "of the cards' peak", recorded(runs, "mfu", "MFU")),
        chart("power", "Power of all cards", "W", recorded(runs, "watts", "watts")),
        chart("energy", "Energy", "J/token", recorded(runs, "joules_per_token", "joules per token")),
        chart("clock", "Clock of the slowest card", "MHz", recorded(runs, "sm_clock_mhz", "MHz")),
        chart("temperature", "Temperature of the hottest card", "°C", recorded(runs, "temperature_c", "°C")),
        *fp8_charts(runs),
        *layer_charts(runs),
    ]
    return [c for c in found if c["curves"]]


# ---- maps of tensors over the steps --------------------------------------------------------------------------------

QUANTITIES = {"fp8": {"amax": "amax", "saturated": "share saturated", "underflowed": "share underflowed"},
              "signals": {"update_ratio": "norm of update over weights", "gradient": "norm of gradient",
                          "max_logit": "largest attention logit"}}
LINEAR = {"max_logit"}  # quantities that may be negative; colours are logarithmic for all others
ZERO = -110000  # stands for 0 among hundredths of log2: less than the logarithm of any floating-point number


def layer_of(tensor):
    return tensor["tensor"].rsplit(".", 1)[0]


def kind_of(tensor):
    return re.sub(r"^h\.\d+\.", "", tensor["tensor"])


def map_number(quantity, value):
    """A number of a map: 100 * log2, which is short, or ZERO. None for missing and non-finite values."""
    if quantity in LINEAR or value is None or not math.isfinite(value):
        return rounded(value, 4)
    return round(100 * math.log2(value)) if value else ZERO


def heat_map(run, group, title, records, columns):
    """A picture of each quantity: a row for every tensor that has it, and columns of the largest value of several records.
    `records` is [(step, {row: {quantity: value}})].
    """
    parts = stretches(len(records), columns)
    cells = {quantity: {} for quantity in QUANTITIES[group]}
    for column, (begin, end) in enumerate(parts):
        for row, values in (item for _, rows in records[begin:end] for item in rows.items()):
            for quantity in cells.keys() & values.keys():
                line = cells[quantity].setdefault(row, [None] * len(parts))
                line[column] = max((v for v in (line[column], values[quantity]) if v is not None), default=None)
    return {"run": run, "group": group, "title": title, "first": [records[begin][0] for begin, _ in parts],
            "last": [records[end - 1][0] for _, end in parts],
            "cells": {quantity: {row: [map_number(quantity, v) for v in line] for row, line in lines.items()}
                      for quantity, lines in cells.items()}}


def columns_for(records_of_runs):
    """How many columns each map of a group has, by the tensors of all its runs."""
    tensors = sum(max(map(len, records), default=0) for records in records_of_runs)
    return min(MOST_COLUMNS, max(8, MOST_CELLS // max(1, tensors)))


def fp8_maps(runs):
    columns = columns_for([[record["fp8"] for record in run.fp8] for run in runs])
    for i, run in enumerate(runs):
        for role, title in ROLES.items() if run.fp8 else ():
            records = [(record["step"], {layer_of(t): {"amax": t["amax"]} | {
                count: t[count] / t["elements"] for count in ("saturated", "underflowed") if t["elements"]}
                for t in record["fp8"] if role_of(t) == role}) for record in run.fp8]
            yield heat_map(i, "fp8", title, records, columns)


def signal_maps(runs):
    """Tensors of the same kind are next to each other, from the first block to the last."""
    found = [[record for record in run.other if record.get("signals")] for run in runs]
    columns = columns_for([[record["signals"] for record in records] for records in found])
    for i, records in enumerate(found):
        kinds = list(dict.fromkeys(kind_of(t) for record in records for t in record["signals"]))
        rows = [(record["step"], {t["tensor"]: {q: v for q, v in t.items() if is_number(v)} for t in
                                  sorted(with_ratios(record["signals"]), key=lambda t: kinds.index(kind_of(t)))})
                for record in records]
        if rows:
            yield heat_map(i, "signals", "tensors", rows, columns)


# ---- warnings for the reader ----------------------------------------------------------------------------------------

def some(steps, most=5):
    return ", ".join(map(str, steps[:most])) + (f" and {len(steps) - most} more" if len(steps) > most else "")


def warnings_of(run):
    yield from run.notes
    last = run.steps[-1] if run.steps else {}
    bad = [r["step"] for r in run.steps if r["loss"] is None or r.get("norm", 0) is None]
    if bad:
        yield f"loss or gradient norm not finite in step {some(bad)}"
    if last.get("skipped"):
        yield f"{last['skipped']} steps skipped"
    spikes = [r["step"] for r in run.steps if "spike" in r]
    if spikes:
        yield f"spikes of loss or gradient norm in step {some(spikes)}"
    nonfinite = [r["step"] for r in run.fp8 if any(t["nonfinite"] for t in r["fp8"])]
    if nonfinite:
        yield f"values that are not finite were cast to FP8, by the records of step {some(nonfinite)}"
    for record in run.other:
        for layer in record.get("fp8_fallback", []):
            yield (f"step {record['step']}: {layer['layer']} left FP8 for BF16, because its {layer['tensor']} "
                   f"{layer['reason']}")
        if slow := record.get("slow_rank"):
            yield f"step {record['step']}: {slow['where']} was slow, and the other ranks waited for it"
        outside = record.get("memory_outside", {})
        if outside.get("taken", 0) > outside.get("reserved", 0):
            yield (f"libraries used {size_text(outside['taken'])}, more than the {size_text(outside['reserved'])} that "
                   "the plan reserved")
    if last.get("products", {}).get("emulated"):
        yield f"{last['products']['emulated']} FP8 matmuls per micro-step ran on BF16 units"
    planned = run.config.get("max-steps")
    if isinstance(planned, int) and 0 < last.get("step", 0) < planned:
        yield f"ends at step {last['step']} of {planned}"
    if not run.info:
        yield "no run.json: its configuration is not known"


def all_warnings(runs, comparisons):
    lines = failures(comparisons, runs, None, 0)
    lines += [f"{c.run.name} has no step in common with {c.reference.name}" for c in comparisons if c.is_empty]
    return lines + [f"{run.name}: {line}" for run in runs for line in warnings_of(run)]


# ---- tables --------------------------------------------------------------------------------------------------------

def size_text(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count, unit = count / 1024, "TiB"
    return f"{count:.1f} {unit}" if unit != "B" else f"{count} B"


def cell(value):
    text = "-" if value is None or value == "" else value if isinstance(value, str) else json.dumps(value)
    return html.escape(text)


def table(caption, heads, rows, marked=()):
    """A table of rows (label, cells). Rows whose label is in `marked` stand out, not only by colour."""
    head = "".join(f'<th scope="col">{cell(h)}</th>' for h in heads)
    body = "".join(
        f'<tr{" class=differs" if label in marked else ""}><th scope="row">{"≠ " if label in marked else ""}{cell(label)}'
        f'</th>{"".join(f"<td>{cell(c)}</td>" for c in cells)}</tr>' for label, cells in rows)
    return (f'<div class="scroll" tabindex="0" role="region" aria-label="{cell(caption)}"><table><caption>{cell(caption)}'
            f'</caption><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def folded(title, text):
    return f"<details><summary>{cell(title)}</summary>{text}</details>"


def flat(info, prefix=""):
    for key, value in info.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif key != "resumed":
            yield prefix + key, value


def configuration(runs):
    """The differing settings; all others are folded away."""
    facts = [dict(flat(run.info)) for run in runs]
    keys = list(dict.fromkeys(key for known in facts for key in known))
    # "config.kernels" is the flag; "kernels" says which the run used.
    rows = [("kernels used" if key == "kernels" else key.removeprefix("config."), [known.get(key) for known in facts])
            for key in keys]
    resumes = [[f"at step {r.get('step')} on {r.get('date')}" for r in run.info.get("resumed", [])] for run in runs]
    told = {"date", "run_id", "command", *OWN_TO_A_RUN}
    marked = {label for label, cells in rows if label not in told and any(c != cells[0] for c in cells[1:])}
    names = [run.name for run in runs]
    text = "".join(f"<p><strong>{cell(run.name)}</strong>: {cell(run.title or 'no run.json')}"
                   f"{cell('. Resumed ' + some(at)) if at else ''}</p>" for run, at in zip(runs, resumes))
    if len(runs) > 1 and marked:
        text += table("What differs", names, [row for row in rows if row[0] in marked], marked)
    elif len(runs) > 1:
        text += "<p>Nothing differs.</p>"
    if rows:
        text += folded("All flags, versions and the command", table("Configuration", names, rows, marked))
    return text


def sources(runs):
    """The tokens that each run has taken from each source of its training data."""
    last = [next((r["source_tokens"] for r in reversed(run.steps) if "source_tokens" in r), {}) for run in runs]
    rows = []
    for source in dict.fromkeys(source for used in last for source in used):
        rows.append((source, [f"{used[source]:,} tokens, {100 * used[source] / max(sum(used.values()), 1):.1f} %"
                              if source in used else "-" for used in last]))
    return table("Training data by source", [run.name for run in runs], rows) if rows else ""


def memory_text(sizes):
    taken = dict.fromkeys((size_text(sizes["least_peak"]), size_text(sizes["most_peak"])))
    return f"{size_text(sizes['planned'])} planned, {' to '.join(taken)} taken"


def memory(runs):
    """From the last memory record of each run."""
    last = [(run.name, records[-1]) for run in runs if (records := [r["memory"] for r in run.other if "memory" in r])]
    names, records = [name for name, _ in last], [record for _, record in last]
    rows = []
    for kind in dict.fromkeys(kind for record in records for kind in record):
        rows.append((kind, [memory_text(record[kind]) if kind in record else "-" for record in records]))
    totals = [sum(sizes["most_peak"] for kind, sizes in record.items() if kind != "offloaded") for record in records]
    rows.append(("all", [f"{size_text(total)} taken on the device" for total in totals]))
    return table("Memory of a rank, by kind", names, rows) if names else ""


def products(runs):
    """The matmuls of a micro-step by type, with the steps at which they changed."""
    rows = []
    for run in runs:
        before = None
        for record in run.steps:
            now = record.get("products")
            if now and now != before:
                rows.append((f"{run.name}, from step {record['step']}", [now.get(k, 0) for k in
                                                                         ("fp8", "bf16", "fp32", "emulated")]))
            before = now
    heads = ["FP8", "BF16", "FP32", "FP8 by BF16 units"]
    return table("Matmuls per micro-step", heads, rows[:40]) if rows else ""


def samples(runs):
    text = ""
    for run in runs:
        found = [(r["step"], r["sample"]) for r in run.other if "sample" in r]
        if not found:
            continue
        parts = stretches(len(found), MOST_SAMPLES)
        text += f"<h3>{cell(run.name)}</h3>"
        if len(parts) < len(found):
            text += f"<p>{len(parts)} of {len(found)} samples.</p>"
        for _, end in reversed(parts):
            step, sample = found[end - 1]
            text += folded(f"after step {step}", f"<pre>{cell(sample)}</pre>")
    return text.replace("<details>", "<details open>", 1)


# ---- the page ------------------------------------------------------------------------------------------------------

def read_part(name):
    with open(os.path.join(PARTS, name), encoding="utf-8") as file:
        return file.read()


def section(name, title, text):
    return f'<section id="{name}"><h2>{title}</h2>{text}</section>' if text else ""


def page(runs, comparisons):
    lines = all_warnings(runs, comparisons)
    data = {"runs": [{"name": run.name, "tokens": run.tokens_per_step} for run in runs],
            "charts": charts_of(runs, comparisons), "maps": [*fp8_maps(runs), *signal_maps(runs)],
            "quantities": QUANTITIES, "linear": sorted(LINEAR), "zero": ZERO}
    title = ", ".join(run.name for run in runs)
    sections = [
        section("summary", "Summary", table("Summary", *summary(runs[0], comparisons, 0))),
        section("checks", "Warnings", "<ul>" + "".join(f"<li>{cell(line)}</li>" for line in lines) + "</ul>" if lines else
                "<p>Nothing to warn of.</p>"),
        section("configuration", "Configuration", configuration(runs) + sources(runs)),
        section("curves", "Curves", '<div id="charts"></div>'),
        section("gaps", "Gaps", "".join(folded(title, table(*rest)) for title, rest in
                                        ((t[0], t) for t in gap_tables(runs[0], comparisons)))),
        *(section(f"{group}-maps", title, f'<div class="heat" id="heat-{group}"></div>')
          for group, title in (("signals", "Tensors over the steps"), ("fp8", "FP8 tensors over the steps"))
          if any(m["group"] == group for m in data["maps"])),
        section("memory", "Memory and matmuls", memory(runs) + products(runs)),
        section("samples", "Samples", samples(runs)),
    ]
    # A "<" could end the script element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"TITLE": cell(title), "STYLE": read_part("page.css"), "SECTIONS": "\n".join(filter(None, sections)),
             "DATA": text, "SCRIPT": read_part("page.js")}
    shell = read_part("page.html").split("{{")
    text = shell[0] + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in shell[1:]))
    return text.encode(errors="replace").decode()  # JSON allows half of a surrogate pair, which cannot be encoded


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories (train_gpt --out) or metrics.jsonl files")
    parser.add_argument("-o", "--out", metavar="FILE", help="the page; default: report.html in the first run directory")
    parser.add_argument("--window", type=int, metavar="N", help="training steps per window of gaps; default: a tenth of the run")
    args = parser.parse_args(argv)
    if args.window is not None and args.window < 1:
        parser.error("--window: at least 1")
    out = args.out or next_to(args.runs[0], "report.html")
    try:
        runs = read_runs(args.runs)
        text = page(runs, [Comparison(runs[0], run, args.window) for run in runs[1:]])
        with replacing(out) as new, open(new, "w", encoding="utf-8") as file:
            file.write(text)
    except (RunError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{out}: {len(text.encode()) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    start(main)
