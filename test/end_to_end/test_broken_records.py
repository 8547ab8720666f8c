"""The scripts that read runs, with damaged files and with a Python that lacks their packages."""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import unittest

from test_scripts import ROOT, InDirectory, load, write_records, write_run


class BrokenRecords(InDirectory):
    """Damaged files, or files of another program, lead to a message or a note, and never to a traceback."""

    def shown(self, name, *runs):
        """The exit code and everything that a script prints about these runs; exceptions are passed on."""
        module = load(name)
        module.draw = lambda *_: None
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            code = module.main([*map(str, runs), "-o", os.path.join(self.directory, "out")])
        return code, out.getvalue()

    def damaged(self, change, name="bad"):
        """A run whose records `change` has modified."""
        directory = write_run(self, name, precision="fp8")
        records = load("runs").read_records(os.path.join(directory, "metrics.jsonl"))
        change(records)
        write_records(self, name, records)
        return directory

    def test_values_of_the_wrong_kind_are_skipped_and_counted(self):
        good = write_run(self, "good")
        for key, value, step in (("loss", "low", 3), ("tokens_per_s", [1], 3), ("step", -3, 3), ("fp8", [{"tensor": "x"}], 10),
                                 ("val_loss", {}, 10), ("products", 7, 5), ("loss", True, 4), ("sample", 5, 5)):
            def change(records):
                next(r for r in records if r["step"] == step and (key in r or key == "sample"))[key] = value

            with self.subTest(key=key, value=value):
                bad = self.damaged(change)
                code, text = self.shown("compare_runs", good, bad)
                if key == "step":
                    self.assertEqual((code, text), (2, f"compare_runs: {bad}/metrics.jsonl:3 is not a record: it has no step\n"))
                    continue
                note = f"bad: 1 record of metrics.jsonl skipped, with values that cannot be right (step {step}: {key})"
                self.assertEqual(code, 0, text)
                self.assertIn("note: " + note, text)
                self.assertEqual(self.shown("report", good, bad)[0], 0)
                with open(os.path.join(self.directory, "out"), encoding="utf-8") as file:
                    self.assertIn(note, file.read())

    def test_what_is_missing_is_not_needed(self):
        def change(records):
            for record in records:
                for key in ("tokens_per_s", "tokens", "ms", "products", "skipped", "lr", "norm"):
                    record.pop(key, None)

        bad = self.damaged(change)
        code, text = self.shown("compare_runs", write_run(self, "good"), bad)
        self.assertRegex(text, r"tokens/s, median +100 +-\n")
        self.assertEqual(self.shown("report", bad)[0], 0)

    def test_a_validation_loss_that_is_not_finite(self):
        def change(records):
            next(r for r in records if r["step"] == 20 and "val_loss" in r)["val_loss"] = None

        code, text = self.shown("compare_runs", write_run(self, "good"), self.damaged(change), "--max-gap", "1%")
        self.assertEqual(code, 1, text)
        self.assertIn("bad: the gap to good is not finite (validation, step 20)", text)
        self.assertIn("note: bad: val_loss of step 20 is not finite", text)

    def test_copies_and_machines(self):
        """A copy is no second run. Rows of the machine are shown where they differ."""
        def run(name, **started):
            path = write_run(self, name)
            with open(os.path.join(path, "run.json"), "r+", encoding="utf-8") as file:
                info = json.load(file) | started
                file.seek(0)
                json.dump(info, file)
            return path

        a = run("a", run_id="7", versions={"git": "1", "nccl": "2"}, device="card")
        b = run("b", versions={"git": "1"}, device="card", resumed=[{"versions": {"git": "1", "nccl": "3"}, "device": "slow"}])
        code, text = self.shown("compare_runs", a, b)
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"(?m)^device +card +slow$")
        self.assertRegex(text, r"(?m)^  nccl +2 +3$")
        self.assertNotRegex(text, r"(?m)^(  git|ranks) ")
        code, text = self.shown("compare_runs", a, run("copy", run_id="7"))
        self.assertEqual((code, text[:37]), (2, "compare_runs: copy is a copy of a: th"), text)

    def test_a_full_disk_leaves_the_earlier_page(self):
        run, page = write_run(self, "run"), self.write("page.html", "earlier")
        command = [sys.executable, os.path.join(ROOT, "scripts", "report.py"), run, "-o", page]
        done = subprocess.run(command, capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(sorted(os.listdir(self.directory)), ["page.html", "run"])
        with open(page, encoding="utf-8") as file:
            self.assertEqual(file.read(), "earlier")
        self.assertEqual(self.shown("report", run)[0], 0)
        subprocess.run([*command[:-1], "/dev/null"], check=True, capture_output=True)
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_deeply_nested(self):
        good = write_run(self, "good")
        path = os.path.join(write_run(self, "bad"), "metrics.jsonl")
        deep = "[" * 100_000 + "]" * 100_000
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 41, "loss": ' + deep + '}\n{"step": 42}\n')
        code, text = self.shown("report", path)
        self.assertEqual(code, 2)
        self.assertRegex(text, r"^report: \S+metrics.jsonl:\d+ is not JSON: [^\n]*\n$")
        for info in (deep, '{"config": ' + "[" * 200 + "]" * 200 + "}", "[1]", '{"model": 1, "config": [], "resumed": [1]}'):
            self.write("good/run.json", info)
            self.assertEqual(self.shown("report", good)[0], 0)
            self.assertIn("note: good: run.json is damaged", self.shown("compare_runs", write_run(self, "whole"), good)[1])
            self.assertLess(self.shown("compare_runs", good, write_run(self, "other"))[0], 2)

    def test_random_values(self):
        rng = random.Random(5)
        values = [None, "text", "\x1b[31m\ud800", True, [], [1], {}, {"a": {}}, -1, 0, 2**70, 1e308, -1e308, 1e-320, 0.5]

        def change(records):
            for _ in range(rng.choice([1, 1, 3, 9])):
                inside = rng.choice(records)
                for value in list(inside.values()):  # of the record, or inside it
                    if isinstance(value, list) and value and isinstance(value[0], dict) and rng.random() < 0.5:
                        inside = rng.choice(value)
                    elif isinstance(value, dict) and rng.random() < 0.3:
                        inside = value
                key = rng.choice([*inside, "sample", "memory", "fp8_fallback", "memory_outside", "spike", "nonfinite"])
                if key != "step" or inside not in records:
                    inside[key] = rng.choice(values)

        good = write_run(self, "good", precision="fp8")
        for case in range(20):
            with self.subTest(case=case):
                bad = self.damaged(change)
                info = json.loads(self.read(os.path.join(bad, "run.json")))
                inside = rng.choice([info, info["config"], info["model"]])
                inside[rng.choice([*inside, "resumed", "train", "max-steps", "lr"])] = rng.choice(values)
                self.write("bad/run.json", json.dumps(info))
                for name, runs in (("report", [good, bad]), ("report", [bad]), ("compare_runs", [bad, good]),
                                   ("steps_to_loss", [bad, good])):
                    code, text = self.shown(name, *runs)
                    self.assertIn(code, (0, 1, 2), text)
                    self.assertNotIn("\x1b", text)

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()


class OtherPython(InDirectory):
    """Scripts that need a package continue with the Python of .venv, or say where to get the package."""

    def run_script(self, name, *arguments):
        for script in ("runs", "plot_run", "plot_scaling", "compare_runs", "steps_to_loss"):
            source = os.path.join(ROOT, "scripts", script + ".py")
            os.makedirs(os.path.join(self.directory, "scripts"), exist_ok=True)
            shutil.copy(source, os.path.join(self.directory, "scripts"))
        os.makedirs(os.path.join(self.directory, "scripts/published"), exist_ok=True)
        # -S: no site packages.
        return subprocess.run([sys.executable, "-S", os.path.join(self.directory, "scripts", name + ".py"), *arguments],
                              capture_output=True, text=True)

    def test_goes_on_with_that_of_venv(self):
        self.write(".venv/bin/python", "#!/bin/sh\necho venv: $*\n", executable=True)
        for name in ("plot_run", "plot_scaling"):
            result = self.run_script(name, "run")
            self.assertEqual((result.returncode, result.stdout, result.stderr),
                             (0, f"venv: -S {self.directory}/scripts/{name}.py run\n", ""))
        for name in ("compare_runs", "steps_to_loss"):
            self.assertIn("venv: -S", self.run_script(name, "run", "other").stdout)

    def test_says_so_without_venv(self):
        for name in ("plot_run", "plot_scaling"):
            result = self.run_script(name, "run")
            self.assertEqual((result.returncode, result.stderr), (
                1, f"{name}.py needs the Python package matplotlib: pip install matplotlib, or scripts/setup.sh\n"))

    def test_the_library_says_what_it_is(self):
        result = self.run_script("runs")
        self.assertEqual(result.returncode, 1)
        self.assertIn("A library for the scripts", result.stderr)


if __name__ == "__main__":
    unittest.main()
