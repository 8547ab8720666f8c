"""`prepare inspect`, `validate` and `merge`: show shards, check them, and combine several into others."""

import glob
import hashlib
import json
import os
import re

import numpy

from . import outputs
from .report import plural
from .shard import open_regular, read_shard, write_atomically, write_shards
from .table import read_table
from .tokenizers import PrepareError, open_tokenizer


PART = 1 << 20  # tokens that are handled at once
OF_ONE_SHARD = ("max_token", "documents", "tokens", "bytes", "checksum")  # fields of a sidecar


def open_shard(path):
    """Returns the tokens as a numpy array, and the sidecar."""
    try:
        tokens, sidecar = read_shard(path)
    except ValueError as error:
        raise PrepareError(error) from None
    return numpy.frombuffer(tokens, f"u{tokens.itemsize}"), sidecar


def split_of(path):
    """"val" or "train" if the name of a shard has that word, as fineweb_val_000000.bin has, but not medieval.bin."""
    name = os.path.basename(path).lower()
    for split, word in (("val", "val(id(ation)?)?"), ("train", "train(ing)?")):
        if re.search(rf"(?<![a-z]){word}(?![a-z])", name):
            return split
    return None


def check_tokenizer(path, sidecar, tokenizer):
    """Refuses a tokenizer that did not make the shard."""
    for name in ("tokenizer_hash", "tokenizer", "vocab"):
        own = getattr(tokenizer, {"tokenizer_hash": "hash", "tokenizer": "name", "vocab": "vocab"}[name])
        if name in sidecar and sidecar[name] != own:
            raise PrepareError(f"{path} was made with another tokenizer: its sidecar says {name} {sidecar[name]}, this "
                               f"one ({tokenizer.name}) has {own}")
        if name == "tokenizer_hash" and name in sidecar:
            return  # the rest are only names


def check_same_tokenizer(path, sidecar, first_path, first):
    for name in ("tokenizer", "vocab", "tokenizer_hash", "end_token"):
        if sidecar.get(name) != first.get(name):
            raise PrepareError(f"{path} and {first_path} have different tokenizers: {name} {sidecar.get(name)} and "
                               f"{first.get(name)}")


def table_of_shard(path, sidecar):
    """The tokenizer.bin next to a shard, or None. Refuses that of another tokenizer."""
    name = os.path.join(os.path.dirname(path), "tokenizer.bin")
    if not os.path.exists(name):
        return None
    table = read_table(name)
    for what, found in (("tokenizer_hash", table.hash), ("vocab", len(table.pieces)), ("end_token", table.end_token)):
        if found and sidecar.get(what, found) != found:
            raise PrepareError(f"{name} is of another tokenizer than {path}: its {what} is {found}, not {sidecar[what]}; "
                               "write the right one with prepare table")
    return table


def check_tables(paths, sidecar):
    """Refuses the tokenizer.bin of another tokenizer next to any of the shards, all of which have the sidecar's."""
    for path in {os.path.dirname(path): path for path in paths}.values():
        table_of_shard(path, sidecar)


def pieces_of(path, sidecar, name):
    """The bytes of each token, from the tokenizer `name` or the table next to the shard; None if unknown."""
    if name:
        tokenizer = open_tokenizer(name)
        check_tokenizer(path, sidecar, tokenizer)
        return tokenizer.pieces
    table = table_of_shard(path, sidecar)
    return table.pieces if table else None


def documents_of(tokens, end_token):
    """Yields slices of the documents that begin in the shard, each with its end token, which comes first."""
    starts = numpy.flatnonzero(tokens == end_token)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(tokens)])]


class Digests:
    """The hashes of the documents of shards in order. A document may continue in the next shard."""

    def __init__(self):
        self.finished, self.last = set(), None

    def add(self, tokens, end_token):
        documents = documents_of(tokens, end_token)
        if self.last:
            self.last.update(tokens[:documents[0].start if documents else len(tokens)].tobytes())
        for where in documents:
            self.finish()
            self.last = hashlib.blake2b(tokens[where].tobytes(), digest_size=16)

    def finish(self):
        if self.last:
            self.finished.add(self.last.digest())
        return self.finished


def inspect(paths, tokenizer=None, documents=2, characters=300):
    for path in paths:
        tokens, sidecar = open_shard(path)
        pieces = pieces_of(path, sidecar, tokenizer)
        print(f"{path}: {len(tokens)} tokens of {tokens.itemsize} bytes, ids {tokens.min()} to {tokens.max()}"
              if len(tokens) else f"{path}: no tokens")
        print("  " + (json.dumps(sidecar) if sidecar else "no sidecar"))
        for where in documents_of(tokens, sidecar["end_token"])[:documents] if "end_token" in sidecar else []:
            shown = tokens[where][1:characters + 1]
            text = b"".join(pieces[i] for i in shown).decode(errors="replace") if pieces else str(shown.tolist())
            print(f"  document at {where.start}, {where.stop - where.start} tokens: {text[:characters]!r}")


def validate(paths, tokenizer=None):
    """Prints a line for each shard. Raises an error if a shard is wrong or shards do not fit together."""
    given = open_tokenizer(tokenizer) if tokenizer else None
    first, digests = None, {"train": Digests(), "val": Digests()}
    for path in paths:
        tokens, sidecar = open_shard(path)
        if not sidecar:
            raise PrepareError(f"{path} has no sidecar: there is nothing to check its tokens against")
        if given:
            check_tokenizer(path, sidecar, given)
        first = first or (path, sidecar)
        check_same_tokenizer(path, sidecar, *first)
        found = {"tokens": len(tokens), "max_token": int(tokens.max()) if len(tokens) else -1}
        if "end_token" in sidecar:
            found["documents"] = int((tokens == sidecar["end_token"]).sum())
        for name, value in found.items():
            if sidecar.get(name, value) != value:
                raise PrepareError(f"{path}: its sidecar says {name} {sidecar[name]}, it has {value}")
        if found["max_token"] >= sidecar.get("vocab", found["max_token"] + 1):
            raise PrepareError(f"{path}: token {found['max_token']} is not below the vocabulary of {sidecar['vocab']}")
        print(f"{path}: {found['tokens']} tokens, checksum and sidecar agree")
        if "end_token" in sidecar:
            digests[split_of(path) or "train"].add(tokens, sidecar["end_token"])
    check_tables(paths, first[1])
    both = digests["train"].finish() & digests["val"].finish()
    if both:
        raise PrepareError(f"training and validation shards have {plural(len(both), 'document')} in common")


def parts_of(path, tokens, sidecar):
    """Yields the tokens of a shard in parts, with their bytes of text if the sidecar gives those of the shard: the
    bytes in the tokenizer.bin next to the shard, or, if their sum is not the sidecar's, the mean for all tokens.
    """
    places = [slice(at, at + PART) for at in range(0, len(tokens), PART)]
    table = table_of_shard(path, sidecar)
    sizes = table.sizes() if table else numpy.empty(0)
    exact = len(sizes) > sidecar.get("max_token", len(sizes)) and \
        sum(int(sizes[tokens[here]].sum()) for here in places) == sidecar.get("bytes")
    for here in places:
        part = tokens[here]
        if "bytes" not in sidecar:
            yield part
        elif exact:
            yield part, sizes[part]
        else:
            ends = numpy.arange(here.start, here.start + len(part) + 1)
            yield part, numpy.diff(ends * sidecar["bytes"] // len(tokens))


def tokenizer_files(paths):
    """The tokenizer's files next to the shards, as {name: content}. All directories must have the same."""
    files = {}
    for folder in sorted({os.path.dirname(path) for path in paths}):
        for name in ("tokenizer.bin", "tokenizer.json"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open_regular(path) as file:
                    content = file.read()
                if files.setdefault(name, (path, content))[1] != content:
                    raise PrepareError(f"{path} and {files[name][0]} differ; delete the one that does not belong to "
                                       "the shards, or write it again with prepare table")
    return {name: content for name, (_, content) in files.items()}


def merge(paths, out, shard_tokens):
    """Writes the tokens of the shards, in order, as shards of another size: out_000000.bin and so on, and next to them
    the tokenizer's files.
    """
    if os.path.isdir(out) or not os.path.basename(out):
        raise PrepareError(f"--out {out} is a directory; give the beginning of the names of shards, such as "
                           f"{os.path.join(out, 'train')}")
    sidecars = [open_shard(path)[1] for path in paths]
    sidecar = sidecars[0]
    contents = [other.get("checksum", path) for path, other in zip(paths, sidecars)]
    for i, path in enumerate(paths):
        check_same_tokenizer(path, sidecars[i], paths[0], sidecar)
        if (first := contents.index(contents[i])) < i:
            raise PrepareError(f"{path} has the tokens of {paths[first]}, which would count twice; leave one of them out")
    train, val = ([path for path in paths if split_of(path) == split] for split in ("train", "val"))
    if train and val:
        raise PrepareError(f"{train[0]} is training data, and {val[0]} validation data; merge them one after the other")

    def parts():
        for path in paths:
            tokens, own = open_shard(path)
            yield from parts_of(path, tokens, own)

    if missing := [name for name in ("tokenizer", "vocab", "end_token") if name not in sidecar]:
        raise PrepareError(f"{paths[0]} has no sidecar with {' and '.join(missing)}, so its tokens cannot be told apart")
    if found := sorted(glob.glob(glob.escape(out) + "_[0-9][0-9][0-9][0-9][0-9][0-9].bin*")):
        raise PrepareError(f"{found[0]} is there already; choose another --out")
    check_tables(paths, sidecar)
    folder, files = os.path.dirname(out) or ".", tokenizer_files(paths)
    outputs.require_one_tokenizer(folder, sidecar, "tokenizer.json" in files)
    for name, content in files.items():
        outputs.require_own(os.path.join(folder, name), outputs.is_same(content))
    os.makedirs(folder, exist_ok=True)
    shared = {name: value for name, value in sidecar.items() if all(other.get(name) == value for other in sidecars)}
    written = write_shards(parts(), lambda i: f"{out}_{i:06d}.bin", tokenizer=sidecar["tokenizer"],
                           vocab=sidecar["vocab"], end_token=sidecar["end_token"], shard_tokens=shard_tokens,
                           extra={name: value for name, value in shared.items() if name not in OF_ONE_SHARD})
    for name, content in files.items():
        write_atomically(os.path.join(folder, name), content)
    print(f"{out}_*.bin: {sum(s['tokens'] for s in written)} tokens, {len(written)} shards")
