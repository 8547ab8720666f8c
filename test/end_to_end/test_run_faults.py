"""A device that is lost in the middle of a run (LLMC_FAULT): the message, the exit code, and the effect of LLMC_SYNC=1.
Shards that cannot be read for a while, or for good.
"""

import errno
import os
import subprocess
import unittest

from test_run_checkpoints import Directory, micro_flags, whole_run
from test_run_ranks import ENVIRONMENT, MPIRUN, ONE_THREAD, each, wait_for_steps
from trainer import DATA, FAILURE, PROGRAM, Case, disk_trouble, new_path, run, tiny_flags, workspace

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


class UnreadableData(Case):
    """Reads of shards that fail while a run goes on."""

    FLAGS = ["--max-steps", "600", "--val-every", "50", "--fp8-log-every", "0"]

    def start(self, run_, ranks, shard, error, *flags):
        """Starts the run, and lets its last rank's reads fail after some steps. Returns the process, and the file that
        makes them fail.
        """
        trigger = new_path("trigger")
        variables = {"LD_PRELOAD": disk_trouble(), "DISK_UNREADABLE": trigger, "DISK_READS_OF": shard}
        settings = [f"{name}={value}" for name, value in variables.items()] + ([f"DISK_ERRNO={error}"] if error else [])
        flags = micro_flags("--out", run_.path, *self.FLAGS, *flags)
        run_flags = [(flags, [] if rank < ranks - 1 else settings) for rank in range(ranks)]
        process = self.started(subprocess.Popen(
            each(*run_flags) if ranks > 1 else ["env", *settings, PROGRAM, *flags], text=True, cwd=workspace(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**ENVIRONMENT, **ONE_THREAD}))
        wait_for_steps(run_.path)
        with open(trigger, "w", encoding="utf-8"):
            pass
        return process, trigger

    def test_a_hiccup_has_no_effect(self):
        for shard, error in (("train.bin", errno.EIO), ("train.bin", 0), ("val.bin", errno.ESTALE)):
            with self.subTest(shard=shard, error=error):
                run_ = Directory()
                process, trigger = self.start(run_, 1, shard, error)
                self.wait_for(process, "trying again for 60 seconds")
                os.remove(trigger)
                self.assertIn("the data can be read again", self.ended(process).out)
                self.assertEqual(run_.records(), whole_run(*self.FLAGS).records())
                self.same_state(run_.state(600), whole_run(*self.FLAGS).state(600))

    def test_a_lasting_failure_ends_all_ranks_with_a_checkpoint(self):
        same = [*self.FLAGS, "--batch", "2", "--total-batch", "64", "--reduce-order", "rank", "--val-batches"]
        expected = whole_run(*same, "2")
        for ranks, shard in ((1, "train.bin"), (2, "train.bin"), (2, "val.bin")):
            if ranks > 1 and not MPIRUN:
                continue
            with self.subTest(ranks=ranks, shard=shard):
                run_ = Directory()
                process, _ = self.start(run_, ranks, shard, errno.EIO, *same, str(2 // ranks), "--timeout-step", "12")
                output = self.ended(process, DATA).out
                self.assertRegex(output, r"stopping after step \d+: data cannot be read")
                self.assertRegex(output, (f"rank {ranks - 1}: " if ranks > 1 else "") +
                                 rf"reading \S+{shard} from byte \d+ failed: Input/output error")
                step = int(output.split("stopping after step ")[1].split(":")[0])
                self.assertEqual(max(run_.checkpoints), step)
                self.assertEqual(max(r["step"] for r in run_.records() if "loss" in r), step)
                self.succeeds(run_.run(*same, "2", "--resume", "latest"))
                self.assertEqual(run_.records(), expected.records())
                self.same_state(run_.state(600), expected.state(600))


if __name__ == "__main__":
    unittest.main()
