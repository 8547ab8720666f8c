"""Memory on the host (--offload): the bits of a run without it, on any ranks and through a resume; and its plans."""

import json
import unittest

from test_run_ranks import MPIRUN, ONE_THREAD, RankRun, check_same_run
from trainer import FinishedRun, corpus, run, tiny_flags


class SameNumbers(unittest.TestCase):
    FLAGS = ["--max-steps", "8", "--total-batch", "512", "--lr", "2e-3"]

    def test_any_order_of_streams(self):
        """With lazy and random streams, a wait that is missing changes bits."""
        for offload, *kind in (["both", "--precision", "fp8", "--layers", "3", "--recompute", "block"],
                               ["optimizer", "--precision", "bf16", "--optimizer", "muon"],
                               ["residuals", "--precision", "fp32", "--layers", "5", "--recompute", "norm"]):
            plain = FinishedRun(*self.FLAGS, *kind)
            for streams in ("lazy", "random"):
                with self.subTest(kind=kind, streams=streams):
                    offloaded = FinishedRun(*self.FLAGS, *kind, "--offload", offload,
                                            env={"LLMC_STREAMS": streams, "LLMC_GUARD": "1"})
                    check_same_run(self, offloaded, plain)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_ranks(self):
        flags = ["--total-batch", "384", "--max-steps", "20", "--lr", "1e-3", "--reduce-order", "rank", "--batch", "2",
                 "--precision", "fp8", "--fp8-log-every", "20"]
        one = FinishedRun(*flags, env=ONE_THREAD)
        for stage in range(4):
            with self.subTest(stage=stage):
                three = RankRun(3, *flags, "--zero", stage, "--offload", "both")
                three.check_memory(self)
                check_same_run(self, three, one)

    def test_resume(self):
        """State is saved from host memory and restored to it. A resumed run may hold it elsewhere."""
        flags = [*self.FLAGS, "--precision", "fp8", "--adam-moments", "bf16"]
        plain, stopped = FinishedRun(*flags), FinishedRun(*flags, "--offload", "optimizer", "--stop-after", "3")
        for more in (["--stop-after", "6"], ["--offload", "both"]):
            result = run(*tiny_flags(*flags, "--out", stopped.directory, "--resume", "latest", *more))
            self.assertEqual(result.code, 0, result.err)
        self.assertEqual(stopped.losses, plain.losses)
        self.assertEqual(stopped.read("model.safetensors"), plain.read("model.safetensors"))


class Plans(unittest.TestCase):
    def plan(self, code, *flags):
        result = run(*flags, "--dry-run", "--json")
        self.assertEqual(result.code, code, result.err)
        return json.loads(result.out)

    def test_what_host_memory_makes_fit(self):
        """8B on an H100 and 14B on an H200. State is counted where it is, and its copies cost time."""
        for model, card in (("llama3-8b", "h100"), ("qwen3-14b", "h200")):
            with self.subTest(model=model):
                flags = ["-e", model, "-b", "1", "-r", "block", "-d", "524288", "--precision", "fp8", "--gpu", card]
                before, after = self.plan(5, *flags), self.plan(0, *flags, "--offload", "optimizer")
                self.assertEqual((before["memory"]["offloaded"], after["memory"]["optimizer"]), (0, 0))
                self.assertEqual(after["memory"]["offloaded"], before["memory"]["optimizer"])
                self.assertEqual(before["time"]["offload"], 0)
                self.assertAlmostEqual(after["step_ms"], before["step_ms"] + after["time"]["offload"], delta=1e-6)
                self.assertIn("--offload optimizer", {change["flags"] for change in before["would_fit"]})
                self.assertEqual(self.plan(0, *flags, "--offload", "auto")["memory"], after["memory"])
                both = self.plan(0, *flags, "--offload", "both", "-b", "8")["memory"]
                more = self.plan(0, *flags, "--offload", "optimizer", "-b", "8")["memory"]
                self.assertLess(both["activations"], more["activations"])
                self.assertGreater(both["offloaded"], more["offloaded"])
                fits = [*flags, "--world", "8", "-z", "3"]
                self.assertEqual(self.plan(0, *fits, "--offload", "auto")["memory"], self.plan(0, *fits)["memory"])

    def test_time_of_copies(self):
        """Master and two moments, there and back, at 35/32 of PCIe's 64 GB/s in both directions. Inputs of blocks hide."""
        flags = ["-e", "llama3-8b", "-r", "block", "--precision", "bf16", "--gpu", "h100", "-d", "65536"]
        plan = self.plan(0, *flags, "--offload", "optimizer")
        self.assertAlmostEqual(plan["time"]["offload"], 24 * plan["parameters"] / 70e6, delta=1)
        self.assertEqual(self.plan(0, *flags, "--offload", "both")["time"], plan["time"])

    def test_refusals(self):
        result = run(*tiny_flags("--precision", "fp32", "--offload", "optimizer"))
        self.assertEqual(result.code, 2)
        self.assertIn("--offload optimizer needs --precision bf16 or fp8", result.err)
        # No machine has 10 TiB; training does not begin.
        result = run("--train", corpus().train, "-e", "llama3-70b", "-b", "1", "--offload", "optimizer", "--precision",
                     "bf16")
        self.assertEqual(result.code, 5)
        self.assertRegex(result.err, r"--offload keeps \d+\.\d GiB of host memory for each rank, and this machine has ")


if __name__ == "__main__":
    unittest.main()
