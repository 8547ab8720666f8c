#!/usr/bin/env python3
"""Sends a run to Weights & Biases while it goes on: follows metrics.jsonl, beside train_gpt and without slowing it.

    ./train_gpt ... -o runs/d12 &
    python3 scripts/wandb_follow.py runs/d12 --project my-gpt

Needs the package wandb (pip install wandb; wandb login). It begins with the first record, whenever it is started, and
when it is started again it goes on where it was. It ends when the run has ended. A run that was resumed has forgotten
the steps beyond its checkpoint, and W&B forgets nothing: so it becomes a new run there, of the same group, which holds
all that metrics.jsonl holds.
"""

import argparse
import fcntl
import json
import os
import struct
import sys
import time

from runs import scalars


def read_info(directory):
    """run.json, or nothing while there is none."""
    try:
        with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, json.JSONDecodeError):
        return {}


def is_going_on(directory):
    """Whether train_gpt holds the directory's lock. Asks without taking it."""
    try:
        with open(os.path.join(directory, "lock"), "rb") as file:
            question = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))[0] != fcntl.F_UNLCK
    except OSError:
        return False


class Follower:
    """The records of metrics.jsonl as they come. Lines are counted, and cut ones left until they are whole."""

    def __init__(self, path):
        self.path = path
        self.offset = self.lines = 0

    def new_records(self):
        """(number of the line, record) of what has come; None when the file has become shorter."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    return None
                file.seek(self.offset)
                whole = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        text = whole[0] + whole[1]
        self.offset += len(text)
        records = [(self.lines + i, json.loads(line)) for i, line in enumerate(text.splitlines())]
        self.lines += len(records)
        return records


def begin(wandb, info, args):
    """A run of W&B for what run.json says, or the one that an earlier start of this script has begun."""
    resumes = len(info.get("resumed", []))
    identity = info["run_id"] + (f"-{resumes}" if resumes else "")
    name = (args.name or os.path.basename(os.path.normpath(args.run))) + (f" (resumed, {resumes})" if resumes else "")
    run = wandb.init(project=args.project, name=name, id=identity, group=info["run_id"], resume="allow",
                     config={key: value for key, value in info.items() if key != "resumed"})
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def log(run, number, record):
    """A line is a step of W&B's own count, so those that an earlier start has sent are known."""
    if number < run.step:
        return
    values = scalars(record)
    if "sample" in record:
        values["sample"] = record["sample"]
    run.log({"step": record["step"], **values}, step=number)


def follow(wandb, args):
    begun, run, follower = None, None, None
    while True:
        going_on = is_going_on(args.run)  # before reading: what comes after the last look is read once more
        info = read_info(args.run)
        resumes = len(info.get("resumed", []))
        new = follower.new_records() if follower and resumes == begun else None
        if new is None:
            if run:
                run.finish()
            begun, run, follower = resumes, begin(wandb, info, args), Follower(os.path.join(args.run, "metrics.jsonl"))
            new = follower.new_records()
        for number, record in new:
            log(run, number, record)
        if not going_on:
            run.finish()
            return
        time.sleep(args.poll)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run directory (train_gpt --out)")
    parser.add_argument("--project", default="train_gpt", help="W&B's project; default: train_gpt")
    parser.add_argument("--name", help="the run's name there; default: the directory's")
    parser.add_argument("--poll", type=float, default=5, metavar="SECONDS", help="between two looks; default: 5")
    parser.add_argument("--patience", type=float, default=60, metavar="SECONDS",
                        help="to wait for a run that has not begun; default: 60")
    args = parser.parse_args(argv)
    try:
        import wandb
    except ModuleNotFoundError:
        print("wandb_follow: the package wandb is missing: pip install wandb", file=sys.stderr)
        return 1
    waited = 0
    while "run_id" not in read_info(args.run):
        if waited >= args.patience:
            print(f"wandb_follow: {args.run} holds no run.json; give the --out directory of a run", file=sys.stderr)
            return 2
        waited += args.poll
        time.sleep(args.poll)
    follow(wandb, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
