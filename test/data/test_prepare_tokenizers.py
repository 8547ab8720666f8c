"""Tests of what text becomes with each kind of tokenizer: ids, bytes, the token that begins documents, and the files
for train_gpt. All tokenizers are made here (made_tokenizers.py).

Run: .venv/bin/python -m unittest discover -s test/data
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import unittest

import made_tokenizers
from made_tokenizers import library
from prepare_case import TestCase, needs

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


class Server(TestCase):
    def server(self, *flags, **options):
        """Starts `prepare encode`. Returns a function that asks it a line, its first answer, and the process."""
        process = subprocess.Popen([sys.executable, "-m", "data.prepare", "encode", *flags], cwd=ROOT, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(process.wait)
        for stream in (process.stdin, process.stdout, process.stderr):
            self.addCleanup(stream.close)

        def ask(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        return ask, json.loads(process.stdout.readline()), process

    def made(self, tokenizer, name="tokenizer.json"):
        return self.path(name, made_tokenizers.content(tokenizer))


@needs("tokenizers", "tiktoken")
class Kinds(Server):
    """A thousand random texts: ids of `encode` and of shards are those of the library, and the bytes are the text's.
    `front`: what the library puts in front of every text, and `encode` in front of a prompt.
    """

    def check(self, name, library, begin, prefix=0, texts=None, front=()):
        texts = texts or made_tokenizers.random_texts(1000)
        path = self.path("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
        self.prepared("text", path, "--tokenizer", name, "--out", self.path("out"), "--val-fraction", 0, "--dedup",
                      "none")
        report = json.loads(self.read("out/report.json"))
        self.assertEqual((report["kept"], report["changed_by_tokenizer"]),
                         (len(texts), {"documents": 0, "miscounted_bytes": 0}))
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
            self.assertEqual(ask(json.dumps(text)), [*front, *library(text)])
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
        name = self.path("gpt2.tiktoken", made_tokenizers.gpt2_like())
        encoding = tokenizers.open_tokenizer(name).encoding
        pieces = self.check(name, lambda text: encoding.encode(text, disallowed_special=()), 50256)
        self.assertEqual(pieces[50256], b"<|endoftext|>")

    def test_llama3(self):
        name = self.made(made_tokenizers.llama3_like())
        pieces = self.check(name, self.library("tokenizer.json"), 500, front=[500])
        self.assertEqual(pieces[500:], [b"<|begin_of_text|>", b"", b""])

    def test_llama2(self):
        for metaspace in (False, True):
            name = self.made(made_tokenizers.llama2_like(metaspace))
            # U+2581 is how these tokenizers write a space; and newer files put no space in front of one.
            parts = [part for part in made_tokenizers.PARTS if part != "\u2581"]
            texts = ["x" * metaspace + text for text in made_tokenizers.random_texts(1000, parts=parts)]
            with self.subTest(metaspace=metaspace):
                pieces = self.check(name, self.library("tokenizer.json"), 1, prefix=1, texts=texts, front=[1])
                self.assertEqual((pieces[:4], pieces[3 + 0xe4]), ([b"", b"<s>", b"", b"\0"], b"\xe4"))
                for name in os.listdir(self.path("out")):
                    os.remove(self.path("out/" + name))

    def test_neox(self):
        name = self.made(made_tokenizers.neox_like())
        pieces = self.check(name, self.library("tokenizer.json"), 500)
        self.assertEqual(pieces[500:504], [b"<|endoftext|>", b"", b" " * 24, b" " * 23])

    def test_own(self):
        text = "\n\n".join(made_tokenizers.TRAINING).encode()
        self.prepared("train-tokenizer", self.path("words.txt", text), "--vocab", 600, "--out",
                      self.path("tokenizer.json"))
        self.check(self.path("tokenizer.json"), self.library("tokenizer.json"), 599)


@needs("tokenizers", "tiktoken")
class Encode(Server):
    def test_every_line_has_an_answer(self):
        ask, first, process = self.server("--tokenizer", "bytes")
        self.assertEqual(first, {"vocab": 257, "begin": 256, "hash": tokenizers.Bytes().hash})
        process.send_signal(signal.SIGINT)  # Ctrl-C is for train_gpt
        for line, answer in (('"a\\n\u00e9"', [97, 10, 0xc3, 0xa9]), ('""', []),
                             ('"\\ud83d\\ude00"', [*"\U0001f600".encode()]), ('"abcd\\ud83d"', [*"abcd\ufffd".encode()]),
                             ('"\\ud83d"', "binary"), ('"a\\u0000"', "binary"), ("7", "not a string"),
                             ("", "not a JSON string"),
                             ("[" * 100000, "not a JSON string"), ('"a', "not a JSON string"), ('"b"', [98])):
            found = ask(line)
            if isinstance(answer, list):
                self.assertEqual(found, answer)
            else:
                self.assertEqual(list(found), ["error"])
                self.assertIn(answer, found["error"])
        process.stdin.close()
        self.assertEqual((process.wait(), process.stderr.read()), (0, ""))

    def test_says_what_is_wrong_in_the_first_line(self):
        unnamed = made_tokenizers.trained_bpe(r"\w+|\W+", 260)
        hidden = {"PYTHONPATH": self.path("hidden")}  # shadows the installed package, and cannot be imported
        self.path("hidden/tokenizers.py", b"raise ImportError")
        for name, options, words in (("nowhere.json", {}, "cannot read nowhere.json: No such file"),
                                     (self.path("x.json", b"{}"), {}, "is not a tokenizer.json"),
                                     (self.made(unnamed), {"env": os.environ | hidden}, "setup.sh --with-prepare")):
            _, first, process = self.server("--tokenizer", name, **options)
            self.assertEqual((list(first), process.wait()), (["error"], 1))
            self.assertIn(words, first["error"])
            self.assertEqual((process.stdout.read(), process.stderr.read()), ("", ""))
        _, first, _ = self.server("--tokenizer", self.path("tokenizer.json"))  # a prompt needs no token in front
        self.assertEqual((first["vocab"], first["begin"]), (260, -1))

    def test_table(self):
        name = self.made(made_tokenizers.llama2_like())
        found = subprocess.run([sys.executable, "-m", "data.prepare", "table", "--tokenizer", name], cwd=ROOT,
                               capture_output=True, check=True)
        self.assertEqual(found.stderr, b"")
        self.prepared("table", "--tokenizer", name, "--out", self.path("t.bin"))
        self.prepared("text", self.path("a.txt", b"the house"), "--tokenizer", name, "--val-fraction", 0, "--out",
                      self.path("out"))
        self.assertEqual(self.read("t.bin"), found.stdout)
        self.assertEqual(self.read("out/tokenizer.bin"), found.stdout)


    def test_dropout_truncation_and_padding_do_not_change_ids(self):
        """A file may have them for the training of its own model."""
        tokenizer = made_tokenizers.neox_like()
        text = made_tokenizers.TRAINING[-1]
        expected = tokenizer.encode(text).ids
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=99)
        tokenizer.model.dropout = 0.5
        for _ in range(3):
            opened = tokenizers.open_tokenizer(self.made(tokenizer))
            self.assertEqual(opened.encode(text).tolist(), expected)

    def test_names_and_texts_that_the_locale_does_not_have(self):
        name = os.fsdecode(b"t\xc3\xb6k\xff.json")
        self.made(made_tokenizers.neox_like(), name)
        self.path("a.txt", "\u00e9t\u00e9 \u4f60\u597d\n".encode() * 9)
        for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}):
            for command in (("text", self.path("a.txt"), "--tokenizer", self.path(name), "--out", self.path("out"),
                             "--val-fraction", "0", "--overwrite"), ("inspect", self.path("out/train_000000.bin"))):
                done = subprocess.run([sys.executable, "-m", "data.prepare", *command], cwd=ROOT, env={**os.environ, **locale},
                                      capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (0, b""), command)
        self.assertIn("(t\u00f6k\\udcff.json, vocabulary", self.read("out/report.txt").decode())


@needs("tokenizers")
class Begin(Server):
    """Documents begin with the post-processor's token, or else with a token that has a usual name."""

    def test_cases(self):
        llama2, plain = made_tokenizers.llama2_like, made_tokenizers.neox_like()
        for tokenizer, flags, expected in (
                (llama2(), [], 1), (llama2(), ["--end-token", "<s>"], 1), (llama2(post_processor=None), [], 2),
                (llama2(post_processor=None), ["--end-token", "<s>"], 1), (llama2(post_processor="$A </s>"), [], 2),
                (made_tokenizers.llama3_like(), [], 500), (plain, [], 500),
                (plain, ["--end-token", "<|padding|>"], 501),
                (llama2(), ["--end-token", "</s>"], "puts <s> in front of every text, so documents cannot begin with "
                                                    "--end-token </s>"),
                (llama2(post_processor="<s> $A </s>"), [], "puts <s> in front of a text and </s> behind it"),
                (llama2(post_processor="<s> </s> $A"), [], "puts <s> </s> in front of a text and nothing behind it"),
                (llama2(post_processor="$A <s>"), [], "puts nothing in front of a text and <s> behind it"),
                (plain, ["--end-token", "<s>"], "has no token <s>"),
                (plain, ["--end-token", "house"], "house would begin documents, but it is not a special token"),
                (plain, ["--end-token", "    "], "would begin documents, but it is not a special token"),
        ):
            name = self.made(tokenizer)
            command = ["table", "--tokenizer", name, *flags, "--out", self.path("t.bin")]
            with self.subTest(flags=flags, expected=expected):
                if isinstance(expected, str):
                    self.assertIn(expected, self.refused(*command))
                    self.assertIn(expected, self.refused("text", self.path("a.txt", b"x"), *command[1:-1],
                                                         self.path("out")))
                else:
                    self.prepared(*command)
                    self.assertEqual(table.read_table(self.path("t.bin")).end_token, expected)

    def test_tokenizers_with_a_begin_of_their_own(self):
        some = self.path("some", b"text")
        for name in ("bytes", "gpt2=" + self.path("ranks", made_tokenizers.rank_file())):
            args = ("text", some, "--tokenizer", name, "--val-fraction", 0, "--overwrite", "--out", self.path("out"), "--end-token")
            self.assertIn("--end-token <s> is for a tokenizer.json: documents of " + name.partition("=")[0],
                          self.refused(*args, "<s>"))
        self.prepared(*args, "<|endoftext|>")

    def test_shards_with_another_begin_are_not_mixed(self):
        text, name = self.path("a.txt", b"the house of\n" * 5), self.made(made_tokenizers.llama2_like())
        command = ["text", text, "--tokenizer", name, "--out", self.path("out"), "--val-fraction", 0]
        self.prepared(*command)
        sidecar = json.loads(self.read("out/train_000000.bin.json"))
        self.prepared(*command, "--overwrite")
        for changes in ({"end_token": 2}, {"tokenizer_hash": "sha256:0"}):  # those of an earlier version; another one's
            self.path("out/more.bin.json", json.dumps(sidecar | changes).encode())
            self.assertIn(f"more.bin has the {next(iter(changes))} {next(iter(changes.values()))}, the new files have",
                          self.refused(*command, "--overwrite"))
            self.path("out/train_000000.bin.json", json.dumps(sidecar | changes).encode())
            os.remove(self.path("out/more.bin.json"))
            self.prepared(*command, "--overwrite")  # replaces them
            self.assertEqual(json.loads(self.read("out/train_000000.bin.json")), sidecar)
        speeches = self.path("b.txt", b"the house\n\n" * 4000)
        self.assertIn("has the tokenizer_hash", self.refused("tinyshakespeare", "--text", speeches, "--tokenizer", "bytes",
                                                             "--out", self.path("out")))
        self.prepared("text", text, "--out", self.path("out"), "--overwrite", "--val-fraction", 0)
        self.assertFalse(os.path.exists(self.path("out/tokenizer.json")))  # it was that of the replaced shards
        self.path("out/tokenizer.json", self.read("tokenizer.json"))
        self.assertIn("tokenizer.json is not the tokenizer of the new shards, which have none",
                      self.refused("tinyshakespeare", "--text", speeches, "--tokenizer", "bytes", "--out",
                                   self.path("out")))


@needs("tokenizers", "tiktoken")
class Bytes(Server):
    """Tokenizers that change text: sidecars have the documents' bytes, and the table says that it does not count."""

    def test_changed_texts(self):
        normalizers = library.normalizers
        texts = ["The House", "the  house ", "\u00c5ngstr\u00f6m", "\ufb01ne \u2126", "\u0130stanbul", "plain"]
        for normalizer, changed, miscounted, more in (
                (normalizers.Lowercase(), 4, 2, ""), (normalizers.NFC(), 1, 1, ""), (normalizers.NFKC(), 1, 2, ""),
                (normalizers.Strip(), 1, 1, ""), (normalizers.Replace("  ", " "), 1, 1, ""), (None, 0, 0, ""),
                (normalizers.Strip(), 1, 1, "many words " * 900), (normalizers.Strip(), 1, 1, "many words " * 910)):
            tokenizer = made_tokenizers.trained_bpe(tokenizers.GPT2_PATTERN, 400)
            tokenizer.add_special_tokens(["<|endoftext|>"])
            if normalizer:
                tokenizer.normalizer = normalizer
            texts[-1] = more.strip() or "plain"
            size = sum(len(text.encode()) for text in texts)
            exact = miscounted <= size / 10000
            self.path("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
            with self.subTest(normalizer=str(normalizer)):
                said = self.prepared("text", self.path("texts.jsonl"), "--tokenizer", self.made(tokenizer), "--out",
                                     self.path("out"), "--val-fraction", 0, "--overwrite")
                report = json.loads(self.read("out/report.json"))["changed_by_tokenizer"]
                self.assertEqual(report, {"documents": changed, "miscounted_bytes": miscounted})
                self.assertEqual("changed by the tokenizer" in said, changed > 0)
                self.assertEqual("mean bytes per token" in said, not exact)
                self.assertEqual(table.read_table(self.path("out/tokenizer.bin")).exact, exact)
                self.assertEqual(self.shards("train")[1][0]["bytes"], size)

    def test_without_a_decoder_or_with_words(self):
        """A file without a decoder is read by its pre-tokenizer; WordPiece loses spaces, so its table counts nothing."""
        tokenizer = library.Tokenizer(library.models.BPE({"\u0120": 0, "a": 1, "\u0120a": 2, "\u00c3": 3, "\u00a9": 4},
                                                         [("\u0120", "a")]))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<eos>"])
        opened = tokenizers.open_tokenizer(self.made(tokenizer))
        self.assertEqual((opened.pieces, opened.prefix), ([b" ", b"a", b" a", b"\xc3", b"\xa9", b""], 0))
        self.assertEqual(opened.text_of(opened.encode("a a\u00e9")), "a a\u00e9".encode())
        vocab = {"[UNK]": 0, "a": 1, "##b": 2, "[SEP]": 3}
        words = library.Tokenizer(library.models.WordPiece(vocab, unk_token="[UNK]"))
        words.pre_tokenizer, words.decoder = library.pre_tokenizers.BertPreTokenizer(), library.decoders.WordPiece()
        words.add_special_tokens(["[UNK]", "[SEP]"])
        said = self.prepared("table", "--tokenizer", self.made(words), "--out", self.path("t.bin"))
        self.assertIn("changes the length of text, so its table is marked", said)
        self.assertFalse(table.read_table(self.path("t.bin")).exact)

    def test_files_that_other_programs_write(self):
        """A file may leave out parts; a tokenizer may have no token for a text, and none for those that it has not."""
        tokenizer = made_tokenizers.trained_bpe(tokenizers.GPT2_PATTERN, 300)
        tokenizer.add_special_tokens(["<|endoftext|>"])
        whole = json.loads(made_tokenizers.content(tokenizer))
        for ignore_merges in (False, True):
            whole["model"]["ignore_merges"] = ignore_merges
            some = {name: part for name, part in whole.items() if part is not None}
            path = self.path("some.json", json.dumps(some).encode())
            self.assertEqual(tokenizers.open_tokenizer(path).text_of(tokenizer.encode("a dog").ids), b"a dog")
        words = library.Tokenizer(library.models.WordLevel({"cat": 0, "</s>": 1}, unk_token="[UNK]"))
        words.add_special_tokens(["</s>"])
        self.assertIn("tokenizer.json cannot encode 'a': WordLevel error: Missing [UNK] token",
                      self.refused("table", "--tokenizer", self.made(words), "--out", self.path("t.bin")))

    def test_merge_keeps_bytes(self):
        texts = made_tokenizers.random_texts(200, parts=["the", "house", " ", "\u00e9", "7"])
        path = self.path("a.jsonl", "".join(json.dumps({"text": "x" + text}) + "\n" for text in texts).encode())
        command = ["text", path, "--tokenizer", self.made(made_tokenizers.llama2_like()), "--out", self.path("out"),
                   "--val-fraction", 0, "--dedup", "none"]
        self.prepared(*command, "--shard-tokens", 300)
        paths = sorted(self.path(f"out/{name}") for name in os.listdir(self.path("out"))
                       if name.startswith("train") and name.endswith(".bin"))
        small = [sidecar["bytes"] for sidecar in self.shards("train")[1]]
        self.prepared("merge", *paths, "--out", self.path("merged/train"), "--shard-tokens", 700)
        self.prepared(*command, "--shard-tokens", 700, "--overwrite")
        whole = self.shards("train")[1]
        self.assertEqual(self.shards("train", "merged")[1], whole)  # also exactly their bytes
        for name in ("tokenizer.bin", "tokenizer.json"):
            self.assertEqual(self.read(f"merged/{name}"), self.read(f"out/{name}"))
        paths = [path for path in paths if os.path.exists(path)]
        sidecars = self.shards("train")[1]
        os.remove(self.path("out/tokenizer.bin"))  # bytes are spread evenly, and their sum is kept
        self.prepared("merge", *paths, "--out", self.path("spread/train"), "--shard-tokens", 500)
        spread = self.shards("train", "spread")[1]
        self.assertEqual(sum(small), sum(sidecar["bytes"] for sidecar in spread))
        self.assertEqual(spread[0]["bytes"], sidecars[0]["bytes"] * 500 // 700)


@needs("tokenizers", "tiktoken")
class FromRanks(Server):
    """tokenizer.json made from ranks gives tiktoken's ids, and is known as that encoding."""

    def test_every_pattern_of_tiktoken(self):
        import tiktoken
        texts = [text + end for text in made_tokenizers.random_texts(100, seed=3) for end in ("", "\n  ")]
        for name, pattern, special, _ in tokenizers.known_encodings():
            trained = made_tokenizers.trained_bpe(tokenizers.portable(pattern), 256 + 200)
            byte_of = tokenizers.notations()[0]
            ranks = {bytes(byte_of[character] for character in token): i for token, i in trained.get_vocab().items()}
            for count in range(2, 26):  # p50k's: not in the order of merges
                ranks.setdefault(b" " * count, len(ranks))
            ranks.setdefault(b"\n  ", len(ranks))  # white space at the end of a text is one word
            encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
            made = tokenizers.Tiktoken(encoding, name)
            with self.subTest(name):
                opened = tokenizers.open_tokenizer(self.path("tokenizer.json", made.content))
                for text in [*texts, *list(special)[:5]]:
                    self.assertEqual(opened.encode(text).tolist(), made.encode(text).tolist(), text)
                self.assertEqual((opened.pieces, opened.end_token), (made.pieces, made.end_token))
                if name not in ("r50k_base", "p50k_base", "gpt2"):  # which this vocabulary is too small for
                    self.assertEqual((opened.name, opened.hash), (name, made.hash))

    def test_no_file_that_gives_other_ids(self):
        import tiktoken
        ranks = {bytes([byte]): byte for byte in range(256)}
        for pattern, words in ((r"[\s\S]+", "no tokenizer.json gives the ids of tiktoken's x for '<|endoftext|>'"),
                               (r"(?s:.+)", "no tokenizer.json can split words like")):
            encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks,
                                         special_tokens={"<|endoftext|>": 256})
            with self.assertRaisesRegex(tokenizers.PrepareError, re.escape(words)):
                tokenizers.Tiktoken(encoding, "x").content

    def test_tables(self):
        """llm.c's tokenizer.bin tells how to cut a text only if it is GPT-2's."""
        tokens = [bytes([byte]) for byte in range(256)] + [b"%d" % i for i in range(10000, 60000)]
        for i, piece in tokenizers.GPT2_PIECES.items():
            tokens[i] = piece
        tokens[32] = bytes([220])
        with self.subTest("GPT-2"):
            content = table.table_bytes(table.Table([*tokens, b"<|endoftext|>"], 50256))
            for version in (content, content[:4] + b"\1" + content[5:12] + bytes(1012) + content[1024:]):
                opened = tokenizers.open_tokenizer(self.path("t.bin", version))
                self.assertEqual((opened.name, opened.vocab, opened.end_token), ("gpt2", 50257, 50256))
                self.assertEqual(opened.encode("a\n\nb").tolist(), [97, 10, 10, 98])
        tokens[50255] = b"other"
        for pieces in ([*tokens, b"end"], tokens, [b"a", b"b"]):
            content = table.table_bytes(table.Table(pieces, len(pieces) - 1))
            with self.assertRaisesRegex(tokenizers.PrepareError, "not how a text is cut into them; give the tok"):
                tokenizers.open_tokenizer(self.path("t.bin", content))
        content = table.table_bytes(table.table_of(tokenizers.Bytes()))
        self.assertEqual(tokenizers.open_tokenizer(self.path("t.bin", content)).name, "bytes")
        with self.assertRaisesRegex(tokenizers.PrepareError, "is a SentencePiece model, not a tokenizer.json; give the"):
            tokenizers.open_tokenizer(self.path("tokenizer.model", b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\2"))


@needs("tokenizers")
class Tasks(Server):
    """With a tokenizer that puts a space in front of every text."""

    def test_hellaswag(self):
        name = self.made(made_tokenizers.llama2_like())
        row = {"ctx": "the house", "endings": ["of the", "out", "of us", "the end"], "label": 2}
        self.prepared("hellaswag", "--input", self.path("in.jsonl", json.dumps(row).encode()), "--tokenizer", name,
                      "--out", self.path("h.bin"))
        stream = [token for token, in struct.iter_unpack("<H", self.read("h.bin")[1024:])][5:]
        parts = []
        while stream:
            parts.append(stream[1:1 + stream[0]])
            stream = stream[1 + stream[0]:]
        tokenizer = tokenizers.open_tokenizer(name)
        for ending, part in zip(row["endings"], parts[1:], strict=True):
            self.assertEqual(parts[0] + part, tokenizer.encode(row["ctx"] + " " + ending).tolist())
        self.assertEqual(tokenizer.text_of(parts[0]), b"the house")

    def test_tinyshakespeare(self):
        name = self.made(made_tokenizers.llama2_like())
        text = "\n\n".join("First Citizen:\nthe house of the %d" % i for i in range(2000))
        self.prepared("tinyshakespeare", "--tokenizer", name, "--text", self.path("a", text.encode()), "--out",
                      self.path("out"))
        tokens, sidecars = zip(*(shard.read_shard(self.path(f"out/tinyshakespeare_{split}.bin"))
                                 for split in ("val", "train")))
        self.assertEqual(sum(sidecar["bytes"] for sidecar in sidecars), len(text))
        left = table.read_table(self.path("out/tokenizer.bin"))
        self.assertEqual((tokens[0][0], left.end_token, left.prefix, left.exact), (1, 1, 1, True))


if __name__ == "__main__":
    unittest.main()
