#!/usr/bin/env python3
"""Reads a checkpoint using only the description in llmc/checkpoint/README.md.

    python3 scripts/read_checkpoint.py runs/first                      lists the newest checkpoint's contents
    python3 scripts/read_checkpoint.py runs/first/checkpoints/step_00001000 h.0.fc.weight   one tensor's numbers

It checks the sizes of all files, and with the Python package xxhash every byte.
"""

import argparse
import array
import json
import math
import os
import struct
import sys

from runs import start

try:
    import xxhash
except ImportError:
    xxhash = None


def newest(path):
    """`path` itself, or the newest checkpoint of the run in it."""
    parent = os.path.join(path, "checkpoints")
    names = [n for n in (os.listdir(parent) if os.path.isdir(parent) else [])
             if n[5:].isdigit() and os.path.exists(os.path.join(parent, n, "manifest.json"))]
    names.sort(key=lambda n: int(n[5:]))
    return os.path.join(parent, names[-1]) if names else path


class Checkpoint:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, "manifest.json"), "rb") as file:
            text = file.read()
        body = text[len(b'{"checksum": "') + 16 + len(b'",\n"manifest": '):-len(b"}\n")]
        self.check(body, text[len(b'{"checksum": "'):][:16].decode(), "manifest.json")
        self.manifest = json.loads(body)
        if (self.manifest["format"], self.manifest["version"]) != ("train_gpt checkpoint", 1):
            raise ValueError("another format, or another version of it")
        for file in self.manifest["files"]:
            with open(os.path.join(path, file["name"]), "rb") as data:
                if os.fstat(data.fileno()).st_size != file["bytes"]:
                    raise ValueError(f"{file['name']} has another size than it was written with")
                for sum_ in file["checksums"] if xxhash else []:
                    self.check(data.read(self.manifest["chunk_bytes"]), sum_, file["name"])

    @staticmethod
    def check(data, expected, name):
        if xxhash and xxhash.xxh3_64_hexdigest(data) != expected:
            raise ValueError(f"{name} is damaged")

    def read(self, tensor, part):
        """All elements of a part ("master", "m", "v") of a tensor, in the order of its shape."""
        values = {}
        for file in self.manifest["files"]:
            for s in (s for s in file["slices"] if (s["tensor"], s["part"]) == (tensor, part)):
                with open(os.path.join(self.path, file["name"]), "rb") as data:
                    (length,) = struct.unpack("<Q", data.read(8))
                    begin, end = json.loads(data.read(length))[f"{tensor}.{part}"]["data_offsets"]
                    data.seek(8 + length + begin)
                    stored = data.read(end - begin)
                    if s.get("dtype") == "BF16":  # BF16 is the upper half of an F32
                        halves = array.array("H", stored)
                        stored = array.array("I", [half << 16 for half in halves]).tobytes()
                    values[s["start"]] = array.array("f", stored)
        return [x for start in sorted(values) for x in values[start]]


def moments(values):
    return {"mean": sum(values) / len(values), "rms": math.sqrt(sum(v * v for v in values) / len(values)),
            "min": min(values), "max": max(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="RUN|CHECKPOINT")
    parser.add_argument("tensor", nargs="?", metavar="TENSOR", help="also read this tensor's numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    args = parser.parse_args()
    checkpoint = Checkpoint(newest(args.path))
    m = checkpoint.manifest
    tensors = [{key: t[key] for key in ("name", "shape", "parts")} for t in m["tensors"] if args.tensor in (None, t["name"])]
    if not tensors:
        parser.error(f"{checkpoint.path} has no tensor {args.tensor}")
    for t in tensors if args.tensor else []:
        t["numbers"] = {part: moments(checkpoint.read(t["name"], part)) for part in t["parts"]}
    if args.json:
        print(json.dumps({"path": checkpoint.path, **{key: m[key] for key in ("step", "run_id", "world", "zero")},
                          "tensors": tensors}))
        return
    print(f"{checkpoint.path}: step {m['step']} of run {m['run_id']}, written by {m['world']} rank{'s' * (m['world'] > 1)}, "
          f"--zero {m['zero']}")
    for t in tensors:
        print(f"  {t['name']} {tuple(t['shape'])}: {', '.join(t['parts'])}")
        for part, x in t.get("numbers", {}).items():
            print(f"    {part:8} mean {x['mean']:+.4e}  rms {x['rms']:.4e}  min {x['min']:+.4e}  max {x['max']:+.4e}")


if __name__ == "__main__":
    start(main)
