#!/usr/bin/env python3
"""Removes the kernels' barriers, waits and bounds one by one and checks that the virtual GPU notices.

Each mutant turns one PTX instruction into a no-op (VIRTUAL_GPU_LOSE): a bar.sync, bar.warp.sync, bar.arrive, or a
cp.async wait or commit; of Hopper's instructions those of mbarriers, fences, bulk copies with their commits and waits,
and wgmma's fences, commits and waits. With --bounds also the guarded branches, most of which keep threads within
bounds. Then the quickest test file that runs the kernel runs with race detection; the mutant is noticed if a test
fails. Instantiations of a kernel are tried until one notices, since not all of them get data for which the barrier
matters. Needs no compiler, but `make virtual` first.

Instantiations of Hopper's kernels that synchronize differently count as kernels of their own. Not removed is
setmaxnreg, which changes nothing in PTX. A removed mbarrier wait finds its phase complete.

    dev/virtual_gpu/mutation.py                      all kernels of the tests in test/kernels/ and test/optim/
    dev/virtual_gpu/mutation.py --only layernorm     those whose name contains "layernorm"
    dev/virtual_gpu/mutation.py --tests hopper       those of the test files whose name contains "hopper"
    dev/virtual_gpu/mutation.py --table FILE         writes what was seen, as JSON

Exits with code 1 if a mutant goes unnoticed that dev/virtual_gpu/mutation_accepted.txt does not name with a reason.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from counted import ROOT, ptx_of, read_kernels, run_counted

ACCEPTED = Path(__file__).with_name("mutation_accepted.txt")
LOST = r"bar\.sync|bar\.warp\.sync|bar\.arrive|barrier\.sync|cp\.async\.(?:wait_group|wait_all|commit_group)|" \
       r"(?:@!?%p\d+ )?(?:mbarrier|fence|cp\.async\.bulk|wgmma\.(?:fence|commit|wait))"
FOLDERS = ("kernels", "optim")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "VIRTUAL_GPU_MULTIPROCESSORS": "2"}
MOST_TRIES = 6
ORDERS = ("ascending", "descending", "random")  # orders of warps; single specifications try all
LIMIT = 600  # seconds per run; a lost barrier may hang it. A sixth of it for a single specification.


@dataclasses.dataclass(frozen=True, order=True)
class Test:
    file: str
    case: str = "*"
    specification: str = ""  # if not empty, the only one that runs

    def command(self, binary):
        return [binary, "--no-colors", f"--source-file=*{self.file}", f"--test-case={self.case}", "--abort-after=1"]

    def environment(self):
        if not self.specification:
            return ENVIRONMENT
        return ENVIRONMENT | {"LLMC_SPECIFICATION": self.specification, "VIRTUAL_GPU_MULTIPROCESSORS": "1"}


def hopper_tests():
    """Few specifications, for which one block takes several tiles of several stages each, some of them masked."""
    attention, gelu = "test/kernels/hopper_attention.cpp", "test/kernels/hopper_matmul_gelu.cpp"
    for HD in (64, 128):
        shapes = [f"attention bf16 HD={HD} {shape}"
                  for shape in ("NH=1 in documents B=1 T=456", "NH=1 window=150 B=1 T=456", "NH=2 NKV=1 B=1 T=392")]
        shapes += [f"attention_forward_fp8 HD={HD} NH=1 window=193 B=1 T=464",
                   f"attention_backward_fp8 e5m2 HD={HD} NH=1 window=193 B=1 T=464",
                   f"attention_forward_fp8 HD={HD} NH=3 B=2 T=40",  # more items than stages
                   f"attention_backward_fp8 e5m2 HD={HD} NH=3 B=2 T=40"]
        for shape in shapes:
            yield Test(attention, "*plain and quantizing*", shape + " on Hopper")
    yield Test(attention, "*plain and quantizing*", "attention_forward_fp8 HD=128 NH=1 B=1 T=400 on Hopper")
    for kernel in ("multiply_gelu_forward", "multiply_gelu_forward bf16", "multiply_gelu_backward bf16",
                   "multiply_gelu_backward e5m2"):
        yield Test(gelu, "*a product and a separate kernel*", f"{kernel} N=384 K=656 F=256")
        yield Test(gelu, "*a product and a separate kernel*", f"{kernel} N=128 K=400 F=768")


def tests(part):
    """The tests of the files whose name contains `part`."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "test" / folder).glob("*.c*")):
            if not path.name.startswith("hopper_") and part in path.name:
                yield Test(f"test/{folder}/{path.name}")
    yield from (test for test in hopper_tests() if part in test.file)


def run(binary, test, **variables):
    try:
        return subprocess.run(test.command(binary), env=dict(os.environ, **test.environment(), **variables), cwd=ROOT,
                              capture_output=True, text=True, errors="replace",
                              timeout=LIMIT / 6 if test.specification else LIMIT)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(late.cmd, 124, "", "it ran out of time")


def kernels_of(binary, test):
    """Returns {mangled name: counts} of the kernels that a test is for. It must pass without mutations."""
    with tempfile.NamedTemporaryFile() as counts:
        run_counted(test.command(binary), counts.name, **test.environment())
        kernels = [k for k in read_kernels(counts.name) if not test.specification or "hopper" in k["kernel"]]
    if test.specification and not kernels:
        sys.exit(f"no specification of {test.file} is named {test.specification}")
    return {k["name"]: k for k in kernels}


def family(kernel, lines):
    """The kernel's name without template arguments: "void llmc::k<float, 1>(...)" becomes "llmc::k". A kernel with
    mbarriers keeps them, "llmc::k<float,1>"."""
    name = re.sub(r"^(void )?", "", kernel)
    if any("mbarrier" in text for _, text in lines):
        return re.sub(r"llmc::(hopper::)?(?!hopper)|\s", "", re.sub(r">\(.*", ">", name))
    return name.split("<")[0].split("(")[0]


def opcode(text):
    """The first word, up to "::": "mbarrier.init.shared"."""
    if re.match(r"@!?%p\d+ bra", text):
        return "branch"
    return re.sub(r"^@\S+ ", "", text).split()[0].split("::")[0].rstrip(";")


@dataclasses.dataclass
class Mutant:
    title: str    # llmc::bias_kernel:bar.sync#2
    text: str  # the instruction
    places: list  # [(mangled name, line, test)], at least one per instantiation that has this instruction


@dataclasses.dataclass
class Instantiation:
    name: str  # mangled
    lines: list  # [(line, text)] that may go
    tests: list  # [(cost, test)]


def lines_that_may_go(binary, bounds, part):
    """Returns {kernel family: [Instantiation]}. Instantiations with mbarriers are of one family if they have the same
    instructions in the same order."""
    wanted = re.compile(LOST + (r"|@!?%p\d+ bra" if bounds else ""))
    ptx = ptx_of(binary)
    found, names = {}, {}
    for test in tests(part):
        for name, counts in kernels_of(binary, test).items():
            not_run = set(counts["ptx_lines_not_run"])
            lines = [(n, text) for n, text in ptx[name] if wanted.match(text)]
            of = found.setdefault(name, (counts["kernel"], lines, set(), []))
            of[2].update(n for n, _ in lines if n not in not_run)
            of[3].append((counts["warp_instructions"], test))
    families = collections.defaultdict(list)
    for name, (kernel, lines, has_run, of_tests) in sorted(found.items()):
        title = family(kernel, lines)
        if "<" in title:
            title = names.setdefault((title.split("<")[0], tuple(opcode(text) for _, text in lines)), title)
        of_tests.sort()
        if not of_tests[0][1].specification:
            del of_tests[1:]
        families[title].append(Instantiation(name, [line for line in lines if line[0] in has_run], of_tests))
    return families


def mutants(binary, only, bounds, part):
    result = []
    for kernel, instantiations in sorted(lines_that_may_go(binary, bounds, part).items()):
        if only not in kernel:
            continue
        most = max(len(i.lines) for i in instantiations)
        alike = [i for i in instantiations if len(i.lines) == most]
        quickest = sorted((cost, test, i.name, i.lines) for i in alike for cost, test in i.tests)
        seen = collections.Counter()
        for n, (_, text) in enumerate(alike[0].lines):
            what = opcode(text)
            seen[what] += 1
            result.append(Mutant(f"{kernel}:{what}#{seen[what]}", text,
                                 [(name, lines[n][0], test) for _, test, name, lines in quickest]))
    return result


def tries(mutant):
    """Yields (mangled name, line, test, order of warps)."""
    places = mutant.places
    if not places[0][2].specification:
        yield from ((*place, ORDERS[0]) for place in places[:MOST_TRIES])
        return
    for n in range(MOST_TRIES):
        at = n % len(places)
        yield *places[at], ORDERS[(at + n // len(places)) % len(ORDERS)]  # each time another order at each place


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
    parser.add_argument("--tests", default="")
    parser.add_argument("--table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    accepted = dict(line.split(None, 1) for line in ACCEPTED.read_text().splitlines() if line and line[0] != "#") \
        if ACCEPTED.exists() else {}
    todo = mutants(options.program, options.only, options.bounds, options.tests)
    table, unseen = [], 0

    def is_accepted(mutant):
        return any(fnmatch.fnmatch(mutant.title, name) for name in accepted)

    def lose(mutant):
        for seed, (name, line, test, order) in enumerate(tries(mutant)):
            seen = verdict(run(options.program, test, VIRTUAL_GPU_LOSE=f"{name}:{line}", VIRTUAL_GPU_RACES="1",
                               VIRTUAL_GPU_ORDER=order, VIRTUAL_GPU_SEED=str(seed)))
            if seen or is_accepted(mutant):
                break
        return mutant, test, seen

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutant, test, seen in pool.map(lose, todo):
            unseen += seen is None and not is_accepted(mutant)
            table.append({"mutant": mutant.title, "ptx": mutant.text, "test": dataclasses.astuple(test), "seen": seen})
            state = "seen    " if seen else "accepted" if is_accepted(mutant) else "UNSEEN  "
            how = re.sub(r"^virtual GPU: .*thread \([\d,]+\): ", "", seen)[:90] if seen else mutant.text
            print(f"{state} {mutant.title:70} {test.specification or test.file}: {how}", flush=True)
    if options.table:
        Path(options.table).write_text(json.dumps(table, indent=1) + "\n")
    print(f"{len(table)} losses, {sum(1 for t in table if t['seen'])} seen, {unseen} unseen and not accepted")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
