"""`prepare train-tokenizer`: trains a byte-level byte-pair encoding on the user's own text, with the tokenizers
package.

It cuts words like GPT-2. The ids are the 256 bytes, then the merges, and last, as in GPT-2, <|endoftext|>.
"""

import hashlib
import os
import signal
import sys

from . import outputs, readers
from .shard import write_atomically
from .tokenizers import PrepareError, missing

END = "<|endoftext|>"
MOST = 10_000_000  # the package reserves memory for all tokens first


def train_tokenizer(inputs, out, vocab, format):
    try:
        import tokenizers
    except ImportError:
        raise missing("tokenizers", "train-tokenizer") from None
    if vocab < 257:
        raise PrepareError(f"--vocab {vocab} is below 257: all bytes and the end token")
    if vocab > MOST:
        raise PrepareError(f"--vocab {vocab} is above {MOST}")
    outputs.require_own(out, outputs.is_trained)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab - 1, show_progress=sys.stderr.isatty(),
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    # The package computes for minutes without returning to Python, which would notice Ctrl-C only then.
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        tokenizer.train_from_iterator(readers.texts(inputs, format, out), trainer)
    finally:
        signal.signal(signal.SIGINT, handler)
    found = tokenizer.get_vocab_size()
    if found < vocab - 1:
        raise PrepareError(f"this text has merges for a vocabulary of {found + 1}, not of {vocab}; give more text or a "
                           "smaller --vocab")
    tokenizer.add_special_tokens([END])
    content = tokenizer.to_str(pretty=True).encode()
    outputs.require_tokenizer_of_shards(out, {"tokenizer": os.path.basename(out), "end_token": vocab - 1,
                                              "tokenizer_hash": "sha256:" + hashlib.sha256(content).hexdigest()})
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    write_atomically(out, content)
    print(f"{out}: {vocab} tokens")
