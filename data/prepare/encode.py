"""`prepare encode`, `table` and `json`: what train_gpt needs of a tokenizer, ids for prompts, bytes for ids, and the
tokenizer.json of an export.
"""

import json
import os
import signal
import sys

from . import outputs, readers
from .shard import write_atomically
from .table import table_bytes, table_of
from .tokenizers import PrepareError, SAMPLE, json_of_bytes, open_tokenizer


def say(answer):
    print(json.dumps(answer), flush=True)


def encode(name, end_token=None):
    """Answers each line of the standard input, a prompt as a JSON string, with its ids, until the input ends. As in
    other programs, they begin with the token that the tokenizer puts in front of every text, if any. The first line of
    the answers describes the tokenizer. Every answer may be {"error": MESSAGE} instead.
    """
    if not sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for train_gpt, which then ends the input
    try:
        tokenizer = open_tokenizer(name, end_token, needs_end=False)
    except (PrepareError, ValueError, OSError) as error:
        say({"error": str(error)})
        return 1
    begin = -1 if tokenizer.end_token is None else tokenizer.end_token
    say({"vocab": tokenizer.vocab, "begin": begin, "hash": tokenizer.hash})
    for line in sys.stdin.buffer:
        try:
            text = json.loads(line)
            if not isinstance(text, str):
                raise ValueError("it is not a string")
        except (ValueError, RecursionError) as error:
            say({"error": f"the line is not a JSON string: {error}"})
            continue
        text = readers.decode(text)[0]
        say({"error": "the text is binary"} if text is None else tokenizer.front + tokenizer.encode(text).tolist())
    return 0


def write_table(name, end_token=None, out=None):
    """Writes tokenizer.bin to `out`, or to the standard output."""
    tokenizer = open_tokenizer(name, end_token)
    exact = tokenizer.miscounted(tokenizer.encode(SAMPLE), len(SAMPLE.encode())) == 0
    if not exact:
        print(f"prepare: {tokenizer.name} changes the length of text, so its table is marked: it does not count bytes",
              file=sys.stderr)
    write(table_bytes(table_of(tokenizer, exact)), out, tokenizer, outputs.has_table_head)


def write_json(name, end_token=None, out=None):
    """Writes tokenizer.json to `out`, or to the standard output."""
    tokenizer = open_tokenizer(name, end_token, needs_end=False)
    content = json_of_bytes() if tokenizer.content is None else tokenizer.content
    write(content, out, tokenizer, outputs.is_tokenizer, outputs.is_same(content))


def write(content, out, tokenizer, *tests):
    """Writes `out`, if the file there passes one of the tests, or the standard output."""
    if out:
        outputs.require_own(out, *tests)
        outputs.require_tokenizer_of_shards(out, tokenizer.sidecar())
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
        write_atomically(out, content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
