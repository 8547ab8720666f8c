#!/usr/bin/env python3
"""Draws random runs and changes that must not change their bits: ranks, stages of ZeRO, a stop and a resume, other
orders of streams and threads, guarded memory, recomputation, verification, profiling. Each is compared with one process
that makes the whole run at once (with gradients in FP8: as many processes, at stage 0). Losses, norms, validations,
FP8's amaxes and scales, and weights must have the same bits.

    python3 test/end_to_end/combinations.py --cases 200 --seed 1        # one of them again: --first N --cases 1

If two flags exclude each other, the program must say so with exit code 2; that is not a failure.
"""

import argparse
import collections
import functools
import json
import os
import random
import shutil
import subprocess
import sys

from test_run_architectures import SHAPE, described
from test_run_eval import write_task
from test_run_ranks import ENVIRONMENT, ONE_THREAD, command
from trainer import (BLOCK_RECIPES, FP8_RECIPES, PROGRAM, TENSOR_RECIPES, corpus, new_path, read_safetensors, workspace,
                     write_json, write_shard)

SAMPLES = 6  # per step; 1, 2 and 3 ranks can share them


class Draw(random.Random):
    def maybe(self, chance, *flags):
        return list(flags) if self.random() < chance else []

    def flag(self, chance, name, *values):
        return [name, self.choice(values)] if self.random() < chance else []


def model(draw, architecture, wide):
    heads = 4 if wide else draw.choice([1, 2, 4])
    channels = 128 if wide else max(64, 32 * heads)
    layers = draw.choice([1, 2, 3])
    if architecture == "gpt2":
        return ["--layers", layers, "--heads", heads, "--channels", channels, "--context", 64]
    shape = dict(SHAPE, layers=layers, heads=heads, channels=channels, hidden=256 if wide else draw.choice([96, 128]),
                 kv_heads=draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
                 head_dim=64 if wide else draw.choice([32, 64]))
    if architecture != "nano":
        shape["tied"] = draw.random() < 0.5
    if architecture in ("mistral", "qwen2", "qwen3") and draw.random() < 0.5:
        shape.update(window=draw.choice([4, 8]),
                     window_layers=draw.choice(["S"] if architecture == "mistral" else ["S", "SL", "SSL"]))
    return ["-e", described(architecture, **shape)]


def fp8(draw, recipe):
    flags = ["--fp8-recipe", recipe, *draw.maybe(0.3, "--fp8-pow2-scales"), *draw.flag(0.2, "--fp8-margin", 1),
             *draw.flag(0.3, "--fp8-grad", "e4m3")]
    if recipe == "delayed":
        flags += [*draw.flag(0.3, "--fp8-history", 1, 2, 5), *draw.flag(0.3, "--fp8-amax-algo", "most_recent", "ema")]
    layers = ["all,-first", "-fc_proj", "none,block0.qkv"]
    if recipe in TENSOR_RECIPES:
        flags += draw.flag(0.2, "--fp8-fallback", "0.0001,0.0001,1", "0.01,0.001,2")
        layers += ["all,+lm_head", "all,-last,+lm_head"]
    flags += draw.flag(0.2, "--fp8-until", 2, "60%")
    return flags + draw.flag(0.4, "--fp8-layers", *layers)


def optimizer(draw):
    name = draw.choice(["adamw", "adamw", "adamw", "lion", "sgd", "muon", "normuon"])
    flags = ["--optimizer", name, *draw.choice([[], [], ["--clip", 0], ["--clip", 0.01, "--clip-kind", "norm"],
                                                ["--clip", 0.01, "--clip-kind", "tensor"],
                                                ["--clip", "1e-4", "--clip-kind", "value"]])]
    flags += draw.flag(0.3, "--master", "bf16")
    if "--clip-kind" not in flags or "norm" in flags:
        flags += draw.flag(0.3, "--gradients", "bf16")
    if name not in ("lion", "sgd"):
        flags += draw.flag(0.3, "--adam-moments", "bf16", "fp8") + draw.maybe(0.3, "--cautious-decay")
        flags += draw.flag(0.3, "--nesterov", "on", "off")
    return flags


@functools.cache
def task():
    """A file of multiple-choice examples of at most 8 tokens."""
    chance = random.Random(1)
    return write_task([(n % 2, [n], [(3, 3, [chance.randrange(257) for _ in range(5)]) for _ in range(2)])
                       for n in range(12)])


def data(draw, steps, step):
    """Returns the flags of the training data and the length of the run."""
    a, b = corpus().train, corpus().val
    kind = draw.choice(["one", "one", "one", "epochs", "sources", "sources"])
    if kind == "epochs":  # of whole samples, with an epoch that ends within a step
        small = write_shard([draw.randrange(257) for _ in range(steps * step // 2 + 1)])
        write_json(small + ".json", {"end_token": 256})
        return ["--train", small, "--vocab", 257, "--epochs", 2]
    sources = draw.choice([f"{a}:0.7,{b}:0.3", f"{a}:1;{b}:1@50%", f"{a}:0.7,{b}:0.3@0;{a}:0.2,{b}:0.8@3"])
    return ["--max-steps", steps, *(["--train", a] if kind == "one" else ["--train", sources, "--epochs", 5])]


def training(draw, steps=None):
    """Returns the flags of a run, its steps, and the largest value that --zero may have."""
    precision = draw.choice(["fp32", "bf16", "fp8", "fp8", "fp8"])
    recipe = draw.choice(FP8_RECIPES) if precision == "fp8" else None
    blocks = recipe in BLOCK_RECIPES
    seq, batch = 64 if blocks else 16, 2 if blocks else draw.choice([1, 2])
    step, steps = SAMPLES * batch * seq, steps or draw.choice([5, 7])
    architecture = draw.choice(["gpt2", "llama", "mistral", "qwen2", "qwen3", "nano"])
    flags = [*model(draw, architecture, blocks), "--precision", precision, *(fp8(draw, recipe) if recipe else []),
             "--seq", seq, "--batch", batch, "--total-batch", step, *data(draw, steps, step),
             "--lr", draw.choice(["1e-3", "5e-3"]), "--seed", draw.randrange(99),
             *draw.maybe(0.3, "--total-batch", 2 * step, "--batch-schedule", f"{step}:2"),
             *draw.flag(0.2, "--seq-schedule", f"{seq // 2}:2"),
             *optimizer(draw), *draw.flag(0.3, "--warmup", 2),
             *draw.choice([[], [], ["--schedule", draw.choice(["linear", "constant", "wsd", "wsd-linear", "step"])],
                           ["--schedule", draw.choice(["wsd", "wsd-linear", "inverse-sqrt"]), "--decay-from", 3]]),
             *(draw.flag(0.3, "--qk-clip", "0.03") if architecture in ("gpt2", "llama") else []),
             *draw.flag(0.2, "--z-loss", "1e-3"),
             *draw.maybe(0.3, "--doc-mask"),
             *draw.flag(0.2, "--kernels", "portable"), *draw.maybe(0.2, "--skip-spikes"),
             *draw.flag(0.2, "--plateau", "0.5,0"), *draw.flag(0.3, "--average", "ema:0.9"),
             *(["--task", f"choices={task()}"] if draw.random() < 0.2 else []),
             *draw.flag(0.5, "--recompute", "none", "norm", "block")]
    if precision != "fp32":
        flags += ["--loss-scale", draw.choice(["dynamic,2", "dynamic,2", "dynamic,2", "dynamic:2,2", "1024", "off"])]
    return flags, steps, 0 if recipe == "block" else 2 if recipe == "mxfp8" else 3


def change(draw, trained, most_zero, whole, choices):
    """Returns (ranks, flags, environment) under which a run with the flags `trained` has the same bits."""
    ranks = draw.choice(choices)
    offload = draw.flag(0.3, "--offload", "optimizer", "residuals", "both")
    flags = ["--val-batches", SAMPLES // ranks, *draw.flag(0.3, "--recompute", "none", "gelu", "norm", "block"),
             *draw.flag(0.3, "--verify-every", 1, 2), *draw.flag(0.3, "--signals-every", 1, 2),
             *draw.flag(0.2, "--after-checkpoint", "true", "false"),
             *([] if "fp32" in trained else offload)]
    if ranks > 1:
        flags += ["--zero", draw.randrange(most_zero + 1)]
    if whole:
        flags += draw.flag(0.3, "--profile-steps", "1:2", "2:4")
    environment = dict([*draw.maybe(0.5, ("LLMC_STREAMS", draw.choice(["lazy", "random"]))),
                        *draw.maybe(0.3, ("LLMC_GUARD", "1"))])
    return ranks, flags, environment


def run(directory, ranks, flags, environment):
    flags = ["--val", corpus().val, "--val-every", 2, "--fp8-log-every", 2,
             "--reduce-order", "rank", "--out", directory, *flags]
    line = command(ranks, *flags) if ranks > 1 else [PROGRAM, *map(str, flags)]
    return subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=300, cwd=workspace(),
                          env={**ENVIRONMENT, **ONE_THREAD, **environment})


def numbers(directory):
    """The numbers that two runs must have in common, by name."""
    found = {}
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        for record in map(json.loads, file):
            for key in ("loss", "norm", "lr", "tokens", "skipped", "loss_scale", "batch_hash", "source_tokens"):
                if key in record:
                    found[f"{key} of step {record['step']}"] = record[key]
            if "val_loss" in record and record["step"] % 2 == 0:  # a stop adds a validation of its own
                found[f"validation of step {record['step']}"] = [
                    record.get(key) for key in ("val_loss", "choices_acc", "choices_acc_norm")]
            for tensor in record.get("fp8", []):
                found[f"{tensor['tensor']} in step {record['step']}"] = tensor["amax"], tensor["scale"]
    found.update(read_safetensors(os.path.join(directory, "model.safetensors")))
    return found


def check(draw):
    """Returns ("equal" or "refused", ""), or (the difference, the runs)."""
    flags, steps, most_zero = training(draw)
    one, other = new_path(), new_path()
    # In FP8, gradients depend on the number of ranks that send them, and on nothing else.
    sender = draw.choice([2, 3]) if draw.random() < 0.2 else None
    flags += ["--reduce", "fp8"] if sender else []
    done = run(one, sender or 1, ["--val-batches", SAMPLES // (sender or 1), *flags, *(["--zero", 0] if sender else [])], {})
    if done.returncode == 2 and done.stderr.startswith("train_gpt: "):
        return "refused", ""
    if done.returncode != 0:
        return f"exit code {done.returncode}", f"{flags}\n{done.stderr}"
    runs = [flags]
    stop = draw.choice([None, *range(1, steps if "--max-steps" in flags else 3)])
    parts = [[]] if stop is None else [["--stop-after", stop], ["--resume", draw.choice(["latest", "auto"])]]
    for part in parts:
        ranks, more, environment = change(draw, flags, most_zero, stop is None, [sender] if sender else [1, 2, 3])
        runs.append((ranks, [*more, *part], environment))
        done = run(other, ranks, [*flags, *more, *part], environment)
        if done.returncode != 0:
            return f"exit code {done.returncode}", f"{runs}\n{done.stderr}"
    first, second = numbers(one), numbers(other)
    different = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return (f"{different[0]} and {len(different) - 1} others differ", str(runs)) if different else ("equal", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    results = collections.Counter()
    for number in range(args.first, args.first + args.cases):
        result, runs = check(Draw(f"{args.seed} {number}"))
        results[result if not runs else "failed"] += 1
        if runs:
            print(f"case {number}: {result}\n{runs}", flush=True)
        for name in os.listdir(workspace()):
            if name.startswith("run"):
                shutil.rmtree(os.path.join(workspace(), name), ignore_errors=True)
    print(f"{args.cases} cases: {dict(results)}")
    # A generator whose runs are mostly refused tests nothing.
    return 1 if results["failed"] or results["refused"] > results["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
