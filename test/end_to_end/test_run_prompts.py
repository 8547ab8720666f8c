"""Prompts become tokens in data.prepare, with tokenizers of every kind: the ids of train_gpt are those of the libraries.
Also the tokenizer that a run keeps and exports, and a machine without Python.
"""

import functools
import json
import os
import pty
import random
import re
import shutil
import subprocess
import termios
import unittest

from test_run_ranks import MPIRUN, run_ranks
from test_run_sample import HAS_TOKENIZERS, PYTHON
from trainer import (DATA, ENVIRONMENT, FLAGS, PROGRAM, ROOT, Case, FinishedRun, corpus, llmc_tensors, new_path, read_bytes,
                     read_json, run, tiny_flags, workspace, write_json, write_llmc_model)

# Makes the tokenizers of test/data/made_tokenizers.py, and has the libraries encode texts: {kind: [file, [[text, ids]]]}.
MAKER = """
import json, os, subprocess, sys
sys.path[:0] = [os.path.join(sys.argv[1], "test", "data"), os.path.join(sys.argv[1], "data")]
import tokenizers, made_tokenizers as made
from prepare import tokenizers as ours
folder, made_of = sys.argv[2], {}
def write(kind, name, content):
    os.makedirs(os.path.join(folder, kind))
    path = os.path.join(folder, kind, name)
    with open(path, "wb") as file:
        file.write(content)
    made_of[kind] = path
write("gpt2", "gpt2.tiktoken", made.gpt2_like())
for kind in ("llama3", "llama2", "neox"):
    write(kind, "tokenizer.json", made.content(getattr(made, kind + "_like")()))
made_of["own"] = os.path.join(folder, "own.json")
subprocess.run([sys.executable, "-m", "data.prepare", "train-tokenizer", "README.md", "--vocab", "400", "--out", made_of["own"]],
               cwd=sys.argv[1], check=True, capture_output=True)
texts = [text for text in made.random_texts(60, seed=7) if "\\n" not in text] + ["a\\n\\nb", "12345"]
found = {}
for kind, path in made_of.items():
    if kind == "gpt2":
        encode = ours.gpt2_from(path).encoding.encode_ordinary
    else:
        library = tokenizers.Tokenizer.from_file(path)
        library.encode_special_tokens = True
        encode = lambda text: library.encode(text).ids
    found[kind] = [path, [[text, encode(text)] for text in texts]]
json.dump(found, sys.stdout)
"""


@functools.cache
def tokenizers():
    """{kind: [path, [[text, ids]]]}"""
    made = subprocess.run([PYTHON, "-c", MAKER, ROOT, new_path("tokenizers")], check=True, capture_output=True, text=True)
    return json.loads(made.stdout)


def prepare(*arguments):
    subprocess.run([PYTHON, "-m", "data.prepare", *map(str, arguments)], cwd=ROOT, check=True, capture_output=True)


def random_model(vocab):
    """llm.c's file of a model whose next token depends on all tokens before it."""
    shape = dict(context=64, vocab=vocab, layers=1, heads=1, channels=32)
    chance = random.Random(1)
    numbers = [chance.uniform(-1, 1) for _ in range(9973)]
    return write_llmc_model(shape, {name: (chance.sample(numbers, len(numbers)) * (count // len(numbers) + 1))[:count]
                                    for name, _, count in llmc_tensors(shape)})


@unittest.skipUnless(HAS_TOKENIZERS, "the Python package tokenizers is not in .venv")
class Prompts(Case):
    def samples(self, model, tokenizer, prompts):
        """Types the prompts in a session. Returns its output and the numbers of the prompts' tokens."""
        ours, theirs = pty.openpty()
        modes = termios.tcgetattr(theirs)
        modes[0], modes[3] = 0, termios.ICANON  # lines, in which only ^D has a meaning
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        process = self.started(subprocess.Popen(
            [PROGRAM, "sample", "--from", model, "--tokenizer", tokenizer, "-g", "4", "--precision", "fp32",
             "--temperature", "0.5"],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=workspace(),
            env=ENVIRONMENT))
        os.close(theirs)
        typing = "".join(prompt + "\n" for prompt in prompts).encode() + b"\x04"
        while typing:
            typing = typing[os.write(ours, typing):]
        out, err = process.communicate(timeout=120)
        os.close(ours)
        self.assertEqual(process.returncode, 0, err)
        return out, list(map(int, re.findall(r"^(\d+) tokens? of prompt", err, re.MULTILINE)))

    def test_ids_are_the_librarys(self):
        for kind, (path, texts) in tokenizers().items():
            with self.subTest(kind):
                model = random_model(50257 if kind == "gpt2" else 1024)
                as_ids = ["ids:" + ",".join(map(str, ids)) for _, ids in texts]
                lines = [i for i, (text, _) in enumerate(texts) if "\n" not in text]
                self.assertGreater(len(lines), 20)
                told = self.samples(model, path, [texts[i][0] for i in lines])
                self.assertEqual(told, self.samples(model, path, [as_ids[i] for i in lines]))
                self.assertEqual(told[1], [len(texts[i][1]) for i in lines])
                for i in set(range(len(texts))) - set(lines) if kind in ("gpt2", "llama3") else ():
                    flags = ["sample", "--from", model, "--tokenizer", path, "-g", "4", "--temperature", "0.5", "--prompt"]
                    text, ids = (self.succeeds(run(*flags, prompt)) for prompt in (texts[i][0], as_ids[i]))
                    self.assertIn(f"{len(texts[i][1])} tokens of prompt", text.err)
                    self.assertEqual(text.out.removeprefix(texts[i][0]), ids.out.removeprefix(as_ids[i]))

    def shards(self, kind):
        folder = new_path("shards")
        prepare("text", "README.md", "--tokenizer", tokenizers()[kind][0], "--val-fraction", "0", "--out", folder)
        return folder

    def train(self, folder, *flags, **how):
        return FinishedRun("--train", os.path.join(folder, "train_*.bin"), "--max-steps", "3", "--sample-every", "3",
                           "--sample-tokens", "12", *flags, **how)

    def test_a_byte_fallback_tokenizer(self):
        """A run on it keeps its files, prints its text, and is exported with the token that begins documents."""
        folder, prompt = self.shards("llama2"), "the house"
        ids = "ids:" + ",".join(map(str, next(ids for text, ids in self.encoded("llama2", [prompt]))))
        trained = self.train(folder, "--prompt", prompt)
        ((_, text),) = trained.result.samples
        self.assertTrue(text.startswith(prompt), text)  # without the space that the tokenizer puts in front
        self.assertEqual(text, self.train(folder, "--prompt", ids).result.samples[0][1])
        if MPIRUN:
            on_two = [self.succeeds(run_ranks(2, *tiny_flags(
                "--train", os.path.join(folder, "train_*.bin"), "--batch", "2", "--max-steps", "1", "--sample-every", "1",
                "--sample-tokens", "12", "--prompt", either))).samples for either in (prompt, ids)]
            self.assertEqual(*on_two)
        for name in ("tokenizer.bin", "tokenizer.json"):
            self.assertEqual(trained.read(name), read_bytes(os.path.join(folder, name)), name)
        exported = new_path("export")
        self.succeeds(run("export", "--from", trained.directory, "--to", exported))
        self.assertEqual(read_bytes(os.path.join(exported, "tokenizer.json")), trained.read("tokenizer.json"))
        begin = read_json(os.path.join(folder, "train_000000.bin.json"))["end_token"]
        self.assertEqual(begin, 1)
        for name in ("config.json", "generation_config.json"):
            config = read_json(os.path.join(exported, name))
            self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (begin, begin), name)
        config = read_json(os.path.join(exported, "tokenizer_config.json"))
        self.assertEqual((config["bos_token"], config["eos_token"]), ("<s>", "<s>"))
        # Both directories give the same text: one with a table, one with tokenizer.json alone.
        flags = ["--prompt", prompt, "--tokens", "12", "--seed", "5"]
        self.assertEqual(*(self.succeeds(run("sample", "--from", source, *flags)).out
                           for source in (trained.directory, exported)))

    def encoded(self, kind, texts):
        code = f"import json,sys,tokenizers; t = tokenizers.Tokenizer.from_file({tokenizers()[kind][0]!r}); " \
               "print(json.dumps([[x, t.encode(x).ids] for x in json.loads(sys.argv[1])]))"
        return json.loads(subprocess.run([PYTHON, "-c", code, json.dumps(texts)], check=True, capture_output=True).stdout)

    def test_a_wrong_prompt_or_tokenizer_ends_the_start(self):
        folder = self.shards("llama3")
        common = ["--train", os.path.join(folder, "train_*.bin"), "--sample-every", "5"]
        other = os.path.join(new_path("other"), "tokenizer.json")  # the same table, other merges
        os.makedirs(os.path.dirname(other))
        changed = read_json(tokenizers()["llama3"][0])
        changed["model"]["merges"].reverse()
        with open(other, "w", encoding="utf-8") as file:
            json.dump(changed, file)
        for flags, code, parts in (
                (["--prompt", "ids:7,100000"], DATA, ["token id 100000, which is outside"]),
                (["--prompt", "caf\udce9"], FLAGS, ["--prompt is not valid UTF-8"]),
                (["--prompt", "ids:x"], FLAGS, ["--prompt: ids: begins a prompt of token ids"]),
                (["--prompt", "the", "--tokenizer", other], DATA, [other, "is not the tokenizer that", "tokenizer_hash"])):
            result = run(*tiny_flags(*common, *flags))
            self.refused(result, code, *parts)
            self.assertNotIn("step 1", result.out)

    def test_a_tokenizer_json_of_another_tokenizer(self):
        """It has the same table, or belongs to a data set that somebody has prepared again: prompts would get other tokens."""
        trained = self.train(self.shards("llama3"))
        own, other = trained.path("tokenizer.json"), new_path("other") + ".json"
        changed = read_json(own)
        changed["model"]["merges"].reverse()
        with open(other, "w", encoding="utf-8") as file:
            json.dump(changed, file)
        sample, export = ["sample", "--from", trained.directory, "--prompt", "the", "-g", "1"], ["export", "--from", trained.directory, "--to"]
        self.refused(run(*sample, "--tokenizer", other), DATA, other, "is not the tokenizer that the training data was made with")
        self.assertNotIn("note", self.succeeds(run(*export, new_path())).out)
        shutil.copy(other, own)
        self.refused(run(*sample), DATA, own, "is not the tokenizer that the training data was made with")
        exported = new_path()
        self.assertIn(f"note: the export has no tokenizer, because {own} is not the tokenizer of ",
                      self.succeeds(run(*export, exported)).out)
        self.assertFalse(os.path.exists(os.path.join(exported, "tokenizer.json")))

    def of_other_merges(self, own):
        """A directory with the same table as `own`, a tokenizer.json, and with other merges, as data.prepare writes them."""
        file, folder = new_path("other") + ".json", new_path("shards")
        changed = read_json(own)
        changed["model"]["merges"].reverse()
        write_json(file, changed)
        prepare("text", "README.md", "--tokenizer", file, "--val-fraction", "0", "--out", folder)
        return folder

    def check_without_tokenizer(self, source, reason):
        """Text is token ids, and an export has no tokenizer."""
        self.assertIn("note: text is token ids, because " + reason,
                      self.succeeds(run("sample", "--from", source, "--prompt", "ids:5", "-g", "1")).err)
        exported = new_path()
        self.assertIn("note: the export has no tokenizer, because " + reason,
                      self.succeeds(run("export", "--from", source, "--to", exported)).out)
        self.assertNotIn("tokenizer.json", os.listdir(exported))

    def test_the_tokenizer_of_a_checkpoint_elsewhere(self):
        folder, moved = self.shards("llama3"), new_path("moved")
        trained = self.train(folder, "--checkpoint-every", "3")
        shutil.move(trained.path("checkpoints/step_00000003"), moved)
        own, other = trained.path("tokenizer.json"), self.of_other_merges(trained.path("tokenizer.json"))
        os.rename(folder, folder + "-gone")
        wrong = os.path.join(other, "tokenizer.json")
        reason = f"{wrong}: it is not the tokenizer that {moved} was made with"
        sample = ["sample", "--from", moved, "--prompt", "the", "-g", "1", "--tokenizer"]
        export = ["export", "--from", moved, "--to", new_path(), "--overwrite", "--tokenizer"]
        self.refused(run(*sample, wrong), DATA, reason)
        self.assertIn("note: the tokenizer file " + reason, self.succeeds(run(*export, wrong)).out)
        for command in (sample, export):
            done = self.succeeds(run(*command, own))
            self.assertNotIn("note", done.out + done.err)
        shutil.copy(wrong, moved)
        self.check_without_tokenizer(moved, f"the tokenizer file {moved}/tokenizer.json: it is not the tokenizer that")

    def test_a_tokenizer_that_was_replaced(self):
        trained = self.train(self.shards("llama3"))
        other = self.of_other_merges(trained.path("tokenizer.json"))
        for name in ("tokenizer.bin", "tokenizer.json"):
            shutil.copy(os.path.join(other, name), trained.path(name))
        self.check_without_tokenizer(trained.directory, trained.path("tokenizer.bin") + " was replaced after the run wrote it")

    def test_runs_with_a_table_alone(self):
        """Older runs have no tokenizer.json: data.prepare makes GPT-2's, and others are exported without one."""
        folder = self.shards("gpt2")
        trained = self.train(folder)
        expected = trained.read("tokenizer.json")
        for name in ("tokenizer.json", "tokenizer.bin"):
            os.remove(trained.path(name))
        shutil.copy(tokenizers()["gpt2"][0], trained.path("tokenizer.tiktoken"))
        os.rename(folder, folder + "-gone")
        exported = new_path("export")
        done = self.succeeds(run("export", "--from", trained.directory, "--to", exported))
        self.assertNotIn("note", done.out)
        self.assertEqual(self.merges(read_bytes(os.path.join(exported, "tokenizer.json"))), self.merges(expected))
        self.succeeds(run("sample", "--from", trained.directory, "--prompt", "the house", "-g", "2"))
        trained = self.train(self.shards("own"))
        os.remove(trained.path("tokenizer.json"))
        done = self.succeeds(run("export", "--from", trained.directory, "--to", new_path(), "--tokenizer", trained.path("tokenizer.bin")),
                             DATA)
        self.assertIn("but not how a text is cut into them", done.err)

    def merges(self, content):
        return json.loads(content)["model"]["merges"]


class WithoutPython(Case):
    def test_what_works_and_what_the_message_says(self):
        """A program without its packages, or without Python: ids and bytes work, and other prompts say what is missing."""
        model, table = random_model(300), os.path.join(new_path("elsewhere"), "a.tiktoken")
        os.makedirs(os.path.dirname(table))
        with open(table, "w", encoding="ascii") as file:
            file.write("YQ== 0\n")
        home = new_path("home")
        os.makedirs(home)
        program = shutil.copy(PROGRAM, home)

        def sample(*flags):
            done = subprocess.run([program, "sample", "--from", model, "-g", "2", *flags], capture_output=True, text=True,
                                  errors="replace", cwd=workspace(), env={**ENVIRONMENT, "PATH": home}, check=False)
            return done.returncode, done.stdout, done.stderr

        for prompt, tokenizer in (("ids:0,0", table), ("hello", "bytes"), ("5 6", "")):
            flags = ["--tokenizer", tokenizer] if tokenizer else []
            code, out, err = sample("--prompt", prompt, *flags)
            self.assertEqual((code, out.startswith(prompt)), (0, True), err)
        code, _, err = sample("--prompt", "aa", "--tokenizer", table)
        self.assertEqual(code, DATA)
        self.assertIn("there is no data/prepare next to the program", err)
        shutil.copytree(os.path.join(ROOT, "data", "prepare"), os.path.join(home, "data", "prepare"))
        code, _, err = sample("--prompt", "aa", "--tokenizer", table)
        self.assertEqual(code, DATA)
        for part in ("python3 cannot be started: No such file", "scripts/setup.sh", "--prompt ids:464,3290"):
            self.assertIn(part, err)


if __name__ == "__main__":
    unittest.main()
