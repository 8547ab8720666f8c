"""scripts/drift.py: a run's checkpoint continued in BF16, in FP8, and as a control."""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from trainer import ENVIRONMENT, ROOT, FinishedRun, corpus, new_path, read_records, write_json

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import drift as module  # noqa: E402


def drift(*flags):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "drift.py"), *map(str, flags)], capture_output=True,
                          text=True, env=ENVIRONMENT, timeout=300, check=False)


class Drift(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        flags = ["--precision", "bf16", "--max-steps", "30", "--lr", "2e-3", "--val", corpus().val, "--val-batches", "4"]
        cls.trunk = FinishedRun(*flags, "--stop-after", "20")
        if (ended := cls.trunk.resume(*flags)).code != 0:
            raise AssertionError(ended.err)

    def gaps(self, *flags):
        """The numbers of each row of the table: the loss in BF16, and the gaps of FP8 and the control in percent."""
        done = drift(self.trunk.directory, "--steps", "10", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step_00000020, 10 steps", done.stdout)
        kl, error = map(float, re.fullmatch(r"FP8's forward pass: KL (\S+) \+- (\S+) % of the loss",
                                            done.stdout.splitlines()[-1]).groups())
        self.assertTrue(0 < 3 * error < kl < 0.1, (kl, error))
        found = [re.split(r" {3,}", line) for line in done.stdout.splitlines()[2:-1]]
        return {row[0]: [float(cell.removesuffix(" %")) for cell in row[1:]] for row in found}

    def test_fp8_and_the_control(self):
        out = new_path("drift")
        rows = self.gaps("-o", out)
        self.assertEqual(list(rows), ["training loss, 10 steps", "training loss, last 2", "val_loss, evaluated in BF16"])
        losses = {name: [r for r in read_records(os.path.join(out, name)) if "loss" in r] for name in ("bf16", "fp8", "control")}
        for name, products in (("bf16", {"bf16": 27}), ("fp8", {"fp8": 14, "bf16": 13}), ("control", {"bf16": 27})):
            self.assertEqual([r["step"] for r in losses[name]], list(range(21, 31)))
            self.assertEqual({kind: n for kind, n in losses[name][0]["products"].items() if n}, products)
            self.assertEqual(os.listdir(os.path.join(out, name)).count("checkpoints"), 0)
        # The trunk itself was BF16, so its last ten steps are the same.
        self.assertEqual([r["loss"] for r in losses["bf16"]], self.trunk.losses[20:])
        loss, fp8, control = rows["training loss, 10 steps"]
        mean = {name: sum(r["loss"] for r in records) / 10 for name, records in losses.items()}
        self.assertAlmostEqual(loss, mean["bf16"], places=3)
        self.assertAlmostEqual(fp8, 100 * (mean["fp8"] / mean["bf16"] - 1), places=3)
        self.assertAlmostEqual(control, 100 * (mean["control"] / mean["bf16"] - 1), places=3)
        self.assertNotEqual(losses["control"], losses["bf16"])
        self.assertLess(abs(control), 0.05)
        self.assertLess(abs(fp8), 0.5)
        # Flags of the FP8 run: with this margin most values underflow, and the gap is no longer small.
        done = drift(self.trunk.directory, "--steps", "10", "-o", out, "--json", "--", "--fp8-margin", "16", "--fp8-layers", "all")
        found = json.loads(done.stdout)
        self.assertGreater(found["against_bf16"]["kl"], 0)
        found = found["losses"]
        self.assertEqual(list(found), list(rows))
        worse = found["training loss, 10 steps"]
        self.assertGreater(100 * (worse["fp8"] / worse["bf16"] - 1), max(5 * abs(fp8), 0.3))
        self.assertEqual((worse["bf16"], worse["control"]), (mean["bf16"], mean["control"]))

    def test_the_control_rounds_differently_by_construction(self):
        """Also in a model in which two micro-steps alone have the same bits as one, with any kind of clipping."""
        model = new_path("model.json")
        write_json(model, {"architecture": "llama", "layers": 1, "channels": 32, "heads": 2, "kv_heads": 1, "hidden": 64,
                           "context": 32})
        for clip in ([], ["--clip-kind", "value"]):
            trunk = FinishedRun("--precision", "bf16", "--model", model, "--max-steps", "6", "--stop-after", "3", *clip)
            out = new_path("drift")
            self.assertEqual(drift(trunk.directory, "--steps", "3", "-o", out).returncode, 0)
            bf16, control = ([r["loss"] for r in read_records(os.path.join(out, name)) if "loss" in r]
                             for name in ("bf16", "control"))
            self.assertEqual(len(control), 3)
            if not clip:
                self.assertNotEqual(control, bf16)

    def test_validations_of_the_run(self):
        """No rule of the run about them stops a branch or changes its learning rate, which --plateau may have lowered."""
        val = ["--precision", "bf16", "--val", corpus().val, "--max-steps", "12", "--schedule", "constant", "--stop-after", "8"]
        for flags in (["--val-every", "3", "--val-batches", "1", "--plateau", "0.5,0", "--early-stop", "9", "--lr", "0.5"],
                      ["--val-batches", "0"]):
            trunk, out = FinishedRun(*val, *flags), new_path("drift")
            done = drift(trunk.directory, "--steps", "4", "-o", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("val_loss, evaluated in BF16" in done.stdout, "--plateau" in flags)
            self.assertIn("FP8's forward pass: KL", done.stdout)
            rates = {name: [r["lr"] for r in read_records(os.path.join(out, name)) if "lr" in r] for name in ("bf16", "fp8")}
            self.assertEqual(rates, dict.fromkeys(rates, [trunk.steps[-1]["lr"]] * 4))
            self.assertEqual(trunk.steps[-1]["lr"] < trunk.steps[2]["lr"], "--plateau" in flags, "the loss rises at this rate")

    def test_a_validation_that_is_not_finite(self):
        """As eval.json has it: null."""
        out = new_path("drift")
        os.makedirs(out)
        write_json(os.path.join(out, "eval.json"), {"val_loss": None, "val_loss_b": 2.0, "step": 3})
        losses = module.evaluate(["true"], out, {"val": ["a"], "batch": 1, "seq": 1}, os.path.join(out, "log"))
        self.assertEqual(list(losses), ["val_loss", "val_loss_b"])
        finite = dict.fromkeys(("bf16", "fp8", "control"), 2.0)
        self.assertEqual(module.gaps(finite | {"fp8": losses["val_loss"]}), ["2.0000", "not finite", "+0.000 %"])
        self.assertEqual(module.gaps(finite | {"bf16": losses["val_loss"]}), ["not finite"] * 3)

    def test_what_is_not_its_own_stays(self):
        for name in ("bf16", "control", "fp8"):  # somebody's folder, another run, and somebody's continuation of this run
            out = new_path("drift")
            os.makedirs(os.path.join(out, name))
            if name == "control":
                write_json(os.path.join(out, name, "run.json"), {"run_id": "other"})
            elif name == "fp8":
                write_json(os.path.join(out, name, "run.json"), self.trunk.info)
            done = drift(self.trunk.directory, "--steps", "5", "-o", out)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"{name} is there already", done.stderr)
            self.assertEqual(os.listdir(out), [name])

    def test_refusals(self):
        shutil.copytree(os.path.join(self.trunk.directory, "checkpoints", "step_00000020"),
                        os.path.join(self.trunk.directory, "checkpoints", "step_00000030.set_aside"))
        for flags, words in (((self.trunk.directory, "--steps", "25"), "has no checkpoint with 25 steps left"),
                             ((os.path.join(self.trunk.directory, "checkpoints", "step_00000020"), "--steps", "20"),
                              "checkpoints of steps 20"),
                             ((new_path(), "--steps", "1"), "does not exist"),
                             ((os.path.join(self.trunk.directory, "checkpoints", "step_00000021"), "--steps", "1"),
                              "step_00000021 does not exist"),
                             ((ROOT, "--steps", "1"), "no run.json"),
                             ((self.trunk.directory, "--steps", "5", "--", "--fp8-recipe", "none"), "'none' is not one of"),
                             ((self.trunk.directory, "--steps", "5", "--", "--fp8-layers", "none"), "no matmul in FP8")):
            done = drift(*flags)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
