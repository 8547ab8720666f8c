"""train_gpt sample: the same text with the cache and without it, from every kind of weights; a terminal's prompts; and
what is refused."""

import os
import pty
import subprocess
import unittest

from trainer import ENVIRONMENT, PROGRAM, FinishedRun, new_path, run, workspace

FLAGS, DATA, CHECKPOINT = 2, 3, 4
PRECISIONS = ("fp32", "bf16", "fp8")


class Sample(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trained = FinishedRun("--max-steps", "20", "--lr", "3e-3", "--sample-every", "20", "--sample-tokens", "12",
                                  "--tokenizer", "bytes", "--prompt", "dan ")

    def sample(self, *flags):
        result = run("sample", "--from", self.trained.directory, "--tokenizer", "bytes", *flags)
        self.assertEqual(result.code, 0, result.err)
        return result

    def test_the_cache_changes_nothing(self):
        for precision in PRECISIONS:
            for flags in (["--temperature", "0"], ["--seed", "3"], ["--seed", "4", "--top-k", "20", "--top-p", "0.9"]):
                # Beyond the model's 64 positions.
                flags = ["--precision", precision, "--prompt", "dan ", "--tokens", "90", *flags]
                cached, again = self.sample(*flags), self.sample("--no-cache", *flags)
                self.assertEqual(cached.out, again.out)
                self.assertTrue(cached.out.startswith("dan "))
                self.assertRegex(cached.err, r"^4 tokens of prompt and the first new one in \d+\.\d{3} s, then \d+ at "
                                             r"\d+\.\d tokens/s\n$")
                self.assertRegex(again.err, r"tokens/s without cache\n$")
        seeds = {self.sample("--prompt", "dan ", "--seed", str(seed), "-g", "40").out for seed in range(4)}
        self.assertEqual(len(seeds), 4)

    def test_what_a_run_prints(self):
        """While training and afterwards: one sampler."""
        ((_, text),) = self.trained.result.samples
        result = self.sample("--prompt", "dan ", "--tokens", "12", "--seed", "1337")
        self.assertEqual(result.out.splitlines()[0], text)

    def test_sources(self):
        exported = new_path()
        self.assertEqual(run("export", "--from", self.trained.directory, "--to", exported).code, 0)
        flags = ["--tokenizer", "bytes", "--prompt", "a", "--tokens", "20"]
        (checkpoint,) = os.listdir(self.trained.path("checkpoints"))
        texts = {run("sample", "--checkpoint", source, *flags).out
                 for source in (self.trained.directory, exported, self.trained.path("checkpoints/" + checkpoint))}
        self.assertEqual(len(texts), 1)
        self.assertEqual(texts, {run("sample", "--from", exported, *flags).out})

    def test_several_samples(self):
        """Seeds follow each other; without a prompt, and no terminal to ask, a document begins."""
        several = self.sample("--num-samples", "3", "--tokens", "30", "--seed", "5").out.split("\n---\n")
        alone = [self.sample("--tokens", "30", "--seed", str(seed)).out for seed in (5, 6, 7)]
        self.assertEqual([text.rstrip("\n") for text in several], [text.rstrip("\n") for text in alone])
        self.assertEqual(len(set(several)), 3)

    def test_terminal(self):
        """Prompts line by line until Ctrl-D; only what follows them is printed."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "sample", "--from", self.trained.directory, "--tokenizer", "bytes", "-g",
                                    "10", "--seed", "1"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, cwd=workspace(), env=ENVIRONMENT)
        os.close(theirs)
        os.write(ours, b"dan \nkoc\n\x04")
        out, err = process.communicate(timeout=60)
        os.close(ours)
        self.assertEqual(process.returncode, 0, err)
        expected = [self.sample("-g", "10", "--prompt", prompt, "--seed", str(seed)).out.removeprefix(prompt)
                    for prompt, seed in (("dan ", 1), ("koc", 2))]
        self.assertEqual(out, "> " + expected[0] + "> " + expected[1] + "> \n")

    def refused(self, code, flags, *parts, env=None):
        result = run("sample", *flags, env=env)
        self.assertEqual(result.code, code, result.err or result.out)
        for part in parts:
            self.assertIn(part, result.err)
        self.assertLessEqual(len(result.err.splitlines()), 2)

    def test_refused(self):
        source = ["--from", self.trained.directory, "--prompt", "a"]
        self.refused(FLAGS, [], "--from is required")
        self.refused(FLAGS, source, "--tokenizer is needed")
        source += ["--tokenizer", "bytes"]
        self.refused(FLAGS, [*source, "--tokens", "0"], "--tokens")
        self.refused(FLAGS, source, "in one process, not in 2", env=dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost"))
        self.refused(FLAGS, [*source, "--temperature", "-1"], "--temperature", "at least 0")
        self.refused(FLAGS, [*source, "--tokns", "1"], "--tokns")
        self.refused(DATA, [*source[:-1], "nowhere"], "nowhere", "cannot be read")
        self.refused(CHECKPOINT, ["--from", "nowhere", *source[2:]], "nowhere")
        table = new_path() + ".tiktoken"
        with open(table, "w", encoding="ascii") as file:
            file.write("YQ== 300\n")
        self.refused(DATA, [*source[:-1], table], "token 300", "257")


if __name__ == "__main__":
    unittest.main()
