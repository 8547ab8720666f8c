"""Memory on the host (--offload): the bits of a run without it, on any ranks and through a resume; and its plans."""

import json
import unittest

from test_run_profile import Trace
from test_run_ranks import MPIRUN, ONE_THREAD, RankRun, check_same_run
from trainer import FLAGS, RESOURCES, Case, FinishedRun, corpus, run, tiny_flags


class SameNumbers(Case):
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
            self.succeeds(stopped.resume(*flags, *more))
        self.assertEqual(stopped.losses, plain.losses)
        self.assertEqual(stopped.read("model.safetensors"), plain.read("model.safetensors"))


BLOCKS, SLOTS = 4, 3  # slots of StateRing
OVERLAP_FLAGS = ["--layers", BLOCKS, "--batch", 2, "--total-batch", 256, "--precision", "fp8", "--recompute", "block",
                 "--offload", "both"]  # two micro-steps


def check_overlap(test, runs):
    """`runs`: traced runs of OVERLAP_FLAGS, by the order in which the streams' work ran. If a copy comes before other
    work in one order and after it in another, neither waits for the other, so a card can run them at the same time.
    """
    traces = {order: Trace(run.path("trace-rank0.json")) for order, run in runs.items()}
    now, lazy = traces["now"], traces["lazy"]
    # Inputs of blocks go to the host behind the next block, and come back while the block above is at work. Backward
    # begins with three blocks whose inputs are still on the device.
    for copy, step, blocks in (("residual to the host", 1, [*range(BLOCKS)]),
                               ("residual to the device", -1, [*range(BLOCKS - 4, -1, -1)])):
        for i, block in enumerate(blocks):
            beside = f"block {block + 1} {'forward' if step > 0 else 'backward'}"
            early, late = (t.named(copy)[i::len(blocks)] for t in (now, lazy))
            test.assertGreater(len(early), 0)
            test.assertEqual(len(early), len(late))
            if block + 1 == BLOCKS:
                continue
            for at, (a, b) in enumerate(zip(early, late)):
                test.assertLess(a["begin"], now.named(beside)[at]["end"], (copy, block))
                test.assertGreaterEqual(b["begin"], lazy.named(beside)[at]["end"], (copy, block))
    arrived = []  # slices on the device before any update can run
    for order, trace in traces.items():
        for step in sorted({r["args"]["step"] for r in trace.ranges}):
            there, back, updates = ([r for r in trace.named(name) if r["args"]["step"] == step]
                                    for name in ("state to the device", "state to the host", "update"))
            test.assertEqual((len(there), len(updates)), (len(back), 1))
            test.assertGreater(len(there), 2 * SLOTS)
            early = [r for r in there if r["begin"] < updates[0]["begin"]]
            test.assertLessEqual(len(early), SLOTS)
            arrived.append((order, len(early)))
            for k, (a, b) in enumerate(zip(there, back)):
                test.assertLessEqual(a["end"], b["begin"])
                if k + SLOTS < len(there):
                    test.assertLessEqual(b["end"], there[k + SLOTS]["begin"], "room in the ring")
                # Copies back come before the next slice's copy in one order, and after that of the slice after it.
                if order == "now" and k + 1 < len(there):
                    test.assertLessEqual(b["end"], there[k + 1]["begin"])
                if order == "lazy" and k + 2 < len(there):
                    test.assertGreaterEqual(b["begin"], there[k + 2]["end"])
    # Without waiting for gradients, nor for the update of the slice before it.
    test.assertGreaterEqual(max(n for order, n in arrived if order == "random"), 2, arrived)
    test.assertEqual({n for order, n in arrived if order != "random"}, {0})


class Overlap(Case):
    def test_copies_beside_blocks_and_updates(self):
        flags = [*OVERLAP_FLAGS, "--max-steps", 20, "--profile-steps", 16]
        check_overlap(self, {streams: FinishedRun(*flags, env={"LLMC_STREAMS": streams})
                             for streams in ("now", "lazy", "random")})


class Plans(Case):
    def plan(self, code, *flags):
        result = self.succeeds(run(*flags, "--dry-run", "--json"), code)
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
        self.refused(run(*tiny_flags("--precision", "fp32", "--offload", "optimizer")), FLAGS,
                     "--offload optimizer needs --precision bf16 or fp8")
        # No machine has 10 TiB; training does not begin.
        result = self.refused(run("--train", corpus().train, "-e", "llama3-70b", "-b", "1", "--offload", "optimizer",
                                  "--precision", "bf16"), RESOURCES)
        self.assertRegex(result.err, r"--offload needs \d+\.\d GiB of host memory per rank, and this machine has ")


if __name__ == "__main__":
    unittest.main()
