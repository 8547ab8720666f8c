#!/usr/bin/env python3
"""Lists the lines of the kernels' PTX that runs on the virtual GPU have not executed.

    VIRTUAL_GPU_COUNTS=counts.json build/virtual/test_gpu       # several runs may append to one file
    dev/virtual_gpu/coverage.py counts.json [--all]             # kernels with lines that never ran, worst first
    dev/virtual_gpu/coverage.py counts.json --kernel NAME       # the lines themselves
"""
import argparse

from counted import ROOT, ptx_of, read_kernels


def read(path):
    """Returns {mangled name: (readable name, lines of PTX, lines that no run executed)}."""
    kernels = {}
    for k in read_kernels(path):
        missing = set(k["ptx_lines_not_run"])
        if k["name"] in kernels:
            missing &= kernels[k["name"]][2]
        kernels[k["name"]] = (k["kernel"], k["ptx_lines"], missing)
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("counts")
    parser.add_argument("--program", default=ROOT / "build/virtual/test_gpu")
    parser.add_argument("--all", action="store_true", help="kernels whose lines all ran, too")
    parser.add_argument("--kernel", help="part of a name: prints its lines that never ran")
    options = parser.parse_args()
    kernels = read(options.counts)
    ptx = ptx_of(options.program)
    never = sorted(set(ptx) - set(kernels))
    if options.kernel:
        for name, (readable, _, missing) in kernels.items():
            if options.kernel in readable:
                print(readable)
                print("\n".join(f"{n:7} {text}" for n, text in ptx[name] if n in missing))
        return
    for readable, lines, missing in sorted(kernels.values(), key=lambda k: -len(k[2])):
        if missing or options.all:
            print(f"{len(missing):6} of {lines:6}  {readable[:140]}")
    for name in never:
        print(f"   never run  {name[:140]}")
    total, missing = sum(k[1] for k in kernels.values()), sum(len(k[2]) for k in kernels.values())
    print(f"{len(kernels)} of {len(ptx)} kernels have run, {total - missing} of their {total} lines "
          f"({100 * (1 - missing / total):.1f} %)")


if __name__ == "__main__":
    main()
