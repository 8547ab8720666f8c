"""Training itself: it learns, repeats bit for bit, and what must not change the numbers does not."""

import math
import os
import random
import re
import subprocess
import sys
import unittest

from test_run_ranks import MPIRUN, ONE_THREAD, RankRun, check_same_run, run_ranks
from trainer import (NUMBERS, PROGRAM, ROOT, TINY_MODEL, VOCAB, Case, FinishedRun, corpus, new_path, read_json,
                     read_records, run, tiny_flags, write_shard)


def relative(a, b):
    return abs(a - b) / abs(b)


class Learning(Case):
    def test_loss_falls_from_chance_towards_the_floor(self):
        run = FinishedRun("--val", corpus().val, "--max-steps", "250", "--lr", "5e-3", "--warmup", "10", "--batch", "8",
                          "--val-every", "50", "--val-batches", "10")
        losses = run.validations
        self.assertEqual(sorted(losses), [0, 50, 100, 150, 200, 250])
        self.assertLess(abs(losses[0] - math.log(VOCAB)), 0.1, "untrained, every token is about as likely")
        values = [losses[step] for step in sorted(losses)]
        self.assertEqual(values, sorted(values, reverse=True), "every 50 steps it is better")
        # 2.83 is what a model that only counts bytes reaches, 2.0 one that knows the byte before.
        self.assertLess(values[-1], 2.0)
        self.assertGreater(values[-1], corpus().entropy_floor, "nothing can beat the entropy of the corpus")
        self.assertIn(f"{corpus().entropy_floor:.4f}", run.result.out)

    def test_one_batch_is_learned_by_heart(self):
        """The gradient reaches everything that is needed to remember 128 bytes."""
        shard = write_shard([256] + [(7 * i * i + 3 * i) % 251 for i in range(128)])
        run = FinishedRun("--train", shard, "--vocab", VOCAB, "--batch", "2", "--max-steps", "120", "--lr", "3e-3")
        self.assertGreater(run.losses[0], 5)
        self.assertLess(run.losses[-1], 0.1)

    def test_z_loss_is_trained_and_not_reported(self):
        without, with_it = (FinishedRun("--max-steps", "2", *flags).steps for flags in ([], ["--z-loss", "1"]))
        self.assertEqual(with_it[0]["loss"], without[0]["loss"])
        # With fresh weights log Z is about log V, so the term's gradient is larger than the loss's own.
        self.assertGreater(with_it[0]["norm"], 2 * without[0]["norm"])
        self.assertNotEqual(with_it[1]["loss"], without[1]["loss"])


class SameNumbers(Case):
    """Everything but the time fields, bit for bit: JSON floats have all their digits."""

    def test_lazy_streams_and_guarded_memory(self):
        for precision in ("fp8", "bf16", "fp32"):
            with self.subTest(precision=precision):
                flags = ["--val", corpus().val, "--val-every", "4", "--val-batches", "3", "--max-steps", "8",
                         "--total-batch", "512", "--lr", "2e-3", "--precision", precision, "--sample-every", "4",
                         "--sample-tokens", "8"]
                plain = FinishedRun(*flags)
                strict = FinishedRun(*flags, env={"LLMC_STREAMS": "lazy", "LLMC_GUARD": "1"})
                self.assertEqual(len(plain.steps), 8)
                self.assertEqual(plain.timeless, strict.timeless)
                for name in ("model.safetensors", "main.log"):
                    self.assertEqual(plain.read(name), strict.read(name))
                self.assertEqual(len(plain.result.samples), 2)
                # Printed samples may have line breaks, where the recorded ones are cut.
                recorded = [(r["step"], r["sample"].split("\n")[0]) for r in plain.records if "sample" in r]
                self.assertEqual(recorded, plain.result.samples)
                self.assertEqual(plain.result.samples, strict.result.samples)


class Bench(Case):
    """--bench behind any command: steps are timed, and nothing else is done."""

    LINE = re.compile(r"^bench: ([\d.]+) ms per step \(median of (\d+) after 5 of warm-up; ([\d.]+) to ([\d.]+)\), "
                      r"([\d,]+) tok/s(.*), mem \d", re.MULTILINE)

    def figures(self, out):
        """Steps that were timed, tokens per second, and the text after them."""
        median, count, least, most, rate, rest = self.LINE.search(out).groups()
        self.assertLessEqual(float(least), float(median))
        self.assertLessEqual(float(median), float(most))
        return int(count), float(rate.replace(",", "")) * float(median) / 1000, rest

    def test_a_command_as_it_stands(self):
        directory = new_path()
        flags = tiny_flags("--out", directory, "--val", corpus().val, "-s", "1", "-n", "2", "--max-steps", "200", "--bench",
                           "--stop-after", "9")
        result = self.succeeds(run(*flags))
        count, tokens, rest = self.figures(result.out)
        self.assertEqual((count, rest), (4, ""))
        self.assertLess(abs(tokens / 256 - 1), 0.2, "of the median step; printed times are rounded")
        self.assertFalse(os.path.exists(directory))
        for word in ("val", "sample", "checkpoint"):
            self.assertNotIn(word, result.out)
        trained = run(*flags[:-3], "--overwrite", "--stop-after", "9").out
        self.assertEqual(*(re.findall(r"^step +9.*?(loss [\d.]+)", out, re.MULTILINE) for out in (result.out, trained)))

    def test_random_tokens_on_one_rank_and_two(self):
        flags = [*TINY_MODEL, "-b", "1", "-t", "32", "--vocab", "70000", "--precision", "fp8", "--bench", "--stop-after", "8"]
        one = self.succeeds(run(*flags))
        self.assertEqual(self.figures(one.out)[0], 3)
        loss = float(re.search(r"^step +1\D.*?loss ([\d.]+)", one.out, re.MULTILINE).group(1))
        self.assertLess(abs(loss - math.log(70000)), 0.1, "tokens of the whole vocabulary, about alike")
        if MPIRUN:
            two = self.succeeds(run_ranks(2, *flags))
            self.assertRegex(self.figures(two.out)[2], r", [\d,]+ of each of 2 ranks")

    FAKE_LLM_C = """
        #include <stdio.h>
        #include <unistd.h>
        int main() {  // checks the files' headers, then "takes" 50 ms a step
            int model[8], tokens[3];
            fread(model, 4, 8, fopen("gpt2_124M.bin", "rb"));
            fread(tokens, 4, 3, fopen("dev/data/tinyshakespeare/tiny_shakespeare_train.bin", "rb"));
            if (model[0] != 20240326 || model[3] != 257 || model[7] != 384 || tokens[0] != 20240520) return 1;
            for (int i = 0; i < 41; i++) printf("step %d: train loss 5.5 (took 50.0 ms)\\n", i), fflush(stdout);
            pause();
        }"""

    def test_beside_peers(self):
        checkout = new_path("llm.c")
        os.makedirs(checkout)
        with open(os.path.join(checkout, "train_gpt2.c"), "w", encoding="utf-8") as file:
            file.write(self.FAKE_LLM_C)
        out = subprocess.run([sys.executable, os.path.join(ROOT, "dev", "bench_peers.py"), "--program", PROGRAM, "--llm-c",
                              checkout, "--torch-python", "false", "--shapes", "2x64", "--precisions", "fp32", "--rounds",
                              "1", "--threads", "1"], capture_output=True, text=True, check=True).stdout
        own, peer, ratio = map(float, re.search(r"^2x64 +fp32 +1 +([\d.]+) ms +([\d.]+) ms +([\d.]+) \(", out,
                                                re.MULTILINE).groups())
        self.assertEqual(peer, 50)
        self.assertLess(abs(ratio / (peer / own) - 1), 0.1, "of printed times")


class Spikes(Case):
    """The model soon memorizes a text that repeats. One sample of noise in it makes loss and norm jump."""

    STEPS = 300

    def spiky(self, *flags):
        T, samples = 32, 400
        text = [ord("a") + i % 16 for i in range(samples * T + 1)]
        rng = random.Random(1)
        for at in range(200 * T, 201 * T):
            text[at] = rng.randrange(128, 256)
        return FinishedRun("--train", write_shard(text), "--vocab", VOCAB, "--layers", "1", "--channels", "32", "--heads",
                           "1", "--context", T, "--seq", T, "--batch", "2", "--lr", "3e-3", "--warmup", "20",
                           "--schedule", "constant", "--max-steps", self.STEPS, *flags)

    def test_reported_and_with_skip_spikes_skipped(self):
        """Without --skip-spikes: test/optim/spikes.cpp and test/log/progress.cpp."""
        run_ = self.spiky("--skip-spikes")
        spikes = [r for r in run_.steps if "spike" in r]
        self.assertTrue(0 < len(spikes) < 6, spikes)
        first = spikes[0]
        self.assertGreater(first["step"], 200, "the noise comes again in the second pass")
        for name, limit in first["spike"].items():
            self.assertGreater(first[name], limit)
        self.assertIn(f"spike at step {first['step']}: ", run_.result.out)
        self.assertIn("(mean + 6 sigma); step skipped", run_.result.out)
        self.assertEqual((first["skipped"], run_.steps[-1]["skipped"]), (1, len(spikes)))


class Skips(Case):
    def test_too_many_stop_the_run_and_name_what_went_bad(self):
        for precision, culprit in (("bf16", "the loss was nan"),
                                   ("fp8", "the first FP8 tensor with a value that is not finite was h.0.")):
            with self.subTest(precision=precision):
                result = run(*tiny_flags("--precision", precision, "--lr", "1e30", "--max-skips", "3", "--max-steps", "20"))
                self.refused(result, NUMBERS, "3 steps skipped in a row; in the last, step 4, " + culprit, "--max-skips")


class Watchdog(Case):
    LIMIT, DELAY, PARTS = 0.8, 0.05, 36  # seconds without a sign of life; seconds per part; parts

    def test_one_rank_that_works_for_long_is_alive(self):
        """It has no collectives that would show it, but micro-steps, batches of a validation, and tokens of a sample."""
        T, rng = 16, random.Random(1)
        tokens = write_shard([rng.randrange(256) for _ in range(self.PARTS * T + 1)])
        done = FinishedRun("--train", tokens, "--val", tokens, "--vocab", VOCAB, "--layers", "1", "--channels", "32",
                           "--heads", "1", "--context", T, "--seq", T, "--batch", "1", "--total-batch", self.PARTS * T,
                           "--max-steps", "1", "--val-every", "1", "--val-batches", "-1", "--sample-every", "1",
                           "--sample-tokens", self.PARTS, "--timeout-step", self.LIMIT,
                           env={"LLMC_DELAY": f"embedding_forward:{1e3 * self.DELAY:.0f}"})
        ended = [record["elapsed"] for record in done.records if "loss" in record or "val_loss" in record
                 or "sample" in record]
        self.assertEqual(len(ended), 4, "a validation, a step, and both once more")
        for before, after in zip(ended, ended[1:]):
            self.assertGreater(after - before, self.PARTS * self.DELAY)


class BatchSchedule(Case):
    # Two steps of 256 tokens, one of 512, then 768.
    FLAGS = ["--batch", "2", "--total-batch", "768", "--max-steps", "6", "--schedule", "constant", "--lr", "1e-3"]
    STAGES = ["--batch-schedule", "256:2,512:1"]

    def test_each_step_is_that_of_a_run_with_its_batch(self):
        grown = FinishedRun(*self.FLAGS, *self.STAGES)
        self.assertEqual([s["tokens"] for s in grown.steps], [256, 512, 1024, 1792, 2560, 3328])
        self.assertIn("256 tokens per step up to step 2, 512 tokens per step up to step 3, then 768", grown.result.out)
        # The samples continue in order: after two steps of 256, they are those of the second step of 512.
        small, middle = (FinishedRun(*self.FLAGS, "--total-batch", tokens, "--stop-after", "2") for tokens in (256, 512))
        self.assertEqual(grown.losses[:2], small.losses)
        self.assertEqual([s["norm"] for s in grown.steps][:2], [s["norm"] for s in small.steps])
        self.assertEqual(grown.steps[2]["batch_hash"], middle.steps[1]["batch_hash"])

    def test_a_larger_batch_is_no_spike(self):
        """Spikes are found in sums of losses, which grow with the batch. Statistics start again, also after a resume."""
        flags = ["--layers", "1", "--channels", "32", "--heads", "1", "--context", "16", "--seq", "16", "--batch", "4",
                 "--total-batch", "128", "--batch-schedule", "64:70", "--max-steps", "140", "--skip-spikes"]
        whole = FinishedRun(*flags)
        self.assertEqual([step["step"] for step in whole.steps if "spike" in step], [])
        first = FinishedRun(*flags, "--stop-after", "70")
        self.succeeds(first.resume(*flags))
        self.assertEqual([step["loss"] for step in read_records(first.directory) if "loss" in step], whole.losses)
        states = [read_json(os.path.join(directory, "checkpoints", "step_00000140", "manifest.json"))["manifest"]["state"]
                  for directory in (whole.directory, first.directory)]
        self.assertEqual(states[0]["spikes"], states[1]["spikes"])
        self.assertEqual(states[0]["spikes"]["accepted"], 70)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_over_ranks_and_resumed(self):
        flags = [*self.FLAGS, *self.STAGES, "--batch", "1", "--reduce-order", "rank"]
        whole = FinishedRun(*flags, env=ONE_THREAD)
        for stop in ("1", "3"):
            with self.subTest(stop=stop):
                part = RankRun(2, *flags, "--stop-after", stop)
                self.succeeds(part.resume(*flags, env=ONE_THREAD))
                check_same_run(self, part, whole)
        for stop, more, message in (("4", ["--batch-schedule", "256:3"], "--batch-schedule 256:2,512:1, this run has"),
                                    ("2", ["--skip-data", "1"], "which --batch-schedule has not reached yet"),
                                    ("3", ["--skip-data", "1"], "")):
            with self.subTest(stop=stop, more=more):
                begun = FinishedRun(*flags, "--stop-after", stop)
                done = begun.resume(*flags, *more)
                self.assertEqual(done.code, 4 if message else 0, done.err)
                self.assertIn(message, done.err)


class SequenceSchedule(Case):
    FLAGS = ["--batch", "2", "--max-steps", "4", "--seq-schedule", "16:1,32:2", "--schedule", "constant", "--lr", "1e-3",
             "--precision", "fp8"]

    def test_each_step_is_that_of_a_run_with_its_sequences(self):
        """From the same weights and tokens: the first step of a run that cuts is that of one with shorter sequences."""
        grown = FinishedRun(*self.FLAGS)
        self.assertEqual([s["seq"] for s in grown.steps], [16, 32, 32, 64])
        self.assertIn("sequences of 16 tokens up to step 1, sequences of 32 tokens up to step 3, then of 64",
                      grown.result.out)
        whole, always = (FinishedRun(*self.FLAGS, "--seq-schedule", stages) for stages in ("off", "16:4"))
        self.assertNotIn("seq", whole.steps[0])
        self.assertEqual([s["batch_hash"] for s in grown.steps], [s["batch_hash"] for s in whole.steps])
        self.assertNotEqual(grown.losses[0], whole.losses[0])
        self.assertEqual(grown.losses[:1], always.losses[:1])
        self.assertNotEqual(grown.losses[1:], always.losses[1:])

    def test_resumed(self):
        flags = self.FLAGS
        whole, part = FinishedRun(*flags, env=ONE_THREAD), FinishedRun(*flags, "--stop-after", "2", env=ONE_THREAD)
        for more, code, message in ((["--seq-schedule", "16:1"], 4, "--seq-schedule 16:1,32:2, this run has"),
                                    ([], 0, "")):
            self.refused(part.resume(*flags, *more, env=ONE_THREAD), code, message)
        self.assertEqual(part.read("model.safetensors"), whole.read("model.safetensors"))


class NearlySameNumbers(Case):
    def test_narrow_state_follows_fp32(self):
        """A number in BF16 errs by 2^-7 at most, and on average by nothing: less than what computing in BF16 changes. Weights
        are rounded to nearest before the first step."""
        # The rate is not higher, because from about 1.5e-3 on this model's loss jumps in one step (in FP64 too), by a
        # different amount in each precision.
        flags = ["--max-steps", "50", "--lr", "1e-3", "--warmup", "5", "--batch", "4", "--precision", "fp32"]
        fp32 = FinishedRun(*flags)
        for flag, format_ in (("--adam-moments", "bf16"), ("--adam-moments", "fp8"), ("--master", "bf16"),
                              ("--gradients", "bf16")):
            with self.subTest(flag=flag, format=format_):
                narrow = FinishedRun(*flags, flag, format_)
                self.assertEqual(narrow.losses[0] == fp32.losses[0], flag != "--master")
                self.assertNotEqual(narrow.losses, fp32.losses)
                self.assertLess(max(relative(a, b) for a, b in zip(narrow.losses, fp32.losses)),
                                0.02 if format_ == "fp8" else 0.01)


if __name__ == "__main__":
    unittest.main()
