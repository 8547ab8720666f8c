"""How other programs watch a run: --tensorboard as TensorBoard reads it, --prometheus as its client's parser does, and
scripts/wandb_follow.py with a module that stands in for wandb. Run it with .venv/bin/python."""

import fcntl
import importlib.util
import json
import logging
import math
import os
import struct
import subprocess
import sys
import time
import unittest

from trainer import ROOT, FinishedRun, corpus, new_path, run, tiny_flags

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from runs import scalars  # noqa: E402


def needs(package):
    """Skipped where the package is missing, unless CI is true: there scripts/setup.sh installs it."""
    missing = os.environ.get("CI") != "true" and importlib.util.find_spec(package) is None
    return unittest.skipIf(missing, f"needs the Python package {package} (scripts/setup.sh --with-browser)")


def as_float(value):
    """As a float of 32 bits."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def same(a, b):
    return a == b or math.isnan(a) and math.isnan(b)


@needs("tensorboard")
class TensorBoard(unittest.TestCase):
    def read(self, directory):
        """{(tag, step): value}, as TensorBoard shows a run."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it says aloud what a resume purges
        events = EventAccumulator(os.path.join(directory, "tensorboard"), size_guidance=dict(scalars=0))
        events.Reload()
        return {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}

    def assert_equal_to_metrics(self, finished):
        expected = {(tag, record["step"]): as_float(value) for record in finished.records
                    for tag, value in scalars(record).items()}
        found = self.read(finished.directory)
        self.assertEqual(found.keys(), expected.keys())
        wrong = [(key, found[key], value) for key, value in expected.items() if not same(found[key], value)]
        self.assertEqual(wrong, [])
        return found

    def test_values_equal_metrics_and_a_resume_forgets(self):
        flags = ["--precision", "fp8", "--val", corpus().val, "--val-every", 4, "--val-batches", 1, "--fp8-log-every", 4,
                 "--max-steps", 12, "-n", 6, "--tensorboard"]
        finished = FinishedRun(*flags)
        found = self.assert_equal_to_metrics(finished)
        tags = {tag for tag, _ in found}
        self.assertLessEqual({"loss", "lr", "norm", "tokens", "val_loss", "products/fp8", "skipped", "fp8/h.1.fc.dout/amax"}, tags)
        self.assertEqual(sum(tag == "loss" for tag, _ in found), 12)
        # Steps 7 to 12 are made again, otherwise: what was there is to be forgotten, step 10 and 11 for good.
        again = run(*tiny_flags("--out", finished.directory, *flags, "--resume", "latest", "--rewind", 1, "--lr", "1e-2",
                                "--stop-after", 9))
        self.assertEqual(again.code, 0, again.err)
        del finished.records  # read once
        self.assertEqual([r["step"] for r in finished.steps], list(range(1, 10)))
        later = self.assert_equal_to_metrics(finished)
        self.assertEqual(later["loss", 6], found["loss", 6])
        self.assertNotEqual(later["loss", 9], found["loss", 9])
        self.assertEqual(len(os.listdir(finished.path("tensorboard"))), 2)

    def test_a_flipped_bit_is_seen(self):
        finished = FinishedRun("--max-steps", 3, "--tensorboard")
        self.assert_equal_to_metrics(finished)
        (name,) = os.listdir(finished.path("tensorboard"))
        path = os.path.join(finished.path("tensorboard"), name)
        data = bytearray(finished.read(os.path.join("tensorboard", name)))
        data[len(data) // 2] ^= 1
        with open(path, "wb") as file:
            file.write(data)
        with self.assertRaises(AssertionError):
            self.assert_equal_to_metrics(finished)


class Prometheus(unittest.TestCase):
    @needs("prometheus_client")
    def test_numbers_are_those_of_the_last_records(self):
        from prometheus_client.parser import text_string_to_metric_families

        path = new_path("numbers") + ".prom"
        directory = new_path('a "quoted" \\ name')
        sets = ["--val", corpus().val, "--val", f"again={corpus().val}"]
        result = run(*tiny_flags("--out", directory, *sets, "--val-every", 2, "--val-batches", 1, "--prometheus", path))
        self.assertEqual(result.code, 0, result.err)
        with open(path, encoding="utf-8") as file:
            families = {family.name: family for family in text_string_to_metric_families(file.read())}
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
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

    def test_without_a_directory_and_where_it_cannot_be_written(self):
        path = new_path("numbers") + ".prom"
        self.assertEqual(run(*tiny_flags("--max-steps", 1, "--prometheus", path)).code, 0)
        with open(path, encoding="utf-8") as file:
            self.assertIn("\ntrain_gpt_step 1\n", file.read())
        refused = run(*tiny_flags("--max-steps", 1, "--prometheus", os.path.join(path, "x")))
        self.assertEqual(refused.code, 2)
        self.assertIn("--prometheus: cannot write", refused.err)


# What it is asked, as lines of a file; step as wandb has it, over restarts too.
FAKE_WANDB = '''
import json, os
FILE = os.environ["FAKE_WANDB"]
def tell(**what):
    with open(FILE, "a") as file:
        file.write(json.dumps(what) + "\\n")
class Run:
    def __init__(self, id):
        self.id, self.step = id, 0
        if os.path.exists(FILE):
            logged = [c["step"] for c in map(json.loads, open(FILE)) if c["call"] == "log" and c["id"] == id]
            self.step = max(logged, default=-1) + 1
    def define_metric(self, *arguments, **more):
        tell(call="define_metric", id=self.id, arguments=arguments, more=more)
    def log(self, values, step):
        assert step >= self.step, (step, self.step)
        self.step = step + 1
        tell(call="log", id=self.id, step=step, values=values)
    def finish(self):
        tell(call="finish", id=self.id)
def init(**arguments):
    run = Run(arguments["id"])
    tell(call="init", **arguments)
    return run
'''


class WeightsAndBiases(unittest.TestCase):
    def setUp(self):
        self.calls_file = new_path("calls")
        module = new_path("module")
        os.makedirs(module)
        with open(os.path.join(module, "wandb.py"), "w", encoding="utf-8") as file:
            file.write(FAKE_WANDB)
        self.environment = {**os.environ, "PYTHONPATH": module, "FAKE_WANDB": self.calls_file}

    def follow(self, directory, *flags):
        command = [sys.executable, os.path.join(ROOT, "scripts", "wandb_follow.py"), directory, "--poll", "0.05", *flags]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def ended(self, process):
        out, err = process.communicate(timeout=60)
        return process.returncode, out + err

    def calls(self, kind, identity=None):
        if not os.path.exists(self.calls_file):
            return []
        with open(self.calls_file, encoding="utf-8") as file:
            calls = [json.loads(line) for line in file if line.endswith("\n")]
        return [c for c in calls if c["call"] == kind and identity in (None, c["id"])]

    def logged(self, identity):
        return [c["values"] for c in self.calls("log", identity)]

    def wait_for(self, condition):
        end = time.time() + 60
        while not condition():
            self.assertLess(time.time(), end, "it did not happen")
            time.sleep(0.02)

    def expected(self, records):
        return [{"step": r["step"], **scalars(r), **({"sample": r["sample"]} if "sample" in r else {})} for r in records]

    def test_a_finished_run(self):
        finished = FinishedRun("--val", corpus().val, "--val-batches", 1, "--sample-every", 3, "--sample-tokens", 4)
        self.assertEqual(self.ended(self.follow(finished.directory, "--project", "p")), (0, ""))
        (init,) = self.calls("init")
        info = json.loads(finished.read("run.json"))
        self.assertEqual((init["id"], init["project"], init["resume"], init["config"]["config"]["seed"]),
                         (info["run_id"], "p", "allow", 1337))
        self.assertEqual(self.logged(info["run_id"]), self.expected(finished.records))
        self.assertIn(dict(call="define_metric", id=info["run_id"], arguments=["*"], more=dict(step_metric="step")),
                      self.calls("define_metric"))
        self.assertEqual(len(self.calls("finish")), 1)

    def test_a_run_that_goes_on_and_is_resumed(self):
        directory = new_path()
        process = self.follow(directory)  # before there is a run
        os.makedirs(directory)
        records = [dict(step=step, loss=5 / step) for step in range(1, 9)]
        # As train_gpt holds it.
        lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        metrics = open(os.path.join(directory, "metrics.jsonl"), "a", encoding="utf-8")

        def write(text):
            metrics.write(text)
            metrics.flush()

        def write_info(**more):
            with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
                json.dump(dict(run_id="r", config={}, **more), file)

        lines = [json.dumps(record) + "\n" for record in records]
        write_info()
        write(lines[0] + lines[1] + lines[2][:9])  # half a line, for now
        self.wait_for(lambda: len(self.logged("r")) == 2)
        write(lines[2][9:])
        self.wait_for(lambda: len(self.logged("r")) == 3)
        process.kill()
        process.wait()
        write(lines[3])
        process = self.follow(directory)
        self.wait_for(lambda: len(self.logged("r")) == 4)
        self.assertEqual(self.logged("r"), self.expected(records[:4]))
        self.assertIsNone(process.poll(), "the run goes on")
        # Resumed at step 2. The file grows beyond what it was before anyone looks.
        write_info(resumed=[dict(step=2)])
        metrics.truncate(len(lines[0] + lines[1]))
        again = [dict(step=step, loss=4 / step) for step in range(3, 8)]
        write("".join(json.dumps(record) + "\n" for record in again))
        whole = self.expected(records[:2] + again)
        self.wait_for(lambda: len(self.logged("r-1")) == len(whole))
        write(json.dumps(dict(step=7, val_loss=3.0)) + "\n")
        os.close(lock)
        metrics.close()
        self.assertEqual(self.ended(process), (0, ""))
        self.assertEqual(self.logged("r-1"), whole + [dict(step=7, val_loss=3.0)])
        self.assertEqual(self.logged("r"), self.expected(records[:4]))
        self.assertEqual([c["group"] for c in self.calls("init")], ["r"] * 3)
        self.assertEqual([c["id"] for c in self.calls("finish")], ["r", "r-1"])

    def test_what_it_cannot_follow(self):
        code, said = self.ended(self.follow(new_path(), "--patience", "0"))
        self.assertEqual(code, 2)
        self.assertIn("holds no run.json", said)
        self.environment["PYTHONPATH"] = ""
        code, said = self.ended(self.follow(new_path()))
        if importlib.util.find_spec("wandb") is None:
            self.assertEqual((code, "pip install wandb" in said), (1, True))


if __name__ == "__main__":
    unittest.main()
