#!/usr/bin/env python3
"""Removes the kernels' barriers, waits and bounds one by one and checks that the virtual GPU notices.

Each mutant turns one PTX instruction into a no-op (VIRTUAL_GPU_LOSE): a bar.sync, bar.warp.sync, bar.arrive, or a
cp.async wait or commit; with --bounds also the guarded branches, most of which keep threads within bounds. Then the
quickest test file that runs the kernel runs with race detection; the mutant is noticed if a test fails. Instantiations
of a kernel are tried until one notices, since not all of them get data for which the barrier matters. Needs no
compiler, but `make virtual` first.

    dev/virtual_gpu/mutation.py                      all kernels of the tests in test/kernels/ and test/optim/
    dev/virtual_gpu/mutation.py --only layernorm     those whose name contains "layernorm"
    dev/virtual_gpu/mutation.py --table FILE         writes what was seen, as JSON

Exits with code 1 if a mutant goes unnoticed that dev/virtual_gpu/mutation_accepted.txt does not name with a reason.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from counted import ROOT, ptx_of, read_kernels, run_counted

ACCEPTED = Path(__file__).with_name("mutation_accepted.txt")
LOST = r"bar\.sync|bar\.warp\.sync|bar\.arrive|barrier\.sync|cp\.async\.(?:wait_group|wait_all|commit_group)"
FOLDERS = ("kernels", "optim")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "VIRTUAL_GPU_MULTIPROCESSORS": "2"}
MOST_INSTANTIATIONS = 6
LIMIT = 600  # seconds per run; a lost barrier may hang it


def test_files():
    for folder in FOLDERS:
        for path in sorted((ROOT / "test" / folder).glob("*.c*")):
            yield f"test/{folder}/{path.name}"


def command(binary, test_file):
    return [binary, "--no-colors", f"--source-file=*{test_file}", "--abort-after=1"]


def run(binary, test_file, **variables):
    try:
        return subprocess.run(command(binary, test_file), env=dict(os.environ, **ENVIRONMENT, **variables), cwd=ROOT,
                              capture_output=True, text=True, errors="replace", timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(late.cmd, 124, "", "it ran out of time")


def kernels_of(binary, test_file):
    """Returns {mangled name: counts} of the kernels that a test file launches. The test must pass without mutations."""
    with tempfile.NamedTemporaryFile() as counts:
        run_counted(command(binary, test_file), counts.name, **ENVIRONMENT)
        return {k["name"]: k for k in read_kernels(counts.name)}


def family(kernel):
    """The kernel's name without template arguments: "void llmc::k<float, 1>(...)" becomes "llmc::k"."""
    return re.sub(r"^(void )?", "", kernel).split("<")[0].split("(")[0]


@dataclasses.dataclass
class Mutant:
    title: str    # llmc::bias_kernel:bar.sync#2
    text: str  # the instruction
    places: list  # [(mangled name, line, test file)], one per instantiation that has this instruction


def lines_that_may_go(binary, bounds):
    """Returns {kernel family: {mangled name: (cost of its quickest test, that test, [(line, text)])}}."""
    wanted = re.compile(LOST + (r"|@!?%p\d+ bra" if bounds else ""))
    ptx = ptx_of(binary)
    families = collections.defaultdict(dict)
    for test_file in test_files():
        for name, counts in kernels_of(binary, test_file).items():
            of, cost = families[family(counts["kernel"])], counts["warp_instructions"]
            if name in of and of[name][0] <= cost:
                continue
            not_run = set(counts["ptx_lines_not_run"])
            of[name] = (cost, test_file, [(n, text) for n, text in ptx[name] if wanted.match(text) and n not in not_run])
    return families


def mutants(binary, only, bounds):
    result = []
    for kernel, instantiations in sorted(lines_that_may_go(binary, bounds).items()):
        if only not in kernel:
            continue
        most = max(len(lines) for _, _, lines in instantiations.values())
        alike = sorted((cost, name, test_file, lines) for name, (cost, test_file, lines) in instantiations.items()
                       if len(lines) == most)
        seen = collections.Counter()
        for i in range(most):
            text = alike[0][3][i][1]
            what = "branch" if text.startswith("@") else text.split()[0].rstrip(";")
            seen[what] += 1
            places = [(name, lines[i][0], test_file) for _, name, test_file, lines in alike]
            result.append(Mutant(f"{kernel}:{what}#{seen[what]}", text, places))
    return result


def verdict(result):
    """How the mutant was noticed, or None."""
    if result.returncode == 0:
        return None
    for line in result.stderr.splitlines():
        if line.startswith("virtual GPU:"):
            return line
    failed = re.search(r"ERROR: .*", result.stdout)
    return failed.group() if failed else f"exit code {result.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "build/virtual/test_gpu"))
    parser.add_argument("--only", default="")
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    accepted = dict(line.split(None, 1) for line in ACCEPTED.read_text().splitlines() if line and line[0] != "#") \
        if ACCEPTED.exists() else {}
    todo = mutants(options.program, options.only, options.bounds)
    table, unseen = [], 0

    def lose(mutant):
        for name, line, test_file in mutant.places[:MOST_INSTANTIATIONS]:
            seen = verdict(run(options.program, test_file, VIRTUAL_GPU_LOSE=f"{name}:{line}", VIRTUAL_GPU_RACES="1"))
            if seen:
                return mutant, test_file, seen
        return mutant, test_file, None

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutant, test_file, seen in pool.map(lose, todo):
            is_accepted = mutant.title in accepted
            unseen += seen is None and not is_accepted
            table.append({"mutant": mutant.title, "ptx": mutant.text, "test": test_file, "seen": seen})
            state = "seen    " if seen else "accepted" if is_accepted else "UNSEEN  "
            how = re.sub(r"^virtual GPU: .*thread \([\d,]+\): ", "", seen)[:90] if seen else mutant.text
            print(f"{state} {mutant.title:70} {test_file}: {how}", flush=True)
    if options.table:
        Path(options.table).write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(table)} losses, {sum(1 for t in table if t['seen'])} seen, {unseen} unseen and not accepted")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
