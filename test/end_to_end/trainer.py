"""Runs the real trainer for the end-to-end tests: a tiny corpus, tiny models, and the files of a run.

The program is ./train_gpt_cpu, or the value of the environment variable TRAIN_GPT. As a script it makes a short run,
for sanitizer builds, or checks how a run ended:

    python3 test/end_to_end/trainer.py --short-run build/cpu-native-address/train_gpt_cpu
    python3 test/end_to_end/trainer.py --near-floor out/demo/fp8 1.2
"""

import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT", os.path.join(ROOT, "train_gpt_cpu")))
# The program's exit codes (llmc/base/error.h).
FAILURE, FLAGS, DATA, CHECKPOINT, RESOURCES, NUMBERS, COMMUNICATION, STOPPED = 1, 2, 3, 4, 5, 6, 7, 75
VOCAB = 257
HEADER_BYTES = 1024

# 2 layers, 64 channels: fractions of a millisecond per token.
TINY_MODEL = ["--layers", "2", "--channels", "64", "--heads", "2", "--context", "64"]
TINY_BATCH = ["--batch", "4", "--seq", "64"]
# Threads wait by sleeping, since the tests may share the cores.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", **os.environ}
TIME_FIELDS = ("ms", "tokens_per_s", "time", "elapsed", "mfu", "watts", "joules_per_token", "sm_clock_mhz", "temperature_c",
               "slowest_rank", "slowest_ratio", "slowest_data_ms", "peers_ms")
# scripts/test.sh without --all tests less.
BRIEF = bool(os.environ.get("BRIEF"))
# Every --fp8-recipe, so that each is tested everywhere.
TENSOR_RECIPES = ("delayed", "current")[:1 if BRIEF else 2]  # one scale per tensor
# One scale per block; `block` needs channels in multiples of 128.
BLOCK_RECIPES = ("mxfp8", "block")[:1 if BRIEF else 2]
FP8_RECIPES = TENSOR_RECIPES + BLOCK_RECIPES


@functools.cache
def workspace():
    """A directory for this process, removed at its end."""
    path = tempfile.mkdtemp(prefix="train_gpt_test_")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


_counter = iter(range(10**9))


def new_path(name="run"):
    """A path in the workspace that does not exist yet."""
    return os.path.join(workspace(), f"{name}{next(_counter)}")


@dataclass
class Corpus:
    train: str
    val: str
    entropy_floor: float


@functools.cache
def corpus():
    """A small demo corpus, made once."""
    directory = new_path("corpus")
    subprocess.run([sys.executable, os.path.join(ROOT, "data", "demo_corpus.py"), "--out", directory, "--train-tokens",
                    "120000", "--val-tokens", "8000", "--seed", "5"], check=True, capture_output=True)
    val = os.path.join(directory, "demo_val.bin")
    return Corpus(os.path.join(directory, "demo_train.bin"), val, read_json(val + ".json")["entropy_floor"])


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def write_shard(tokens, *, magic=20240520, version=1, count=None, cut=0, extra=b"", wide=False):
    """Writes a shard without a sidecar, with the requested defects."""
    path = new_path("shard") + ".bin"
    count = len(tokens) if count is None else count
    body = struct.pack(f"<{len(tokens)}{'I' if wide else 'H'}", *tokens)
    body = body[:len(body) - cut] + extra
    with open(path, "wb") as file:
        file.write(struct.pack("<3i", magic, version, count).ljust(HEADER_BYTES, b"\0") + body)
    return path


def write_choices(examples):
    """Writes [(label, context, completions)] in llm.c's format, using only its definition."""
    path, stream, longest = new_path("choices") + ".bin", [], 0
    for index, (label, context, completions) in enumerate(examples):
        words = [65535, 0, index, label, len(completions), len(context), *context]
        for completion in completions:
            words += [len(completion), *completion]
        words[1] = 2 * len(words)
        longest = max(longest, words[1])
        stream += words
    with open(path, "wb") as file:
        file.write(struct.pack("<4i", 20240522, 1, len(examples), longest).ljust(1024, b"\0"))
        file.write(struct.pack(f"<{len(stream)}H", *stream))
    return path


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def samples(self):
        """Returns [(step, text)]; text with line breaks is cut at the first."""
        found = re.findall(r"^sample after step (\d+):\n(.*)$", self.out, re.MULTILINE)
        return [(int(step), text) for step, text in found]


def processes(pattern):
    """The ids of processes whose command, with spaces between its words, has the pattern in it, in order."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            command = read_bytes(f"/proc/{pid}/cmdline")
        except OSError:  # it has ended
            continue
        if re.search(pattern, command.decode(errors="replace").replace("\0", " ")):
            found.append(pid)
    return found


def kill_processes(pattern):
    """Kills them, except for those that end first."""
    for pid in processes(pattern):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def open_files(process):
    """The paths that the process has open now, while it opens and closes others."""
    paths = []
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            paths.append(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
        except FileNotFoundError:  # closed since
            pass
    return paths


@functools.cache
def disk_trouble():
    """The library disk_trouble.c, to preload."""
    library = os.path.join(workspace(), "disk_trouble.so")
    source = os.path.join(ROOT, "test", "end_to_end", "disk_trouble.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def run(*flags, env=None, limit=120):
    """Runs the program with exactly these flags, away from the repository."""
    return run_command([PROGRAM, *map(str, flags)], limit, {**ENVIRONMENT, **(env or {})})


def run_command(command, limit, env, **how):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, cwd=workspace(),
                          env=env, **how)
    return Result(done.returncode, done.stdout, done.stderr)


class Case(unittest.TestCase):
    """How runs must have ended."""

    def succeeds(self, result, code=0):
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def refused(self, result, code, *parts):
        """The message has all the parts."""
        self.succeeds(result, code)
        for part in parts:
            self.assertIn(part, result.err)
        return result

    def started(self, process):
        """Returns the process, which is killed at the end of the test."""
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, process, text):
        """Reads the output of a process up to a line with this text, and returns it."""
        read = ""
        for line in iter(process.stdout.readline, ""):
            read += line
            if text in line:
                return read
        self.fail(f"exit code {process.wait(timeout=60)} before a line with {text!r}")

    def ended(self, process, code=0, limit=60):
        """Waits until the process ends, which must be with this exit code."""
        out, err = process.communicate(timeout=limit)
        return self.succeeds(Result(process.returncode, out or "", err or ""), code)

    def same_state(self, state, expected):
        """Compares names, because unittest would take minutes to show how two long values differ."""
        self.assertEqual(state.keys(), expected.keys())
        self.assertEqual([name for name in state if state[name] != expected[name]], [])

    def same_run(self, run_, other, step=12):
        """For two of test_run_checkpoints.py's Directory."""
        self.assertEqual(run_.records(), other.records())
        self.assertEqual(run_.log(), other.log())
        self.same_state(run_.state(step), other.state(step))
        for name in ("run", "state"):
            a, b = run_.manifest(step)[name], other.manifest(step)[name]
            a.pop("files", None), b.pop("files", None)  # their lines contain times
            self.assertEqual(a, b)


def train_flags(flags):
    """The small corpus, unless the flags name other training data."""
    return [] if "--train" in flags else ["--train", corpus().train]


def tiny_flags(*flags):
    """A tiny run on the small corpus; later flags override earlier ones. FP8 means all layers of its two blocks."""
    layers = ["--fp8-layers", "all"] if "fp8" in flags else []
    return [*train_flags(flags), *TINY_MODEL, *TINY_BATCH, "--precision", "bf16", *layers, "--max-steps", "5", *flags]


def recipe_flags(recipe):
    """Flags for FP8 with this recipe and a tiny model that supports it."""
    size = ["--channels", "128", "--heads", "2"] if recipe in BLOCK_RECIPES else []
    return ["--precision", "fp8", "--fp8-recipe", recipe, *size]


def read_records(directory):
    """Returns the records in the metrics.jsonl of a run directory."""
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class FinishedRun:
    """A run that must succeed, and the files it left."""

    def __init__(self, *flags, code=0, program=run, **how):
        self.directory = new_path()
        self.result = program(*tiny_flags("--out", self.directory, *flags), **how)
        if self.result.code != code:
            raise AssertionError(f"exit code {self.result.code}, expected {code}\n{self.result.out}{self.result.err}")

    def resume(self, *flags, program=run, **how):
        return program(*tiny_flags("--out", self.directory, *flags, "--resume", "latest"), **how)

    def path(self, name):
        return os.path.join(self.directory, name)

    def read(self, name):
        return read_bytes(self.path(name))

    @functools.cached_property
    def records(self):
        return read_records(self.directory)

    @property
    def steps(self):
        return [r for r in self.records if "loss" in r]

    def check_memory(self, test):
        """Checks that every rank uses exactly the planned memory of each kind."""
        (memory,) = (r["memory"] for r in self.records if "memory" in r)
        for kind, sizes in memory.items():
            with test.subTest(kind=kind, **sizes):
                for peak in (sizes["least_peak"], sizes["most_peak"]):
                    test.assertLessEqual(abs(peak - sizes["planned"]), 0.02 * sizes["planned"])
        test.assertGreater(memory["optimizer"]["planned"] + memory["offloaded"]["planned"], 0)

    def scales_at(self, step):
        """Returns {tensor: scale} after that step; {} without FP8."""
        return {t["tensor"]: t["scale"] for r in self.records if "fp8" in r and r["step"] == step for t in r["fp8"]}

    @property
    def info(self):
        """The contents of run.json."""
        return read_json(self.path("run.json"))

    @property
    def losses(self):
        return [r["loss"] for r in self.steps]

    @property
    def validations(self):
        """Returns {step: loss}."""
        return {r["step"]: r["val_loss"] for r in self.records if "val_loss" in r}

    @property
    def timeless(self):
        """All records without fields that depend on the clock or on the alignment of memory."""
        return [{k: v for k, v in r.items() if k not in TIME_FIELDS} for r in self.records
                if "memory" not in r and "slow_rank" not in r]


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}, using only the format's definition."""
    data = read_bytes(path)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    body = data[8 + length:]
    tensors, end = {}, 0
    for name, entry in sorted((i for i in header.items() if i[0] != "__metadata__"),
                              key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        if begin != end:
            raise AssertionError(f"{name} begins at byte {begin}, expected {end}")
        end = stop
        tensors[name] = (entry["dtype"], entry["shape"], body[begin:stop])
    if end != len(body):
        raise AssertionError(f"{len(body)} bytes of tensors, the header describes {end}")
    return tensors


def llmc_tensors(model):
    """Returns [(Hugging Face's name, True if stored transposed, elements)] in the order of llm.c's model files."""
    C, L = model["channels"], model["layers"]
    blocks = [("ln_1.weight", C), ("ln_1.bias", C), ("attn.c_attn.weight", 3 * C * C), ("attn.c_attn.bias", 3 * C),
              ("attn.c_proj.weight", C * C), ("attn.c_proj.bias", C), ("ln_2.weight", C), ("ln_2.bias", C),
              ("mlp.c_fc.weight", 4 * C * C), ("mlp.c_fc.bias", 4 * C), ("mlp.c_proj.weight", 4 * C * C),
              ("mlp.c_proj.bias", C)]
    return [("wte.weight", False, model["vocab"] * C), ("wpe.weight", False, model["context"] * C),
            *((f"h.{layer}.{name}", ".c_" in name and name.endswith("weight"), count)
              for name, count in blocks for layer in range(L)),
            ("ln_f.weight", False, C), ("ln_f.bias", False, C)]


def write_llmc_model(model, values):
    """Writes llm.c's model file in FP32, using only the format's definition, and returns its path. `values` is
    {name: numbers as (out, in)}.
    """
    path = new_path() + ".bin"
    header = [20240326, 3, model["context"], model["vocab"], model["layers"], model["heads"], model["channels"]]
    padded = -(-model["vocab"] // 128) * 128
    with open(path, "wb") as file:
        file.write(struct.pack("<8i", *header, padded).ljust(1024, b"\0"))
        for name, _, count in llmc_tensors(model):
            assert len(values[name]) == count, name
            file.write(struct.pack(f"<{count}f", *values[name]))
            if name == "wte.weight":
                file.write(bytes(4 * (padded - model["vocab"]) * model["channels"]))
    return path


def write_as_llmc(model, tensors):
    """Writes the tensors of read_safetensors(), with Hugging Face's names and in FP32, as llm.c's model file."""
    values = {}
    for name, transposed, count in llmc_tensors(model):
        _, shape, data = tensors["transformer." + name]
        values[name] = struct.unpack(f"<{count}f", data)
        if transposed:  # (in, out) there, (out, in) here
            values[name] = [x for column in range(shape[1]) for x in values[name][column::shape[1]]]
    return write_llmc_model(model, values)


def short_run(program):
    """Uses every feature of a run as briefly as possible, for slow builds."""
    for precision in ("fp8", "bf16", "fp32"):
        directory = new_path()
        subprocess.run([os.path.abspath(program), "--train", corpus().train, "--val", corpus().val, "--out", directory,
                        "--layers", "2", "--channels", "64", "--heads", "2", "--context", "32", "--seq", "32",
                        "--batch", "2", "--total-batch", "128", "--max-steps", "3", "--val-every", "2",
                        "--val-batches", "1",
                        "--sample-every", "3", "--sample-tokens", "4", "--precision", precision], check=True)
        for command in (["eval", "--val", corpus().val, "-m", "1", "-b", "2"],
                        ["sample", "--tokenizer", "bytes", "--prompt", "a", "--tokens", "4"]):
            subprocess.run([os.path.abspath(program), *command, "--from", directory, "--precision", precision],
                           check=True, stdin=subprocess.DEVNULL)
    print("all runs finished")


def near_floor(directory, factor):
    """True if a run's last validation loss is below its corpus's entropy floor times `factor`, and not below the floor
    itself by more than chance.
    """
    (val,) = read_json(os.path.join(directory, "run.json"))["config"]["val"]
    floor = read_json(os.path.join(ROOT, val + ".json"))["entropy_floor"]
    last = [record for record in read_records(directory) if "val_loss" in record][-1]["val_loss"]
    print(f"validation loss {last:.4f}, floor {floor:.4f}: {last / floor:.3f} times, {factor} are allowed")
    return 0.97 < last / floor < factor


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--short-run":
        short_run(sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "--near-floor":
        sys.exit(not near_floor(sys.argv[2], float(sys.argv[3])))
    else:
        sys.exit(__doc__)
