#!/usr/bin/env python3
"""Runs every check and measurement of this project that needs a GPU, in parts that can be stopped and continued.

    dev/gpu/pack.sh out/gpu_pack DATA          on a machine with a compiler: programs, the host's runs, data
    dev/gpu/session.py --pack out/gpu_pack --out out/gpu --parts 0,1 --minutes 8        on the machine with a GPU

Parts: 0 the machine, 1 matmuls and ceilings, 2 tests and compute-sanitizer, 3 the host device compared with the GPU, 4
GPT-2 124M in BF16 and FP8, 5 tokens per second, 6 time by family of kernels, 7 two ranks that share the GPU, 8 PyTorch
and llm.c on the same card. Each part writes OUT/part*.json, which is complete after every item; finished items are not
measured again. At the end everything is in OUT/results.tar.gz: put it into the pack, and a session on another machine
of the same kind continues from it. See dev/gpu/README.md.

--dry runs every part on the host device in tiny sizes: a test of this script, in seconds.
"""

import argparse
import collections
import concurrent.futures
import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from host_and_gpu import part3
from kernel_families import part6
from peers import part8
from several_ranks import part7
from tools import (KILLED, ROOT, STOPPED, Part, Session, check_card_command, counts_of_doctest, find_library, find_tool,
                   found_by_check_card, gpu_state, library_directories, read_json)
from training import part4, part5

# ---- part 0 --------------------------------------------------------------------------------------------------------


# Predicted times: under 20 s for d12 and 60 s for d48.
CARD_CHECKS = [(model, precision) for model in ("d12", "d48") for precision in ("bf16", "fp8")]


def check_card(session, model, precision):
    """Runs check_card. Keeps its results next to the session's."""
    done = session.run(check_card_command(session, model, precision), 120, {"XDG_CACHE_HOME": session.path("cache")})
    wrong = found_by_check_card(done.output)
    for line in wrong:
        print(f"  {line}", flush=True)
    return {"done": done.code in (0, 1), "code": done.code, "wrong": wrong, "output": done.output}


def part0(session):
    part = Part(session, 0, "machine")
    directories = library_directories()
    part.item("machine", lambda: {
        "gpu": gpu_state() if not session.dry else {},
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "missing_libraries": session.missing,
        "ld_library_path": session.env.get("LD_LIBRARY_PATH", ""),
        "libraries": {name: find_library(name, directories) for name in ("libcublasLt.so", "libnccl.so", "libcupti.so",
                                                                         "libcudart.so")},
        "tools": {name: find_tool(name) for name in ("nvcc", "ncu", "nsys", "compute-sanitizer", "g++", "cuobjdump")},
    })

    def programs():
        version = session.run([session.program("train_gpt"), "--version"], 60)
        plan = session.run([session.program("train_gpt"), "-e", "d12", "-b", 64, "--dry-run"], 60)
        return {"done": version.code == 0 and plan.code == 0, "version": version.output.strip(), "plan": plan.output}

    part.item("programs", programs)
    for model, precision in CARD_CHECKS:
        found = part.item(f"check_card {model} {precision}", lambda: check_card(session, model, precision),
                          0 if session.dry else 30)
        if found and found["code"] == KILLED:
            print("  the last item named in its output hangs; the other checks would hang, too, and are left out")
            break
    if session.missing:
        print(f"  missing: {session.missing}; put their folder into LD_LIBRARY_PATH")
    part.finish()


# ---- part 1 --------------------------------------------------------------------------------------------------------


def summary_of_probe(results):
    """The summary of the probe's file for part1: counts, failures, and the speed of the products that training uses."""
    records = results["records"]
    counts = collections.Counter("failed" if r["supported"] is None else "not supported" if not r["supported"]
                                 else "right" if r["right"] else "wrong" for r in records)
    used = [r for r in records if r["used"]]
    bad = [r for r in records if r["supported"] is None or (r["supported"] and not (r["right"] and r["repeatable"]))]
    speed = {r["case"]: {"us": r["us"], "tflops": r["tflops"], "error": r["error"]} for r in used if r["supported"]}
    refused = collections.Counter(
        " ".join(map(str, (r["product"], r["types"], r["epilogue"], f"beta={r['beta']}", r["mode"], r["scaling"],
                           f"N%128={r['N'] % 128}", r["status"]))) for r in records if r["supported"] is False)
    return {"records": len(records), "counts": counts, "used": len(used),
            "used_not_supported": [r["case"] for r in used if not r["supported"]],
            "not_same_as_cublaslt": [r["case"] for r in records if r.get("same_as_lt") is False],
            "bad": bad[:50], "refused": dict(refused.most_common()), "speed": speed,
            "ceilings": results.get("ceilings"), "cublaslt": results["cublaslt"]}


def part1(session):
    part = Part(session, 1, "products")
    file = session.path("probe.json")
    filter_ = ["--shapes", "tiny", "--filter", "N=48"] if session.dry else []

    def probe():
        code, output = STOPPED, ""
        for _ in range(8):  # a matmul that hangs or crashes ends the program, and the next run skips it
            seconds = max(5, session.time_left() - 20)
            done = session.run([session.program("probe"), "--out", file, *filter_, "--seconds", seconds],
                               session.time_left() - 5, log="probe")
            code, output = done.code, done.tail()
            print(f"  {output.strip().splitlines()[-1] if output.strip() else ''}", flush=True)
            if code in (0, STOPPED) or session.time_left() < 30:
                break
        if not os.path.exists(file):
            return {"done": False, "code": code, "output": output}
        return {"done": code == 0, "code": code, **summary_of_probe(read_json(file))}

    part.item("probe", probe, 0 if session.dry else 40)
    part.finish()


# ---- part 2 --------------------------------------------------------------------------------------------------------

# Folders in order; source files that do not use a GPU come last. test_gpu leaves out sources that know no device
# (WITHOUT_DEVICE in dev/build.mk), so only a few files of run/ are in it.
FOLDERS = ("device", "kernels", "linear", "fp8", "comm", "model", "optim", "train", "run", "shard")
SANITIZED = {
    "memcheck": ["test/kernels/*", "test/device/*", "test/optim/*", "test/fp8/*"],
    "racecheck": [f"test/kernels/{name}*" for name in ("attention", "norms", "quantize", "classifier", "activations",
                                                       "embedding", "sums")],
    "synccheck": ["test/kernels/*"],
    "initcheck": ["test/kernels/norms.cpp", "test/kernels/activations.cpp", "test/kernels/quantize.cpp"],
}


def test_files(dry):
    """Test sources by folder, those with device code first."""
    found = []
    for folder in FOLDERS:
        place = os.path.join(ROOT, "test", folder)
        if os.path.isdir(place):
            files = [name for name in sorted(os.listdir(place)) if name.endswith((".cu", ".cpp"))]
            found += [f"test/{folder}/{name}" for name in files]
    found.sort(key=lambda path: path.endswith(".cpp"))
    return [path for path in found if re.search("launch.cu|vector.cu", path)] if dry else found


def run_tests(session, path):
    done = session.run([session.program("test_gpu"), "--no-colors", f"--source-file=*{path}"], 180,
                       log="test_" + re.sub(r"\W", "_", path))
    result = {"code": done.code, **counts_of_doctest(done.output)}
    if done.code != 0:
        result["failures"] = sorted(set(re.findall(r"^TEST CASE:\s+(.*)$", done.output, re.MULTILINE)))
        result["output"] = done.tail(3000)
    return result


def sanitize(session, tool):
    program = find_tool("compute-sanitizer")
    if not program:
        return {"skipped": "no compute-sanitizer"}
    files = ",".join("*" + pattern for pattern in SANITIZED[tool])
    command = [program, "--tool", tool, "--error-exitcode", 9, "--print-limit", 20, session.program("test_gpu")]
    done = session.run([*command, "--no-colors", f"--source-file={files}"], 240, log=tool)
    errors = re.findall(r"ERROR SUMMARY: (.*)|RACECHECK SUMMARY: (.*)", done.output)
    return {"done": done.code in (0, 1, 9), "code": done.code, "summary": [a or b for a, b in errors],
            **counts_of_doctest(done.output), **({} if done.code == 0 else {"output": done.tail(3000)})}


def part2(session):
    part = Part(session, 2, "tests")
    with concurrent.futures.ThreadPoolExecutor(session.jobs) as pool:
        least = 0 if session.dry else 15
        list(pool.map(lambda path: part.item(path, lambda: run_tests(session, path), least), test_files(session.dry)))
    for tool in () if session.dry else SANITIZED:
        part.item(tool, lambda tool=tool: sanitize(session, tool), 60)
    tests = [item for name, item in part.result["items"].items() if name.startswith("test/")]
    part.finish(passed=sum(item.get("passed", 0) for item in tests),
                failed=sum(item.get("failed", 0) for item in tests),
                crashed=[name for name, item in part.result["items"].items()
                         if name.startswith("test/") and item["code"] not in (0, 1)])


PARTS = {0: ("the machine", part0), 1: ("matmuls and ceilings", part1), 2: ("tests", part2),
         3: ("the host device compared with the GPU", part3), 4: ("GPT-2 124M in BF16 and FP8", part4),
         5: ("tokens per second", part5), 6: ("time by family of kernels", part6),
         7: ("two ranks that share the GPU", part7),
         8: ("PyTorch and llm.c on this card", part8)}


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", required=True, metavar="DIR", help="what dev/gpu/pack.sh made")
    parser.add_argument("--data", metavar="DIR", help="*train*.bin and *val*.bin, or .bin.xz; default: PACK/data")
    parser.add_argument("--out", default="out/gpu", metavar="DIR")
    parser.add_argument("--parts", default="0,1,2,3,4,5,6,7,8", metavar="LIST")
    parser.add_argument("--minutes", type=float, default=8, metavar="M", help="for all parts of this call together")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="tests of part 2 that share the GPU")
    parser.add_argument("--dry", action="store_true", help="on the host device, in seconds")
    args = parser.parse_args(argv)
    try:
        args.parts = [int(number) for number in args.parts.split(",")]
    except ValueError:
        parser.error(f"--parts {args.parts}: numbers with commas between them")
    if set(args.parts) - set(PARTS):
        parser.error(f"--parts: from 0 to {max(PARTS)}")
    return args


def main(argv=None):
    args = parse(argv)
    data = args.data or os.path.join(args.pack, "data")
    session = Session(args.pack, data, args.out, args.dry, args.minutes, args.jobs)
    if not args.dry and not session.gpu:
        print("no GPU answers nvidia-smi; --dry runs everything on the host device", file=sys.stderr)
        return 5
    session.continue_from_archive()
    for number in args.parts:
        title, part = PARTS[number]
        print(f"part {number}: {title} ({session.time_left():.0f} s left)", flush=True)
        start = time.monotonic()
        part(session)
        print(f"  {time.monotonic() - start:.1f} s", flush=True)
        session.archive()
    print(f"results: {session.archive()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
