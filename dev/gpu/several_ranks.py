"""Part 7: two ranks that share the GPU, over TCP, compared with one rank on the same micro-batches. With gradients
summed in rank order they must agree to the bit, in every stage of --zero.
"""

import concurrent.futures
import os
import socket

from host_and_gpu import RECIPES, fingerprint, model_flags, steps_of
from tools import Part, counts_of_doctest, read_records

RANKS = 2
SHARDED = ("fp32", "bf16", "delayed", "current")  # the RECIPES that every sharding stage supports


def run_ranks(session, command, limit, log):
    """Starts ranks as torchrun does, and returns how each of them ended."""
    with socket.socket() as chosen:
        chosen.bind(("localhost", 0))
        port = chosen.getsockname()[1]
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(lambda rank: session.run(command, limit, {**common, "RANK": str(rank)}, f"{log}_{rank}"),
                             range(RANKS)))


def run_tests(session, name, flags):
    done = run_ranks(session, [session.program("test_ranks"), "--comm", "tcp", *flags], 240, "ranks_" + name)
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


def measure_stages(session, shard, name):
    model = model_flags(session.dry)
    batch, length = (model[model.index(flag) + 1] for flag in ("--batch", "--seq"))
    flags = ["--train", shard, *model, *RECIPES[name][0], "--total-batch", 2 * RANKS * batch * length, "--max-steps",
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
        done = run_ranks(session, [program, *flags, "--comm", "tcp", "--zero", stage, "--out", place, "--overwrite"],
                         120, f"ranks_{name}_{stage}")
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
        part.item(name, lambda name=name: measure_stages(session, shard, name), seconds)
    items = part.result["items"].values()
    part.finish(passed=len(items) == len(SHARDED) + 2 and all(item.get("passed") for item in items))
