"""`prepare text`: from inputs to shards, in three steps.

1. Chunks of the inputs are read, cleaned and tokenized by the workers, each chunk by itself, into files of their own.
2. One process goes over the documents in the inputs' order and decides what stays: duplicates, the split, the mixture.
3. The tokens of what stays are written as shards, which get their names in the end, all at once.

So the output does not depend on the number of workers. The chunks of a run that was killed are there when it is started
again: it goes on where it was. They lie in WORK in the output directory, take as much space as the shards, and go when
the shards are complete.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import threading
import time

import numpy

from . import duplicates, readers, report, rules
from .shard import MAX_TOKENS, write_shards
from .tokenizers import PrepareError, open_tokenizer, table_bytes

WORK = ".prepare"
VERSION = 1  # of what a chunk's files hold and how they come about: a run does not go on with those of another one
CHUNK_BYTES = 4 << 20
BLOCK_TOKENS = 1 << 24  # a chunk is written in blocks, so that memory does not grow with the inputs
DROPPED, TRAIN, VAL = range(3)
FEW_DOCUMENTS = 100  # too few for a split by their hashes


@dataclasses.dataclass
class Options:
    """What decides which tokens come out; the fields are flags of the command line."""
    inputs: list  # (name, weight or None)
    tokenizer: str = "bytes"
    end_token: str | None = None
    column: str = "text"
    separator: str | None = None
    skip_bad: bool = False
    normalize: str = "none"
    rules: tuple = ()
    dedup: str = "exact"
    decontaminate: tuple = ()
    val_fraction: float = 0.05
    val_split: str = "auto"
    shard_tokens: int = 100_000_000
    max_epochs: float = 1.0

    def format(self):
        separator = None if self.separator is None else self.separator.encode()
        return readers.Format(self.column, separator)


@dataclasses.dataclass
class Chunk:
    source: int  # which input of a mixture
    split: int | None  # TRAIN or VAL where that is known
    parts: list


# ---- 1. chunks, in the workers -------------------------------------------------------------------------------------


class Worker:
    def __init__(self, options, folder, tokenizer=None):
        self.options, self.folder = options, folder
        self.format = options.format()
        self.tokenizer = tokenizer or open_tokenizer(options.tokenizer, options.end_token)
        self.contamination = rules.contamination_ngrams(
            " ".join(strings(document)) for name in options.decontaminate for document in evaluation_set(name))
        self.counts = self.block = None

    def run(self, index, chunk):
        """Writes the files of a chunk, unless they are there, and returns what it counted."""
        done = os.path.join(self.folder, f"{index:08d}.json")
        if os.path.exists(done):
            with open(done) as file:
                return json.load(file)
        started = time.perf_counter()
        self.counts = {"index": index, "blocks": 0, "documents": 0, "replaced_documents": 0, "replaced": 0,
                       "dropped": {}, "bad": [], "tokenizer_seconds": 0.0}
        self.block = []
        for part in chunk.parts:
            for raw in readers.read(part, self.format):
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
        text, replaced = rules.decode(raw)
        if text is None:
            return self.drop("binary", part.path)
        if replaced:
            counts["replaced_documents"] += 1
            counts["replaced"] += replaced
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
        minima = duplicates.signature(text) if options.dedup == "minhash" else None
        self.block.append((tokens, len(data), duplicates.document_hash(data), minima))
        self.block_tokens = len(tokens) + (self.block_tokens if len(self.block) > 1 else 0)
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
        with open(path + ".tmp", "wb") as file:
            numpy.savez(file, **arrays)
        os.replace(path + ".tmp", path)
        self.counts["blocks"] += 1
        self.block = []


def block_path(folder, index, block):
    return os.path.join(folder, f"{index:08d}-{block:04d}.npz")


def write_atomically(path, data):
    with open(path + ".tmp", "wb") as file:
        file.write(data)
    os.replace(path + ".tmp", path)


def evaluation_set(name):
    """The records of an evaluation set: whole JSON objects, or texts."""
    for path in readers.expand(name):
        if path.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
            with readers.open_unpacked(path) as file:
                for line in readers.split_stream(file, b"\n"):
                    if line.strip():
                        yield json.loads(line)
            continue
        for part in readers.plan(path, readers.Format()):
            for raw in readers.read(part, readers.Format()):
                if isinstance(raw, readers.Bad):
                    raise PrepareError(raw.message)
                yield rules.decode(raw)[0] or ""


def strings(value):
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


worker = None  # of this process


def start_worker(options, folder):
    global worker
    # A worker that outlives the process that started it would wait for work for ever.
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    worker = Worker(options, folder)


def run_chunk(index, chunk):
    return worker.run(index, chunk)


def run_chunks(chunks, options, folder, tokenizer, workers, progress):
    """What each chunk counted, in order."""
    results = [None] * len(chunks)
    if workers == 1:
        here = Worker(options, folder, tokenizer)
        for index, chunk in enumerate(chunks):
            results[index] = here.run(index, chunk)
            progress.update(sum(part.bytes for part in chunk.parts))
        return results
    # Not forked: tokenizers and pyarrow have threads.
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker,
                                                (options, folder)) as pool:
        try:
            futures = {pool.submit(run_chunk, index, chunk): index for index, chunk in enumerate(chunks)}
            for future in concurrent.futures.as_completed(futures):
                results[futures[future]] = future.result()
                progress.update(sum(part.bytes for part in chunks[futures[future]].parts))
        except concurrent.futures.process.BrokenProcessPool:
            raise PrepareError("a worker was killed, by lack of memory perhaps; the same command goes on where this "
                               "one stopped, with fewer --workers if need be") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


# ---- the plan ------------------------------------------------------------------------------------------------------


def plan_chunks(options):
    format = options.format()
    sources = [[part for path in readers.expand(name) for part in readers.plan(path, format)]
               for name, _ in options.inputs]
    parts = [part for source in sources for part in source]
    by_place = options.val_split == "start" or options.val_split == "auto" and len(parts) < FEW_DOCUMENTS and all(
        part.kind == "text" for part in parts)
    if by_place and any(part.kind != "text" for part in parts):
        raise PrepareError("--val-split start needs plain text files: elsewhere documents are split by their hashes")
    val_bytes = 0
    if by_place and options.val_fraction > 0:  # any fraction above 0 makes a validation set
        val_bytes = max(int(options.val_fraction * sum(part.bytes for part in parts)), 1)
    if options.inputs[0][1] is None:  # no mixture: all inputs are one source
        sources = [parts]
    chunks = []
    for source, parts in enumerate(sources):
        chunk, size = None, 0
        for part in parts:
            for piece, split in split_by_place(part, val_bytes) if by_place else [(part, None)]:
                val_bytes -= piece.bytes
                if chunk is None or chunk.split != split or size + piece.bytes > CHUNK_BYTES:
                    chunk, size = Chunk(source, split, []), 0
                    chunks.append(chunk)
                chunk.parts.append(piece)
                size += piece.bytes
    return chunks, by_place


def split_by_place(part, val_bytes):
    """The part, or what lies before and behind the line where the validation set ends."""
    if val_bytes <= 0 or part.bytes == 0:
        return [(part, TRAIN)]
    border = min(part.stop, readers.find_line_end(part.path, part.start + val_bytes - 1))
    pieces = [(part.start, border, VAL), (border, part.stop, TRAIN)]
    return [(dataclasses.replace(part, start=start, stop=stop, bytes=stop - start), split)
            for start, stop, split in pieces if start < stop]


def fingerprint(options, chunks, tokenizer):
    """Of everything that the files of the chunks follow from; all else may change when a run goes on."""
    flags = [options.column, options.separator, options.skip_bad, options.normalize, options.rules,
             options.dedup == "minhash", options.decontaminate]
    state = hashlib.sha256(json.dumps([VERSION, tokenizer.hash, flags]).encode())
    files = {path for name in options.decontaminate for path in readers.expand(name)}
    for chunk in chunks:
        state.update(repr(chunk).encode())
        files.update(part.path for part in chunk.parts)
    for path in sorted(filter(os.path.isfile, files)):
        found = os.stat(path)
        state.update(repr((path, found.st_size, found.st_mtime_ns)).encode())
    return state.hexdigest()


# ---- 2. what stays -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Block:
    path: str
    source: int
    verdicts: numpy.ndarray  # DROPPED, TRAIN or VAL of each document


def fractions(hashes, first):
    """Numbers in [0, 1) from eight bytes of the documents' hashes."""
    words = numpy.ascontiguousarray(hashes[:, first:first + 8]).view("<u8")[:, 0]
    return (words >> numpy.uint64(11)) * 2.0**-53


def choose(chunks, results, options, folder, stats):
    seen = duplicates.Duplicates(options.dedup)
    blocks = []
    for chunk, result in zip(chunks, results):
        for number in range(result["blocks"]):
            path = block_path(folder, result["index"], number)
            with numpy.load(path) as arrays:
                hashes = arrays["hashes"]
                minima = arrays["minima"] if options.dedup == "minhash" else [None] * len(hashes)
                verdicts = numpy.full(len(hashes), chunk.split or TRAIN, numpy.uint8)
                if chunk.split is None:
                    verdicts[fractions(hashes, 0) < options.val_fraction] = VAL
                for i, digest in enumerate(hashes):
                    if reason := seen.reason_to_drop(digest.tobytes(), minima[i]):
                        verdicts[i] = DROPPED
                        stats.drop(reason)
                stats.keep(chunk.source, verdicts, arrays["lengths"], arrays["bytes"])
                blocks.append(Block(path, chunk.source, verdicts))
    return blocks


def epochs_of(options, train_tokens):
    """How often the documents of each source are taken: the largest mixture in which none is taken more often than
    --max-epochs. Without weights, all of them once."""
    weights = [weight for _, weight in options.inputs]
    if weights[0] is None:
        return [1.0]
    for (name, _), tokens in zip(options.inputs, train_tokens):
        if tokens == 0:
            raise PrepareError(f"nothing of {name} is left for training, so it cannot have its part of the mixture")
    total = min(options.max_epochs * tokens / weight for tokens, weight in zip(train_tokens, weights))
    return [weight * total / tokens for tokens, weight in zip(train_tokens, weights)]


def in_mixture(blocks, epochs):
    """(block, which epoch) in the order in which they are written: the sources in turn, all at the same rate."""
    queues = [[(epoch, block) for epoch in range(-int(-many // 1)) for block in blocks if block.source == source]
              for source, many in enumerate(epochs)]
    order = sorted(((place + 0.5) / len(queue), source, place) for source, queue in enumerate(queues)
                   for place in range(len(queue)))
    for _, source, place in order:
        yield queues[source][place][1], queues[source][place][0]


# ---- 3. shards -----------------------------------------------------------------------------------------------------


def tokens_of(blocks, split, epochs):
    """The tokens of a split, block by block."""
    for block, epoch in in_mixture(blocks, epochs if split == TRAIN else [1.0] * len(epochs)):
        taken = block.verdicts == split
        if not taken.any():
            continue
        with numpy.load(block.path) as arrays:
            if split == TRAIN and epochs[block.source] < epoch + 1:  # a part of an epoch: some of the documents
                taken &= fractions(arrays["hashes"], 8) < epochs[block.source] - epoch
            yield arrays["tokens"][numpy.repeat(taken, arrays["lengths"])]


def write_split(blocks, split, name, epochs, options, tokenizer, folder):
    return write_shards(tokens_of(blocks, split, epochs), lambda i: os.path.join(folder, f"{name}_{i:06d}.bin"),
                        tokenizer=tokenizer.name, vocab=tokenizer.vocab, end_token=tokenizer.end_token,
                        shard_tokens=options.shard_tokens,
                        extra={"end_token": tokenizer.end_token, "tokenizer_hash": tokenizer.hash})


def old_shards(out):
    return [path for split in ("train", "val") for path in
            glob.glob(os.path.join(glob.escape(out), f"{split}_[0-9][0-9][0-9][0-9][0-9][0-9].bin*"))]


def publish(folder, out):
    """A new run that writes fewer shards must not leave old ones for a pattern to find."""
    for path in old_shards(out):
        os.remove(path)
    for name in sorted(os.listdir(folder), key=lambda name: (not name.endswith(".json"), name)):
        os.replace(os.path.join(folder, name), os.path.join(out, name))


# ---- the whole -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder):
    with open(os.path.join(folder, "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PrepareError(f"another prepare is at work in {os.path.dirname(folder)}") from None
        yield


def check(options):
    if not 0 <= options.val_fraction < 1:
        raise PrepareError(f"--val-fraction {options.val_fraction} is not in [0, 1)")
    weights = [weight for _, weight in options.inputs]
    if None in weights and any(weights):
        raise PrepareError("give each input a weight (INPUT@WEIGHT), or none of them")
    if not 1 <= options.shard_tokens <= MAX_TOKENS:
        raise PrepareError(f"--shard-tokens {options.shard_tokens} is not in [1, {MAX_TOKENS}]")
    if options.max_epochs <= 0:
        raise PrepareError(f"--max-epochs {options.max_epochs} is not above 0")


def begin(work, mark, overwrite):
    """Makes the work directory of these very chunks. Returns how many a run that was stopped has done, or None."""
    plan, chunks = os.path.join(work, "plan"), os.path.join(work, "chunks")
    done = len(glob.glob(os.path.join(glob.escape(chunks), "*.json")))
    if os.path.exists(plan):
        with open(plan) as file:
            if file.read() == mark:
                return done
        if done and not overwrite:
            raise PrepareError(f"{work} holds what is done of a run with other flags or inputs, which was stopped; go on "
                               "with that one, or drop it with --overwrite")
    elif not overwrite and (old := old_shards(os.path.dirname(work))):
        raise PrepareError(f"{os.path.dirname(work)} already holds shards ({os.path.basename(old[0])}); choose another "
                           "--out or replace them with --overwrite")
    for name in os.listdir(work):
        if name != "lock":
            path = os.path.join(work, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    os.makedirs(chunks)
    write_atomically(plan, mark.encode())
    return None


def prepare(options, out, workers=1, overwrite=False):
    """Writes the shards and the report into `out` and returns the report."""
    check(options)
    tokenizer = open_tokenizer(options.tokenizer, options.end_token)
    chunks, by_place = plan_chunks(options)
    work = os.path.join(out, WORK)
    os.makedirs(work, exist_ok=True)
    with locked(work):
        done = begin(work, fingerprint(options, chunks, tokenizer), overwrite)
        folder, shards = os.path.join(work, "chunks"), os.path.join(work, "shards")
        if done is not None:
            print(f"prepare: goes on with {done} of {len(chunks)} chunks done", file=sys.stderr)
        shutil.rmtree(shards, ignore_errors=True)
        os.makedirs(shards)
        stats = report.Report(options, tokenizer, workers, by_place)
        with report.progress_bar(sum(part.bytes for chunk in chunks for part in chunk.parts)) as progress:
            results = run_chunks(chunks, options, folder, tokenizer, workers, progress)
        for result in results:
            stats.add_chunk(result)
        blocks = choose(chunks, results, options, folder, stats)
        epochs = epochs_of(options, stats.train_tokens)
        stats.check_splits()
        for split, name in ((VAL, "val"), (TRAIN, "train")):
            if stats.documents_of[name]:
                stats.add_shards(name, write_split(blocks, split, name, epochs, options, tokenizer, shards))
        table = table_bytes(tokenizer)
        if table is None:
            print("prepare: a token is too long for llm.c's tokenizer file, so there is none", file=sys.stderr)
        else:
            write_atomically(os.path.join(shards, "tokenizer.bin"), table)
        if hasattr(tokenizer, "content"):
            write_atomically(os.path.join(shards, "tokenizer.json"), tokenizer.content)
        stats.write(shards)
        publish(shards, out)
        shutil.rmtree(work)
    return stats
