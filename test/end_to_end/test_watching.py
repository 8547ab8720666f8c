"""Runs that others watch: what scripts/follow.py writes, read back as TensorBoard, Prometheus's client and W&B
read them. Run it with .venv/bin/python."""

import argparse
import contextlib
import fcntl
import importlib.util
import io
import json
import logging
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
import unittest
from unittest import mock

from trainer import (ENVIRONMENT, PROGRAM, ROOT, FinishedRun, corpus, new_path, read_bytes, read_records, run,
                     tiny_flags, workspace, write_json)

SCRIPT = os.path.join(ROOT, "scripts", "follow.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import follow  # noqa: E402
from follow import scalars  # noqa: E402


def needs(package):
    """Skipped where the package is missing, unless CI is true: there scripts/setup.sh installs it."""
    missing = os.environ.get("CI") != "true" and importlib.util.find_spec(package) is None
    return unittest.skipIf(missing, f"needs the Python package {package} (scripts/setup.sh --with-tracking)")


def wait_for(condition):
    end = time.time() + 60
    while not condition():
        if time.time() > end:
            raise AssertionError("it did not happen")
        time.sleep(0.02)


def read_events(directory):
    """{(tag, step): [values]} of a run, as TensorBoard shows it: numbers, or texts."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns when steps are withdrawn
    events, found = EventAccumulator(directory, size_guidance=dict(tensors=0)), {}
    events.Reload()
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            value = make_ndarray(event.tensor_proto).item()
            found.setdefault((tag, event.step), []).append(value.decode() if isinstance(value, bytes) else value)
    return found


class Recorded:
    """A run directory as train_gpt writes it, without a run."""

    def __init__(self):
        self.directory = new_path()
        os.makedirs(self.directory)
        self.begin()
        self.write_info()

    def begin(self):
        # As train_gpt holds it.
        self.lock = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(self.lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        self.metrics = open(self.path("metrics.jsonl"), "a", encoding="utf-8")

    def path(self, name):
        return os.path.join(self.directory, name)

    def write_info(self, run_id="r", **more):
        write_json(self.path("run.json.tmp"), dict(run_id=run_id, date="2026-01-02T03:04:05Z", config={}, **more))
        os.rename(self.path("run.json.tmp"), self.path("run.json"))

    def write(self, *records):
        self.write_text("".join(json.dumps(record) + "\n" for record in records))

    def write_text(self, text):
        self.metrics.write(text)
        self.metrics.flush()

    def truncate(self, *records):
        self.metrics.truncate(len("".join(json.dumps(record) + "\n" for record in records)))

    def rotate(self):
        self.metrics.close()
        os.rename(self.path("metrics.jsonl"), self.path("metrics.1"))
        self.metrics = open(self.path("metrics.jsonl"), "a", encoding="utf-8")

    def end(self):
        self.metrics.close()
        os.close(self.lock)


class Following(unittest.TestCase):
    environment = None

    def follow(self, directory, *flags):
        command = [sys.executable, SCRIPT, directory, "--poll", "0.05", *flags]
        process = subprocess.Popen(command, env=self.environment, cwd=workspace(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def ended(self, process):
        """The exit code and the output, without the last line."""
        out, err = process.communicate(timeout=300)
        return process.returncode, re.sub(r"follow: \S.* is in \S.* up to step \d+\n$", "", out) + err

    def follow_to_the_end(self, directory, *flags):
        process = self.follow(directory, *flags)
        out, err = process.communicate(timeout=300)
        self.assertEqual((process.returncode, err), (0, ""))
        last = max(record["step"] for record in read_records(directory))
        self.assertRegex(out, rf"^follow: .*{re.escape(directory)} is in \S.* up to step {last}\n$")


def steps(first, last, factor=5.0, **more):
    return [dict(step=step, loss=factor / step, **more) for step in range(first, last + 1)]


# ---- names ---------------------------------------------------------------------------------------------------------

class Names(unittest.TestCase):
    def test_groups(self):
        record = dict(step=3, loss=2.5, norm=None, nonfinite=dict(norm="inf"), ms=4, val_loss=3, val_loss_code=4,
                      hellaswag_acc=0.25, arc_easy_acc_norm=0.5, batch_hash="7", verified=True, elapsed=3.5,
                      products=dict(fp8=24), memory=dict(weights=dict(planned=5)),
                      tokens=9, source_tokens={"a/*.bin": 6, "b.bin": 3})
        self.assertEqual(scalars(record), {
            "train/loss": 2.5, "train/norm": math.inf, "system/ms": 4, "val/loss": 3, "val/loss_code": 4,
            "val/hellaswag_acc": 0.25, "val/arc_easy_acc_norm": 0.5, "system/products/fp8": 24,
            "system/memory/weights/planned": 5,
            "train/tokens": 9, "train/tokens/a/*.bin": 6, "train/tokens/b.bin": 3})
        self.assertEqual(scalars(dict(step=1, sample="text")), {})

    FP8 = [dict(tensor="h.0.fc.x", amax=2.0, scale=8.0, elements=100, saturated=5, underflowed=0, nonfinite=1),
           dict(tensor="h.11.fc.x", amax=1.0, scale=4.0, elements=400, saturated=8, underflowed=4, nonfinite=2),
           dict(tensor="lm_head.w", amax=7.0, scale=1.0, elements=1, saturated=0, underflowed=0, nonfinite=0)]

    def test_fp8_tensors_are_summarised_by_kind(self):
        found = scalars(dict(step=1, fp8=self.FP8))
        self.assertEqual({tag: value for tag, value in found.items() if "lm_head" not in tag}, {
            "fp8/fc.x/amax": 2, "fp8/fc.x/scale": 4, "fp8/fc.x/nonfinite": 3, "fp8/fc.x/saturated_fraction": 0.05,
            "fp8/fc.x/underflowed_fraction": 0.01})
        self.assertEqual(found["fp8/lm_head.w/amax"], 7)

    def test_norms_of_tensors_are_summarised_by_kind(self):
        signals = [dict(tensor=f"h.{block}.fc.weight", gradient=gradient, weight=2.0, update=0.01 * block)
                   for block, gradient in ((1, 0.5), (2, 0.25))]
        signals.append(dict(tensor="h.0.fc.weight", gradient=0.1, weight=0.0, update=0.0))
        signals += [dict(tensor=f"h.{block}.qkv.weight", max_logit=logit, head=1) for block, logit in ((0, -3.0), (1, -2.0))]
        self.assertEqual(scalars(dict(step=1, signals=signals)),
                         {"tensors/fc.weight/gradient": 0.5, "tensors/fc.weight/update_ratio": 0.01,
                          "tensors/qkv.weight/max_logit": -2.0})

    def test_a_nan_is_not_hidden(self):
        signals = [dict(tensor="h.0.fc.weight", gradient=0.5),
                   dict(tensor="h.1.fc.weight", gradient=None, nonfinite=dict(gradient="nan")),
                   dict(tensor="h.2.fc.weight", gradient=0.25)]
        for order in (signals, signals[::-1], signals[1:]):
            self.assertTrue(math.isnan(scalars(dict(step=1, signals=order))["tensors/fc.weight/gradient"]))
        fp8 = [dict(self.FP8[0], amax=None, nonfinite=dict(amax="nan")), self.FP8[1]]
        self.assertTrue(math.isnan(scalars(dict(step=1, fp8=fp8))["fp8/fc.x/amax"]))

    def test_all_tensors(self):
        found = scalars(dict(step=1, fp8=self.FP8), all_tensors=True)
        self.assertEqual((found["fp8/h.0.fc.x/saturated"], found["fp8/h.11.fc.x/scale"], found["fp8/fc.x/amax"]), (5, 4, 2))


# ---- whole runs ----------------------------------------------------------------------------------------------------

@needs("tensorboard")
class TensorBoard(Following):
    def assert_equal_to_metrics(self, finished, **options):
        """Each number of metrics.jsonl is there once, and nothing else is."""
        finished.__dict__.pop("records", None)  # read again
        expected = {(tag, record["step"]): value for record in finished.records
                    for tag, value in scalars(record, **options).items()}
        found = {key: values for key, values in read_events(finished.path("tensorboard")).items()
                 if key[0] not in ("sample", "configuration")}
        self.assertEqual(found.keys(), expected.keys())
        for key, value in expected.items():
            self.assertEqual(len(found[key]), 1, key)
            as_float = struct.unpack("<f", struct.pack("<f", value))[0]
            self.assertTrue(found[key][0] == as_float or math.isnan(value), (key, found[key], value))
        return found

    def test_a_run_that_goes_back(self):
        flags = ["--precision", "fp8", "--val", corpus().val, "--val-every", 4, "--val-batches", 1, "--fp8-log-every", 4,
                 "--max-steps", 24, "-n", 6, "--sample-every", 5, "--sample-tokens", 4]
        finished = FinishedRun(*flags)
        self.follow_to_the_end(finished.directory, "--tensorboard")
        found = self.assert_equal_to_metrics(finished)
        tags = {tag for tag, _ in found}
        self.assertLessEqual({"train/loss", "train/lr", "val/loss", "system/tokens_per_s", "fp8/fc.dout/amax"}, tags)
        amaxes = {t["tensor"]: t["amax"] for r in finished.records if "fp8" in r and r["step"] == 8 for t in r["fp8"]}
        self.assertAlmostEqual(found["fp8/fc.x/amax", 8][0], max(amaxes["h.0.fc.x"], amaxes["h.1.fc.x"]), places=5)
        text = read_events(finished.path("tensorboard"))
        self.assertEqual({step for tag, step in text if tag == "sample"},
                         {r["step"] for r in finished.records if "sample" in r})
        self.assertIn('"precision": "fp8"', text["configuration", 0][0])
        # Goes back to the last checkpoint but one and stops at 20: the steps after 20 are withdrawn. On a slow disk some
        # checkpoints are left out, but never the first and the last.
        back = sorted(int(name.removeprefix("step_")) for name in os.listdir(finished.path("checkpoints")))[-2]
        again = run(*tiny_flags("--out", finished.directory, *flags, "--resume", "latest", "--rewind", 1, "--lr", "1e-2",
                                "--stop-after", 20))
        self.assertEqual(again.code, 0, again.err)
        self.follow_to_the_end(finished.directory, "--tensorboard")
        later = self.assert_equal_to_metrics(finished)
        self.assertEqual(max(step for tag, step in later if tag == "train/loss"), 20)
        self.assertEqual(later["train/loss", back], found["train/loss", back])
        self.assertNotEqual(later["train/loss", 20], found["train/loss", 20])
        self.assertIn('"lr": 0.01', read_events(finished.path("tensorboard"))["configuration", back + 1][0])
        # Started once more, it has nothing to add.
        self.follow_to_the_end(finished.directory, "--tensorboard")
        self.assert_equal_to_metrics(finished)

    def test_a_flipped_bit_and_a_lost_record_are_seen(self):
        finished = FinishedRun("--max-steps", 3)
        self.follow_to_the_end(finished.directory, "--tensorboard")
        self.assert_equal_to_metrics(finished)
        (name,) = os.listdir(finished.path("tensorboard"))
        data = bytearray(finished.read(os.path.join("tensorboard", name)))
        for damaged in (data[:-100], data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:]):
            with open(os.path.join(finished.path("tensorboard"), name), "wb") as file:
                file.write(damaged)
            with self.assertRaises(AssertionError):
                self.assert_equal_to_metrics(finished)

    def start(self):
        """Starts a run that ends only when it is stopped, and follows it. Returns both processes, and the run."""
        finished = FinishedRun.__new__(FinishedRun)
        finished.directory = new_path()
        flags = tiny_flags("--out", finished.directory, "--max-steps", 10**6)
        process = subprocess.Popen([PROGRAM, *map(str, flags)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   cwd=workspace(), env=ENVIRONMENT)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        follower = self.follow(finished.directory, "--tensorboard")
        events = finished.path("tensorboard")
        wait_for(lambda: os.path.isdir(events) and os.listdir(events) and len(read_events(events)) > 50)
        return process, follower, finished

    def test_a_killed_follower_catches_up(self):
        process, follower, finished = self.start()
        follower.kill()
        follower.wait()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 75)
        with self.assertRaises(AssertionError):
            self.assert_equal_to_metrics(finished)
        self.follow_to_the_end(finished.directory, "--tensorboard")
        self.assert_equal_to_metrics(finished)

    def test_it_sends_everything_of_a_killed_run(self):
        process, follower, finished = self.start()
        process.kill()
        self.assertEqual(self.ended(follower), (0, ""))
        self.assert_equal_to_metrics(finished)

    def test_it_waits_for_a_run_to_resume(self):
        recorded = Recorded()
        recorded.write(*steps(1, 2))
        recorded.end()
        process = self.follow(recorded.directory, "--tensorboard", "--patience", "60")
        events = recorded.path("tensorboard")

        def losses():
            return os.path.isdir(events) and [step for tag, step in read_events(events) if tag == "train/loss"]

        wait_for(lambda: losses() == [1, 2])
        time.sleep(0.2)
        self.assertIsNone(process.poll())
        recorded.begin()
        recorded.write_info(resumed=[dict(step=2)])
        recorded.write(*steps(3, 4))
        wait_for(lambda: losses() == [1, 2, 3, 4])

    BAD = {"no number after all": '{"step": 2, "loss": null, "nonfinite": {"loss": "much"}}',
           "no JSON": "{damaged", "no object": "[]", "no step": '{"loss": 1}', "a step that is no count": '{"step": true}',
           "a negative step": '{"step": -1, "val_loss": 3}', "a step above 64 bits": '{"step": 99999999999999999999, "a": 3}',
           "too many digits": '{"step": 2, "x": 1' + "0" * 400 + "}", "a lone surrogate": '{"step": 2, "\\ud800": 1}',
           "a lone surrogate in a sample": '{"step": 2, "sample": "\\ud800"}', "deep": "[" * 100_000,
           "words for numbers": '{"step": 2, "memory_outside": {"a": "b"}}', "not UTF-8": '{"step": 2, "a\udcff": 1}',
           "tensors without names": '{"step": 2, "signals": [{"gradient": 1}]}'}

    def test_a_bad_record_is_skipped(self):
        """The records before and after it are shown, whatever it says."""
        for what, line in self.BAD.items():
            with self.subTest(what):
                recorded = Recorded()
                recorded.write(dict(step=1, loss=5.0))
                with open(recorded.path("metrics.jsonl"), "ab") as file:
                    file.write(line.encode("utf-8", "surrogateescape") + b"\n")
                recorded.write(dict(step=3, loss=5.0))
                recorded.end()
                code, said = self.follow_here(recorded.directory, "--tensorboard", "--prometheus", recorded.path("x.prom"))
                self.assertEqual((code, said), (0, f"follow: {recorded.path('metrics.jsonl')}: line 2 is damaged; such "
                                                   "lines are skipped\n"))
                events = read_events(recorded.path("tensorboard"))
                self.assertEqual([step for tag, step in events if tag == "train/loss"], [1, 3])

    def follow_here(self, *args):
        """Follows in this process, which is faster."""
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = follow.main([*args, "--poll", "0"])
        return code, err.getvalue()

    def test_memory_does_not_grow_with_the_records(self):
        """A follower that starts late reads a long file in pieces."""
        recorded = Recorded()
        recorded.write(*steps(1, 2000, note="x" * 100))
        recorded.end()
        sizes = []

        class Counted(follow.Metrics):
            PIECE = 1000

            def new_records(self):
                found = super().new_records()
                sizes.append(len(found))
                return found

        with mock.patch.object(follow, "Metrics", Counted):
            self.assertEqual(self.follow_here(recorded.directory, "--tensorboard"), (0, ""))
        self.assertLess(max(sizes), 10)
        self.assertEqual(sum(sizes), 2000)
        events = read_events(recorded.path("tensorboard"))
        self.assertEqual([step for tag, step in events if tag == "train/loss"], list(range(1, 2001)))

    def test_restarts_rewinds_and_rotation(self):
        recorded = Recorded()
        events = recorded.path("tensorboard")

        def losses():
            wanted = {step: values for (tag, step), values in read_events(events).items() if tag == "train/loss"}
            return [(step, round(step * value, 3)) for step, values in sorted(wanted.items()) for value in values]

        process = self.follow(recorded.directory, "--tensorboard")
        recorded.write(*steps(1, 30))
        recorded.write_text(json.dumps(dict(step=31, loss=5 / 31))[:9])  # half a line, for now
        wait_for(lambda: os.path.isdir(events) and len(losses()) == 30)
        recorded.write_text(json.dumps(dict(step=31, loss=5 / 31))[9:] + "\n{damaged\n")
        wait_for(lambda: len(losses()) == 31)
        process.kill()
        process.wait()
        (name,) = os.listdir(events)
        with open(os.path.join(events, name), "ab") as file:
            file.write(b"\x20\0\0\0")  # it was writing the next record
        recorded.write(dict(step=31, val_loss=7.0), *steps(32, 33))
        process = self.follow(recorded.directory, "--tensorboard")
        wait_for(lambda: losses() == [(step, 5) for step in range(1, 34)])
        self.assertEqual(read_events(events)["val/loss", 31], [7.0])
        recorded.rotate()
        recorded.write(*steps(34, 35))
        wait_for(lambda: losses() == [(step, 5) for step in range(1, 36)])
        # The run resumes at step 12 and writes more records than before, while the follower runs; then while none runs.
        recorded.metrics.truncate(0)
        recorded.write_info(resumed=[dict(step=12)])
        recorded.write(*steps(1, 12), *steps(13, 40, 4.0))
        second = [(step, 5) for step in range(1, 13)] + [(step, 4) for step in range(13, 41)]
        wait_for(lambda: losses() == second)
        process.kill()
        process.wait()
        recorded.truncate(*steps(1, 5))
        recorded.write_info(resumed=[dict(step=12), dict(step=5), dict(step=9)])
        recorded.write(*steps(6, 9, 3.0), *steps(10, 41, 2.0))
        recorded.end()
        code, said = self.ended(self.follow(recorded.directory, "--tensorboard"))
        self.assertEqual((code, said), (0, ""))
        self.assertEqual(losses(), [(step, 5) for step in range(1, 6)] + [(step, 3) for step in range(6, 10)] +
                         [(step, 2) for step in range(10, 42)])
        # Another run takes the directory over.
        recorded.write_info(run_id="s")
        code, said = self.ended(self.follow(recorded.directory, "--tensorboard"))
        self.assertEqual(code, 0)
        self.assertIn("holds events of another run", said)
        self.assertEqual(len(losses()), 41)


@needs("prometheus_client")
class Prometheus(Following):
    def families(self, path):
        from prometheus_client.parser import text_string_to_metric_families

        with open(path, encoding="utf-8") as file:
            return {family.name: family for family in text_string_to_metric_families(file.read())}

    def test_numbers_are_those_of_the_last_records(self):
        path = new_path("numbers") + ".prom"
        directory = new_path('a "quoted" \\ name')
        sets = ["--val", corpus().val, "--val", f"again={corpus().val}"]
        result = run(*tiny_flags("--out", directory, *sets, "--val-every", 2, "--val-batches", 1))
        self.assertEqual((result.code, result.err), (0, ""))
        self.follow_to_the_end(directory, "--prometheus", path)
        families = self.families(path)
        records = read_records(directory)
        last = [r for r in records if "loss" in r][-1]
        for family, key, kind in (("loss", "loss", "gauge"), ("learning_rate", "lr", "gauge"), ("step", "step", "gauge"),
                                  ("gradient_norm", "norm", "gauge"), ("tokens", "tokens", "counter"),
                                  ("tokens_per_second", "tokens_per_s", "gauge"), ("loss_scale", "loss_scale", "gauge"),
                                  ("skipped_steps", "skipped", "counter")):
            (sample,) = families["train_gpt_" + family].samples
            self.assertEqual((sample.value, sample.labels, families["train_gpt_" + family].type),
                             (last[key], {"run": directory}, kind), family)
            self.assertTrue(families["train_gpt_" + family].documentation)
        val = [r for r in records if "val_loss_again" in r][-1]
        found = {s.labels.get("set", ""): s.value for s in families["train_gpt_validation_loss"].samples}
        self.assertEqual(found, {"": val["val_loss"], "again": val["val_loss_again"]})
        (written,) = families["train_gpt_last_record_timestamp_seconds"].samples
        self.assertLess(abs(written.value - time.time()), 600)

    def test_a_place_that_cannot_be_written_for_a_while(self):
        recorded, directory = Recorded(), new_path("place")
        process = self.follow(recorded.directory, "--prometheus", os.path.join(directory, "x.prom"))
        recorded.write(dict(step=1, loss=None, norm=None, nonfinite=dict(loss="nan", norm="-inf")))
        self.assertIn("cannot be written (No such file or directory); trying again", process.stderr.readline())
        os.makedirs(directory)
        wait_for(lambda: os.listdir(directory) == ["x.prom"])
        families = self.families(os.path.join(directory, "x.prom"))
        self.assertTrue(math.isnan(families["train_gpt_loss"].samples[0].value))
        self.assertEqual(families["train_gpt_gradient_norm"].samples[0].value, -math.inf)
        self.assertNotIn("train_gpt_learning_rate", families)  # not known yet
        recorded.end()
        self.assertEqual(self.ended(process), (0, ""))


# Notes each call as a line of a file. Steps count as W&B counts them, over restarts too.
FAKE_WANDB = '''
import json, os
FILE = os.environ["FAKE_WANDB"]
def note(**what):
    with open(FILE, "a") as file:
        file.write(json.dumps(what) + "\\n")
class Run:
    def __init__(self, id):
        self.id, self.step = id, 0
        if os.path.exists(FILE):
            logged = [c["step"] for c in map(json.loads, open(FILE)) if c["call"] == "log" and c["id"] == id]
            self.step = max(logged, default=-1) + 1
    def define_metric(self, *arguments, **more):
        note(call="define_metric", id=self.id, arguments=arguments, more=more)
    def log(self, values, step):
        assert step >= self.step, (step, self.step)
        self.step = step + 1
        note(call="log", id=self.id, step=step, values=values)
    def finish(self):
        note(call="finish", id=self.id)
def Html(text, inject):
    return text
def init(**arguments):
    if arguments["project"] == "broken":
        raise RuntimeError("no such project")
    run = Run(arguments["id"])
    note(call="init", **arguments)
    return run
'''


class WeightsAndBiases(Following):
    R = "r-20260102T030405Z"  # the run of Recorded, here

    def setUp(self):
        self.calls_file = new_path("calls")
        module = new_path("module")
        os.makedirs(module)
        with open(os.path.join(module, "wandb.py"), "w", encoding="utf-8") as file:
            file.write(FAKE_WANDB)
        self.environment = {**os.environ, "PYTHONPATH": module, "FAKE_WANDB": self.calls_file}

    def calls(self, kind, identity=None):
        if not os.path.exists(self.calls_file):
            return []
        with open(self.calls_file, encoding="utf-8") as file:
            calls = [json.loads(line) for line in file if line.endswith("\n")]
        return [c for c in calls if c["call"] == kind and identity in (None, c["id"])]

    def logged(self, identity):
        return [c["values"] for c in self.calls("log", identity)]

    def expected(self, records):
        return [{"step": r["step"], **scalars(r), **({"sample": f"<pre>{r['sample']}</pre>"} if "sample" in r else {})}
                for r in records]

    def test_a_run(self):
        finished = FinishedRun("--val", corpus().val, "--val-batches", 1, "--sample-every", 3, "--sample-tokens", 4,
                               "--prompt", "1 2")
        self.follow_to_the_end(finished.directory, "--wandb", "p")
        (init,) = self.calls("init")
        self.assertEqual((init["project"], init["name"], init["resume"], init["config"]["config"]["seed"]),
                         ("p", os.path.basename(finished.directory), "allow", 1337))
        self.assertTrue(init["id"].startswith(json.loads(finished.read("run.json"))["run_id"]))
        self.assertEqual([{k: v for k, v in values.items() if k != "sample"} for values in self.logged(init["id"])],
                         [{"step": r["step"], **scalars(r)} for r in finished.records])
        self.assertIn(dict(call="define_metric", id=init["id"], arguments=["*"], more=dict(step_metric="step")),
                      self.calls("define_metric"))
        self.assertEqual(len(self.calls("finish")), 1)

    def test_a_run_that_goes_on_and_is_resumed(self):
        records = steps(1, 8)
        recorded = Recorded()
        process = self.follow(recorded.directory, "--wandb")
        recorded.write(*records[:2], dict(step=2, sample="a"))
        wait_for(lambda: len(self.logged(self.R + "-0")) == 3)
        process.kill()
        process.wait()
        recorded.write(records[2])
        process = self.follow(recorded.directory, "--wandb")
        first = self.expected([*records[:2], dict(step=2, sample="a"), records[2]])
        wait_for(lambda: len(self.logged(self.R + "-0")) == 4)
        self.assertEqual(self.logged(self.R + "-0"), first)
        self.assertIsNone(process.poll(), "the run goes on")
        # Resumed at step 2. The file grows beyond what it was before anyone looks.
        recorded.truncate(*records[:2])
        recorded.write_info(resumed=[dict(step=2)])
        again = steps(3, 7, 4.0)
        recorded.write(*again)
        whole = self.expected(records[:2] + again)
        wait_for(lambda: len(self.logged(self.R + "-1")) == len(whole))
        recorded.write(dict(step=7, val_loss=3.0))
        recorded.end()
        self.assertEqual(self.ended(process), (0, ""))
        self.assertEqual(self.logged(self.R + "-1"), whole + [{"step": 7, "val/loss": 3.0}])
        self.assertEqual(self.logged(self.R + "-0"), first)
        self.assertEqual([c["group"] for c in self.calls("init")], [self.R] * 3)
        self.assertEqual([c["id"] for c in self.calls("finish")], [self.R + "-0", self.R + "-1"])

    def test_resumed_copies_of_a_run_are_apart(self):
        for date in ("2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z"):
            recorded = Recorded()
            recorded.write_info(resumed=[dict(step=2, date=date)])
            recorded.write(*steps(1, 4))
            recorded.end()
            self.follow_to_the_end(recorded.directory, "--wandb")
        self.assertEqual([c["id"] for c in self.calls("finish")], [self.R + "-1-20260103T000000Z", self.R + "-1-20260104T000000Z"])

    def test_one_that_fails_is_left_out(self):
        code, said = self.ended(self.follow(FinishedRun().directory, "--wandb", "broken"))
        self.assertEqual((code, said), (1, "follow: --wandb: RuntimeError: no such project\n"))

    def test_before_there_is_a_run(self):
        directory = new_path()
        self.assertEqual(self.ended(self.follow(directory, "--wandb", "--patience", "0")),
                         (2, f"follow: {directory} holds no run.json; give the --out directory of a run\n"))
        self.assertEqual(self.ended(self.follow(directory, "--wandb", "--patience", "3.5")),
                         (2, f"follow: waiting up to 3.5 s for {directory}/run.json\n"
                             f"follow: {directory} holds no run.json; give the --out directory of a run\n"))

    @needs("wandb")
    def test_the_real_one_takes_it(self):
        finished = FinishedRun("--sample-every", 3, "--sample-tokens", 4)
        self.environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": new_path("offline")}
        os.makedirs(self.environment["WANDB_DIR"])
        code, said = self.ended(self.follow(finished.directory, "--wandb"))
        self.assertEqual(code, 0, said)
        (path,) = [os.path.join(place, name) for place, _, names in os.walk(self.environment["WANDB_DIR"])
                   for name in names if name.endswith(".wandb")]
        data = read_bytes(path)
        self.assertEqual([loss for loss in finished.losses if repr(loss).encode() not in data], [])
        self.assertNotIn(b"5.123456789", data)


class Alerts(Following):
    def alerts(self, directory, rules):
        code, said = self.ended(self.follow(directory, "--alert", rules))
        self.assertEqual(code, 0, said)
        return said.splitlines()

    def begins(self, rule, losses):
        """The steps, from 1, in which the rule begins to hold when the loss has these values."""
        alert = follow.Alert(mock.Mock(alert=follow.Alert.rules_of(rule)))
        alert.begin(mock.Mock(resumed_at=[]))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for step, loss in enumerate(losses, 1):
                words = {math.inf: "inf", -math.inf: "-inf"}.get(loss, "nan")
                finite = math.isfinite(loss)
                alert.write(step, dict(step=step, loss=loss if finite else None, **({} if finite else dict(nonfinite=dict(loss=words)))))
                alert.write(step, dict(step=step, memory={}))  # other records do not count
        return [int(line.split()[1].rstrip(":")) for line in out.getvalue().splitlines()]

    def test_once_when_a_rule_begins_to_hold_and_again_when_it_begins_again(self):
        self.assertEqual(self.begins("loss>8", [9, 9, 8, 7, 9, 10]), [1, 5])
        self.assertEqual(self.begins("loss<8", [9, 8, 7, 7, 9, 1]), [3, 6])
        self.assertEqual(self.begins("loss>8 for 3", [9, 9, 7, 9, 9, 9, 9, 9, 9, 9, 1, 9, 9, 9]), [6, 14])
        self.assertEqual(self.begins("loss>8", [1, math.nan, math.inf, 1, -math.inf]), [2])
        self.assertEqual(self.begins("loss<8", [10, math.nan, 10, -math.inf, math.inf]), [2, 4])
        self.assertEqual(self.begins("norm>8", [9, 9, 9]), [])

    def test_a_run(self):
        run_ = FinishedRun("--max-steps", "6")
        self.assertEqual(self.alerts(run_.directory, "loss>1, tokens_per_s<1e12 for 3,lr>1"),
                         [f"step 1: loss>1: it is {run_.steps[0]['loss']:g}",
                          f"step 3: tokens_per_s<1e12 for 3: it is {run_.steps[2]['tokens_per_s']:g}"])

    def test_records_of_two_runs_in_one_file(self):
        recorded = Recorded()
        recorded.write(*steps(1, 3, 100.0), *steps(2, 4, 100.0))
        recorded.end()
        _, said = self.ended(self.follow(recorded.directory, "--alert", "loss<1"))
        self.assertIn("metrics.jsonl: line 4 goes back from step 3 to step 2", said)
        self.assertEqual(said.count("goes back"), 1)

    def test_a_rule_that_cannot_hold(self):
        recorded = Recorded()
        recorded.write(*steps(1, 120, 100.0))
        recorded.end()
        code, said = self.ended(self.follow(recorded.directory, "--alert", "loss>1,watts>500 for 2"))
        self.assertEqual((code, said.count("--alert 'watts>500 for 2' does nothing: no record has watts")), (0, 1), said)

    def test_a_resumed_run_reports_no_step_twice(self):
        recorded = Recorded()
        recorded.write(*steps(1, 4, 100.0))
        process = self.follow(recorded.directory, "--alert", "loss>1,loss<40 for 3")
        said = [process.stdout.readline()]  # step 1
        recorded.truncate(*steps(1, 3, 100.0))
        recorded.write_info(resumed=[dict(step=3)])
        recorded.write(*steps(4, 6, 100.0))
        said.append(process.stdout.readline())
        recorded.end()
        self.assertEqual((said, self.ended(process)),
                         (["step 1: loss>1: it is 100\n", "step 5: loss<40 for 3: it is 20\n"], (0, "")))

    def test_rules_that_are_refused(self):
        for rules in ("", "loss", "loss>8,", "loss=8", ">8", "loss>", "loss>>8", "loss>x", "loss>nan", "loss>inf",
                      "loss>8 for", "loss>8 for 0", "loss>8 for -1", "loss>8 for 1.5", "loss>8 for 2 for 3",
                      "loss>8 for 2x", "for 3>2", "grad_norm>10"):
            with self.subTest(rules), self.assertRaises(argparse.ArgumentTypeError):
                follow.Alert.rules_of(rules)
        self.assertEqual(follow.Alert.rules_of("loss>8, tokens_per_s < 1e5 for 20,lr>-.5"),
                         [("loss>8", "loss", ">", 8, 1), ("tokens_per_s < 1e5 for 20", "tokens_per_s", "<", 1e5, 20),
                          ("lr>-.5", "lr", ">", -0.5, 1)])

    def test_the_numbers_of_a_run_are_known(self):
        run_ = FinishedRun("--signals-every", "2", "--verify-every", "2", "--max-steps", "3")
        self.assertEqual({key for record in run_.steps for key in follow.numbers(record)} - set(follow.Alert.FIELDS), set())


class Missing(Following):
    """A missing package is named, and the others continue without it."""

    def test_packages(self):
        recorded = Recorded()
        recorded.write(*steps(1, 1))
        recorded.end()
        command = [sys.executable, "-S", SCRIPT, recorded.directory, "--tensorboard", "--wandb", "--prometheus=x.prom",
                   "--alert", "loss>1"]
        result = subprocess.run(command, capture_output=True, text=True, cwd=workspace(), timeout=60)
        for flag, package in (("tensorboard", "tensorboard"), ("prometheus", "prometheus_client"), ("wandb", "wandb")):
            self.assertIn(f"follow: --{flag} needs the Python package {package}: ", result.stderr)
            self.assertIn(f" -m pip install {package}, or scripts/setup.sh --with-tracking\n", result.stderr)
        self.assertEqual((result.returncode, result.stdout), (1, "step 1: loss>1: it is 5\n"))

    def test_nothing_asked_for(self):
        result = subprocess.run([sys.executable, SCRIPT, "x"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("say where to: --tensorboard, --prometheus FILE, --wandb or --alert RULES", result.stderr)


if __name__ == "__main__":
    unittest.main()
