#!/usr/bin/env python3
"""Runs whose inputs and flags change between their lives: every change is refused, noted, or without effect on the bits.

    python3 test/end_to_end/changed_inputs.py --lives 200 --seed 1

Before each life one random change is made: to a token, a sidecar, the place of a file, or a flag. The life continues
from a checkpoint for two steps. If it neither refuses nor has a note, it must end with the bits of a life from the same
checkpoint without the change.
"""

import argparse
import collections
import os
import random
import shutil
import sys

from test_run_checkpoints import MICRO, Directory
from test_run_ranks import ONE_THREAD
from trainer import CHECKPOINT, DATA, FLAGS, new_path, run, write_json, write_shard

FACTS = {"tokenizer": "mine.json", "tokenizer_hash": "a", "vocab": 257, "end_token": 256}


class Inputs:
    """The files and flags of a life."""

    def __init__(self, draw):
        tokens = [256 if i % 37 == 0 else draw.randrange(200) for i in range(40000)]
        self.files = {"train": write_shard(tokens[:30000]), "val": write_shard(tokens[30000:])}
        for path in self.files.values():
            write_json(path + ".json", FACTS)
        self.options = {"--val-every": "2", "--val-batches": "1", "--lr": "1e-3", "--warmup": "2", "--max-steps": "1000",
                        "--seed": "1", "--schedule": "constant", "--precision": draw.choice(["fp32", "bf16", "fp8"]),
                        "--optimizer": draw.choice(["adamw", "lion", "muon"]), "--plateau": draw.choice(["off", "0.5,2"]),
                        "--total-batch": "128"}
        self.switches = [switch for switch in ("--doc-mask", "--skip-spikes") if draw.random() < 0.5]

    def copy(self):
        other = object.__new__(Inputs)
        other.files, other.options, other.switches = dict(self.files), dict(self.options), list(self.switches)
        return other

    def flags(self):
        return ["--train", self.files["train"], "--val", self.files["val"], *MICRO,
                *(word for option in self.options.items() for word in option), *self.switches]

    def replace(self, name, change_data=None, facts=None, where=None):
        """A copy of the shard with these changes takes its place."""
        path = where or new_path("shard") + ".bin"
        shutil.copy(self.files[name], path)
        shutil.copy(self.files[name] + ".json", path + ".json")
        if change_data is not None:
            with open(path, "r+b") as file:
                file.seek(1024 + 2 * change_data)
                file.write(bytes([201, 0]))
        if facts:
            write_json(path + ".json", {**FACTS, **facts})
        self.files[name] = path

    def link(self, name):
        path = new_path("link") + ".bin"
        os.symlink(self.files[name], path)
        os.symlink(self.files[name] + ".json", path + ".json")
        self.files[name] = path

    def remove_sidecar(self, name):
        self.replace(name)
        os.remove(self.files[name] + ".json")

    def set(self, option, *values):
        self.options[option] = values[0] if self.options.get(option) != values[0] else values[1]


CHANGES = {
    "a training token": lambda inputs, draw: inputs.replace("train", change_data=draw.randrange(30000)),
    "a validation token": lambda inputs, draw: inputs.replace("val", change_data=draw.randrange(10000)),
    "the end token": lambda inputs, draw: [inputs.replace(name, facts={"end_token": 7}) for name in ("train", "val")],
    "the end token of one set": lambda inputs, draw: inputs.replace("val", facts={"end_token": 7}),
    "the tokenizer": lambda inputs, draw: [inputs.replace(name, facts={"tokenizer_hash": "b"}) for name in ("train", "val")],
    "the tokenizer of one set": lambda inputs, draw: inputs.replace("train", facts={"tokenizer_hash": "b"}),
    "the vocabulary": lambda inputs, draw: [inputs.replace(name, facts={"vocab": 300}) for name in ("train", "val")],
    "what a sidecar says about bytes": lambda inputs, draw: inputs.replace("train", facts={"bytes": 30000}),
    "the sidecar of a set": lambda inputs, draw: inputs.remove_sidecar(draw.choice(["train", "val"])),
    "the place of a set": lambda inputs, draw: inputs.replace(draw.choice(["train", "val"])),
    "a link to a set": lambda inputs, draw: inputs.link(draw.choice(["train", "val"])),
    "sets that change places": lambda inputs, draw: inputs.files.update(
        train=inputs.files["val"], val=inputs.files["train"]),
    "--doc-mask": lambda inputs, draw: inputs.switches.remove("--doc-mask") if "--doc-mask" in inputs.switches
    else inputs.switches.append("--doc-mask"),
    **{option: lambda inputs, draw, option=option, values=values: inputs.set(option, *values) for option, values in {
        "--lr": ("2e-3", "1e-3"), "--seed": ("2", "1"), "--warmup": ("3", "2"), "--max-steps": ("900", "1000"),
        "--batch": ("2", "4"), "--seq": ("8", "16"), "--total-batch": ("256", "128"), "--layers": ("2", "1"),
        "--plateau": ("0.25,1", "off"), "--optimizer": ("sgd", "adamw"), "--precision": ("fp32", "bf16"),
        "--beta1": ("0.8", "0.9"), "--clip": ("0.5", "1"), "--z-loss": ("1e-4", "0"), "--average": ("ema:0.9", "off"),
        "--log-every": ("2", "1"), "--recompute": ("block", "none"), "--val-batches": ("2", "1"),
        "--val-every": ("1", "2"), "--keep": ("5", "9"), "--schedule": ("cosine", "constant"),
        "--loss-scale": ("dynamic", "off"), "--fp8-history": ("4", "16")}.items()},
}


def live(directory, inputs, steps):
    return run("--out", directory.path, *inputs.flags(), "--resume", "auto", "--stop-after", steps, "-n", 0, env=ONE_THREAD)


def one_life(draw, directory, inputs, steps):
    """Returns (what became of a random change, its name, the inputs of the next life, details)."""
    name = draw.choice(list(CHANGES))
    changed, control = inputs.copy(), Directory()
    CHANGES[name](changed, draw)
    shutil.copytree(directory.path, control.path)
    result = live(directory, changed, steps)
    details = f"{directory.path}\n{changed.flags()}\n{result.out}{result.err}"
    if result.code in (FLAGS, DATA, CHECKPOINT):
        return ("refused" if max(directory.checkpoints) == steps - 2 else "refused, but changed"), name, inputs, details
    if result.code not in (0, 75):
        return f"exit code {result.code}", name, inputs, details
    # The lines of main.log that say what changed. Other notes come in every life.
    if "from here on; until now it was" in result.out or "begun again after this change" in result.out:
        return "noted", name, changed, details
    undisturbed = live(control, inputs, steps)
    same = undisturbed.code in (0, 75) and control.state(steps) == directory.state(steps)
    return ("without effect" if same else "silent, with other bits"), name, changed, details


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    draw, results, by_change, lives = random.Random(args.seed), collections.Counter(), {}, 0
    while lives < args.lives:
        directory, inputs, steps = Directory(), Inputs(draw), 4
        if live(directory, inputs, steps).code not in (0, 75):
            sys.exit(f"a run without changes failed: {live(directory, inputs, steps)}")
        for _ in range(8):
            outcome, name, inputs, details = one_life(draw, directory, inputs, steps + 2)
            steps = max(directory.checkpoints)
            lives += 1
            results[outcome] += 1
            by_change.setdefault(name, collections.Counter())[outcome] += 1
            if outcome not in ("refused", "noted", "without effect"):
                print(f"{name}: {outcome}\n{details}", flush=True)
                break
        shutil.rmtree(directory.path, ignore_errors=True)
    for name, outcomes in sorted(by_change.items()):
        print(f"{name}: {dict(outcomes)}")
    print(f"{lives} lives: {dict(results)}")
    return 1 if set(results) != {"refused", "noted", "without effect"} else 0


if __name__ == "__main__":
    sys.exit(main())
