"""Tests of the files that `prepare --out` may replace and delete: only those that prepare wrote. Everything else stays
as it is, and the command is refused.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import json
import os
import struct
from unittest import mock

from prepare_case import TestCase, needs

from prepare import pipeline, report

DRAW = report.draw

TEXT = b"A line of text.\n" * 50
HEAD = struct.pack("<256i", 20240520, 1, 0, *[0] * 253)
TABLE = struct.pack("<256i", 20240328, 2, 257, 256, *[0] * 252) + b"\1x" * 257
# A byte-level BPE, as somebody else made it.
FOREIGN_TOKENIZER = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                     "post_processor": None,
                     "decoder": None, "truncation": None, "padding": None,
                     "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 1}, "merges": []}}

EARLIER_PICTURE = b"\x89PNG\r\n\x1a\n Matplotlib"  # prepare's only next to its report
FOREIGN = {  # contents that are not prepare's, by name in --out
    "train_000000.bin": [b"my notes", b"", HEAD, TABLE], "val_000123.bin": [b"my notes", HEAD],
    "train_000000.bin.json": [b"my notes", b"{}", b"[1]", b'{"tokenizer": "mine"}'],
    "tokenizer.bin": [b"my notes", b"", TABLE, HEAD],
    "tokenizer.json": [b"my notes", b"{}", json.dumps(FOREIGN_TOKENIZER).encode()],
    "report.json": [b"my notes", b'{"kept": 1}', b""], "report.txt": [b"My report\n", b"", b"documents in, kept\n"],
    "report.png": [b"\x89PNG\r\n\x1a\n my picture", EARLIER_PICTURE, b"my notes"],
    ".prepare": [b"my notes"], ".prepare/notes": [b"my notes"], ".prepare/chunks": [b"my notes"],
    ".prepare/chunks/00000000.json.bak": [b"x"], ".prepare/chunks/deep/00000000.json": [b"x"],
    ".prepare/shards/a.bin": [b"x"], ".prepare/old/plan": [b"x"], ".prepare/plan/a": [b"x"]}


class Outputs(TestCase):
    def setUp(self):
        super().setUp()
        self.text = self.path("a.txt", TEXT)

    def snapshot(self, folder="out"):
        """{path: (inode, content or target)} of everything in a directory."""
        found = {}
        for place, folders, files in os.walk(self.path(folder)):
            for name in folders + files:
                path = os.path.join(place, name)
                content = os.readlink(path) if os.path.islink(path) else None if os.path.isdir(path) or not \
                    os.path.isfile(path) else self.read(path)
                found[path] = (os.lstat(path).st_ino, content)
        return found

    def text_to(self, out, *flags, tokenizer="bytes"):
        return ("text", self.text, "--out", self.path(out), "--val-fraction", 0, "--tokenizer", tokenizer, *flags)

    def test_files_of_others_are_refused_and_stay(self):
        case = 0
        for name, contents in FOREIGN.items():
            for content in contents:
                for flags in ((), ("--overwrite",)):
                    with self.subTest(name=name, content=content[:30], flags=flags):
                        case += 1
                        out = f"out{case}"
                        path = self.path(f"{out}/{name}", content)
                        before = self.snapshot(out)
                        output = self.refused(*self.text_to(out, *flags))
                        self.assertIn("is in the way, and prepare did not write it; move it away", output)
                        self.assertTrue(any(part in output for part in (path, os.path.dirname(path))), output)
                        self.assertEqual(self.snapshot(out), before)

    def test_links_pipes_and_directories_are_refused_and_stay(self):
        self.prepared(*self.text_to("good"))
        for name in (*sorted(os.listdir(self.path("good"))), ".prepare", ".prepare/lock", ".prepare/plan",
                     ".prepare/chunks",
                     ".prepare/chunks/00000000.json", ".prepare/shards", ".prepare/shards/report.txt"):
            for kind in ("link to prepare's own", "link to a directory", "link to nothing", "pipe", "directory"):
                if kind == "directory" and name.startswith(".prepare") and not name.endswith((".json", ".txt", "lock",
                    "plan")):
                    continue
                with self.subTest(name=name, kind=kind):
                    out = f"out {name} {kind}"
                    path = self.path(f"{out}/{name}")
                    os.makedirs(os.path.dirname(path))
                    target = self.path({"link to prepare's own": "good/" + name, "link to a directory": "good"}.get(
                        kind, "nowhere"))
                    {"p": os.mkfifo, "d": os.mkdir, "l": lambda path: os.symlink(target, path)}[kind[0]](path)
                    before, good = self.snapshot(out), self.snapshot("good")
                    for flags in ((), ("--overwrite",)):
                        self.assertIn(f"{path} is in the way", self.refused(*self.text_to(out, *flags)))
                    self.assertEqual((self.snapshot(out), self.snapshot("good")), (before, good))

    @needs("tokenizers")
    def test_overwrite_deletes_only_what_prepare_wrote(self):
        self.path("in.txt", TEXT * 20)
        tokenizer = self.path("mine/tokenizer.json")
        self.prepared("train-tokenizer", self.path("in.txt"), "--vocab", "262", "--out", tokenizer)
        self.prepared(*self.text_to("out", "--shard-tokens", 100, tokenizer=tokenizer))
        self.assertIn("tokenizer.json", os.listdir(self.path("out")))
        notes = {"train_000000.bin.bak": b"x", "train_notes.bin": b"x", "my/train_000000.bin": b"x",
                 "report.txt.old": b"x",
                 "train_000000.bin.json.bak": b"x", "tokenizer.json.mine": b"x", "lock": b"x",
                 "xtrain_000000.bin": b"x"}
        for name, content in notes.items():
            self.path("out/" + name, content)
        self.assertIn("already holds shards (train_000000.bin)", self.refused(*self.text_to("out")))
        self.prepared(*self.text_to("out", "--overwrite"))
        self.assertEqual(sorted(os.listdir(self.path("out"))), sorted({name.split("/")[0] for name in notes} | {
            "report.json", "report.txt", "tokenizer.bin", "train_000000.bin", "train_000000.bin.json"}))
        for name, content in notes.items():
            self.assertEqual(self.read("out/" + name), content)

    @needs("tokenizers")
    def test_a_tokenizer_in_the_output_directory_may_be_the_one_that_is_used(self):
        tokenizer = self.path("out/tokenizer.json")
        self.prepared("train-tokenizer", self.text, "--vocab", "260", "--out", tokenizer)
        before = self.read("out/tokenizer.json")
        self.refused(*self.text_to("out"))
        self.prepared(*self.text_to("out", tokenizer=tokenizer))
        self.prepared(*self.text_to("out", "--overwrite", tokenizer=tokenizer))
        self.assertEqual(self.read("out/tokenizer.json"), before)

    @needs("matplotlib")
    def test_its_own_picture_is_replaced(self):
        self.draw = DRAW
        self.prepared(*self.text_to("out"))
        self.assertIn("report.png", os.listdir(self.path("out")))
        self.prepared(*self.text_to("out", "--overwrite"))
        self.path("out/report.png", EARLIER_PICTURE)
        self.prepared(*self.text_to("out", "--overwrite"))
        self.assertNotEqual(self.read("out/report.png"), EARLIER_PICTURE)

    def test_a_file_that_appears_during_the_run_stays(self):
        real = pipeline.write_split

        def meanwhile(*args):
            self.path("out/tokenizer.bin", b"my notes")
            return real(*args)

        with mock.patch.object(pipeline, "write_split", meanwhile):
            self.assertIn("tokenizer.bin is in the way", self.refused(*self.text_to("out")))
        self.assertEqual(self.read("out/tokenizer.bin"), b"my notes")
        os.rename(self.path("out/tokenizer.bin"), self.path("out/mine"))
        self.assertIn("continues with 1 of 1 chunks done", self.prepared(*self.text_to("out")))

    def test_an_output_directory_that_is_a_link(self):
        os.makedirs(self.path("real"))
        os.symlink(self.path("real"), self.path("out"))
        self.prepared(*self.text_to("out"))
        self.prepared(*self.text_to("out", "--overwrite"))
        self.assertEqual(self.documents("train", "real"), [TEXT.decode()])

    @needs("tokenizers")
    def test_commands_that_write_files(self):
        task = self.path("piqa.jsonl", json.dumps(dict(goal="a", sol1="b", sol2="c", label=0)).encode())
        example = self.path("h.jsonl", json.dumps(dict(ctx="a", endings=list("bcde"), label=0)).encode())
        self.path("long.txt", b"First Citizen:\nBefore we proceed.\n\n" * 2000)
        self.prepared(*self.text_to("shards"))
        shards = self.path("shards/train_000000.bin")
        commands = {  # arguments, the value of --out, and the files that it stands for
            "task": (("task", "piqa", "--input", task), "t.bin", ("t.bin", "t.bin.json")),
            "hellaswag": (("hellaswag", "--input", example), "h.bin", ("h.bin", "h.bin.json")),
            "table": (("table",), "b.bin", ("b.bin",)),
            "train-tokenizer": (("train-tokenizer", self.text, "--vocab", "260"), "t.json", ("t.json",)),
            "tinyshakespeare": (("tinyshakespeare", "--text", self.path("long.txt")), "", (
                "tinyshakespeare_val.bin", "tinyshakespeare_train.bin.json", "tokenizer.bin"))}
        for name, (args, out, files) in commands.items():
            tokenizer = () if name == "train-tokenizer" else ("--tokenizer", "bytes")
            for number, file in enumerate(files):
                for what in ("text", "link", "temporary link"):
                    with self.subTest(command=name, file=file, what=what):
                        folder = f"{name} {number} {what}"
                        path, mine = self.path(f"{folder}/{file}"), self.path("mine", b"my notes")
                        os.makedirs(os.path.dirname(path))
                        if what == "text":
                            self.path(path, b"my notes")
                        else:
                            os.symlink(mine, path + ".tmp" * (what != "link"))
                        before = self.snapshot(folder)
                        output = self.refused(*args, *tokenizer, "--out", self.path(f"{folder}/{out}"))
                        self.assertIn(path, output)
                        self.assertEqual(self.read("mine"), b"my notes")
                        if "temporary" not in what:
                            self.assertEqual(self.snapshot(folder), before)
            for _ in range(2):  # its own files are replaced
                self.prepared(*args, *tokenizer, "--out", self.path(f"{name}/{out}"))
        for file in ("m_000000.bin", "m_000003.bin", "m_000000.bin.json"):
            with self.subTest(file):
                self.path(f"{file}/{file}", b"my notes")
                self.assertIn(file, self.refused("merge", shards, "--out", self.path(file + "/m")))
                self.assertEqual(self.snapshot(file)[self.path(f"{file}/{file}")][1], b"my notes")


if __name__ == "__main__":
    import unittest
    unittest.main()
