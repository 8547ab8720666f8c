"""A library for the scripts that draw and compare runs. It reads a run's metrics.jsonl and run.json, and an estimate's
scaling.json. Users call report.py, compare_runs.py, plot_run.py, steps_to_loss.py or plot_scaling.py.
"""

import bisect
import contextlib
import fcntl
import functools
import glob
import importlib.util
import json
import math
import os
import re
import struct
import sys
from dataclasses import dataclass, field


SCRIPTS = os.path.dirname(os.path.abspath(__file__))
PUBLISHED = os.path.join(SCRIPTS, "published")


class RunError(Exception):
    """A run cannot be read; the message says why."""


def continue_in_venv(package, needed=False):
    """Restarts this script with the Python of .venv, where setup.sh installs packages, if this Python lacks `package`.
    If there is no .venv, the script continues, or ends if it needs the package.
    """
    if importlib.util.find_spec(package):
        return
    python = os.path.join(os.path.dirname(SCRIPTS), ".venv", "bin", "python")
    if sys.orig_argv[0] != python and os.access(python, os.X_OK):
        os.execv(python, [python, *sys.orig_argv[1:]])
    if needed:
        sys.exit(f"{os.path.basename(sys.argv[0])} needs the Python package {package}: pip install {package}, or "
                 "scripts/setup.sh")


def start(main):
    """Runs a script's main() and ends with its exit code. Ctrl-C and a closed pipe (`| head`) end it without a traceback."""
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"{os.path.basename(sys.argv[0])}: stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes stdout when it ends
        code = 141
    sys.exit(code)


def printable(text):
    """The text without characters that could disturb a terminal, such as escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


# ---- the shape of records: a file may be damaged, or written by another program --------------------------------------

def is_number(value):
    """True for a number, and for null, which stands for a non-finite number."""
    return value is None or is_count(value) or isinstance(value, float) and abs(value) < 1e300


def is_amount(value):
    return is_number(value) and not (value and value < 0)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_step(value):
    return is_count(value) and value > 0


def is_name(value):
    return isinstance(value, str) and value.isprintable()


def is_text(value):
    return isinstance(value, str)


def is_slow_rank(value):
    return value is None or fits(value, {"where": is_name})


# The shapes of the fields that the scripts use. A shape is a function that returns True for valid values, [shape of
# each element], or {key: shape}, where "*" stands for any key.
TRAINING = {"step": is_step, "loss": is_number}
RECORD = {"tokens": is_count, "source_tokens": {"*": is_count}, "lr": is_number, "norm": is_number, "ms": is_number,
          "tokens_per_s": is_number, "skipped": is_count, "loss_scale": is_number,
          "mfu": is_number, "watts": is_number, "joules_per_token": is_number, "sm_clock_mhz": is_number,
          "temperature_c": is_number,
          "products": {"*": is_count}, "nonfinite": {"*": is_name}, "sample": is_text, "val_precision": is_name,
          "fp8": [{"tensor": is_name, "amax": is_amount, "scale": is_amount, "elements": is_count, "saturated": is_count,
                   "underflowed": is_count, "nonfinite": is_count}],
          "signals": [{"tensor": is_name}],
          "fp8_fallback": [{"layer": is_name, "tensor": is_name, "reason": is_name}],
          "memory": {"*": {"planned": is_count, "least_peak": is_count, "most_peak": is_count}},
          "memory_outside": {"*": is_count}, "slow_rank": is_slow_rank}
MODEL = {"layers": is_count, "channels": is_count, "heads": is_count, "parameters": is_count}


def with_ratios(signals):
    """A record's norms by tensor, with the ratio of update to weight where there is one."""
    ratios = []
    for tensor in signals:
        weight, update = tensor.get("weight"), tensor.get("update")
        known = isinstance(weight, (int, float)) and isinstance(update, (int, float)) and weight > 0
        ratios.append(tensor | ({"update_ratio": update / weight} if known else {}))
    return ratios


def fits(value, shape):
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(inner, shape[0]) for inner in value)
    if isinstance(shape, dict):
        if "*" in shape:
            return isinstance(value, dict) and all(fits(inner, shape["*"]) for inner in value.values())
        return isinstance(value, dict) and all(key in value and fits(value[key], inner) for key, inner in shape.items())
    return shape(value)


def misfit(record):
    """The first field of a record with a value of the wrong shape, or None."""
    for key, value in record.items():
        shape = RECORD.get(key, is_number if key.startswith("val_loss") else None)
        if shape and not fits(value, shape):
            return key
    return next((key for key, shape in TRAINING.items() if "loss" in record and not fits(record[key], shape)), None)


TASK_SCORES = ("_acc", "_acc_norm")  # ends of the keys of a task's scores, after its name


@dataclass
class Run:
    """The records of a run by kind and step. If a resumed run repeated a step, only the last record of it counts."""

    name: str
    info: dict = field(default_factory=dict)  # run.json, or {}
    steps: list = field(default_factory=list)  # training records in order
    val: dict = field(default_factory=dict)  # "val_loss" or "val_loss_NAME": [(step, loss)]
    val_lost: set = field(default_factory=set)  # (key of `val`, step) of losses that are not finite; `val` lacks them
    val_precision: dict = field(default_factory=dict)  # by step of a validation: the precision of its forward pass
    val_hash: dict = field(default_factory=dict)  # by key of `val` and step: what was scored
    fp8: list = field(default_factory=list)  # records of FP8 tensors in order
    other: list = field(default_factory=list)  # other records in order: samples, memory, layers that left FP8, ...
    notes: list = field(default_factory=list)  # problems with its files

    @property
    def config(self):
        return self.info.get("config", {})

    @property
    def title(self):
        model = self.info.get("model", {})
        if not model:
            return ""
        return (f"{model['layers']} layers, {model['channels']} channels, {model['heads']} heads: "
                f"{model['parameters'] / 1e6:.2f} M parameters, {self.config.get('precision', '')} on "
                f"{self.info.get('device', '')}")

    @property
    def first_step(self):
        """The first training step with a record. It is above 1 if the run continues a checkpoint of another directory."""
        return self.steps[0]["step"] if self.steps else 1

    @property
    def floor(self):
        """The entropy floor from the shards' sidecars, or None."""
        return find_floor(self.config)

    @functools.cached_property
    def progress(self):
        """[(step, tokens consumed after it)]. --batch-schedule changes the tokens of a step."""
        points = [(r["step"], r["tokens"]) for r in self.steps if r.get("tokens")]
        return [(0, 0), *(points or [(1, 1)])]

    def tokens_at(self, step):
        return on_lines(self.progress, step)

    def step_at(self, tokens):
        return on_lines([(t, step) for step, t in self.progress], tokens)

    @property
    def tokens_per_step(self):
        """The tokens of every step, or None if steps differ."""
        each = self.tokens_at(1)
        return each if self.steps and all(tokens == step * each for step, tokens in self.progress) else None


def on_lines(points, x):
    """The y at x on straight lines between the points, which are in order; beyond the last, on the last line."""
    i = min(max(1, bisect.bisect_left(points, (x,))), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y1


def read_records(path):
    """The records of a metrics file. Only its last line may be broken, if the run was killed while writing it."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise RunError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(record, dict) or not is_count(record.get("step")):
            raise RunError(f"{path}:{number} is not a record: it has no step")
        records.append(record)
    return records


def read_object(path):
    """The JSON object in a file, or None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deep(value) else None


def is_deep(value, most=50):
    """True if values are nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        level = [inner for outer in level if isinstance(outer, (dict, list))
                 for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return bool(level)


def read_info(directory):
    """run.json without malformed parts."""
    info = read_object(os.path.join(directory, "run.json")) or {}
    for key, shape in (("model", MODEL), ("config", {}), ("resumed", [{}])):
        if key in info and not fits(info[key], shape):
            del info[key]
    return info


def is_going_on(directory):
    """True while train_gpt holds the lock of the directory. Asks without taking it."""
    try:
        with open(os.path.join(directory, "lock"), "rb") as file:
            question = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))[0] != fcntl.F_UNLCK
    except OSError:
        return False


def goes_back(before, after):
    """The description of a metrics.jsonl in which the record of step `after` follows that of step `before`."""
    return f"goes back from step {before} to step {after}: it holds records of several runs, or of steps that were repeated"


def without_braces(pattern):
    """The patterns that a pattern with {A,B} stands for."""
    braces = re.search(r"{([^{}]*)}", pattern)
    return [pattern] if not braces else [one for choice in braces[1].split(",") for one in
                                         without_braces(pattern[:braces.start()] + choice + pattern[braces.end():])]


def files_of(pattern):
    """The files that match a pattern of shards, in order. As in the trainer, the longest beginning that is the path of a file
    or directory is a name, in which [ and { are ordinary characters.
    """
    names = len(pattern)
    while names > 0 and not os.path.exists(pattern[:names]):
        names = pattern.rfind("/", 0, names - 1) + 1
    rest = pattern[names:] if names > 0 else os.path.expanduser(pattern)
    return sorted({file for one in without_braces(rest) for file in glob.glob(glob.escape(pattern[:names]) + one)})


def find_floor(config):
    """The entropy floor in the sidecar of the first validation (or training) shard, or None."""
    val = config.get("val") or []
    first = val[0] if isinstance(val, list) and val else val
    named = re.fullmatch(r"[\w-]+=(.+)", first) if isinstance(first, str) else None  # NAME=GLOB
    for pattern in (named[1] if named else first, config.get("train")):
        if not isinstance(pattern, str):
            continue
        for shard in files_of(pattern):
            sidecar = read_object(shard + ".json")
            if sidecar is not None:
                floor = sidecar.get("entropy_floor")
                return floor if isinstance(floor, float) and math.isfinite(floor) else None
    return None


def without_repeats(records):
    """Drops the steps that a resumed run repeated, as they were before the resume."""
    kept, last = [], 0
    for record in records:
        if "loss" in record:
            if record["step"] <= last:
                kept = [r for r in kept if r["step"] < record["step"]]
            last = record["step"]
        kept.append(record)
    return kept


def read_run(path):
    """Reads the run in a directory, or from a metrics.jsonl with the run.json next to it, if there is one."""
    metrics = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
    if not os.path.exists(metrics):
        reason = "holds no metrics.jsonl" if os.path.isdir(path) else "does not exist"
        raise RunError(f"{path} {reason}; give the --out directory of a run")
    directory = os.path.dirname(os.path.abspath(metrics))
    name = os.path.basename(directory)
    if name == "run":  # the directory above says which run it is
        name = os.path.join(os.path.basename(os.path.dirname(directory)), name)
    run = Run(name)
    val, precisions, broken = {}, {}, []
    records = read_records(metrics)
    steps = [record["step"] for record in records if "loss" in record]
    backward = next(((a, b) for a, b in zip(steps, steps[1:]) if b <= a), None)
    if backward:
        run.notes.append(f"metrics.jsonl {goes_back(*backward)}; the later ones count")
    for record in without_repeats(records):
        if key := misfit(record):
            broken.append(f"step {record['step']}: {printable(key)}")
            continue
        if "loss" in record:
            run.steps.append(record)
        if "fp8" in record:
            run.fp8.append(record)
        if not record.keys() & {"loss", "fp8"}:
            run.other.append(record)
        for key, value in record.items():
            if key.startswith("val_loss") and value is None:
                run.val_lost.add((key, record["step"]))
            elif key.startswith("val_loss"):
                val.setdefault(key, {})[record["step"]] = value  # a later record of the same step wins
                precisions[record["step"]] = record.get("val_precision")
                run.val_hash[key, record["step"]] = record.get(key.replace("val_loss", "val_hash", 1))
    run.val = {key: sorted(points.items()) for key, points in val.items()}
    if not run.steps and not run.val:
        raise RunError(f"{metrics} has no step yet")
    if broken:
        records = f"{len(broken)} record" + "s" * (len(broken) > 1)
        run.notes.append(f"{records} of metrics.jsonl skipped, with values that cannot be right ({broken[0]})")
    for key, step in sorted(run.val_lost):
        run.notes.append(f"{printable(key)} of step {step} is not finite")
    lost = [(a["step"], b["step"] - a["step"] - 1) for a, b in zip(run.steps, run.steps[1:]) if b["step"] > a["step"] + 1]
    if lost:
        run.notes.append(f"metrics.jsonl lacks {sum(count for _, count in lost)} steps, the first after step {lost[0][0]}")
    run.info = read_info(directory)
    if "config" not in run.info and os.path.exists(os.path.join(directory, "run.json")):
        run.notes.append("run.json is damaged: the run's flags are not known, nor whether it was an FP8 run")
    # Earlier runs were all validated in their own precision.
    run.val_precision = {step: precision or run.config.get("precision") for step, precision in precisions.items()}
    return run


def read_runs(paths):
    """Reads the runs and gives them distinct names."""
    runs = [read_run(path) for path in paths]
    names = [run.name for run in runs]
    for run, path in zip(runs, paths):
        if names.count(run.name) > 1:
            run.name = os.path.normpath(path)
    return runs


def next_to(path, name):
    """The path of a file `name` in a directory, which is `path` or has `path` as a file."""
    return os.path.join(path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path)), name)


@dataclass
class Published:
    """A published curve: validation losses by number of tokens, and their source."""

    name: str
    about: dict  # title, source, settings, validation, level
    points: list  # (tokens, loss) in order

    def at(self, tokens):
        """The loss at this number of tokens, linearly interpolated, or None outside the curve."""
        if not self.points[0][0] <= tokens <= self.points[-1][0]:
            return None
        i = max(1, bisect.bisect_left([t for t, _ in self.points], tokens)) if len(self.points) > 1 else 0
        (t0, a), (t1, b) = self.points[i - 1], self.points[i]
        return b if tokens == t1 else a + (b - a) * (tokens - t0) / (t1 - t0)


def published_names():
    return sorted(name.removesuffix(".csv") for name in os.listdir(PUBLISHED) if name.endswith(".csv"))


def read_published(name):
    """Reads the curve of this name in scripts/published, or a file of the same format: "# key: value" lines, a head,
    numbers.
    """
    path = name if os.path.exists(name) else os.path.join(PUBLISHED, name + ".csv")
    if not os.path.exists(path):
        raise RunError(f"no published curve {name}; there are {', '.join(published_names())}, or give a file")
    about, points = {}, []
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            if line.startswith("#"):
                key, _, value = line[1:].partition(":")
                about[key.strip()] = value.strip()
        head, *rows = [line for line in lines if line and not line.startswith("#")]
        if head != "tokens,val_loss":
            raise ValueError(f"the head is {head!r}")
        points = sorted((int(tokens), float(loss)) for tokens, loss in (row.split(",") for row in rows))
        about["title"], about["source"], points[0]
    except (OSError, UnicodeDecodeError, ValueError, LookupError) as error:
        raise RunError(f"{path} is not a table of tokens,val_loss under a title and a source: {error!r}") from error
    return Published(os.path.basename(path).removesuffix(".csv"), about, points)


@dataclass
class Scaling:
    """The predictions of --estimate-scaling: its inputs, and a point for every number of GPUs."""

    info: dict
    points: list

    @property
    def card(self):
        return self.info["card"]

    @property
    def label(self):
        i = self.info
        within = f" --shard-within {i['shard_within']}" if i.get("shard_within") else ""
        return (f"{i['model']['name']}, {i['precision']}, --zero {i['zero']}{within}, {i['batch']} x {i['seq']} tokens x "
                f"{i['micro_steps']} micro-step{'' if i['micro_steps'] == 1 else 's'} a GPU")

    @property
    def assumptions(self):
        i = self.info
        return (f"{self.card}, predicted compute; links assumed: {i['link_bytes_per_s'] / 1e9:.0f} GB/s in nodes of "
                f"{i['node_gpus']} GPUs, a NIC of {i['nic_bytes_per_s'] / 1e9:.0f} GB/s for each")


def read_scaling(path):
    """Reads the estimate in a directory, or a scaling.json."""
    file_path = os.path.join(path, "scaling.json") if os.path.isdir(path) else path
    if not os.path.exists(file_path):
        reason = "holds no scaling.json" if os.path.isdir(path) else "does not exist"
        raise RunError(f"{path} {reason}; give the -o directory of --estimate-scaling")
    try:
        with open(file_path, encoding="utf-8") as file:
            info = json.load(file)
        return Scaling(info, [dict(p) for p in info["points"] if p["gpus"] > 0 and p["tokens_per_s"] > 0])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file_path} is not what --estimate-scaling writes: {error!r}") from error


@contextlib.contextmanager
def replacing(path):
    """Yields the name of a new file, which takes the place of `path` once it is complete. On a full disk, an earlier file
    stays. A device or a pipe is written to directly.
    """
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    root, extension = os.path.splitext(path)
    new = f"{root}.{os.getpid()}.tmp{extension}"
    try:
        yield new
        os.replace(new, path)
    finally:
        with contextlib.suppress(OSError):
            os.remove(new)


def print_notes(runs):
    for run in runs:
        for note in run.notes:
            print(f"note: {printable(run.name)}: {note}", file=sys.stderr)


def smooth(values, width):
    """Means over a centred window, which is narrower at the ends. Non-finite values (null in the file) are left out."""
    smoothed = []
    for i in range(len(values)):
        reach = min(width // 2, i, len(values) - 1 - i)
        window = [v for v in values[i - reach:i + reach + 1] if v is not None]
        smoothed.append(sum(window) / len(window) if window else float("nan"))
    return smoothed


def gaps(values):
    return [float("nan") if v is None else v for v in values]


if __name__ == "__main__":
    sys.exit(__doc__)
