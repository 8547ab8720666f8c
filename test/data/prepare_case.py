"""Shared by the tests of data/prepare: a directory, the command line called in this process, and shards read back."""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "data"))
from prepare import __main__ as command_line
from prepare import report, shard


def needs(*packages):
    """Skips a test if a package is missing; not in CI, which must have all of them."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing and os.environ.get("CI") != "true", f"not installed: {', '.join(missing)}")


class TestCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = directory.name

    def path(self, name, content=None):
        path = os.path.join(self.dir, name)
        if content is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        return path

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def prepare(self, *args):
        """Returns the exit code and the output on stdout and stderr."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error, \
                mock.patch.object(report, "draw", self.draw), mock.patch.object(command_line, "cores", lambda: 1):
            code = command_line.main([str(arg) for arg in args])
        return code, out.getvalue(), error.getvalue()

    @staticmethod
    def draw(*_):
        """Replaces the drawing of pictures, which takes longer than everything else."""

    def prepared(self, *args):
        """The output of a command that must succeed."""
        code, out, error = self.prepare(*args)
        self.assertEqual(code, 0, error)
        return out + error

    def refused(self, *args):
        """The one-line message of a command that must fail."""
        code, _, error = self.prepare(*args)
        if error.startswith("prepare: continues"):
            error = error.split("\n", 1)[1]
        self.assertEqual(code, 1, error)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("prepare: "), error)
        return error

    def shards(self, split, out="out"):
        """All tokens of a split, and its sidecars."""
        names = sorted(name for name in os.listdir(self.path(out))
                       if name.startswith(split + "_") and name.endswith(".bin"))
        parts = [shard.read_shard(self.path(f"{out}/{name}")) for name in names]
        return [token for tokens, _ in parts for token in tokens], [sidecar for _, sidecar in parts]

    def documents(self, split, out="out", end_token=256):
        """The texts of a split of byte tokens."""
        text = b"".join(bytes([token]) if token != end_token else b"\xff" for token in self.shards(split, out)[0])
        self.assertTrue(text.startswith(b"\xff") or not text)  # not a byte of UTF-8
        return [document.decode() for document in text.split(b"\xff")[1:]]
