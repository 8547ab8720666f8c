"""Shared by the scripts in this folder: counted runs of the programs of `make virtual`, and the PTX inside them."""
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "data"))
from prepare.shard import token_array, write_shards  # noqa: E402  (data/ is only now on the path)


def write_tokens(path, count, ids):
    """Writes a shard of random tokens, always the same ones."""
    draw = random.Random(1)
    tokens = token_array(ids, (draw.randrange(ids) for _ in range(count)))
    write_shards([tokens], lambda _: str(path), tokenizer="random", vocab=ids, end_token=0)


def run_counted(command, path, **variables):
    """Runs a program that writes its counts to `path`, a new or empty file. Ends the script if the program fails."""
    command = [str(part) for part in command]
    environment = dict(os.environ, VIRTUAL_GPU_COUNTS=str(path), **variables)
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def read_kernels(path):
    """The lines about kernels; other lines are about products and copies."""
    return [line for line in read_lines(path) if "kernel" in line]


def ptx_of(program):
    """Returns {mangled name: [(line in the module, text)]} of every kernel in the program."""
    data = Path(program).read_bytes()
    kernels = {}
    for match in re.finditer(rb"\.version \d", data):
        begin = data.rindex(b"\0", 0, match.start()) + 1  # blank lines may come before it
        lines = data[begin:data.index(b"\0", begin)].decode().split("\n")
        name = None
        for number, line in enumerate(lines, 1):
            entry = re.match(r"\s*(?:\.visible |\.weak )?\.entry (\w+)", line)
            if entry:
                name = entry.group(1)
                kernels[name] = []
            elif name:
                kernels[name].append((number, line.strip()))
    return kernels
