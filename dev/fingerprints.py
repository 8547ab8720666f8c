"""Do two builds of the program compute the same, to the last bit? Use this for changes that move code and must not move
numbers. It makes short runs over precisions, recipes, recompute levels, sharding stages, ranks and optimizers, and
reduces each to a fingerprint of its losses, norms, learning rates, products, FP8 scales and counts, validation losses
and final weights.

    python3 dev/fingerprints.py record before.json ./train_gpt_cpu     # with the build before the change
    python3 dev/fingerprints.py compare before.json ./train_gpt_cpu    # with the build after it; exit code 1 if they
    differ

Run both on one machine: another CPU multiplies in another order. --only PATTERN takes the cases whose names match.
--with "FLAGS" adds flags that must not change the numbers: compare with --with "--offload optimizer".
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "test", "end_to_end"))

import trainer  # noqa: E402
from test_ranks import ENVIRONMENT  # noqa: E402

STEPS = 6
# Fields that contain times or paths, and val_bpb, which follows from the losses and the tokenizer's bytes.
VOLATILE = (*trainer.TIME_FIELDS, "memory", "memory_outside", "mfu", "eta_s", "val_bpb")

FP8 = ["--precision", "fp8", "--fp8-layers", "all"]  # later flags override earlier ones
PRECISIONS = {
    "fp32": ["--precision", "fp32"],
    "bf16": ["--precision", "bf16"],
    "delayed": FP8,
    "delayed-e4m3": [*FP8, "--fp8-grad", "e4m3", "--fp8-amax-algo", "ema", "--fp8-pow2-scales"],
    "delayed-head": ["--precision", "fp8", "--fp8-layers", "all,+lm_head"],
    "delayed-some": ["--precision", "fp8", "--fp8-layers", "all,-first,-block1.fc"],
    "delayed-fallback": [*FP8, "--fp8-margin", "6", "--fp8-fallback", "0.01,0.02,2"],
    "current": [*FP8, "--fp8-recipe", "current"],
    "current-head": [*FP8, "--fp8-recipe", "current", "--fp8-layers", "all,+lm_head", "--fp8-grad", "e4m3"],
    "block": [*FP8, "--fp8-recipe", "block"],
    "mxfp8": [*FP8, "--fp8-recipe", "mxfp8"],
}
RECOMPUTE = ("none", "gelu", "norm", "block")


def stages(precision):
    """The sharding stages that this recipe supports."""
    return {"block": (0,), "mxfp8": (0, 1, 2)}.get(precision, (0, 1, 2, 3))


def cases():
    """Returns {name: (ranks, flags)}."""
    all_cases = {}
    for (name, flags), level in itertools.product(PRECISIONS.items(), RECOMPUTE):
        all_cases[f"{name} 1 rank, recompute {level}"] = (1, [*flags, "--recompute", level])
    for name, flags in PRECISIONS.items():
        # 48 tokens per sequence: attention cannot cast its results itself.
        if name not in ("block", "mxfp8"):
            all_cases[f"{name} 1 rank, 48 tokens"] = (1, [*flags, "--seq", "48"])
        for stage in stages(name):
            for level in ("gelu", "block"):
                all_cases[f"{name} 3 ranks, stage {stage}, recompute {level}"] = (
                    3, [*flags, "--zero", str(stage), "--recompute", level])
    for name in ("bf16", "delayed"):
        for more in (["--reduce-order", "rank"], ["--reduce", "bf16"], ["--adam-moments", "bf16"],
                     ["--clip", "0.02", "--clip-kind", "tensor"], ["--clip", "1e-4", "--clip-kind", "value"]):
            all_cases[f"{name} 3 ranks, {' '.join(more)}"] = (3, [*PRECISIONS[name], "--zero", "2", *more])
        for optimizer in ("lion", "sgd", "muon", "normuon"):
            all_cases[f"{name} 3 ranks, {optimizer}"] = (3, [*PRECISIONS[name], "--zero", "2", "--optimizer", optimizer])
        all_cases[f"{name} 4 ranks, groups of 2"] = (4, [*PRECISIONS[name], "--zero", "3", "--shard-within", "2"])
    return all_cases


def without_volatile(record):
    return {key: value for key, value in record.items() if key not in VOLATILE}


def fingerprint(program, ranks, flags):
    """Returns a hash of all numbers that a run computed, and its last loss for people to read."""
    directory = trainer.new_path()
    shape = ["--layers", "3", "--channels", "128", "--heads", "2", "--context", "64", "--batch", "2", "--seq", "64"]
    seq = int(flags[flags.index("--seq") + 1]) if "--seq" in flags else 64
    command = [program, "--train", trainer.corpus().train, "--val", trainer.corpus().val, *shape,
               "--total-batch", str(2 * seq * ranks * 2), "--max-steps", str(STEPS), "--lr", "2e-3", "--val-every", "3",
               "--val-batches", "2", "--fp8-log-every", "1", "--sample-every", "3", "--sample-tokens", "5", "--out", directory,
               *flags]
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=trainer.workspace(),
                          env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    digest = hashlib.sha256()
    last_loss = None
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        # Sorted by step and kind, because the order of records within a step does not matter.
        for record in sorted(map(json.loads, file), key=lambda r: (r["step"], sorted(r))):
            record = without_volatile(record)
            if not record or set(record) == {"step"}:
                continue
            last_loss = record.get("loss", last_loss)
            digest.update(json.dumps(record, sort_keys=True).encode())
    with open(os.path.join(directory, "model.safetensors"), "rb") as file:
        digest.update(file.read())
    for _, text in re.findall(r"^sample after step (\d+):\n(.*)$", done.stdout, re.MULTILINE):
        digest.update(text.encode())
    return {"loss": last_loss, "hash": digest.hexdigest()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file")
    parser.add_argument("program")
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--with", dest="more", default="", help="flags to add to every run")
    arguments = parser.parse_args()
    program = os.path.abspath(arguments.program)
    chosen = {name: case for name, case in cases().items() if re.search(arguments.only, name)}
    expected = {}
    if arguments.action == "compare":
        with open(arguments.file, encoding="utf-8") as file:
            expected = json.load(file)
    found, apart = {}, []
    for name, (ranks, flags) in chosen.items():
        found[name] = fingerprint(program, ranks, [*flags, *arguments.more.split()])
        if expected and expected.get(name) != found[name]:
            apart.append(name)
            print(f"{name}: {expected.get(name)} before, {found[name]} now", flush=True)
    if arguments.action == "record":
        with open(arguments.file, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    print(f"{len(found)} cases, {len({f['hash'] for f in found.values()})} different fingerprints, {len(apart)} apart")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
