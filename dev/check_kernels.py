#!/usr/bin/env python3
"""Checks what ptxas reported about the kernels: none may spill registers or have its wgmma products serialized, and
those in dev/kernel_resources.txt must exist and stay within their registers. Kernels are not tuned for sm_100 and
sm_120: there the limits of registers do not hold, and small spills are allowed. In SASS for sm_90a, a loop of the
kernels with a number of loads in that file must issue that number before it uses the first of them.

    python3 dev/check_kernels.py build/cuda-sm_90a build/cuda-sm_80
    python3 dev/check_kernels.py --list build/cuda-sm_90a      # all kernels and what they use

The CUDA build writes the report of `ptxas -v` next to each object, as *.ptxas.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

TABLE = os.path.join(os.path.dirname(__file__), "kernel_resources.txt")

Kernel = namedtuple("Kernel", "mangled arch file registers stack spilled")


def parse_report(text, file=""):
    """The kernels in one report. Device functions that were not inlined have no registers of their own."""
    kernels, entry = [], None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            entry = dict(mangled=found[1], arch=found[2], file=file, stack=0, spilled=0)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if entry:
                entry.update(stack=int(found[1]), spilled=int(found[2]) + int(found[3]))
        elif found := re.search(r"Used (\d+) registers", line):
            if entry:
                kernels.append(Kernel(registers=int(found[1]), **entry))
            entry = None
    return kernels


# The notes of ptxas that it makes wgmma instructions wait for each other. (C7519 only inserts a fence.)
SERIALIZED = re.compile(r"\(C75(?:08|1[0-8])\).*?in (?:the )?function '(\w+)'")


def serialized(text):
    """The kernels of one report whose wgmma instructions ptxas serializes, each with the line that says so."""
    return [(found[1], line.strip()) for line in text.splitlines() if (found := SERIALIZED.search(line))]


def demangle(names):
    if not names:
        return {}
    result = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return dict(zip(names, result.stdout.splitlines()))


def base_name(signature):
    """Turns void llmc::(anonymous namespace)::softmax_kernel<float, 4>(float*, int) into softmax_kernel."""
    plain = signature.replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0].split("::")[-1].split(" ")[-1]


def short_signature(signature):
    """The name with its template arguments, without parameters."""
    plain = re.sub(r"^void ", "", signature.replace("(anonymous namespace)::", "")).replace("llmc::", "")
    depth = 0
    for i, character in enumerate(plain):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return plain[:i]
    return plain


def read_table(path):
    """Reads {kernel: most registers} and {kernel: least loads in flight}."""
    registers, loads = {}, {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) not in (2, 3) or not all(word.isdigit() for word in words[1:]):
                raise SystemExit(f"{path}:{number}: expected a kernel, a number of registers and perhaps one of loads, "
                                 f"not '{line.strip()}'")
            registers[words[0]] = int(words[1])
            if len(words) == 3:
                loads[words[0]] = int(words[2])
    return registers, loads


# ---- loads in flight -------------------------------------------------------------------------------------------------

def find_cuobjdump():
    """CUDA's, or the one in Triton's Python package; None if there is none."""
    places = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    if triton := importlib.util.find_spec("triton"):
        places.append(os.path.join(os.path.dirname(triton.origin), "backends/nvidia/bin"))
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(places))


def parse_sass(text, arch="sm_90a"):
    """{kernel: [(address, instruction)]} of `cuobjdump -sass`."""
    kernels, of_arch, code = {}, False, []
    for line in text.splitlines():
        if found := re.match(r"arch = (\S+)", line):
            of_arch = found[1] == arch
        elif found := re.match(r"\s+Function : (\S+)", line):
            code = []
            if of_arch:
                kernels[found[1]] = code
        elif found := re.match(r"\s+/\*([0-9a-f]{4,5})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            code.append((int(found[1], 16), found[2]))
    return kernels


def loads_in_flight(code):
    """The most loads of 16 bytes from global memory that a loop issues before an instruction uses one of them."""
    most = 0
    for end, jump in code:
        target = re.match(r"BRA (?:U?!?U?P\w+, )?0x([0-9a-f]+)", jump)
        if not target or int(target[1], 16) > end:
            continue
        waiting = {}  # {register: load}
        for address, instruction in code:
            if not int(target[1], 16) <= address <= end:
                continue
            registers = [int(number) for number in re.findall(r"\bR(\d+)\b", instruction)]
            is_load = re.match(r"LDG\S*\.128", instruction)
            if any(register in waiting for register in (registers[1:] if is_load else registers)):
                waiting = {}
            if is_load:
                waiting |= {registers[0] + i: address for i in range(4)}
                most = max(most, len(set(waiting.values())))
    return most


def check_loads(sass, names, least):
    """Returns a sentence for each kernel of {mangled name: code} with too few loads in flight."""
    problems = []
    for kernel, code in sass.items():
        wanted = least.get(base_name(names[kernel]), 0)
        if (most := loads_in_flight(code)) < wanted:
            problems.append(f"{short_signature(names[kernel])} has {most} loads in flight; dev/kernel_resources.txt "
                            f"requires {wanted}")
    return problems


def check_loads_of_build(directory, kernels, names, least):
    files = sorted({kernel.file for kernel in kernels if base_name(names[kernel.mangled]) in least})
    cuobjdump = find_cuobjdump()
    if files and not cuobjdump:
        print(f"{directory}: loads in flight are not checked, because cuobjdump is missing")
        return []
    problems = []
    for file in files:
        done = subprocess.run([cuobjdump, "-sass", os.path.join(directory, file.removesuffix(".ptxas"))],
                              capture_output=True, text=True, check=True)
        problems += check_loads(parse_sass(done.stdout), names, least)
    return problems


# ---- builds ----------------------------------------------------------------------------------------------------------

def find_reports(directory):
    """The reports of the product's files and units. Tests' units lie in folders."""
    return sorted(str(path) for pattern in ("llmc/**/*.ptxas", "build/units/*.ptxas") for path in Path(directory).glob(pattern))


# These architectures run 1536 threads per multiprocessor, not 2048, so up to 40 registers per thread still allow all of
# them: 65536 / 1536 is 42, and registers are allocated in units of eight.
FEWER_THREADS = ("sm_86", "sm_89")
REGISTERS_FOR_ALL_OF_THEM = 40


def allowed(most, arch):
    """The limit on this architecture, from the limit in the table."""
    return max(most, REGISTERS_FOR_ALL_OF_THEM) if arch in FEWER_THREADS else most


# Layer norm of long rows spills most there, 268 bytes a thread (nvcc 13.0).
NOT_TUNED_FOR = ("sm_100", "sm_120")
MOST_SPILLED_THERE = 300


def check(kernels, names, table):
    """Returns a sentence for each problem."""
    problems = []
    for kernel in kernels:
        what = f"{short_signature(names[kernel.mangled])} ({kernel.arch})"
        tuned = kernel.arch not in NOT_TUNED_FOR
        if kernel.spilled > (0 if tuned else MOST_SPILLED_THERE):
            problems.append(f"{what} spills {kernel.spilled} bytes of registers")
        elif kernel.stack and not kernel.spilled:
            problems.append(f"{what} keeps {kernel.stack} bytes in local memory: an array indexed at run time?")
        most = table.get(base_name(names[kernel.mangled])) if tuned else None
        if most is not None and kernel.registers > allowed(most, kernel.arch):
            problems.append(f"{what} uses {kernel.registers} registers; dev/kernel_resources.txt allows "
                            f"{allowed(most, kernel.arch)}")
    present = {base_name(names[kernel.mangled]) for kernel in kernels}
    problems += [f"{name} is in dev/kernel_resources.txt but was not built" for name in table if name not in present]
    return problems


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("builds", nargs="+", metavar="DIR", help="CUDA builds: build/cuda-ARCH")
    parser.add_argument("--list", action="store_true", help="print every kernel with what it uses")
    args = parser.parse_args(argv)
    (table, loads), failed = read_table(TABLE), False
    for directory in args.builds:
        kernels, slow = [], []
        for path in find_reports(directory):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            kernels += parse_report(text, os.path.relpath(path, directory))
            slow += serialized(text)
        if not kernels:
            print(f"{directory}: no report of ptxas names a kernel; build it first (make test-gpu)")
            failed = True
            continue
        names = demangle(sorted({kernel.mangled for kernel in kernels}))
        if args.list:
            for kernel in sorted(kernels, key=lambda k: short_signature(names[k.mangled])):
                print(f"{kernel.registers:4d} registers {kernel.spilled:5d} spilled {kernel.stack:5d} stack  "
                      f"{kernel.arch}  {short_signature(names[kernel.mangled])}")
        problems = check(kernels, names, table)
        problems += [f"{short_signature(names.get(kernel, kernel))}: ptxas serializes wgmma: {line}" for kernel, line in slow]
        problems += check_loads_of_build(directory, kernels, names, loads)
        failed |= bool(problems)
        print(f"{directory}: {len(kernels)} kernels, {len(problems)} problems")
        for problem in problems:
            print(f"  {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
