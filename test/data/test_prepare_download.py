"""prepare download: shards from a hub on this machine, and a text from a server, checked, continued, and refused."""

import hashlib
import http.server
import json
import os
import re
import struct
import tempfile
import threading
import unittest
from unittest import mock

from made_tokenizers import gpt2_like
from prepare_case import TestCase, needs, shard

REPO, SHA, END = "kjj0/fineweb10B-gpt2", "0123456789abcdef0123456789abcdef01234567", 50256


def shard_bytes(tokens, magic=20240520):
    return struct.pack("<256i", magic, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens)


class Hub:
    """Answers as the hub does, for one data set. `cut`: the most bytes of a file that a reply sends. `wrong`: false
    checksums of files.
    """

    def __init__(self):
        self.files, self.asked, self.cut, self.wrong = {}, [], {}, {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, content, code=200, body=True, length=None, **headers):
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content) if length is None else length))
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.reply(json.dumps([{"type": "file", "path": name, "size": len(content), "oid": "0" * 40,
                                        "lfs": {"oid": hub.digest(name), "size": len(content), "pointerSize": 1}}
                                       for name, content in hub.files.items()]).encode(),
                           Content_Type="application/json")

            def do_HEAD(self):
                self.do_GET(body=False)

            def do_GET(self, body=True):
                if self.path.startswith("/api/"):
                    return self.reply(json.dumps({"id": REPO, "sha": SHA}).encode(), Content_Type="application/json")
                found = re.fullmatch(rf"/datasets/{REPO}/resolve/{SHA}/(\w+\.bin)", self.path)
                if not found or found[1] not in hub.files:
                    return self.reply(b"", 404, X_Error_Code="EntryNotFound")
                content = hub.files[found[1]]
                headers = {"X_Repo_Commit": SHA, "ETag": f'"{hub.digest(found[1])}"', "Accept_Ranges": "bytes"}
                first = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
                if body:
                    hub.asked.append((found[1], first))
                rest = content[first:]
                code = 206 if first else 200
                if first:
                    headers["Content_Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
                return self.reply(rest[:hub.cut.get(found[1], len(rest))] if body else b"", code, body, len(rest), **headers)

        self.server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def digest(self, name):
        return self.wrong.get(name) or hashlib.sha256(self.files[name]).hexdigest()


@needs("huggingface_hub", "tiktoken", "tokenizers")
class Download(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hub = Hub()
        cls.home = tempfile.TemporaryDirectory()
        import huggingface_hub.utils
        huggingface_hub.utils.disable_progress_bars()
        cls.addClassCleanup(huggingface_hub.utils.enable_progress_bars)
        cls.table = os.path.join(cls.home.name, "gpt2.tiktoken")
        with open(cls.table, "wb") as file:
            file.write(gpt2_like())
        from prepare import tokenizers
        cls.tokenizer = tokenizers.open_tokenizer(f"gpt2={cls.table}", None)
        cls.addClassCleanup(cls.home.cleanup)
        cls.addClassCleanup(cls.hub.server.server_close)
        cls.addClassCleanup(cls.hub.server.shutdown)

    def setUp(self):
        super().setUp()
        text = list(range(1000, 1400))
        self.hub.files = {"fineweb_val_000000.bin": shard_bytes([END, *text]),
                          "fineweb_train_000001.bin": shard_bytes([END, *text, END, *text] * 7),
                          "fineweb_train_000002.bin": shard_bytes([END, *reversed(text)])}
        self.hub.asked, self.hub.cut, self.hub.wrong = [], {}, {}
        from prepare import download
        for patch in (mock.patch.object(download, "open_tokenizer", lambda *_: self.tokenizer),  # it takes seconds
                      mock.patch.dict(os.environ, HF_ENDPOINT=f"http://localhost:{self.hub.server.server_port}",
                                      no_proxy="*")):
            patch.start()
            self.addCleanup(patch.stop)

    def arguments(self, *flags):
        return ["download", "fineweb10B", "--out", self.path("out"), *(flags or ("--shards", "1"))]

    def test_shards_and_sidecars(self):
        out = self.prepared(*self.arguments())
        self.assertIn(f"hf:{REPO}@{SHA}: 2 of 2 shards to download", out)
        self.assertEqual(sorted(os.listdir(self.path("out"))),
                         ["tokenizer.bin", "tokenizer.json", "train_000001.bin", "train_000001.bin.json",
                          "val_000000.bin", "val_000000.bin.json"])
        self.assertEqual(self.read("out/train_000001.bin"), self.hub.files["fineweb_train_000001.bin"])
        tokens, sidecar = shard.read_shard(self.path("out/train_000001.bin"))  # checks the checksum
        self.assertEqual({name: sidecar[name] for name in ("tokenizer", "end_token", "documents", "tokens", "max_token",
                                                           "source")},
                         {"tokenizer": "gpt2", "end_token": END, "documents": 14, "tokens": len(tokens),
                          "max_token": END, "source": f"hf:{REPO}@{SHA}"})
        self.assertEqual(sidecar["bytes"], 14 * sum(len(self.tokenizer.pieces[i]) for i in range(1000, 1400)))
        self.prepared("validate", self.path("out/train_000001.bin"))

        # With more shards later, only the new one is fetched.
        self.hub.asked.clear()
        self.assertIn("1 of 3 shards to download", self.prepared(*self.arguments("--shards", "2")))
        self.assertEqual(self.hub.asked, [("fineweb_train_000002.bin", 0)])

    def test_a_download_that_breaks_off_is_continued(self):
        name = "fineweb_train_000001.bin"
        self.hub.files[name] = shard_bytes([END, *range(999)] * 6000)  # the package keeps pieces of 10 MB
        self.hub.cut[name] = 11 << 20
        code, _, error = self.prepare(*self.arguments())
        if code:  # the package itself may have tried again
            self.assertIn("give the same command again", error)
            self.hub.cut.clear()
            self.prepared(*self.arguments())
        self.assertEqual(self.read("out/train_000001.bin"), self.hub.files[name])
        self.assertGreater(max(first for asked, first in self.hub.asked if asked == name), 0)

    def test_what_is_refused(self):
        name = "fineweb_train_000001.bin"
        good = self.hub.files[name]
        for content, message in ((shard_bytes([END, 50300]), "is not a shard of gpt2: .* largest 50300"),
                                 (good[:-2], "is not a shard of gpt2: .* 5613 tokens of 5614"),
                                 (good[:-1], "is not a shard of gpt2: .* 5613 tokens of 5614"),
                                 (shard_bytes([END], magic=1), "is not a shard of gpt2: magic 1")):
            self.hub.files[name] = content
            self.assertRegex(self.refused(*self.arguments()), message)
            self.assertFalse(os.path.exists(self.path("out/train_000001.bin")))
        self.hub.files[name] = good
        self.hub.wrong = {name: "0" * 64}
        self.assertIn("arrived with other bytes than the hub says", self.refused(*self.arguments()))
        self.hub.wrong = {}
        self.path("out/train_000001.bin", b"somebody else's")
        self.assertIn("train_000001.bin is in the way", self.refused(*self.arguments()))
        self.assertEqual(self.read("out/train_000001.bin"), b"somebody else's")
        self.assertIn("choose another --out for abc", self.refused(*self.arguments("--revision", "abc")))
        self.assertIn("--shards 104: fineweb10B has 1 to 103", self.refused(*self.arguments("--shards", "104")))
        self.assertIn(f"{REPO} has no fineweb_train_000003.bin", self.refused(*self.arguments("--shards", "3")))
        os.remove(self.path("out/train_000001.bin"))
        with mock.patch.object(self.tokenizer, "name", "another"):
            self.assertIn("fineweb10B has tokens of gpt2, not of another", self.refused(*self.arguments()))
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=5)):
            self.assertIn("are needed and 0.0 MB are free", self.refused(*self.arguments("--shards", "2")))

    def test_no_hub(self):
        import huggingface_hub
        with mock.patch.object(huggingface_hub.HfApi, "dataset_info", side_effect=OSError("no route\nto host")):
            self.assertIn(f"the hub does not answer for {REPO}: no route", self.refused(*self.arguments()))


class Text(TestCase):
    """The text of Tiny Shakespeare, from a server that gives the replies of a list: content and announced length, or an
    HTTP status."""

    CONTENT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"

    def download(self, *replies):
        from prepare import tinyshakespeare
        waiting = list(replies)

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                reply = waiting.pop(0)
                if isinstance(reply, int):
                    return self.send_error(reply)
                self.send_response(200)
                self.send_header("Content-Length", str(reply[1]))
                self.end_headers()
                return self.wfile.write(reply[0])

        with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            with mock.patch.multiple(tinyshakespeare, URL=f"http://localhost:{server.server_port}/input.txt",
                                     SHA256=hashlib.sha256(self.CONTENT).hexdigest(), PAUSES=(0, 0)), \
                    mock.patch.dict(os.environ, no_proxy="*"):
                try:
                    return self.prepare("download", "tinyshakespeare", "--out", self.path("out"))
                finally:
                    server.shutdown()
                    self.assertEqual(waiting, [], "replies that were not asked for")

    def test_arrives_once(self):
        whole = (self.CONTENT, len(self.CONTENT))
        code, out, error = self.download(503, (self.CONTENT[:9], len(self.CONTENT)), whole)
        self.assertEqual((code, error), (0, ""))
        self.assertIn(f"tinyshakespeare.txt: {len(self.CONTENT)} bytes, with the published checksum", out)
        self.assertEqual(self.read("out/tinyshakespeare.txt"), self.CONTENT)
        self.assertEqual(os.listdir(self.path("out")), ["tinyshakespeare.txt"])
        self.assertEqual(self.download(), (0, out, ""))

    def test_what_is_refused(self):
        for replies, message in (([503] * 3, "Service Unavailable; without a network, fetch it elsewhere, save it as "
                                             ".*/tinyshakespeare.txt and give the same command again, or go on with "),
                                 ([404], "could not download http://localhost:.*: Not Found"),
                                 ([(b"<html>", 6)], r"arrived with other bytes \(6\) than the published text")):
            code, _, error = self.download(*replies)
            self.assertEqual(code, 1)
            self.assertRegex(error, message)
            self.assertFalse(os.path.exists(self.path("out")))
        self.path("out/tinyshakespeare.txt", b"somebody else's")
        self.assertIn("is in the way", self.download()[2])
        with self.assertRaises(SystemExit):
            self.prepare("download", "tinyshakespeare", "--out", self.path("out"), "--shards", "1")


if __name__ == "__main__":
    unittest.main()
