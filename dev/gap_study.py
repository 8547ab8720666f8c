"""Does FP8 training follow BF16? Trains the same model on the same batches in BF16 and in every kind of FP8, for several
models and seeds, and prints the gaps between their losses as Markdown tables: over the last tenth of the steps, and of
the last weights, evaluated in BF16; and the KL between these weights in FP8 and in BF16.

    python3 dev/gap_study.py results.json --train 'data/train_*.bin' --val 'data/val_*.bin'     # 20 minutes of CPU time
    python3 dev/gap_study.py large.json --train ... --val ... --layers 6 --channels 384 --head-dim 64 --steps 3000 \\
        --seeds 1337 1 2                                                                        # days
    python3 dev/gap_study.py branches.json --train ... --val ... --branch 300 --steps 600       # see below
    python3 dev/gap_study.py state.json --train ... --val ... --steps 300 --kinds bf16 control delayed \\
        'BF16 master' 'delayed, BF16 master'                                                    # what narrow state costs
    python3 dev/gap_study.py results.json --table                                               # only prints

Runs from the same random weights drift apart early, even if they differ only in rounding, and stay apart. With
--branch N all runs of a model and seed continue from step N of its BF16 run, so chance matters far less.

Evaluations need shards of about 16,000 tokens (python3 -m data.prepare merge --shard-tokens 16384): the error of a gap
follows from the differences between shards, because all runs evaluate the same tokens. The KL needs only the first of
them. It is that of the kind's FP8 forward pass; for BF16 runs it is that of `delayed`.

Every finished run is added to the results file. A second start continues where the first one stopped, even within a
run: its directory is kept in results.json.runs until it has finished. (With --branch, the directories of BF16 runs stay.)
All models, kinds and seeds of a file share its settings; a file made with other settings is refused. Runs are ordered by
seed. dev/notes/measured_fp8.md has results.
"""

import argparse
import datetime
import glob
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys


def fp8(recipe="delayed", *more, layers="all"):
    return ["--precision", "fp8", "--fp8-recipe", recipe, "--fp8-layers", layers, *more]


# The control is BF16 in two micro-steps per step, with gradients rounded to BF16 stochastically. Its gap is chance.
# Two micro-steps alone may not change a bit (scripts/drift.py).
KINDS = {
    "bf16": ["--precision", "bf16"],
    "control": ["--precision", "bf16", "--gradients", "bf16"],
    "delayed": fp8(),
    "current": fp8("current"),
    "block": fp8("block"),
    "mxfp8": fp8("mxfp8"),
    "delayed, BF16 from 90 %": fp8("delayed", "--fp8-until", "90%"),
    "delayed, BF16 from 94 %": fp8("delayed", "--fp8-until", "94%"),
    "delayed, BF16 from 97 %": fp8("delayed", "--fp8-until", "97%"),
    "delayed, FP8 head": fp8(layers="all,+lm_head"),
    "delayed, first block in BF16": fp8(layers="all,-first"),
    "delayed, first qkv and fc in BF16": fp8(layers="all,-block0.qkv,-block0.fc"),
    "delayed, E4M3 gradients": fp8("delayed", "--fp8-grad", "e4m3"),
}
RECIPES = list(KINDS)  # --kinds has these by default
STATES = {
    "BF16 master": ["--master", "bf16"],
    "BF16 gradients": ["--gradients", "bf16"],
    "FP8 moments": ["--adam-moments", "fp8"],
    "narrow state": ["--master", "bf16", "--gradients", "bf16", "--adam-moments", "fp8"],
}
for precision in ("bf16", "delayed"):
    prefix = "" if precision == "bf16" else precision + ", "
    KINDS.update({prefix + state: KINDS[precision] + flags for state, flags in STATES.items()})
# Muon for nano, as nanochat trains its models; AdamW for the others.
TRAINING = {"gpt2": ["--lr", "1e-3"], "llama": ["--lr", "1e-3"], "nano": ["--optimizer", "muon", "--lr", "4e-3"]}
SETTINGS = {"layers": 4, "channels": 128, "head_dim": 32, "seq": 128, "batch": 4, "steps": 1000, "branch": 0}
SHARED = [*SETTINGS, "train", "val"]  # the same for all runs of a results file


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="JSON file of results, made or continued")
    parser.add_argument("--train", help="token shards to train on (glob)")
    parser.add_argument("--val", help="token shards to validate on (glob)")
    parser.add_argument("--program", default="./train_gpt_cpu")
    parser.add_argument("--models", nargs="+", choices=TRAINING, default=list(TRAINING), metavar="MODEL",
                        help=", ".join(TRAINING))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=RECIPES, metavar="KIND",
                        help="; ".join(KINDS).replace("%", "%%"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1337])
    for name, value in SETTINGS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value, help=f"{value} by default")
    parser.add_argument("--table", action="store_true", help="only print the table of the results so far")
    arguments = parser.parse_args()
    if not arguments.table and not (arguments.train and arguments.val):
        parser.error("--train and --val say what to train on")
    return arguments


def model_flags(a, model, directory):
    """The flags of a model. The hidden sizes of its MLP are multiples of 128, as blocks need."""
    size = {"layers": a.layers, "channels": a.channels, "heads": a.channels // a.head_dim, "context": a.seq}
    if model == "gpt2":
        return [text for name, value in size.items() for text in ("--" + name, str(value))]
    if model == "llama":
        size.update(kv_heads=size["heads"] // 2, hidden=3 * a.channels)
    path = os.path.join(directory, "model.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"architecture": model, **size}, file)
    return ["--model", path]


def directory_of(a, model, kind, seed):
    return os.path.join(a.results + ".runs", "-".join((model, *re.findall(r"\w+", kind), str(seed))))


def evaluate(a, kind, out):
    """The losses of the last weights in BF16, by validation shard, and the KL of their FP8 forward pass."""
    shards = sorted(glob.glob(a.val))
    flags = KINDS[kind] if "--fp8-recipe" in KINDS[kind] else KINDS["delayed"]
    forward = [text for name in ("--fp8-recipe", "--fp8-layers") if name in flags
               for text in flags[flags.index(name):][:2]]

    def results(names, *flags):
        path = os.path.join(out, "eval.json")
        sets = [text for number, name in enumerate(names) for text in ("--val", f"{number}={name}")]
        subprocess.run([a.program, "eval", "--from", out, "--seq", str(a.seq), "--batch", "16", *sets, *flags, "--out", path],
                       check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    losses = results(shards)
    against = results(shards[:1], "--against", "bf16", *forward)["against_bf16_0"]
    return {"bf16": [losses[f"val_loss_{number}"] for number in range(len(shards))], "against_bf16": against}


def measure(a, model, kind, seed):
    """Makes one run, or continues it, and returns its record."""
    directory = directory_of(a, model, kind, seed)
    os.makedirs(directory, exist_ok=True)
    out = os.path.join(directory, "run")
    batch = a.batch // 2 if kind == "control" else a.batch
    is_branch = a.branch and kind != "bf16"
    trunk = os.path.join(directory_of(a, model, "bf16", seed), f"run/checkpoints/step_{a.branch:08}")
    begun = os.path.isdir(os.path.join(out, "checkpoints"))
    command = [a.program, "--train", a.train, "--val", a.val, *model_flags(a, model, directory), *TRAINING[model],
               *KINDS[kind], "--seed", str(seed), "--seq", str(a.seq), "--batch", str(batch), "--total-batch",
               str(a.batch * a.seq), "--max-steps", str(a.steps), "--warmup", str(a.steps // 10), "--val-every",
               "0", "--checkpoint-every", str(a.branch), "--keep", f"1,{a.branch}", "--checkpoint-minutes", "5",
               "--resume", trunk if is_branch and not begun else "auto", "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(directory, "run", "metrics.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    with open(os.path.join(directory, "run", "run.json"), encoding="utf-8") as file:
        run = json.load(file)
    evaluation = evaluate(a, kind, out)
    if not a.branch or is_branch:
        shutil.rmtree(directory)
    losses = [r["loss"] for r in records if "loss" in r][-(a.steps // 10):]
    return {"model": model, "kind": kind, "seed": seed, "parameters": run["model"]["parameters"],
            "evaluation": evaluation, "last_tenth": sum(losses) / len(losses), "seconds": round(sum(r.get("ms", 0) for r in records) / 1e3),
            "date": datetime.date.today().isoformat(), "device": run["device"], "versions": run["versions"],
            "command": command}


def training_gap(run, bf16):
    if run is bf16:
        return f"{run['last_tenth']:.4f}"
    return f"{100 * (run['last_tenth'] / bf16['last_tenth'] - 1):+.3f} %"


def evaluated_gap(run, bf16):
    reference = bf16["evaluation"]["bf16"]
    if run is bf16:
        return f"{statistics.mean(reference):.4f}"
    gaps = [100 * (mine - loss) / statistics.mean(reference) for mine, loss in zip(run["evaluation"]["bf16"], reference)]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return f"{statistics.mean(gaps):+.4f} +- {error:.4f} %"


def divergence(run, _):
    against = run["evaluation"]["against_bf16"]
    return f"{1e4 * against['kl']:.3f} +- {1e4 * against['kl_error']:.3f}"


def table(runs, cell):
    """A row for each model and kind, and a column for each seed. cell(run, BF16's run) is a text."""
    by_key = {(r["model"], r["kind"], r["seed"]): r for r in runs}
    seeds = list(dict.fromkeys(r["seed"] for r in runs))
    lines = ["| model | run | " + " | ".join(f"seed {s}" for s in seeds) + " |", "|---|---|" + "---|" * len(seeds)]
    for model, kind in itertools.product(TRAINING, KINDS):
        cells = []
        for seed in seeds:
            run, bf16 = by_key.get((model, kind, seed)), by_key.get((model, "bf16", seed))
            cells.append(cell(run, bf16) if run and bf16 else "")
        if any(cells):
            lines.append(f"| {model} | {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def print_tables(runs):
    print("Training loss, mean of the last tenth of the steps:\n", table(runs, training_gap), sep="\n")
    print("\nLast weights, evaluated in BF16:\n", table(runs, evaluated_gap), sep="\n")
    print("\nKL(BF16 || FP8) of the last weights, 1e-4 nats:\n", table(runs, divergence), sep="\n")


def main():
    a = parse_arguments()
    study = {"settings": {name: getattr(a, name) for name in SHARED}, "runs": []}
    if os.path.exists(a.results):
        with open(a.results, encoding="utf-8") as file:
            old = json.load(file)
        if not a.table and old["settings"] != study["settings"]:
            sys.exit(f"{a.results} was made with other settings: {old['settings']}")
        study = old
    if a.table:
        return print_tables(study["runs"])
    done = {(r["model"], r["kind"], r["seed"]) for r in study["runs"]}
    for seed, model, kind in itertools.product(a.seeds, a.models, a.kinds):
        if (model, kind, seed) in done:
            continue
        run = measure(a, model, kind, seed)
        study["runs"].append(run)
        with open(a.results + ".new", "w", encoding="utf-8") as file:
            json.dump(study, file, indent=1)
        os.replace(a.results + ".new", a.results)
        print(f"{model}, {kind}, seed {seed}: {run['last_tenth']:.4f} in {run['seconds']} s", flush=True)
    return print_tables(study["runs"])


if __name__ == "__main__":
    main()
