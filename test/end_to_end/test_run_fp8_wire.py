"""Runs whose gradients travel in FP8 (--reduce fp8): every stage of sharding has the same bits, and so has a run that was
stopped: what ranks owe is in their checkpoints."""

import shutil
import unittest

from test_run_checkpoints import Case, Directory
from test_run_ranks import MPIRUN, ONE_THREAD, RankRun, check_same_run
from trainer import FinishedRun, corpus


@unittest.skipUnless(MPIRUN, "no mpirun")
class Stages(unittest.TestCase):
    def test_every_stage(self):
        """The same bits in every stage, verified or not; other bits than in BF16, and it learns."""
        flags = ["--total-batch", "384", "--max-steps", "8", "--lr", "1e-3", "--warmup", "2", "--reduce-order", "rank",
                 "--val", corpus().val, "--val-every", "4", "--val-batches", "2", "--batch", "2", "--precision", "bf16",
                 "--loss-scale", "dynamic", "--loss-scale-growth-interval", "3"]
        first = RankRun(3, *flags, "--reduce", "fp8", "--zero", "0")
        half = RankRun(3, *flags, "--reduce", "bf16", "--zero", "0")
        self.assertNotEqual(first.losses, half.losses)
        self.assertEqual(first.losses[0], half.losses[0])
        self.assertLess(first.losses[-1], first.losses[0])
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                run = RankRun(3, *flags, "--reduce", "fp8", "--zero", stage, "--verify-every", stage - 1)
                check_same_run(self, run, first)
                self.assertEqual(run.validations, first.validations)
                run.check_memory(self)
        one = FinishedRun(*flags, "--reduce", "fp8", env=ONE_THREAD)  # sends nothing, rounds nothing
        self.assertEqual(one.losses, FinishedRun(*flags, env=ONE_THREAD).losses)


@unittest.skipUnless(MPIRUN, "no mpirun")
class Checkpoints(Case):
    FLAGS = ["--batch", "1", "--total-batch", "384", "--reduce-order", "rank", "--precision", "bf16", "--reduce", "fp8",
             "--loss-scale", "dynamic", "--loss-scale-growth-interval", "4"]

    def test_what_ranks_owe_goes_on(self):
        """Residuals of --reduce fp8: on as many ranks in any stage the bits are those of a run that was not stopped."""
        whole = Directory()
        self.succeeds(whole.run(*self.FLAGS, "--zero", "0", ranks=3))
        owed = [name for name in whole.state(12) if name[1] == "residual"]
        self.assertEqual(sorted(owed), [(f"gradients.{r}", "residual") for r in range(3)])
        self.assertTrue(all(any(whole.state(12)[name]) for name in owed))
        for stage, other in ((0, 1), (2, 3), (3, 0)):
            with self.subTest(save=stage, load=other):
                run_ = Directory()
                self.succeeds(run_.run(*self.FLAGS, "--zero", str(stage), "--stop-after", "5", ranks=3))
                self.succeeds(run_.run(*self.FLAGS, "--zero", str(other), "--resume", "latest", ranks=3))
                state, expected = run_.state(12), whole.state(12)
                self.assertEqual(state.keys(), expected.keys())
                self.assertEqual([name for name in state if state[name] != expected[name]], [])
        # Others begin without, and say so; one rank, and other wires, owe nothing.
        for ranks, wire, note in ((2, "fp8", "starts without residuals: the checkpoint has those of 3 ranks"),
                                  (1, "fp8", "on 3 ranks"), (3, "bf16", "--reduce bf16 from here on")):
            with self.subTest(ranks=ranks, wire=wire):
                moved = Directory()
                shutil.copytree(run_.path, moved.path)
                shutil.rmtree(moved.checkpoints[12])
                done = self.succeeds(moved.run(*self.FLAGS, "--reduce", wire, "--resume", "latest", ranks=ranks))
                self.assertIn(note, done.out)
                self.assertEqual(len([n for n in moved.state(12) if n[1] == "residual"]), 2 if ranks == 2 else 0)


if __name__ == "__main__":
    unittest.main()
