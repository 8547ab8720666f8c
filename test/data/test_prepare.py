"""Tests of data/prepare except `prepare text` (test_prepare_text.py): shards and sidecars byte by byte, tokenizers,
Tiny Shakespeare, HellaSwag, inspect, validate and merge, training a tokenizer, and error messages.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import array
import contextlib
import dataclasses
import hashlib
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import unittest
from unittest import mock

import numpy
from made_tokenizers import rank_file
from prepare_case import TestCase, command_line, needs

from prepare import hellaswag, shard, shard_tools, table, tinyshakespeare, tokenizers


class ShardWriter(TestCase):
    def write(self, chunks, vocab=50257, **options):
        return shard.write_shards(chunks, lambda i: self.path(f"s{i}.bin"), tokenizer="t", vocab=vocab, end_token=1,
                                  **options)

    def test_uint16_bytes_and_sidecar(self):
        self.write([[1, 2], array.array("H", [50256]), [], [1, 7]], extra={"entropy_floor": 0.5})
        body = struct.pack("<5H", 1, 2, 50256, 1, 7)
        self.assertEqual(self.read("s0.bin"), struct.pack("<256i", 20240520, 1, 5, *[0] * 253) + body)
        self.assertEqual(json.loads(self.read("s0.bin.json")), {
            "tokenizer": "t", "vocab": 50257, "max_token": 50256, "documents": 2, "tokens": 5, "entropy_floor": 0.5,
            "checksum": "sha256:" + hashlib.sha256(body).hexdigest()})
        self.assertEqual(sorted(os.listdir(self.dir)), ["s0.bin", "s0.bin.json"])

    def test_numpy_arrays_are_written_alike(self):
        for vocab, kind in ((50257, "u2"), (128256, "u4")):
            self.write([[1, 2, 50256], [1]], vocab=vocab)
            expected = self.read("s0.bin"), self.read("s0.bin.json")
            self.write([numpy.array([1, 2, 50256], kind), numpy.array([], kind), numpy.array([1], kind)], vocab=vocab)
            self.assertEqual((self.read("s0.bin"), self.read("s0.bin.json")), expected)

    def test_uint32_from_65537_ids_on(self):
        self.write([[1, 65535]], vocab=65536)
        self.assertEqual(self.read("s0.bin"),
                         struct.pack("<256i", 20240520, 1, 2, *[0] * 253) + struct.pack("<2H", 1, 65535))
        self.write([[1, 65536, 128000]], vocab=128256)
        self.assertEqual(self.read("s0.bin"),
                         struct.pack("<256i", 20240801, 7, 3, *[0] * 253) + struct.pack("<3I", 1, 65536, 128000))

    def test_splits_at_shard_tokens_across_chunks(self):
        tokens = [random.Random(1).randrange(50257) for _ in range(1000)]
        for size in (1, 7, 100, 333, 999, 1000, 1001):
            chunks, at, rng = [], 0, random.Random(size)
            while at < 1000:
                step = rng.randrange(1, 300)
                chunks.append(tokens[at:at + step])
                at += step
            sidecars = self.write(chunks, shard_tokens=size)
            self.assertEqual([s["tokens"] for s in sidecars],
                             [size] * (1000 // size) + ([1000 % size] if 1000 % size else []))
            back = []
            for i, sidecar in enumerate(sidecars):
                part, read_sidecar = shard.read_shard(self.path(f"s{i}.bin"))
                self.assertEqual(read_sidecar, sidecar)
                self.assertEqual(sidecar["max_token"], max(part))
                back.extend(part)
            self.assertEqual(back, tokens)

    def test_checksum_sees_a_flipped_bit(self):
        self.write([[1, 2, 3, 4]])
        shard.read_shard(self.path("s0.bin"))
        data = bytearray(self.read("s0.bin"))
        data[1024 + 5] ^= 1
        self.path("s0.bin", bytes(data))
        with self.assertRaisesRegex(ValueError, "checksum"):
            shard.read_shard(self.path("s0.bin"))
        self.path("s0.bin", bytes(data[:-2]))
        with self.assertRaisesRegex(ValueError, "6 bytes of tokens"):
            shard.read_shard(self.path("s0.bin"))

    def test_a_failed_run_leaves_no_shard(self):
        def chunks():
            yield [1, 2, 3]
            raise RuntimeError("stop")

        with self.assertRaisesRegex(RuntimeError, "stop"):
            self.write(chunks())
        with self.assertRaisesRegex(ValueError, "token 9 "):
            self.write([[1, 9]], vocab=9)
        with self.assertRaisesRegex(ValueError, "no tokens"):
            self.write([[], []])
        for chunk in ([1, 70000], numpy.array([1, 50300], "u2")):  # the first does not even fit into two bytes
            with self.assertRaisesRegex(ValueError, "token (70000|50300) is not below the vocabulary of 50257"):
                self.write([chunk])
        self.assertEqual(os.listdir(self.dir), [])


class OtherPython(TestCase):
    """The command as a user types it, in a copy of the folder, with a Python that has no tiktoken."""

    def run_command(self, *args):
        package = os.path.dirname(os.path.abspath(command_line.__file__))
        shutil.copytree(package, self.path("root/data/prepare"), ignore=shutil.ignore_patterns("__pycache__"))
        self.path("root/a", b"text\n" * 100)
        # -S: without installed packages
        command = [sys.executable, "-S", "-B", "-m", "data.prepare", "text", "a", "--out", "out", *args]
        return subprocess.run(command, cwd=self.path("root"), capture_output=True, text=True)

    def make_venv(self):
        os.makedirs(self.path("root/.venv/bin"))
        self.path("root/.venv/bin/python", b"#!/bin/sh\necho venv: $*\n")
        os.chmod(self.path("root/.venv/bin/python"), 0o755)

    def test_goes_on_with_that_of_venv(self):
        self.make_venv()
        result = self.run_command("--tokenizer", "gpt2")
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (0, "venv: -S -B -m data.prepare text a --out out --tokenizer gpt2\n", ""))

    def test_says_so_without_venv(self):
        result = self.run_command("--tokenizer", "bytes")
        self.assertEqual((result.returncode, result.stderr),
                         (1, "prepare: it needs the Python package numpy: pip install numpy, or scripts/setup.sh\n"))

    def test_does_not_start_itself_for_ever(self):
        self.make_venv()
        os.remove(self.path("root/.venv/bin/python"))
        os.symlink(sys.executable, self.path("root/.venv/bin/python"))
        result = self.run_command("--tokenizer", "gpt2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("scripts/setup.sh", result.stderr)


class BytesTokenizer(TestCase):
    def test_table_is_llm_c_s_file(self):
        tokenizer = tokenizers.open_tokenizer("bytes")
        self.assertEqual(tokenizer.encode("a\u00e4").tolist(), [97, 0xc3, 0xa4])
        content = table.table_bytes(table.table_of(tokenizer))
        head = struct.pack("<6i", 20240328, 2, 257, 256, 0, 0) + bytes.fromhex(tokenizer.hash.removeprefix("sha256:"))
        self.assertEqual(content[:1024], head.ljust(1024, b"\0"))
        self.assertEqual(content[1024:], b"".join(bytes([1, byte]) for byte in range(256)) + b"\1\n")
        self.assertEqual(table.read_table(self.path("t", content)).pieces, [*tokenizer.pieces[:256], b"\n"])

    def test_table_with_long_tokens_has_wide_lengths(self):
        for length, version, width in ((255, 2, 1), (256, 3, 2), (65535, 3, 2)):
            made = table.Table([b"x" * length, b"", b"end"], 2, prefix=1, exact=False)
            content = table.table_bytes(made)
            self.assertEqual(struct.unpack_from("<7i", content), (20240328, version, 3, 2, 1, 1, 0))
            self.assertEqual(content[1024:1024 + width], length.to_bytes(width, "little"))
            self.assertEqual(len(content), 1024 + 3 * width + length + 3)
            self.assertEqual(table.read_table(self.path("t", content)), made)

    def test_damaged_tables(self):
        good = table.table_bytes(table.table_of(tokenizers.open_tokenizer("bytes")))
        for content, words in ((b"x" + good[1:], "not a tokenizer file"), (b"", "not a tokenizer file"),
                               (good[:4] + b"\4" + good[5:], "not a tokenizer file"), (good[:-1], "is damaged"),
                               (good + b"x", "is damaged")):
            with self.assertRaisesRegex(ValueError, words):
                table.read_table(self.path("t", content))


@needs("tokenizers")
class RankFile(TestCase):
    def test_reads(self):
        ranks = tokenizers.read_ranks(self.path("r", rank_file([b"he", b"ll"])))
        self.assertEqual(len(ranks), 50256)
        self.assertEqual((ranks[b"a"], ranks[b"he"], ranks[b"ll"]), (97, 256, 257))

    def test_refuses_others(self):
        for content, words in [(b"YQ== 0\n", "has 1 tokens"), (b"hello\n", "not a tiktoken file"),
                               (b"*YQ== 0\n", "not a tiktoken file")]:
            with self.assertRaisesRegex(tokenizers.PrepareError, words):
                tokenizers.gpt2_from(self.path("r", content))
        with self.assertRaisesRegex(tokenizers.PrepareError, "cannot read"):
            tokenizers.gpt2_from(self.path("none"))


@needs("tiktoken", "tokenizers")
class Tiktoken(TestCase):
    def setUp(self):
        super().setUp()
        self.ranks = self.path("r", rank_file([b"he", b"ll", b"hell", b" he"]))

    def test_local_rank_file(self):
        self.prepared("text", self.path("a", b"hello he<|endoftext|>"), "--out", self.path("out"), "--tokenizer",
                      self.ranks, "--val-fraction", "0")
        tokens, sidecar = shard.read_shard(self.path("out/train_000000.bin"))
        self.assertEqual(list(tokens), [50256, 258, ord("o"), 259, *b"<|endoftext|>"])
        self.assertEqual((sidecar["tokenizer"], sidecar["vocab"], sidecar["documents"]), ("gpt2", 50257, 1))
        left = table.read_table(self.path("out/tokenizer.bin"))
        pieces = left.pieces
        self.assertEqual(left.end_token, 50256)
        self.assertEqual(b"".join(pieces[token] for token in tokens), b"<|endoftext|>hello he<|endoftext|>")

    def test_hash_tells_tables_apart(self):
        other = self.path("other", rank_file([b"he", b"ll", b"hell", b" hx"]))
        hashes = [tokenizers.open_tokenizer(name).hash for name in (self.ranks, "gpt2=" + self.ranks, other)]
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[0], hashes[2])

    def test_named_encoding_with_its_table(self):
        from tiktoken_ext import openai_public
        kept = openai_public.load_tiktoken_bpe

        def constructor():
            ranks = openai_public.load_tiktoken_bpe("https://nowhere/x.tiktoken", expected_hash=self.expected)
            return {"name": "x_base", "pat_str": r"\p{L}+|[^\p{L}]+", "mergeable_ranks": ranks,
                    "special_tokens": {"<|endoftext|>": 70000}}

        with mock.patch.dict(openai_public.ENCODING_CONSTRUCTORS, {"x_base": constructor}):
            self.expected = hashlib.sha256(self.read("r")).hexdigest()
            tokenizer = tokenizers.open_tokenizer("x_base=" + self.ranks)
            self.assertEqual((tokenizer.name, tokenizer.vocab, tokenizer.end_token), ("x_base", 70001, 70000))
            self.assertEqual(tokenizer.encode("hell1").tolist(), [258, ord("1")])
            self.assertEqual(tokenizer.encode("hell1").itemsize, 4)
            self.expected = "0" * 64
            with self.assertRaisesRegex(tokenizers.PrepareError, "is not the table of x_base"):
                tokenizers.open_tokenizer("x_base=" + self.ranks)
        self.assertIs(openai_public.load_tiktoken_bpe, kept)
        with self.assertRaisesRegex(tokenizers.PrepareError, "no encoding 'gtp2'; it has cl100k_base,"):
            tokenizers.open_tokenizer("gtp2=" + self.ranks)

    def refused_gpt2(self, tiktoken):
        with mock.patch.dict(sys.modules, {"tiktoken": tiktoken}):
            return self.refused("text", self.path("a", b"x\n"), "--out", self.path("out"), "--tokenizer", "gpt2")

    def test_gpt2_without_tiktoken(self):
        self.assertIn("tiktoken: pip install tiktoken, or scripts/setup.sh; ", self.refused_gpt2(None))

    def test_gpt2_without_a_network(self):
        no_network = mock.Mock()
        no_network.get_encoding.side_effect = ConnectionError("a\nlong\nstory")
        output = self.refused_gpt2(no_network)
        self.assertIn("could not download GPT-2's vocabulary (ConnectionError); fetch https://", output)
        self.assertIn("r50k_base.tiktoken elsewhere and give it with --tokenizer FILE", output)

    def test_a_directory_with_the_name_of_an_encoding(self):
        for name in ("gpt2", "cl100k_base"):
            os.makedirs(self.path(name))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.dir)
        with mock.patch.object(tokenizers, "encoding_by_name", lambda name: tokenizers.Bytes()):
            for name in ("gpt2", "cl100k_base"):
                self.assertEqual(tokenizers.open_tokenizer(name).name, "bytes")

    def test_unknown_name(self):
        self.assertIn("cannot read gtp2: No such file or directory; the tokenizers are bytes, gpt2",
                      self.refused("text", self.ranks, "--out", self.path("out"), "--tokenizer", "gtp2"))


WORDS = "\n".join(f"the {a} {b} of the {c}, \u00e4\u00f6 and \u4e2d\u6587" for a in "cat dog bird".split()
                  for b in "sleeps walks sings".split() for c in "house garden tree".split()).encode()


@needs("tokenizers")
class OwnTokenizer(TestCase):
    def test_vocabularies_that_no_memory_holds(self):
        self.assertIn("--vocab 50000000000 is above", self.refused("train-tokenizer", self.path("words", WORDS), "--vocab", "50G",
                                                                   "--out", self.path("t.json")))

    def train(self, name="tokenizer.json", vocab=300):
        self.prepared("train-tokenizer", self.path("words", WORDS), "--vocab", vocab, "--out", self.path(name))
        return self.path(name)

    def test_trained_on_own_text(self):
        path = self.train()
        tokenizer = tokenizers.open_tokenizer(path)
        self.assertEqual((tokenizer.vocab, tokenizer.end_token, tokenizer.name), (300, 299, "tokenizer.json"))
        self.assertEqual(self.read("tokenizer.json"), (self.train("again.json"), self.read("again.json"))[1])
        for text in (WORDS.decode(), "  what it never saw: \x01\u20ac\U0001f600\r\n", "<|endoftext|>"):
            tokens = tokenizer.encode(text)
            self.assertEqual(tokenizer.text_of(tokens).decode(), text)
            self.assertNotIn(tokenizer.end_token, tokens)
        self.assertLess(len(tokenizer.encode(WORDS.decode())), len(WORDS) / 2)

    def test_files_that_are_not_valid_text_are_named(self):
        latin, binary = self.path("latin", WORDS + b" caf\xe9"), self.path("binary", b"\0\1")
        output = self.prepared("train-tokenizer", self.path("words", WORDS), latin, binary, "--vocab", 300, "--out", self.path("t"))
        self.assertIn(f"prepare: not valid UTF-8, in part: {latin}\nprepare: left out as binary: {binary}\n", output)
        self.assertNotIn("prepare: ", self.prepared("train-tokenizer", self.path("words"), "--vocab", 300, "--out", self.path("t")))

    def test_options_without_effect_are_noted(self):
        lines = self.path("a.jsonl", b"".join(json.dumps({"body": line}).encode() + b"\n" for line in WORDS.decode().splitlines()))
        separator, column = (f"prepare: --{flag} had no effect, because {why}\n" for flag, why in (
            ("separator", "it occurs in no text file"), ("column body", "no input has fields")))
        for flags, notes in (((self.path("words", WORDS), "--separator", "<|x|>", "--column", "body"), separator + column),
                             ((self.path("words"), "--separator", "\\n"), ""), ((lines, "--column", "body"), ""),
                             ((lines, "--column", "body", "--separator", "\\n"), separator)):
            output = self.prepared("train-tokenizer", *flags, "--vocab", 300, "--out", self.path("t.json"))
            self.assertEqual(output.partition("\n")[2], notes)

    def test_its_own_output_in_a_directory_of_the_inputs_is_not_an_input(self):
        self.path("in/words", WORDS)
        for _ in range(2):
            self.prepared("train-tokenizer", self.path("in"), "--vocab", 300, "--out", self.path("in/tokenizer.json"))

    def test_two_tokens_with_one_id(self):
        """The end token would occur inside documents."""
        file = json.loads(self.read(self.train()))
        del file["model"]["vocab"]["~"]
        with self.assertRaisesRegex(tokenizers.PrepareError, r"gives both .* the id 298: its vocabulary has a gap"):
            tokenizers.open_tokenizer(self.path("gap.json", json.dumps(file).encode()))

    def test_shards_of_it(self):
        path = self.train()
        self.prepared("text", self.path("words"), "--tokenizer", path, "--out", self.path("out"), "--val-fraction", 0)
        tokens, sidecar = shard.read_shard(self.path("out/train_000000.bin"))
        left = table.read_table(self.path("out/tokenizer.bin"))
        self.assertEqual((tokens[0], left.end_token), (299, 299))
        self.assertEqual(b"".join(left.pieces[token] for token in tokens[1:]), WORDS)
        self.assertEqual(sidecar["bytes"], len(WORDS))
        self.assertEqual(sidecar["tokenizer_hash"], "sha256:" + hashlib.sha256(self.read("tokenizer.json")).hexdigest())
        self.assertEqual(self.read("out/tokenizer.json"), self.read("tokenizer.json"))

    def test_training_shows_progress_and_ends_at_ctrl_c(self):
        from prepare import readers
        seen, texts = [], [WORDS.decode()]

        def watched(*_):
            seen.append(signal.getsignal(signal.SIGINT))
            yield from texts

        before = signal.getsignal(signal.SIGINT)
        with mock.patch.object(readers, "texts", watched):
            self.train()
            self.assertEqual(seen, [signal.SIG_DFL])  # ends the process whatever it does
            texts.append(3)
            with self.assertRaises(TypeError):
                self.train()
        self.assertEqual(signal.getsignal(signal.SIGINT), before)

        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        command = [sys.executable, "-m", "prepare", "train-tokenizer", self.path("words"), "--vocab", "300", "--out",
                   self.path("t.json")]
        folder = os.path.dirname(os.path.dirname(command_line.__file__))
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=end, check=True,
                       env={**os.environ, "TERM": "xterm"})
        os.close(end)
        self.assertIn(b"Compute merges", os.read(terminal, 1 << 16))

    def test_refusals(self):
        self.assertIn("--vocab 256 is below 257", self.refused("train-tokenizer", self.path("words", WORDS), "--vocab",
                                                                256, "--out", self.path("t.json")))
        self.assertIn("give more text", self.refused("train-tokenizer", self.path("words"), "--vocab", "5k", "--out",
                                                     self.path("t.json")))
        self.assertFalse(os.path.exists(self.path("t.json")))
        with self.assertRaisesRegex(tokenizers.PrepareError, "is not a tokenizer.json"):
            tokenizers.open_tokenizer(self.path("broken.json", b"{}"))
        content = json.loads(self.read(self.train()))
        content["added_tokens"] = []
        path = self.path("no_end.json", json.dumps(content).encode())
        with self.assertRaisesRegex(tokenizers.PrepareError, "--end-token"):
            tokenizers.open_tokenizer(path)
        with self.assertRaisesRegex(tokenizers.PrepareError, "! would begin documents, but it is not a special token"):
            tokenizers.open_tokenizer(path, "!")


@contextlib.contextmanager
def no_route():
    with mock.patch.object(tinyshakespeare, "PAUSES", (0,)), \
            mock.patch.object(tinyshakespeare.urllib.request, "urlopen", side_effect=OSError("no route")) as urlopen:
        yield
    assert urlopen.call_count == 2


class TinyShakespeare(TestCase):
    CONTENT = b"\n\n".join(b"Speaker %d:\nWords, words, words.\n" % i for i in range(2000))

    def test_documents_and_split(self):
        self.prepared("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes", "--text",
                      self.path("a", self.CONTENT))
        val, sidecar = shard.read_shard(self.path("out/tinyshakespeare_val.bin"))
        train, _ = shard.read_shard(self.path("out/tinyshakespeare_train.bin"))
        self.assertEqual(len(val), 32768)
        self.assertEqual(self.read("out/tokenizer.bin"), table.table_bytes(table.table_of(tokenizers.Bytes())))
        self.assertEqual(sidecar["bytes"], len(val) - val.count(256))
        self.assertEqual(sidecar["documents"], val.count(256))
        expected = []
        for speech in self.CONTENT.split(b"\n\n"):
            expected += [256, *speech, 10, 10]
        self.assertEqual([*val, *train], expected[:-2])

    def test_messages(self):
        nowhere = "file://" + self.path("nowhere.txt")
        with self.assertRaisesRegex(tokenizers.PrepareError, "could not download.*--text FILE"):
            with mock.patch.object(tinyshakespeare, "PAUSES", ()):
                tinyshakespeare.read_or_download(None, nowhere)
        with no_route():
            output = self.refused("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes")
        self.assertIn("no route", output)
        self.assertFalse(os.path.exists(self.path("out")))
        self.assertIn("32768", self.refused("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes",
                                            "--text", self.path("short", b"x")))


class HellaSwag(TestCase):
    """llm.c's file, read back by its description."""

    EXAMPLES = [{"ind": 5, "ctx": f"A man {i}", "endings": [f"walks {i}", "runs", "", "sleeps a while"], "label": i % 4}
                for i in range(7)]

    def input(self, examples):
        return self.path("in.jsonl", "\n".join(map(json.dumps, examples)).encode() + b"\n")

    def test_file(self):
        self.prepared("hellaswag", "--input", self.input(self.EXAMPLES), "--tokenizer", "bytes", "--out",
                      self.path("out/h.bin"))
        data = self.read("out/h.bin")
        header = struct.unpack_from("<256i", data)
        stream = list(struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:]))
        at, longest = 0, 0
        for index, example in enumerate(self.EXAMPLES):
            start, size, number, label, count = stream[at:at + 5]
            self.assertEqual((start, number, label, count), (65535, index, example["label"], 4))
            end = at + size // 2
            at += 5
            for text in [example["ctx"]] + [" " + ending for ending in example["endings"]]:
                self.assertEqual(bytes(stream[at + 1:at + 1 + stream[at]]).decode(), text)
                at += 1 + stream[at]
            self.assertEqual(at, end)
            longest = max(longest, size)
        self.assertEqual(at, len(stream))
        self.assertEqual(header, (20240522, 1, 7, longest, *[0] * 252))
        self.assertEqual(json.loads(self.read("out/h.bin.json"))["tokenizer"], "bytes")

    def test_refusals(self):
        def refused(*examples):
            return self.refused("hellaswag", "--input", self.input(examples), "--tokenizer", "bytes", "--out",
                                self.path("h.bin"))

        good = self.EXAMPLES[0]
        self.assertIn("line 2: not an example of HellaSwag (KeyError: 'label')",
                      refused(good, {"ctx": "a", "endings": []}))
        self.assertIn("line 1: 3 endings", refused(good | {"endings": ["a", "b", "c"]}))
        self.assertIn("the right one is 4", refused(good | {"label": 4}))
        self.assertIn("bytes; llm.c's file has examples below 65536", refused(good | {"ctx": "x" * 32768}))
        for changes, words in (({"endings": "abcd"}, "endings is 'abcd', not a list"), ({"ctx": None}, "(TypeError: "),
                               ({"endings": ["a", None, "c", "d"]}, "(TypeError: "), ({"ctx": "\ud800"}, "(UnicodeEncodeError: "),
                               ({"label": 1.9}, "(ValueError: "), ({"label": True}, "(ValueError: ")):
            self.assertRegex(refused(good | changes), "line 1: not an example of HellaSwag .*" + re.escape(words.lstrip("(")))
        self.assertIn("has no examples", refused())
        with no_route():
            output = self.refused("hellaswag", "--tokenizer", "bytes", "--out", self.path("h.bin"))
        self.assertRegex(output, "could not download https://.*hellaswag_val.jsonl: no route.*--input FILE")
        wide = mock.Mock(vocab=65536)
        wide.name = "wide"
        with self.assertRaisesRegex(tokenizers.PrepareError, "tokens below 65535, wide has 65536"):
            hellaswag.prepare_hellaswag(self.path("h.bin"), wide, text_file=self.input([good]))
        self.assertFalse(os.path.exists(self.path("h.bin")))


class ShardTools(TestCase):
    def setUp(self):
        super().setUp()
        for i in range(40):
            self.path(f"in/{i}.txt", b"text number %d\n" % i * (i + 1))
        self.prepared("text", self.path("in"), "--out", self.path("out"), "--val-fraction", "0.3", "--val-split",
                      "start", "--shard-tokens", "3k")
        self.files = sorted(self.path(f"out/{name}") for name in os.listdir(self.path("out"))
                            if name.endswith("0.bin") or name.endswith("1.bin"))
        self.assertGreater(len(self.files), 3)

    def sidecar(self, **changes):
        path = self.files[0] + ".json"
        content = json.loads(self.read(path))
        content.update(changes)
        with open(path, "w") as file:
            json.dump({name: value for name, value in content.items() if value is not None}, file)

    def test_inspect(self):
        output = self.prepared("inspect", self.files[0])
        self.assertIn("3000 tokens of 2 bytes, ids 10 to 256", output)
        self.assertIn("document at 0, 76 tokens: 'text number 23\\ntext", output)

    def test_validate(self):
        self.assertEqual(self.prepared("validate", *self.files, "--tokenizer", "bytes").count("agree"), len(self.files))

    def test_validate_refuses(self):
        good = json.loads(self.read(self.files[0] + ".json"))
        other = self.path("other.bin")
        for name in ("", ".json"):
            shutil.copy(self.files[0] + name, other + name)
        for changes, words in (({"documents": 1}, "its sidecar says documents 1, it has"),
                               ({"max_token": 7}, "its sidecar says max_token 7, it has 256"),
                               ({"vocab": 256}, "token 256 is not below the vocabulary of 256"),
                               ({"checksum": "sha256:0"}, "do not match the checksum"),
                               ({"tokenizer_hash": "sha256:0"}, "different tokenizers")):
            with self.subTest(changes):
                self.sidecar(**changes)
                self.assertIn(words, self.refused("validate", self.files[0], *([other] * ("different" in words))))
            self.sidecar(**good)
        self.prepared("validate", *self.files)
        os.remove(self.files[0] + ".json")
        self.assertIn("has no sidecar", self.refused("validate", *self.files))

    def test_sidecars_with_a_text_where_a_number_belongs(self):
        good = json.loads(self.read(self.files[0] + ".json"))
        for name in ("vocab", "end_token", "max_token", "documents", "tokens", "bytes"):
            for value in (str(good[name]), None, good[name] + 0.5, True):
                self.path(self.files[0] + ".json", json.dumps(good | {name: value}).encode())
                for command in (("inspect",), ("validate",), ("merge", "--out", self.path("new/train"))):
                    self.assertIn(f"{self.files[0]}.json: {name} is {json.dumps(value)}, not a whole number",
                                  self.refused(*command, self.files[0]))
        self.path(self.files[0] + ".json", json.dumps({name: good[name] for name in good if name != "tokenizer"}).encode())
        self.assertIn("has no sidecar with tokenizer, so its tokens", self.refused(
            "merge", self.files[0], "--out", self.path("new/train")))

    def test_another_tokenizer_than_the_sidecar_s(self):
        self.sidecar(tokenizer_hash="sha256:0")
        for command in ("inspect", "validate"):
            self.assertIn("was made with another tokenizer: its sidecar says tokenizer_hash sha256:0, this one (bytes)",
                          self.refused(command, self.files[0], "--tokenizer", "bytes"))
        self.sidecar(tokenizer_hash=None, tokenizer="gpt2")
        self.assertIn("its sidecar says tokenizer gpt2",
                      self.refused("validate", self.files[0], "--tokenizer", "bytes"))

    def test_a_table_of_another_tokenizer(self):
        good = table.read_table(self.path("out/tokenizer.bin"))
        train = next(path for path in self.files if "train" in path)
        for changes, what in (({"hash": "sha256:" + 64 * "1"}, "tokenizer_hash"),
                              ({"hash": "", "pieces": good.pieces[1:]}, "vocab"), ({"end_token": 7}, "end_token")):
            self.path("out/tokenizer.bin", table.table_bytes(dataclasses.replace(good, **changes)))
            for command in (("inspect", train), ("validate", train), ("merge", train, "--out", self.path("other/train"))):
                with self.subTest(command=command, what=what):
                    self.assertRegex(self.refused(*command), f"out/tokenizer.bin is of another tokenizer than .*: its {what}")
        self.assertFalse(os.path.exists(self.path("other")))
        self.prepared("table", "--tokenizer", "bytes", "--out", self.path("out/tokenizer.bin"))
        self.prepared("validate", *self.files)

    @needs("tokenizers")
    def test_tokenizer_files_are_not_replaced_by_those_of_another(self):
        words, other = self.path("words", WORDS), self.path("other/tokenizer.json")
        train = ("train-tokenizer", words, "--vocab", 300, "--out")
        self.prepared(*train, other)
        self.prepared("text", words, "--tokenizer", other, "--out", self.path("own"), "--val-fraction", 0)
        before = self.read("own/tokenizer.json")
        table_and_json = [(name, "--tokenizer", "bytes", "--out") for name in ("table", "json")]
        for command, path in ((train, "out/tokenizer.json"), (("train-tokenizer", words, "--vocab", 290, "--out"), "own/tokenizer.json"),
                              (table_and_json[0], "own/tokenizer.bin"), (table_and_json[1], "own/tokenizer.json")):
            with self.subTest(command=command, path=path):
                self.assertRegex(self.refused(*command, self.path(path)), "has the tokenizer_hash .*, the new files have sha256")
        self.assertEqual(self.read("own/tokenizer.json"), before)
        self.prepared(*train, self.path("own/tokenizer.json"))  # the same
        self.prepared("table", "--tokenizer", other, "--out", self.path("own/tokenizer.bin"))
        for _ in range(2):
            self.prepared(*table_and_json[1], self.path("out/tokenizer.json"))

    def test_a_document_in_both_splits(self):
        shutil.copy(self.files[0], self.path("out/val_000009.bin"))
        shutil.copy(self.files[0] + ".json", self.path("out/val_000009.bin.json"))
        self.assertRegex(self.refused("validate", *self.files, self.path("out/val_000009.bin")),
                         r"training and validation shards have \d+ documents in common")

    def test_one_long_document_in_both_splits(self):
        """It is also the last one of both, and continues in other shards."""
        both = self.path("both", b"A long text.\n" * 60)
        for split, inputs, tokens in (("train", [self.path("in/3.txt"), both], 250), ("val", [both], 300)):
            self.prepared("text", *inputs, "--out", self.path(split), "--val-fraction", 0, "--shard-tokens", tokens)
        for name in [name for name in os.listdir(self.path("val")) if name.startswith("train")]:
            os.rename(self.path(f"val/{name}"), self.path(f"train/{name.replace('train', 'val')}"))
        shards = sorted(self.path(f"train/{name}") for name in os.listdir(self.path("train")) if "0" in name and name.endswith(".bin"))
        self.assertEqual(len(shards), 7)
        self.prepared("validate", *shards[:4])
        self.assertIn("training and validation shards have 1 document in common", self.refused("validate", *shards))

    def test_merge(self):
        train = sorted(path for path in self.files if "train" in path)
        tokens = [token for path in train for token in shard.read_shard(path)[0]]
        self.prepared("merge", *train, "--out", self.path("merged/train"), "--shard-tokens", "4k")
        merged, sidecars = self.shards("train", "merged")
        self.assertEqual(merged, tokens)
        self.assertEqual([sidecar["tokens"] for sidecar in sidecars][:-1], [4000] * (len(sidecars) - 1))
        self.prepared("validate", *(self.path(f"merged/{name}") for name in os.listdir(self.path("merged"))
                                    if name.startswith("train") and name.endswith(".bin")))
        self.assertEqual(self.read("merged/tokenizer.bin"), self.read("out/tokenizer.bin"))
        self.assertIn("is there already", self.refused("merge", *train, "--out", self.path("merged/train")))
        for changes, words in (({"tokenizer_hash": "sha256:0"}, "have different tokenizers: tokenizer_hash sha256:"),
                               ({"end_token": 10}, "have different tokenizers: end_token 256 and 10")):
            kept = self.read(self.files[0] + ".json")
            self.sidecar(**changes)
            self.assertIn(words, self.refused("merge", *self.files, "--out", self.path("other/train")))
            self.assertFalse(os.path.exists(self.path("other")))
            self.path(self.files[0] + ".json", kept)

    def test_merge_refuses_validation_data_and_copies(self):
        train, val = (next(path for path in self.files if split in path) for split in ("train", "val"))
        os.symlink(train, self.path("link.bin"))
        os.symlink(train + ".json", self.path("link.bin.json"))
        for paths, words in (((train, val), "is training data, and " + val + " validation data"),
                             ((train, train), "which would count twice"),
                             ((train, self.path("link.bin")), "link.bin has the tokens of " + train)):
            self.assertIn(words, self.refused("merge", *paths, "--out", self.path("other/train")))

    def test_the_split_is_a_word_of_the_name(self):
        names = {"val": ("val.bin", "fineweb_val_000000.bin", "a-val2.bin", "VAL.bin", "validation_0.bin", "valid.bin"),
                 "train": ("train.bin", "medieval_train_000000.bin", "edu_fineweb_train_000001.bin", "training.bin"),
                 None: ("medieval.bin", "values_000000.bin", "constraint.bin", "trainer.bin", "0.bin")}
        for split, paths in names.items():
            for path in paths:
                self.assertEqual(shard_tools.split_of("val/train/" + path), split, path)
        first, second = (path for path in self.files if "train" in path)
        for path, name in ((first, "medieval_train_000000.bin"), (second, "train_000009.bin")):
            for suffix in ("", ".json"):
                shutil.copy(path + suffix, self.path(name + suffix))
        both = self.path("medieval_train_000000.bin"), self.path("train_000009.bin")
        self.prepared("validate", both[0], first)  # both are training data, so they may have documents in common
        self.prepared("merge", *both, "--out", self.path("merged/train"))

    def test_merge_names_shards_not_a_directory(self):
        for out in ("out", "out/", "new/"):
            self.assertIn(f"{out} is a directory; give the beginning of the names of shards, such as ",
                          self.refused("merge", self.files[0], "--out", self.path(out)))

    def test_merge_into_a_directory_of_another_tokenizer(self):
        self.path("there/val_000000.bin.json", b'{"end_token": 1}')
        self.assertIn("val_000000.bin has the end_token 1, the new files have 256; they need different tokenizer files",
                      self.refused("merge", self.files[0], "--out", self.path("there/train")))
        self.assertEqual(os.listdir(self.path("there")), ["val_000000.bin.json"])


if __name__ == "__main__":
    unittest.main()
