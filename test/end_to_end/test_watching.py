"""How other programs watch a run: --tensorboard as TensorBoard reads it, --prometheus as its client's parser does. Run it with
.venv/bin/python."""

import importlib.util
import json
import logging
import math
import os
import struct
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


if __name__ == "__main__":
    unittest.main()
