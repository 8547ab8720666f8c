"""The table of counts of the product's kernels (kernel_counts.py); runs no program."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import kernel_counts


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
