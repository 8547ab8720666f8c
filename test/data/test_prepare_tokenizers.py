"""Tests of what text becomes with each kind of tokenizer: ids, bytes, the token that begins documents, and the files
for train_gpt. All tokenizers are made here (made_tokenizers.py).

Run: .venv/bin/python -m unittest discover -s test/data
"""

import io
import json
import os
import struct
import subprocess
import sys
import unittest
from unittest import mock

import numpy
from prepare_case import TestCase, command_line, needs

from prepare import shard, table, tokenizers

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


def pieces_by_llm_c(content):
    """(header, bytes of each token) of a tokenizer.bin of version 2, read as llm.c does."""
    head, at, pieces = struct.unpack_from("<256i", content), 1024, []
    for _ in range(head[2]):
        pieces.append(content[at + 1:at + 1 + content[at]])
        at += 1 + content[at]
    assert head[0:2] == (20240328, 2) and at == len(content)
    return head, pieces


@needs("tokenizers", "tiktoken")
class Kinds(TestCase):
    """A thousand random texts: ids of `encode` and of shards are those of the library, and the bytes are the text's."""

    def server(self, *flags):
        """Starts `prepare encode`. Returns a function from a text to its ids, and the first line of the answers."""
        process = subprocess.Popen([sys.executable, "-m", "data.prepare", "encode", *flags], cwd=ROOT, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.wait)
        for stream in (process.stdin, process.stdout, process.stderr):
            self.addCleanup(stream.close)

        def ask(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return ask, json.loads(process.stdout.readline()), process

    def check(self, name, library, begin, prefix=0, texts=None):
        import made_tokenizers
        texts = texts or made_tokenizers.random_texts(1000)
        path = self.path("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
        self.prepared("text", path, "--tokenizer", name, "--out", self.path("out"), "--val-fraction", 0, "--dedup",
                      "none")
        report = json.loads(self.read("out/report.json"))
        self.assertEqual((report["kept"], report["changed_by_tokenizer"]),
                         (len(texts), {"documents": 0, "of_another_length": 0}))
        tokens, (sidecar,) = self.shards("train")
        ask, first, process = self.server("--tokenizer", str(name))
        self.assertEqual(first, {"vocab": sidecar["vocab"], "begin": begin, "hash": sidecar["tokenizer_hash"]})
        head, pieces = pieces_by_llm_c(self.read("out/tokenizer.bin"))
        self.assertEqual(head[2:6], (sidecar["vocab"], begin, prefix, 0))
        self.assertEqual(sidecar["end_token"], begin)
        self.assertEqual(sidecar["bytes"], sum(len(text.encode()) for text in texts))
        self.assertEqual(sidecar["documents"], len(texts))
        starts = [i for i, token in enumerate(tokens) if token == begin] + [len(tokens)]
        for text, start, end in zip(texts, starts, starts[1:]):
            ids = library(text)
            self.assertEqual(tokens[start + 1:end], ids, text)
            self.assertEqual(b"".join(pieces[i] for i in ids)[prefix:], text.encode())
            self.assertEqual(sum(len(pieces[i]) for i in ids) - prefix, len(text.encode()))
        for text in texts:
            self.assertEqual(ask(json.dumps(text)), library(text))
        left = tokenizers.open_tokenizer(self.path("out/tokenizer.json"))  # a task file made with it fits the shards
        self.assertEqual((left.hash, left.name, left.end_token),
                         (sidecar["tokenizer_hash"], sidecar["tokenizer"], begin))
        for text in texts:
            self.assertEqual(left.encode(text).tolist(), library(text))
        process.stdin.close()
        self.assertEqual(process.wait(), 0)
        return pieces

    def library(self, name):
        """The function from a text to its ids without special tokens, straight from the library."""
        import tokenizers as package
        made = package.Tokenizer.from_file(self.path(name))
        made.encode_special_tokens = True
        return lambda text: made.encode(text, add_special_tokens=False).ids

    def test_gpt2(self):
        import made_tokenizers
        name = self.path("gpt2.tiktoken", made_tokenizers.gpt2_like())
        encoding = tokenizers.open_tokenizer(name).encoding
        pieces = self.check(name, lambda text: encoding.encode(text, disallowed_special=()), 50256)
        self.assertEqual(pieces[50256], b"<|endoftext|>")

    def test_llama3(self):
        import made_tokenizers
        name = self.path("tokenizer.json", made_tokenizers.content(made_tokenizers.llama3_like()))
        pieces = self.check(name, self.library("tokenizer.json"), 500)
        self.assertEqual(pieces[500:], [b"<|begin_of_text|>", b"", b""])

    def test_llama2(self):
        import made_tokenizers
        for metaspace in (False, True):
            name = self.path("tokenizer.json", made_tokenizers.content(made_tokenizers.llama2_like(metaspace)))
            # U+2581 is how these tokenizers write a space; and newer files put no space in front of one.
            parts = [part for part in made_tokenizers.PARTS if part != "\u2581"]
            texts = ["x" * metaspace + text for text in made_tokenizers.random_texts(1000, parts=parts)]
            with self.subTest(metaspace=metaspace):
                pieces = self.check(name, self.library("tokenizer.json"), 1, prefix=1, texts=texts)
                self.assertEqual((pieces[:4], pieces[3 + 0xe4]), ([b"", b"<s>", b"", b"\0"], b"\xe4"))
                for name in os.listdir(self.path("out")):
                    os.remove(self.path("out/" + name))

    def test_neox(self):
        import made_tokenizers
        name = self.path("tokenizer.json", made_tokenizers.content(made_tokenizers.neox_like()))
        pieces = self.check(name, self.library("tokenizer.json"), 500)
        self.assertEqual(pieces[500:504], [b"<|endoftext|>", b"", b" " * 24, b" " * 23])

    def test_own(self):
        import made_tokenizers
        text = "\n\n".join(made_tokenizers.TRAINING).encode()
        self.prepared("train-tokenizer", self.path("words.txt", text), "--vocab", 600, "--out",
                      self.path("tokenizer.json"))
        self.check(self.path("tokenizer.json"), self.library("tokenizer.json"), 599)


if __name__ == "__main__":
    unittest.main()
