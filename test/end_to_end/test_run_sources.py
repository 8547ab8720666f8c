"""--train with several sources: stages take each source's own samples in order, on any number of ranks, and runs that
were stopped or killed have the same bits. What cannot be meant is refused. The shares: test/data/order.cpp.
"""

import json
import random
import time
import unittest

from test_run_checkpoints import MICRO, Case, Directory, whole_run
from test_run_ranks import MPIRUN
from trainer import CHECKPOINT, DATA, FLAGS, new_path, run, write_shard

SEQ, ROWS = 16, 4  # of a step in the tests' runs, which have 12 steps, so 48 samples


def shard(samples, first):
    rng = random.Random(first)
    return write_shard([first + rng.randrange(80) for _ in range(samples * SEQ + 1)])


A, B, C = shard(60, 0), shard(40, 80), shard(20, 160)
STAGES = f"{A}:0.7,{B}:0.3;{A}:1,{C}:1@50%"


def flags(train, *more):
    return ["--train", train, "--vocab", "257", "--val-every", "0", *more]


def hashes(run_):
    return [r["batch_hash"] for r in run_.records() if "loss" in r]


class Sources(Case):
    def test_stages_take_the_sources_own_samples(self):
        """Hashes of batches: steps of one source have the batches of a run on that source alone."""
        a, b = hashes(whole_run(*flags(A))), hashes(whole_run(*flags(B, "--max-steps", "7")))
        self.assertEqual(hashes(whole_run(*flags(f"{A}:1;{B}:3@5"))), a[:5] + b)
        back = hashes(whole_run(*flags(f"{B}:1;{A}:1@25%;{B}:1@4", "--max-steps", "8")))
        self.assertEqual(back, b[:2] + a[:2] + b[2:6])
        mixed = hashes(whole_run(*flags(STAGES)))
        self.assertFalse(set(mixed) & set(a + b))
        self.assertEqual(mixed[:6], hashes(whole_run(*flags(f"{A}:7,{B}:3")))[:6])

    def test_stopped_and_killed(self):
        whole = whole_run(*flags(STAGES))
        for stop in (4, 6, 9):
            with self.subTest(stop=stop):
                stopped = Directory()
                self.succeeds(stopped.run(*flags(STAGES), "--stop-after", str(stop)))
                self.succeeds(stopped.run(*flags(STAGES), "--resume", "latest"))
                self.same_run(stopped, whole)
        long = ["--max-steps", "300", "--checkpoint-every", "5", "--epochs", "40"]
        killed = Directory()
        process = killed.start(*flags(STAGES, *long))
        deadline = time.monotonic() + 60
        while not killed.checkpoints and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        self.succeeds(killed.run(*flags(STAGES, *long), "--resume", "latest"))
        self.same_run(killed, whole_run(*flags(STAGES, *long)), 300)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_any_number_of_ranks(self):
        two = Directory()
        self.succeeds(two.run(*flags(STAGES), "--batch", "1", "--total-batch", "64", ranks=2))
        self.assertEqual(hashes(two), hashes(whole_run(*flags(STAGES))))

    def test_tokens_of_each_source_are_told(self):
        done = whole_run(*flags(STAGES))
        records = [r for r in done.records() if "loss" in r]
        for record in records:
            self.assertEqual(sum(record["source_tokens"].values()), record["tokens"])
        self.assertEqual(records[5]["source_tokens"], {A: 17 * SEQ, B: 7 * SEQ, C: 0})
        end = {A: 29 * SEQ, B: 7 * SEQ, C: 12 * SEQ}
        self.assertEqual(records[11]["source_tokens"], end)
        self.assertEqual(done.manifest(12)["run"]["data"]["sources"], end)
        lines = [f"source {A}: 464 tokens, 0.48 passes over 960 tokens; 70 %, after step 6 50 %\n",
                 f"source {B}: 112 tokens, 0.17 passes over 640 tokens; 30 %, after step 6 0 %\n",
                 f"source {C}: 192 tokens, 0.60 passes over 320 tokens; 0 %, after step 6 50 %\n"]
        self.assertIn("".join(lines), self.succeeds(Directory().run(*flags(STAGES))).out)
        dry = [*MICRO, "--max-steps", "12", *flags(STAGES), "--dry-run"]
        self.assertIn("".join(lines), self.succeeds(run(*dry)).out)
        plan = json.loads(self.succeeds(run(*dry, "--json")).out)["sources"]
        self.assertEqual(plan[C], {"tokens": 192, "passes": 0.6})
        again = Directory()
        result = self.succeeds(again.run(*flags(f"{A}:1,{C}:3", "--epochs", "2")))
        self.assertIn(f"step 7: pass 1 over {C} is complete\n", result.out)

    def test_another_mixture_is_other_data(self):
        stopped = Directory()
        self.succeeds(stopped.run(*flags(STAGES), "--stop-after", "4"))
        other = STAGES.replace("0.7", "0.6")
        for changed in (flags(other), flags(STAGES.replace("50%", "7")), flags(A), flags(STAGES, "--max-steps", "14")):
            with self.subTest(changed=changed):
                self.refused(stopped.run(*changed, "--resume", "latest"), CHECKPOINT, "other training data",
                             "--new-data")
        self.succeeds(stopped.run(*flags(STAGES.replace("50%", "6")), "--resume", "latest", "--stop-after", "5"))
        result = self.succeeds(stopped.run(*flags(other), "--resume", "latest", "--new-data"))
        self.assertIn("--new-data: the training data has changed", result.out)

    def test_refused(self):
        small, short = shard(5, 160), shard(0, 160)
        for train, more, code, *words in (
                (f"{A}:1,{B}", [], FLAGS, f"--train: {A}:1,{B}: '{B}' has no weight"),
                (f"{A}:1,{B}:1", ["--max-steps", "-1"], FLAGS, "--train has several sources", "add -x"),
                (f"{A}:1;{B}:1@12", [], FLAGS, "a stage starts after step 12, but the run ends after step 12"),
                (f"{A}:1;{B}:1@100%", [], FLAGS, "a stage starts after step 12"),
                (f"{A}:1;{B}:1@50%;{A}:1@6", [], FLAGS, "starts after step 6, and the one before it after step 6"),
                (f"{A}:1;{B}:1@0", [], FLAGS, "starts after step 0, and the one before it after step 0"),
                (f"{A}:0.333333,{B}:0.666668", [], FLAGS, "1,000,001 samples", "fewer digits"),
                (f"{A}:1,{A[:-1]}?:1", [], DATA, f"{A} is named twice"),
                (f"{A}:1,{new_path()}:1", [], DATA, "no file matches"),
                (f"{A}:1,{short}:1", [], DATA, f"no sequence of T=16 tokens fits into '{short}'"),
                (f"{A}:1,{B}:1;{small}:1@6", [], FLAGS, "12 steps need more data than its sources have",
                 f"; '{small}' would give 384 tokens and has 80; use", "allow 5 passes over a source with --epochs 5"),
                (f"{A}:1,{B}:1;{small}:1@6", ["--epochs", "4"], FLAGS, "would give 384 tokens and has 80"),
                (f"{A}:1", [], DATA, f"no file matches '{A}:1'")):
            with self.subTest(train=train, more=more):
                self.refused(run(*MICRO, "--max-steps", "12", *flags(train, *more)), code, *words)
        self.succeeds(run(*MICRO, "--max-steps", "12", *flags(f"{A}:1,{B}:1;{small}:1@6", "--epochs", "5")))

    def test_skipped_data_counts(self):
        """--skip-data moves the place in the order, so a source may run dry earlier."""
        stopped, train = Directory(), f"{A}:1;{C}:1@8"  # 16 of 20 samples of C
        self.succeeds(stopped.run(*flags(train), "--stop-after", "4"))
        self.refused(stopped.run(*flags(train), "--resume", "latest", "--skip-data", "2"), FLAGS,
                     f"'{C}' would give 384 tokens and has 320")
        self.succeeds(stopped.run(*flags(train), "--resume", "latest", "--skip-data", "1"))


if __name__ == "__main__":
    unittest.main()
