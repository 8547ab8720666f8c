"""The average of the weights (--average): its definition, that training does not notice it, and that it is saved,
continued, evaluated and exported.
"""

import array
import math
import os
import signal
import time
import unittest

from test_run_checkpoints import Directory
from test_run_ranks import MPIRUN, ONE_THREAD
from trainer import (BRIEF, CHECKPOINT, FLAGS, FP8_RECIPES, Case, corpus, new_path, read_json, read_safetensors,
                     recipe_flags, run)

EMA = ["--average", "ema:0.7"]
# Each changes how masters or working copies are kept. The last flags win.
KINDS = [["--precision", "fp32"], ["--master", "bf16"], ["--offload", "optimizer"], ["--optimizer", "muon"],
         ["--optimizer", "normuon", "--master", "bf16", "--offload", "optimizer"], ["--verify-every", "1"],
         ["--precision", "fp8", "--master", "bf16", "--fp8-layers", "all,+lm_head"],
         *([*recipe_flags(recipe), "--batch", "8"] for recipe in FP8_RECIPES)]


def values(state, part):
    """Returns {tensor: numbers} of one part of a state."""
    return {tensor: array.array("f", data) for (tensor, p), data in state.items() if p == part}


def timeless(records):
    return [{k: v for k, v in r.items() if k != "verify_ms"} for r in records]


class Definition(Case):
    def test_ema(self):
        """torch.optim.swa_utils: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7)).update_parameters(model)
        after every step, which QK-clip ends. The first call copies.
        """
        run, masters = Directory(), []
        for step in range(1, 7):
            self.succeeds(run.run("--max-steps", "6", "--stop-after", step, "--resume", "auto", *EMA,
                                  "--qk-clip", "0.002", "--signals-every", "1"))
            masters.append(values(run.state(step), "master"))
            self.assertEqual(run.manifest(step)["state"]["average"], {"kind": "ema", "count": step})
            factors = [0.7 ** (step - 1) if i == 0 else 0.3 * 0.7 ** (step - 1 - i) for i in range(step)]
            for tensor, found in values(run.state(step), "average").items():
                history = [weights[tensor] for weights in masters]
                for i, number in enumerate(found):
                    exact = math.fsum(f * h[i] for f, h in zip(factors, history))
                    self.assertLess(abs(number - exact), 1e-6 * max(abs(h[i]) for h in history) + 1e-12, (tensor, i))
        logits = [t["max_logit"] for r in run.records() for t in r.get("signals", []) if "max_logit" in t]
        self.assertGreater(max(logits), 0.002, "it clips")


class Training(Case):
    def test_training_does_not_notice(self):
        """All numbers and the state, but for the average, are those of a run without it."""
        for flags in [[], *(KINDS[::3] if BRIEF else KINDS)]:
            with self.subTest(flags=flags):
                plain, averaged = Directory(), Directory()
                limits = ["--max-steps", "6", "--val-every", "2", "--fp8-log-every", "1"]
                self.succeeds(plain.run(*limits, *flags))
                self.succeeds(averaged.run(*limits, *EMA, *flags))
                self.assertEqual(timeless(averaged.records()), timeless(plain.records()))
                self.same_state({name: data for name, data in averaged.state(6).items() if name[1] != "average"},
                                plain.state(6))


class Resume(Case):
    FLAGS = ["--batch", "2", "--total-batch", "192", "--reduce-order", "rank", "--max-steps", "8", "--val-every", "2"]

    def run_on(self, run, ranks, *flags, code=0):
        """As many sequences are validated on any number of ranks."""
        return self.succeeds(run.run(*self.FLAGS, "--val-batches", 6 // ranks, *flags, ranks=ranks), code)

    def same_bits(self, run, whole, step=8):
        self.same_state(run.state(step), whole.state(step))
        self.assertEqual(run.manifest(step)["state"], whole.manifest(step)["state"])
        self.assertEqual(run.records(), whole.records())

    def test_killed(self):
        """The run has far more steps than it makes before it is killed, however slow this process is."""
        flags = [*self.FLAGS, "--val-batches", "6", "--max-steps", "6000", "-n", "2", "--average", "ema:0.9"]
        whole, killed = Directory(), Directory()
        process = killed.start(*flags, env=ONE_THREAD)
        while max(killed.checkpoints, default=0) < 12 and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        end = max(killed.checkpoints) + 8
        self.succeeds(killed.run(*flags, "--resume", "latest", "--stop-after", end))
        self.succeeds(whole.run(*flags, "--stop-after", end))
        self.same_bits(killed, whole, end)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_ranks_and_stages(self):
        """The bits of one rank, in every stage, and through a resume on fewer ranks."""
        whole = Directory()
        self.run_on(whole, 1, *EMA)
        for zero in ("0", "1", "2", "3"):
            with self.subTest(zero=zero):
                run = Directory()
                self.run_on(run, 3, *EMA, "--zero", zero, "--stop-after", "4")
                self.run_on(run, 2, *EMA, "--zero", zero, "--resume", "latest")
                self.same_bits(run, whole)

    def test_begins_in_a_resumed_run(self):
        plain, run = Directory(), Directory()
        self.run_on(plain, 1)
        self.run_on(run, 1, "--stop-after", "4")
        result = self.run_on(run, 1, "--resume", "latest", "--stop-after", "6", *EMA)
        self.assertIn("note: the checkpoint has no average of the weights: --average begins", result.out)
        self.assertEqual(run.manifest(6)["state"]["average"], {"kind": "ema", "count": 2})
        result = self.run_on(run, 1, "--resume", "latest")
        self.assertIn("--average off from here on; until now it was ema:0.7", result.out)
        self.same_state(run.state(8), plain.state(8))

    def test_refused(self):
        for rule, problem in (("ema:1", "between 0 and 1"), ("ema:0", "between 0 and 1"), ("ema:0.5x", "ema:DECAY"),
                              ("last:3", "have been removed; use ema:DECAY"), ("swa", "ema:DECAY"), ("", "--average")):
            self.refused(Directory().run("--average", rule), FLAGS, problem)


class Commands(Case):
    def test_export_eval_and_sample(self):
        """The export has the bits of the average, and `eval` and `sample` compute the same with either. The average is
        behind the weights, and the loss is falling."""
        directory, exported, report = Directory(), new_path(), new_path() + ".json"
        self.succeeds(directory.run(*EMA, "--precision", "fp32", "--val-batches", "-1"))
        losses = [r["val_loss"] for r in directory.records() if "val_loss" in r]
        self.succeeds(run("export", "--from", directory.path, "--average", "--to", exported, "--tokenizer", "bytes"))
        tensors = read_safetensors(os.path.join(exported, "model.safetensors"))
        average = directory.state(12)["h.0.fc.bias", "average"]
        self.assertEqual(tensors["transformer.h.0.mlp.c_fc.bias"][2], average)
        self.assertNotEqual(directory.state(12)["h.0.fc.bias", "master"], average)
        found = []
        for flags in (["--from", directory.path, "--average"], ["--from", exported], ["--from", directory.path]):
            self.succeeds(run("eval", *flags, "--val", corpus().val, "--batch", "4", "--precision", "fp32", "-o", report,
                              env=ONE_THREAD))
            found.append(read_json(report)["val_loss"])
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[2], losses[-1])
        self.assertTrue(losses[-1] < found[0] < losses[0], (losses, found))
        text = [self.succeeds(run("sample", *flags, "--tokenizer", "bytes", "--prompt", "a", "-g", "8", env=ONE_THREAD)).out
                for flags in (["--from", directory.path, "--average"], ["--from", exported])]
        self.assertEqual(*text)

    def test_refused(self):
        directory = Directory()
        self.succeeds(directory.run("--max-steps", "2"))
        self.refused(run("eval", "--from", directory.path, "--average", "--val", corpus().val), CHECKPOINT,
                     "has no average of the weights")
        self.refused(run("export", "--from", new_path(), "--average", "--to", new_path()), CHECKPOINT,
                     "no checkpoint here")


if __name__ == "__main__":
    unittest.main()
