#!/usr/bin/env python3
"""Shows a run in TensorBoard, Prometheus and Weights & Biases, during training or afterwards.

    python3 scripts/follow.py runs/d12 --tensorboard && tensorboard --logdir runs/d12/tensorboard
    python3 scripts/follow.py runs/d12 --prometheus /var/lib/node_exporter/d12.prom --wandb my-project
    python3 scripts/follow.py runs/d12 --alert "loss>11,tokens_per_s<1e5 for 20"

It reads metrics.jsonl as train_gpt writes it, so it never slows the run, and ends when the run ends. It may be stopped
and started again at any time: it sends what is missing, and nothing twice. When a run resumes from a checkpoint, the
steps beyond that checkpoint are withdrawn: TensorBoard drops them, and W&B, which cannot drop anything, gets a new run
in the same group.

Names are grouped: train/loss, val/loss, system/tokens_per_s, fp8/fc.x/amax. FP8 tensors are summarised over the layers
of the model, and --all-tensors adds each of them. The packages are tensorboard, prometheus_client and wandb;
scripts/setup.sh --with-tracking installs them into .venv.
"""

import argparse
import calendar
import html
import importlib.util
import json
import math
import os
import re
import sys
import time

from runs import TASK_SCORES, continue_in_venv, goes_back, is_count, is_going_on, misfit, printable, read_info, with_ratios


def warn(text):
    print(f"follow: {printable(text)}", file=sys.stderr, flush=True)


# ---- what a record says --------------------------------------------------------------------------------------------

SYSTEM = {"ms", "tokens_per_s", "mfu", "watts", "joules_per_token", "sm_clock_mhz", "temperature_c", "verify_ms",
          "slowest_rank", "slowest_ratio", "slowest_data_ms", "peers_ms"}

# How the values of an FP8 tensor combine over the layers of the model; "max" for all others. The smallest scale is that
# of the tensor with the largest values. Counts become fractions first, so that the worst tensor is seen.
FP8_SUMMARY = {"scale": min, "smallest_factor": min, "nonfinite": sum}


def numbers(values):
    """{key: number} of a JSON object. A null whose word "nonfinite" holds is NaN or infinite."""
    words = values.get("nonfinite")  # in the record of an FP8 tensor, this is a count
    words = words if isinstance(words, dict) else {}
    return {key: float(words[key] if value is None else value) for key, value in values.items()
            if key not in ("step", "elapsed") and not isinstance(value, bool)
            and (isinstance(value, (int, float)) or value is None and key in words)}


def tag_of(key):
    """loss -> train/loss, val_loss_code and piqa_acc -> val/loss_code and val/piqa_acc, ms -> system/ms."""
    if key.startswith("val_"):
        return "val/" + key.removeprefix("val_")
    group = "val" if key.endswith(TASK_SCORES) else "system" if key in SYSTEM else "train"
    return f"{group}/{key}"


def fp8_tags(tensors, all_tensors):
    """{fp8/fc.x/amax: number}: for each kind of tensor, one number over all blocks of the model."""
    found, by_kind = {}, {}
    for tensor in tensors:
        values = numbers(tensor)
        if all_tensors:
            found |= {f"fp8/{tensor['tensor']}/{key}": value for key, value in values.items()}
        elements = values.pop("elements", 0)
        for key in ("saturated", "underflowed"):
            if key in values:
                values[key + "_fraction"] = values.pop(key) / elements if elements else 0.0
        kind = re.sub(r"^h\.\d+\.", "", tensor["tensor"])
        for key, value in values.items():
            by_kind.setdefault(f"fp8/{kind}/{key}", []).append(value)
    for tag, values in by_kind.items():
        combine = FP8_SUMMARY.get(tag.rpartition("/")[2], max)
        found[tag] = math.nan if any(map(math.isnan, values)) else float(combine(values))
    return found


def scalars(record, all_tensors=False):
    """{tag: number} of a record of metrics.jsonl."""
    found = {tag_of(key): value for key, value in numbers(record).items()}
    for key in ("products", "memory_outside"):
        values = record.get(key)
        if isinstance(values, dict):
            found |= {f"system/{key}/{name}": value for name, value in numbers(values).items()}
    found |= {f"train/tokens/{source}": float(tokens) for source, tokens in record.get("source_tokens", {}).items()}
    for kind, sizes in record.get("memory", {}).items():
        found |= {f"system/memory/{kind}/{name}": value for name, value in numbers(sizes).items()}
    found |= fp8_tags(record.get("fp8", []), all_tensors)
    for tensor in with_ratios(record.get("signals", [])):  # the largest of all blocks
        kind = re.sub(r"^h\.\d+\.", "", tensor["tensor"])
        values = numbers(tensor)
        for key in {"gradient", "update_ratio", "max_logit"} & values.keys():
            tag = f"tensors/{kind}/{key}"
            both = found.get(tag, values[key]), values[key]
            found[tag] = math.nan if any(map(math.isnan, both)) else max(both)
    return found


def texts(record):
    """{tag: text} of a record: a sample, or an event, such as a layer that left FP8."""
    found = {"sample": record["sample"]} if "sample" in record else {}
    return found | {event: json.dumps(record[event], indent=1) for event in ("fp8_fallback", "slow_rank")
                    if event in record}


def unix_time(record):
    """When the record was written; now, if it does not say."""
    try:
        return float(calendar.timegm(time.strptime(record["time"], "%Y-%m-%dT%H:%M:%SZ")))
    except (KeyError, TypeError, ValueError):
        return time.time()


# ---- the run -------------------------------------------------------------------------------------------------------

class Life:
    """A run up to where it was resumed again: from one change of run.json to the next."""

    def __init__(self, info):
        self.info = info
        self.resumed_at = [entry.get("step", 0) for entry in info.get("resumed", [])]  # steps, the oldest first
        # A run that continues in another directory has the same run_id, and another date.
        self.run = f"{info.get('run_id', '')}-{re.sub('[^0-9TZ]', '', str(info.get('date', '')))}"
        self.name = f"{self.run}-{len(self.resumed_at)}"
        # A copy of the directory that is resumed, too, has the same name.
        self.resumed_on = re.sub("[^0-9TZ]", "", str(info["resumed"][-1].get("date", ""))) if self.resumed_at else ""
        self.configuration = {key: value for key, value in info.items() if key not in ("resumed", "first_checkpoint", "wrote")}


class Metrics:
    """The records of metrics.jsonl as they come, read in pieces. A line that is cut short is left until it is whole."""

    PIECE = 1 << 20  # bytes

    def __init__(self, path):
        self.path, self.file, self.lines, self.rest, self.damaged = path, None, 0, b"", False
        self.step = 0  # of the last training record
        self.at_end = True  # no more bytes, when new_records() looked

    def new_records(self):
        """[(number of the line, record)] of the next piece."""
        try:
            self.file = self.file or open(self.path, "rb")
        except FileNotFoundError:
            return []
        found = self.read()
        if self.at_end and self.is_moved():  # log rotation: the new file continues where the old one ends
            found += self.read()  # what was written before the move
            if self.at_end:
                self.close()
                self.file, self.at_end = open(self.path, "rb"), False
        return found

    def is_moved(self):
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def read(self):
        data = self.file.read(self.PIECE)
        self.at_end = len(data) < self.PIECE
        *lines, self.rest = (self.rest + data).split(b"\n")
        found = []
        for line in lines:
            number, self.lines = self.lines, self.lines + 1
            try:
                record = json.loads(line) if line.strip() else None
                sound = isinstance(record, dict) and is_count(record.get("step")) and not misfit(record)
            except (ValueError, RecursionError):
                sound = False
            if sound:
                found.append((number, record))
                if "loss" in record:
                    if record["step"] <= self.step:
                        warn(f"{self.path}: line {number + 1} {goes_back(self.step, record['step'])}")
                    self.step = record["step"]
            elif line.strip():
                self.skip(number)
        return found

    def skip(self, number):
        if not self.damaged:
            self.damaged = True
            warn(f"{self.path}: line {number + 1} is damaged; such lines are skipped")

    def close(self):
        if self.file:
            self.file.close()
        self.file, self.rest = None, b""


# ---- where the records go ------------------------------------------------------------------------------------------
# Each of these has: begin(life), before the first record and again when the run was resumed, after which all records of
# metrics.jsonl come again; write(number of the line, record); flush(); finish(). `target`: where the records are then, or None.

class TensorBoard:
    """Event files. A file is named after the life of the run that it shows, and begins with the step from which on
    TensorBoard forgets what earlier files say. What a file already has is found by reading it."""

    PREFIX = "events.out.tfevents."
    OVERLAP = 10  # steps that are written again: records of neighbouring steps may come in any order

    def __init__(self, args):
        self.directory = self.target = args.tensorboard
        self.all_tensors, self.records = args.all_tensors, None

    def begin(self, life):
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.finish()
        os.makedirs(self.directory, exist_ok=True)
        files = sorted(name for name in os.listdir(self.directory) if name.startswith(self.PREFIX))
        self.first_step = self.step_to_continue(files, life)
        # TensorBoard reads files in the order of their names, so each gets a later time than all others.
        times = [int(found[1]) for name in files if (found := re.match(r"(\d+)", name[len(self.PREFIX):]))]
        latest = max([int(time.time()), *(1 + earlier for earlier in times)])
        name = f"{self.PREFIX}{latest:010d}.{life.name}"
        self.records = RecordWriter(open(os.path.join(self.directory, name), "xb"))
        self.write_event(0, time.time(), file_version="brain.Event:2")
        self.write_event(self.first_step, time.time(), session_log=dict(status="START"))
        begins_at = life.resumed_at[-1] + 1 if life.resumed_at else 0
        if self.first_step <= begins_at:
            self.write_event(begins_at, time.time(), summary=self.summary(
                {}, {"configuration": json.dumps(life.configuration, indent=1)}))
        self.flush()

    def step_to_continue(self, files, life):
        """The first step that the files lack or that has changed since."""
        own = [name for name in files if name.split(".")[-1].startswith(life.run + "-")]
        if own[-1:] != files[-1:]:
            warn(f"{self.directory} holds events of another run, which TensorBoard will not show any more")
            return 0
        if not own:
            return 0
        seen = int(own[-1].rpartition("-")[2])  # resumes of the life that was written last
        last = next((step for name in reversed(own) if (step := self.last_step(name)) is not None), 0)
        return max(0, min([last - self.OVERLAP, *(step + 1 for step in life.resumed_at[seen:])]))

    def last_step(self, name):
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        events = RawEventFileLoader(os.path.join(self.directory, name)).Load()
        next(events, None)  # the version
        return max((Event.FromString(data).step for data in events), default=None)

    def write(self, _, record):
        if record["step"] < self.first_step:
            return
        summary = self.summary(scalars(record, self.all_tensors), texts(record))
        if summary.value:
            self.write_event(record["step"], unix_time(record), summary=summary)

    def summary(self, values, text):
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        for tag, words in text.items():  # indented: Markdown shows it as it is
            summary.MergeFrom(text_pb(tag, "".join("    " + line for line in words.splitlines(True))))
        return summary

    def write_event(self, step, wall_time, **what):
        from tensorboard.compat.proto.event_pb2 import Event

        self.records.write(Event(step=step, wall_time=wall_time, **what).SerializeToString())

    def flush(self):
        self.records.flush()

    def finish(self):
        if self.records:
            self.records.close()
            self.records = None


class Prometheus:
    """The newest numbers in a text file, for the textfile collector of Prometheus's node exporter."""

    METRICS = {  # key in metrics.jsonl: name after train_gpt_, help
        "step": ("step", "Optimizer steps taken."),
        "loss": ("loss", "Training loss of the last step, nats per token."),
        "val_loss": ("validation_loss", "Loss of the last validation, nats per token."),
        "lr": ("learning_rate", "Learning rate of the last step."),
        "norm": ("gradient_norm", "Global gradient norm of the last step, before clipping."),
        "tokens": ("tokens_total", "Training tokens consumed, over all ranks."),
        "tokens_per_s": ("tokens_per_second", "Training tokens per second of the last step, over all ranks."),
        "skipped": ("skipped_steps_total", "Steps skipped because of non-finite numbers or spikes."),
        "loss_scale": ("loss_scale", "Loss scale of the last step."),
        "watts": ("power_watts", "Power of all ranks' cards over the last step."),
        "joules_per_token": ("joules_per_token", "Energy of all ranks' cards per training token, last step."),
        "mfu": ("model_flops_utilization", "Model FLOPs of the last step, as a fraction of the cards' peak."),
        "sm_clock_mhz": ("sm_clock_mhz", "Clock of the slowest card."),
        "temperature_c": ("temperature_celsius", "Temperature of the hottest card."),
        "time": ("last_record_timestamp_seconds", "When the newest of these numbers was written, Unix time."),
    }

    def __init__(self, args):
        from prometheus_client import CollectorRegistry

        self.file = self.target = args.prometheus
        self.failed = False
        self.run = os.fsencode(args.run).decode("utf-8", "replace")  # a label is UTF-8, which a path need not be
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def begin(self, life):
        self.newest, self.changed = {}, True  # {(key in metrics.jsonl, validation set): number}

    def write(self, _, record):
        for key, value in (numbers(record) | {"step": float(record["step"]), "time": unix_time(record)}).items():
            name, _, validation_set = key.partition("val_loss_")
            self.newest[(name or "val_loss", validation_set)] = value
        self.changed = True

    def collect(self):
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for key, (name, description) in self.METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind("train_gpt_" + name, description, labels=["run", "set"] if key == "val_loss" else ["run"])
            for (found, validation_set), value in self.newest.items():
                if found == key:
                    family.add_metric([self.run, validation_set] if key == "val_loss" else [self.run], value)
            if family.samples:
                yield family

    def flush(self):
        from prometheus_client import write_to_textfile

        if not self.changed:
            return
        try:
            write_to_textfile(self.file, self.registry)  # under another name until it is whole
            self.changed = self.failed = False
        except OSError as error:
            if not self.failed:
                warn(f"--prometheus: {self.file} cannot be written ({error.strerror}); trying again")
            self.failed = True

    def finish(self):
        if self.failed:
            raise OSError(f"{self.file} is not up to date")


class WeightsAndBiases:
    """A run of Weights & Biases for each life of the run, all in one group. A line of metrics.jsonl is a step of W&B's
    own count, so those that an earlier start of this script has sent are known."""

    def __init__(self, args):
        self.args, self.run, self.target = args, None, f"the project {args.wandb} of W&B"

    def begin(self, life):
        import wandb

        self.finish()
        resumes = len(life.resumed_at)
        name = self.args.name or os.path.basename(os.path.abspath(self.args.run))
        self.run = wandb.init(project=self.args.wandb, name=name + (f" (resumed, {resumes})" if resumes else ""),
                              id="-".join(filter(None, (life.name, life.resumed_on))), group=life.run, resume="allow", config=life.configuration,
                              dir=os.environ.get("WANDB_DIR", self.args.run))
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, number, record):
        import wandb

        values = scalars(record, self.args.all_tensors)
        for tag, words in texts(record).items():
            values[tag] = wandb.Html(f"<pre>{html.escape(words)}</pre>", inject=False)
        if values and number >= self.run.step:
            self.run.log({"step": record["step"], **values}, step=number)

    def flush(self):
        pass

    def finish(self):
        if self.run:
            self.run.finish()
            self.run = None


class Alert:
    """Prints when a rule begins to hold, such as "loss>11", or "tokens_per_s<1e5 for 20": in 20 records in a row. Records
    without the number do not count. A NaN meets every rule."""

    FIELDS = ("loss", "lr", "norm", "tokens", "seq", "skipped", "loss_scale", "val_loss", *sorted(SYSTEM))

    def __init__(self, args):
        self.rules, self.life, self.target = args.alert, None, None
        self.fields, self.records = set(), 0  # fields that some record has; number of training records

    @classmethod
    def rules_of(cls, text):
        """[(text, field, sign, limit, records in a row)] of RULES."""
        rules = []
        for rule in map(str.strip, text.split(",")):
            found = re.fullmatch(r"(\w+) *([<>]) *(\S+)(?: for (\d+))?", rule)
            if not found:
                raise argparse.ArgumentTypeError(f"'{rule}' is not a rule such as loss>11 or tokens_per_s<1e5 for 20")
            field, sign, limit, steps = found.groups()
            if field not in cls.FIELDS:
                raise argparse.ArgumentTypeError(f"'{rule}' is about {field}, which is not one of {', '.join(cls.FIELDS)}")
            try:
                number = float(limit)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise argparse.ArgumentTypeError(f"'{rule}' needs a number after {sign}")
            if steps and int(steps) < 1:
                raise argparse.ArgumentTypeError(f"'{rule}' needs a number from 1 on after 'for'")
            rules.append((rule, field, sign, number, int(steps or 1)))
        return rules

    def begin(self, life):
        # A resumed run's records come again from the first one on. Those before the checkpoint have been reported.
        self.reported = life.resumed_at[-1] if self.life and life.resumed_at else -1
        self.life, self.in_a_row = life, [0] * len(self.rules)

    def write(self, _, record):
        values = numbers(record)
        self.fields |= values.keys()
        self.records += "loss" in values
        if self.records == 100:
            self.finish()
        for at, (rule, field, sign, limit, steps) in enumerate(self.rules):
            if field not in values:
                continue
            value = values[field]
            holds = math.isnan(value) or (value > limit if sign == ">" else value < limit)
            self.in_a_row[at] = self.in_a_row[at] + 1 if holds else 0
            if self.in_a_row[at] == steps and record["step"] > self.reported:
                print(f"step {record['step']}: {rule}: it is {value:g}", flush=True)

    def flush(self):
        pass

    def finish(self):
        """Names the rules that could not hold, because no record has their field."""
        for rule, field, *_ in self.rules if self.records else ():
            if field not in self.fields:
                self.fields.add(field)
                warn(f"--alert '{rule}' does nothing: no record has {field}")


# ---- following -----------------------------------------------------------------------------------------------------

SINKS = {"tensorboard": (TensorBoard, "tensorboard"), "prometheus": (Prometheus, "prometheus_client"),
         "wandb": (WeightsAndBiases, "wandb"), "alert": (Alert, None)}  # flag: (class, Python package)


class Sinks:
    """The requested outputs. A failing one is reported and left out, and the others continue."""

    def __init__(self, args):
        self.failed = False
        self.args = args
        self.sinks, self.last_step = {}, 0
        for flag, (kind, package) in SINKS.items():
            if getattr(args, flag) is None:
                continue
            if package and importlib.util.find_spec(package) is None:
                self.failed = True
                warn(f"--{flag} needs the Python package {package}: {sys.executable} -m pip install {package}, or "
                     "scripts/setup.sh --with-tracking")
            else:
                self.attempt(flag, lambda: self.sinks.update({flag: kind(args)}))

    def attempt(self, flag, action):
        try:
            action()
        except Exception as error:  # pylint: disable=broad-except
            warn(f"--{flag}: {type(error).__name__}: {error}")
            self.failed = True
            self.sinks.pop(flag, None)

    def each(self, action):
        for flag, sink in list(self.sinks.items()):
            self.attempt(flag, lambda sink=sink: action(sink))

    def write(self, number, record, metrics):
        """Sends a record, unless it says what no output can show."""
        def send(sink):
            try:
                sink.write(number, record)
            except (ArithmeticError, LookupError, TypeError, ValueError):
                metrics.skip(number)

        self.each(send)
        self.last_step = record["step"]


def follow(args, sinks):
    """Sends records until the run ends."""
    life, metrics, seen = None, Metrics(os.path.join(args.run, "metrics.jsonl")), time.monotonic()
    while sinks.sinks:
        going_on = is_going_on(args.run)  # asked before reading, so that the last records are read
        if going_on:
            seen = time.monotonic()
        now = Life(read_info(args.run))
        if not life or life.name != now.name:
            metrics.close()
            life, metrics = now, Metrics(metrics.path)
            sinks.each(lambda sink: sink.begin(life))
        new = metrics.new_records()
        if Life(read_info(args.run)).name != life.name:
            continue  # resumed a moment ago: the file was cut, and the records may be of both lives
        for number, record in new:
            sinks.write(number, record, metrics)
        sinks.each(lambda sink: sink.flush())
        if not metrics.at_end:
            continue
        if not going_on and time.monotonic() - seen >= (args.patience or 0):
            break
        time.sleep(args.poll)
    metrics.close()
    sinks.each(lambda sink: sink.finish())


def has_run(args):
    """Waits for run.json, up to --patience."""
    patience = 60 if args.patience is None else args.patience
    begin, says_so = time.monotonic(), False
    while "run_id" not in read_info(args.run):
        waited = time.monotonic() - begin
        if waited >= patience:
            return False
        if waited > 3 and not says_so:  # a run that starts at the same time has one by then
            warn(f"waiting up to {patience:g} s for {args.run}/run.json")
            says_so = True
        time.sleep(args.poll)
    return True


def main(argv=None):
    opening, *_, closing = __doc__.split("\n\n", 2)
    parser = argparse.ArgumentParser(description=opening, epilog=closing,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run directory (train_gpt --out)")
    parser.add_argument("--tensorboard", nargs="?", const="", metavar="DIR",
                        help="write TensorBoard event files; default: RUN/tensorboard")
    parser.add_argument("--prometheus", metavar="FILE",
                        help="keep the newest numbers in FILE, for the textfile collector (name it *.prom)")
    parser.add_argument("--wandb", nargs="?", const="train_gpt", metavar="PROJECT",
                        help="send everything to Weights & Biases; default: the project train_gpt")
    parser.add_argument("--name", help="the run's name in W&B; default: the directory's")
    parser.add_argument("--all-tensors", action="store_true", help="show each FP8 tensor, next to the summary by kind")
    parser.add_argument("--poll", type=float, default=2, metavar="SECONDS", help="time between two reads of the records; default: 2")
    parser.add_argument("--alert", type=Alert.rules_of, metavar="RULES",
                        help="print when a rule begins to hold: FIELD>X or FIELD<X, for N steps in a row with ' for N'; "
                             "several, separated by commas")
    parser.add_argument("--patience", type=float, metavar="SECONDS",
                        help="time to wait for a run that has not begun (default: 60), and for one that has stopped to "
                             "resume (default: 0)")
    args = parser.parse_args(argv)
    asked = [package for flag, (_, package) in SINKS.items() if getattr(args, flag) is not None]
    if not asked:
        parser.error("say where to: --tensorboard, --prometheus FILE, --wandb or --alert RULES")
    for package in filter(None, asked):
        continue_in_venv(package)
    if args.tensorboard == "":
        args.tensorboard = os.path.join(args.run, "tensorboard")
    sinks = Sinks(args)
    try:
        if sinks.sinks and not has_run(args):
            warn(f"{args.run} holds no run.json; give the --out directory of a run")
            return 2
        follow(args, sinks)
    except KeyboardInterrupt:
        sinks.each(lambda sink: sink.finish())
    if targets := " and ".join(sink.target for sink in sinks.sinks.values() if sink.target):
        print(f"follow: {args.run} is in {targets} up to step {sinks.last_step}", flush=True)
    return 1 if sinks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
