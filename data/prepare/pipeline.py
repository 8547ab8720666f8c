"""`prepare text`: from inputs to shards, in three steps.

1. Workers read, clean and tokenize the inputs in independent chunks (chunks.py).
2. One process goes through the documents in the order of the inputs and decides which ones stay: duplicates, the split,
the mixture.
3. The tokens of those documents are written as shards, which get their final names at the end, all at once.

So the output does not depend on the number of workers. If a run is killed and started again, it continues with the
chunks that are already complete. They lie in WORK in the output directory, take as much space as the shards, and are
deleted when the shards are complete.
"""

import contextlib
import dataclasses
import fcntl
import glob
import os
import shutil
import sys

import numpy

from . import duplicates, outputs, readers, report
from .chunks import DROPPED, TRAIN, VAL, block_path, fingerprint, plan_chunks, run_chunks, states_of_inputs
from .download import size_text
from .shard import MAX_TOKENS, create, write_atomically, write_shards
from .table import write_tokenizer
from .tokenizers import PrepareError, open_tokenizer


# ---- 2. what stays -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Block:
    path: str
    source: int
    verdicts: numpy.ndarray  # DROPPED, TRAIN or VAL for each document


def fractions(hashes, first):
    """Numbers in [0, 1) from eight bytes of the documents' hashes."""
    words = numpy.ascontiguousarray(hashes[:, first:first + 8]).view("<u8")[:, 0]
    return (words >> numpy.uint64(11)) * 2.0**-53


def minima_of(results, folder):
    for result in results:
        for number in range(result["blocks"]):
            with numpy.load(block_path(folder, result["index"], number)) as arrays:
                yield arrays["minima"]


def choose(chunks, results, options, folder, stats):
    seen = duplicates.Duplicates(options.dedup)
    shared, document, blocks = None, 0, []
    if options.dedup == "minhash":
        shared = duplicates.shared_bands(minima_of(results, folder), sum(r["documents"] for r in results), folder)
    for chunk, result in zip(chunks, results):
        for number in range(result["blocks"]):
            path = block_path(folder, result["index"], number)
            with numpy.load(path) as arrays:
                hashes = arrays["hashes"]
                minima = arrays["minima"] if shared is not None else None
                verdicts = numpy.full(len(hashes), chunk.split or TRAIN, numpy.uint8)
                if chunk.split is None:
                    verdicts[fractions(hashes, 0) < options.val_fraction] = VAL
                for i, digest in enumerate(hashes):
                    near = () if shared is None else (minima[i], int(shared[document]))
                    document += 1
                    if reason := seen.reason_to_drop(digest.tobytes(), *near):
                        verdicts[i] = DROPPED
                        stats.drop(reason)
                stats.keep(chunk.source, verdicts, arrays["lengths"], arrays["bytes"])
                blocks.append(Block(path, chunk.source, verdicts))
    return blocks


def epochs_of(options, train_tokens):
    """The number of times that each source's documents are used: the largest mixture in which no source is used more
    than --max-epochs times. Without weights, every source is used once.
    """
    if not options.is_mixture:
        return [1.0]
    weights = [weight for _, weight in options.inputs]
    for (name, _), tokens in zip(options.inputs, train_tokens):
        if tokens == 0:
            raise PrepareError(f"nothing of {name} is left for training, so it cannot have its part of the mixture" +
                               "; --val-fraction 0 makes no validation set" * (options.val_fraction > 0))
    total = min(options.max_epochs * tokens / weight for tokens, weight in zip(train_tokens, weights))
    # Rounded up, the quotient would give the source another epoch, without documents, in in_mixture().
    return [min(weight * total / tokens, options.max_epochs) for tokens, weight in zip(train_tokens, weights)]


def in_mixture(blocks, epochs):
    """Yields (block, epoch) in the order of writing: the sources take turns, each in proportion to its size."""
    queues = [[(epoch, block) for epoch in range(-int(-many // 1)) for block in blocks if block.source == source]
              for source, many in enumerate(epochs)]
    order = sorted(((place + 0.5) / len(queue), source, place) for source, queue in enumerate(queues)
                   for place in range(len(queue)))
    for _, source, place in order:
        yield queues[source][place][1], queues[source][place][0]


# ---- 3. shards -----------------------------------------------------------------------------------------------------


def taken(block, split, epoch, epochs, hashes):
    """True for each document of the block that a split takes. A fraction of an epoch takes only some of them."""
    documents = block.verdicts == split
    if split == TRAIN and epochs[block.source] < epoch + 1:
        documents &= fractions(hashes, 8) < epochs[block.source] - epoch
    return documents


def training_tokens(blocks, epochs):
    """The number of tokens that the mixture takes of each source, and that of documents to choose from."""
    tokens, documents = [0] * len(epochs), [0] * len(epochs)
    for block, epoch in in_mixture(blocks, epochs):
        with numpy.load(block.path) as arrays:
            tokens[block.source] += int(arrays["lengths"][taken(block, TRAIN, epoch, epochs, arrays["hashes"])].sum())
        documents[block.source] += 0 if epoch else int((block.verdicts == TRAIN).sum())
    return tokens, documents


def tokens_of(blocks, split, epochs, tokenizer):
    """Yields the tokens of a split and their bytes of text, block by block."""
    for block, epoch in in_mixture(blocks, epochs if split == TRAIN else [1.0] * len(epochs)):
        if not (block.verdicts == split).any():
            continue
        with numpy.load(block.path) as arrays:
            documents = taken(block, split, epoch, epochs, arrays["hashes"])
            tokens = arrays["tokens"][numpy.repeat(documents, arrays["lengths"])]
            if len(tokens):
                yield tokens, tokenizer.sizes_in_documents(tokens, arrays["lengths"][documents], arrays["bytes"][documents])


def write_split(blocks, split, name, epochs, options, tokenizer, folder):
    def path_of(i):
        return os.path.join(folder, f"{name}_{i:06d}.bin")

    return write_shards(tokens_of(blocks, split, epochs, tokenizer), path_of, tokenizer=tokenizer.name,
                        vocab=tokenizer.vocab, end_token=tokenizer.end_token, shard_tokens=options.shard_tokens,
                        extra=tokenizer.sidecar())


def publish(folder, out, tokenizer):
    """Moves the finished files into place. Removes those of an earlier run first, so a new run with fewer shards leaves
    none behind for a pattern to match. The report comes first, because it proves that the other files are prepare's.
    """
    for path in outputs.own_files(out, tokenizer.content):
        os.remove(path)
    for name in sorted(os.listdir(folder), key=lambda name: (name != "report.json", not name.endswith(".json"), name)):
        os.replace(os.path.join(folder, name), os.path.join(out, name))


# ---- the whole pipeline ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder):
    with create(os.path.join(folder, "lock")) as file:
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
    if not 0 < options.max_epochs < float("inf"):
        raise PrepareError(f"--max-epochs {options.max_epochs} is not a number above 0")


def remove_work(work):
    """Deletes the working files of a run whose output is in place. The mark goes last: if this is killed,
    finish_earlier_run() completes it.
    """
    outputs.clear(work, "done")
    outputs.remove(work)


def finish_earlier_run(work, mark, overwrite):
    """Returns True if an earlier run of exactly these chunks was killed after its output was in place."""
    try:
        with open(os.path.join(work, "done")) as file:
            same = file.read() == mark
    except FileNotFoundError:
        return False
    if same and not overwrite:
        remove_work(work)
        return True
    outputs.clear(work, "lock")
    return False


def begin(work, mark, overwrite, own):
    """Creates the work directory for exactly these chunks. Returns the number of chunks that a stopped run has
    completed, or None. `own`: the files of an earlier run.
    """
    plan, chunks = os.path.join(work, "plan"), os.path.join(work, "chunks")
    done = len(glob.glob(os.path.join(glob.escape(chunks), "*.json")))
    stopped = os.path.exists(plan)
    if stopped:
        with open(plan) as file:
            if file.read() == mark:
                return done
        if done and not overwrite:
            raise PrepareError(f"{work} holds the chunks of a stopped run with other flags or inputs; give the flags of "
                               "that run to continue it, or drop it with --overwrite")
    if not overwrite and (old := list(filter(outputs.is_shard, own))):
        if not stopped:
            outputs.remove(work)
        raise PrepareError(f"{os.path.dirname(work)} already holds shards ({os.path.basename(old[0])}); choose another "
                           "--out or replace them with --overwrite")
    outputs.clear(work, "lock")
    os.makedirs(chunks)
    write_atomically(plan, mark.encode())
    return None


def say_disk(options, tokenizer, out):
    """Says how much disk a known data set needs: the shards, and as much in WORK until they are complete. Its texts are
    streamed.
    """
    tokens = sum(readers.TOKENS.get(name, 0) for name, _ in options.inputs)
    if tokens:
        shards = tokens * (4.5 if options.tokenizer == "bytes" else 1) * (2 if tokenizer.vocab <= 1 << 16 else 4)
        print(f"prepare: the shards take about {size_text(shards)}, and {os.path.join(out, outputs.WORK)} as much until they "
              f"are complete; {size_text(shutil.disk_usage(out).free)} of disk are free", file=sys.stderr)


def prepare(options, out, workers=1, overwrite=False):
    """Writes the shards and the report into `out` and returns the report, or None if an earlier run wrote them."""
    check(options)
    tokenizer = open_tokenizer(options.tokenizer, options.end_token)
    chunks, by_place = plan_chunks(options, lambda path: outputs.is_output(path, out))
    workers = min(workers, len(chunks))
    work, own = os.path.join(out, outputs.WORK), outputs.own_files(out, tokenizer.content)
    outputs.check_work(work)
    os.makedirs(work, exist_ok=True)
    with locked(work):
        states = states_of_inputs(options, chunks)
        mark = fingerprint(options, chunks, tokenizer, states)
        if finish_earlier_run(work, mark, overwrite):
            print(f"prepare: {out} is already complete", file=sys.stderr)
            return None
        outputs.require_one_tokenizer(out, tokenizer.sidecar(), tokenizer.content is not None, own)
        done = begin(work, mark, overwrite, own)
        folder, shards = os.path.join(work, "chunks"), os.path.join(work, "shards")
        if done is not None:
            print(f"prepare: continues with {done} of {len(chunks)} chunks done", file=sys.stderr)
        else:
            say_disk(options, tokenizer, out)
        outputs.clear_folder(work, "shards")
        os.makedirs(shards)
        parts = [part for chunk in chunks for part in chunk.parts]
        stats = report.Report(options, tokenizer, workers, by_place, parts)
        with report.progress_bar(sum(part.bytes for part in parts)) as progress:
            results = run_chunks(chunks, options, folder, tokenizer, workers, progress)
        for result in results:
            stats.add_chunk(result)
        stats.changed_files = sorted(path for path, _ in states.items() ^ states_of_inputs(options, chunks).items())
        blocks = choose(chunks, results, options, folder, stats)
        epochs = epochs_of(options, stats.train_tokens)
        stats.check_splits()
        if options.is_mixture:
            stats.check_mixture(*training_tokens(blocks, epochs))
        for split, name in ((VAL, "val"), (TRAIN, "train")):
            if stats.documents_of[name]:
                stats.add_shards(name, write_split(blocks, split, name, epochs, options, tokenizer, shards))
        write_tokenizer(tokenizer, shards, stats.table_is_exact())
        stats.write(shards)
        publish(shards, out, tokenizer)
        os.replace(os.path.join(work, "plan"), os.path.join(work, "done"))
        remove_work(work)
    return stats
