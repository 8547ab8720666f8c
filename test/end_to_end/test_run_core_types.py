"""Results that are right on this machine are right with the products of another. OpenBLAS simulates another CPU, whose
sums have another order and other roundings, and oneDNN one without AVX-512, whose products are OpenBLAS's.

    CORE_TYPES=all python3 test/end_to_end/test_run_core_types.py     # every type that this CPU can use

TEST_CPU names the test binary (default: build/cpu-native/test_cpu).
"""

import os
import subprocess
import unittest

from core_types import core_types
from trainer import ENVIRONMENT, ROOT, FinishedRun, corpus

TEST_CPU = os.path.abspath(os.environ.get("TEST_CPU", os.path.join(ROOT, "build", "cpu-native", "test_cpu")))
# Types with other products; the last is the newest.
OTHERS = core_types()[1:]
PLAYED = OTHERS if os.environ.get("CORE_TYPES") == "all" else OTHERS[-2:-1]


def played(core):
    return {"OPENBLAS_CORETYPE": core, "ONEDNN_MAX_CPU_ISA": "AVX2"}


@unittest.skipIf(len(OTHERS) < 2, "this CPU can play no other")
class OtherCoreTypes(unittest.TestCase):
    FLAGS = ["--max-steps", "8", "--lr", "1e-4", "--val-every", "8", "--val-batches", "2"]
    # Bounds of losses: FP32 sums of a few hundred terms, and values that BF16 and FP8 round the other way.
    BOUNDS = {"fp32": 1e-5, "bf16": 1e-3, "fp8": 1e-3}

    def test_products_and_gradients(self):
        for core in PLAYED:
            with self.subTest(core=core):
                done = subprocess.run([TEST_CPU, "--no-colors", "--source-file=*test/linear/*,*test/model/gpt2.cpp,"
                                       "*test/model/gpt2_fp8_reference.cpp"], capture_output=True, text=True,
                                      env={**ENVIRONMENT, **played(core)})
                self.assertEqual(done.returncode, 0, done.stdout[-4000:])

    def test_short_runs(self):
        for precision, bound in self.BOUNDS.items():
            flags = [*self.FLAGS, "--val", corpus().val, "--precision", precision]
            here = FinishedRun(*flags)
            for core in PLAYED:
                with self.subTest(precision=precision, core=core):
                    there = FinishedRun(*flags, env=played(core))
                    gaps = [abs(a / b - 1) for a, b in zip(there.losses, here.losses, strict=True)]
                    self.assertLess(max(gaps), bound)
                    self.assertLess(abs(there.validations[8] / here.validations[8] - 1), bound)


if __name__ == "__main__":
    unittest.main()
