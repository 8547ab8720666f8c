"""Documents from files: text, JSON lines, parquet, datasets of Hugging Face; compressed with gzip or zstd.

plan() cuts the inputs into parts, so that many workers can read them, and always cuts them the same way. read() yields
the documents of a part: a str, bytes of text that is not decoded yet, or Bad for a document that could not be read.
"""

import dataclasses
import functools
import glob
import gzip
import os
import re
import zlib

from .shard import open_regular, parse_json
from .tokenizers import PrepareError, missing

DOCUMENT_BYTES = 16 << 20  # a longer text file is cut at ends of lines into documents of about this size
RECORD_BYTES = 64 << 20  # a longer line of JSON lines, or text between separators, counts as unreadable
PART_BYTES = 4 << 20  # approximate size of a part of a file with many documents
# A file is binary if more than a third of its characters are odd, the rule of perldoc -X, -B.
BINARY_FRACTION = 1 / 3
DATASETS = {  # names with their locations
    "tinystories": "hf:roneneldan/TinyStories",
    "fineweb": "hf:HuggingFaceFW/fineweb:sample-10BT",
    "fineweb-edu": "hf:HuggingFaceFW/fineweb-edu:sample-10BT",
}


@dataclasses.dataclass(frozen=True)
class Format:
    """How the inputs are read."""
    column: str = "text"  # of JSON lines, parquet and datasets
    separator: bytes | None = None  # separates the documents of a text file; None makes the file one document


@dataclasses.dataclass(frozen=True)
class Part:
    kind: str  # a key of READERS
    path: str
    start: int  # bytes, row groups or rows
    stop: int
    bytes: int  # approximate


@dataclasses.dataclass(frozen=True)
class Bad:
    message: str


def expand(name):
    """The files of an input: a file, a directory, a pattern, a dataset hf:NAME[:CONFIG[:SPLIT]] or a known name."""
    if os.path.isfile(name) or name.startswith("hf:") or is_saved_dataset(name):
        return [name]
    if os.path.isdir(name):
        files = []
        for folder, folders, names in os.walk(name, onerror=cannot_list):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            files += [os.path.join(folder, file) for file in names if not file.startswith(".")]
        files = [file for file in files if os.path.isfile(file)]
    elif name in DATASETS:
        return [DATASETS[name]]
    else:
        files = [file for file in glob.glob(name, recursive=True) if os.path.isfile(file)]
    if not files:
        why = "has no files" if os.path.isdir(name) else \
            "is not a file, a directory, a pattern that files match, hf:NAME or one of " + ", ".join(DATASETS)
        raise PrepareError(f"{name} {why}" + (" (prepare tinyshakespeare is a command of its own)"
                                              if name == "tinyshakespeare" else ""))
    return sorted(files, key=os.fsencode)  # in byte order, independent of the locale


def cannot_list(error):
    raise PrepareError(f"cannot list {error.filename}: {error.strerror}")


def plan(path, format):
    """The parts of a file."""
    if path.startswith("hf:") or is_saved_dataset(path):
        return plan_dataset(path, format)
    size = os.path.getsize(path)
    stem, extension = os.path.splitext(path)
    packed = extension in (".gz", ".zst")
    if packed:
        extension = os.path.splitext(stem)[1]
    if extension == ".parquet":
        return plan_parquet(path, format)
    if extension in (".jsonl", ".ndjson"):
        if packed:
            return [Part("packed lines", path, 0, size, size)]
        return [Part("lines", path, start, min(start + PART_BYTES, size), min(PART_BYTES, size - start))
                for start in range(0, max(size, 1), PART_BYTES)]
    if format.separator is not None:
        return [Part("separated", path, 0, size, size)]
    if packed:
        return [Part("packed text", path, 0, size, size)]
    return plan_text(path, size)


def plan_text(path, size):
    parts, start = [], 0
    while start < size or not parts:
        stop = size if size - start <= DOCUMENT_BYTES else find_line_end(path, start + DOCUMENT_BYTES)
        parts.append(Part("text", path, start, stop, stop - start))
        start = stop
    return parts


def find_line_end(path, offset):
    """The offset after the first newline at or after `offset`, or the end of the file. Without a newline in the next
    DOCUMENT_BYTES, it is the end of the last whole character there.
    """
    with open_regular(path) as file:
        file.seek(offset)
        line = file.readline(DOCUMENT_BYTES)
        return offset + (whole_characters(line) if len(line) == DOCUMENT_BYTES else len(line))


def whole_characters(data):
    """The length of `data` without a UTF-8 character that may be cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] & 0xc0 != 0x80:  # the first byte of a character
            return len(data) - (back if data[-back] >= 0x80 else 0)
    return len(data)


def blocks(path):
    """Yields the content of a file in pieces of at most 32 MiB, decompressed if its name says that it is compressed."""
    # 4 bytes of zstd can stand for 128 KiB of text, so only a small piece is decompressed at a time.
    size = 1 << 10 if path.endswith(".zst") else 1 << 20
    with open_regular(path) as raw, gzip.open(raw) if path.endswith(".gz") else raw as file:
        pieces = iter(lambda: file.read(size), b"")
        yield from unpack_zstd(pieces, path) if path.endswith(".zst") else pieces


def unpack_zstd(pieces, path):
    try:
        import zstandard
    except ImportError:
        raise missing("zstandard", path) from None
    frame = None
    try:
        for piece in pieces:
            while piece:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(piece)
                piece, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except zstandard.ZstdError as error:
        raise EOFError(error) from None
    if frame is not None:
        raise EOFError("it ends inside a frame of zstd")


def read_text(part, format):
    with open_regular(part.path) as file:
        file.seek(part.start)
        yield file.read(part.stop - part.start)


def read_packed_text(part, format):
    """Yields the documents that plan_text() would find in the decompressed file."""
    pending, first = bytearray(), True
    for piece in blocks(part.path):
        pending += piece
        while len(pending) > DOCUMENT_BYTES:
            stop = pending.find(b"\n", DOCUMENT_BYTES, 2 * DOCUMENT_BYTES) + 1
            if stop == 0 and len(pending) < 2 * DOCUMENT_BYTES:
                break
            stop = stop or DOCUMENT_BYTES + whole_characters(pending[DOCUMENT_BYTES:2 * DOCUMENT_BYTES])
            yield bytes(pending[:stop])
            del pending[:stop]
            first = False
    if pending or first:
        yield bytes(pending)


def split_at(separator, pieces):
    """Yields the records between separators; None for a record of more than RECORD_BYTES."""
    pending, skipping = bytearray(), False
    for piece in pieces:
        start = max(len(pending) - len(separator) + 1, 0)
        pending += piece
        if pending.find(separator, start) < 0:
            if len(pending) > RECORD_BYTES:
                skipping = True
                del pending[:len(pending) - len(separator) + 1]  # its last bytes may be the beginning of a separator
            continue
        *whole, pending = pending.split(separator)
        for record in whole:
            yield None if skipping or len(record) > RECORD_BYTES else bytes(record)
            skipping = False
    if skipping or pending:
        yield None if skipping or len(pending) > RECORD_BYTES else bytes(pending)


def too_long(where):
    return Bad(f"{where}: more than {RECORD_BYTES >> 20} MiB")


def read_separated(part, format):
    for number, text in enumerate(split_at(format.separator, blocks(part.path)), 1):
        yield too_long(f"{part.path}, document {number}") if text is None else text


def read_lines(part, format):
    """Yields the lines that begin in this range of bytes."""
    with open_regular(part.path) as file:
        if part.start > 0:
            file.seek(part.start - 1)
            skip_line(file, part.stop)
        while (at := file.tell()) < part.stop:
            line = file.readline(RECORD_BYTES + 1)
            if len(line) > RECORD_BYTES:
                skip_line(file, part.stop)
                line = None
            yield from read_record(line, format, f"{part.path}, at byte {at}")


def skip_line(file, stop):
    """Goes to the start of the next line, or beyond `stop` if no line begins before it."""
    while (at := file.tell()) < stop and not file.readline(stop - at).endswith(b"\n"):
        pass


def read_packed_lines(part, format):
    for number, line in enumerate(split_at(b"\n", blocks(part.path)), 1):
        yield from read_record(line, format, f"{part.path}, line {number}")


def read_record(line, format, where):
    """The text of a JSON line, or Bad. `line` is None if it is longer than RECORD_BYTES."""
    if line is None:
        yield too_long(where)
        return
    if not line.strip():
        return
    try:
        # Bytes that are not valid UTF-8 become lone surrogates, which are replaced and counted like all others.
        record = parse_json(line.decode("utf-8", errors="surrogateescape"))
    except ValueError as error:
        yield Bad(f"{where}: not JSON ({error})")
        return
    text = record.get(format.column) if isinstance(record, dict) else None
    if isinstance(text, str):
        yield text
        return
    fields = "no object" if not isinstance(record, dict) else "text in none of its fields" if not record else \
        "no text in '" + format.column + "'; its fields: " + ", ".join(map(str, record))
    yield Bad(f"{where}: the line has {fields} (--column NAME chooses)")


# ---- parquet -------------------------------------------------------------------------------------------------------


def open_parquet(path):
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing("pyarrow", path) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise PrepareError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from None


def no_column(path, column, names):
    return PrepareError(f"{path} has no column '{column}'; it has {', '.join(names)} (--column)")


def plan_parquet(path, format):
    try:
        file = open_parquet(path)
    except PrepareError as error:
        return [Part("bad", str(error), 0, 0, 0)]
    schema = file.schema_arrow
    if format.column not in schema.names:
        raise no_column(path, format.column, schema.names)
    kind = str(schema.field(format.column).type)
    if not any(word in kind for word in ("string", "binary")):
        raise PrepareError(f"column '{format.column}' of {path} is {kind}, not text; the columns are "
                           f"{', '.join(schema.names)} (--column)")
    parts, start, size = [], 0, 0
    groups = file.metadata.num_row_groups
    for group in range(groups):
        size += file.metadata.row_group(group).total_byte_size
        if size >= PART_BYTES or group == groups - 1:
            parts.append(Part("parquet", path, start, group + 1, size))
            start, size = group + 1, 0
    return parts


def read_parquet(part, format):
    import pyarrow
    file = open_parquet(part.path)
    try:
        for batch in file.iter_batches(1000, range(part.start, part.stop), [format.column]):
            for text in batch.column(0).to_pylist():
                yield text or ""
    except pyarrow.ArrowException as error:
        yield Bad(f"{part.path} cannot be read: {str(error).splitlines()[0]}")


# ---- datasets of Hugging Face --------------------------------------------------------------------------------------


def is_saved_dataset(path):
    """True for a directory that datasets' save_to_disk() wrote."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("dataset_dict.json", "state.json"))


@functools.lru_cache(maxsize=4)
def open_dataset(path):
    try:
        import datasets
    except ImportError:
        raise missing("datasets", path) from None
    try:
        if not path.startswith("hf:"):
            dataset = datasets.load_from_disk(path)
            return dataset["train"] if isinstance(dataset, datasets.DatasetDict) else dataset
        name, config, split = (path[3:].split(":") + [None, None])[:3]
        return datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # of many kinds: no network, no such name, no such split
        lines = str(error).splitlines() or [""]
        raise PrepareError(f"datasets cannot load {path} ({type(error).__name__}: {lines[0]}); it takes "
                           "hf:NAME[:CONFIG[:SPLIT]], and a network or its cache") from None


def plan_dataset(path, format):
    dataset = open_dataset(path)
    if format.column not in dataset.column_names:
        raise no_column(path, format.column, dataset.column_names)
    rows = len(dataset)
    row_bytes = max(dataset.data.nbytes // max(rows, 1), 1)
    step = max(PART_BYTES // row_bytes, 1)
    return [Part("dataset", path, start, min(start + step, rows), min(step, rows - start) * row_bytes)
            for start in range(0, rows, step)]


def read_dataset(part, format):
    dataset = open_dataset(part.path).select_columns([format.column])
    for start in range(part.start, part.stop, 1000):
        for text in dataset[start:min(start + 1000, part.stop)][format.column]:
            yield text or ""


def read_bad(part, format):
    yield Bad(part.path)


READERS = {"text": read_text, "packed text": read_packed_text, "separated": read_separated, "lines": read_lines,
           "packed lines": read_packed_lines, "parquet": read_parquet, "dataset": read_dataset, "bad": read_bad}


def read(part, format):
    """Yields the documents of a part, and Bad for those that cannot be read. After a Bad for the whole file, nothing
    follows.
    """
    try:
        yield from READERS[part.kind](part, format)
    except (OSError, EOFError, zlib.error) as error:
        yield Bad(f"cannot read {part.path}: {getattr(error, 'strerror', None) or error}")


def is_utf16(path):
    """True if a file begins with a byte order mark of UTF-16."""
    return next(blocks(path), b"")[:2] in (b"\xff\xfe", b"\xfe\xff")


def decode(raw):
    """Returns (text, number of characters replaced because they are not valid Unicode), or (None, 0) for a binary file.
    """
    if isinstance(raw, str):
        try:
            raw.encode()
            return raw, 0
        except UnicodeEncodeError:
            return re.subn("[\ud800-\udfff]", "\ufffd", raw)
    if b"\0" in raw:
        return None, 0
    try:
        return raw.decode("utf-8-sig"), 0
    except UnicodeDecodeError:
        text = raw.decode("utf-8-sig", errors="replace")
        replaced = text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
        return (None, 0) if replaced > BINARY_FRACTION * len(text) else (text, replaced)


def texts(inputs, format):
    """Yields all texts of the inputs that can be read."""
    for name in inputs:
        for path in expand(name):
            for part in plan(path, format):
                for raw in read(part, format):
                    if isinstance(raw, Bad):
                        raise PrepareError(raw.message)
                    yield decode(raw)[0] or ""
