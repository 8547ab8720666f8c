"""--verify-every: a bit that flips (LLMC_FLIP) ends the run with exit code 6, a name and no new checkpoint. What is
verified, and that verified steps leave no trace: test/train/verification.cpp and test/comm/ranks/verification.cpp."""

import math
import os
import unittest

from test_run_architectures import described
from test_run_architectures import flags as architecture_flags
from test_run_ranks import MPIRUN, run_each, run_ranks
from trainer import FLAGS, NUMBERS, VOCAB, Case, FinishedRun, new_path, run, tiny_flags

# Two norms a block and the last one: step 3 has 5, and step 4, which is verified, 10.
FLIPPED = {"LLMC_FLIP": "layernorm_forward:8"}
FOUND = (r"step 4: silent data corruption: rank 0 on \S+ \(CPU \(\d+ threads?\)\): output of block 1 had checksum "
         r"[0-9a-f]{16} in the first micro-step, and [0-9a-f]{16} when it was computed again\. Nothing was saved from this step "
         r"on: test or replace that card, and continue with --resume latest")


def checkpoints(directory):
    """The complete ones: a run that ends at once may leave another one behind that it has just begun."""
    return sorted(name for name in os.listdir(os.path.join(directory, "checkpoints")) if not name.endswith(".tmp"))


class Verification(Case):
    FLAGS = ["--max-steps", "5", "-n", "1"]

    def test_found(self):
        clean = FinishedRun(*self.FLAGS)
        found = FinishedRun(*self.FLAGS, "--stop-after", "2")
        result = self.refused(found.resume(*self.FLAGS, "--verify-every", "2", env=FLIPPED), NUMBERS)
        self.assertRegex(result.err, rf"^train_gpt: {FOUND}\n$")
        self.assertRegex(found.read("main.log").decode().splitlines()[-1], rf"^s:3 end:1 {FOUND}$")
        self.assertIn("output of block 1 had", found.records[-1]["corruption"])
        self.assertEqual([s.get("verified") for s in found.steps], [None, None, None, False])
        # There is no checkpoint of that step, none at the end, and no weights. The run can resume from the last one.
        self.assertIn(checkpoints(found.directory)[-1], ("step_00000002", "step_00000003"))
        self.assertFalse(os.path.exists(found.path("model.safetensors")))
        self.succeeds(found.resume(*self.FLAGS, "--verify-every", "2"))
        self.assertEqual(found.read("model.safetensors"), clean.read("model.safetensors"))
        self.assertEqual(found.read("main.log"), clean.read("main.log"))

    def test_flips_are_spelled_right(self):
        for text in ("layernorm_forward", "layernorm_forward:0", "layernorm_forward:x"):
            self.refused(run(*tiny_flags(), env={"LLMC_FLIP": text}), FLAGS,
                         f"LLMC_FLIP={text}: expected WORK:N, as in update_kernel:3")

    def test_records_and_memory(self):
        verified = FinishedRun(*self.FLAGS, "--precision", "fp8", "--verify-every", "2", "--total-batch", "512")
        self.assertEqual([s.get("verified") for s in verified.steps], [None, True, None, True, None])
        for step in (verified.steps[1], verified.steps[3]):
            self.assertGreater(step["verify_ms"], 0)
        verified.check_memory(self)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_one_rank_of_three(self):
        directory = new_path()
        flags = tiny_flags("--out", directory, "--batch", "1", "--zero", "3", *self.FLAGS, "--verify-every", "4")
        done = self.refused(run_each((flags, []), (flags, ["LLMC_FLIP=layernorm_forward:18"]), (flags, [])), NUMBERS)
        self.assertRegex(done.err, r"rank \d: " + FOUND.replace("rank 0 on", "rank 1 on"))
        self.assertNotIn("step_00000004", checkpoints(directory))


@unittest.skipUnless(MPIRUN, "no mpirun")
class EveryChecksum(Case):
    """Runs with the most checksums per tensor: matrices alone, codes of all weights next to working copies, and sums
    over ranks.
    """

    def test_blocks_of_codes_over_ranks(self):
        model = described("nano", channels=128, hidden=128)
        self.succeeds(run_ranks(2, *architecture_flags(
            model, "--precision", "fp8", "--fp8-recipe", "mxfp8", "--zero", "0", "--batch", "2", "--reduce-order", "rank",
            "--verify-every", "2")))


class FreshWeights(Case):
    def test_loss_of_step_1(self):
        fresh = FinishedRun("--max-steps", "2")
        expected = fresh.steps[0]["fresh_weights"]
        self.assertAlmostEqual(expected["ln_vocab"], math.log(VOCAB))
        self.assertLess(abs(fresh.losses[0] - expected["expected_loss"]), 0.5)
        self.assertNotIn("fresh_weights", fresh.steps[1])
        self.assertNotIn("of fresh weights", fresh.result.out)
        # Nothing is expected of weights from elsewhere.
        given = FinishedRun("--max-steps", "1", "--init-from", fresh.path("model.safetensors"))
        self.assertNotIn("fresh_weights", given.steps[0])


if __name__ == "__main__":
    unittest.main()
