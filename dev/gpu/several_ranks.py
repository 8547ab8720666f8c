#!/usr/bin/env python3
"""Tests and times training on several GPUs of one machine, and prints a table to send back.

    make train_gpt check_card && python3 dev/gpu/several_ranks.py [--ranks 8] [--out out/several_ranks]

About ten minutes: check_card on every GPU; 20 steps in every stage of --zero, which must have the bits of one rank; a
rank that is killed, after which the others must end; and tokens per second of GPT-2 124M and 1558M on one GPU and on all
of them, with the rates of their links. Results are in OUT/part9_several_gpus.json; finished items are not run again.
--dry does it in seconds with ranks on the CPU (make train_gpt_cpu check_card_cpu), and tests only this script.

Part 7 of session.py is the same comparison with two ranks that share one GPU, over TCP.
"""

import argparse
import concurrent.futures
import glob
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time

from host_and_gpu import RECIPES, fingerprint, model_flags, steps_of
from tools import (ROOT, STOPPED, Part, Session, check_card_command, counts_of_doctest, found_by_check_card, nvidia_smi,
                   read_json, read_records)
from training import PRECISIONS, SIZES, STEP, long_rate

sys.path.insert(0, os.path.join(ROOT, "data"))
from prepare.shard import token_array, write_shards  # noqa: E402

SHARDED = ("fp32", "bf16", "delayed", "current")  # the RECIPES that every sharding stage supports
SPEEDS = (("124M", "delayed"), ("1558M", "delayed"), ("1558M", "bf16"))
OVER_TCP = ["--comm", "tcp"]


def environments(ranks):
    """The variables of each rank, as torchrun sets them."""
    with socket.socket() as chosen:
        chosen.bind(("localhost", 0))
        port = chosen.getsockname()[1]
    return [{"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
             "RANK": str(rank)} for rank in range(ranks)]


def run_ranks(session, ranks, command, limit, log):
    """Starts ranks as torchrun does, and returns how each of them ended."""
    with concurrent.futures.ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda env: session.run(command, limit, env, f"{log}_{env['RANK']}"), environments(ranks)))


def run_tests(session, name, flags):
    done = run_ranks(session, 2, [session.program("test_ranks"), *OVER_TCP, *flags], 240, "ranks_" + name)
    codes = [rank.code for rank in done]
    return {"codes": codes, "passed": not any(codes), "tests": counts_of_doctest(done[0].output),
            **({"output": done[0].tail(3000)} if any(codes) else {})}


def same_run(place, other):
    """Lists what differs in the bits of two runs: losses, norms, FP8 scales, weights."""
    ours, theirs = steps_of(place), steps_of(other)
    scales = [[record["fp8"] for record in read_records(run) if "fp8" in record] for run in (place, other)]
    same = {
        "losses": [r["loss"] for r in ours] == [r["loss"] for r in theirs],
        "norms": [r["norm"] for r in ours] == [r["norm"] for r in theirs],
        "scales": [[(t["tensor"], t["scale"]) for t in record] for record in scales[0]] ==
                  [[(t["tensor"], t["scale"]) for t in record] for record in scales[1]],
        "weights": fingerprint(place) == fingerprint(other),
    }
    return [name for name, is_same in same.items() if not is_same]


def measure_stages(session, shard, name, ranks, comm):
    """20 steps on one rank and in every stage on several: the same micro-batches, gradients summed in rank order."""
    model = model_flags(session.dry)
    batch, length = (model[model.index(flag) + 1] for flag in ("--batch", "--seq"))
    flags = ["--train", shard, *model, *RECIPES[name][0], "--total-batch", 2 * ranks * batch * length, "--max-steps",
             3 if session.dry else 20, "--warmup", 1, "--lr", 3e-4, "--val-every", 0, "--reduce-order", "rank",
             "--fp8-log-every", 1]
    one = session.path("ranks", f"{name}_one")
    program = session.program("train_gpt")
    alone = session.run([program, *flags, "--out", one, "--overwrite"], 120, {"OMP_NUM_THREADS": "1"}, f"ranks_{name}")
    if alone.code != 0:
        return {"done": False, "passed": False, "output": alone.tail()}
    result = {"steps": len(steps_of(one)), "different": {}}
    for stage in range(4):
        place = session.path("ranks", f"{name}_{stage}")
        done = run_ranks(session, ranks, [program, *flags, *comm, "--zero", stage, "--out", place, "--overwrite"], 120, f"ranks_{name}_{stage}")
        failed = [rank for rank in done if rank.code != 0]
        result["different"][str(stage)] = [failed[0].tail()] if failed else same_run(place, one)
        result[f"ms_{stage}"] = None if failed else steps_of(place)[-1]["ms"]
    return {**result, "passed": not any(result["different"].values())}


def part7(session):
    part = Part(session, 7, "ranks")
    seconds = 0 if session.dry else 30
    few = ["--test-case=*broadcast*"] if session.dry else []
    part.item("collectives", lambda: run_tests(session, "collectives", few), seconds)
    few = ["--test-case=sharded training in FP32*"] if session.dry else []
    part.item("training", lambda: run_tests(session, "training", ["--training", "--order", "rank", *few]), seconds)
    shard = os.path.join(session.pack, "references", "demo_train.bin")
    for name in SHARDED:
        part.item(name, lambda name=name: measure_stages(session, shard, name, 2, OVER_TCP), seconds)
    items = part.result["items"].values()
    part.finish(passed=len(items) == len(SHARDED) + 2 and all(item.get("passed") for item in items))


# ---- several GPUs --------------------------------------------------------------------------------------------------

NO_FILES = ["--val-every", 0, "--checkpoint-every", 0, "--checkpoint-minutes", 0]


def output_of(program, *flags):
    return subprocess.run([program, *flags], capture_output=True, text=True, check=False).stdout if program else ""


def random_shard(session):
    """A shard of random tokens: speed and equal bits do not depend on the text."""
    path, vocab, count = session.path("data", "random_train.bin"), 256 if session.dry else 50257, 4 << 20
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draw = random.Random(1)
        tokens = token_array(vocab, (draw.randrange(vocab) for _ in range(1 << 16)))
        write_shards(itertools.repeat(tokens, count >> 16), lambda _: path, tokenizer="random", vocab=vocab, end_token=0)
    return path


def check_cards(session, ranks, comm):
    done = run_ranks(session, ranks, [*check_card_command(session, "d12", "fp8"), *comm], 300, "check_card")
    wrong = found_by_check_card(done[0].output)
    codes = [rank.code for rank in done]
    return {"codes": codes, "wrong": wrong, "passed": not any(codes), "done": not set(codes) - {0, 1},
            "output": done[0].tail(3000)}


def lose_a_rank(session, shard, ranks, comm):
    """Kills the last rank in the middle of training. The others must end by themselves, with exit code 7."""
    place = session.path("ranks", "lost")
    command = [session.program("train_gpt"), "--train", shard, *model_flags(session.dry), *NO_FILES, *comm, "--max-steps",
               10_000_000, "--timeout-step", 20, "--out", place, "--overwrite"]
    processes = [subprocess.Popen([str(part) for part in command], env={**os.environ, **session.env, **env}, cwd=ROOT,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for env in environments(ranks)]
    try:
        wait_until(lambda: os.path.exists(os.path.join(place, "metrics.jsonl")) and len(steps_of(place)) >= 3, 120)
        processes[-1].send_signal(signal.SIGKILL)
        start = time.monotonic()
        errors = [process.communicate(timeout=90)[1] for process in processes[:-1]]
    finally:
        for process in processes:
            process.kill()
        processes[-1].communicate()
    codes = [process.returncode for process in processes[:-1]]
    return {"codes": codes, "after_seconds": round(time.monotonic() - start, 1), "passed": set(codes) == {7},
            "errors": [error[-500:] for error in errors]}


def wait_until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"nothing happened for {seconds} s")
        time.sleep(0.05)


def speed(session, shard, size, precision, ranks, stage, comm):
    """Half a minute at 524,288 tokens a step."""
    model, batch = SIZES[size]
    shape = ["-e", model, "-b", batch, "-t", 1024, "-d", STEP, "--max-steps", 100_000, "--max-minutes", 0.5]
    if session.dry:
        shape = [*model_flags(True), "--max-steps", 4]
    place = session.path("speed", f"{size}_{precision}_{ranks}_{stage}")
    command = [session.program("train_gpt"), "--train", shard, *shape, *PRECISIONS[precision], *NO_FILES, *comm, "--zero",
               stage, "--out", place, "--overwrite"]
    done = run_ranks(session, ranks, command, 240, f"speed_{size}_{precision}_{ranks}_{stage}")
    if set(rank.code for rank in done) - {0, STOPPED}:
        return {"done": False, "codes": [rank.code for rank in done], "output": done[0].tail()}
    records = steps_of(place)
    for path in glob.glob(os.path.join(place, "*.safetensors")):
        os.remove(path)
    outside = [record["memory_outside"] for record in read_records(place) if "memory_outside" in record]
    tuning = read_json(os.path.join(place, "run.json")).get("tuning") or {}
    return {"ranks": ranks, "stage": stage, **long_rate(batch, [record["ms"] for record in records], records[-1]["tokens"]),
            "memory_outside": max(outside, default=None), "gb_per_s": tuning.get("gb_per_s", {}),
            "slowest_ratio": max((record.get("slowest_ratio", 1) for record in records), default=1)}


def print_table(part):
    items = part.result["items"]
    print(f"\n{part.result['ranks']} x {part.result['card']}, driver {part.result['driver']}, {part.result['date']}")
    for name, item in items.items():
        if "passed" in item:
            print(f"  {name:40} {'right' if item['passed'] else 'WRONG'}")
    alone = {}
    print(f"  {'':24} {'GPUs':>5} {'-z':>3} {'tokens/s':>11} {'a GPU, of one alone':>20}")
    for name, item in items.items():
        if "tokens_per_s" not in item:
            continue
        what = " ".join(name.split()[:2])
        each = item["tokens_per_s"] / item["ranks"]
        share = each / alone.setdefault(what, each)
        print(f"  {what:24} {item['ranks']:5} {item['stage']:3} {item['tokens_per_s']:11,} {100 * share:18.1f} %")
        links = {name: rate for name, rate in item["gb_per_s"].items() if name != "copy"}
    print("  links: " + (", ".join(f"{name} {rate:.0f} GB/s" for name, rate in links.items()) or "not measured"))


def several_gpus(session, ranks, comm):
    part = Part(session, 9, "several_gpus")
    part.result["ranks"] = ranks
    shard = random_shard(session)
    part.item("machine", lambda: {"gpus": output_of(nvidia_smi(), "-L"), "links": output_of(nvidia_smi(), "topo", "-m"),
                                  "versions": output_of(session.program("train_gpt"), "--version")})
    part.item("check_card", lambda: check_cards(session, ranks, comm))
    for name in SHARDED[2:3] if session.dry else SHARDED:
        part.item(f"{name}: bits of one rank", lambda: measure_stages(session, shard, name, ranks, comm))
    part.item("a rank is killed", lambda: lose_a_rank(session, shard, ranks, comm))
    for size, precision in SPEEDS[:1] if session.dry else SPEEDS:
        for count, stages in ((1, (1,)), (ranks, (1, 2, 3))):
            for stage in stages:
                part.item(f"{size} {precision} on {count}, -z {stage}",
                          lambda: speed(session, shard, size, precision, count, stage, comm))
    wrong = [name for name, item in part.result["items"].items() if not item.get("passed", True) or not item["done"]]
    part.finish(passed=not wrong)
    print_table(part)
    return wrong


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, metavar="N", help="default: all GPUs; 2 with --dry")
    parser.add_argument("--out", default="out/several_ranks", metavar="DIR")
    parser.add_argument("--programs", default=ROOT, metavar="DIR", help="where train_gpt and check_card are; default: "
                                                                        "the checkout")
    parser.add_argument("--dry", action="store_true", help="ranks on the CPU")
    args = parser.parse_args(argv)
    ranks = args.ranks or (2 if args.dry else output_of(nvidia_smi(), "-L").count("GPU "))
    if ranks < 2:
        parser.error("several GPUs are needed, and nvidia-smi -L names fewer than two; --dry tests this script on a CPU")
    session = Session(args.programs, ROOT, args.out, args.dry, minutes=60)
    missing = [name for name in ("train_gpt", "check_card") if not os.path.exists(session.program(name))]
    if missing:
        parser.error(f"{session.program(missing[0])} is missing: make train_gpt check_card, with _cpu for --dry")
    wrong = several_gpus(session, ranks, OVER_TCP if args.dry else [])
    print(f"results: {session.archive()}" + (f"; WRONG: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
