"""Tests of data/prepare: shards and sidecars byte by byte, text, Tiny Shakespeare, and what users read when it fails.

Run: python3 -m unittest discover -s test/data
"""

import array
import base64
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "data"))
from prepare import __main__ as command_line
from prepare import shard, text, tinyshakespeare, tokenizers

try:
    import tiktoken
except ImportError:
    tiktoken = None


class TestCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def path(self, name, content=None):
        path = os.path.join(self.dir, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        return path

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def prepare(self, *args):
        """Exit code and what was printed."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = command_line.main(list(args))
        return code, output.getvalue()


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
        self.assertEqual(os.listdir(self.dir), [])


class Text(TestCase):
    def shards(self, split, out="out"):
        """All tokens of a split, and its sidecars."""
        names = sorted(name for name in os.listdir(self.path(out))
                       if name.startswith(split + "_") and name.endswith(".bin"))
        parts = [shard.read_shard(self.path(f"{out}/{name}")) for name in names]
        return [token for tokens, _ in parts for token in tokens], [sidecar for _, sidecar in parts]

    def test_bytes_round_trip(self):
        a, b = b"one\ntwo\n\nthree \xc3\xa4\xff\n", bytes(range(256))
        code, output = self.prepare("text", self.path("a", a), self.path("b", b), "--out", self.path("out"),
                                    "--val-fraction", "0")
        self.assertEqual(code, 0, output)
        tokens, (sidecar,) = self.shards("train")
        self.assertEqual(tokens, [256, *a, 256, *b])
        self.assertEqual({key: sidecar[key] for key in ("tokenizer", "vocab", "max_token", "documents", "tokens")},
                         {"tokenizer": "bytes", "vocab": 257, "max_token": 256, "documents": 2,
                          "tokens": len(a) + len(b) + 2})
        self.assertEqual(self.shards("val"), ([], []))

    def test_validation_is_the_start_and_nothing_is_lost(self):
        lines = b"".join(b"line %d\n" % i for i in range(1000))
        files = [self.path("a", lines[:3000]), self.path("b", b""), self.path("c", lines[3000:])]
        for fraction in (1e-9, 0.001, 0.3, 0.5, 0.9):
            code, output = self.prepare("text", *files, "--out", self.path("out"), "--val-fraction", str(fraction),
                                        "--overwrite", "--shard-tokens", "1000")
            self.assertEqual(code, 0, output)
            val, _ = self.shards("val")
            train, sidecars = self.shards("train")
            self.assertTrue(all(sidecar["tokens"] == 1000 for sidecar in sidecars[:-1]))
            self.assertEqual(val[0], 256)
            self.assertEqual(train[0], 256)
            val, train = (bytes(token for token in tokens if token != 256) for tokens in (val, train))
            self.assertEqual(val + train, lines)
            self.assertTrue(val.endswith(b"\n"))
            self.assertTrue(0 <= len(val) - fraction * len(lines) < 10)

    def test_pieces_are_cut_where_tokenizers_cut(self):
        rng = random.Random(1)
        content = bytes(rng.choice(b"ab \n\n\r\xc3") for _ in range(5000)) + b"\n" * 100
        path = self.path("a", content)
        with mock.patch.object(text, "PIECE_BYTES", 64):
            pieces = list(text.read_pieces(path, 0, len(content)))
            self.assertEqual(list(text.read_pieces(path, 70, 71)), [content[70:71]])
        self.assertEqual(b"".join(pieces), content)
        self.assertGreater(len(pieces), 40)
        for before, after in zip(pieces, pieces[1:]):
            self.assertRegex(before[-1:], b"[ab]")
            self.assertEqual(after[:1], b"\n")

    def test_old_shards_are_not_mixed_with_new_ones(self):
        args = ("text", self.path("a", b"abc\n" * 100), "--out", self.path("out"), "--shard-tokens", "50")
        self.assertEqual(self.prepare(*args)[0], 0)
        self.path("out/train_notes.txt", b"mine")
        code, output = self.prepare(*args)
        self.assertEqual(code, 1)
        self.assertIn("--overwrite", output)
        self.assertEqual(self.prepare(*args[:-1], "1000", "--overwrite")[0], 0)
        self.assertEqual(len(self.shards("train")[1]), 1)
        self.assertEqual(self.read("out/train_notes.txt"), b"mine")

    def test_messages(self):
        some = self.path("some", b"text\n")
        out = ("--out", self.path("out"))
        for args, words in [((self.path("none"),), "not a file"), ((self.path("empty", b""),), "empty"),
                            ((some, "--val-fraction", "1"), "--val-fraction 1"),
                            ((some, "--val-fraction", "0.5"), "no line for training"),
                            ((some, "--shard-tokens", "0"), "--shard-tokens 0"),
                            ((some, "--tokenizer", "gtp2"), "cannot read gtp2: No such file or directory; the tokeni")]:
            code, output = self.prepare("text", *args, *out)
            self.assertEqual(code, 1)
            self.assertIn(words, output)
            self.assertEqual(output.count("\n"), 1)

    def prepare_gpt2(self, tiktoken):
        with mock.patch.dict(sys.modules, {"tiktoken": tiktoken}):
            code, output = self.prepare("text", self.path("a", b"x\n"), "--out", self.path("out"),
                                        "--tokenizer", "gpt2")
        self.assertEqual(code, 1)
        self.assertEqual(output.count("\n"), 1)
        return output

    def test_gpt2_without_tiktoken(self):
        self.assertIn("scripts/setup.sh installs it", self.prepare_gpt2(None))

    def test_gpt2_without_a_network(self):
        no_network = mock.Mock()
        no_network.get_encoding.side_effect = ConnectionError("a\nlong\nstory")
        output = self.prepare_gpt2(no_network)
        self.assertIn("could not download GPT-2's vocabulary (ConnectionError); fetch https://", output)
        self.assertIn("r50k_base.tiktoken elsewhere and give it with --tokenizer FILE", output)


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

    def test_stays_where_tiktoken_is_not_needed(self):
        self.make_venv()
        result = self.run_command()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("venv", result.stdout)

    def test_says_so_without_venv(self):
        result = self.run_command("--tokenizer", "gpt2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("scripts/setup.sh", result.stderr)

    def test_does_not_start_itself_for_ever(self):
        self.make_venv()
        os.remove(self.path("root/.venv/bin/python"))
        os.symlink(sys.executable, self.path("root/.venv/bin/python"))
        result = self.run_command("--tokenizer", "gpt2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("scripts/setup.sh", result.stderr)


def rank_file(merges=()):
    """A file of GPT-2's size: the bytes, some merges, and filler that no text reaches."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    tokens += [b"\xff\xfe%d" % i for i in range(50256 - len(tokens))]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


class RankFile(TestCase):
    def test_reads(self):
        ranks = tokenizers.read_ranks(self.path("r", rank_file([b"he", b"ll"])))
        self.assertEqual(len(ranks), 50256)
        self.assertEqual((ranks[b"a"], ranks[b"he"], ranks[b"ll"]), (97, 256, 257))

    def test_refuses_others(self):
        for content, words in [(b"YQ== 0\n", "has 1 tokens"), (b"hello\n", "not a tiktoken file"),
                               (b"*YQ== 0\n", "not a tiktoken file")]:
            with self.assertRaisesRegex(tokenizers.PrepareError, words):
                tokenizers.read_ranks(self.path("r", content))
        with self.assertRaisesRegex(tokenizers.PrepareError, "cannot read"):
            tokenizers.read_ranks(self.path("none"))


@unittest.skipIf(tiktoken is None, "the tiktoken package is not installed")
class GPT2(TestCase):
    def test_local_rank_file(self):
        ranks = self.path("r", rank_file([b"he", b"ll", b"hell", b" he"]))
        code, output = self.prepare("text", self.path("a", b"hello he<|endoftext|>"), "--out", self.path("out"),
                                    "--tokenizer", ranks, "--val-fraction", "0")
        self.assertEqual(code, 0, output)
        tokens, sidecar = shard.read_shard(self.path("out/train_000000.bin"))
        self.assertEqual(list(tokens), [50256, 258, ord("o"), 259, *b"<|endoftext|>"])
        self.assertEqual((sidecar["tokenizer"], sidecar["vocab"], sidecar["documents"]), ("gpt2", 50257, 1))

    def test_pieces_tokenize_as_the_whole(self):
        merges = [b"\n\n", b"  ", b"    ", b" a", b"ab", b"a\n", b"\r\n", b"!!", b" \n"]
        tokenizer = tokenizers.GPT2(self.path("r", rank_file(merges)))
        rng = random.Random(2)
        content = bytes(rng.choice(b"ab  \n\n\r!1\t") for _ in range(20000))
        path = self.path("a", content)
        with mock.patch.object(text, "PIECE_BYTES", 50):
            chunks = list(text.tokenize(tokenizer, [(path, 0, len(content))]))
        self.assertGreater(len(chunks), 100)
        self.assertEqual([token for chunk in chunks for token in chunk], [50256] + tokenizer.encode(content))


class TinyShakespeare(TestCase):
    CONTENT = b"\n\n".join(b"Speaker %d:\nWords, words, words.\n" % i for i in range(2000))

    def test_documents_and_split(self):
        code, output = self.prepare("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes", "--text",
                                    self.path("a", self.CONTENT))
        self.assertEqual(code, 0, output)
        val, sidecar = shard.read_shard(self.path("out/tinyshakespeare_val.bin"))
        train, _ = shard.read_shard(self.path("out/tinyshakespeare_train.bin"))
        self.assertEqual(len(val), 32768)
        self.assertEqual(sidecar["documents"], val.count(256))
        expected = []
        for speech in self.CONTENT.split(b"\n\n"):
            expected += [256, *speech, 10, 10]
        self.assertEqual([*val, *train], expected[:-2])

    def test_messages(self):
        nowhere = "file://" + self.path("nowhere.txt")
        with self.assertRaisesRegex(tokenizers.PrepareError, "could not download.*--text FILE"):
            tinyshakespeare.download(nowhere)
        with mock.patch.object(tinyshakespeare.urllib.request, "urlopen", side_effect=OSError("no route")):
            code, output = self.prepare("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes")
        self.assertEqual(code, 1)
        self.assertIn("no route", output)
        self.assertFalse(os.path.exists(self.path("out")))
        code, output = self.prepare("tinyshakespeare", "--out", self.path("out"), "--tokenizer", "bytes", "--text",
                                    self.path("short", b"x"))
        self.assertEqual((code, "32768" in output), (1, True))


if __name__ == "__main__":
    unittest.main()
