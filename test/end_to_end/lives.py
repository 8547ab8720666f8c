#!/usr/bin/env python3
"""Runs that are killed at random moments, again and again, and end with the bits of an undisturbed run.

    python3 test/end_to_end/lives.py --lives 200 --seed 1        # one of its runs again: --first N --runs 1

Each run has a random configuration (combinations.py). Every life of it is a new process, or up to three over TCP, that
begins with --resume auto. It ends by SIGKILL to all ranks or to one, by SIGTERM or SIGINT, or by --max-minutes,
somewhere between its start and its end. The last life is not disturbed. BRIEF=1 makes a dozen lives.
"""

import argparse
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from combinations import SAMPLES, Draw, change, numbers, training
from test_ranks import ENVIRONMENT, free_port
from test_run_ranks import ONE_THREAD
from trainer import BRIEF, PROGRAM, corpus, new_path, workspace

STEPS = 24
DONE, REFUSED, LOST, STOPPED = 0, 2, 7, 75
LIMIT = 180  # seconds per life


class Life:
    """One process per rank, in the run directory."""

    def __init__(self, directory, ranks, flags, environment):
        flags = ["--val", corpus().val, "--val-every", 2, "--fp8-log-every", 2,
                 "--reduce-order", "rank", "--timeout-start", 60, "--out", directory, *flags]
        self.ranks, port, self.errors = [], free_port(), new_path("stderr")
        for rank in range(ranks):
            place = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
            variables = {**ENVIRONMENT, **ONE_THREAD, **environment, **(place if ranks > 1 else {})}
            with open(self.errors, "ab") as errors:
                self.ranks.append(subprocess.Popen(
                    [PROGRAM, *map(str, flags)], stdout=subprocess.DEVNULL, stderr=errors, cwd=workspace(),
                    env={name: str(value) for name, value in variables.items()}))

    def end(self):
        """The exit codes, once all ranks have ended."""
        try:
            deadline = time.monotonic() + LIMIT
            return [rank.wait(timeout=max(0, deadline - time.monotonic())) for rank in self.ranks]
        finally:
            for rank in self.ranks:
                rank.kill()
                rank.wait()

    def stderr(self):
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            return file.read()


def interrupt(draw, life, way, seconds):
    """Ends a life after a random time. Returns the acceptable exit codes."""
    time.sleep(draw.uniform(0, seconds))
    killed = life.ranks if way == "kill all" else [draw.choice(life.ranks)]
    for rank in killed:
        if way.startswith("kill"):
            rank.kill()
        elif way == "stop":
            rank.send_signal(draw.choice([signal.SIGTERM, signal.SIGINT]))
    if way == "kill one" and len(life.ranks) > 1:
        return {DONE, -signal.SIGKILL, LOST}
    # A signal that arrives before the program is ready for it kills the program.
    return {DONE, -signal.SIGKILL} if way.startswith("kill") else {DONE, STOPPED, -signal.SIGTERM, -signal.SIGINT, LOST}


def live_through(draw, lives, endings):
    """Returns (result, number of lives, details) of one run. At most `lives` of its lives are interrupted. Counts in
    `endings`.
    """
    flags, _, most_zero = training(draw, STEPS)
    # FP8 gradients depend on the number of ranks that send them.
    ranks = draw.choice([2, 3]) if draw.random() < 0.2 else None
    flags += ["--reduce", "fp8"] if ranks else []
    whole, directory = new_path(), new_path()
    began = time.monotonic()
    life = Life(whole, ranks or 1, ["--val-batches", SAMPLES // (ranks or 1), *flags, *(["--zero", 0] if ranks else [])], {})
    codes = life.end()
    seconds = time.monotonic() - began
    if set(codes) != {DONE}:
        return ("refused" if set(codes) == {REFUSED} else f"exit codes {codes}"), 0, f"{flags}\n{life.stderr()}"
    flags += ["--resume", "auto", "-n", draw.choice([1, 2, 5]), "--keep", draw.choice([1, 2, 3]),
              *draw.flag(0.3, "--checkpoint-local", os.path.join(workspace(), "local"))]
    said, codes, lived = [], None, 0
    while codes is None or set(codes) != {DONE}:
        way = draw.choice(["kill all", "kill one", "stop", "time"]) if lived < lives else "none"
        count, more, environment = change(draw, flags, most_zero, False, [ranks] if ranks else [1, 2, 3])
        if way == "time":
            more += ["--max-minutes", draw.uniform(0, seconds / 60)]
        said.append((way, count, more, environment))
        life = Life(directory, count, [*flags, *more], environment)
        right = interrupt(draw, life, way, seconds) if way not in ("none", "time") else {DONE, STOPPED}
        codes = life.end()
        lived += 1
        endings["done" if set(codes) == {DONE} else way] += 1
        if not set(codes) <= right or (way == "none" and set(codes) != {DONE}):
            return f"exit codes {codes} after {way!r}", lived, f"{flags}\n{said}\n{life.stderr()}"
    first, second = numbers(whole), numbers(directory)
    different = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    if different:
        return f"{different[0]} and {len(different) - 1} others differ", lived, f"{directory}\n{flags}\n{said}"
    return "equal", lived, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lives", type=int, default=12 if BRIEF else 200, help="go on until there were so many")
    parser.add_argument("--runs", type=int, default=10**6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    results, endings, all_lives = collections.Counter(), collections.Counter(), 0
    for number in range(args.first, args.first + args.runs):
        draw = Draw(f"{args.seed} {number}")
        result, lived, details = live_through(draw, draw.choice([3, 6, 12]), endings)
        all_lives += lived
        failed = result not in ("equal", "refused")
        results["failed" if failed else result] += 1
        if failed:
            print(f"run {number}: {result}\n{details}", flush=True)
        for name in os.listdir(workspace()):
            if name.startswith(("run", "stderr")) and not failed:
                path = os.path.join(workspace(), name)
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.remove(path)
        if all_lives >= args.lives:
            break
    print(f"{sum(results.values())} runs: {dict(results)}; {all_lives} lives, ended by {dict(endings)}")
    return 1 if results["failed"] or results["equal"] == 0 or results["refused"] > results["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
