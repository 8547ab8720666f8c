#!/usr/bin/env python3
"""Removes the barriers and waits of the kernels one by one and checks that the tests notice.

Each mutant drops one `__syncthreads();`, `__syncwarp();` or `bar_sync(...);`, or weakens one `cp_async_wait<N>()` to N
+ 1, in llmc/kernels/ or llmc/device/warp.cuh. Then the kernels' tests run with GPU threads in ascending, descending and
random order; if none fails, a ThreadSanitizer build runs too. An unnoticed mutant is an error, unless
dev/mutation_accepted.txt names it with a reason (a barrier that turned out to be superfluous).

    dev/mutation.py                       all mutants
    dev/mutation.py --only layernorm      those whose name contains "layernorm"
    dev/mutation.py --list                names only

Exits with code 1 if a mutant goes unnoticed, and 2 if the tests fail without any mutation. Works in copies of the
sources.
"""
import argparse
import concurrent.futures
import dataclasses
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = ROOT / "dev/mutation_accepted.txt"
# The program that emulates the kernels' threads. ThreadSanitizer's usual build has loops in their place.
MAKE = {"plain": "test-cpu", "tsan": "test-cpu SANITIZE=thread TEST_LAUNCHERS='$(call with_kernels_in,$(CPU_DIR))'"}
PROGRAM = {"plain": "build/cpu-native/test_cpu", "tsan": "build/cpu-native-thread/test_cpu"}
# gcc 12's ThreadSanitizer cannot handle systems that randomise more than 28 bits of addresses.
PREFIX = {"plain": "", "tsan": f"setarch {platform.machine()} -R"}
LIMIT = {"plain": 300, "tsan": 3600}  # seconds that the tests may take, because a lost barrier may hang them
ORDERS = {"plain": ("ascending", "descending", "random"), "tsan": ("ascending",)}
TESTS = "--source-file='*test/kernels/*,*test/device/warp.cu' --test-suite-exclude=soak,once"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 atexit_sleep_ms=0"}
STATEMENT = re.compile(r"__syncthreads\(\);|__syncwarp\([^;]*\);|\bbar_sync\([^;{]*\);|\bcp_async_wait<([^>]*)>\(\)")


# ---- mutants -----------------------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Mutant:
    source: str  # path relative to the root
    name: str        # llmc/kernels/bias.cu:bias_kernel:__syncthreads#2
    line: int
    text: str  # the whole file, mutated


def without_comments(text):
    """The text with comments blanked out; all other characters keep their place."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def function_at(text, position):
    """The name of the function or struct whose outermost braces contain the position."""
    header_start, headers = 0, []  # headers of the open braces, without namespaces
    for match in re.finditer(r"[{};]", text[:position]):
        if match.group() == "{":
            headers.append(text[header_start:match.start()])
        elif match.group() == "}" and headers:
            headers.pop()
        header_start = match.end()
    header = next((h for h in headers if not re.search(r"\bnamespace\b", h)), "?")
    depth = 0
    for match in re.finditer(r"(\w+)\s*\(|[()]", header):
        name = match.group(1)
        if depth == 0 and name and name not in ("__launch_bounds__", "__attribute__", "alignas", "decltype"):
            return name
        depth += -1 if match.group() == ")" else 1
    return re.sub(r"\W+", "_", header.strip())[-40:]


def mutants_of(path):
    text = (ROOT / path).read_text()
    clean = without_comments(text)
    counts, result = {}, []
    for match in STATEMENT.finditer(clean):
        kind = re.match(r"\w+", match.group()).group()
        function = function_at(clean, match.start())
        number = counts[function, kind] = counts.get((function, kind), 0) + 1
        replacement = f"cp_async_wait<({match.group(1)}) + 1>()" if match.group(1) is not None else ";"
        result.append(Mutant(path, f"{path}:{function}:{kind}#{number}", clean.count("\n", 0, match.start()) + 1,
                             text[:match.start()] + replacement + text[match.end():]))
    return result


def all_mutants():
    sources = sorted(str(p.relative_to(ROOT)) for pattern in ("*.cu", "*.cuh") for p in (ROOT / "llmc/kernels").glob(pattern))
    return [m for path in sources + ["llmc/device/warp.cuh"] for m in mutants_of(path)]


def accepted_mutants():
    """The lines of "name reason"."""
    lines = ACCEPTED.read_text().splitlines() if ACCEPTED.exists() else []
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


# ---- building and running ----------------------------------------------------------------------------------------------

def shell(command, cwd, environment=None, timeout=1800):
    """Runs a command; returns its exit code and output. On a timeout it is killed with all its children; the code is
    then 124.
    """
    process = subprocess.Popen(command, shell=True, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True,
                               env={**os.environ, **ENVIRONMENT, **(environment or {})})
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, "timeout"


class BuildError(Exception):
    pass


def build(tree, kind, jobs=1):
    code, output = shell(f"make -s -j{jobs} {MAKE[kind]}", tree)
    if code:
        raise BuildError(f"make {MAKE[kind]}\n{output[-3000:]}")


def failed(tree, kind, order):
    program, = tree.glob(PROGRAM[kind])
    code, output = shell(f"exec {PREFIX[kind]} {program} --no-colors --abort-after=1 {TESTS}", tree,
                         {"LLMC_ORDER": order}, LIMIT[kind])
    return code != 0, output


class Workplace:
    """Copies of the tree with its builds: the original, and one per job. A kind of build is made once it is needed."""

    def __init__(self, folder, jobs):
        self.jobs, self.lock, self.kinds = jobs, threading.Lock(), set()
        self.folder, self.original = folder, folder / "original"
        for part in ("llmc", "test", "dev"):
            shutil.copytree(ROOT / part, self.original / part)
        for name in ("Makefile", "train_gpt.cu"):
            shutil.copy2(ROOT / name, self.original / name)
        self.prepare("plain")
        for i in range(jobs):
            shutil.copytree(self.original, folder / f"job{i}")

    def prepare(self, kind):
        with self.lock:  # every test must pass without a mutation
            if kind in self.kinds:
                return
            print(f"building the {kind} tests ...", flush=True)
            build(self.original, kind, self.jobs)
            for order in ORDERS[kind]:
                bad, output = failed(self.original, kind, order)
                if bad:
                    raise BuildError(f"the tests fail without a mutation ({kind}, {order}):\n{output[-3000:]}")
            self.kinds.add(kind)

    def detectors(self, mutant, job):
        """The detectors that notice the mutant."""
        tree = self.folder / f"job{job}"
        (tree / mutant.source).write_text(mutant.text)
        try:
            return self.run_tests(tree, "plain") or self.run_tests(tree, "tsan")
        finally:
            (tree / mutant.source).write_text((self.original / mutant.source).read_text())

    def run_tests(self, tree, kind):
        self.prepare(kind)
        if not any(tree.glob(PROGRAM[kind])):
            shutil.copytree(self.original / "build", tree / "build", dirs_exist_ok=True)
        build(tree, kind)
        return [order if kind == "plain" else kind for order in ORDERS[kind] if failed(tree, kind, order)[0]]


# ---- the table ---------------------------------------------------------------------------------------------------------

def report(mutant, seen, accepted):
    if seen:
        verdict = "seen by " + ", ".join(seen)
    elif mutant.name in accepted:
        verdict = "unseen, accepted: " + accepted[mutant.name]
    else:
        verdict = "UNSEEN"
    print(f"{mutant.name} (line {mutant.line})".ljust(100), verdict, flush=True)
    return bool(seen) or mutant.name in accepted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose name contains TEXT")
    parser.add_argument("--list", action="store_true", help="print the names of the mutants and stop")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default 2)")
    arguments = parser.parse_args()
    mutants = [m for m in all_mutants() if arguments.only in m.name]
    accepted = accepted_mutants()
    if arguments.list:
        for m in mutants:
            print(f"{m.name} (line {m.line})")
        return 0
    stale = set() if arguments.only else set(accepted) - {m.name for m in mutants}
    for name in sorted(stale):
        print(f"dev/mutation_accepted.txt: there is no {name}")
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        try:
            place = Workplace(Path(folder), arguments.jobs)
            free = list(range(arguments.jobs))

            def one(mutant):
                job = free.pop()
                try:
                    return report(mutant, place.detectors(mutant, job), accepted)
                finally:
                    free.append(job)

            with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
                fine = list(pool.map(one, mutants))
        except BuildError as error:
            print(error)
            return 2
    print(f"{len(mutants)} mutants, {fine.count(False)} unseen")
    return 1 if not all(fine) or stale else 0


if __name__ == "__main__":
    sys.exit(main())
