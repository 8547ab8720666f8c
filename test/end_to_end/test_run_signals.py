"""Signals at any time: the run stops after the work that it names, saves, and loses nothing.
"""

import os
import signal
import struct
import unittest

from test_run_checkpoints import Directory, whole_run
from trainer import FAILURE, STOPPED, Case, disk_trouble, workspace


class Signals(Case):
    def stop(self, ready, number, *flags, env=None):
        """Sends a signal once a line of output shows that the run is ready for it."""
        run_ = Directory()
        return run_, self.stopped(run_.start("--max-steps", "100000", *flags, env=env), ready, number).out

    def stopped(self, process, ready, number=signal.SIGTERM, code=STOPPED, limit=60):
        self.started(process)
        self.wait_for(process, ready)
        process.send_signal(number)
        return self.ended(process, code, limit)

    def test_every_signal(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number=number):
                run_, out = self.stop("step     1/", number, "--val-every", "0")
                (step,) = run_.checkpoints
                self.assertIn(f"stopping after step {step}: {signal.Signals(number).name}", out)
                self.assertEqual(run_.records()[-1]["step"], step)

    def test_at_any_time(self):
        """During the start, a validation, a sample and a save (spd#677, Automodel#3007)."""
        slow = {"LD_PRELOAD": disk_trouble(), "DISK_SLOW": "1"}
        for ready, flags, env in ((" on CPU", [], None), ("val ", ["--val-every", "1", "--val-batches", "-1"], None),
                                  ("sample after", ["--sample-every", "1", "--sample-tokens", "500"], None),
                                  ("step     4/", ["-n", "3", "--val-every", "0", "--log-every", "1"], slow)):
            with self.subTest(ready=ready):
                run_, out = self.stop(ready, signal.SIGTERM, *flags, env=env)
                self.assertIn("SIGTERM", out)
                if run_.checkpoints:
                    self.succeeds(run_.run("--max-steps", "100000", "--resume", "latest", *flags, "--stop-after",
                                           str(max(run_.checkpoints) + 1)))

    def test_ctrl_c_says_what_it_waits_for(self):
        slow = {"LD_PRELOAD": disk_trouble(), "DISK_SLOW": "2"}
        for ready, flags, code, answer in (
                ("step     1/", ["--max-steps", "100000"], STOPPED, "this step and its checkpoint"),
                ("step     1/", ["--max-steps", "100000", "-n", "0", "--checkpoint-minutes", "0"], FAILURE, "this step"),
                ("step     3/", ["--max-steps", "3"], 0, "the last files of the run")):
            with self.subTest(answer=answer):
                process = Directory().start("--val-every", "0", *flags, env=slow)
                result = self.stopped(process, ready, signal.SIGINT, code)
                self.assertIn(f"stopping after {answer} (Ctrl-C again stops at once)", result.err)

    def test_a_long_validation_is_given_up(self):
        """A validation of minutes is abandoned, and the resumed run repeats it."""
        path, example = os.path.join(workspace(), "choices.bin"), [65535, 38, 0, 0, 4, 2, 5, 6] + 4 * [2, 7, 8]
        with open(path, "wb") as file:
            file.write(struct.pack("<4i", 20240522, 1, 65535, 2 * len(example)).ljust(1024, b"\0"))
            for index in range(65535):
                example[1:3] = 2 * len(example), index
                file.write(struct.pack(f"<{len(example)}H", *example))
        flags = ["--max-steps", "4", "--val-every", "1"]
        run_ = Directory()
        self.succeeds(run_.run(*flags, "--stop-after", "2"))
        process = run_.start(*flags, "--hellaswag", path, "--resume", "latest")
        self.assertIn("stopping after step 3: SIGTERM", self.stopped(process, "step     3/", limit=30).out)
        self.succeeds(run_.run(*flags, "--resume", "latest"))
        self.assertEqual(run_.records(), whole_run(*flags).records())

    def test_a_long_sample_is_cut_short(self):
        for flags, is_signalled in ((["--max-minutes", "0.05"], False), ([], True)):
            run_ = Directory()
            process = run_.start("--max-steps", "100000", "--sample-every", "2", "--sample-tokens", "3000000",
                                 "--log-every", "1", *flags)
            result = self.stopped(process, "step     2/") if is_signalled else self.ended(self.started(process), STOPPED)
            self.assertRegex(result.out, r"note: the sample has \d+ of 3000000 tokens, because the run is stopping")
            (sample,) = [record["sample"] for record in run_.records() if "sample" in record]
            self.assertGreater(len(sample), 0)
            if is_signalled:
                self.assertEqual(list(run_.checkpoints), [2])

    def test_a_stop_keeps_what_was_due(self):
        """The resumed run does the work that follows the step, so no record is missing."""
        flags = ["--precision", "fp8", "--max-steps", "10", "--val-every", "1", "--fp8-log-every", "1"]
        stopped = Directory()
        for last in range(5):
            limit = [] if last == 4 else ["--max-minutes", "1e-9"]
            self.succeeds(stopped.run(*flags, "--resume", "auto", *limit), 0 if last == 4 else STOPPED)
        self.assertEqual(stopped.records(), whole_run(*flags).records())


if __name__ == "__main__":
    unittest.main()
