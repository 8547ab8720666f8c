"""A device that is lost in the middle of a run (LLMC_FAULT): the message, the exit code, and the effect of LLMC_SYNC=1.
Shards that cannot be read for a while, or for good, and inputs that change before a resume.
"""

import errno
import os
import shutil
import subprocess
import unittest

from test_run_checkpoints import MICRO, Directory, micro_flags, whole_run
from test_run_ranks import ENVIRONMENT, MPIRUN, ONE_THREAD, each, wait_for_steps
from trainer import (CHECKPOINT, DATA, FAILURE, PROGRAM, Case, disk_trouble, new_path, run, tiny_flags, workspace,
                     write_json, write_shard)

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
        for first, work in ((20, "cast_kernel"), (120, "_kernel"), (180, "AdamWRule")):
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


class ChangedInputs(Case):
    """Every change of what a run depends on is refused or noted when it resumes; --new-data accepts other data."""

    def test_inputs_that_changed(self):
        tokens = [256 if i % 50 == 0 else i % 50 for i in range(140000)]
        facts = {"tokenizer": "mine.json", "tokenizer_hash": "a", "vocab": 257, "end_token": 256}
        train, val = write_shard(tokens), write_shard(tokens[:3000])
        masked = ["--doc-mask", "--plateau", "0.5,3"]

        def live(run_, *flags):
            return run("--out", run_.path, "--train", train, "--val", val, *MICRO, "--precision", "bf16", "--max-steps",
                       "12", "--val-every", "3", *flags)

        def prepare(end_token=256, tokenizer="a", middle=1, last=1):
            for path in (train, val):
                write_json(path + ".json", {**facts, "end_token": end_token, "tokenizer_hash": tokenizer})
            for path, token, value in ((train, 70000, middle), (val, 2999, last)):
                with open(path, "r+b") as file:
                    file.seek(1024 + 2 * token)
                    file.write(bytes([value, 0]))

        for mask, change, refusal, note in (
                ([], {"middle": 2}, "other training data", "the training data has changed"),
                ([], {"end_token": 3}, None, "end_token 3 from here on; until now it was 256"),
                (masked, {"end_token": 3}, "with end_token 256, this run has end_token 3, which is other data",
                 "end_token 3 from here on"),
                ([], {"tokenizer": "b"}, None, "tokenizer_hash b from here on; until now it was a"),
                ([], {"last": 2}, None, "of 1280 tokens in sequences of 16 from here on"),
                (masked, {"last": 2}, None, "begun again after this change: the best validation loss")):
            with self.subTest(change=change, mask=mask):
                run_ = Directory()
                prepare()
                self.succeeds(live(run_, *mask, "--stop-after", "6"))
                prepare(**change)
                more = [*mask, "--resume", "latest", "--stop-after", "8"]
                if refusal:
                    self.refused(live(run_, *more), CHECKPOINT, refusal, "--new-data")
                result = self.succeeds(live(run_, *more, *(["--new-data"] if refusal else [])))
                changes = [line for line in result.out.splitlines() if line.startswith("note: ") and
                           ("change" in line or "here on" in line)]
                self.assertEqual(any(note in line for line in changes), True, changes)
                if "tokenizer" in change:  # weights from a checkpoint that lies where no tokenizer is
                    moved = shutil.copytree(run_.checkpoints[6], new_path())
                    prepare(tokenizer=None)
                    self.assertNotIn("here on", self.succeeds(live(Directory(), "--init-from", moved)).out)
                    prepare(**change)
                    self.assertIn(f"note: {note}\n", self.succeeds(live(Directory(), "--init-from", moved)).out)


if __name__ == "__main__":
    unittest.main()
