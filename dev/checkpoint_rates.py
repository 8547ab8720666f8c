#!/usr/bin/env python3
"""Measures how fast checkpoints are written and read, compared with dd on the same disk, and how much saving slows down
the steps meanwhile.

    python3 dev/checkpoint_rates.py [--dir DIR] [--program ./train_gpt_cpu] [--layers 4]

Everything is measured in turn, three times; the medians are shown. dd writes and reads as many bytes as a checkpoint
has, with fsync. It reads what the page cache may hold, like a run that resumes at once.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", default=None, help="where to write (default: a temporary directory)")
parser.add_argument("--program", default="./train_gpt_cpu")
parser.add_argument("--layers", default="4")
options = parser.parse_args()
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))


def seconds_of(*command):
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - begin


def step_ms(directory):
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        return [r["ms"] for r in map(json.loads, file) if "ms" in r]


def run(flags, out, *more):
    return subprocess.run([*flags, "-o", out, *more], check=True, capture_output=True, text=True).stdout


def main(parent):
    data = os.path.join(parent, "data")
    subprocess.run([sys.executable, os.path.join(ROOT, "data", "demo_corpus.py"), "--out", data, "--train-tokens", "50000",
                    "--val-tokens", "1000"], check=True, capture_output=True)
    flags = [options.program, "-i", os.path.join(data, "demo_train.bin"), "--layers", options.layers, "--channels", "768",
             "--heads", "12", "-t", "64", "-b", "1", "--precision", "bf16", "-x", "24", "--keep", "1"]
    figures = {name: [] for name in ("save", "dd write", "load, verified", "load", "dd read", "steps without", "steps with")}
    for _ in range(3):
        out = os.path.join(parent, "run")
        shutil.rmtree(out, ignore_errors=True)
        run(flags, out, "--checkpoint-minutes", "0", "--stop-after", "12")
        figures["steps without"].append(statistics.median(step_ms(out)))
        shutil.rmtree(out)
        saving = run(flags, out, "-n", "1", "--stop-after", "12")
        figures["steps with"].append(statistics.median(step_ms(out)))
        path = re.findall(r"checkpoint of step 12 written to (\S+)", saving)[-1]
        size = os.path.getsize(os.path.join(path, "rank_00000.safetensors"))
        shutil.rmtree(out)
        last = run(flags, out, "--stop-after", "1")
        (seconds,) = re.findall(r"checkpoint of step 1 written to \S+ \(.* in ([\d.]+) s\)", last)
        figures["save"].append(size / float(seconds) / 1e9)
        zeros = os.path.join(parent, "zeros")
        figures["dd write"].append(size / seconds_of("dd", "if=/dev/zero", f"of={zeros}", "bs=8M", f"count={size >> 23}",
                                                     "conv=fsync") / 1e9)
        figures["dd read"].append(size / seconds_of("dd", f"if={zeros}", "of=/dev/null", "bs=8M") / 1e9)
        for name, how in (("load, verified", "full"), ("load", "none")):
            text = run(flags, out, "--resume", "latest", "--verify", how, "--stop-after", "1")
            (seconds,) = re.findall(r"read in ([\d.]+) s", text)
            figures[name].append(size / max(float(seconds), 0.05) / 1e9)
    print(f"a checkpoint of {size / 1e9:.2f} GB in {parent}")
    for name, values in figures.items():
        unit = "ms" if name.startswith("steps") else "GB/s"
        print(f"  {name:16} {statistics.median(values):8.2f} {unit}   {' '.join(f'{v:.2f}' for v in values)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        main(directory)
