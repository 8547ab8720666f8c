"""A device that is lost in the middle of a run (LLMC_FAULT): the message, the exit code, and the effect of LLMC_SYNC=1.
"""

import unittest

from trainer import FAILURE, Case, new_path, run, tiny_flags

LATE = "the device failed (LLMC_FAULT); it happened in some earlier launch; LLMC_SYNC=1 names it"
FP8 = ["--precision", "fp8", "--max-steps", "2", "--val-every", "0"]


class Faults(Case):
    def fault(self, at, *flags, **env):
        result = self.refused(run(*tiny_flags(*FP8, *flags), env={"LLMC_FAULT": str(at), **env}), FAILURE)
        self.assertEqual(result.err.count("\n"), 1, result.err)
        self.assertTrue(result.err.startswith("train_gpt: "), result.err)
        return result

    def test_the_message_and_the_exit_code_survive(self):
        for streams in ("now", "lazy"):
            for at in (1, 60, 120, 200, 300):  # setting up, forward, backward, update, the second step
                with self.subTest(streams=streams, at=at):
                    result = self.fault(at, LLMC_STREAMS=streams)
                    self.assertIn("train_gpt: found at ", result.err)
                    self.assertIn(LATE, result.err)

    def test_with_all_that_owns_streams_and_events(self):
        for at in (150, 300, 400):
            with self.subTest(at=at):
                self.assertIn(LATE, self.fault(at, "--out", new_path(), "--profile-steps", "2:3", "--reduce-order",
                                               "rank", "--fp8-fallback", "0.5,0.9,3", LLMC_STREAMS="now").err)

    def test_a_synchronous_run_names_the_kernel(self):
        for first, work in ((60, "cast_kernel"), (120, "_kernel"), (180, "adamw_kernel")):
            for at in range(first, first + 60):  # some are copies, which have no line
                messages = [self.fault(at, LLMC_STREAMS=streams, LLMC_SYNC="1").err for streams in ("now", "lazy")]
                self.assertEqual(*messages)
                if work in messages[0]:
                    break
            self.assertRegex(messages[0], rf"^train_gpt: .*{work}.* failed: the device failed \(LLMC_FAULT\) "
                                          r"\[launched at .*llmc/.*:\d+\]\n$")

    def test_a_synchronous_run_is_the_same_run(self):
        outputs = [run(*tiny_flags(*FP8), env={"LLMC_SYNC": sync, "LLMC_STREAMS": "lazy"}) for sync in ("0", "1")]
        losses = [[line.split("loss")[1].split()[0] for line in result.out.splitlines() if line.startswith("step ")]
                  for result in outputs]
        self.assertEqual([result.code for result in outputs], [0, 0])
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(*losses)


if __name__ == "__main__":
    unittest.main()
