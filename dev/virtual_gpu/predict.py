#!/usr/bin/env python3
"""Predicts how long a training step takes on a GPU, kernel by kernel, from the work that the kernels do on the virtual
GPU.

It runs build/virtual/train_gpt at a model's real width with one and two layers, one and two sequences, and one and two
steps. The differences are the work of a layer, a sequence, and a step without the start. It scales them to the whole
model and batch, and asks time_model.py for the time of each kernel's work. Matmuls and all rates of the card are the
planner's, from --dry-run --json. PREDICTIONS.md compares predictions with measurements.

    make predict                                       counts if needed, then prints the tables
    dev/virtual_gpu/predict.py --models d12 --gpus H100 A100-80 --precisions bf16 fp8 --batch 32
    dev/virtual_gpu/predict.py --kernels               also prints a table of kernels for each

Counts are kept in build/predict/ and repeated when a source of llmc/ or the virtual GPU has changed, which takes
minutes of one core per model.
"""
import argparse
import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import re
import subprocess
import sys

import time_model
from counted import ROOT, read_lines, run_counted, write_tokens

PROGRAM = ROOT / "build/virtual/train_gpt"
CACHE = ROOT / "build/predict"
MODELS = {"d12": ("124M", 12, 768), "d24": ("355M", 24, 1024), "d36": ("774M", 36, 1280), "d48": ("1558M", 48, 1600)}
LENGTH, VOCABULARY, PADDED = 1024, 50257, 50304
RECOMPUTE = "none"
SMALL = 896  # vocabulary while counting; work that depends on it is scaled. No other size of the models is 896
# Counts that add up over launches.
SUMS = ("launches", "blocks", "warp_instructions", "thread_instructions", "global_sectors", "global_requests",
        "footprint_read_sectors", "footprint_written_sectors", "shared_passes", "shared_conflicts")


# ---- counting ---------------------------------------------------------------------------------------------------------

def corpus(ids):
    path = CACHE / f"tokens-{ids}.bin"
    if not path.exists():
        write_tokens(path, 20000, ids)
    return path


@functools.cache
def fingerprint():
    """A hash of the sources that determine the counts."""
    digest = hashlib.sha256()
    for folder in ("llmc", "dev/virtual_gpu"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cu", ".cuh", ".cpp", ".h"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def count(model, precision, layers, batch, steps, ids=SMALL):
    """Returns the lines that VIRTUAL_GPU_COUNTS writes for one run."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{fingerprint()}-{model}-{precision}-L{layers}-B{batch}-S{steps}-V{ids}-r{RECOMPUTE}.json"
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        command = [PROGRAM, "--train", corpus(ids), "-e", model, "--layers", layers, "-b", batch, "-t", LENGTH, "--vocab",
                   ids, "--precision", precision, "--max-steps", steps, "-r", RECOMPUTE, "--checkpoint-minutes", 0, "--timeout-step", 0,
                   "--card-check", "off"]
        run_counted(command, partial, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
        partial.rename(path)
    return read_lines(path)


def count_all(models, precisions, jobs):
    """Makes several runs at a time, so that later calls of count() find their results."""
    runs = [(model, precision, layers, batch, steps) for model in models for precision in precisions
            for layers in (1, 2) for batch in (1, 2) for steps in (1, 2)]
    CACHE.mkdir(parents=True, exist_ok=True)
    for ids in (SMALL, VOCABULARY):
        corpus(ids)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda run: count(*run), runs))


# ---- from counts to a step --------------------------------------------------------------------------------------------

def kernel_key(line):
    """Identifies a kernel and its launch, without the parts that depend on the batch."""
    # Drops, for example, the cast in (llmc::attention::Causal)1.
    name = re.sub(r"^void |\([\w:]+\)(?=\d)|llmc::|attention::|\(anonymous namespace\)::", "", line["kernel"])
    return name.split(">(")[0] + ">" if ">(" in name else name.split("(")[0]


class Sums(collections.Counter):
    """The sums over a kernel's launches, and the configuration of each launch."""
    registers = threads = shared = 0


def tally(lines):
    """Returns {kernel: sums} and the bytes that fills write."""
    kernels, filled = {}, 0
    for line in lines:
        if "kernel" in line:
            work = kernels.setdefault(kernel_key(line), Sums())
            for name in SUMS:
                work[name] += line[name]
            for name, n in line["instructions"].items():
                work["instruction " + name] += n
            for name, n in line["tensor_operations"].items():
                work["tensor " + name] += n
            shape = max(line["shapes"], key=lambda s: s["blocks"])
            work.registers, work.threads = line["registers"], shape["threads"] // max(shape["blocks"], 1)
            work.shared = line["static_shared_bytes"] + shape["dynamic_shared_bytes"]
        elif "fill" in line:
            filled += line["bytes"] * line["launches"]
    return kernels, filled


def combine(terms):
    """The sum of (factor, Counter) terms; names are kept."""
    total = collections.Counter()
    for factor, work in terms:
        for name, n in work.items():
            total[name] += factor * n
    return total


class Counted:
    """A model's step as a + b layers + c batch + d layers batch, where each coefficient holds every kernel's sums."""

    def __init__(self, model, precision):
        self.model, self.precision = model, precision
        self.layers, self.channels = MODELS[model][1:]
        self.shapes, self.step, filled = {}, {}, {}
        for layers in (1, 2):
            for batch in (1, 2):
                once = tally(count(model, precision, layers, batch, 1))
                twice = tally(count(model, precision, layers, batch, 2))
                self.shapes.update(twice[0])
                self.step[layers, batch] = {name: combine([(1, work), (-1, once[0].get(name, {}))])
                                            for name, work in twice[0].items()}
                filled[layers] = twice[1] - once[1]
        self.filled = filled

    def parameters_outside(self, ids):
        return (ids + LENGTH + 2) * self.channels

    def kernel(self, name, batch):
        """A kernel's sums in a step of the whole model, or None if it runs only at the start."""
        nothing = collections.Counter()
        one, layer, more, layer_more = (self.step[l, b].get(name, nothing) for l, b in [(1, 1), (2, 1), (1, 2), (2, 2)])
        a_layer = combine([(1, layer), (-1, one)])
        a_sequence = combine([(1, more), (-1, one)])
        both = combine([(1, layer_more), (-1, layer), (-1, more), (1, one)])
        rest = combine([(1, one), (-1, a_layer), (-1, a_sequence), (1, both)])
        outside = 1
        if re.match(r"adamw|global_norm", name):
            outside = self.parameters_outside(PADDED) / self.parameters_outside(SMALL)
        total = combine([(outside, rest), (self.layers, combine([(1, a_layer), (-1, both)])),
                         (batch, combine([(1, a_sequence), (-1, both)])), (self.layers * batch, both)])
        if total["launches"] < 0.5:
            return None
        total["launches"] = round(one["launches"] + (self.layers - 1) * (layer["launches"] - one["launches"]))
        return total

    def fill_bytes(self):
        a_layer = self.filled[2] - self.filled[1]
        rest = self.filled[1] - a_layer
        return rest * self.parameters_outside(PADDED) / self.parameters_outside(SMALL) + self.layers * a_layer


def as_work(sums):
    """Converts sums into the argument of time_model.kernel_time()."""
    work = {name: max(sums[name], 0) for name in SUMS}
    for prefix, field in (("instruction ", "instructions"), ("tensor ", "tensor_operations")):
        work[field] = {n[len(prefix):]: max(v, 0) for n, v in sums.items() if n.startswith(prefix)}
    return work


def a_launch(work):
    """The work of the average launch, for resources(), which takes a single launch."""
    launches = max(work["launches"], 1)
    scaled = {n: v / launches for n, v in work.items() if not isinstance(v, dict)}
    for field in ("instructions", "tensor_operations"):
        scaled[field] = {n: v / launches for n, v in work[field].items()}
    return dict(scaled, launches=1), launches


def classifier():
    """Counts the loss of one sequence over the whole vocabulary, which does not depend on the model."""
    kernels = tally(count("d12", "bf16", 1, 1, 1, VOCABULARY))[0]
    return {name: work for name, work in kernels.items() if name.startswith("softmax_cross_entropy")}


def predict_kernels(card, rates, counted, batch):
    """Returns [(kernel, launches, seconds, limiting resource, blocks per multiprocessor)]."""
    rows = []
    todo = {name: counted.kernel(name, batch) for name in counted.shapes
            if not name.startswith("softmax_cross_entropy")}
    shapes = dict(counted.shapes)
    for name, work in classifier().items():
        todo[name], shapes[name] = combine([(batch, work)]), work
        todo[name]["launches"] = work["launches"]
    for name, sums in todo.items():
        if sums is None:
            continue
        work, launches = a_launch(as_work(sums))
        seconds, bound = time_model.kernel_time(card, rates, work)
        shape = shapes[name]
        fit = time_model.occupancy(card, shape.registers, shape.threads, shape.shared)
        rows.append((name, launches, seconds * launches, bound, fit))
    return sorted(rows, key=lambda row: -row[2])


def family(name):
    return "attention" if re.match(r"(hopper::hopper_)?attention", name) else \
        "optimizer" if re.match(r"adamw|global_norm|prepare_step|update_|quantize_weight", name) else "elementwise"


def predict_step(card, planned, counted, batch):
    """Returns {part: milliseconds} for a step of one micro-step, and the kernels' rows."""
    rates = time_model.Rates(planned["elementwise_rate"], 1e-3 * planned["launch"], planned["tensor_share"],
                             planned["mma_sync_share"])
    rows = predict_kernels(card, rates, counted, batch)
    parts = collections.Counter(matmuls=planned["matmuls"])
    for name, _, seconds, _, _ in rows:
        parts[family(name)] += 1e3 * seconds
    parts["elementwise"] += 1e3 * counted.fill_bytes() / rates.memory
    return parts, rows


# ---- tables -----------------------------------------------------------------------------------------------------------

PARTS = ("matmuls", "attention", "elementwise", "optimizer")


def plan(card, model, precision, batch):
    """The plan of train_gpt --dry-run --json."""
    command = [PROGRAM, "--train", corpus(SMALL), "-e", model, "-b", batch, "-t", LENGTH, "--vocab", VOCABULARY,
               "--max-steps", 1, "--precision", precision, "-r", RECOMPUTE, "--dry-run", "--json", "--gpu", card.option]
    return json.loads(subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False).stdout)


def largest_batch(card, model, precision):
    return next((b for b in (32, 16, 8, 4, 2, 1) if plan(card, model, precision, b)["fits"]), 0)


def print_step(card, model, precision, batch, counted):
    planned = plan(card, model, precision, batch)["time"]
    parts, rows = predict_step(card, planned, counted, batch)
    total, planned_total = sum(parts.values()), sum(planned[p] for p in PARTS)
    cells = [f"{planned['matmuls']:.1f}"] + [f"{parts[p]:.1f} ({planned[p]:.1f})" for p in PARTS[1:]]
    print(f"| {card.name} | {MODELS[model][0]} | {precision} | {batch} | " + " | ".join(cells) +
          f" | {total:.1f} ({planned_total:.1f}) | {1e3 * batch * LENGTH / total:,.0f} |")
    return rows


def print_kernels(card, model, precision, batch, rows):
    print(f"\n{card.name}, {MODELS[model][0]}, {precision}, {batch} sequences: kernels of a step, predicted\n")
    print("| kernel | launches | us each | us a step | bound by | blocks a multiprocessor |\n|---|---|---|---|---|---|")
    for name, launches, seconds, bound, fit in rows:
        if seconds > 5e-6:
            print(f"| {name} | {launches:.0f} | {1e6 * seconds / launches:.1f} | {1e6 * seconds:.0f} | {bound} | {fit} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--gpus", nargs="+", default=["H100", "RTX4090"], choices=time_model.CARDS)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp8"], choices=["bf16", "fp8"])
    parser.add_argument("--batch", type=int, help="sequences; default: the largest of 32, 16, ... that fits")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time while counting")
    options = parser.parse_args()
    count_all(options.models, options.precisions, options.jobs)
    print("Milliseconds of a step, predicted from counts; in brackets by train_gpt --dry-run, whose matmuls these are\n")
    print("| GPU | model | precision | sequences | " + " | ".join(PARTS) + " | step | tokens/s |")
    print("|" + "---|" * (len(PARTS) + 6))
    tables = []
    for gpu in options.gpus:
        for model in options.models:
            for precision in options.precisions:
                card = time_model.CARDS[gpu]
                if precision not in card.mma:
                    continue
                batch = options.batch or largest_batch(card, model, precision)
                if batch == 0:
                    print(f"| {card.name} | {MODELS[model][0]} | {precision} | does not fit |")
                    continue
                rows = print_step(card, model, precision, batch, Counted(model, precision))
                tables.append((card, model, precision, batch, rows))
    if options.kernels:
        for table in tables:
            print_kernels(*table)


if __name__ == "__main__":
    main()
