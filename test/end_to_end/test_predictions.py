"""The arithmetic of predicted times and of the table of counts (dev/virtual_gpu/); runs no program."""

import os
import sys
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev", "virtual_gpu"))

import kernel_counts
import predict
import time_model

H100 = time_model.CARDS["H100"]
RATES = time_model.Rates(memory=2.5e12, launch=2e-6, tensor_share=0.8, mma_sync_share=0.67)


def work(**given):
    empty = {name: 0 for name in predict.SUMS}
    return {**empty, "launches": 1, "blocks": 132, "instructions": {}, "tensor_operations": {}, **given}


class Resources(unittest.TestCase):
    def seconds(self, **given):
        time, bound = time_model.kernel_time(H100, RATES, work(**given))
        return time - RATES.launch, bound

    def test_dram(self):
        # A GB read and a GB written.
        seconds, bound = self.seconds(blocks=132 * 100, footprint_read_sectors=1e9 / 32, footprint_written_sectors=1e9 / 32)
        self.assertEqual(bound, "DRAM")
        self.assertAlmostEqual(seconds, 2e9 / 2.5e12, delta=1e-9)

    def test_pipes(self):
        # A warp instruction takes a quarter clock to issue, and 2 clocks on a pipe of 16 lanes; there are 132
        # multiprocessors.
        n = 132 * 1.75e9 * 1e-3  # warp instructions in a millisecond at one per clock
        self.assertAlmostEqual(self.seconds(instructions={"control": n})[0], 0.25e-3)
        self.assertAlmostEqual(self.seconds(instructions={"special": n})[0], 2e-3)
        self.assertEqual(self.seconds(instructions={"special": n, "float32": n})[1], "special")
        self.assertAlmostEqual(self.seconds(instructions={"parameter": n, "move": n, "control": n})[0], 0.25e-3)

    def test_part_of_the_card(self):
        # One block too many makes a second round; half as many blocks leave half of the card idle.
        n = 132 * 1.75e9
        one, two, half = (self.seconds(blocks=b, instructions={"control": n})[0] for b in (132, 133, 66))
        self.assertAlmostEqual(two / one, 2 * 132 / 133)
        self.assertAlmostEqual(half / one, 2)

    def test_tensor_cores(self):
        second = 4096 * 132 * 1.75e9  # operations of the tensor cores in BF16
        n = 132 * 1.75e9
        small = {"tensor": second / 4096}  # mma.sync: its warp issues everything else in turn
        alone = (1 / 0.67 + small["tensor"] / n / 4) / 0.8
        self.assertAlmostEqual(self.seconds(instructions=small, tensor_operations={"bf16": second})[0], alone)
        self.assertAlmostEqual(self.seconds(instructions=small, tensor_operations={"e4m3": second})[0],
                               alone - 0.5 / 0.67 / 0.8)
        more = {**small, "special": n / 2, "float32": n}  # a second of exponentials, and the issue of both
        self.assertAlmostEqual(self.seconds(instructions=more, tensor_operations={"bf16": second})[0],
                               alone + (1 + 1.5 / 4) / 0.8)
        # wgmma: the full rate, and only exponentials take turns with it.
        large = {"tensor": second / 65536, "special": n / 2, "float32": n}
        self.assertAlmostEqual(self.seconds(instructions=large, tensor_operations={"bf16": second})[0], 2 / 0.8)

    def test_l2(self):
        # Tiles for tensor cores bypass L1; other kernels read again from there.
        sectors = 46.6 * 132 * 1.75e9 * 1e-3 / 32
        tile = {"global_sectors": sectors, "tensor_operations": {"bf16": 1}, "instructions": {"tensor": 1}}
        self.assertAlmostEqual(self.seconds(**tile)[0], 1e-3)
        self.assertEqual(self.seconds(**tile)[1], "L2")
        self.assertEqual(self.seconds(global_sectors=sectors)[1], "shared and L1")

    def test_start(self):
        self.assertEqual(self.seconds(), (0, "start"))

    def test_occupancy(self):
        for registers, threads, shared, blocks in [(32, 256, 0, 8), (64, 256, 0, 4), (255, 128, 0, 2), (32, 32, 0, 32),
                                                   (32, 128, 100_000, 2), (24, 32, 0, 32)]:
            self.assertEqual(time_model.occupancy(H100, registers, threads, shared), blocks)


class Scaling(unittest.TestCase):
    """Counts of the form a + b layers + c sequences + d both, plus those of the start, are recovered for the whole
    model.
    """

    @staticmethod
    def lines(model, precision, layers, batch, steps, ids=predict.SMALL):
        def line(name, each):
            sums = {field: each * steps + 1000 * layers for field in predict.SUMS}
            return {"kernel": name, **sums, "launches": steps * layers + 1, "instructions": {"float32": each * steps},
                    "tensor_operations": {}, "registers": 32, "static_shared_bytes": 0,
                    "shapes": [{"blocks": 2, "threads": 256, "dynamic_shared_bytes": 0}]}
        return [line("void llmc::work_kernel<float>(float*)", 7 + 3 * layers + 5 * batch + 11 * layers * batch),
                line("llmc::adamw_kernel(float*)", predict.SMALL + predict.LENGTH + 2 + 12 * layers)]

    def setUp(self):
        with mock.patch.object(predict, "count", self.lines):
            self.counted = predict.Counted("d12", "bf16")

    def test_kernels(self):
        sums = self.counted.kernel("work_kernel<float>", 32)
        self.assertEqual(sums["global_sectors"], 7 + 3 * 12 + 5 * 32 + 11 * 12 * 32)
        self.assertEqual(sums["instruction float32"], 7 + 3 * 12 + 5 * 32 + 11 * 12 * 32)
        self.assertEqual(sums["launches"], 12)

    def test_optimizer_has_the_whole_vocabulary(self):
        sums = self.counted.kernel("adamw_kernel", 32)
        self.assertAlmostEqual(sums["global_sectors"], predict.PADDED + predict.LENGTH + 2 + 12 * 12)

    def test_a_step_takes_matmuls_and_rates_from_the_plan(self):
        planned = {"matmuls": 12.5, "elementwise_rate": 2.5e12, "launch": 2e-3, "tensor_share": 0.8,
                   "mma_sync_share": 0.67}
        with mock.patch.object(predict, "classifier", dict):
            parts, rows = predict.predict_step(H100, planned, self.counted, 32)
        self.assertEqual(parts["matmuls"], 12.5)
        self.assertEqual({row[0] for row in rows}, {"work_kernel<float>", "adamw_kernel"})
        self.assertGreater(parts["elementwise"], 12 * 2e-3)
        self.assertGreater(parts["optimizer"], 2e-3)
        self.assertEqual(predict.family("hopper::hopper_attention_forward_kernel<64, false, false>"), "attention")


class Table(unittest.TestCase):
    def test_more_fails_and_less_is_named(self):
        before = {("bf16", "k"): (1, 100, 50, 0, 0), ("bf16", "gone"): (1, 1, 1, 1, 1)}
        same = {("bf16", "k"): (1, 100, 50, 0, 0), ("bf16", "gone"): (1, 1, 1, 1, 1)}
        self.assertEqual(kernel_counts.compare(same, before), ([], []))
        errors, less = kernel_counts.compare({("bf16", "k"): (1, 101, 49, 3, 0), ("bf16", "new"): (1, 1, 1, 1, 1)}, before)
        self.assertEqual(len(errors), 3)
        self.assertIn("thread_instructions 100 -> 101 (+1.00 %)", errors[0])
        self.assertIn("shared_passes 0 -> 3 (from none)", errors[1])
        self.assertIn("has no line", errors[2])
        self.assertEqual(len(less), 2)

    def test_the_file_is_read_as_written(self):
        counts, compiled_by = kernel_counts.read_table(kernel_counts.TABLE)
        self.assertTrue(compiled_by.startswith("nvcc "))
        self.assertEqual({run for run, _ in counts}, set(kernel_counts.RUNS))
        self.assertTrue(all(len(c) == len(kernel_counts.COUNTED) for c in counts.values()))


if __name__ == "__main__":
    unittest.main()
