"""compare_runs.py and steps_to_loss.py: what they say about made-up runs, and what they refuse. Picture in test_scripts.py
has them draw."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import unittest

from test_scripts import InDirectory, load, write_records, write_run
from trainer import ROOT, read_records


class Comparing(InDirectory):
    """scripts/compare_runs.py: what it refuses and what it says. Picture.test_comparison has it draw."""

    def compare(self, *arguments):
        module = load("compare_runs")
        module.draw = lambda *_: None
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = module.main(list(map(str, arguments)))
            except SystemExit as stop:  # argparse
                code = stop.code
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def test_as_a_program(self):
        script = os.path.join(ROOT, "scripts", "compare_runs.py")
        for others, code in ((write_run(self, "b"), 0), (write_run(self, "c", weights="v"), 1), ("nowhere", 2)):
            # -S: no site packages, so no matplotlib. The table needs none.
            result = subprocess.run([sys.executable, "-S", script, self.a, others], capture_output=True, text=True)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertEqual("matplotlib is missing" in result.stdout, code < 2)

    def assert_failed(self, result, *parts):
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        lines = [line for line in result.stdout.splitlines() if line.startswith("FAILED: ")]
        self.assertEqual(len(lines), 1, result.stdout)
        for part in parts:
            self.assertIn(part, lines[0])

    def setUp(self):
        super().setUp()
        self.a = write_run(self, "a")

    def test_json(self):
        b = write_run(self, "b", precision="fp8", factor=1.001)
        result = self.compare(self.a, b, "--json", "--max-gap", "0.05%")
        found = json.loads(result.stdout)
        self.assertEqual((result.returncode, len(found["failures"])), (1, 1))
        self.assertEqual((found["reference"]["name"], found["reference"]["precision"]), ("a", "bf16"))
        (run,) = found["runs"]
        self.assertAlmostEqual(run["largest_gap"], 0.001)
        self.assertEqual((run["same_weights"], run["first_other_batch"]), (True, 0))
        self.assertEqual([gap["last"] for gap in run["gaps"] if gap["what"] == "validation"],
                         [int(step) for step in run["validations"]["val_loss"]])

    def test_equal_runs(self):
        result = self.compare(self.a, write_run(self, "b", precision="fp8", factor=1.001), "--max-gap", "0.2%")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for part in ("a (reference)", "fp8, delayed", "+0.100 %", "0.50 times", "fp8 24, bf16 3", "the same, 40 steps",
                     "4.0e-02 h.0.qkv", "2.0e-03 h.0.qkv", "4,000"):
            self.assertIn(part, result.stdout)

    def test_a_gap(self):
        b = write_run(self, "b", factor=1.01)
        self.assertEqual(self.compare(self.a, b).returncode, 0, "nothing was asked for")
        for allowed in ("0.0101", "1.01%", "1.01 %"):
            self.assertEqual(self.compare(self.a, b, "--max-gap", allowed).returncode, 0)
        for allowed in ("0.0099", "0.99%", "0"):
            self.assert_failed(self.compare(self.a, b, "--max-gap", allowed), "b: the gap to a is +1.000 %", "is allowed")
        self.assert_failed(self.compare(b, self.a, "--max-gap", "0.5%"), "-0.990 %")
        typo = self.compare(self.a, b, "--max-gap", "0.5")  # would let everything pass
        self.assertEqual(typo.returncode, 2)
        self.assertIn("0.5 would allow 50 %; for 0.5 percent write 0.5%", typo.stderr)

    def test_only_what_is_asked_for_is_judged(self):
        records = [dict(step=s, loss=1.0 if s > 20 else 2.0, tokens=s, tokens_per_s=1.0) for s in range(1, 41)]
        b = os.path.dirname(write_records(self, "b", records + [dict(step=40, val_loss=1.0)]))
        a = os.path.dirname(write_records(self, "c", [{**r, "loss": 1.0} for r in records] + [dict(step=40, val_loss=1.0)]))
        flags = ["--max-gap", "1%", "--window", "5"]
        self.assert_failed(self.compare(a, b, *flags), "+100.000 %", "steps 1-5")
        self.assert_failed(self.compare(a, b, *flags, "--from", "15"), "steps 16-20")
        for start in (20, 40):
            self.assertEqual(self.compare(a, b, *flags, "--from", start).returncode, 0)
        self.assert_failed(self.compare(a, b, *flags, "--from", "41"), "nothing in common", "from step 41 on")

    def test_a_gap_of_validation_alone(self):
        records = read_records(self.a)
        b = os.path.dirname(write_records(self, "b", [{**r, "val_loss": r["val_loss"] * 1.02} if "val_loss" in r else r
                                                      for r in records]))
        self.assert_failed(self.compare(self.a, b, "--max-gap", "1%"), "+2.000 %", "validation")

    def test_a_loss_that_is_not_finite(self):
        records = read_records(self.a)
        records[6] |= dict(loss=None, nonfinite=dict(loss="nan"))
        b = os.path.dirname(write_records(self, "b", records))
        self.assertEqual(self.compare(self.a, b).returncode, 0)
        self.assert_failed(self.compare(self.a, b, "--max-gap", "50%"), "not finite")

    def test_the_last_validation_of_a_run_that_diverged(self):
        bad = dict(step=100, val_loss=None, nonfinite=dict(val_loss="nan"))
        for validations, best in (([dict(step=0, val_loss=5.5547)], r"5.5547 \(step 0\)"), ([], "-"),
                                  ([dict(step=50, val_loss=0.5), dict(step=60, val_loss=0.7)], r"0.5000 \(step 50\)")):
            b = os.path.dirname(write_records(self, "b", [*validations, dict(step=99, loss=1.0), bad]))
            result = self.compare(b, "--published", "llmc-124M")
            self.assertRegex(result.stdout, rf"validation loss, last +not finite \(step 100\)\n  best +{best}\n")
            found = json.loads(self.compare(b, "--published", "llmc-124M", "--json").stdout)["reference"]
            self.assertEqual(found["validations"]["val_loss"]["100"], None)

    def test_other_weights(self):
        self.assert_failed(self.compare(self.a, write_run(self, "b", weights="v")), "b did not start with the weights of a")

    def test_a_branch(self):
        """A checkpoint that continues in another directory: the steps that both runs have can be compared."""
        def branch(name, first_step, run_id, weights, factor=1):
            run = write_run(self, name, factor=factor)
            write_records(self, name, [record for record in read_records(run) if record["step"] >= first_step])
            self.write(f"{name}/run.json", json.dumps(dict(run_id=run_id, weights_hash=weights)))
            return run

        whole, b, c = branch("whole", 1, "r", "w"), branch("b", 21, "r", "v"), branch("c", 21, "r", "u", 2)
        for pair in ((whole, b), (b, whole)):
            result = self.compare(*pair, "--max-gap", "0")
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertRegex(result.stdout, r"weights at the start +- +b continues step 20\n")
            self.assertRegex(result.stdout, r"batches +- +the same, 20 steps\n")
        self.assertIsNone(json.loads(self.compare(whole, b, "--json").stdout)["runs"][0]["same_weights"])
        for pair in ((b, c), (branch("other", 1, "s", "w"), c)):
            self.assert_failed(self.compare(*pair), "did not start with the weights of", "the records of c begin at step 21, "
                               "because it continues another checkpoint")

    def test_other_batches(self):
        b = write_run(self, "b", batch="other{step}")
        self.assert_failed(self.compare(self.a, b), "b did not train on the batches of a", "from step 1 on")
        records = read_records(b)
        for record in records:
            if "loss" in record and record["step"] < 17:
                record["batch_hash"] = f"b{record['step']}"
        write_records(self, "b", records)
        self.assert_failed(self.compare(self.a, b), "from step 17 on")

    def test_other_validation_data(self):
        """A gap of losses of other data says nothing, so it is left out."""
        def run(name, one, two):
            return os.path.dirname(write_records(self, name, [dict(step=step, **values) for step in (10, 20) for values in (
                dict(loss=5.0, tokens=step, tokens_per_s=1.0), dict(val_loss_x=5.0, val_hash_x=one),
                dict(val_loss_y=4.0, val_hash_y=two))]))

        result = self.compare(run("one", "a", "b"), run("two", "a", "c"))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("FAILED: two was not validated on the data of one (val_loss_y, step 10; val_hash", result.stdout)
        self.assertIn("validation_x, step 20", result.stdout)
        self.assertNotIn("validation_y, step", result.stdout)

    def test_other_learning_rates_are_said(self):
        """As after a resume with another --max-steps. They may be meant, so they do not fail."""
        b = write_run(self, "b")
        self.assertRegex(self.compare(self.a, b).stdout, r"learning rates +- +the same, 40 steps")
        records = read_records(b)
        write_records(self, "b", [{**r, "lr": 2e-3} if "lr" in r and r["step"] > 20 else r for r in records])
        result = self.compare(self.a, b)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"learning rates +- +DIFFERENT from step 21")

    def test_an_fp8_run_without_fp8_products(self):
        b = write_run(self, "b", precision="fp8")
        records = read_records(b)
        for record in records:
            if record.get("step", 0) > 30 and "products" in record:
                record["products"] = dict(fp8=0, bf16=27, fp32=0)
        write_records(self, "b", records)
        self.assert_failed(self.compare(self.a, b), "b is an FP8 run", "10 of its 40 steps", "the first: step 31")
        self.assert_failed(self.compare(b, self.a), "b is an FP8 run")

    def test_every_reason_has_its_line_and_run(self):
        bad = write_run(self, "bad", weights="v", batch="c", factor=2)
        result = self.compare(self.a, write_run(self, "good"), bad, "--max-gap", "1%")
        lines = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
        self.assertEqual((result.returncode, len(lines)), (1, 3))
        self.assertTrue(all(line.startswith("FAILED: bad") for line in lines), lines)

    def test_what_was_not_recorded_is_said(self):
        b = write_run(self, "b")
        os.remove(os.path.join(b, "run.json"))
        result = self.compare(self.a, os.path.join(b, "metrics.jsonl"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("not recorded", result.stdout)

    def test_unusable_input(self):
        cases = {"does not exist": [self.a, self.directory + "/nowhere"],
                 "holds no metrics.jsonl": [self.directory, self.a],
                 "no step in common": [self.a, os.path.dirname(write_records(self, "z", [dict(step=99, loss=1.0)]))],
                 "is not JSON": [self.a, os.path.dirname(write_records(self, "y", [], "{\n{}\n"))],
                 "arguments are required": [self.a],
                 "invalid fraction value": [self.a, self.a, "--max-gap", "-1"],
                 "--window": [self.a, self.a, "--window", "0"],
                 "is the reference itself": [self.a, self.a + "/", "--max-gap", "1%"]}
        for part, arguments in cases.items():
            with self.subTest(part):
                result = self.compare(*arguments)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(part, result.stderr)

    def test_runs_of_the_same_name_are_told_apart(self):
        other = write_run(self, "other/a")
        result = self.compare(self.a, other)
        self.assertIn(self.a + " (reference)", result.stdout)
        self.assertIn(other, result.stdout)

    def published(self, text):
        return self.write("curve.csv", text)

    def test_a_published_curve(self):
        # 100 tokens a step; validations at the steps 0, 20 and 40 of write_run().
        run = os.path.dirname(write_records(self, "own", [dict(step=0, val_loss=8.0)] + [
            dict(step=s, loss=5.0, tokens=100 * s, tokens_per_s=1.0) for s in range(1, 41)] + [
            dict(step=20, val_loss=6.0), dict(step=40, val_loss=4.4)]))
        path = self.published("# title: theirs\n# source: a paper, figure 2\n# level: 3 of another\ntokens,val_loss\n"
                              "0,10\n1000,7\n3000,5\n")
        result = self.compare(run, "--published", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        for part in ("theirs, as published", "source:     a paper, figure 2", "level:      3 of another",
                     "end:        5.0000 after 3,000 tokens"):
            self.assertIn(part, lines)
        self.assertIn("0 tokens       10.0000   8.0000 (-20.000 %)", lines)
        self.assertIn("2,000 tokens   ~6.0000   6.0000 (+0.000 %)", lines)  # half-way between 7 and 5
        self.assertNotIn("4,000 tokens", result.stdout)  # beyond its end
        both = self.compare(run, self.a, "--published", path)
        self.assertIn("2,000 tokens", both.stdout)
        self.assertIn("Gap of the mean training loss", both.stdout)

    def test_published_curves_that_come_along(self):
        runs = load("runs")
        self.assertEqual(runs.published_names(), ["llmc-124M", "llmc-350M", "nanogpt-124M"])
        ends = {}
        for name in runs.published_names():
            curve = runs.read_published(name)
            self.assertTrue({"title", "source", "settings", "validation", "level"} <= curve.about.keys(), name)
            self.assertTrue(curve.about["source"].startswith("https://"), name)
            ends[name] = curve.points[-1]
        self.assertEqual(ends["llmc-124M"], (19560 * 524288, 3.2722))
        self.assertEqual(runs.read_published("llmc-124M").at(0), 11.0092)
        self.assertIn("llm.c, GPT-2 124M", self.compare(self.a, "--published", "llmc-124M").stdout)
        for vocab, code in ((50257, 0), (257, 1)):
            model = dict(layers=1, channels=32, heads=1, parameters=12345, vocab=vocab)
            self.write("a/run.json", json.dumps(dict(model=model)))
            result = self.compare(self.a, "--published", "llmc-124M")
            self.assertEqual((result.returncode, "FAILED: a has a vocabulary of 257" in result.stdout), (code, code == 1))

    def test_published_curves_that_are_none(self):
        for text, part in (("", "not a table"), ("# title: a\n# source: b\ntokens,val_loss\n", "not a table"),
                           ("# title: a\n# source: b\nstep,val_loss\n1,2\n", "the head is 'step,val_loss'"),
                           ("# title: a\n# source: b\ntokens,val_loss\n1,x\n", "could not convert"),
                           ("tokens,val_loss\n1,2\n", "'title'")):
            result = self.compare(self.a, "--published", self.published(text))
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (2, 1), result.stderr)
            self.assertIn(part, result.stderr)
        unknown = self.compare(self.a, "--published", "gpt-9")
        self.assertEqual(unknown.returncode, 2)
        self.assertIn("llmc-124M, llmc-350M, nanogpt-124M", unknown.stderr)

    def test_windows(self):
        window = load("compare_runs").default_window
        self.assertEqual([window(n) for n in (1, 9, 20, 40, 300, 600, 20000)], [1, 1, 2, 5, 20, 50, 2000])


class StepsToLoss(InDirectory):
    """scripts/steps_to_loss.py: when made-up runs, whose validation losses are 5.5 / step times a factor, reach which loss.
    Picture.test_steps_to_loss has it draw."""

    def reached(self, *arguments, code=0):
        """{loss: [cell of a run, ...]}, or what it says where it fails."""
        module = load("steps_to_loss")
        module.draw = lambda *_: None
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(module.main(list(map(str, arguments))), code, out.getvalue() + err.getvalue())
        self.text = out.getvalue()
        if code == 2:
            return err.getvalue()
        table = self.text.split("Steps to a validation loss\n")[1].split("\n\n")[0].splitlines()[1:]
        return {line.split()[0]: re.split(" {2,}", line)[1:] for line in table}

    def setUp(self):
        super().setUp()
        self.a = write_run(self, "a", optimizer="adamw", lr=3e-4)

    def test_losses_of_the_first_run(self):
        sooner = write_run(self, "sooner", factor=0.5, weights="v", optimizer="muon", lr=0.02)
        later = write_run(self, "later", factor=2, weights="u")
        self.assertEqual(self.reached(self.a, sooner, later),
                         {"0.5500": ["10", "10 (1.00 times)", "20 (2.00 times)"],
                          "0.2750": ["20", "10 (0.50 times)", "40 (2.00 times)"],
                          "0.1375": ["40", "20 (0.50 times)", "not reached"]})
        for part in ("adamw", "muon", "0.0003", "0.02", "12,345"):
            self.assertIn(part, self.text)
        self.assertEqual(self.reached(sooner, self.a)["0.0688"], ["40", "not reached"])

    def test_losses_that_are_asked_for(self):
        b = write_run(self, "b", factor=0.5)
        self.assertEqual(self.reached(self.a, b, "--loss", "0.2", "--loss", "0.3", "--loss", "0.01"),
                         {"0.3000": ["20", "10 (0.50 times)"], "0.2000": ["30", "20 (0.67 times)"],
                          "0.0100": ["not reached", "not reached"]})
        self.assertEqual(self.reached(self.a, b, "--loss", "0.1"), {"0.1000": ["not reached", "30"]})

    def test_json(self):
        b = write_run(self, "b", factor=0.5)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(load("steps_to_loss").main([self.a, b, "--loss", "0.1", "--json"]), 0)
        self.assertEqual(json.loads(out.getvalue())["steps_to_loss"], [{"loss": 0.1, "steps": {"a": None, "b": 30},
                                                                    "or_before": []}])

    def test_a_branch_that_reached_a_loss_before_its_first_validation(self):
        """It lacks the steps before the checkpoint, so nobody knows when it reached a loss that it begins below."""
        def branch(name, first_step):
            records = [record for record in read_records(self.a) if record["step"] >= first_step]
            return os.path.dirname(write_records(self, name, records))

        later = branch("later", 21)  # of the losses 0.55, 0.275, 0.183 and 0.1375 it lacks the first two
        self.assertEqual(self.reached(self.a, later, "--loss", "0.3", "--loss", "0.15"),
                         {"0.3000": ["20", "30 or before"], "0.1500": ["40", "40 (1.00 times)"]})
        self.assertEqual(self.reached(later, self.a, "--loss", "0.3"), {"0.3000": ["30 or before", "20"]})
        with contextlib.redirect_stdout(io.StringIO()) as out:
            load("steps_to_loss").main([self.a, later, "--loss", "0.3", "--json"])
        self.assertEqual(json.loads(out.getvalue())["steps_to_loss"][0]["or_before"], ["later"])
        self.assertEqual(self.reached(self.a, branch("lost", 1), "--loss", "0.9"), {"0.9000": ["10", "10 (1.00 times)"]})

    def test_no_validation_after_step_0(self):
        records = [dict(step=0, val_loss=5.5), dict(step=1, loss=5.0, ms=1.0), dict(step=1, val_loss=None)]
        b = os.path.dirname(write_records(self, "b", records))
        self.assertIn("steps_to_loss: b has no finite validation loss after step 0", self.reached(b, code=2))
        self.assertEqual(self.reached(self.a, b, "--loss", "0.3"), {"0.3000": ["20", "not reached"]})
        self.assertRegex(self.text, r"validation loss, last +0.1375 \(step 40\) +not finite \(step 1\)")

    def test_other_batches_fail(self):
        self.reached(self.a, write_run(self, "b", batch="other{step}"), code=1)
        self.assertIn("FAILED: b did not train on the batches of a, from step 1 on", self.text)

    def test_other_validation_sets(self):
        """The order of the sets does not matter, and runs without a common set are not compared."""
        def run(name, **losses):
            return os.path.dirname(write_records(self, name, [
                dict(step=1, loss=5.0, tokens=10), *(dict(step=10, **{key: value}) for key, value in losses.items())]))

        first = run("first", val_loss_x=5.0, val_loss_y=4.0)
        rows = self.reached(first, run("other_order", val_loss_y=3.0, val_loss_x=5.5), "--loss", "5.0")
        self.assertEqual(rows, {"5.0000": ["10", "not reached"]})
        self.assertIn("no validation set in common", self.reached(first, run("none", val_loss_z=5.0), code=2))

    def test_a_loss_that_is_not_finite_reaches_none(self):
        records = [dict(step=10, val_loss=None, nonfinite=dict(val_loss="nan")), dict(step=20, val_loss=0.25)]
        b = os.path.dirname(write_records(self, "b", [dict(step=1, loss=1.0, ms=1.0), *records]))
        self.assertEqual(self.reached(self.a, b, "--loss", "0.3"), {"0.3000": ["20", "20 (1.00 times)"]})

    def test_without_validations(self):
        b = os.path.dirname(write_records(self, "b", [dict(step=1, loss=1.0)]))
        self.assertIn("steps_to_loss: b has no validation losses (train with --val)", self.reached(self.a, b, code=2))
        c = os.path.dirname(write_records(self, "c", [dict(step=1, loss=1.0), dict(step=1, val_loss=None)]))
        self.assertIn("steps_to_loss: c has no validation loss that is finite", self.reached(self.a, c, code=2))
        self.assertIn("holds no metrics.jsonl", self.reached(self.directory, code=2))


if __name__ == "__main__":
    unittest.main()
