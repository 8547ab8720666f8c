#!/usr/bin/env python3
"""Writes a corpus of a small made-up language whose entropy is known exactly, to show that training works.

    python3 data/demo_corpus.py --out DIR --train-tokens 1000000 --val-tokens 100000 --seed 1

Sentences are drawn from a probabilistic grammar. In `buw kal pes doc y zan tij.` every word is a consonant, the vowel
of its class, and one of two letters that end this class: adjectives -uw and -ux, subjects -al and -an, verbs without an
object -ih and -ij, verbs with an object -er and -es, objects -oc and -oq. A clause is a subject, with or without an
adjective, and a verb, with an object if the verb takes one; `y` joins two clauses. There are far too many sentences to
memorize.

The patterns to learn are local and frequent: the letter before the space determines which kind of word may follow. So a
small model learns them in minutes, and smoothly. A model learns longer-range rules in leaps, and two runs that differ
only in rounding would take them at different times.

The grammar is unambiguous (each text has one derivation), so the entropy of the text is the entropy of the derivation,
which is a sum over the rules. Divided by the expected length it is the entropy rate in nats per token: the lowest
validation loss that any model can reach. The sidecars of the shards record it as `entropy_floor`. Samples that start
inside a sentence lack its beginning, so real losses stay a little above it.

Tokens are bytes, and 256 starts every document. A space follows each sentence, or with probability 1/8 the end token.
"""

import argparse
import functools
import math
import os
import random
import sys

from prepare.shard import MAX_TOKENS, token_array, write_shards

END_TOKEN = 256
VOCAB = 257
END_PROBABILITY = 1 / 8  # probability that a sentence is the last one of its document


class Grammar:
    """A probabilistic context-free grammar without recursion. `rules` maps a symbol to [(weight, [symbol or word])].

    A sentence is the words of a derivation of `start`, with a space between them and a full stop after the last. So
    every word costs its length and one more byte.
    """

    def __init__(self, rules, start="S"):
        self.start = start
        self.rules = {}
        for symbol, productions in rules.items():
            total = sum(weight for weight, _ in productions)
            self.rules[symbol] = [(weight / total, tuple(parts)) for weight, parts in productions]

    def words(self):
        """The terminals by the symbol that produces them."""
        return {symbol: [part for _, parts in productions for part in parts if part not in self.rules]
                for symbol, productions in self.rules.items()}

    def _total(self, rule_value, word_value):
        """The expected sum over a derivation of rule_value(probability) per rule used and word_value(word) per word."""

        @functools.cache
        def expected(part):
            if part not in self.rules:
                return word_value(part)
            return math.fsum(p * (rule_value(p) + math.fsum(map(expected, parts))) for p, parts in self.rules[part])

        return expected(self.start)

    def entropy(self):
        """The entropy of a sentence's derivation, in nats."""
        return self._total(lambda p: -math.log(p), lambda word: 0.0)

    def expected_bytes(self):
        return self._total(lambda p: 0.0, lambda word: len(word.encode()) + 1.0)

    def count_derivations(self):
        """The number of sentences, given that the grammar is unambiguous."""

        @functools.cache
        def count(part):
            if part not in self.rules:
                return 1
            return sum(math.prod(map(count, parts)) for _, parts in self.rules[part])

        return count(self.start)

    def sample(self, rng):
        words = []
        pending = [self.start]
        while pending:
            part = pending.pop()
            if part not in self.rules:
                words.append(part)
                continue
            draw = rng.random()
            for probability, parts in self.rules[part]:
                draw -= probability
                if draw < 0:
                    break
            pending.extend(reversed(parts))
        return " ".join(words) + "."


def entropy_floor(grammar, end_probability=END_PROBABILITY):
    """Nats per token. A sentence and the token after it (space or end) are independent of everything before."""
    p = end_probability
    separator = -p * math.log(p) - (1 - p) * math.log(1 - p)
    return (grammar.entropy() + separator) / (grammar.expected_bytes() + 1)


FIRST = "bdfgkmptvz"  # consonants that start a word
# The vowel and last letters of each class of words.
CLASSES = {"Adjective": ("u", "wx"), "Subject": ("a", "ln"), "Verb": ("i", "hj"), "Transitive": ("e", "rs"),
           "Object": ("o", "cq")}


def demo_grammar():
    words = {name: [(1, [first + vowel + last]) for first in FIRST for last in ends]
             for name, (vowel, ends) in CLASSES.items()}
    return Grammar(words | {
        "Phrase": [(2, ["Subject"]), (1, ["Adjective", "Subject"])],
        "Clause": [(1, ["Phrase", "Verb"]), (2, ["Phrase", "Transitive", "Object"])],
        "Sentence": [(2, ["Clause"]), (1, ["Clause", "y", "Clause"])],
    }, start="Sentence")


def corpus(grammar, tokens, seed, end_probability=END_PROBABILITY):
    """Yields exactly `tokens` tokens, in chunks; the last sentence is cut off."""
    rng = random.Random(seed)
    chunk, left = token_array(VOCAB, [END_TOKEN]), tokens
    while left > 0:
        chunk.extend(grammar.sample(rng).encode())
        chunk.append(END_TOKEN if rng.random() < end_probability else ord(" "))
        if len(chunk) >= min(left, 1 << 20):
            yield chunk[:left]
            left -= len(chunk)
            chunk = token_array(VOCAB)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, metavar="DIR", help="gets demo_train.bin, demo_val.bin and sidecars")
    parser.add_argument("--train-tokens", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--val-tokens", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args(argv)
    if not (1 <= args.train_tokens <= MAX_TOKENS and 1 <= args.val_tokens <= MAX_TOKENS):
        parser.error(f"both sets need at least one token, and at most {MAX_TOKENS}")

    grammar = demo_grammar()
    floor = entropy_floor(grammar)
    os.makedirs(args.out, exist_ok=True)
    for split, tokens in (("train", args.train_tokens), ("val", args.val_tokens)):
        path = os.path.join(args.out, f"demo_{split}.bin")
        # Seeding with a string keeps the two splits independent of each other.
        write_shards(corpus(grammar, tokens, f"{args.seed} {split}"), lambda _: path, tokenizer="bytes", vocab=VOCAB,
                     end_token=END_TOKEN, extra={"entropy_floor": floor})
        print(f"{path}: {tokens} tokens")
    print(f"entropy floor: {floor:.4f} nats per token")


if __name__ == "__main__":
    sys.exit(main())
