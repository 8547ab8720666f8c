"""Finds out by a file's first bytes if it is text, JSON, a table, or data that prepare does not read. Names only say that
a file should be JSON or compressed. Also decompresses files and reads JSON as a stream.
"""

import bz2
import codecs
import contextlib
import dataclasses
import gzip
import json
import lzma
import os
import re
import struct
import zlib

from .shard import open_regular
from .tokenizers import missing

START_BYTES = 1 << 16  # the beginning of a file that decides
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
PACKINGS = {  # the beginnings of compressed files; zstd may begin with a frame that is skipped
    "gzip": rb"\x1f\x8b\x08", "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "xz": rb"\xfd7zXZ\0",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"}
PACKED_NAMES = (".gz", ".zst", ".xz", ".bz2")
JSON_NAMES = (".json", ".jsonl", ".ndjson")


def magics(*numbers):
    return b"|".join(re.escape(struct.pack("<i", number)) for number in numbers)


# The first bytes of data that is not text, its name for messages, and advice. Images and programs are not listed: they
# are dropped as binary.
CONTAINERS = [(re.compile(begins, re.DOTALL), what, advice) for begins, what, advice in (
    (rb"\xff\xfe\0\0|\0\0\xfe\xff", "UTF-32 text", "iconv -f UTF-32 -t UTF-8 FILE > NEW converts it"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > NEW converts it"),
    (magics(20240520, 20240801), "a token shard", "its text is tokenized already"),
    (magics(20240326, 20240328, 20240522), "a file of llm.c", "it holds weights, a tokenizer or questions"),
    (rb"PK\x03\x04|PK\x05\x06", "a zip archive, as .npz, .docx and .pt files are", "unpack it"),
    (rb".{257}ustar", "a tar archive", "unpack it"),
    (rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive", "unpack it"),
    (rb"\x04\x22\x4d\x18|\xff\x06\0\0sNaPpY|\x1f\x9d", "compressed with lz4, snappy or compress", "decompress it"),
    (rb"\x80[\x02-\x05]", "a pickle", "write its texts as JSON lines"),
    (rb"\x93NUMPY|\x89HDF\r\n\x1a\n", "an array of numbers", "write its texts as JSON lines"),
    (rb".{5}\0\0\0\{\"|GGUF[\x01-\x0f]\0\0\0", "a file of weights", "give a file of text"),
    (rb"SQLite format 3\0", "an SQLite database", "write its texts as JSON lines"),
    # Text may also begin with ORC or PARE, but it has no zero bytes. Such tables have zero bytes near their beginning, in
    # lengths and positions.
    (rb"(?:ORC|PARE).*\0|Obj\x01|FEA1", "a table of ORC, Avro, Feather 1 or encrypted parquet",
     "convert it to parquet"),
    (rb"%PDF-|\xd0\xcf\x11\xe0", "a PDF or Office document", "extract its text"))]
# The same for formats of text, which --structured-as-text reads as they are.
MARKUP = [(re.compile(begins), what, advice) for begins, what, advice in (
    (rb"WARC/1\.", "a WARC archive", "extract its texts"),
    (rb"<mediawiki\b", "a dump of a wiki", "extract its articles"),
    (rb"\{\\rtf", "an RTF document", "extract its text"))]
TABLE_HEAD = re.compile(r'"?\w[\w .-]*"?(?:[,\t;]"?\w[\w .-]*"?)+')

WHITE = re.compile(r"[ \t\r\n\x1e]*")
STRING = r'"(?:[^"\\]|\\.)*"'
OBJECT = r"\{\s*" + STRING + r"\s*:"
# Text that begins like this is JSON or broken JSON; "[Verse 1]", "[1] A. Author" and "{name}" are not.
BEGINS_JSON = re.compile(rf"{OBJECT}|\[\s*(?:{OBJECT}|{STRING}\s*[,\]])", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Content:
    kind: str  # "text", "lines" (JSON lines), "records" (other JSON), "parquet", "arrow" or "refused"
    packed: bool = False
    why: str = ""  # why the file is refused


def packing_of(start):
    return next((name for name, begins in PACKINGS.items() if re.match(begins, start)), None)


def blocks(path):
    """Yields the content of a file in pieces of at most 32 MiB, decompressed if it is compressed."""
    with open_regular(path) as raw:
        packing = packing_of(os.pread(raw.fileno(), 16, 0))
        if packing not in (None, "gzip"):
            # 4 bytes of zstd can stand for 128 KiB of text, so only a small piece is decompressed at a time. The other two
            # limit what they return, and bzip2 takes twice as long with small pieces.
            size = 1 << 10 if packing == "zstd" else 1 << 16
            yield from unpack(iter(lambda: raw.read(size), b""), packing, path)
        else:
            with gzip.open(raw) if packing else contextlib.nullcontext(raw) as file:
                yield from iter(lambda: file.read(1 << 20), b"")


def unpack(pieces, packing, path):
    """Yields the content of all streams of a compressed file. The readers of bz2 and lzma would end without an error at
    data behind a stream that begins no other one, and so would leave out what follows.
    """
    if packing == "zstd":
        try:
            import zstandard
        except ImportError:
            raise missing("zstandard", path) from None
        # zstd --long=31 writes frames that refer 2 GiB back.
        start, limit = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj, ()
        damage = zstandard.ZstdError
    else:
        start, limit = bz2.BZ2Decompressor if packing == "bzip2" else lzma.LZMADecompressor, (1 << 20,)
        damage = ()  # their errors are READ_ERRORS
    stream = None
    try:
        for piece in pieces:
            while piece := piece if stream else piece.lstrip(b"\0"):  # zeros between streams of xz are padding
                stream = stream or start()
                yield stream.decompress(piece, *limit)
                while limit and not stream.eof and not stream.needs_input:
                    yield stream.decompress(b"", *limit)
                piece, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    except damage as error:
        raise EOFError(error) from None
    if stream is not None:
        raise EOFError(f"it ends inside a stream of {packing}")


def start_of(path):
    """Returns the first START_BYTES of a file, decompressed, and True if it is not longer."""
    start = b""
    for piece in blocks(path):
        start += piece
        if len(start) > START_BYTES:
            return start[:START_BYTES], False
    return start, True


def identify(path, column, structured_as_text=False):
    """The Content of a file. Raises READ_ERRORS."""
    with open_regular(path) as file:
        packing = packing_of(file.read(16))
    stem, extension = os.path.splitext(path)
    named_packed = extension in PACKED_NAMES
    extension = os.path.splitext(stem)[1] if named_packed else extension
    start, whole = start_of(path)

    def refused(what, advice):
        return Content("refused", why=f"{path} is {what}, which prepare text does not read; {advice}")

    table = "parquet" if start.startswith(b"PAR1") else \
        "arrow" if re.match(rb"ARROW1\0\0|\xff\xff\xff\xff..\0\0", start, re.DOTALL) else None
    if table:
        return refused("compressed " + table, "decompress it") if packing else Content(table)
    if packing and packing_of(start):
        return refused("compressed twice", "decompress it")
    for begins, what, advice in CONTAINERS + ([] if structured_as_text else MARKUP):
        if begins.match(start):
            return refused(what, advice)
    kind = None if structured_as_text else json_kind(start, whole, extension)
    if kind is None and start and (named_packed and not packing or extension in (".parquet", ".arrow")):
        return Content("refused", why=f"{path} is not what its name says")
    has_column = is_table(start, column)
    if kind is None and not structured_as_text and (has_column or start and extension in (".csv", ".tsv")):
        return refused("a table of values" + (f" with the column '{column}'" if has_column else ""),
                       "convert it to JSON lines or parquet, or give --structured-as-text")
    return Content(kind or "text", packing is not None)


def json_kind(start, whole, extension=""):
    """ "lines" for JSON lines, "records" for other JSON, None for text."""
    text = start.decode("utf-8-sig", "surrogateescape").lstrip()
    named = extension in JSON_NAMES
    if not (BEGINS_JSON.match(text) or named and text[:1] in ("{", "[")):
        return "lines" if named or whole and text[:1] in ("{", "[") and is_json(text) else None
    first, newline, _ = text.partition("\n")
    if text[0] == "[":
        return "records"
    try:
        end = json.JSONDecoder().raw_decode(first)[1]
        return "records" if first[end:].strip() else "lines"
    except RecursionError:
        return "lines"
    except json.JSONDecodeError as error:  # a value that is not complete continues in the next line
        return "records" if newline and error.pos >= len(first.rstrip()) else "lines"


def is_json(text):
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def is_table(start, column):
    """True for comma-separated values (or with tabs or semicolons) that have the column."""
    first = start.partition(b"\n")[0].decode("utf-8-sig", "replace").rstrip("\r")
    return TABLE_HEAD.fullmatch(first) is not None and column in [
        name.strip('"') for name in re.split("[,\t;]", first)]


def json_values(pieces, limit):
    """Yields the JSON values in a stream of bytes, one after another, and the elements of arrays. Raises ValueError at
    the first error, or at a value of more than `limit` characters.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
    scan = json.JSONDecoder().raw_decode
    pieces = iter(pieces)
    text, at, in_array, more = "", 0, False, True
    expected = None  # in an array: "first", "value" or "comma"

    def refill(size):
        """Reads on until the text from `at` on has more than `size` characters. False at the end."""
        nonlocal text, at, more
        parts, length = [text[at:]], len(text) - at
        while more and length <= size:
            piece = next(pieces, None)
            more = piece is not None
            parts.append(decode(piece or b"", not more))
            length += len(parts[-1])
        text, at = "".join(parts), 0
        return length > size

    while True:
        while True:  # skips white space
            at = WHITE.match(text, at).end()
            if at < len(text) or not refill(0):
                break
        if at == len(text):
            if in_array:
                raise ValueError("it ends inside an array")
            return
        character = text[at]
        if not in_array and character == "[":
            in_array, expected, at = True, "first", at + 1
        elif in_array and character == "]" and expected != "value":
            in_array, at = False, at + 1
        elif in_array and expected == "comma":
            if character != ",":
                raise ValueError(f"a comma or ] is missing before {text[at:at + 20]!r}")
            expected, at = "value", at + 1
        else:
            while True:
                try:
                    value, at = scan(text, at)
                    break
                except RecursionError:
                    raise ValueError("it is nested too deeply") from None
                except json.JSONDecodeError as error:
                    size = len(text) - at
                    if size > limit:
                        raise ValueError(f"a value of more than {limit >> 20} MiB, or not JSON") from None
                    refill(2 * size)  # so the time stays linear
                    if len(text) == size:  # it is the end of the stream
                        raise ValueError(error.msg) from None
            expected = "comma"
            yield value

