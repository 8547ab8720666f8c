"""Writes token shards in llm.c's format, each with a sidecar JSON that describes it.

A shard is a header of 256 little-endian int32 (magic, version, number of tokens, zeros), then the tokens: uint16 (magic
20240520, version 1) if the vocabulary fits, else uint32 (magic 20240801, version 7). `X.bin.json` contains tokenizer,
vocab, max_token, documents, tokens, a checksum of the token bytes, and, if known, the bytes of the text.
"""

import array
import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import sys

HEADER_BYTES = 1024
UINT16 = (20240520, 1)  # magic, version
UINT32 = (20240801, 7)
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
MAX_TOKENS = 2**31 - 1  # the header's count is an int32


def token_array(vocab, tokens=()):
    """An array whose elements are as wide as in shards of this vocabulary."""
    return array.array("H" if vocab <= 1 << 16 else "I", tokens)


def checked_array(vocab, tokens):
    try:
        return token_array(vocab, tokens)
    except OverflowError:
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise ValueError(f"token {wrong} is not below the vocabulary of {vocab}") from None


def open_regular(path):
    """Opens a file for reading bytes. A pipe would block and a device may have no end, so both raise OSError. So does
    the small text that lies at a file's path until Git LFS has fetched the file.
    """
    def opener(name, flags):
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not regular or os.pread(descriptor, len(LFS_POINTER), 0) == LFS_POINTER:
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is a Git LFS pointer, not the file itself; fetch the file with `git lfs "
                          "pull`" if regular else "it is not a regular file", path)
        return descriptor
    return open(path, "rb", opener=opener)


def parse_json(text):
    """The value of a JSON text. Raises ValueError for anything else, and for text nested deeper than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync(file):
    """Returns when everything written to the file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def create(path, mode="wb"):
    """Opens a new or empty file for writing, but not through a symbolic link, which leads to somebody else's file."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


@contextlib.contextmanager
def new_file(path):
    """Opens a file for writing bytes. It gets its name when it is complete and on the disk."""
    with create(path + ".tmp") as file:
        yield file
        sync(file)
    os.replace(path + ".tmp", path)


def write_atomically(path, data):
    with new_file(path) as file:
        file.write(data)


class _Shard:
    """A shard that is being written, under a temporary name; it gets its final name only when it is complete."""

    def __init__(self, path, vocab):
        self.path = path
        self.text_bytes = None
        self.magic, self.version = UINT16 if vocab <= 1 << 16 else UINT32
        self.tokens = self.documents = 0
        self.max_token = -1
        self.hash = hashlib.sha256()
        self.file = create(path + ".tmp")
        self.file.write(bytes(HEADER_BYTES))

    def write(self, tokens, end_token, sizes):
        self.tokens += len(tokens)
        if isinstance(tokens, array.array):
            self.documents += tokens.count(end_token)
            self.max_token = max(self.max_token, max(tokens))
        else:
            self.documents += int((tokens == end_token).sum())
            self.max_token = max(self.max_token, int(tokens.max()))
        if sizes is not None:
            self.text_bytes = (self.text_bytes or 0) + int(sizes.sum())
        if sys.byteorder == "big" and isinstance(tokens, array.array):
            tokens = tokens[:]
            tokens.byteswap()
        data = tokens.tobytes()
        self.hash.update(data)
        self.file.write(data)

    def finish(self, sidecar):
        self.file.seek(0)
        self.file.write(struct.pack("<3i", self.magic, self.version, self.tokens))
        sync(self.file)
        self.file.close()
        sidecar = dict(sidecar, max_token=self.max_token, documents=self.documents, tokens=self.tokens,
                       checksum="sha256:" + self.hash.hexdigest())
        if sidecar["tokenizer"] == "bytes":
            sidecar["bytes"] = self.tokens - self.documents  # of the text; an end token has none
        elif self.text_bytes is not None:
            sidecar["bytes"] = self.text_bytes
        json_path = self.path + ".json"
        with create(json_path + ".tmp", "w") as file:
            json.dump(sidecar, file, indent=2)
            file.write("\n")
            sync(file)
        # A shard must never lie next to the sidecar of another shard.
        if os.path.exists(json_path):
            os.remove(json_path)
        os.replace(self.path + ".tmp", self.path)
        os.replace(json_path + ".tmp", json_path)
        return sidecar

    def abandon(self):
        self.file.close()
        for path in (self.path + ".tmp", self.path + ".json.tmp"):
            if os.path.exists(path):
                os.remove(path)


def write_shards(chunks, path_of, *, tokenizer, vocab, end_token, shard_tokens=MAX_TOKENS, extra=None):
    """Writes the tokens of `chunks` as shards of `shard_tokens` tokens and returns the sidecars. `chunks` is an
    iterable of token_array()s, numpy arrays of the shard's type, or lists. Each can also be a pair with a numpy array
    of the bytes of text for each of its tokens.

    path_of(i) is the path of the i-th shard. `extra` is added to the sidecars. Memory does not grow with the data.
    Every shard but the last is full. A document counts in the shard where it starts, with the end token.
    """
    if not 1 <= shard_tokens <= MAX_TOKENS:
        raise ValueError(f"a shard holds 1 to {MAX_TOKENS} tokens, not {shard_tokens}")
    sidecar = dict(tokenizer=tokenizer, vocab=vocab) | (extra or {})
    sidecars, shard = [], None
    try:
        for chunk in chunks:
            chunk, sizes = chunk if isinstance(chunk, tuple) else (chunk, None)
            tokens = chunk if hasattr(chunk, "itemsize") else checked_array(vocab, chunk)
            at = 0
            while at < len(tokens):
                if shard is None:
                    shard = _Shard(path_of(len(sidecars)), vocab)
                here = slice(at, at + shard_tokens - shard.tokens)
                part = tokens[here]
                shard.write(part, end_token, None if sizes is None else sizes[here])
                if shard.max_token >= vocab:
                    raise ValueError(f"token {shard.max_token} is not below the vocabulary of {vocab}")
                at += len(part)
                if shard.tokens == shard_tokens:
                    sidecars.append(shard.finish(sidecar))
                    shard = None
        if shard is not None:
            sidecars.append(shard.finish(sidecar))
            shard = None
    finally:
        if shard is not None:
            shard.abandon()
    if not sidecars:
        raise ValueError("there are no tokens to write")
    return sidecars


def read_shard(path):
    """Returns the tokens of a shard and its sidecar ({} without one), after checking sizes and the checksum. For tests
    and tools.
    """
    with open_regular(path) as file:
        header = struct.unpack("<256i", file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"))
        data = file.read()
    if header[:2] not in (UINT16, UINT32):
        raise ValueError(f"{path}: magic {header[0]}, version {header[1]} is not a token shard's")
    tokens = array.array("H" if header[:2] == UINT16 else "I")
    if len(data) != header[2] * tokens.itemsize:
        raise ValueError(f"{path}: {len(data)} bytes of tokens, its header says {header[2] * tokens.itemsize}")
    tokens.frombytes(data)
    if sys.byteorder == "big":
        tokens.byteswap()
    sidecar = {}
    if os.path.exists(path + ".json"):
        with open_regular(path + ".json") as file:
            content = file.read()
        try:
            sidecar = parse_json(content)
        except ValueError as error:
            raise ValueError(f"{path}.json is not JSON: {error}") from None
        if not isinstance(sidecar, dict):
            raise ValueError(f"{path}.json is not a JSON object")
        for name in ("vocab", "end_token", "max_token", "documents", "tokens", "bytes"):
            if type(sidecar.get(name, 0)) is not int:
                raise ValueError(f"{path}.json: {name} is {json.dumps(sidecar[name])}, not a whole number")
        checksum = "sha256:" + hashlib.sha256(data).hexdigest()
        if sidecar.get("checksum", checksum) != checksum:
            raise ValueError(f"{path}: its bytes do not match the checksum of its sidecar")
    return tokens, sidecar
