"""The state of a run in fewer bytes (--master, --gradients, --adam-moments, --offload): bytes per parameter of each kind
in the plan, and in a run, which takes what was planned.
"""

import json
import unittest

from trainer import FinishedRun, run, tiny_flags

KINDS = ("weights", "gradients", "optimizer", "offloaded")
NARROW = ["--master", "bf16", "--gradients", "bf16", "--adam-moments", "fp8"]
# Bytes of a parameter in a block, on one rank in BF16. First moments in FP8 have a scale of 4 bytes for 64 elements.
# Masters in BF16 are the working copy, unless they are in host memory.
BYTES = [([], (2, 4, 12, 0)),
         (["--master", "bf16"], (0, 4, 10, 0)),
         (["--gradients", "bf16"], (2, 2, 12, 0)),
         (["--adam-moments", "bf16"], (2, 4, 8, 0)),
         (["--adam-moments", "fp8"], (2, 4, 7.0625, 0)),
         (NARROW, (0, 2, 5.0625, 0)),
         (["--offload", "optimizer"], (2, 4, 0, 12)),
         (["--average", "ema:0.9"], (2, 4, 16, 0)),
         (["--average", "ema:0.9", "--offload", "optimizer"], (2, 4, 0, 16)),
         ([*NARROW, "--offload", "optimizer"], (2, 2, 0, 5.0625))]


def sizes(layers, *flags):
    return tiny_flags("--layers", layers, "--channels", 128, "--max-steps", 1, *flags)


def plan(*flags):
    result = run(*flags, "--dry-run", "--gpu", "h100", "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


class BytesPerParameter(unittest.TestCase):
    """Divides the bytes that two more blocks add by their parameters. Constant costs, such as buffers, cancel."""

    def test_plans_and_runs(self):
        for flags, expected in BYTES:
            plans = [plan(*sizes(layers, *flags)) for layers in (4, 6)]
            parameters = plans[1]["parameters"] - plans[0]["parameters"]
            with self.subTest(flags=flags):
                for kind, each in zip(KINDS, expected):
                    more = plans[1]["memory"][kind] - plans[0]["memory"][kind]
                    self.assertAlmostEqual(more / parameters, each, delta=0.005, msg=kind)
                done = FinishedRun(*sizes(6, *flags))
                (memory,) = (r["memory"] for r in done.records if "memory" in r)
                for kind, size in memory.items():
                    self.assertEqual({size["planned"], size["least_peak"], size["most_peak"]}, {size["planned"]}, kind)
                    of_gpu = plans[1]["memory"][kind]
                    if kind == "workspace":  # matmuls take 32 MiB of a GPU, and other buffers on each kind of CPU
                        self.assertGreaterEqual(size["planned"], of_gpu - (32 << 20) - 16384)
                    else:
                        self.assertAlmostEqual(size["planned"], of_gpu, delta=16384, msg=kind)


if __name__ == "__main__":
    unittest.main()
