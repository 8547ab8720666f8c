"""Step 1 of `prepare text`: a number of worker processes read, clean and tokenize the inputs in independent chunks. A
chunk's documents go into block files. Its counts go into a file that appears once the blocks are complete.
"""

import contextlib
import dataclasses
import filecmp
import hashlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
import time

import numpy

from . import duplicates, readers, rules
from .shard import new_file, write_atomically
from .tokenizers import END_TOKENS, PrepareError, open_tokenizer

VERSION = 5  # format of a chunk's files; a run does not continue from files of another version
CHUNK_BYTES = 4 << 20
BLOCK_TOKENS = 1 << 24  # a chunk is written in blocks, so memory does not grow with the inputs
HTML = re.compile(r"\s*(<\?xml[^>]*>\s*)?<(!doctype\s+html|html[\s>])", re.IGNORECASE)
DROPPED, TRAIN, VAL = range(3)
FEW_DOCUMENTS = 100  # too few documents for a split by their hashes


@dataclasses.dataclass
class Options:
    """The settings that determine the tokens; the fields are flags of the command line."""
    inputs: list  # (name, weight or None)
    tokenizer: str = "bytes"
    end_token: str | None = None
    column: str = "text"
    separator: str | None = None
    structured_as_text: bool = False
    skip_bad: bool = False
    normalize: str = "none"
    rules: tuple = ()
    dedup: str = "exact"
    decontaminate: tuple = ()
    val_fraction: float = 0.05
    val_split: str = "auto"
    shard_tokens: int = 100_000_000
    max_epochs: float = 1.0

    @property
    def is_mixture(self):
        """True if the inputs have weights: all of them have one, or none has."""
        return self.inputs[0][1] is not None

    def format(self):
        separator = None if self.separator is None else self.separator.encode()
        return readers.Format(self.column, separator, self.structured_as_text)


@dataclasses.dataclass
class Chunk:
    source: int  # index of the mixture's input
    split: int | None  # TRAIN or VAL if the split is already known
    parts: list


class Worker:
    def __init__(self, options, folder, tokenizer=None):
        self.options, self.folder = options, folder
        self.format = options.format()
        self.tokenizer = tokenizer or open_tokenizer(options.tokenizer, options.end_token)
        self.contamination = set().union(*map(contamination_of, options.decontaminate))
        self.markers = {*END_TOKENS, options.end_token} - {None}
        self.counts = None
        self.block, self.block_tokens = [], 0  # documents that no file has yet, and the number of their tokens

    def run(self, index, chunk):
        """Writes the files of a chunk, unless they exist, and returns its counts."""
        done = os.path.join(self.folder, f"{index:08d}.json")
        if os.path.exists(done):
            with open(done) as file:
                return json.load(file) | {"earlier": True}
        started = time.perf_counter()
        self.counts = {"index": index, "blocks": 0, "documents": 0, "tokens": 0, "replaced_documents": 0, "replaced": 0,
                       "replaced_in": [], "dropped": {}, "bad": [], "changed": 0, "bytes": 0, "miscounted": 0,
                       "markers": {}, "separated_files": 0, "unseparated_files": 0, "crlf_files": 0, "html": 0,
                       "tokenizer_seconds": 0.0}
        for part in chunk.parts:
            self.counts["separated_files"] += part.kind == "separated"
            for raw in readers.read(part, self.format):
                if isinstance(raw, readers.Unseparated):
                    self.counts["unseparated_files"] += 1
                    self.counts["crlf_files"] += raw.ends_with_crlf
                else:
                    self.take(raw, part)
        if self.block:
            self.write_block()
        self.counts["seconds"] = time.perf_counter() - started
        write_atomically(done, json.dumps(self.counts).encode())
        return self.counts

    def drop(self, reason, message=None):
        self.counts["dropped"][reason] = self.counts["dropped"].get(reason, 0) + 1
        if message and len(self.counts["bad"]) < 3:
            self.counts["bad"].append(message)

    def take(self, raw, part):
        counts, options = self.counts, self.options
        counts["documents"] += 1
        if isinstance(raw, readers.Bad):
            if not options.skip_bad:
                raise PrepareError(f"{raw.message}; --skip-bad goes on without it")
            return self.drop("unreadable", raw.message)
        text, replaced = readers.decode(raw)
        if text is None:
            return self.drop("binary", part.path)
        if replaced:
            if part.path not in counts["replaced_in"] and len(counts["replaced_in"]) < 3:
                counts["replaced_in"].append(part.path)
            counts["replaced_documents"] += 1
            counts["replaced"] += replaced
        counts["html"] += HTML.match(text) is not None
        for marker in self.markers:
            if marker in text:
                counts["markers"][marker] = counts["markers"].get(marker, 0) + text.count(marker)
        if options.normalize != "none":
            text = rules.normalize(text, options.normalize)
        for name in options.rules:
            text, reason = rules.RULES[name](text)
            if reason:
                return self.drop(reason)
        if not text or text.isspace():
            return self.drop("empty")
        if self.contamination and rules.is_contaminated(text, self.contamination):
            return self.drop("in the evaluation set")
        data = text.encode()
        started = time.perf_counter()
        tokens = self.tokenizer.encode(text)
        counts["tokenizer_seconds"] += time.perf_counter() - started
        counts["tokens"] += len(tokens)
        decoded = self.tokenizer.text_of(tokens.tolist())
        counts["changed"] += decoded != data
        counts["bytes"] += len(data)
        counts["miscounted"] += abs(len(decoded) - len(data))
        minima = duplicates.signature(text) if options.dedup == "minhash" else None
        self.block.append((tokens, len(data), duplicates.document_hash(data), minima))
        self.block_tokens += len(tokens)
        if self.block_tokens >= BLOCK_TOKENS:
            self.write_block()

    def write_block(self):
        tokens, sizes, hashes, minima = zip(*self.block)
        end = numpy.array([self.tokenizer.end_token], tokens[0].dtype)
        arrays = {"tokens": numpy.concatenate([part for document in tokens for part in (end, document)]),
                  "lengths": numpy.array([len(document) + 1 for document in tokens]), "bytes": numpy.array(sizes),
                  "hashes": numpy.frombuffer(b"".join(hashes), "u1").reshape(-1, 16)}
        if self.options.dedup == "minhash":
            arrays["minima"] = numpy.stack(minima)
        path = block_path(self.folder, self.counts["index"], self.counts["blocks"])
        with new_file(path) as file:
            numpy.savez(file, **arrays)
        self.counts["blocks"] += 1
        self.block, self.block_tokens = [], 0


def block_path(folder, index, block):
    return os.path.join(folder, f"{index:08d}-{block:04d}.npz")


def evaluation_set(name):
    """The records of an evaluation set: whole JSON objects, rows of tables, or texts."""
    for path in readers.expand(name):
        if os.path.isfile(path) and readers.content_of(path).kind != "text":
            yield from (value for _, value in readers.rows(path))
        else:
            yield from readers.texts([path], readers.Format())


def contamination_of(name):
    """The n-grams of an evaluation set, which must have some."""
    ngrams = rules.contamination_ngrams(" ".join(strings(document)) for document in evaluation_set(name))
    if not ngrams:
        raise PrepareError(f"--decontaminate {name} has no text of {rules.CONTAMINATION_WORDS} words, so no document "
                           "would be dropped")
    return ngrams


def strings(value):
    """All texts in a JSON value, in order."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)):
            pending += reversed(list(value.values() if isinstance(value, dict) else value))


def work(pipe, options, folder):
    """The main function of a worker process: processes the chunks that arrive in the pipe, and sends back their counts
    or the error.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it at once; the first process reports the reason
    # A worker that outlives the process that started it could write the same chunk as a worker of the next run.
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    here = None
    try:
        while True:
            index, chunk = pipe.recv()
            here = here or Worker(options, folder)
            pipe.send((index, here.run(index, chunk)))
    except EOFError:
        pass
    except Exception as error:
        pipe.send((None, error))


@contextlib.contextmanager
def started_workers(count, options, folder):
    """Starts `count` worker processes and returns the pipes to them."""
    # Not forked, because tokenizers and pyarrow have threads. Plain pipes, because the queues of a process pool need
    # named semaphores, which stay in /dev/shm if all processes are killed at once.
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(there, options, folder), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
            process.join()


def results_of_workers(chunks, options, folder, workers):
    """Yields (index, counts) of each chunk, in the order in which they finish."""
    todo = iter(enumerate(chunks))
    try:
        with started_workers(workers, options, folder) as pipes:
            for pipe in pipes:
                pipe.send(next(todo))
            for _ in chunks:
                ready = multiprocessing.connection.wait(pipes)[0]
                index, result = ready.recv()
                if isinstance(result, Exception):
                    raise result
                if (following := next(todo, None)) is not None:
                    ready.send(following)
                yield index, result
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise PrepareError("a worker was killed, perhaps for lack of memory; the same command continues where this one "
                           "stopped, with fewer --workers if need be") from None


def run_chunks(chunks, options, folder, tokenizer, workers, progress):
    """Runs all chunks and returns their counts in order."""
    if workers == 1:
        here = Worker(options, folder, tokenizer)
        done = ((index, here.run(index, chunk)) for index, chunk in enumerate(chunks))
    else:
        done = results_of_workers(chunks, options, folder, workers)
    results = [None] * len(chunks)
    for index, result in done:
        results[index] = result
        progress.update(sum(part.bytes for part in chunks[index].parts))
    return results


# ---- the plan ------------------------------------------------------------------------------------------------------


def plan_chunks(options, is_output=lambda path: False):
    """Returns the chunks, and True if their place decides the split. Leaves out the outputs of an earlier run in a
    directory of the inputs.
    """
    format = options.format()
    sources = [[part for path in readers.expand(name) if path == name or not is_output(path)
                for part in readers.plan(path, format)] for name, _ in options.inputs]
    for (name, _), parts in zip(options.inputs, sources):
        if not parts:
            raise PrepareError(f"{name} holds only the output of an earlier run")
    parts = [part for source in sources for part in source]
    by_place = options.val_split == "start" or options.val_split == "auto" and len(parts) < FEW_DOCUMENTS and all(
        part.kind in ("text", "bad") for part in parts)
    if by_place and any(part.kind not in ("text", "bad") for part in parts):
        raise PrepareError("--val-split start needs plain text files: elsewhere documents are split by their hashes")
    if not options.is_mixture:  # all inputs are one source
        sources = [parts]
    chunks = []
    for source, parts in enumerate(sources):
        chunk, size, val_bytes = None, 0, 0
        if options.val_fraction > 0:  # any fraction above 0 makes a validation set, of each source
            val_bytes = max(int(options.val_fraction * sum(part.bytes for part in parts)), 1)
        for part in parts:
            pieces = split_by_place(part, val_bytes) if by_place else [(part, None)]
            if len(pieces) > 1:
                refuse_copies(part, (other for other in itertools.chain(*sources) if other is not part))
            for piece, split in pieces:
                val_bytes -= piece.bytes
                if chunk is None or chunk.split != split or size + piece.bytes > CHUNK_BYTES:
                    chunk, size = Chunk(source, split, []), 0
                    chunks.append(chunk)
                chunk.parts.append(piece)
                size += piece.bytes
    return chunks, by_place


def split_by_place(part, val_bytes):
    """Cuts a part at the line where the validation set ends, if that lies inside it."""
    if val_bytes <= 0 or part.bytes == 0:
        return [(part, TRAIN)]
    border = min(part.stop, readers.find_line_end(part.path, part.start + val_bytes - 1))
    pieces = [(part.start, border, VAL), (border, part.stop, TRAIN)]
    return [(dataclasses.replace(part, start=start, stop=stop, bytes=stop - start), split)
            for start, stop, split in pieces if start < stop]


def refuse_copies(part, others):
    """Refuses copies of a file that is cut into validation and training text: they would be training text as a whole."""
    for other in others:
        if (other.kind, other.start) == (part.kind, part.start) and filecmp.cmp(other.path, part.path, shallow=False):
            names = f"{part.path} is an input twice" if other.path == part.path else f"{other.path} is a copy of {part.path}"
            raise PrepareError(f"{names}, so its start would be both validation and training text; leave one of them out")


def states_of_inputs(options, chunks):
    """The sizes and times of all input files by path, also of those in the directories of datasets."""
    paths = {path for name in options.decontaminate for path in readers.expand(name)}
    paths.update(part.path for chunk in chunks for part in chunk.parts)
    for path in list(paths):
        paths.update(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    found = {path: os.stat(path) for path in sorted(filter(os.path.isfile, paths))}
    return {path: (state.st_size, state.st_mtime_ns) for path, state in found.items()}


def fingerprint(options, chunks, tokenizer, states):
    """A hash of everything that determines the chunks' files. All other settings may change when a run continues."""
    flags = [options.column, options.separator, options.structured_as_text, options.skip_bad, options.normalize,
             options.rules, options.dedup == "minhash", options.decontaminate]
    state = hashlib.sha256(json.dumps([VERSION, tokenizer.hash, tokenizer.end_token, flags]).encode())
    for chunk in chunks:
        state.update(repr(chunk).encode())
    for path, found in states.items():
        state.update(repr((path, *found)).encode())
    return state.hexdigest()
