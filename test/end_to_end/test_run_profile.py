"""--profile-steps: a trace of every rank that contains each unit's compute, gathers and reductions, in an order that
the streams' waits allow; the same training with and without it; and refusals.
"""

import collections
import os
import subprocess
import sys
import unittest

from test_run_ranks import MPIRUN, RankRun
from trainer import ROOT, Case, FinishedRun, new_path, read_json, run, tiny_flags

LAYERS = 4
UNITS = ["embedding", *(f"block {i}" for i in range(LAYERS)), "final norm"]
# Four micro-steps per step in one process, two each in two processes.
FLAGS = ["--layers", LAYERS, "--batch", 2, "--total-batch", 512, "--max-steps", 6]
HOST, COMPUTE, WEIGHTS, GRADIENTS = range(4)


class Trace:
    """A trace file as a viewer reads it, with times in whole nanoseconds."""

    def __init__(self, path):
        self.json = read_json(path)
        events = self.json["traceEvents"]
        self.ranges = [e for e in events if e["ph"] == "X"]
        self.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        for r in self.ranges:
            r["begin"] = round(1000 * r["ts"])
            r["end"] = r["begin"] + round(1000 * r["dur"])

    def line(self, tid):
        return [r for r in self.ranges if r["tid"] == tid]

    def named(self, name):
        return [r for r in self.ranges if r["name"] == name]

    def counts(self, tid, step):
        return collections.Counter(r["name"] for r in self.line(tid) if r["args"]["step"] == step)


def overlapping(ranges):
    ordered = sorted(ranges, key=lambda r: (r["begin"], r["end"]))
    return [(a["name"], b["name"]) for a, b in zip(ordered, ordered[1:]) if a["end"] > b["begin"]]


class Base(Case):
    def check_times(self, trace):
        self.assertTrue(trace.ranges)
        for r in trace.ranges:
            self.assertGreaterEqual(r["end"], r["begin"], r)
        for tid in (COMPUTE, WEIGHTS, GRADIENTS):  # ranges of one stream come one after the other
            self.assertEqual(overlapping([r for r in trace.line(tid) if r["name"] != "sum over groups"]), [])

    def check_compute(self, trace, steps, micro_steps):
        self.assertEqual(sorted({r["args"]["step"] for r in trace.ranges}), list(steps))
        for step in steps:
            counts = trace.counts(COMPUTE, step)
            for unit in UNITS:
                self.assertEqual(counts[unit + " forward"], micro_steps, (step, unit))
                self.assertEqual(counts[unit + " backward"], micro_steps, (step, unit))
            self.assertEqual(counts["head and loss"], micro_steps)
            self.assertEqual((counts["gradient norm"], counts["update"]), (1, 1))
            self.assertEqual(trace.counts(HOST, step)["load a batch"], micro_steps)


class OneProcess(Base):
    def test_trace(self):
        for env in ({}, {"LLMC_STREAMS": "lazy", "LLMC_GUARD": "1"}):
            with self.subTest(env=env):
                done = FinishedRun(*FLAGS, "--precision", "fp8", "--fp8-layers", "all,+lm_head", "--profile-steps", "2",
                                   env=env)
                trace = Trace(done.path("trace-rank0.json"))
                self.check_times(trace)
                self.check_compute(trace, (3, 4), 4)
                for name in ("FP8 scales", "FP8 weight scales", "quantize weights"):
                    self.assertTrue(trace.named(name), name)
                self.assertEqual(trace.line(WEIGHTS) + trace.line(GRADIENTS), [])
                self.assertIn("profile of steps 3 to 4: written to ", done.result.out)
                self.assertIn("https://ui.perfetto.dev", done.result.out)
                self.assertEqual([s["step"] for s in done.steps], list(range(1, 7)))

    def test_refusals(self):
        for flags, parts in ((["--out", new_path(), "--profile-steps", "many"], ["'many'", "10:13"]),
                             (["--out", new_path(), "--profile-steps", "5"], ["3 to 7", "ends after step 6"]),
                             (["--out", new_path(), "--profile-steps", "2", "--stop-after", "3"], ["after step 3"]),
                             (["--profile-steps", "3"], ["--out"])):
            with self.subTest(flags=flags):
                self.refused(run(*tiny_flags(*FLAGS, *flags)), 2, "--profile-steps", *parts)


@unittest.skipUnless(MPIRUN, "no mpirun")
class Ranks(Base):
    def check_order(self, trace, slots):
        """Weights arrive before compute reads them, gradients are complete before they leave, and a slot is not filled
        while its unit is read.
        """
        for i, unit in enumerate(UNITS):
            compute = trace.named(unit + " forward") + trace.named(unit + " backward")
            gathers, reductions = trace.named("gather " + unit), trace.named("reduce " + unit)
            backward = trace.named(unit + " backward")
            per_reduction = len(backward) // len(reductions)
            for n, reduction in enumerate(reductions):
                self.assertGreaterEqual(reduction["begin"], backward[(n + 1) * per_reduction - 1]["end"], unit)
            if not slots:
                continue
            for r in compute:
                self.assertTrue([g for g in gathers if g["end"] <= r["begin"]], (unit, r))
            if unit.startswith("block"):
                rival = [r for u in UNITS[1:-1] if UNITS.index(u) % 2 == i % 2 for r in trace.named("gather " + u)]
                self.assertEqual(sorted(set(overlapping(compute + rival))), [])

    def check_ranks(self, precision, stage, gathers, reductions, env=None):
        flags = [*FLAGS, "--precision", precision, "--zero", stage]
        profiled = RankRun(2, *flags, "--profile-steps", "4:6", env=env)
        clock = set()
        for rank in range(2):
            trace = Trace(profiled.path(f"trace-rank{rank}.json"))
            self.assertEqual(list(trace.processes), [rank])
            self.assertIn(f"rank {rank} on ", trace.processes[rank])
            self.assertEqual(trace.names, {(rank, tid): name for tid, name in
                                           enumerate(("host", "compute", "weights", "gradients"))})
            clock.add(trace.json["baseTimeNanoseconds"])
            self.check_times(trace)
            self.check_compute(trace, (4, 5), 2)
            for step in (4, 5):
                self.assertEqual(trace.counts(WEIGHTS, step), {"gather " + u: n for u, n in gathers.items()})
                self.assertEqual(trace.counts(GRADIENTS, step), {"reduce " + u: reductions for u in UNITS})
            for r in trace.line(WEIGHTS) + trace.line(GRADIENTS):
                self.assertGreater(r["args"]["bytes"], 0)
                self.assertEqual(r["cat"], "communication")
            self.check_order(trace, slots=stage == 3)
        self.assertEqual(len(clock), 1)
        return flags, profiled

    # Two blocks fit into the slots, so a pass begins with the blocks with which the previous one ended.
    STAGE3 = {"embedding": 1, "block 0": 3, "block 1": 3, "block 2": 2, "block 3": 2, "final norm": 1}

    def test_stage_3(self):
        for precision in ("bf16", "fp8"):
            with self.subTest(precision=precision):
                flags, profiled = self.check_ranks(precision, 3, self.STAGE3, 2)
                plain = RankRun(2, *flags)
                self.assertEqual(profiled.timeless, plain.timeless)
                self.assertEqual(profiled.read("model.safetensors"), plain.read("model.safetensors"))

    def test_lazy_and_random_streams(self):
        for mode in ("lazy", "random"):
            with self.subTest(mode=mode):
                self.check_ranks("fp8", 3, self.STAGE3, 2, env={"LLMC_STREAMS": mode})

    def test_other_stages(self):
        everything = {unit: 1 for unit in UNITS}
        for stage, gathers, reductions in ((0, {}, 1), (1, everything, 1), (2, everything, 2)):
            with self.subTest(stage=stage):
                self.check_ranks("bf16", stage, gathers, reductions)

    def test_groups(self):
        done = RankRun(4, *FLAGS, "--zero", 3, "--shard-within", 2, "--profile-steps", "1")
        done.check_memory(self)
        self.assertIn("4 ranks over mpi, --zero 3 --shard-within 2", done.result.out)
        trace = Trace(done.path("trace-rank3.json"))
        self.check_times(trace)
        sums = trace.named("sum over groups")
        self.assertEqual(len(sums), len(UNITS))
        for r in sums:
            self.assertGreater(r["args"]["bytes"], 0)
            around = [a for a in trace.line(GRADIENTS) if a["begin"] <= r["begin"] and r["end"] <= a["end"]]
            self.assertEqual(sorted(a["name"][:6] for a in around), ["reduce", "sum ov"])

    def test_one_file_of_all_ranks(self):
        done = RankRun(2, *FLAGS, "--profile-steps", "1")
        merged = new_path() + ".json"
        script = [sys.executable, os.path.join(ROOT, "scripts", "merge_traces.py")]
        text = subprocess.run([*script, done.directory, "-o", merged], check=True, capture_output=True, text=True).stdout
        self.assertIn("2 ranks", text)
        trace = Trace(merged)
        self.assertEqual(sorted(trace.processes), [0, 1])
        parts = [Trace(done.path(f"trace-rank{rank}.json")) for rank in range(2)]
        self.assertEqual(len(trace.ranges), sum(len(part.ranges) for part in parts))
        # On one machine the clocks agree, so ranks reduce at the same time.
        for a, b in zip(parts[0].named("reduce block 1"), parts[1].named("reduce block 1")):
            self.assertLess(max(a["begin"], b["begin"]), min(a["end"], b["end"]))
        os.remove(done.path("trace-rank0.json"))
        partly = subprocess.run([*script, done.directory, "-o", merged], capture_output=True, text=True)
        self.assertEqual(partly.returncode, 1)
        self.assertIn("has no trace-rank0.json", partly.stderr)
        empty = subprocess.run([*script, new_path(), "-o", merged], capture_output=True, text=True)
        self.assertEqual(empty.returncode, 1)
        self.assertIn("--profile-steps", empty.stderr)


if __name__ == "__main__":
    unittest.main()
