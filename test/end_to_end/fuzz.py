#!/usr/bin/env python3
"""Feeds broken files to the trainer: shards, sidecars, weights and configurations with randomly changed bytes, and
pipes, directories and devices instead of files.

    TRAIN_GPT=build/cpu-native-address/train_gpt_cpu python3 test/end_to_end/fuzz.py --cases 200 --seed 1

Each case must end as a run, or as an error with its own exit code and message; never with a crash, a hang, or exit code
1.
"""

import argparse
import json
import os
import random
import sys

from trainer import FinishedRun, new_path, read_bytes as read, run, tiny_flags, write_shard

EXPECTED = {0, 2, 3, 4, 5, 6, 75}  # 6: changed weights may be too large for the numbers
INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]


def break_bytes(rng, data, head):
    """Changes `data` in one of the ways in which files break, mostly near the beginning, where headers are."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(min(len(data), head) if rng.random() < 0.8 else len(data))
        kind = rng.randrange(6)
        if kind == 0:
            data[at] = rng.choice(INTERESTING)
        elif kind == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[at:at + rng.choice([1, 2, 4, 1000])]
        elif kind == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 2, 4, 1000])))
        elif kind == 4:
            data[at:at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"99999999", b"-1      "])
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


def write(data, suffix=""):
    path = new_path("broken") + suffix
    with open(path, "wb") as file:
        file.write(data)
    return path


class Cases:
    def __init__(self):
        first = FinishedRun("--max-steps", "1")
        self.shard = read(write_shard([256] + [ord("a") + i % 26 for i in range(2000)]))
        self.sidecar = json.dumps(dict(tokenizer="bytes", vocab=257, max_token=256, documents=1, tokens=2001,
                                       entropy_floor=1.0)).encode()
        self.weights = first.read("model.safetensors")
        llmc = new_path() + ".bin"
        exported = run("export", "--from", first.directory, "--to", llmc, "--format", "llmc")
        assert exported.code == 0, exported.err
        self.llmc = read(llmc)
        self.config = run(*tiny_flags("--print-config")).out.encode()
        self.pipe = new_path("pipe")
        os.mkfifo(self.pipe)

    def flags(self, rng):
        kind = rng.choice(["shard", "sidecar", "weights", "llmc", "config", "no file"])
        if kind == "no file":
            path = new_path()
            os.symlink(rng.choice([self.pipe, "/dev/zero", "/dev/full", os.path.dirname(path)]), path)
            return kind, [rng.choice(["--train", "--val", "--init-from", "--config", "--model", "--tokenizer"]), path,
                          "--sample-every", "1"]
        if kind == "shard":
            return kind, ["--train", write(break_bytes(rng, self.shard, 12), ".bin"), "--vocab", "257"]
        if kind == "sidecar":
            path = write(self.shard, ".bin")
            with open(path + ".json", "wb") as file:
                file.write(break_bytes(rng, self.sidecar, len(self.sidecar)))
            return kind, ["--train", path, "--vocab", "300"]
        if kind == "weights":
            return kind, ["--init-from", write(break_bytes(rng, self.weights, 2000))]
        if kind == "llmc":
            return kind, ["--init-from", write(break_bytes(rng, self.llmc, 32), ".bin")]
        return kind, ["--config", write(break_bytes(rng, self.config, len(self.config)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cases, codes, failed = Cases(), {}, 0
    print(f"seed {args.seed}")
    for number in range(args.cases):
        rng = random.Random(f"{args.seed} {number}")
        kind, flags = cases.flags(rng)
        broken = next(f for f in flags if os.path.exists(f))
        # Last, so that a broken configuration can neither make the run long nor make it write anywhere.
        result = run(*tiny_flags(*flags, "--max-steps", "1", "--batch", "1", "--val-every", "0", "--max-minutes", "0.2"))
        codes[kind, result.code] = codes.get((kind, result.code), 0) + 1
        silent = result.code != 0 and not result.err.startswith("train_gpt: ")
        if result.code not in EXPECTED or silent:
            failed += 1
            print(f"case {number} ({kind}): exit code {result.code}, {broken}\n{result.err[-3000:]}")
        elif os.path.exists(broken):
            os.remove(broken)
    for (kind, code), count in sorted(codes.items()):
        print(f"{kind}: exit code {code}: {count}")
    print(f"{args.cases} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
