"""Documents from files: text, JSON, parquet, Arrow files and datasets of Hugging Face (formats.py tells them apart).

plan() cuts the inputs into parts, so that many workers can read them, and always cuts them the same way. read() yields
the documents of a part: a str, bytes of text that is not decoded yet, Bad for a document that could not be read, or
Unseparated for a file without separators, after its document. rows() yields whole JSON objects or rows of a table.
"""

import contextlib
import dataclasses
import functools
import glob
import os
import re
import sys
import threading

from .formats import READ_ERRORS, blocks, identify, json_values
from .shard import open_regular, parse_json
from .tokenizers import PrepareError, missing

DOCUMENT_BYTES = 16 << 20  # a longer text file is cut at ends of lines into documents of about this size
RECORD_BYTES = 64 << 20  # a longer line of JSON lines, or text between separators, counts as unreadable
PART_BYTES = 4 << 20  # approximate size of a part of a file with many documents
# A file is binary if more than a third of its characters are odd, the rule of perldoc -X, -B.
BINARY_FRACTION = 1 / 3
DESCRIPTIONS = {"dataset_info.json", "state.json", "dataset_dict.json"}
DATASETS = {  # names with their locations
    "tinystories": "hf:roneneldan/TinyStories",
    "fineweb": "hf:HuggingFaceFW/fineweb:sample-10BT",
    "fineweb-edu": "hf:HuggingFaceFW/fineweb-edu:sample-10BT",
}
TOKENS = {"tinystories": 0.5e9, "fineweb": 10e9, "fineweb-edu": 10e9}  # of GPT-2, about


@dataclasses.dataclass(frozen=True)
class Format:
    """How the inputs are read."""
    column: str = "text"  # of JSON lines, parquet and datasets
    separator: bytes | None = None  # separates the documents of a text file; None makes the file one document
    structured_as_text: bool = False  # JSON and other formats of text count as text


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


@dataclasses.dataclass(frozen=True)
class Unseparated:
    path: str
    ends_with_crlf: bool  # the separator would occur if its newlines were CRLF


def expand(name):
    """The files of an input: a file, a directory, a pattern, a data set hf:NAME[@REVISION][:CONFIG[:SPLIT]] or a known name.
    They include what plan() refuses: broken links, and directories that a link or a pattern names.
    """
    if os.path.isfile(name) or name.startswith("hf:") or is_saved_dataset(name):
        return [name]
    if os.path.isdir(name):
        files = []
        for folder, folders, names in os.walk(name, onerror=cannot_list):
            folders[:] = [folder for folder in folders if not folder.startswith(".")]
            links = [file for file in folders if os.path.islink(os.path.join(folder, file))]  # not followed
            files += [os.path.join(folder, file) for file in names + links if not file.startswith(".")]
        files = [file for file in files if os.path.isfile(file) or os.path.islink(file)]
        if any(file.endswith(".arrow") for file in files):  # datasets writes these descriptions next to its tables
            files = [file for file in files if os.path.basename(file) not in DESCRIPTIONS]
    elif name in DATASETS:
        return [DATASETS[name]]
    else:
        files = [file for file in glob.glob(with_names_quoted(name), recursive=True) if os.path.isfile(file) or os.path.islink(file)
                 or os.path.isdir(file) and "**" not in name]
    if not files:
        why = "has no files" if os.path.isdir(name) else \
            "is not a file, a directory, a pattern that files match, hf:NAME or one of " + ", ".join(DATASETS)
        raise PrepareError(f"{name} {why}" + (" (prepare tinyshakespeare is a command of its own)"
                                              if name == "tinyshakespeare" else ""))
    return sorted(files, key=os.fsencode)  # in byte order, independent of the locale


def with_names_quoted(pattern):
    """The pattern, with quotes in its longest beginning that is the path of a directory: [ is part of a name there."""
    names = len(pattern)
    while names > 0 and not os.path.exists(pattern[:names]):
        names = pattern.rfind("/", 0, names - 1) + 1
    return glob.escape(pattern[:names]) + pattern[names:]


def cannot_list(error):
    raise PrepareError(f"cannot list {error.filename}: {error.strerror}")


def plan(path, format):
    """The parts of a file."""
    if path.startswith("hf:") or is_saved_dataset(path):
        return plan_dataset(path, format)
    if os.path.isdir(path):
        why = "is a link to a directory, which is not followed" if os.path.islink(path) else "is a directory"
        return [Part("bad", f"{path} {why}; give it as an input of its own", 0, 0, 0)]
    try:
        content = identify(path, format.column, format.structured_as_text)
        size = os.path.getsize(path)
    except READ_ERRORS as error:
        return [Part("bad", unreadable(path, error), 0, 0, 0)]
    if content.kind == "refused":
        return [Part("bad", content.why, 0, 0, 0)]
    if content.kind == "lines" and not content.packed:
        return [Part("lines", path, start, min(start + PART_BYTES, size), min(PART_BYTES, size - start))
                for start in range(0, max(size, 1), PART_BYTES)]
    if content.kind in ("parquet", "arrow"):
        return plan_table(path, format, content.kind)
    if content.kind == "text" and format.separator is None and not content.packed:
        return plan_text(path, size)
    kind = {"lines": "packed lines", "records": "records"}.get(
        content.kind, "packed text" if format.separator is None else "separated")
    return [Part(kind, path, 0, size, size)]


def unreadable(path, error):
    return f"cannot read {path}: {getattr(error, 'strerror', None) or error}"


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
    size, number, text = 0, 0, b""

    def counted():
        nonlocal size
        for piece in blocks(part.path):
            size += len(piece)
            yield piece

    for number, text in enumerate(split_at(format.separator, counted()), 1):
        yield too_long(f"{part.path}, document {number}") if text is None else text
    if number == 1 and text is not None and len(text) == size:
        yield Unseparated(part.path, with_crlf(format.separator) in text)


def with_crlf(separator):
    return separator.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def read_lines(part, format):
    """Yields the lines that begin in this range of bytes."""
    with open_regular(part.path) as file:
        if part.start > 0:
            file.seek(part.start - 1)
            skip_line(file, part.stop)
        while (at := file.tell()) < part.stop:
            if not (line := file.readline(RECORD_BYTES + 1)):
                return  # the file became shorter
            if len(line) > RECORD_BYTES:
                skip_line(file, part.stop)
                line = None
            yield from read_record(line, format, f"{part.path}, at byte {at}")


def skip_line(file, stop):
    """Goes to the start of the next line, or beyond `stop` if no line begins before it."""
    while (at := file.tell()) < stop and (line := file.readline(stop - at)) and not line.endswith(b"\n"):
        pass


def numbered_lines(pieces, path):
    """Yields (where, line); the line is None if it is too long."""
    for number, line in enumerate(split_at(b"\n", pieces), 1):
        if line is None or line.strip():
            yield f"{path}, line {number}", line


def read_packed_lines(part, format):
    for where, line in numbered_lines(blocks(part.path), part.path):
        yield from read_record(line, format, where)


def records(path):
    """Yields (where, value) for the values of JSON that is not JSON lines. Ends with a Bad if it cannot be read on."""
    number, values = 0, json_values(blocks(path), RECORD_BYTES)
    while True:
        number += 1
        where = f"{path}, record {number}"
        try:
            yield where, next(values)
        except StopIteration:
            return
        except ValueError as error:
            yield where, Bad(f"{where}: not JSON ({error})")
            return


def read_records(part, format):
    for where, value in records(part.path):
        yield value if isinstance(value, Bad) else text_of(value, format, where)


def value_of(line, where):
    """The value of a JSON line, or Bad. `line` is None if it is longer than RECORD_BYTES."""
    if line is None:
        return too_long(where)
    try:
        # Bytes that are not valid UTF-8 become lone surrogates, which decode() replaces and counts.
        return parse_json(line.decode("utf-8-sig", errors="surrogateescape").removeprefix("\x1e"))
    except ValueError as error:
        return Bad(f"{where}: not JSON ({error})")


def read_record(line, format, where):
    if line is None or line.strip():
        value = value_of(line, where)
        yield value if isinstance(value, Bad) else text_of(value, format, where)


def text_of(record, format, where):
    """The text of a JSON value, or Bad. Like a table's, a field that is null is empty."""
    if isinstance(record, dict) and format.column in record:
        text = record[format.column]
        return text if isinstance(text, str) else "" if text is None else Bad(
            f"{where}: '{format.column}' is {JSON_NAMES_OF[type(text)]}, not a text (--column NAME chooses)")
    fields = "no object" if not isinstance(record, dict) else "an object without fields" if not record else \
        f"without '{format.column}'; its fields: {', '.join(map(str, record))}"
    return Bad(f"{where}: the record is {fields} (--column NAME chooses, --structured-as-text reads JSON as text)")


JSON_NAMES_OF = {dict: "an object", list: "an array", int: "a number", float: "a number", bool: "true or false"}


# ---- parquet and Arrow files ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def pyarrow_errors(path, kind):
    try:
        import pyarrow
    except ImportError:
        raise missing("pyarrow", path) from None
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise PrepareError(f"{path} cannot be read as {kind}: {(str(error).splitlines() or [''])[0]}") from None


def open_parquet(path):
    with pyarrow_errors(path, "parquet"):
        import pyarrow.parquet
        return pyarrow.parquet.ParquetFile(path)


def open_arrow(path):
    """The schema and the batches of a file in one of Arrow's two formats: with an index at its end, or a stream, which
    datasets writes.
    """
    with pyarrow_errors(path, "arrow"):
        import pyarrow
        file = pyarrow.memory_map(path)
        if file.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(file)
            return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
        file.seek(0)
        reader = pyarrow.ipc.open_stream(file)
        return reader.schema, reader


def check_column(path, column, schema):
    """Refuses a table whose column is not text."""
    from pyarrow import types
    if column not in schema.names:
        raise no_column(path, column, schema.names)
    if schema.names.count(column) > 1:
        raise PrepareError(f"{path} has several columns '{column}'; rename one of them")
    kind = schema.field(column).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    if not any(is_text(value) for is_text in (types.is_string, types.is_large_string, types.is_string_view,
                                              types.is_binary, types.is_large_binary, types.is_binary_view)):
        raise PrepareError(f"column '{column}' of {path} is {kind}, not text; the columns are "
                           f"{', '.join(schema.names)} (--column)")


def no_column(path, column, names):
    return PrepareError(f"{path} has no column '{column}'; it has {', '.join(names)} (--column)")


def plan_table(path, format, kind):
    try:
        file = open_parquet(path) if kind == "parquet" else None
        schema = file.schema_arrow if file else open_arrow(path)[0]
    except PrepareError as error:
        return [Part("bad", str(error), 0, 0, 0)]
    check_column(path, format.column, schema)
    if not file:
        size = os.path.getsize(path)
        return [Part("arrow", path, 0, size, size)]
    parts, start, size = [], 0, 0
    groups = file.metadata.num_row_groups
    for group in range(groups):
        size += file.metadata.row_group(group).total_byte_size
        if size >= PART_BYTES or group == groups - 1:
            parts.append(Part("parquet", path, start, group + 1, size))
            start, size = group + 1, 0
    return parts or [Part("parquet", path, 0, 0, 0)]


def read_parquet(part, format):
    return texts_of(part.path, "parquet", format.column, lambda: open_parquet(part.path).iter_batches(
        1000, range(part.start, part.stop), [format.column]))


def read_arrow(part, format):
    return texts_of(part.path, "arrow", format.column, lambda: open_arrow(part.path)[1])


def texts_of(path, kind, column, batches):
    """Yields the texts of a column as bytes, which decode() checks."""
    try:
        with pyarrow_errors(path, kind):
            import pyarrow
            for batch in batches():
                for text in batch.column(column).cast(pyarrow.large_binary()).to_pylist():
                    yield text or b""
    except PrepareError as error:
        yield Bad(str(error))


# ---- datasets of Hugging Face --------------------------------------------------------------------------------------


def is_saved_dataset(path):
    """True for a directory that datasets' save_to_disk() wrote."""
    return any(os.path.isfile(os.path.join(path, name)) for name in ("dataset_dict.json", "state.json"))


@contextlib.contextmanager
def dataset_errors(path):
    """Makes an error of datasets a PrepareError: they are of many kinds (no network, no such name, no such split)."""
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise missing("datasets", path) from None
    try:
        yield
    except PrepareError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        needs = "; it takes hf:NAME[@REVISION][:CONFIG[:SPLIT]], and a network. The same command continues"
        raise PrepareError(f"datasets cannot load {path} ({type(error).__name__}: {lines[0]})" +
                           needs * path.startswith("hf:")) from None


def import_tqdm():
    """tqdm's bar. It gets a lock, because it would make one whose named semaphore stays when a process is killed."""
    from tqdm import tqdm
    tqdm.set_lock(threading.RLock())
    return tqdm


@functools.lru_cache(maxsize=4)
def open_dataset(path):
    """A data set: of the hub as a stream, which keeps nothing on the disk, or of save_to_disk()."""
    with dataset_errors(path):
        import datasets
        import_tqdm()
        if path.startswith("hf:"):
            name, config, split = (path[3:].split(":") + [None, None])[:3]
            name, _, revision = name.partition("@")
            return datasets.load_dataset(name, config or None, split=split or "train", revision=revision or None,
                                         streaming=True)
        for table in glob.glob(os.path.join(glob.escape(path), "**", "*.arrow"), recursive=True):
            open_regular(table).close()  # refuses pointers of Git LFS
        dataset = datasets.load_from_disk(path)
        if isinstance(dataset, datasets.DatasetDict):
            if "train" not in dataset:
                raise PrepareError(f"{path} has no split 'train'; give the directory of one: {', '.join(dataset)}")
            return dataset["train"]
        return dataset


def pinned(path):
    """The data set of the hub at the commit that its revision is today: all workers, and a run that continues, must read the
    same files.
    """
    name, *rest = path[3:].split(":")
    if os.path.isdir(name):
        return path
    name, _, revision = name.partition("@")
    with dataset_errors(path):
        import huggingface_hub
        return ":".join([f"hf:{name}@{huggingface_hub.HfApi().dataset_info(name, revision=revision or None).sha}", *rest])


def plan_stream(path, format):
    """One part for each file of the data set."""
    path = pinned(path)
    stream = open_dataset(path)
    with dataset_errors(path):
        first, files = next(iter(stream.take(1)), None), stream.num_shards
    if first is not None and format.column not in first:
        raise no_column(path, format.column, first)
    # The bytes only weigh parts against each other if the data set does not say how large it is.
    size = max((stream.info.dataset_size or 0) // files, PART_BYTES)
    return [Part("stream", path, index, index + 1, size) for index in range(files)]


def read_stream(part, format):
    stream = open_dataset(part.path)
    with dataset_errors(part.path):
        for number, row in enumerate(stream.shard(num_shards=stream.num_shards, index=part.start), 1):
            text = row.get(format.column)
            where = f"{part.path}, file {part.start + 1}, row {number}"
            yield text if isinstance(text, bytes) else text_of(row, format, where)


def plan_dataset(path, format):
    if path.startswith("hf:"):
        return plan_stream(path, format)
    dataset = open_dataset(path)
    check_column(path, format.column, dataset.features.arrow_schema)
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
           "packed lines": read_packed_lines, "records": read_records, "parquet": read_parquet, "arrow": read_arrow,
           "dataset": read_dataset, "stream": read_stream, "bad": read_bad}
TEXT_KINDS = {"text", "packed text", "separated"}


def read(part, format):
    """Yields the documents of a part, Bad for those that cannot be read, and Unseparated. After a Bad for the whole
    file, nothing follows.
    """
    try:
        yield from READERS[part.kind](part, format)
    except READ_ERRORS as error:
        yield Bad(unreadable(part.path, error))


def content_of(path):
    try:
        return identify(path, None)
    except READ_ERRORS as error:
        raise PrepareError(unreadable(path, error)) from None


def rows(path):
    """Yields (where, value) for the values of JSON or the rows of a table, which are objects in a sound file."""
    content = content_of(path)
    if content.kind == "refused":
        raise PrepareError(content.why)
    if content.kind in ("parquet", "arrow"):
        found = table_rows(path, content.kind)
    elif content.kind == "records":
        found = records(path)
    else:
        found = ((where, value_of(line, where)) for where, line in numbered_lines(blocks(path), path))
    try:
        for where, value in found:
            if isinstance(value, Bad):
                raise PrepareError(value.message)
            yield where, value
    except READ_ERRORS as error:
        raise PrepareError(unreadable(path, error)) from None


def table_rows(path, kind):
    number = 0
    with pyarrow_errors(path, kind):
        for batch in open_parquet(path).iter_batches(1000) if kind == "parquet" else open_arrow(path)[1]:
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def decode(raw):
    """Returns (text, number of characters replaced because they are not valid Unicode), or (None, 0) for a binary
    document. All texts come through here. A byte order mark at the start is removed.
    """
    if isinstance(raw, str):
        text, replaced = raw.removeprefix("\ufeff"), 0
        try:
            text.encode()
        except UnicodeEncodeError:  # faster than a search in every text
            text, replaced = re.subn("[\ud800-\udfff]", "\ufffd", text)
    else:
        text = raw.decode("utf-8-sig", errors="replace")
        replaced = text.count("\ufffd") - raw.count(b"\xef\xbf\xbd")
    return (None, 0) if "\0" in text or replaced > BINARY_FRACTION * len(text) else (text, replaced)


def texts(inputs, format, out=None):
    """Yields all texts of the inputs that can be read, and prints which files are not valid text, and which settings of
    the format had no effect. Leaves out the file `out` in a directory of the inputs.
    """
    odd = {}  # {what is wrong: [path]}
    kinds, separated = set(), 0
    for name in inputs:
        for path in expand(name):
            if out and path != name and os.path.realpath(path) == os.path.realpath(out):
                continue
            for part in plan(path, format):
                kinds.add(part.kind)
                separated += part.kind == "separated"
                for raw in read(part, format):
                    if isinstance(raw, Bad):
                        raise PrepareError(raw.message)
                    if isinstance(raw, Unseparated):
                        separated -= 1
                        continue
                    text, replaced = decode(raw)
                    if text is None or replaced:
                        paths = odd.setdefault("left out as binary" if text is None else "not valid UTF-8, in part", [])
                        paths += [part.path] * (part.path not in paths[-1:])
                    yield text or ""
    for what, paths in odd.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        print(f"prepare: {what}: {paths[0]}{more}", file=sys.stderr)
    if format.separator is not None and not separated:
        print("prepare: --separator had no effect, because it occurs in no text file", file=sys.stderr)
    if format.column != "text" and kinds <= TEXT_KINDS:
        print(f"prepare: --column {format.column} had no effect, because no input has fields", file=sys.stderr)
