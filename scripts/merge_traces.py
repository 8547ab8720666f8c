#!/usr/bin/env python3
"""Merges the traces of all ranks (train_gpt --profile-steps) into one file with one time axis.

    scripts/merge_traces.py runs/first -o trace.json       # the files trace-rank*.json in there
"""

import argparse
import glob
import json
import os
import sys


def merged(traces):
    """Merges traces. Each rank has its own process id, and the ranks agreed on a base time when they began."""
    bases = {trace["baseTimeNanoseconds"] for trace in traces}
    if len(bases) != 1:
        raise ValueError("the traces are of different profiles: their baseTimeNanoseconds differ")
    return {**traces[0], "traceEvents": [event for trace in traces for event in trace["traceEvents"]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's directory")
    parser.add_argument("-o", "--out", required=True, help="the file to write")
    arguments = parser.parse_args()
    files = sorted(glob.glob(os.path.join(glob.escape(arguments.run), "trace-rank*.json")))
    missing = [rank for rank in range(len(files)) if not any(path.endswith(f"trace-rank{rank}.json") for path in files)]
    if missing:
        sys.exit(f"merge_traces: {arguments.run} has no trace-rank{missing[0]}.json; copy the traces of all ranks there")
    if not files:
        sys.exit(f"merge_traces: no trace-rank*.json in {arguments.run}; train with --profile-steps")
    try:
        traces = []
        for path in files:
            with open(path, encoding="utf-8") as file:
                traces.append(json.load(file))
        result = merged(traces)
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"merge_traces: {arguments.run}: {error}")
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(result, file)
    print(f"{len(files)} ranks in {arguments.out}")


if __name__ == "__main__":
    main()
