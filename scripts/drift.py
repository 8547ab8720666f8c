#!/usr/bin/env python3
"""Does FP8 follow BF16 in this run? Continues one checkpoint three times on the same batches: in BF16, in FP8, and in
BF16 with other rounding (the control: micro-batches of half the size, and gradients summed in BF16). Prints how far the
losses of FP8 and of the control are from those in BF16. A gap no larger than the control's is chance.

    python3 scripts/drift.py runs/first --steps 100
    python3 scripts/drift.py runs/first/checkpoints/step_00005000 --steps 200 --launch 'mpirun -np 8'
    python3 scripts/drift.py runs/first --steps 100 -- --fp8-layers all     # flags of the FP8 run

Uses the run's newest checkpoint with enough steps left: a run with -n N saves one every N steps. The schedule, the data
and all other flags are the run's. At the end, the weights of all three are evaluated in BF16 on the run's validation
sets, so this gap comes from the weights, and not from evaluating in FP8. Takes the time of three times N
steps and three saves; the metrics stay in --out, the checkpoints do not. The last line says what the FP8 forward pass
itself adds to the loss of FP8's last weights, as KL(BF16 || FP8) on at most 8 batches (train_gpt eval --against bf16).
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys

from compare_runs import Comparison, loss_text, mean, number, percent, print_table, steps_without_fp8
from runs import RunError, read_object, read_run


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, usage="drift.py RUN --steps N [OPTIONS] [-- FLAGS]",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run directory, or one of its checkpoints")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps after the checkpoint")
    parser.add_argument("-o", "--out", metavar="DIR", help="for the three runs; default: RUN/drift")
    parser.add_argument("--program", help="train_gpt or train_gpt_cpu; default: the one that made the run")
    parser.add_argument("--launch", type=shlex.split, default=[], metavar="COMMAND",
                        help="starts the program on several ranks, as 'mpirun -np 8' does")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    ours = argv[:argv.index("--")] if "--" in argv else argv
    arguments = parser.parse_args(ours)
    arguments.fp8_flags = argv[len(ours) + 1:]
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    return arguments


def find_checkpoint(path, steps):
    """Returns the run directory, its run.json, the checkpoint to continue from, and its step."""
    path = os.path.normpath(path)
    if not os.path.exists(path):
        raise RunError(f"{path} does not exist; give a run directory or one of its checkpoints")
    place, given = os.path.split(path)
    is_checkpoint = os.path.basename(place) == "checkpoints"
    run = os.path.dirname(place) if is_checkpoint else path
    info = read_object(os.path.join(run, "run.json")) or {}
    if not {"config", "command", "micro_steps", "run_id"} <= info.keys():
        raise RunError(f"{run} is no run of train_gpt: it has no run.json with the run's configuration")
    last = info["config"].get("max-steps")
    folder = os.path.join(run, "checkpoints")
    names = [given] if is_checkpoint else sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found = [int(name.removeprefix("step_")) for name in names
             if re.fullmatch(r"step_\d+", name) and os.path.exists(os.path.join(folder, name, "manifest.json"))]
    found.sort()
    fitting = [step for step in found if not isinstance(last, int) or step + steps <= last]
    if not fitting:
        raise RunError(f"{path} has no checkpoint with {steps} steps left: the run ends after step {last}, and it has "
                       f"checkpoints of steps {', '.join(map(str, found)) or 'none'}; use a smaller --steps, or train "
                       "with -n N, which saves every N steps")
    return run, info, os.path.join(folder, f"step_{fitting[-1]:08}"), fitting[-1]


def branches_of(info, fp8_flags):
    """{name: flags} of the three runs. The loss scale of a run in the other precision is that precision's default.

    Half the micro-batch alone may not change a bit: sums over tokens can keep their order, as they do on a CPU in models
    without biases. Gradients in BF16 are rounded stochastically, once more for each micro-step.
    """
    batch, micro_steps, was_fp8 = info["config"]["batch"], info["micro_steps"], info["config"]["precision"] == "fp8"
    if batch % 2 and micro_steps % 2:
        raise RunError(f"no control: {micro_steps} micro-steps of {batch} sequences cannot be halved or doubled")
    bf16 = ["--precision", "bf16", *(["--loss-scale", "off"] if was_fp8 else [])]
    rounding = ["--gradients", "bf16"] if info["config"].get("clip-kind", "norm") == "norm" else []  # others refuse it
    return {"bf16": bf16, "control": [*bf16, *rounding, "--batch", str(2 * batch if batch % 2 else batch // 2)],
            "fp8": ["--precision", "fp8", *([] if was_fp8 else ["--loss-scale", "dynamic"]), *fp8_flags]}


def call(command, log):
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(command)}\n")
        file.flush()
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (0, 75):
        with open(log, encoding="utf-8", errors="replace") as file:
            raise RunError(f"exit code {done.returncode}; the log is in {log}:\n{file.read()[-1000:]}")


def evaluate(program, out, config, log):
    """The losses of a run's last weights in BF16, by validation set; NaN where they are not finite (null in the file)."""
    sets = [text for glob in config.get("val") or [] for text in ("--val", glob)]
    if not sets or config.get("val-batches") == 0:
        return {}
    file = os.path.join(out, "eval.json")
    call([*program, "eval", "--from", out, *sets, "--batch", str(config["batch"]), "--seq", str(config["seq"]),
          "--val-batches", str(config.get("val-batches", -1)), "--out", file], log)
    return {name: math.nan if value is None else value for name, value in read_object(file).items()
            if name.startswith("val_loss")}


def divergence(program, out, config, log):
    """KL(BF16 || FP8) of a run's last weights on its first validation set, with its error and the loss in BF16."""
    val = (config.get("val") or [None])[0]
    if not val:
        return None
    info = read_object(os.path.join(out, "run.json"))["config"]
    layers = [text for name in ("fp8-recipe", "fp8-layers") if info.get(name) for text in ("--" + name, info[name])]
    file = os.path.join(out, "divergence.json")
    batches = config.get("val-batches", -1)
    call([*program, "eval", "--from", out, "--val", val.rpartition("=")[2], "--batch", str(config["batch"]), "--seq",
          str(config["seq"]), "--val-batches", str(min(batches, 8) if batches > 0 else 8), "--against", "bf16", *layers,
          "--out", file], log)
    return read_object(file)["against_bf16"]


def without_validations(config):
    """Flags with which no validation counts. --plateau off would undo what it has lowered so far, and --val-every 0 is
    refused with it.
    """
    never = "1000000000" if config.get("plateau", "off") != "off" else "0"
    return ["--val-every", never, "--early-stop", "0"]


def drift(a):
    run, info, checkpoint, step = find_checkpoint(a.run, a.steps)
    config = info["config"]
    out = a.out or os.path.join(run, "drift")
    program = [*a.launch, a.program or shlex.split(info["command"])[0]]
    os.makedirs(out, exist_ok=True)
    branches = branches_of(info, a.fp8_flags)
    for name in branches:
        clear(os.path.join(out, name), info)
    runs, validations = {}, {}
    for name, flags in branches.items():
        place, log = os.path.join(out, name), os.path.join(out, name + ".log")
        print(f"{name}: steps {step + 1} to {step + a.steps} ...", file=sys.stderr, flush=True)
        if os.path.exists(log):
            os.remove(log)
        call([*program, "--config", os.path.join(run, "run.json"), "--resume", checkpoint, "--out", place,
              "--stop-after", str(step + a.steps), "--max-minutes", "0", *without_validations(config),
              "--sample-every", "0", "--checkpoint-every", "0", "--checkpoint-minutes", "0", *flags], log)
        runs[name] = read_run(place)
        validations[name] = evaluate(program, place, config, log)
        if name == "fp8":
            against = divergence(program, place, config, log)
        shutil.rmtree(os.path.join(place, "checkpoints"), ignore_errors=True)
        if os.path.exists(os.path.join(place, "model.safetensors")):
            os.remove(os.path.join(place, "model.safetensors"))
    found = rows(runs, validations, a.steps)
    if a.json:
        losses = {name: {run: number(loss) for run, loss in values.items()} for name, values in found}
        print(json.dumps({"checkpoint": checkpoint, "steps": a.steps, "losses": losses, "against_bf16": against}))
        return
    print(f"{checkpoint}, {a.steps} steps")
    print_table(["bf16", "fp8", "control"], [(name, gaps(losses)) for name, losses in found])
    if against and None not in (against["kl"], against["kl_error"], against["loss"]):
        kl, error = (100 * against[name] / against["loss"] for name in ("kl", "kl_error"))
        print(f"FP8's forward pass: KL {kl:.3g} +- {error:.1g} % of the loss")


def clear(place, info):
    """Deletes what an earlier start has left there, and nothing else. A continuation of the run that somebody else made has
    the same run_id, but no log next to it."""
    if not os.path.lexists(place):
        return
    same_run = (read_object(os.path.join(place, "run.json")) or {}).get("run_id", "") == info["run_id"]
    if not same_run or not os.path.exists(place + ".log"):
        raise RunError(f"{place} is there already, and it is no continuation of this run; give another --out")
    shutil.rmtree(place)


def rows(runs, validations, steps):
    """[(name, {run: loss})]: training losses, and validations of the last weights."""
    for name, run in runs.items():
        if len(run.steps) != len(runs["bf16"].steps) or Comparison(runs["bf16"], run, 1).first_other_batch():
            raise RunError(f"{name} did not train on the batches of bf16")
    without = steps_without_fp8(runs["fp8"])
    if without:
        raise RunError(f"step {without[0]} of fp8 had no matmul in FP8: does the run have --fp8-until or --fp8-layers none?")

    def training(last):
        return {name: mean([r["loss"] for r in run.steps[-last:]]) for name, run in runs.items()}

    table = [(f"training loss, {steps} steps", training(steps))]
    if steps >= 10:
        table.append((f"training loss, last {steps // 5}", training(steps // 5)))
    for name in validations["bf16"]:
        table.append((f"{name}, evaluated in BF16", {kind: found[name] for kind, found in validations.items()}))
    return table


def gaps(losses):
    """Cells of a table: the loss in BF16, and the gaps of FP8 and the control to it."""
    reference = losses["bf16"]
    return [loss_text(reference), *(percent(losses[name] / reference - 1) for name in ("fp8", "control"))]


def main(argv=None):
    try:
        drift(parse(sys.argv[1:] if argv is None else argv))
    except RunError as error:
        sys.exit(f"drift.py: {error}")
    except KeyboardInterrupt:
        sys.exit("drift.py: stopped; the same command begins again")


if __name__ == "__main__":
    main()
