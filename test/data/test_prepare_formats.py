"""Tests of the formats of inputs: the content of a file decides how it is read, structured data that is not understood
is refused by name, and options without effect are noted.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import struct
import tarfile
import zipfile
from unittest import mock

import numpy
from prepare_case import TestCase, command_line, needs

from prepare import formats, pipeline, readers

TEXTS = [f"number {i}, \u00e4 and\nanother line" for i in range(25)]
RECORDS = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
ARRAY = json.dumps(RECORDS).encode()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"


def zstd(data, **settings):
    import zstandard
    parameters = zstandard.ZstdCompressionParameters.from_level(3, **settings)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def zip_of(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", data)
    return buffer.getvalue()


def tar_of(data):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("a.txt")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    numpy.save(buffer, array)
    return buffer.getvalue()


class Formats(TestCase):
    def documents_of(self, path, format=readers.Format()):
        """The documents of a file, or the messages for what cannot be read."""
        found = [raw for part in readers.plan(path, format) for raw in readers.read(part, format)]
        return [raw.message if isinstance(raw, readers.Bad) else readers.decode(raw)[0] for raw in found]

    @needs("zstandard")
    def test_json_is_read_in_every_shape(self):
        """Under any name, and compressed in any way."""
        separated = b"".join(b"\x1e" + line for line in LINES.splitlines(True))
        shapes = {"lines": LINES, "lines without the last newline": LINES[:-1],
                  "lines with CRLF": LINES.replace(b"\n", b"\r\n"), "lines after a mark": b"\xef\xbb\xbf" + LINES,
                  "lines after white space": b"\n \n" + LINES,
                  "array": ARRAY, "array with a record in each line": ARRAY.replace(b"}, {", b"},\n{"),
                  "indented array": json.dumps(RECORDS, indent=2).encode(),
                  "array after a mark": b"\xef\xbb\xbf " + ARRAY,
                  "indented objects": "\n".join(json.dumps(r, indent=1) for r in RECORDS).encode(),
                  "two arrays": json.dumps(RECORDS[:9]).encode() + b"\n" + json.dumps(RECORDS[9:]).encode(),
                  "objects in one line": LINES.replace(b"\n", b" "), "a sequence (RFC 7464)": separated}
        packings = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstd,
                    ".zst of two frames": lambda data: zstd(data[:1000]) + zstd(data[1000:])}
        for shape, content in shapes.items():
            for packing, pack in packings.items():
                for name in ("c4-0.json" + packing.split()[0] if packing else "c4-0.json", "c4", "c4.jsonl", "c4.txt"):
                    with self.subTest(shape=shape, packing=packing, name=name):
                        self.assertEqual(self.documents_of(self.path(name, pack(content))), TEXTS)

    def test_text_that_only_looks_like_json_is_text(self):
        for text in ("[Verse 1]\nOne, two", "[1] A. Author, A Title", "[1, 2] is an interval", "{name}, hello",
                     "{}\nis empty",
                     "[link](page)", "{ \"quoted\" } word", "[\"Hello,\" he said]", "[] to do", "", "12", '"a string"',
                     "null"):
            with self.subTest(text):
                for name in ("a", "a.txt", "a.md"):
                    self.assertEqual(self.documents_of(self.path(name, text.encode())), [text])

    def test_json_that_is_not_understood_is_refused(self):
        long = b'{"text": "' + b"x" * 100_000
        for name, content, words in (
                ("a.txt", b'{"name": "x", "version": 1}',
                "at byte 0: the record is without 'text'; its fields: name, version"),
                ("a.json", json.dumps({"data": RECORDS}, indent=1).encode(),
                "record 1: the record is without 'text'; its fields: data"),
                ("a", b'{"text": ["a", "b"]}', "'text' is an array, not a text"),
                ("a", b'{"text": {"a": 1}}', "'text' is an object, not a text"),
                ("a", b'{"text": 7}', "'text' is a number"),
                ("a", b'["a", "b"]', "record 1: the record is no object"),
                ("a.json", b"[1, 2]", "the record is no object"),
                ("a.jsonl", b"[1, 2]\n[3]", "the record is no object"),
                ("a.json", b'"a string"', "the record is no object"),
                ("a.json", b"nonsense", "not JSON"),
                ("a.jsonl", b"nonsense\n" + LINES, "at byte 0: not JSON"),
                ("a.txt", LINES[:30], "at byte 0: not JSON"),
                ("a", LINES[:30] + b"\n" + LINES, "at byte 0: not JSON"),
                ("a", ARRAY[:-1], "record 26: not JSON (it ends inside an array)"),
                ("a", ARRAY[:-30], "record 25: not JSON"),
                ("a", ARRAY.replace(b"}, {", b"} {"), "a comma or ] is missing"),
                ("a", b"[" + LINES.splitlines()[0] + b",]", "record 2: not JSON"),
                ("a", b'[{"text": "a"}, ' + b"[" * 200_000, "record 2: not JSON (it is nested too deeply)"),
                ("a.txt", b"{'a': 1}", None),
                ("a.txt", b'{"a": 1, \'b\': 2}', "at byte 0: not JSON"),
                ("a.txt", long, "at byte 0: not JSON (Unterminated string"),
                ("a.json.gz", LINES[:20], "at byte 0: not JSON")):
            with self.subTest(name=name, content=content[:50]):
                path = self.path(name, content)
                found = self.documents_of(path)
                if words is None:
                    self.assertEqual(found, [content.decode()])
                else:
                    self.assertIn(words, next(m for m in found if m.startswith(path)))
                    if name.endswith(".gz"):
                        continue
                    as_text = readers.Format(structured_as_text=True)
                    self.assertEqual(self.documents_of(path, as_text), [content.decode()])

    def test_a_stream_of_json_is_read_in_pieces(self):
        """Wherever it is cut, and with a memory that a record decides, not the file."""
        for size in (1, 2, 3, 7, 100, 1 << 20):
            for content in (ARRAY, json.dumps(RECORDS, indent=1, ensure_ascii=False).encode()):
                pieces = [content[i:i + size] for i in range(0, len(content), size)]
                self.assertEqual(list(formats.json_values(pieces, 1 << 20)), RECORDS)
        record = b'{"text": "' + b"x" * 5000 + b'"}'
        endless = (b"[" * (i == 0) + b",".join([record] * 10) + b"," for i in range(10**9))
        values = formats.json_values(endless, 1 << 20)
        self.assertEqual([len(next(values)["text"]) for _ in range(100)], [5000] * 100)
        with self.assertRaisesRegex(ValueError, "a value of more than 1 MiB, or not JSON"):
            list(formats.json_values(iter([b'[{"text": "'] + [b"x" * 65536] * 1000), 1 << 20))
        with mock.patch.object(readers, "RECORD_BYTES", 1 << 20):
            path = self.path("a.json", b'[{"text": "fine"}, {"text": "' + b"x" * (3 << 20) + b'"}]')
            self.assertEqual([words[-60:] for words in self.documents_of(path)], [
                "fine", f"{path}, record 2: not JSON (a value of more than 1 MiB, or not JSON)"[-60:]])

    @needs("zstandard")
    def test_zstd_with_a_large_window(self):
        for log in (27, 28, 31):
            self.assertEqual(self.documents_of(self.path("a.zst", zstd(b"hello " * 99, window_log=log))),
                ["hello " * 99])

    @needs("pyarrow", "zstandard")
    def test_what_is_not_read_is_refused_by_name(self):
        import pyarrow
        import pyarrow.orc
        import pyarrow.parquet
        table = pyarrow.table({"text": TEXTS})
        pyarrow.parquet.write_table(table, self.path("p"))
        for packing in ("uncompressed", "zlib", "zstd"):
            pyarrow.orc.write_table(table, self.path("orc-" + packing), compression=packing)
        with pyarrow.ipc.new_stream(self.path("s"), table.schema) as stream:
            stream.write(table)
        database = self.path("d")
        with sqlite3.connect(database) as connection:
            connection.execute("create table a (text)")
        connection.close()
        text = b"A text.\n" * 50
        refused = [
            ("zip", zip_of(text), "a zip archive"),
            ("npz", zip_of(npy(numpy.zeros(3))), "a zip archive"),
            ("tar", tar_of(text), "a tar archive"),
            ("tgz", gzip.compress(tar_of(text)), "a tar archive"),
            ("7z", b"7z\xbc\xaf\x27\x1c\0\4", "an archive"),
            ("pickle", pickle.dumps(TEXTS), "a pickle"),
            ("npy", npy(numpy.zeros(3)), "an array of numbers"),
            ("sqlite", self.read("d"), "an SQLite database"),
            ("pdf", b"%PDF-1.7\n1 0 obj\n", "a PDF or Office document"),
            ("rtf", rb"{\rtf1\ansi text}", "an RTF document"),
            ("warc", b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\ntext", "a WARC archive"),
            ("warc.gz", gzip.compress(b"WARC/1.0\r\n\r\ntext"), "a WARC archive"),
            ("wiki", b'<mediawiki xmlns="x">', "a dump of a wiki"),
            ("lz4", b"\x04\x22\x4d\x18abc", "compressed with lz4"),
            ("weights", struct.pack("<Q", 20) + b'{"a": 1}', "a file of weights"),
            ("gguf", b"GGUF\3\0\0\0", "a file of weights"),
            ("shard", struct.pack("<256i", 20240520, 1, 0, *[0] * 253), "a token shard"),
            ("table", struct.pack("<256i", 20240328, 2, 0, *[0] * 253), "a file of llm.c"),
            ("avro", b"Obj\1\4\x16", "a table of ORC, Avro"),
            ("orc", self.read("orc-uncompressed"), "a table of ORC, Avro"),
            ("orc.zlib", self.read("orc-zlib"), "a table of ORC, Avro"),
            ("orc.gz", gzip.compress(self.read("orc-zstd")), "a table of ORC, Avro"),
            ("pare", b"PARE\x2c\0\0\0" + bytes(range(1, 200)) + b"\x10\1\0\0PARE", "encrypted parquet"),
            ("wide", "text".encode("utf-16"), "UTF-16 text"),
            ("wider", "text".encode("utf-32"), "UTF-32 text"),
            ("wide.jsonl", LINES.decode().encode("utf-16"), "UTF-16 text"),
            ("p.gz", gzip.compress(self.read("p")), "compressed parquet"),
            ("s.gz", gzip.compress(self.read("s")), "compressed arrow"),
            ("twice", gzip.compress(zstd(text)), "compressed twice"),
            ("a.csv", b"id,text\n1,one\n", "a table of values with the column 'text'"),
            ("b.csv", b"1,one\n", "a table of values"),
            ("tabs", b'"text"\t"label"\n"a"\t1\n', "a table of values"),
            ("a.txt.gz", text, "is not what its name says"),
            ("a.parquet", text, "is not what its name says"),
            ("a.arrow", text, "is not what its name says"),
            ("pointer.json", POINTER, "Git LFS pointer"),
            ("pointer.parquet", POINTER, "fetch the file with `git lfs pull`"),
            ("pointer.txt", POINTER, "Git LFS pointer"),
            ("pointer.gz", POINTER, "Git LFS pointer")]
        self.path("in/good.txt", text)
        for name, content, words in refused:
            with self.subTest(name):
                path = self.path("in/" + name, content)
                output = self.refused("text", path, "--out", self.path("out"))
                self.assertIn(path, output)
                self.assertIn(words, output)
        output = self.prepared("text", self.path("in"), "--out", self.path("out"), "--val-fraction", 0, "--skip-bad")
        self.assertIn(f"{len(refused)} dropped: unreadable", output)
        self.assertEqual(self.documents("train"), [text.decode()])
        for name in ("rtf", "warc", "wiki", "a.csv", "tabs"):
            found = self.documents_of(self.path("in/" + name), readers.Format(structured_as_text=True))
            self.assertEqual(found, [self.read("in/" + name).decode()])

    def test_ordinary_text_is_not_refused(self):
        for text in ("text, and more\n", "PK\n", "BZhang\n", "ORCHARD\n", "ORC\n", "ORC\tx\n", "ORC and elf",
            "PARENTS and children\n", "PARE\nPARE", "id,text", "a,b\n1,2\n", "%PDF\n",
            "<html>\n", "\u0080 x\n"):
            with self.subTest(text):
                found = self.documents_of(self.path("a", text.encode()), readers.Format(column="body"))
                self.assertEqual(found, [text])
                if text != "id,text":  # a header with the column "text"
                    self.assertEqual(self.documents_of(self.path("a")), [text])

    @needs("datasets", "pyarrow")
    def test_tables_without_rows(self):
        import datasets
        import pyarrow
        import pyarrow.parquet
        some, empty = self.path("some", b'{"text": "one"}\n'), self.path("a.parquet")
        pyarrow.parquet.ParquetWriter(empty, pyarrow.schema([("text", pyarrow.string())])).close()
        self.assertIn("no document is left of 1 file", self.refused("text", empty, "--out", self.path("no")))
        self.prepared("text", empty, some, "--out", self.path("out"), "--val-fraction", 0)
        self.assertEqual(self.documents("train"), ["one"])
        datasets.disable_progress_bars()
        texts = datasets.Features({"text": datasets.Value("string")})
        datasets.Dataset.from_dict({"text": []}, texts).save_to_disk(self.path("saved"))
        self.assertNotIn("network", self.refused("text", self.path("saved"), "--out", self.path("no")))

    @needs("datasets", "pyarrow")
    def test_a_data_set_without_training_data(self):
        import datasets
        datasets.disable_progress_bars()
        datasets.DatasetDict({"test": datasets.Dataset.from_dict({"text": TEXTS})}).save_to_disk(self.path("splits"))
        self.assertIn("splits has no split 'train'; give the directory of one: test",
                      self.refused("text", self.path("splits"), "--out", self.path("no")))
        self.prepared("text", self.path("splits/test"), "--out", self.path("out"))

    @needs("pyarrow")
    def test_columns_are_judged_by_their_type(self):
        import pyarrow as arrow
        import pyarrow.parquet
        texts = ["a", None, "\u00e4"]
        good = {"string": arrow.string(), "large_string": arrow.large_string(), "string_view": arrow.string_view(),
                "binary": arrow.binary(), "large_binary": arrow.large_binary(),
                "dictionary": arrow.dictionary(arrow.int32(), arrow.string())}
        bad = {"list": arrow.array([["a"], [], None]), "struct": arrow.array([{"string": "a"}] * 3),
               "null": arrow.nulls(3),
               "map": arrow.array([[("a", "b")]] * 3, arrow.map_(arrow.string(), arrow.string())),
               "double": arrow.array([1.5, 2, 3]),
               "(dictionary<values=)?int64": arrow.array([1, 2, 1]).dictionary_encode()}
        for name, kind in good.items():
            values = [text and text.encode() for text in texts] if "binary" in name else texts
            columns = arrow.table({"text": arrow.array(values, kind), "other": [1, 2, 3]})
            for path in self.written(columns):
                with self.subTest(type=name, path=path):
                    self.assertEqual(self.documents_of(path), ["a", "", "\u00e4"])
        for name, column in bad.items():
            for path in self.written(arrow.table({"text": column, "other": [1, 2, 3]})):
                with self.subTest(type=name, path=path):
                    output = self.refused("text", path, "--out", self.path("out"))
                    self.assertRegex(output, f"column 'text' of {path} is {name}.*, not text; the columns are text, ")
        for path in self.written(arrow.table([arrow.array(texts), arrow.array(texts)], ["text", "text"])):
            self.assertIn(f"{path} has several columns 'text'", self.refused("text", path, "--out", self.path("out")))
        broken = arrow.array([b"caf\xe9 and more", b"ok"], arrow.binary())
        column = arrow.Array.from_buffers(arrow.string(), 2, broken.buffers())
        for path in self.written(arrow.table({"text": column})):  # with a text that is not UTF-8
            self.assertEqual(self.documents_of(path), ["caf\ufffd and more", "ok"])

    def written(self, table):
        """The paths of a table in three formats, under names that say nothing."""
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(table, self.path("parquet"))
        for name, writer in (("stream", pyarrow.ipc.new_stream), ("file", pyarrow.ipc.new_file)):
            with writer(self.path(name), table.schema) as file:
                file.write_table(table, 2)
        return [self.path(name) for name in ("parquet", "stream", "file")]

    @needs("datasets", "pyarrow")
    def test_arrow_files_of_datasets(self):
        import datasets
        datasets.disable_progress_bars()
        dataset = datasets.Dataset.from_dict({"text": TEXTS, "tags": [["x"]] * 25})
        dataset.save_to_disk(self.path("all/saved"))
        self.assertEqual(self.documents_of(self.path("all/saved/data-00000-of-00001.arrow")), TEXTS)
        self.prepared("text", self.path("all"), "--out", self.path("out"), "--val-fraction", 0)
        self.assertEqual(self.documents("train"), TEXTS)
        self.assertIn("column 'tags' of", self.refused("text", self.path("all/saved"), "--column", "tags", "--out",
                                                       self.path("no")))
        pointer = self.path("all/pointer/a.arrow", POINTER)
        self.path("all/pointer/state.json", b"{}")
        self.assertIn("Git LFS pointer", self.refused("text", os.path.dirname(pointer), "--out", self.path("no")))
        cut = self.read("all/saved/data-00000-of-00001.arrow")[:900]
        self.assertIn("cut.arrow cannot be read as arrow", self.refused("text", self.path("cut.arrow", cut), "--out",
                                                                         self.path("no")))

    @needs("pyarrow")
    def test_all_readers_share_one_rule_for_text(self):
        """A byte order mark goes, invalid bytes are replaced, a document with a NUL is binary, null is empty."""
        import pyarrow
        cases = [("\ufeffmark", "mark"), ("caf\udce9 and more", "caf\ufffd and more"), ("nul\0", None), (None, ""),
                 ("\ud800" * 4 + "abc", None), ("fine", "fine")]
        texts = [text for text, _ in cases]
        raw = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
        table = pyarrow.table({"text": pyarrow.array(raw, pyarrow.binary())})
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        paths = [*self.written(table), self.path("lines", lines), self.path("array", json.dumps(
            [{"text": text} for text in texts]).encode())]
        for path in paths:
            with self.subTest(path):
                # In a table, a surrogate is three invalid bytes.
                self.assertEqual([text and text.replace("\ufffd" * 3, "\ufffd") for text in self.documents_of(path)],
                                 [expected for _, expected in cases])
        for (text, expected), content in zip(cases, raw):
            if text:
                self.assertEqual([text and text.replace("\ufffd" * 3, "\ufffd") for text in self.documents_of(
                    self.path("text", content))], [expected])

    @needs("pyarrow", "zstandard")
    def test_tasks_and_evaluation_sets_are_read_alike(self):
        rows = [{"goal": "Open a jar", "sol1": "turn the lid", "sol2": "break it", "label": 0}] * 3
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        array = json.dumps(rows).encode()
        import pyarrow
        paths = [self.path("in.jsonl", lines), self.path("in.json", array), self.path("in.gz", gzip.compress(lines)),
                 self.path("in.zst", zstd(array)), *self.written(pyarrow.Table.from_pylist(rows))]
        written = set()
        for path in paths:
            self.prepared("task", "piqa", "--input", path, "--tokenizer", "bytes", "--out", self.path("t.bin"))
            written.add(self.read("t.bin"))
        self.assertEqual(len(written), 1)
        long = " ".join(f"word{i}" for i in range(20))
        documents = self.path("a.jsonl", json.dumps({"text": long}).encode() + b"\n" + LINES)
        for name, content in (("e.json", json.dumps([{"q": [long]}], indent=1).encode()), ("e.txt", long.encode()),
                              ("e", gzip.compress(json.dumps({"a": {"b": long}}).encode()))):
            with self.subTest(name):
                output = self.prepared("text", documents, "--out", self.path("out"), "--val-fraction", 0, "--overwrite",
                                       "--decontaminate", self.path(name, content))
                self.assertIn("1 dropped: in the evaluation set", output)
        for path in (self.path("pointer", POINTER), self.path("z", zip_of(b"x"))):
            for command in (("text", documents, "--decontaminate", path), (
                    "task", "piqa", "--input", path, "--tokenizer", "bytes"), ("hellaswag", "--input", path,
                    "--tokenizer", "bytes")):
                with self.subTest(command=command):
                    self.assertIn(path, self.refused(*command, "--out", self.path("no")))
        for command in (("inspect", self.path("pointer")), ("text", documents, "--tokenizer", self.path("pointer"),
                        "--out", "x"),
                        ("tinyshakespeare", "--tokenizer", "bytes", "--text", self.path("pointer"), "--out",
                        self.path("x"))):
            self.assertIn("Git LFS pointer", self.refused(*command))


class Notes(TestCase):
    """An option or marker that matched nothing says so, on the screen and in the report."""

    def notes(self, *args):
        output = self.prepared("text", *args, "--out", self.path("out"), "--val-fraction", 0, "--overwrite")
        notes = json.loads(self.read("out/report.json"))["notes"]
        self.assertEqual([line for line in output.splitlines() if line.startswith("note: ")],
                         ["note: " + note for note in notes])
        self.assertTrue(self.read("out/report.txt").decode().endswith("".join(f"note: {note}\n" for note in notes)))
        return notes

    def test_each(self):
        stories = self.path("stories", "<|endoftext|>".join(TEXTS).encode())
        crlf = self.path("crlf", b"one\r\n\r\ntwo\r\n\r\nthree")
        blank = self.path("blank", b"one\n\ntwo")
        lines = self.path("a.jsonl", LINES)
        packed = self.path("crlf.gz", gzip.compress(b"one\r\n\r\ntwo"))
        for args, expected in [
                ((stories,),
                ["'<|endoftext|>' occurs 24 times in the text and was tokenized like other text; if it separates "
                              "the documents of text files, give --separator '<|endoftext|>'"]),
                ((stories, "--separator", "<|endoftext|>"), []),
                ((stories, "--separator", "</s>"), ["--separator '</s>' occurs in none of 1 text file: each became one "
                                                    "document", "'<|endoftext|>' occurs 24 times"]),
                ((crlf, "--separator", "\\n\\n"), [
                    "--separator '\\n\\n' occurs in none of 1 text file",
                    "1 text file without --separator '\\n\\n' would be "
                    "separated by --separator '\\r\\n\\r\\n': the lines end with CRLF"]),
                ((crlf, blank, packed, "--separator", "\\n\\n"), ["2 text files without"]),
                ((crlf, "--separator", "\\r\\n\\r\\n"), []), ((blank, "--separator", "\\n\\n"), []),
                ((self.path("end", b"one\n\n"), "--separator", "\\n\\n"), []), ((blank,), []), ((lines,), []),
                ((lines, "--separator", "\\n"), ["--separator '\\n' had no effect, because no input is a text file"]),
                ((blank, "--column", "body"), ["--column body had no effect, because no input has fields"]),
                ((lines, "--max-epochs", "2"), ["--max-epochs 2 had no effect, because no input has a weight"]),
                ((self.path("h.jsonl", b'{"text": "\\n<!DOCTYPE html><p>"}\n{"text": "<html lang=en>"}\n{"text": "a <html>"}'),),
                 ["HTML was tokenized with its tags, in 2 documents"]),
                ((self.path("b.jsonl", b'{"text": "one [SEP] two"}'),), ["'[SEP]' occurs 1 time in the text"])]:
            with self.subTest(args):
                notes = self.notes(*args)
                self.assertEqual(len(notes), len(expected), notes)
                for note, words in zip(notes, expected):
                    self.assertIn(words, note)

    def test_an_input_that_changes_while_it_is_read(self):
        read, path = pipeline.run_chunks, self.path("a.jsonl")
        for content in (b"", LINES[:40], LINES + LINES, None):
            def changed(*args, content=content):
                self.path("a.jsonl", content) if content is not None else os.remove(path)
                return read(*args)

            self.path("a.jsonl", LINES)
            with mock.patch.object(pipeline, "run_chunks", changed), mock.patch.object(readers, "PART_BYTES", 60):
                (note,) = self.notes(path, self.path("b.jsonl", b'{"text": "one"}\n'), "--skip-bad")
            self.assertTrue(note.startswith(path + " changed while it was read, so documents of it may be missing"), note)

    def test_workers(self):
        """Counts are summed over chunks, also those of other processes."""
        for i in range(6):
            self.path(f"in/{i}", b"one<|endoftext|>" * 3 + b"%d\r\n\r\n" % i)
        for workers in (1, 2):
            notes = self.notes(self.path("in"), "--separator", "\\n\\n", "--workers", workers)
            self.assertEqual([note[:31] for note in notes], [
                "--separator '\\n\\n' occurs in no", "6 text files without --separato",
                "'<|endoftext|>' occurs 18 times"])

    def test_other_options_without_effect_are_refused(self):
        self.prepared("text", self.path("in/a", b"text"), "--out", self.path("in/out"), "--val-fraction", 0)
        for weight in ("", "@1"):
            self.assertIn("in/out holds only the output of an earlier run", self.refused(
                "text", self.path("in/a") + weight, self.path("in/out") + weight, "--out", self.path("in/out")))
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            self.prepare("hellaswag", "--input", "x", "--split", "train", "--out", self.path("h"))
        for content in (b"caf\xe9\n\n" * 20_000, "text\n\n".encode("utf-16") * 9000,
            b"\xef\xbb\xbf" + b"text\n\n" * 9000):
            self.assertIn("play is not UTF-8 text without a byte order mark", self.refused(
                "tinyshakespeare", "--tokenizer", "bytes", "--text", self.path("play", content), "--out",
                self.path("t")))

    def test_arguments_without_a_meaning(self):
        """Also an empty one, which is usually a shell variable that is not set, is not the same as none."""
        some, cwd = self.path("some", b"text"), os.getcwd()
        self.addCleanup(os.chdir, cwd)
        os.chdir(self.dir)
        text = ("text", some, "--out", "out")
        for args, words in (
                (("text", some, "--out", ""), "--out is empty"), ((*text, "--end-token", ""), "--end-token is empty"),
                ((*text, "--separator", ""), "--separator is empty"), (("inspect", some, "--tokenizer", ""), "--tokenizer is empty"),
                (("validate", some, "--tokenizer", ""), "--tokenizer is empty"), (("hellaswag", "--input", "", "--out", "h"),
                                                                                 "--input is empty"),
                (("task", "piqa", "--input", some, "--labels", "", "--out", "p"), "--labels is empty"),
                (("download", "tinyshakespeare", "--out", "d", "--shards", 0), "are for shards"),
                (("inspect", some, "--documents", -1), "'-1' is not a number"),
                ((*text, "--separator", "\\"), r"'\\' has a wrong escape sequence: \ at end of string"),
                ((*text, "--separator", r"\ud83d"), "wrong escape sequence: surrogates not allowed")):
            with self.subTest(args), mock.patch("sys.stderr", io.StringIO()) as error:
                with self.assertRaises(SystemExit):
                    command_line.main(list(map(str, args)))
                self.assertIn(words, error.getvalue())
        for epochs in ("inf", "nan", "-1"):
            self.assertIn(f"--max-epochs {epochs}", self.refused("text", some + "@1", "--out", "out", "--max-epochs", epochs))
        self.assertEqual(os.listdir("."), ["some"])

    def test_an_evaluation_set_that_drops_nothing_is_refused(self):
        some = self.path("some", b"text")
        for content in (b"too short", b'{"q": "too short"}', b"", b"{}", b"\0\1\2"):
            code, _, error = self.prepare("text", some, "--decontaminate", self.path("e", content), "--out", self.path("no"))
            self.assertEqual(code, 1, error)
            *others, last = error.splitlines()
            self.assertRegex(last, "^prepare: .*/e has no text of 13 words, so no document would be dropped$")
            self.assertEqual(others, [f"prepare: left out as binary: {self.path('e')}"] if b"\0" in content else [])


if __name__ == "__main__":
    import unittest
    unittest.main()
