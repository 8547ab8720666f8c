"""Part 3: the same weights and batches on the host device and on the GPU. The host's runs are made in advance, on the
machine that packs the programs. On the GPU each run is made twice and must have the same bits.
"""

import hashlib
import os
import shutil

from tools import Part, found_by_inspect, read_json, read_records, run, write_json

# The largest allowed |GPU / host - 1| of a loss within 20 steps.
RECIPES = {
    "fp32": (["--precision", "fp32"], 1e-4),
    "bf16": (["--precision", "bf16"], 5e-3),
    "delayed": (["--precision", "fp8", "--fp8-recipe", "delayed"], 5e-3),
    "current": (["--precision", "fp8", "--fp8-recipe", "current"], 5e-3),
    "block": (["--precision", "fp8", "--fp8-recipe", "block"], 5e-3),
}
MODEL = ["--layers", 4, "--channels", 256, "--heads", 4, "--context", 256, "--batch", 4, "--seq", 256]
TINY_MODEL = ["--layers", 1, "--channels", 128, "--heads", 2, "--context", 64, "--batch", 2, "--seq", 64]


# At this learning rate, runs that differ only in rounding stay together: two builds of OpenBLAS on the host device (its
# kernels for SSE3 and for AVX-512) differ by at most 8e-8 in FP32, 9e-5 in BF16 and 3e-4 in FP8 over these steps. At
# 1e-3 the difference in FP8 is 5e-3, and the comparison would measure chance.
def training_flags(dry):
    steps, warmup = (3, 1) if dry else (20, 5)
    return ["--max-steps", steps, "--lr", 3e-4, "--warmup", warmup, "--val-every", 0, "--fp8-log-every", 0]


def model_flags(dry):
    return TINY_MODEL if dry else MODEL


def inspect_flags(references, shard, dry, name):
    """The command that shows the gradients of a recipe, at the last weights of the host's run in FP32."""
    flags, model = RECIPES[name][0], model_flags(dry)
    return ["inspect", "--from", os.path.join(references, "fp32", "model.safetensors"), "--train", shard,
            *model[model.index("--batch"):], *flags[2:], "--json"]


def inspected(text, name):
    """The part of `inspect`'s results for the precision of a recipe."""
    return found_by_inspect(text)[RECIPES[name][0][1]]


def make_references(train_gpt, shard, out, dry):
    """Makes the host's runs, one folder per recipe, and its gradients."""
    for name, (flags, _) in RECIPES.items():
        place = os.path.join(out, name)
        shutil.rmtree(place, ignore_errors=True)
        training = ["--train", shard, *model_flags(dry), *flags, *training_flags(dry), "--out", place]
        for command in (training, inspect_flags(out, shard, dry, name)):
            done = run([train_gpt, *command], 3600, {"OMP_WAIT_POLICY": "passive"})
            if done.code != 0:
                raise SystemExit(f"{done.command}\n{done.tail()}")
        write_json(os.path.join(place, "gradients.json"), inspected(done.output, name))
        if name != "fp32":
            os.remove(os.path.join(place, "model.safetensors"))
        shutil.rmtree(os.path.join(place, "checkpoints"))
        print(f"  host, {name}: {done.seconds} s")


def steps_of(run_directory):
    return [record for record in read_records(run_directory) if "loss" in record]


def relative_gap(a, b):
    """|a / b - 1|; infinite if one is missing (null, because it was not finite)."""
    if a is None or b is None:
        return float("inf")
    return abs(a / b - 1) if b else (0.0 if a == 0 else float("inf"))


def fingerprint(run_directory):
    with open(os.path.join(run_directory, "model.safetensors"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def finite(number):
    return number if number is not None and number < float("inf") else "not finite"


def compare_gradients(ours, theirs):
    """The parameter whose gradient differs most, measured by the norm and by the projection, both as fractions of the
    norm.
    """
    worst = {"norm": (0.0, ""), "projection": (0.0, "")}
    for name, reference in theirs["gradients"].items():
        mine, scale = ours["gradients"][name], reference["norm"] or 1.0
        for what in worst:
            if mine[what] is None or reference[what] is None:
                gap = float("inf")
            else:
                gap = abs(mine[what] - reference[what]) / scale
            worst[what] = max(worst[what], (gap, name))
    return {what: {"gap": finite(gap), "tensor": name} for what, (gap, name) in worst.items()}


def compare_with_host(run_directory, reference):
    ours, theirs = steps_of(run_directory), steps_of(reference)
    facts = [read_json(os.path.join(place, "run.json")) for place in (run_directory, reference)]
    return {
        "steps": len(ours),
        "steps_of_host": len(theirs),
        "loss_gap": finite(max((relative_gap(a["loss"], b["loss"]) for a, b in zip(ours, theirs)), default=None)),
        "norm_gap": finite(max((relative_gap(a["norm"], b["norm"]) for a, b in zip(ours, theirs)), default=None)),
        "same_weights": facts[0]["weights_hash"] == facts[1]["weights_hash"],
        "same_batches": [a.get("batch_hash") for a in ours] == [b.get("batch_hash") for b in theirs],
        "losses": [[a["loss"], b["loss"]] for a, b in zip(ours, theirs)],
    }


def measure_recipe(session, shard, name, references):
    flags, limit = RECIPES[name]
    places = [session.path("host_and_gpu", f"{name}{turn}") for turn in (1, 2)]
    common = ["--train", shard, *model_flags(session.dry), *flags]
    for place in places:
        done = session.run([session.program("train_gpt"), *common, *training_flags(session.dry), "--out", place,
                            "--overwrite"], 120, log=os.path.basename(place))
        if done.code != 0:
            return {"done": False, "passed": False, "why": f"exit code {done.code}", "output": done.tail()}
    reference = os.path.join(references, name)
    result = compare_with_host(places[0], reference)
    result["limit"] = limit
    result["repeatable"] = (fingerprint(places[0]) == fingerprint(places[1]) and
                            [r["loss"] for r in steps_of(places[0])] == [r["loss"] for r in steps_of(places[1])])
    done = session.run([session.program("train_gpt"), *inspect_flags(references, shard, session.dry, name)], 120,
                       log=name + "_gradients")
    if done.code != 0:
        result["gradients"] = done.tail()
    else:
        result["gradients"] = compare_gradients(inspected(done.output, name),
                                                read_json(os.path.join(reference, "gradients.json")))
    close = result["loss_gap"] != "not finite" and result["loss_gap"] <= limit
    same = result["same_weights"] and result["same_batches"] and result["steps"] == result["steps_of_host"]
    result["passed"] = close and same and result["repeatable"]
    for place in places:
        os.remove(os.path.join(place, "model.safetensors"))
    return result


def part3(session):
    part = Part(session, 3, "host_and_gpu")
    references = os.path.join(session.pack, "references")
    shard = os.path.join(session.pack, "references", "demo_train.bin")
    for name in RECIPES:
        part.item(name, lambda: measure_recipe(session, shard, name, references), 0 if session.dry else 20)
    items = part.result["items"].values()
    part.finish(passed=all(item.get("passed") for item in items) and len(items) == len(RECIPES))
