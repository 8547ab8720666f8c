"""--reduce fp8 through checkpoints: the residuals of the ranks are saved, and a run on as many ranks continues with the bits
of a run that was not stopped. The stages of sharding: test/comm/ranks/fp8_wire.cpp."""

import shutil
import unittest

from test_run_checkpoints import Case, Directory
from test_run_ranks import MPIRUN


@unittest.skipUnless(MPIRUN, "no mpirun")
class Checkpoints(Case):
    FLAGS = ["--batch", "1", "--total-batch", "384", "--reduce-order", "rank", "--precision", "bf16", "--reduce", "fp8",
             "--loss-scale", "dynamic,4"]

    def test_residuals_continue(self):
        whole, run_ = Directory(), Directory()
        self.succeeds(whole.run(*self.FLAGS, "--zero", "0", ranks=3))
        saved = [name for name in whole.state(12) if name[1] == "residual"]
        self.assertEqual(sorted(saved), [(f"gradients.{r}", "residual") for r in range(3)])
        self.assertTrue(all(any(whole.state(12)[name]) for name in saved))
        self.succeeds(run_.run(*self.FLAGS, "--zero", "2", "--stop-after", "5", ranks=3))
        self.succeeds(run_.run(*self.FLAGS, "--zero", "3", "--resume", "latest", ranks=3))
        self.same_state(run_.state(12), whole.state(12))
        # Other numbers of ranks start without residuals and say so; one rank and other wires have none.
        for ranks, wire, note in ((2, "fp8", "starts without residuals: the checkpoint has those of 3 ranks"),
                                  (1, "fp8", "on 3 ranks"), (3, "bf16", "--reduce bf16 from here on")):
            with self.subTest(ranks=ranks, wire=wire):
                moved = Directory()
                shutil.copytree(run_.path, moved.path)
                shutil.rmtree(moved.checkpoints[12])
                done = self.succeeds(moved.run(*self.FLAGS, "--reduce", wire, "--resume", "latest", ranks=ranks))
                self.assertIn(note, done.out)
                self.assertEqual(len([n for n in moved.state(12) if n[1] == "residual"]), 2 if ranks == 2 else 0)

    def test_other_places_for_tensors(self):
        """With --adam-moments fp8 tensors begin at other places, so residuals would go to other parameters. All other
        changes of the format keep them."""
        flags = [*self.FLAGS, "--zero", "1", "--channels", "96", "--layers", "2", "--heads", "3"]
        note = ("note: --reduce fp8 starts without residuals: the checkpoint has those of another --adam-moments, with other "
                "places for tensors\n")
        for then, now, starts in (("fp8", "fp32", True), ("fp32", "fp8", True), ("bf16", "fp8", True),
                                  ("fp32", "bf16", False), ("fp8", "fp8", False)):
            with self.subTest(then=then, now=now):
                run_ = Directory()
                self.succeeds(run_.run(*flags, "--adam-moments", then, "--stop-after", "2", ranks=2))
                done = self.succeeds(run_.run(*flags, "--adam-moments", now, "--resume", "latest", "--max-steps", "3",
                                              ranks=2))
                self.assertEqual(note in done.out, starts, done.out)
                self.assertEqual(run_.manifest(3)["state"]["residual_alignment"], 64 if now == "fp8" else 8)


if __name__ == "__main__":
    unittest.main()
