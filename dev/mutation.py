#!/usr/bin/env python3
"""Removes the barriers and waits of the kernels one by one and checks that the tests notice.

Each mutant drops one `__syncthreads();`, `__syncwarp();` or `bar_sync(...);`, or weakens one `cp_async_wait<N>()` to N
+ 1, in llmc/kernels/ or llmc/device/warp.cuh. Then the tests that link the changed code run with GPU threads in
ascending, descending and random order; if none fails, a ThreadSanitizer build runs too. An unnoticed mutant is an
error, unless dev/mutation_accepted.txt names it with a reason (a barrier that turned out to be superfluous).

    dev/mutation.py                       all mutants
    dev/mutation.py --only layernorm      those whose name contains "layernorm"
    dev/mutation.py --list                names only

Exits with code 1 if a mutant goes unnoticed, and 2 if the tests fail without any mutation. Works in a copy of the
sources; needs g++.
"""
import argparse
import concurrent.futures
import dataclasses
import os
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
# Sources of the test programs: kernels and their specifications, which are linked where a test needs them, and others.
LINKED_IF_USED = ("llmc/kernels/*.cu", "llmc/kernels/hopper/*.cu", "llmc/comm/reductions.cu", "llmc/fp8/scaling.cu",
                  "llmc/optim/prepare_step.cu", "test/kernels/specifications/*.cpp")
LINKED = ("llmc/base/text.cpp", "llmc/device/device_errors.cpp", "llmc/device/hopper.cu", "llmc/device/transfer.cpp",
          "llmc/device/host/*.cpp", "llmc/kernels/host/*.cpp", "llmc/linear/matmul.cpp", "llmc/linear/*_host.cpp",
          "llmc/optim/config.cpp", "dev/emulator/*.cpp", "test/main.cpp", "test/kernels/check_specifications.cpp")
# Not among them: the product's grid, which the emulator replaces, and specifications that need the model, other ranks or
# matrix products; and the tests of such files.
LEFT_OUT = ("grid.cpp", "collectives.cpp", "kernel_checks.cpp", "product_checks.cpp")
NO_KERNEL_TESTS = ("check_specifications.cpp", "kernel_checks.cpp", "known_products.cpp", "trial.cpp")
ORDERS = ("ascending", "descending", "random")
COMMON = "-std=c++20 -I. -fopenmp -fno-math-errno -w -DLLMC_CUDA=0 -DLLMC_WITH_KERNELS -MMD"
FLAGS = {"plain": "-O2", "tsan": "-O1 -g -fsanitize=thread"}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TSAN_OPTIONS": "halt_on_error=1 exitcode=66 atexit_sleep_ms=0"}
STATEMENT = re.compile(r"__syncthreads\(\);|__syncwarp\([^;]*\);|\bbar_sync\([^;{]*\);|\bcp_async_wait<([^>]*)>\(\)")


def libraries():
    folders = list(Path("/usr/lib").glob("*/openblas-openmp"))
    return f"-L{folders[0]} -Wl,-rpath,{folders[0]} -lopenblas -lcrypto -lpthread" if folders else "-lopenblas -lcrypto -lpthread"


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

def shell(command, cwd, environment=None, timeout=900):
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


class Build:
    """The objects of the unmutated sources in one configuration, and for each test program the objects it consists of.
    """

    def __init__(self, tree, kind, jobs):
        self.tree, self.kind, self.folder = tree, kind, tree / "build" / kind
        self.folder.mkdir(parents=True)

        def found(patterns):
            return sorted(str(p.relative_to(tree)) for pattern in patterns for p in tree.glob(pattern)
                          if p.name not in LEFT_OUT)

        parts, base = found(LINKED_IF_USED), found(LINKED)
        self.tests = sorted(str(p.relative_to(tree)) for p in (tree / "test/kernels").glob("*.cpp")
                            if p.name not in NO_KERNEL_TESTS) + ["test/device/warp.cu"]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            self.object = dict(pool.map(lambda s: (s, self.compile(tree, s, self.folder)), parts + base + self.tests))
        self.base = [self.object[s] for s in base]
        self.archive = self.folder / "kernels.a"
        self.must(f"ar rcs {self.archive} {' '.join(str(self.object[s]) for s in parts)}")
        self.parts = {test: self.link(test, self.folder / f"{Path(test).stem}.test") for test in self.tests}

    def must(self, command, tree=None):
        code, output = shell(command, tree or self.tree)
        if code:
            raise BuildError(f"{command}\n{output[-3000:]}")
        return output

    def compile(self, tree, source, folder):
        target = folder / (source.replace("/", "_") + ".o")
        self.must(f"g++ {FLAGS[self.kind]} {COMMON} -x c++ -c {source} -o {target}", tree)
        return target

    def link(self, test, program, replaced=None):
        """Links a test and returns its sources. `replaced` objects, by source, come first."""
        replaced = replaced or {}
        objects = [replaced.get(test, self.object[test])] + [o for s, o in replaced.items() if s != test] + self.base
        output = self.must(f"g++ {FLAGS[self.kind]} -fopenmp {' '.join(map(str, objects))} {self.archive} -Wl,-t,-t "
                           f"-o {program} {libraries()}")
        return {test} | {s for s, o in self.object.items() if o.name in output}

    def users(self, path):
        """The sources that include this file, directly or not."""
        def includes(source):
            dependencies = self.object[source].with_suffix(".d").read_text().replace("\\\n", " ").split()
            return source == path or path in dependencies
        if path == "llmc/device/warp.cuh":
            return ["test/device/warp.cu"]  # nearly every test includes it, so only its own test runs
        return [s for s in self.object if includes(s)]


def failed(program, tree, order):
    code, output = shell(f"exec {program}", tree, {"LLMC_ORDER": order}, timeout=300)
    return code != 0, output


class Workplace:
    """Copies of the tree: one for the unmutated builds, and one per job."""

    def __init__(self, folder, jobs):
        self.jobs, self.lock, self.builds = jobs, threading.Lock(), {}
        self.folder, self.original = folder, folder / "original"
        for tree in [self.original] + [folder / f"job{i}" for i in range(jobs)]:
            for part in ("llmc", "test", "dev/emulator"):
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("fixtures"))

    def build(self, kind):
        with self.lock:  # the first caller builds it; every test must pass
            if kind not in self.builds:
                print(f"building the {kind} tests ...", flush=True)
                build = Build(self.original, kind, self.jobs)
                for test in build.tests:
                    for order in ORDERS if kind == "plain" else ORDERS[:1]:
                        bad, output = failed(build.folder / f"{Path(test).stem}.test", self.original, order)
                        if bad:
                            raise BuildError(f"{test} fails without a mutation ({kind}, {order}):\n{output[-3000:]}")
                self.builds[kind] = build
            return self.builds[kind]

    def detectors(self, mutant, job):
        """The detectors that notice the mutant."""
        tree = self.folder / f"job{job}"
        (tree / mutant.source).write_text(mutant.text)
        try:
            seen = self.run_tests(mutant, tree, "plain", ORDERS)
            return seen or self.run_tests(mutant, tree, "tsan", ORDERS[:1])
        finally:
            (tree / mutant.source).write_text((self.original / mutant.source).read_text())

    def run_tests(self, mutant, tree, kind, orders):
        build = self.build(kind)
        folder = tree / "build" / kind
        folder.mkdir(parents=True, exist_ok=True)
        changed = {s: build.compile(tree, s, folder) for s in build.users(mutant.source)}
        if not changed:
            raise BuildError(f"{mutant.source} is compiled into nothing")
        seen, ran = [], False
        for test in build.tests:
            mine = {s: o for s, o in changed.items() if s in build.parts[test]}
            if not mine:
                continue
            ran = True
            program = folder / "mutant.test"
            build.link(test, program, mine)
            for order in orders:
                name = order if kind == "plain" else kind
                if name not in seen and failed(program, tree, order)[0]:
                    seen.append(name)
        if not ran:
            raise BuildError(f"no test in test/kernels/ uses {mutant.source}")
        return seen


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
        place = Workplace(Path(folder), arguments.jobs)
        try:
            place.build("plain")
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
