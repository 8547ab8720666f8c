"""Tests of data/demo_corpus.py: its entropy is right, its language follows its description, and so do its files.

Run: python3 -m unittest discover -s test/data
"""

import collections
import contextlib
import functools
import io
import math
import os
import random
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "data"))
import demo_corpus
from prepare.shard import read_shard


def derivations(grammar, words):
    """Returns (number, total probability) of the derivations of a list of words, with a general parser that assumes
    nothing.
    """

    @functools.cache
    def parse(part, start):  # {end: (number, probability)} of what `part` can produce from `start` on
        if part not in grammar.rules:
            return {start + 1: (1, 1.0)} if words[start:start + 1] == [part] else {}
        found = collections.defaultdict(lambda: (0, 0.0))
        for probability, parts in grammar.rules[part]:
            ends = {start: (1, probability)}
            for child in parts:
                extended = collections.defaultdict(lambda: (0, 0.0))
                for middle, (count, p) in ends.items():
                    for end, (more, q) in parse(child, middle).items():
                        extended[end] = (extended[end][0] + count * more, extended[end][1] + p * q)
                ends = extended
            for end, (count, p) in ends.items():
                found[end] = (found[end][0] + count, found[end][1] + p)
        return dict(found)

    return parse(grammar.start, 0).get(len(words), (0, 0.0))


def enumerate_sentences(grammar):
    """Returns {sentence: probability} by writing out every derivation."""

    def expand(parts):
        if not parts:
            yield 1.0, ()
            return
        heads = [(1.0, (parts[0],))] if parts[0] not in grammar.rules else [
            (p * q, words) for p, production in grammar.rules[parts[0]] for q, words in expand(production)]
        for p, head in heads:
            for q, tail in expand(parts[1:]):
                yield p * q, head + tail

    sentences = collections.defaultdict(float)
    for p, words in expand((grammar.start,)):
        sentences[" ".join(words) + "."] += p
    return sentences


TINY = {
    "S": [(2, ["NP", "V"]), (1, ["NP", "V", "NP"]), (1, ["stop"])],
    "NP": [(3, ["N"]), (1, ["A", "N"])],
    "N": [(1, ["ox"]), (2, ["cat"]), (1, ["h\u00e9ron"])],
    "A": [(1, ["red"]), (1, ["big"])],
    "V": [(5, ["runs"]), (1, ["is"])],
}


class Entropy(unittest.TestCase):
    def test_formula_against_enumeration(self):
        grammar = demo_corpus.Grammar(TINY, "S")
        sentences = enumerate_sentences(grammar)
        self.assertEqual(len(sentences), grammar.count_derivations())
        self.assertAlmostEqual(sum(sentences.values()), 1)
        entropy = -sum(p * math.log(p) for p in sentences.values())
        length = sum(p * len(text.encode()) for text, p in sentences.items())
        self.assertAlmostEqual(grammar.entropy(), entropy, places=12)
        self.assertAlmostEqual(grammar.expected_bytes(), length, places=12)
        separator = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
        floor = demo_corpus.entropy_floor(grammar, 0.25)
        self.assertAlmostEqual(floor, (entropy + separator) / (length + 1), places=12)

    def test_an_ambiguous_grammar_would_be_noticed(self):
        rules = {"S": [(1, ["A", "B"]), (1, ["x", "y"])], "A": [(1, ["x"])], "B": [(1, ["y"])]}
        grammar = demo_corpus.Grammar(rules, "S")
        self.assertEqual(derivations(grammar, ["x", "y"]), (2, 1.0))
        sentences = enumerate_sentences(grammar)
        self.assertNotAlmostEqual(grammar.entropy(), -sum(p * math.log(p) for p in sentences.values()))
        self.assertNotEqual(len(sentences), grammar.count_derivations())

    def test_parser_agrees_with_enumeration(self):
        grammar = demo_corpus.Grammar(TINY, "S")
        for text, p in enumerate_sentences(grammar).items():
            count, probability = derivations(grammar, text[:-1].split(" "))
            self.assertEqual(count, 1)
            self.assertAlmostEqual(probability, p)


class Language(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grammar = demo_corpus.demo_grammar()
        cls.floor = demo_corpus.entropy_floor(cls.grammar)
        rng = random.Random(5)
        cls.sentences = [cls.grammar.sample(rng) for _ in range(1500)]

    def test_words_are_many_short_and_distinct_across_classes(self):
        words = [word for words in self.grammar.words().values() for word in words]
        self.assertEqual(len(words), 5 * 20 + 1)
        self.assertEqual(len(words), len(set(words)))
        self.assertTrue(all((word == "y" or len(word) == 3) and word.isalpha() and word.isascii() for word in words))

    def test_no_empty_productions(self):
        self.assertTrue(all(parts for productions in self.grammar.rules.values() for _, parts in productions))

    def test_far_too_many_sentences_to_memorize(self):
        self.assertGreater(self.grammar.count_derivations(), 10**10)
        self.assertGreater(len(set(self.sentences)), 0.9 * len(self.sentences))

    def test_floor_is_in_the_intended_range(self):
        self.assertTrue(0.7 <= self.floor <= 1.2, self.floor)

    def test_samples_are_unambiguous_and_cost_the_floor(self):
        nats, tokens = 0.0, 0
        separator = self.floor * (self.grammar.expected_bytes() + 1) - self.grammar.entropy()
        for text in self.sentences:
            self.assertTrue(text.endswith("."))
            count, probability = derivations(self.grammar, text[:-1].split(" "))
            self.assertEqual(count, 1, text)
            nats += separator - math.log(probability)
            tokens += len(text) + 1
        self.assertAlmostEqual(nats / tokens / self.floor, 1, delta=0.01)

    def test_classes_and_their_order(self):
        classes = {vowel + last: name for name, (vowel, ends) in demo_corpus.CLASSES.items() for last in ends}
        orders = {tuple(classes[word[1:]] for word in clause.split(" "))
                  for text in self.sentences for clause in text[:-1].split(" y ")}
        self.assertEqual(len(orders), 2 * 2)
        for order in orders:
            self.assertRegex(" ".join(order), "^(Adjective )?Subject (Verb|Transitive Object)$")

    def test_the_example_of_the_documentation(self):
        words = "buw kal pes doc y zan tij"
        self.assertIn(words + ".", demo_corpus.__doc__.replace("\n", " "))
        self.assertEqual(derivations(self.grammar, words.split())[0], 1)
        for wrong in (words.replace("buw", "bal"), words.replace("pes doc", "pes"), words.replace("tij", "tes"),
                      words + " y"):
            self.assertEqual(derivations(self.grammar, wrong.split())[0], 0)


class Files(unittest.TestCase):
    def write(self, seed, train=30000, val=5000):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        with contextlib.redirect_stdout(io.StringIO()):
            demo_corpus.main(["--out", directory.name, "--train-tokens", str(train), "--val-tokens", str(val), "--seed",
                              str(seed)])
        return [read_shard(os.path.join(directory.name, f"demo_{split}.bin")) for split in ("train", "val")]

    def test_shards_and_sidecars(self):
        for tokens, sidecar in self.write(1):
            self.assertEqual(tokens[0], 256)
            self.assertEqual(sidecar["tokens"], len(tokens))
            self.assertEqual(sidecar["documents"], tokens.count(256))
            self.assertEqual((sidecar["tokenizer"], sidecar["vocab"], sidecar["max_token"]), ("bytes", 257, 256))
            self.assertEqual(sidecar["entropy_floor"], demo_corpus.entropy_floor(demo_corpus.demo_grammar()))
        (train, _), (val, _) = self.write(1, 12345, 1)
        self.assertEqual((len(train), len(val)), (12345, 1))

    def test_every_sentence_of_the_file_parses_and_documents_end_as_often_as_said(self):
        (train, _), _ = self.write(3)
        grammar = demo_corpus.demo_grammar()
        documents = "".join(chr(token) for token in train).split(chr(256))
        self.assertEqual(documents.pop(0), "")
        self.assertTrue(all(document.endswith(".") for document in documents[:-1]))
        sentences = [sentence for document in documents for sentence in document.split(".") if sentence][:-1]
        for sentence in sentences:
            self.assertEqual(derivations(grammar, sentence.strip(" ").split(" "))[0], 1, sentence)
        expected, deviation = len(sentences) / 8, math.sqrt(len(sentences) * 7 / 64)
        self.assertLess(abs(len(documents) - expected), 4 * deviation)

    def test_seeds(self):
        first, again, other = self.write(1), self.write(1), self.write(2)
        self.assertEqual(first, again)
        self.assertNotEqual(first[0][0], other[0][0])
        self.assertNotEqual(first[0][0][:5000], first[1][0])  # validation is not a part of training
        longer = self.write(1, 1_100_000, 5000)
        self.assertEqual(len(longer[0][0]), 1_100_000)
        self.assertEqual(longer[0][0][:30000], first[0][0])
        self.assertEqual(longer[1][0], first[1][0])

    def test_more_tokens_than_a_shard_can_have(self):
        for flag in ("--train-tokens", "--val-tokens"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as error, \
                    mock.patch.object(demo_corpus, "write_shards"):
                demo_corpus.main(["--out", "x", flag, str(1 << 31)])
            self.assertIn("at most 2147483647", error.getvalue())


if __name__ == "__main__":
    unittest.main()
