#!/usr/bin/env python3
"""Checks the work of each kernel: instructions, sectors of memory, passes through shared memory, tensor core
instructions.

It runs tiny training runs in every precision on the virtual GPU, counts kernel by kernel, and compares with
dev/virtual_gpu/kernel_counts.txt. A kernel that does more than its line says, or has no line, is an error. A kernel
that does less is named, so that its line can be lowered. The counts hold for the version of nvcc that the file names;
with another version nothing is compared.

    dev/virtual_gpu/kernel_counts.py --check     (`make virtual` first)
    dev/virtual_gpu/kernel_counts.py --write     after an intended change
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from counted import ROOT, read_kernels, run_counted, write_tokens

TABLE = Path(__file__).with_name("kernel_counts.txt")
PROGRAM = ROOT / "build/virtual/train_gpt"
COUNTED = ("launches", "thread_instructions", "global_sectors", "shared_passes", "mma")
RUNS = {"fp32": ["--precision", "fp32"], "bf16": ["--precision", "bf16"],
        "bf16 moments and tensors clipped": ["--precision", "bf16", "--adam-moments", "bf16", "--clip", "1e-3",
                                             "--clip-kind", "tensor", "--kernels", "portable"],
        "fp8 delayed without Hopper's kernels": ["--precision", "fp8", "--fp8-recipe", "delayed", "--fp8-layers", "all",
                                                 "--kernels", "portable"],
        **{f"fp8 {recipe}": ["--precision", "fp8", "--fp8-recipe", recipe, "--fp8-layers", layers] for recipe, layers in
           (("delayed", "all,+lm_head"), ("current", "all,+lm_head"), ("block", "all"))}}
SHAPE = ["--layers", 2, "--channels", 128, "--heads", 2, "-b", 2, "-t", 64, "--vocab", 300, "--max-steps", 2,
         "--checkpoint-minutes", 0, "--tune", "0"]
HEADER = f"""# What each kernel does in two steps of a tiny model. dev/virtual_gpu/kernel_counts.py --write makes this file.
# Precision, kernel, {", ".join(COUNTED)}.
# Counted in the PTX of this compiler for this architecture:
"""


def name_of(kernel):
    """The mangled name without the hash of the file's path that nvcc puts into unnamed namespaces."""
    return re.sub(r"_GLOBAL__N__[0-9a-f]{8}_(\d+_\w+?_cu)_[0-9a-f]{8}", r"_GLOBAL__N__\1_", kernel)


def compiler():
    """The version of the nvcc that the Makefile finds."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or f"{home}/bin/nvcc"
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except OSError:
        return "none"
    return re.search(r"V([\d.]+)", text).group(1)


def count_run(program, flags, directory):
    """Returns {kernel: (counts)} of a training run, and the simulated card."""
    counts = directory / "counts.json"
    counts.unlink(missing_ok=True)
    run_counted([program, "--train", directory / "tokens.bin", *SHAPE, *flags], counts, OMP_NUM_THREADS="1")
    kernels = read_kernels(counts)
    return {name_of(line["name"]): tuple(line[field] for field in COUNTED) for line in kernels}, kernels[0]["card"]


def count_all(program):
    """Returns {(run, kernel): counts}, and the compiler with the architecture."""
    found, card = {}, ""
    with tempfile.TemporaryDirectory() as name:
        write_tokens(Path(name) / "tokens.bin", 2000, 300)
        for run, flags in RUNS.items():
            kernels, card = count_run(program, flags, Path(name))
            found.update({(run, kernel): counts for kernel, counts in kernels.items()})
    return found, f"nvcc {compiler()} {card}"


def read_table(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    return {(run, kernel): tuple(int(n) for n in counts) for run, kernel, *counts in rows}, lines[0]


def write_table(path, found, compiled_by):
    rows = ["\t".join([run, kernel, *(str(n) for n in counts)]) for (run, kernel), counts in sorted(found.items())]
    path.write_text(HEADER + compiled_by + "\n" + "\n".join(rows) + "\n")


def compare(found, table):
    """Returns (errors, kernels that do less), as lines."""
    errors, less = [], []
    for key, counts in sorted(found.items()):
        run, kernel = key
        if key not in table:
            errors.append(f"{run}: {kernel} has no line in {TABLE.name}")
            continue
        for field, now, before in zip(COUNTED, counts, table[key]):
            if now != before:
                share = f"{100 * (now / before - 1):+.2f} %" if before else "from none"
                line = f"{run}: {kernel}: {field} {before:,} -> {now:,} ({share})"
                (errors if now > before else less).append(line)
    less += [f"{run}: {kernel} does not run any more" for run, kernel in sorted(set(table) - set(found))]
    return errors, less


def check(program, path):
    table, compiled_by = read_table(path)
    now = f"nvcc {compiler()}"
    if not compiled_by.startswith(now + " "):
        print(f"kernel counts: not compared, {path.name} is of {compiled_by}, this is {now}")
        return 0
    found, played = count_all(program)
    if played != compiled_by:
        print(f"kernel counts: not compared, {path.name} is of {compiled_by}, this is {played}")
        return 0
    errors, less = compare(found, table)
    for line in errors:
        print(f"more: {line}")
    for line in less:
        print(f"less: {line}")
    print(f"kernel counts: {len(found)} compared, {len(errors)} errors, {len(less)} less" +
          (": --write, if that is meant" if errors or less else ""))
    return 1 if errors else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--table", type=Path, default=TABLE)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true")
    group.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.check:
        return check(options.program, options.table)
    found, compiled_by = count_all(options.program)
    write_table(options.table, found, compiled_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
