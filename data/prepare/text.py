"""`prepare text`: plain text files to train and val shards. Every file is a document and starts with the end token.

The first --val-fraction of the bytes is the validation set, the rest the training set. Where the border falls inside a
file, it moves to the next end of a line, and the rest of the file is a document of its own. Text is read and tokenized
in pieces, so memory does not grow with it.
"""

import glob
import itertools
import os

from .shard import MAX_TOKENS, token_array, write_shards
from .tokenizers import PrepareError

PIECE_BYTES = 1 << 20


def find_line_end(path, offset):
    """The place after the first newline at or after `offset`, or the end of the file."""
    with open(path, "rb") as file:
        file.seek(offset)
        file.readline()
        return file.tell()


def split_files(paths, val_bytes):
    """Ranges (path, start, stop) of the documents of the validation and of the training set."""
    validation, training = [], []
    for path in paths:
        size = os.path.getsize(path)
        border = min(size, find_line_end(path, val_bytes)) if val_bytes > 0 else 0
        if border > 0:
            validation.append((path, 0, border))
        if border < size:
            training.append((path, border, size))
        val_bytes -= border
    return validation, training


def last_safe_cut(text):
    """The last place before a newline that follows a visible ASCII character (0: none): every pre-tokenizer cuts there,
    so the two parts tokenize as the whole does."""
    at = text.rfind(b"\n", 1)
    while at > 0 and not 0x21 <= text[at - 1] <= 0x7e:
        at = text.rfind(b"\n", 1, at)
    return max(at, 0)


def read_pieces(path, start, stop):
    """The bytes of a range in pieces of about PIECE_BYTES that can be tokenized one by one."""
    with open(path, "rb") as file:
        file.seek(start)
        pending, left = b"", stop - start
        while left > 0:
            data = file.read(min(left, PIECE_BYTES))
            if not data:
                raise PrepareError(f"{path} became shorter while it was read")
            pending, left = pending + data, left - len(data)
            cut = last_safe_cut(pending) if left > 0 else len(pending)
            if cut > 0:
                yield pending[:cut]
                pending = pending[cut:]


def tokenize(tokenizer, documents):
    """Token chunks of the documents: the end token, then the text."""
    for document in documents:
        start = [tokenizer.end_token]
        for piece in read_pieces(*document):
            yield token_array(tokenizer.vocab, itertools.chain(start, tokenizer.encode(piece)))
            start = []


def remove_old_shards(out, split, overwrite):
    """A new run that writes fewer shards must not leave old ones for a pattern to find."""
    old = glob.glob(os.path.join(glob.escape(out), f"{split}_[0-9][0-9][0-9][0-9][0-9][0-9].bin*"))
    if old and not overwrite:
        raise PrepareError(f"{out} already holds {split} shards ({os.path.basename(old[0])}); choose another --out or "
                           "replace them with --overwrite")
    for path in old:
        os.remove(path)


def prepare_text(files, out, tokenizer, val_fraction, shard_tokens, overwrite=False):
    for path in files:
        if not os.path.isfile(path):
            raise PrepareError(f"{path} is not a file")
    if not 0 <= val_fraction < 1:
        raise PrepareError(f"--val-fraction {val_fraction} is not in [0, 1)")
    if not 1 <= shard_tokens <= MAX_TOKENS:
        raise PrepareError(f"--shard-tokens {shard_tokens} is not in [1, {MAX_TOKENS}]")
    total = sum(map(os.path.getsize, files))
    if total == 0:
        raise PrepareError("the files are empty")
    # At least one byte, so that any fraction above 0 makes a validation set.
    val_bytes = max(int(total * val_fraction), 1) if val_fraction > 0 else 0
    validation, training = split_files(files, val_bytes)
    if not training:
        raise PrepareError(f"--val-fraction {val_fraction} of this text leaves no line for training")
    os.makedirs(out, exist_ok=True)
    for split in ("train", "val"):
        remove_old_shards(out, split, overwrite)
    for split, documents in (("val", validation), ("train", training)):
        if not documents:
            continue
        sidecars = write_shards(tokenize(tokenizer, documents), lambda i: os.path.join(out, f"{split}_{i:06d}.bin"),
                                tokenizer=tokenizer.name, vocab=tokenizer.vocab, end_token=tokenizer.end_token,
                                shard_tokens=shard_tokens)
        print(f"{os.path.join(out, split)}_*.bin: {sum(s['tokens'] for s in sidecars)} tokens, "
              f"{sum(s['documents'] for s in sidecars)} documents, {len(sidecars)} shards")
