"""`prepare hellaswag`: HellaSwag's questions (Zellers et al., 2019) in llm.c's file of multiple-choice questions.

The file has a header of 256 int32 (magic 20240522, version 1, number of examples, bytes of the longest one). Each
example is uint16s: 65535, its size in bytes, its index, the right ending, the number of endings, and for the context
and each ending the number of tokens and the tokens. A space joins an ending to its context.
"""

import array
import json
import os
import struct
import sys

from . import outputs
from .readers import numbered_lines, rows, value_of
from .shard import write_atomically
from .tinyshakespeare import read_or_download
from .tokenizers import PrepareError

URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_{}.jsonl"
MAGIC, VERSION = 20240522, 1
START = 65535
ENDINGS = 4  # the number that llm.c's reader expects
LIMIT = 1 << 16  # limit for an example's bytes and for its index


def list_of(row, *keys):
    """row[key][key]..., which must be a list: a text would be one of characters."""
    for key in keys:
        row = row[key]
    if not isinstance(row, list):
        raise ValueError(f"{'.'.join(keys)} is {row!r}, not a list")
    return row


def read_examples(examples):
    """Yields (context, endings, index of the right ending) for each of (where, example)."""
    for where, example in examples:
        try:
            context, endings, label = example["ctx"], list_of(example, "endings"), int(str(example["label"]))
            "".join([context, *endings]).encode()  # raises an error for anything but text
        except (ValueError, TypeError, KeyError) as error:
            raise PrepareError(f"{where}: not an example of HellaSwag ({type(error).__name__}: {error})"
                               "; it has ctx, endings and label (the test split has no labels)") from None
        if len(endings) != ENDINGS or not 0 <= label < ENDINGS:
            raise PrepareError(f"{where}: {len(endings)} endings, the right one is {label}; llm.c's "
                               f"file has {ENDINGS}, 0 to {ENDINGS - 1}")
        yield context, endings, label


def common(rows):
    """How many elements at the start are the same in all rows."""
    shortest = min(map(len, rows))
    return next((i for i in range(shortest) if len({row[i] for row in rows}) > 1), shortest)


def encode_parts(context, endings, tokenizer):
    """The tokens of the context and of each ending."""
    if tokenizer.prefix == 0:  # each on its own, as llm.c does
        return [tokenizer.encode(text).tolist() for text in [context] + [" " + ending for ending in endings]]
    # This tokenizer would put another space in front of an ending on its own.
    rows = [tokenizer.encode(context + " " + ending).tolist() for ending in endings]
    shared = min(common(rows), len(tokenizer.encode(context)))
    return [rows[0][:shared]] + [row[shared:] for row in rows]


def encode_example(index, context, endings, label, tokenizer):
    body = [START, 0, index, label, len(endings)]
    for tokens in encode_parts(context, endings, tokenizer):
        body += [len(tokens), *tokens]
    size = 2 * len(body)
    if size >= LIMIT:
        raise PrepareError(f"example {index} has {size} bytes; llm.c's file has examples below {LIMIT}")
    body[1] = size
    return array.array("H", body)


def write_file(out, tokenizer, bodies, version, where):
    """Writes the examples and a sidecar. `bodies` are arrays, whose element [1] is their size in bytes."""
    if not bodies:
        raise PrepareError(f"{where} has no examples")
    longest = max(body[1] for body in bodies)
    if sys.byteorder == "big":
        for body in bodies:
            body.byteswap()
    outputs.require_own(out, outputs.is_questions)
    outputs.require_own(out + ".json", outputs.is_sidecar)
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    header = struct.pack("<4i", MAGIC, version, len(bodies), longest).ljust(1024, b"\0")
    sidecar = {"tokenizer": tokenizer.name, "vocab": tokenizer.vocab, "tokenizer_hash": tokenizer.hash,
               "examples": len(bodies)}
    write_atomically(out + ".json", json.dumps(sidecar, indent=2).encode() + b"\n")
    write_atomically(out, header + b"".join(body.tobytes() for body in bodies))
    print(f"{out}: {len(bodies)} examples, the longest of {longest} bytes")


def prepare_hellaswag(out, tokenizer, split="val", text_file=None):
    """Writes `out` and its sidecar."""
    if tokenizer.vocab > START:
        raise PrepareError(f"llm.c's file has tokens below {START}, {tokenizer.name} has {tokenizer.vocab}")
    examples = rows(text_file) if text_file else (
        (where, value_of(line, where))
        for where, line in numbered_lines([read_or_download(None, URL.format(split), "--input FILE")], split))
    bodies = []
    for context, endings, label in read_examples(examples):
        if len(bodies) == LIMIT - 1:
            raise PrepareError(f"llm.c's file has at most {LIMIT - 1} examples")
        bodies.append(encode_example(len(bodies), context, endings, label, tokenizer))
    write_file(out, tokenizer, bodies, VERSION, text_file or split)
