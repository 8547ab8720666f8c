"""tokenizer.bin, llm.c's tokenizer file: with it train_gpt decodes tokens and counts the bytes of text."""

import dataclasses
import os
import struct

import numpy

from .shard import open_regular, write_atomically

MISCOUNTED = 1e-4  # a table counts bytes if their sum is off by at most this fraction
MAGIC, VERSION, WIDE_VERSION = 20240328, 2, 3  # llm.c's; ours with uint16 lengths


@dataclasses.dataclass
class Table:
    """The file has a header of 256 int32: magic, version, number of tokens, the token that begins documents, the number
    of bytes that the tokens of a document have in front of its text, 1 if the sum of the tokens' bytes differs from
    the documents' by more than MISCOUNTED, and in 8 of them the tokenizer's hash (SHA-256). Then, for each token, a
    length of one byte (version 2, llm.c's) or of two (version 3, if a token needs it), and its bytes.
    """
    pieces: list  # what each token contributes to text; for end_token, what is shown for it
    end_token: int
    prefix: int = 0
    exact: bool = True
    hash: str = ""

    def sizes(self):
        """The bytes of text of each token, as a numpy array. What a document's tokens have in front of its text is
        subtracted at the token that begins it.
        """
        sizes = numpy.array([len(piece) for piece in self.pieces])
        sizes[self.end_token] = -self.prefix
        return sizes


def table_of(tokenizer, exact=True):
    """The table of a tokenizer. `exact`: whether its bytes count those of the documents."""
    pieces = list(tokenizer.pieces)
    pieces[tokenizer.end_token] = tokenizer.shown_end
    return Table(pieces, tokenizer.end_token, tokenizer.prefix, exact, tokenizer.hash)


def table_bytes(table):
    """The content of the file."""
    version, width = (VERSION, 1) if max(map(len, table.pieces)) < 256 else (WIDE_VERSION, 2)
    head = struct.pack("<6i", MAGIC, version, len(table.pieces), table.end_token, table.prefix, not table.exact)
    head += bytes.fromhex(table.hash.removeprefix("sha256:"))
    return head.ljust(1024, b"\0") + b"".join(len(piece).to_bytes(width, "little") + piece for piece in table.pieces)


def read_table(path):
    with open_regular(path) as file:
        content = file.read()
    magic, version, count, end_token, prefix, inexact = struct.unpack_from("<6i", content.ljust(1024, b"\0"))
    if magic != MAGIC or version not in (1, VERSION, WIDE_VERSION):
        raise ValueError(f"{path} is not a tokenizer file of llm.c, version 1 to {WIDE_VERSION}")
    pieces, at, width = [], 1024, 2 if version == WIDE_VERSION else 1
    for _ in range(count):
        start = at + width
        at = start + int.from_bytes(content[at:start], "little")
        pieces.append(content[start:at])
    if at != len(content):
        raise ValueError(f"{path}: its {count} tokens end at byte {at} of {len(content)}; it is damaged")
    digest = content[24:56]
    made = "sha256:" + digest.hex() if any(digest) else ""
    return Table(pieces, end_token, prefix, not inexact, made) if version > 1 else Table(pieces, 50256)  # GPT-2's


def write_tokenizer(tokenizer, folder, exact=True):
    """Writes the files next to the shards: tokenizer.bin, and the tokenizer.json for prompts and exports."""
    write_atomically(os.path.join(folder, "tokenizer.bin"), table_bytes(table_of(tokenizer, exact)))
    if tokenizer.content is not None:
        write_atomically(os.path.join(folder, "tokenizer.json"), tokenizer.content)
