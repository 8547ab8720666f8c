"""Tests of `prepare text`: its inputs, refusals and dropped documents, the report, and that neither workers nor a kill
change the output. The larger documents are real, from /usr/share/doc.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import argparse
import bz2
import contextlib
import errno
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest
from unittest import mock

from prepare_case import TestCase, command_line, needs

from prepare import chunks, outputs, pipeline, readers

DOCUMENTS = 400
DOC_BYTES = 2000


@functools.cache
def real_documents(count=DOCUMENTS, size=DOC_BYTES, root="/usr/share/doc"):
    """Different pieces of this machine's texts, with invalid UTF-8 in some places."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            try:
                with (gzip.open if name.endswith(".gz") else open)(os.path.join(folder, name), "rb") as file:
                    data = file.read(20 * size)
            except OSError:
                continue
            for at in range(0, len(data), size):
                piece = data[at:at + size]
                if piece.strip() and b"\0" not in piece and readers.decode(piece)[0]:
                    found[piece] = None
            if len(found) >= count:
                return list(found)[:count]
    raise unittest.SkipTest(f"{root} has no {count} documents")


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Read(TestCase):
    """Each format gives its documents."""

    TEXTS = [f"number {i}, \u00e4 and\nanother line" for i in range(25)]

    def out(self, *inputs, dedup="none", **flags):
        shutil.rmtree(self.path("out"), ignore_errors=True)
        flags = [part for name, value in flags.items() for part in ("--" + name, value)]
        self.output = self.prepared("text", *inputs, "--out", self.path("out"), "--val-fraction", 0, "--dedup", dedup,
                                    *flags)
        return self.documents("train")

    def lines(self, texts=None, column="text"):
        return "".join(json.dumps({"id": 1, column: text}, ensure_ascii=i % 2 == 0) + "\n"
                       for i, text in enumerate(texts or self.TEXTS)).encode()

    def test_json_lines(self):
        self.assertEqual(self.out(self.path("a.jsonl", self.lines())), self.TEXTS)
        self.assertEqual(self.out(self.path("a.jsonl", self.lines(column="body")), column="body"), self.TEXTS)
        self.assertEqual(self.out(self.path("a.jsonl.gz", gzip.compress(self.lines()))), self.TEXTS)
        for size in (1, 7, 60, 100, 1000):  # a line belongs to one part only, wherever it is cut
            with mock.patch.object(readers, "PART_BYTES", size):
                lines = self.lines()[:-1] if size == 7 else self.lines()
                self.assertEqual(self.out(self.path("b.jsonl", lines)), self.TEXTS)

    @needs("zstandard")
    def test_zstd(self):
        import zstandard
        half = len(self.lines()) // 2
        frames = b"".join(zstandard.compress(part) for part in (self.lines()[:half], self.lines()[half:]))
        self.assertEqual(self.out(self.path("a.jsonl.zst", frames)), self.TEXTS)
        self.assertEqual(self.out(self.path("a.txt.zst", zstandard.compress(b"one"))), ["one"])
        for content, words in ((frames[:-1], "ends inside a stream of zstd"), (b"no zstd at all", "is not what its name says")):
            cut = self.path("cut.txt.zst", content)
            self.assertIn(words, self.refused("text", cut, "--out", self.path("no")))

    def test_all_streams_of_a_compressed_file(self):
        """Python's bz2 and lzma end without an error where no further stream begins."""
        halves = self.lines(self.TEXTS[:9]), self.lines(self.TEXTS[9:])
        for name, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
            first, second = map(compress, halves)
            for padding in (b"",) if name == "bz2" else (b"", bytes(8), bytes(5000)):
                self.assertEqual(self.out(self.path("a.jsonl." + name, first + padding + second)), self.TEXTS)
            for content in (first + b"XX" + second, first + second[:-1], first[:-1] + second):
                path = self.path("broken.jsonl." + name, content)
                self.assertIn("cannot read " + path, self.refused("text", path, "--out", self.path("no")))

    def test_bzip2_is_unpacked_in_pieces(self):
        sizes = [len(piece) for piece in readers.blocks(self.path("a.bz2", bz2.compress(bytes(90 << 20))))]
        self.assertEqual(sum(sizes), 90 << 20)
        self.assertLessEqual(max(sizes), 1 << 20)

    @needs("pyarrow")
    def test_parquet(self):
        import pyarrow
        import pyarrow.parquet
        table = pyarrow.table({"id": list(range(26)), "text": self.TEXTS + [None], "more": ["x"] * 26})
        pyarrow.parquet.write_table(table, self.path("a.parquet"), row_group_size=4)
        for size in (1, 1 << 20):
            with mock.patch.object(readers, "PART_BYTES", size):
                self.assertEqual(self.out(self.path("a.parquet")), self.TEXTS)
        self.assertIn("1 dropped: empty", self.output)
        self.assertEqual(self.out(self.path("a.parquet"), column="more", dedup="exact"), ["x"])
        refused = functools.partial(self.refused, "text", "--out", self.path("no"))
        self.assertIn("has no column 'txt'; it has id, text, more (--column)",
                      refused(self.path("a.parquet"), "--column", "txt"))
        self.assertIn("column 'id' of", refused(self.path("a.parquet"), "--column", "id"))
        self.assertIn("cannot be read as parquet", refused(self.path("b.parquet", b"PAR1 not at all")))
        data = bytearray(self.read("a.parquet"))
        data[4:len(data) // 2] = bytes(len(data) // 2 - 4)
        self.assertIn("broken.parquet", refused(self.path("broken.parquet", bytes(data))))

    @needs("datasets", "pyarrow")
    def test_datasets(self):
        import datasets
        dataset = datasets.Dataset.from_dict({"text": self.TEXTS, "n": list(range(25))})
        datasets.disable_progress_bars()
        dataset.save_to_disk(self.path("saved"))
        datasets.DatasetDict({"train": dataset}).save_to_disk(self.path("splits"))
        with mock.patch.object(readers, "PART_BYTES", 100):
            self.assertEqual(self.out(self.path("saved")), self.TEXTS)
        self.assertEqual(self.out(self.path("splits")), self.TEXTS)
        self.assertIn("has no column 'body'; it has text, n", self.refused(
            "text", self.path("saved"), "--column", "body", "--out", self.path("no")))
        self.assertIn("datasets cannot load hf:",
                      self.refused("text", f"hf:{self.path('none')}", "--out", self.path("no")))

    @needs("datasets", "pyarrow")
    def test_datasets_of_the_hub_are_streamed(self):
        """A folder stands for the hub."""
        import datasets
        for name, texts in (("a", self.TEXTS[:10]), ("b", self.TEXTS[10:] + [None])):
            datasets.Dataset.from_dict({"text": texts}).to_parquet(self.path(f"hub/data/train-{name}.parquet"))
        hub = "hf:" + self.path("hub")
        readers.open_dataset.cache_clear()
        with mock.patch("datasets.config.HF_DATASETS_CACHE", self.path("cache")):
            self.assertEqual(self.out(hub), self.TEXTS)
            self.assertEqual(len(readers.plan(hub, readers.Format())), 2, "workers share the files")
            kept = [os.path.join(folder, name) for folder, _, names in os.walk(self.path("cache")) for name in names]
            self.assertEqual(sum(map(os.path.getsize, kept)), 0, kept)
        self.assertIn("has no column 'body'; it has text",
                      self.refused("text", hub, "--column", "body", "--out", self.path("no")))
        with open(self.path("hub/data/train-b.parquet"), "r+b") as file:
            file.truncate(300)
        self.assertIn("The same command continues", self.refused("text", hub, "--out", self.path("broken")))

    def test_a_number_behind_a_name_of_the_hub(self):
        """It is a weight, unless it could be a revision."""
        for text, expected in (("hf:a/b@0.7", ("hf:a/b", 0.7)), ("hf:a/b@999", ("hf:a/b", 999)),
                               ("hf:a/b:c@2024", ("hf:a/b:c", 2024)), ("hf:a/b@main@2024", ("hf:a/b@main", 2024)),
                               ("hf:a/b@2024:", ("hf:a/b@2024:", None)), ("hf:a/b@2024:c", ("hf:a/b@2024:c", None)),
                               ("web@2024", ("web", 2024))):
            self.assertEqual(command_line.weighted_input(text), expected)
        for text in ("hf:a/b@2024", "hf:a/b@1234567"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, f"write {text}: for the revision, or give weights below"):
                command_line.weighted_input(text)

    @needs("datasets", "huggingface_hub")
    def test_the_revision_of_the_hub(self):
        """All files are of one revision, and known data sets say which disk they need."""
        readers.open_dataset.cache_clear()
        with mock.patch("huggingface_hub.HfApi.dataset_info", lambda *_, revision: mock.Mock(sha=f"5eed_{revision}")):
            self.assertEqual(readers.pinned("hf:a/b:c:d"), "hf:a/b@5eed_None:c:d")
            self.assertEqual(readers.pinned("hf:a/b@main:c"), "hf:a/b@5eed_main:c")
        with mock.patch("datasets.load_dataset", mock.Mock()) as load:
            readers.open_dataset("hf:a/b@5eed:c")
        load.assert_called_once_with("a/b", "c", split="train", revision="5eed", streaming=True)
        readers.open_dataset.cache_clear()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            pipeline.say_disk(chunks.Options([("fineweb", None)], "gpt2"), mock.Mock(vocab=50257), self.dir)
        self.assertRegex(said.getvalue(), r"shards take about 20\.0 GB, and \S+\.prepare as much .* of disk are free")

    def test_known_names(self):
        self.assertEqual(readers.expand("fineweb-edu"), ["hf:HuggingFaceFW/fineweb-edu:sample-10BT"])
        with mock.patch.dict(sys.modules, {"datasets": None}):
            readers.open_dataset.cache_clear()
            self.assertRegex(self.refused("text", "tinystories", "--out", self.path("no")),
                             "needs the Python package datasets; install.*--with-prepare")

    def test_text_and_separators(self):
        joined = "<|endoftext|>".join(self.TEXTS).encode()
        self.assertEqual(self.out(self.path("a.txt", joined)), [joined.decode()])
        self.assertEqual(self.out(self.path("a.txt"), separator="<|endoftext|>"), self.TEXTS)
        self.assertEqual(self.out(self.path("b.txt", b"one\n\ntwo\n\n\nthree"), separator="\\n\\n"),
                         ["one", "two", "\nthree"])
        self.assertEqual(self.out(self.path("c.gz", gzip.compress(b"\xef\xbb\xbfwith a mark"))), ["with a mark"])

    def test_long_files_are_cut_at_lines(self):
        lines = [f"line {i}\n" for i in range(300)]
        with mock.patch.object(readers, "DOCUMENT_BYTES", 500):
            parts = self.out(self.path("a.txt", "".join(lines).encode()))
        self.assertEqual("".join(parts), "".join(lines))
        self.assertGreater(len(parts), 4)
        self.assertTrue(all(part.endswith("\n") and 500 <= len(part) < 510 for part in parts[:-1]))

    def test_directories_and_patterns(self):
        for name in ("b.txt", "a/c", "a.txt", ".hidden", ".git/x"):
            self.path("in/" + name, name.encode())
        self.assertEqual(self.out(self.path("in")), ["a.txt", "a/c", "b.txt"])
        self.assertEqual(self.out(self.path("in/*.txt")), ["a.txt", "b.txt"])
        self.assertEqual(self.out(self.path("in/b.txt"), self.path("in/**")), ["b.txt", "a.txt", "a/c", "b.txt"])
        for name in ("[1]/a.txt", "[1]/b.md", "1/c.txt"):
            self.path(name, b"x" + name.encode())
        self.assertEqual(self.out(self.path("[1]/*.txt")), ["x[1]/a.txt"])

    def test_nothing_that_an_input_names_is_left_out_silently(self):
        for name in ("in/a.txt", "in/a/c", "other/d"):
            self.path(name, name.encode())
        self.assertIn("in/a is a directory; give it as an input of its own",
                      self.refused("text", self.path("in/*"), "--out", self.path("no")))
        for target, words in (("../other", "in/link is a link to a directory, which is not followed; give it as"),
                              ("nowhere", "cannot read " + self.path("in/link") + ": No such file")):
            os.symlink(target, self.path("in/link"))
            for pattern in ("in", "in/*k"):
                shutil.rmtree(self.path("no"))
                self.assertIn(words, self.refused("text", self.path(pattern), "--out", self.path("no")))
            self.assertEqual(self.out(self.path("in"), "--skip-bad"), ["in/a.txt", "in/a/c"])
            os.remove(self.path("in/link"))
        # The output directory is no input, although the pattern names it when the command is given again.
        shutil.rmtree(self.path("in/a"))
        for more in ([], ["--overwrite"]):
            self.prepared("text", self.path("in/*"), "--out", self.path("in/o"), "--val-fraction", 0, *more)

    def test_skip_bad(self):
        broken = self.lines(["good"]) + b'{"text": 7}\nnonsense\n\n["text"]\n' + self.lines(["fine"])
        path = self.path("a.jsonl", broken)
        for start, words in ((b'{"text": 7}', "at byte 0: 'text' is a number, not a text"),
                             (b"nonsense", "at byte 0: not JSON"), (b'["text"]', "no object")):
            output = self.refused("text", self.path("b.jsonl", start + b"\n"), "--out", self.path("no"))
            self.assertIn(words, output)
            self.assertIn("--skip-bad goes on", output)
        packed = self.path("b.jsonl.gz", gzip.compress(self.lines())[:-15])
        self.prepared("text", path, packed, self.path("c.txt", b"and this"), "--out", self.path("out"),
                      "--val-fraction", 0, "--skip-bad")
        documents = self.documents("train")
        self.assertEqual((documents[:2], documents[-1]), (["good", "fine"], "and this"))
        facts = json.loads(self.read("out/report.json"))
        self.assertEqual(facts["dropped"], {"unreadable": 4})


class LongInput(TestCase):
    """Memory does not grow with lines, documents or decompressed archives."""

    def setUp(self):
        super().setUp()
        for name, size in (("DOCUMENT_BYTES", 500), ("RECORD_BYTES", 2000), ("PART_BYTES", 1000)):
            patch = mock.patch.object(readers, name, size)
            patch.start()
            self.addCleanup(patch.stop)

    def parts(self, path, separator=None):
        format = readers.Format(separator=separator)
        return [raw for part in readers.plan(path, format) for raw in readers.read(part, format)]

    def test_packed_text_becomes_the_documents_of_the_unpacked_file(self):
        rng = random.Random(3)
        for name, content in (("lines", "".join(f"line {i}\n" for i in range(900)).encode()), ("empty", b""),
                              ("one line", ("\u00e4\u4e2d" * 3000).encode()), ("short", b"x" * 499), ("long", b"x" * 1000),
                              ("mixed", "\n".join("\u4e2d" * rng.choice([1, 100, 900]) for _ in range(60)).encode())):
            with self.subTest(name):
                plain = self.parts(self.path("plain.txt", content))
                self.assertEqual(self.parts(self.path("packed.txt.gz", gzip.compress(content))), plain)
                self.assertEqual(b"".join(plain), content)
                self.assertLessEqual(max(map(len, plain)), 1000)
                for part in plain:
                    part.decode()  # no character is cut

    def test_long_lines(self):
        lines = [b'{"text": "one"}\n', b'{"text": "' + b"x" * 9000 + b'"}\n', b'{"text": "two"}\n', b"y" * 5000]
        for content in (b"".join(lines), b"".join(lines) + b"\n"):
            for path, where in ((self.path("a.jsonl", content), f"at byte {len(lines[0])}"),
                                (self.path("a.jsonl.gz", gzip.compress(content)), "line 2")):
                with self.subTest(path):
                    one, long, two, last = self.parts(path)
                    self.assertEqual((one, two), ("one", "two"))
                    self.assertEqual(long.message, f"{path}, {where}: more than 0 MiB")
                    self.assertIsInstance(last, readers.Bad)

    def test_long_documents_between_separators(self):
        documents = [b"one", b"x" * 9000, b"", b"two", b"y" * 3000]
        for size in (1, 7, 1 << 20):  # the separator may cross two pieces
            content = b"<|end|>".join(documents)
            pieces = [content[i:i + size] for i in range(0, len(content), size)]
            self.assertEqual(list(readers.split_at(b"<|end|>", pieces)), [b"one", None, b"", b"two", None])

    def test_a_long_line_is_read_once(self):
        path = self.path("a.jsonl", b"x" * 200_000 + b'\n{"text": "after"}\n')
        read = []

        class Counting(io.BufferedReader):
            def readline(self, size=-1):
                read.append(len(line := super().readline(size)))
                return line

        with mock.patch.object(readers, "open_regular", lambda path: Counting(io.FileIO(path))):
            found = self.parts(path)
        self.assertEqual(found[1:], ["after"])
        self.assertLess(max(read), 5000)
        self.assertLess(sum(read), 500_000)  # 200 parts that skip the whole line would read 20 MB

    @needs("zstandard")
    def test_a_zstd_bomb_is_unpacked_in_pieces(self):
        import zstandard
        packed = zstandard.compress(b"a" * (300 << 20))
        sizes = [len(piece) for piece in readers.blocks(self.path("a.txt.zst", packed))]
        self.assertEqual(sum(sizes), 300 << 20)
        self.assertLessEqual(max(sizes), 33 << 20)


class BadInput(TestCase):
    def text(self, *args):
        return self.refused("text", *args, "--out", self.path("out"))

    def test_messages(self):
        some, empty = self.path("some", b"text\n"), self.path("empty", b"")
        self.path("directory/.hidden", b"x")
        for args, words in [
                ((self.path("none"),), "none is not a file, a directory, a pattern that files match, hf:NAME or one of "
                                       "tinystories"), ((self.path("directory"),), "directory has no files"),
                ((empty,), "no document is left of 1 file (empty)"),
                (("tinyshakespeare",), "prepare tinyshakespeare is a command of its own"),
                ((self.path("binary", b"\x7fELF\0\0"),), "no document is left of 1 file (binary)"),
                ((self.path("latin", b"\xe9\xe8\xff\xfe" * 9 + b"abc"), empty),
                 "no document is left of 2 files (binary: 1; empty: 1)"),
                ((self.path("wide", "text\n".encode("utf-16")),),
                 "wide is UTF-16 text, which prepare text does not read; iconv -f UTF-16 -t UTF-8 FILE > NEW converts"),
                ((some, "--val-fraction", "1"), "--val-fraction 1"),
                ((some, "--val-fraction", "0.5"), "too little text (1 document) to leave anything for training; --val-frac"),
                ((some, "--val-fraction", "0.01", "--val-split", "hash"), "none of 1 document fell into the val"),
                ((some, "--shard-tokens", "0"), "--shard-tokens 0"), ((some, "--max-epochs", "0"), "--max-epochs 0"),
                ((some + "@0.5", empty), "give each input a weight (INPUT@WEIGHT), or none"),
                ((some + "@1", empty + "@1", "--val-fraction", "0"), "empty is left for training"),
                ((some + "@1",), "some is left for training, so it cannot have its part of the mixture; --val-fraction 0 makes"),
                ((self.path("a.jsonl", b"{}"), "--val-split", "start"), "--val-split start needs plain text files")]:
            with self.subTest(words):
                self.assertIn(words, self.text(*args))
                self.assertFalse(os.path.exists(self.path("out/train_000000.bin")))
                shutil.rmtree(self.path("out"), ignore_errors=True)

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_unreadable(self):
        os.chmod(self.path("secret", b"x"), 0)
        self.assertIn("cannot read", self.text(self.path("secret")))

    def test_a_file_that_fails_while_it_is_read(self):
        def fail(*_):
            raise OSError(errno.EIO, "Input/output error")
            yield

        with mock.patch.dict(readers.READERS, {"text": fail}):
            self.assertIn("some: Input/output error; --skip-bad", self.text(self.path("some", b"text")))

    def test_invalid_utf8_is_replaced_and_counted(self):
        self.path("in/a", b"caf\xe9 and \xe4\xf6 in a text that is long enough")
        self.path("in/b", "with \u00e4 and \ufffd".encode())
        self.path("in/c.jsonl", b'{"text": "bad \xff byte"}\n{"text": "half \\ud800 pair"}\n'
                                b'{"text": "fine \\ud83d\\ude00"}\n')
        output = self.prepared("text", self.path("in"), "--out", self.path("out"), "--val-fraction", 0)
        self.assertEqual(self.documents("train"), [
            "caf\ufffd and \ufffd\ufffd in a text that is long enough", "with \u00e4 and \ufffd", "bad \ufffd byte",
            "half \ufffd pair", "fine \U0001f600"])
        self.assertIn("3 had bytes that are not valid UTF-8: 5 replaced", output)

    def test_files_with_invalid_utf8_are_named(self):
        self.path("in/latin.txt", "d\u00e9j\u00e0 vu".encode("latin-1"))
        self.path("in/fine.txt", b"fine")
        output = self.prepared("text", self.path("in"), "--out", self.path("out"), "--val-fraction", 0)
        self.assertRegex(output, r"1 had bytes that are not valid UTF-8: 2 replaced\n +\S+/in/latin.txt\n")

    def test_deeply_nested_json(self):
        deep = b'{"text": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
        path = self.path("deep.jsonl", deep + b'{"text": "fine"}\n')
        self.assertIn("deep.jsonl, at byte 0: not JSON (it is nested too deeply); --skip-bad", self.text(path))
        self.prepared("text", path, "--out", self.path("out"), "--val-fraction", 0, "--skip-bad")
        self.assertEqual(self.documents("train"), ["fine"])
        some = self.path("some", b"text\n")
        self.assertIn("deep.jsonl, line 1: not JSON (it is nested too deeply)",
                      self.text(some, "--overwrite", "--decontaminate", path))
        half = self.path("half.jsonl", b'{"a": ' + b"[" * 900 + b'"x"' + b"]" * 900 + b', "b": "y"}')
        self.assertEqual(list(chunks.strings(next(chunks.evaluation_set(half)))), ["x", "y"])
        self.assertIn("line 1: not JSON", self.refused("hellaswag", "--tokenizer", "bytes", "--input", path,
                                                             "--out", self.path("h.bin")))

    def test_pipes(self):
        def too_late(*_):
            raise TimeoutError("it waits for the other end of the pipe")

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, too_late))
        pipe, some = self.path("pipe"), self.path("some", b"text\n")
        os.mkfifo(pipe)
        os.mkfifo(pipe + ".json")
        for args in (("text", pipe, "--out", self.path("out")),
                     ("text", some, "--tokenizer", pipe, "--out", self.path("out")),
                     ("text", some, "--tokenizer", pipe + ".json", "--out", self.path("out")),
                     ("text", some, "--decontaminate", pipe, "--out", self.path("out")),
                     ("tinyshakespeare", "--tokenizer", "bytes", "--text", pipe, "--out", self.path("out")),
                     ("hellaswag", "--tokenizer", "bytes", "--input", pipe, "--out", self.path("out")),
                     ("inspect", pipe), ("validate", pipe)):
            with self.subTest(args):
                signal.alarm(20)
                self.assertRegex(self.refused(*args), "pipe.* is not a (regular )?file")
                signal.alarm(0)

    def test_what_files_say_cannot_disturb_a_terminal(self):
        path = self.path("a.jsonl", json.dumps({"\x1b[31m\u202e": 1}).encode() + b'\n{"text": "fine"}\n')
        self.assertIn(r"its fields: \x1b[31m\u202e (", self.text(path))
        output = self.prepared("text", path, "--out", self.path("out"), "--val-fraction", 0, "--skip-bad")
        self.assertIn(r"its fields: \x1b[31m\u202e (", output)

    def test_shards_that_are_none(self):
        good = self.path("good.bin", struct.pack("<256i", 20240520, 1, 0, *[0] * 253))
        for content in (b"[1]", b"[" * 10000, b"x"):
            self.path("good.bin.json", content)
            self.assertIn("good.bin", self.refused("inspect", good))
        self.assertIn("magic", self.refused("inspect", self.path("short", b"abc")))

    def test_full_disk(self):
        """/dev/full replaces the output file in each step that writes."""
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        args = ("text", self.path("a", b"text\n" * 9000), "--out", self.path("out"), "--val-fraction", "0")
        real = open
        for ending in (".npz.tmp", ".json.tmp", ".bin.tmp", ".bin.json.tmp", "report.txt"):
            def opened(path, *rest, ending=ending, **more):
                return real("/dev/full" if str(path).endswith(ending) else path, *rest, **more)
            with self.subTest(ending), mock.patch("builtins.open", opened):
                self.assertRegex(self.refused(*args), self.path("out") + ".*: No space left on device; free some space and give the same")
            self.assertFalse(os.path.exists(self.path("out/train_000000.bin")))
        self.assertIn("continues with 1 of 1 chunks done", self.prepared(*args))
        self.assertEqual(self.documents("train"), ["text\n" * 9000])
        self.assertFalse(os.path.exists(self.path("out/.prepare")))

    def test_a_limit_for_the_size_of_files(self):
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE))
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        self.assertEqual(self.text(self.path("a", b"text\n" * 1600)), f"prepare: {self.path('out')}: File too large\n")

    def test_files_are_on_the_disk_before_they_get_their_names(self):
        synced, fsync, replace = set(), os.fsync, os.replace

        def recorded_fsync(descriptor):
            synced.add(os.fstat(descriptor).st_ino)
            fsync(descriptor)

        def checked_replace(old, new):
            if old.endswith(".tmp"):
                self.assertIn(os.stat(old).st_ino, synced, f"{new} may be empty after a power failure")
            replace(old, new)

        with mock.patch.multiple(os, fsync=recorded_fsync, replace=checked_replace):
            self.prepared("text", self.path("a", b"text\n"), "--out", self.path("out"), "--val-fraction", 0)
        self.assertEqual(self.documents("train"), ["text\n"])

    def test_output_inside_the_input_is_not_read(self):
        self.path("in/a.txt", b"first text\n")
        self.path("in/report-of-mine.txt", b"second text\n")
        for out in ("in", "in/out"):
            args = ("text", self.path("in"), "--val-fraction", 0, "--out", self.path(out))
            self.prepared(*args)
            before = self.read(out + "/train_000000.bin")
            self.assertIn("2 documents in, 2 kept", self.prepared(*args, "--overwrite"))
            self.assertEqual(self.read(out + "/train_000000.bin"), before)
            for name in ("train_000000.bin", "train_000000.bin.json", "tokenizer.bin", "report.json", "report.txt"):
                os.remove(self.path(f"{out}/{name}"))

    def test_old_shards_are_not_mixed_with_new_ones(self):
        args = ("text", self.path("a", b"abc\n" * 100), "--out", self.path("out"), "--shard-tokens")
        self.prepared(*args, 50)
        self.path("out/train_notes.txt", b"mine")
        self.assertIn("already holds shards", self.refused(*args, 50))
        self.prepared(*args, 1000, "--overwrite")
        self.assertEqual(len(self.shards("train")[1]), 1)
        self.assertEqual(self.read("out/train_notes.txt"), b"mine")


class Split(TestCase):
    def test_start_is_the_start_and_nothing_is_lost(self):
        lines = b"".join(b"line %d\n" % i for i in range(1000))
        files = [self.path("a", lines[:3000]), self.path("b", b""), self.path("c", lines[3000:])]
        for fraction in (1e-9, 0.001, 0.3, 0.5, 0.9):
            self.prepared("text", *files, "--out", self.path("out"), "--val-fraction", fraction, "--overwrite",
                          "--shard-tokens", 1000)
            _, sidecars = self.shards("train")
            self.assertTrue(all(sidecar["tokens"] == 1000 for sidecar in sidecars[:-1]))
            val, train = ("".join(self.documents(split)).encode() for split in ("val", "train"))
            self.assertEqual(val + train, lines)
            self.assertTrue(val.endswith(b"\n"))
            self.assertTrue(0 <= len(val) - fraction * len(lines) < 10)

    def test_the_start_of_each_input_with_a_weight(self):
        inputs = {name: b"".join(b"%s%d\n" % (name.encode(), i) for i in range(count)) for name, count in (("a", 1000), ("b", 3000))}
        self.prepared("text", *(self.path(name, lines) + "@1" for name, lines in inputs.items()), "--out", self.path("out"),
                      "--val-fraction", 0.1, "--max-epochs", 3)
        val = self.documents("val")
        self.assertEqual(len(val), 2)
        for text, lines in zip(val, inputs.values()):
            self.assertTrue(lines.startswith(text.encode()) and text.endswith("\n"))
            self.assertTrue(0 <= len(text) - 0.1 * len(lines) < 10, len(text))
        copy = self.path("c", inputs["b"])
        self.assertIn(f"{copy} is a copy of {self.path('b')}", self.refused(
            "text", *(self.path(name) + "@1" for name in "abc"), "--out", self.path("other")))

    def test_a_copy_of_the_file_that_is_cut_is_refused(self):
        lines = b"".join(b"line %d\n" % i for i in range(100))
        first, copy, other = (self.path(name, content) for name, content in (
            ("in/a", lines), ("b", lines), ("c", lines.replace(b"1", b"2"))))
        args = ("--out", self.path("out"), "--overwrite")
        for inputs, words in (((first, copy), f"{copy} is a copy of {first}"), ((self.path("in"), other, first),
                              f"{first} is an input twice"), ((first, first, "--dedup", "none"), "is an input twice")):
            self.assertIn(words + ", so its start" * ("is a" in words), self.refused("text", *inputs, *args))
        self.prepared("text", first, other, *args)
        self.prepared("text", first, copy, *args, "--val-fraction", 0)
        self.assertEqual(self.documents("train"), [lines.decode()])

    def test_hash_depends_on_the_document_alone(self):
        documents = [f"document {i}" for i in range(2000)]
        random.Random(1).shuffle(documents)
        for out, part in (("all", documents), ("half", documents[:1003:-1])):
            self.prepared("text", self.path(out + ".txt", "\n".join(part).encode()), "--separator", "\\n", "--out",
                          self.path(out), "--val-fraction", 0.2)
        val = self.documents("val", "all")
        self.assertEqual(self.documents("val", "half"), [text for text in documents[:1003:-1] if text in val])
        self.assertEqual(sorted(val + self.documents("train", "all")), sorted(documents))
        # Binomial: 400 documents with a standard deviation of 18; a deviation of more than six occurs once in 10^9
        # corpora.
        self.assertLess(abs(len(val) - 400), 108)


class Workers(TestCase):
    """The bytes of the output depend only on the inputs and flags."""

    def setUp(self):
        super().setUp()
        documents = list(real_documents())
        for i, document in enumerate(documents[:200]):
            self.path(f"in/{i:04d}.txt", document)
        lines = "".join(json.dumps({"text": document.decode(errors="replace")}) + "\n" for document in documents[200:])
        self.path("in/rest.jsonl", lines.encode())
        self.args = ("text", self.path("in"), "--shard-tokens", "100k", "--val-fraction", "0.1", "--dedup", "exact")
        for name in ("CHUNK_BYTES", "PART_BYTES"):  # to get many chunks
            patch = mock.patch.object(chunks if name == "CHUNK_BYTES" else readers, name, 100_000)
            patch.start()
            self.addCleanup(patch.stop)

    def digest(self, out):
        """Everything except speeds."""
        files = {name: hashlib.sha256(self.read(f"{out}/{name}")).hexdigest() for name in os.listdir(self.path(out))
                 if "report" not in name}
        facts = json.loads(self.read(f"{out}/report.json"))
        del facts["speed"]
        return files, facts

    def test_any_number_of_them(self):
        for workers in (1, 2, 4):
            self.prepared(*self.args, "--out", self.path(f"out{workers}"), "--workers", workers)
        one = self.digest("out1")
        self.assertGreater(one[1]["train"]["shards"], 5)
        self.assertEqual(one[1]["documents"], DOCUMENTS)
        self.assertEqual(self.digest("out2"), one)
        self.assertEqual(self.digest("out4"), one)

    def killed_at(self, count, out):
        """Runs the command in a process that kills itself before the count-th file gets its name. Returns False if it
        finished.
        """
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            replace, calls = os.replace, iter(range(1, count))
            os.replace = lambda *args: replace(*args) if next(calls, None) else os.kill(os.getpid(), signal.SIGKILL)
            self.prepare(*self.args, "--out", self.path(out))
            os._exit(0)
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])

    def test_killed_and_restarted(self):
        self.prepared(*self.args, "--out", self.path("whole"))
        whole = self.digest("whole")
        count, resumed = 1, 0
        while self.killed_at(count, f"out{count}"):
            out = f"out{count}"
            self.assertFalse(os.path.exists(self.path(out + "/report.json")) and count < 20)
            resumed += "continues with" in self.prepared(*self.args, "--out", self.path(out))
            self.assertEqual(self.digest(out), whole, f"killed before file {count}")
            self.assertEqual(os.listdir(self.path(out)).count(outputs.WORK), 0)
            count += 6
        self.assertGreater(count, 24)
        speed = json.loads(self.read(f"out{count - 6}/report.json"))["speed"]
        self.assertEqual(speed["documents_per_s"], 0)  # the killed run had done all of them
        self.assertGreaterEqual(resumed, count // 6 - 1)  # except where the plan itself did not exist yet

    def test_killed_while_it_cleans_up(self):
        """The output is in place. The same command says so and removes the rest of the work."""
        self.prepared(*self.args, "--out", self.path("whole"))
        whole, finished, count = self.digest("whole"), 0, 1

        def dies(call, number):
            calls = iter(range(1, number))
            return lambda *args, **more: call(*args, **more) if next(calls, None) else os.kill(os.getpid(), signal.SIGKILL)

        alive = False
        while not alive:
            out = f"out{count}"
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                calls = dies(lambda call, *args, **more: call(*args, **more), count)
                for name in ("remove", "unlink", "rmdir"):
                    setattr(os, name, functools.partial(calls, getattr(os, name)))
                self.prepare(*self.args, "--out", self.path(out))
                os._exit(0)
            alive = os.WIFEXITED(os.waitpid(child, 0)[1])
            if not alive:
                output = self.prepared(*self.args, "--out", self.path(out))
                finished += "is already complete" in output
                self.assertEqual(self.digest(out), whole, f"killed before it removed file {count}")
                self.assertEqual(os.listdir(self.path(out)).count(outputs.WORK), 0)
            count += 7
        self.assertGreater(finished, 2)
        self.assertIn("already holds shards", self.refused(*self.args, "--out", self.path("whole")))
        self.assertEqual(os.listdir(self.path("whole")).count(outputs.WORK), 0)

    def test_killed_workers_go_too(self):
        script = ("import sys; from prepare import chunks, readers, __main__; chunks.CHUNK_BYTES = 1000;"
                  "readers.PART_BYTES = 1000; sys.exit(__main__.main(sys.argv[1:]))")  # hundreds of chunks
        data = os.path.join(os.path.dirname(command_line.__file__), "..")
        process = subprocess.Popen([sys.executable, "-c", script, *self.args, "--out", self.path("out"), "--workers",
                                    "2"], env={**os.environ, "PYTHONPATH": data}, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        folder, children = self.path(f"out/{outputs.WORK}/chunks"), []
        while not (os.path.isdir(folder) and os.listdir(folder)) and process.poll() is None:
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                children = file.read().split()
            time.sleep(0.005)
        # A named semaphore would remain if all processes were killed at once.
        with open(f"/proc/{process.pid}/maps") as file:
            mapped = {int(line.split()[4]) for line in file if "/dev/shm/sem" in line}
        named = [entry.name for entry in os.scandir("/dev/shm") if entry.name.startswith("sem.")
                 and entry.inode() in mapped]
        self.assertEqual(named, [])
        process.kill()
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertGreater(len(children), 1)
        patience = time.monotonic() + 60
        while any(map(is_alive, children)):
            self.assertLess(time.monotonic(), patience, "a worker lives on")
            time.sleep(0.01)
        with mock.patch.object(chunks, "CHUNK_BYTES", 1000), mock.patch.object(readers, "PART_BYTES", 1000):
            self.assertIn("continues with", self.prepared(*self.args, "--out", self.path("out"), "--workers", "2"))
        self.prepared(*self.args, "--out", self.path("whole"))
        self.assertEqual(self.digest("out"), self.digest("whole"))

    def test_an_interrupted_run_is_not_mixed_with_another(self):
        self.assertTrue(self.killed_at(9, "out"))
        self.assertIn("holds the chunks of a stopped run with other flags or inputs",
                      self.refused(*self.args, "--out", self.path("out"), "--normalize", "nfc"))
        self.path("in/0000.txt", b"x" + self.read("in/0000.txt")[1:])  # of the same size
        self.assertIn("with other flags or inputs", self.refused(*self.args, "--out", self.path("out")))
        self.prepared(*self.args, "--out", self.path("out"), "--overwrite")
        self.prepared(*self.args, "--out", self.path("fresh"))
        self.assertEqual(self.digest("out"), self.digest("fresh"))

    def test_a_run_that_stopped_early_does_not_permit_others_to_replace_shards(self):
        self.prepared(*self.args, "--out", self.path("out"))
        before, args = self.digest("out"), self.args
        self.args += "--overwrite", "--normalize", "nfc"
        self.assertTrue(self.killed_at(2, "out"))  # its plan is there, and no chunk
        self.assertIn("already holds shards", self.refused(*args, "--out", self.path("out")))
        for name, digest in before[0].items():
            self.assertEqual(hashlib.sha256(self.read(f"out/{name}")).hexdigest(), digest)
        # The stopped run itself may continue, because it had the permission to replace them.
        self.assertIn("continues with 0 of", self.prepared(*args, "--normalize", "nfc", "--out", self.path("out")))
        self.prepared(*args, "--normalize", "nfc", "--out", self.path("fresh"))
        self.assertEqual(self.digest("out"), self.digest("fresh"))

    @needs("datasets", "pyarrow")
    def test_a_stopped_run_with_another_data_set_of_the_same_size(self):
        import datasets
        datasets.disable_progress_bars()
        self.args = ("text", self.path("saved"), "--val-fraction", 0)
        for text in ("before", "behind"):
            shutil.rmtree(self.path("saved"), ignore_errors=True)
            datasets.Dataset.from_dict({"text": [f"{text} {i}" for i in range(9)]}).save_to_disk(self.path("saved"))
            readers.open_dataset.cache_clear()
            if text == "before":
                self.assertTrue(self.killed_at(4, "out"))
        self.assertIn("with other flags or inputs", self.refused(*self.args, "--out", self.path("out")))

    def test_two_at_once(self):
        os.makedirs(self.path(f"out/{outputs.WORK}"))
        with pipeline.locked(self.path(f"out/{outputs.WORK}")):
            self.assertIn("another prepare is at work", self.refused(*self.args, "--out", self.path("out")))

    def test_a_worker_s_error_arrives(self):
        self.path("in/zzz.jsonl", b"nonsense\n")
        self.assertIn("zzz.jsonl, at byte 0: not JSON",
                      self.refused(*self.args, "--out", self.path("out"), "--workers", "2"))


if __name__ == "__main__":
    unittest.main()
