"""What train_gpt left behind, for the scripts that draw and compare: metrics.jsonl and run.json of a run, and
scaling.json of an estimate."""

import bisect
import glob
import json
import os
import re
from dataclasses import dataclass, field


PUBLISHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published")


class RunError(Exception):
    """A run that cannot be read, with the reason for a person."""


@dataclass
class Run:
    """The records of one run, each kind by step. A run that was resumed has each step as it was done last."""

    name: str
    info: dict = field(default_factory=dict)  # run.json, or nothing
    steps: list = field(default_factory=list)  # training records in order
    val: dict = field(default_factory=dict)  # "val_loss" or "val_loss_NAME": [(step, loss)]
    fp8: list = field(default_factory=list)  # records of FP8 tensors in order
    other: list = field(default_factory=list)  # samples, memory, layers that left FP8, ... in order

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
    def floor(self):
        """The entropy floor that the shards' sidecars state, or None."""
        return find_floor(self.config)

    def tokens_at(self, step):
        """Tokens consumed after a step: every step takes the same number."""
        return step * self.steps[0]["tokens"] / self.steps[0]["step"] if self.steps else step


def read_records(path):
    """The records of a metrics file. Only its last line may be broken: the run was killed while writing it."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise RunError(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise RunError(f"{path}:{number} is not a record: it has no step")
        records.append(record)
    return records


def scalars(record):
    """{name: number} of a record's step: its own, those of "products", of every FP8 tensor and of a probe's layers, named as --tensorboard
    names them. What is not finite (null, with its word in "nonfinite") is NaN or infinite here."""
    def numbers(prefix, values):
        words = values.get("nonfinite")  # a count in an FP8 tensor
        words = words if isinstance(words, dict) else {}
        return {prefix + key: float(words[key] if value is None else value) for key, value in values.items()
                if key not in ("step", "elapsed") and (isinstance(value, (int, float)) or value is None and key in words)}

    found = numbers("", record) | numbers("products/", record.get("products", {}))
    for tensor in record.get("fp8", []):
        found |= numbers(f"fp8/{tensor['tensor']}/", tensor)
    for layer in record.get("fp8_errors", []):
        found |= numbers(f"fp8/{layer['layer']}/", layer)
    return found


def find_floor(config):
    """The entropy floor in the sidecar of the first validation (or training) shard, or None."""
    val = config.get("val") or []
    first = val[0] if isinstance(val, list) and val else val
    named = re.fullmatch(r"[\w-]+=(.+)", first) if first else None  # NAME=GLOB
    for pattern in (named[1] if named else first, config.get("train")):
        if not pattern:
            continue
        for shard in sorted(glob.glob(pattern)):
            try:
                with open(shard + ".json", encoding="utf-8") as file:
                    return json.load(file).get("entropy_floor")
            except (OSError, json.JSONDecodeError):
                continue
    return None


def without_repeats(records):
    """A run that is resumed repeats steps: what it had done beyond the point it resumed from is gone."""
    kept, last = [], 0
    for record in records:
        if "loss" in record:
            if record["step"] <= last:
                kept = [r for r in kept if r["step"] < record["step"]]
            last = record["step"]
        kept.append(record)
    return kept


def read_run(path):
    """The run in a directory, or of a metrics.jsonl; run.json beside it says what was run, if it is there."""
    metrics = os.path.join(path, "metrics.jsonl") if os.path.isdir(path) else path
    if not os.path.exists(metrics):
        reason = "holds no metrics.jsonl" if os.path.isdir(path) else "does not exist"
        raise RunError(f"{path} {reason}; give the --out directory of a run")
    directory = os.path.dirname(os.path.abspath(metrics))
    run = Run(os.path.basename(directory))
    val = {}
    for record in without_repeats(read_records(metrics)):
        if "loss" in record:
            run.steps.append(record)
        if "fp8" in record:
            run.fp8.append(record)
        if not record.keys() & {"loss", "fp8"}:
            run.other.append(record)
        for key, value in record.items():
            if key.startswith("val_loss") and value is not None:
                val.setdefault(key, {})[record["step"]] = value  # the later one of a step
    run.val = {key: sorted(points.items()) for key, points in val.items()}
    if not run.steps and not run.val:
        raise RunError(f"{metrics} has no step yet")
    try:
        with open(os.path.join(directory, "run.json"), encoding="utf-8") as file:
            run.info = json.load(file)
    except (OSError, json.JSONDecodeError):
        pass  # the curves stand by themselves
    return run


@dataclass
class Published:
    """A curve that others have published: validation losses by tokens, and where they come from."""

    name: str
    about: dict  # title, source, settings, validation, level
    points: list  # (tokens, loss) in order

    def at(self, tokens):
        """The loss there, on a straight line between its neighbours, or None outside of the curve."""
        if not self.points[0][0] <= tokens <= self.points[-1][0]:
            return None
        i = max(1, bisect.bisect_left([t for t, _ in self.points], tokens)) if len(self.points) > 1 else 0
        (t0, a), (t1, b) = self.points[i - 1], self.points[i]
        return b if tokens == t1 else a + (b - a) * (tokens - t0) / (t1 - t0)


def published_names():
    return sorted(name.removesuffix(".csv") for name in os.listdir(PUBLISHED) if name.endswith(".csv"))


def read_published(name):
    """The curve of that name in scripts/published, or of a file like those: "# key: value" lines, a head, numbers."""
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
    """What --estimate-scaling predicted: its inputs, and a point for every number of GPUs."""

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
        return (f"{self.card}, ideal compute; links assumed: {i['link_bytes_per_s'] / 1e9:.0f} GB/s in nodes of "
                f"{i['node_gpus']} GPUs, a NIC of {i['nic_bytes_per_s'] / 1e9:.0f} GB/s for each")


def read_scaling(path):
    """The estimate in a directory, or of a scaling.json."""
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


def smooth(values, width):
    """Mean over a centred window, narrower at the ends; what is not finite (null in the file) is left out."""
    smoothed = []
    for i in range(len(values)):
        reach = min(width // 2, i, len(values) - 1 - i)
        window = [v for v in values[i - reach:i + reach + 1] if v is not None]
        smoothed.append(sum(window) / len(window) if window else float("nan"))
    return smoothed


def gaps(values):
    return [float("nan") if v is None else v for v in values]
