"""train_gpt sample: the same text with and without the cache, from every kind of weights; prompts from a terminal; and
refusals.
"""

import json
import os
import pty
import shutil
import struct
import subprocess
import unittest

from trainer import (CHECKPOINT, DATA, ENVIRONMENT, FLAGS, PROGRAM, ROOT, Case, FinishedRun, corpus, new_path, run,
                     tiny_flags, workspace)

PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
HAS_TOKENIZERS = os.access(PYTHON, os.X_OK) and subprocess.run([PYTHON, "-c", "import numpy, tokenizers"], check=False,
                                                               capture_output=True).returncode == 0


class Sample(Case):
    @classmethod
    def setUpClass(cls):
        cls.trained = FinishedRun("--max-steps", "20", "--lr", "3e-3", "--sample-every", "20", "--sample-tokens", "12",
                                  "--tokenizer", "bytes", "--prompt", "dan ")

    def sample(self, *flags):
        result = self.succeeds(run("sample", "--from", self.trained.directory, "--tokenizer", "bytes", *flags))
        return result

    def test_a_pipe_is_not_read_silently(self):
        for flags in ([], ["--prompt", "dan "]):
            command = [PROGRAM, "sample", "--from", self.trained.directory, "--tokenizer", "bytes", "-g", "1", *flags]
            done = subprocess.run(command, input="dan ", capture_output=True, text=True, errors="replace", check=True)
            self.assertEqual("note: the pipe at standard input is not read; --prompt" in done.stderr, not flags)

    def test_the_cache_changes_nothing(self):
        """Beyond the model's 64 positions, too. In every precision: test/model/generate.cpp."""
        flags = ["--precision", "fp8", "--prompt", "dan ", "--tokens", "90", "--seed", "4", "--top-k", "20", "--top-p", "0.9"]
        cached, again = self.sample(*flags), self.sample("--no-cache", *flags)
        self.assertEqual(cached.out, again.out)
        self.assertTrue(cached.out.startswith("dan "))
        self.assertRegex(cached.err, r"^4 tokens of prompt and the first new token in \d+\.\d{3} s, then \d+ at "
                                     r"\d+\.\d tokens/s\n$")
        self.assertRegex(again.err, r"tokens/s without cache\n$")
        seeds = {self.sample("--prompt", "dan ", "--seed", str(seed), "-g", "40").out for seed in range(4)}
        self.assertEqual(len(seeds), 4)

    def test_longer_than_what_the_run_trained_on(self):
        """With a longer context than -t, positions come that no training step had."""
        trained = FinishedRun("--seq", "32", "--tokenizer", "bytes")
        for prompt, noted in (("dan " * 9, True), ("dan ", False)):
            said = run("sample", "--from", trained.directory, "--tokenizer", "bytes", "--prompt", prompt, "-g", "1").err
            self.assertEqual("note: the run trained on sequences of 32 tokens" in said, noted, said)

    def test_what_a_run_prints(self):
        """The sampler is the same during training and afterwards."""
        ((_, text),) = self.trained.result.samples
        result = self.sample("--prompt", "dan ", "--tokens", "12", "--seed", "1337")
        self.assertEqual(result.out.splitlines()[0], text)

    def test_an_empty_value_does_not_take_the_next_flag(self):
        flags = ["--tokens", "12", "--seed", "1"]
        self.assertEqual(self.sample("--prompt=", *flags).out, self.sample("--prompt", "", *flags).out)

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
        """Samples use consecutive seeds. Without a prompt and a terminal, a document begins."""
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

    def test_a_wrong_prompt_does_not_end_the_session(self):
        source = new_path()
        os.mkdir(source)
        for name in ("model.safetensors", "config.json"):
            shutil.copy(self.trained.path(name), source)
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "sample", "--from", source, "-g", "3"], stdin=theirs, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, cwd=workspace(), env=ENVIRONMENT)
        os.close(theirs)
        os.write(ours, b"dan\n5 257\n5 6\n\x04")
        out, err = process.communicate(timeout=60)
        os.close(ours)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("--prompt needs a tokenizer", err)
        self.assertIn("token id 257, which is outside", err)
        self.assertRegex(out, r"^> > > [\d ]+\n> \n$")

    def refuses(self, code, flags, *parts, env=None):
        result = run("sample", *flags, env=env)
        self.refused(result, code, *parts)
        self.assertLessEqual(len(result.err.splitlines()), 2)

    def test_refused(self):
        source = ["--from", self.trained.directory, "--prompt", "a"]
        self.refuses(FLAGS, [], "--from PATH is missing")
        source += ["--tokenizer", "bytes"]
        self.refuses(FLAGS, [*source, "--tokens", "0"], "--tokens")
        self.refuses(FLAGS, source, "in one process, not in 2", env=dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost"))
        self.refuses(FLAGS, [*source, "--temperature", "-1"], "--temperature", "at least 0")
        self.refuses(FLAGS, [*source, "--tokns", "1"], "--tokns")
        self.refuses(DATA, [*source[:-1], "nowhere"], "cannot open the tokenizer file nowhere: No such")
        self.refuses(CHECKPOINT, ["--from", "nowhere", *source[2:]], "nowhere")
        table = os.path.join(new_path("elsewhere"), "a.tiktoken")  # models of other tests would find it next to them
        os.makedirs(os.path.dirname(table))
        with open(table, "w", encoding="ascii") as file:
            file.write("YQ== 300\n")
        self.refuses(DATA, [*source[:-1], table], "301 tokens", "257")

    def test_the_tokenizer_is_found(self):
        """In the run, in a checkpoint's run, in a Hugging Face directory, or next to the training data. Otherwise ids
        are printed.
        """
        flags = ["--prompt", "dan ", "--tokens", "20", "--temperature", "0"]
        expected = self.sample(*flags).out
        greedy = self.sample(*flags, "--top-k", "3")
        self.assertEqual(greedy.out, expected)
        self.assertIn("note: --top-k and --top-p have no effect with --temperature 0\n", greedy.err)
        exported = new_path()
        self.assertEqual(run("export", "--from", self.trained.directory, "--to", exported).code, 0)
        (checkpoint,) = os.listdir(self.trained.path("checkpoints"))
        for source in (self.trained.directory, self.trained.path("model.safetensors"), *[exported] * HAS_TOKENIZERS,
                       self.trained.path("checkpoints/" + checkpoint), self.trained.path("checkpoints/" + checkpoint + "/")):
            result = run("sample", "--from", source, *flags)
            self.assertEqual((result.code, result.out), (0, expected), result.err)

        bare = new_path()
        shutil.copytree(exported, bare, ignore=shutil.ignore_patterns("tokenizer*"))
        ids = " ".join(str(byte) for byte in b"dan ")
        result = self.succeeds(run("sample", "--from", bare, "--prompt", ids, *flags[2:]))
        self.assertRegex(result.err, r"^note: text is token ids, because there is no tokenizer\.json.* --tokenizer FILE")
        numbers = result.out.removeprefix(ids).split()
        self.assertEqual(bytes(map(int, numbers)).decode(errors="replace"), expected.removeprefix("dan ").removesuffix("\n"))
        self.refuses(FLAGS, ["--from", bare, *flags], "--prompt needs a tokenizer", "token ids like")
        result = run("sample", "--from", bare, *flags[2:])
        self.assertEqual((result.code, len(result.out.split())), (0, 20), result.err)


def table(pieces, end):
    """Builds llm.c's tokenizer file."""
    head = struct.pack("<4i", 20240328, 2, len(pieces), end).ljust(1024, b"\0")
    return head + b"".join(bytes([len(piece)]) + piece for piece in pieces)


BYTES = [*(bytes([byte]) for byte in range(256)), b"\n"]


class WhileTraining(Case):
    """Samples of a run whose shards were not made with the byte vocabulary."""

    def shards(self, **files):
        """A folder with the corpus and these files. Its sidecar names a tokenizer.json that does not exist."""
        folder = new_path("data")
        os.makedirs(folder)
        os.symlink(corpus().train, os.path.join(folder, "train_000000.bin"))
        files["train_000000.bin.json"] = json.dumps(dict(tokenizer="tok.json", vocab=257, end_token=256)).encode()
        for name, content in files.items():
            with open(os.path.join(folder, name.replace("_bin", ".bin").replace("_json", ".json")), "wb") as file:
                file.write(content)
        return folder

    def train(self, folder, *flags):
        return FinishedRun("--train", os.path.join(folder, "train_*.bin"), "--max-steps", "2", "--sample-every", "2",
                           "--sample-tokens", "10", *flags)

    def test_without_a_tokenizer(self):
        trained = self.train(self.shards())
        self.assertRegex(trained.result.out, r"note: samples are printed as token ids, because there is no tokenizer\.json"
                                             r".*\.tiktoken file in .*data\d+; --tokenizer FILE gives text")
        ((_, text),) = trained.result.samples
        self.assertRegex(text, r"^(\d+ ){10}$")
        trained = self.train(self.shards(tokenizer_json=b'{"model": 5}'))
        self.assertRegex(trained.result.out, r"token ids, because the tokenizer .*tokenizer\.json")
        self.assertRegex(trained.result.samples[0][1], r"^(\d+ ){10}$")

    def test_next_to_the_shards(self):
        """The same text as with an explicit tokenizer. The run keeps a copy and resumes with it."""
        expected = self.train(self.shards(), "--tokenizer", "bytes").result.samples[0][1]
        folder = self.shards(tokenizer_bin=table(BYTES, 256))
        trained = self.train(folder)
        self.assertEqual(trained.result.samples, [(2, expected)])
        self.assertNotIn("token ids", trained.result.out)
        self.assertEqual(trained.read("tokenizer.bin"), table(BYTES, 256))
        os.remove(os.path.join(folder, "tokenizer.bin"))
        result = self.succeeds(trained.resume("--train", os.path.join(folder, "train_*.bin"), "--max-steps", "4",
                                              "--sample-every", "4", "--sample-tokens", "10"))
        self.assertNotIn("token ids", result.out)

    @unittest.skipUnless(HAS_TOKENIZERS, "the Python package tokenizers is not in .venv")
    def test_a_tokenizer_json_of_ones_own(self):
        """Prompts are encoded and text is decoded exactly like by the tokenizers package."""
        folder = new_path("own")
        for command in (["train-tokenizer", "README.md", "--vocab", "400", "--out", folder + "/tok.json"],
                        ["text", "README.md", "--val-fraction", "0", "--tokenizer", folder + "/tok.json", "--out", folder]):
            subprocess.run([PYTHON, "-m", "data.prepare", *command], cwd=ROOT, check=True, capture_output=True)
        trained = self.train(folder, "--max-steps", "10")
        prompt, tokens = "train_gpt pretrains a  GPT", ["--tokens", "30", "--temperature", "0"]
        text = self.succeeds(run("sample", "--from", trained.directory, "--prompt", prompt, *tokens))
        bare = new_path()
        shutil.copytree(trained.directory, bare, ignore=shutil.ignore_patterns("tokenizer*", "run.json", "checkpoints"))

        def their(expression, argument):
            code = f"import json,sys,tokenizers; t = tokenizers.Tokenizer.from_file({folder + '/tok.json'!r}); " \
                   f"print(json.dumps({expression}))"
            return json.loads(subprocess.run([PYTHON, "-c", code, json.dumps(argument)], check=True, capture_output=True).stdout)

        ids = " ".join(map(str, their("t.encode(json.loads(sys.argv[1])).ids", prompt)))
        numbers = self.succeeds(run("sample", "--from", bare, "--prompt", ids, *tokens))
        made = list(map(int, numbers.out.removeprefix(ids).split()))
        self.assertEqual(len(made), 30)
        self.assertEqual(prompt + their("t.decode(json.loads(sys.argv[1]), skip_special_tokens=False)", made) + "\n", text.out)

    def test_another_tokenizer_is_refused(self):
        folder, path = self.shards(tokenizer_bin=table(BYTES, 256)), new_path() + ".bin"
        swapped = [*BYTES[:97], b"b", b"a", *BYTES[99:]]
        for pieces, parts in ((swapped, ["token 97 is 'b', but 'a' in", "tokenizer.bin", "different tokenizers"]),
                              ([*BYTES, b"ab"], ["it has 258 tokens, but the vocabulary has 257", "different model"])):
            with open(path, "wb") as file:
                file.write(table(pieces, 256))
            result = run(*tiny_flags("--train", os.path.join(folder, "train_*.bin"), "--tokenizer", path, "--sample-every", "1"))
            self.refused(result, DATA, path, *parts)


if __name__ == "__main__":
    unittest.main()
