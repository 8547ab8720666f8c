"""Tests of how `prepare text` drops, changes, mixes and reports documents: rules on both sides of their limits,
duplicates, decontamination, mixtures, and the report.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import io
import json
import os
import random
import unittest
from unittest import mock

import numpy
from prepare_case import TestCase, needs

from prepare import chunks, duplicates, pipeline, readers, report, rules

DRAW = report.draw  # TestCase replaces it


def words(count, seed=1, length=5):
    """Made-up words, all different."""
    letters = str.maketrans("0123456789", "ghijklmnop")
    return [f"{n:0{length}x}".translate(letters) for n in random.Random(seed).sample(range(16**length), count)]


class C4(unittest.TestCase):
    PAGE = "\n".join(f"This is line number {i} of it." for i in range(4))

    def test_lines(self):
        for line, kept in (("It ends as it should.", True), ("This one really does so!", True),
                           ("Does this one do so?", True), ('He said: "this is the end."', True),
                           ("It does not end as it should", False),
                           ("It does not end just yet...", False), ("Only four words here.", False),
                           ("There are just five words.", True), ("Please enable Javascript to see this.", False),
                           ("Here you read our Privacy Policy.", False), ("This site uses cookies, as all do.", False)):
            with self.subTest(line):
                self.assertEqual(rules.apply_c4(self.PAGE + "\n" + line), (self.PAGE + ("\n" + line) * kept, None))

    def test_citations_go(self):
        self.assertEqual(rules.apply_c4(self.PAGE + "\nIt is known[3] to be[citation needed] so[edit].")[0],
                         self.PAGE + "\nIt is known to be so.")

    def test_pages(self):
        self.assertEqual(rules.apply_c4(self.PAGE + "\nLorem ipsum dolor sit amet.")[1], "C4: lorem ipsum")
        self.assertEqual(rules.apply_c4(self.PAGE + "\nint main() {")[1], "C4: curly bracket")
        two = "This page has one sentence. And it has another one."
        self.assertEqual(rules.apply_c4(two)[1], "C4: fewer than 3 sentences")
        self.assertEqual(rules.apply_c4(two + "\nThis is the third and last.")[1], None)


class Gopher(unittest.TestCase):
    def reason(self, text):
        same, reason = rules.apply_gopher(text)
        self.assertEqual(same, text)
        return reason

    def good(self, count=60):
        return ["the", "and"] + words(count - 2)

    def test_good(self):
        self.assertIsNone(self.reason(" ".join(self.good())))

    def test_number_of_words(self):
        self.assertIsNone(self.reason(" ".join(self.good(50))))
        self.assertEqual(self.reason(" ".join(self.good(49))), "Gopher: not 50 to 100000 words")
        for count, reason in ((100_000, None), (100_001, "Gopher: not 50 to 100000 words")):
            self.assertEqual(rules.gopher_quality("a line", self.good(count)), reason)

    def test_length_of_words(self):
        for length, more, reason in ((3, ["the", "and"], None), (2, ["the", "be"], "Gopher: mean length of words"),
                                     (10, ["that", "with", "x" * 22], None),  # 30 characters, 3 words
                                     (10, ["that", "with", "x" * 23], "Gopher: mean length of words")):
            self.assertEqual(self.reason(" ".join(more + words(60, length=length))), reason, length)

    def test_symbols(self):
        for symbol in ("#", "...", "\u2026"):
            text = self.good(60)
            for many, reason in ((6, None), (7, "Gopher: symbols")):
                marked = [word + symbol if 2 <= i < 2 + many else word for i, word in enumerate(text)]
                self.assertEqual(self.reason(" ".join(marked)), reason)

    def lines(self, begin="", end="", special=0):
        text = self.good(100)
        return "\n".join((begin if i < special else "") + " ".join(text[5 * i:5 * i + 5]) + (end if i < special else "")
                         for i in range(20))

    def test_bullets(self):
        for bullet in "-*\u2022":
            self.assertIsNone(self.reason(self.lines(begin=bullet + " ", special=18)))
            self.assertEqual(self.reason(self.lines(begin=bullet + " ", special=19)), "Gopher: bullets")

    def test_ellipses_at_ends_of_lines(self):
        self.assertIsNone(self.reason(self.lines(end="...", special=6)))
        self.assertEqual(self.reason(self.lines(end="...", special=7)), "Gopher: lines end with an ellipsis")

    def test_letters(self):
        numbers = [str(10_000 + i) for i in range(13)]
        self.assertIsNone(self.reason(" ".join(self.good(60)[:-12] + numbers[:12])))
        self.assertEqual(self.reason(" ".join(self.good(60)[:-13] + numbers)), "Gopher: words without letters")

    def test_stop_words(self):
        for some, reason in (("the the", "Gopher: stop words"), ("The and,", None), ("(be) to.", None)):
            self.assertEqual(self.reason(" ".join(some.split() + words(60))), reason)

    def test_repeated_lines_and_paragraphs(self):
        self.assertEqual(rules.repeated(["a", "b", "a", "a", "cc", "cc"]), (0.5, 4))
        lines = self.lines().splitlines()
        for copies, reason in ((10, None), (11, "Gopher: repeated lines")):  # 9 of 30; 10 of 31
            self.assertEqual(self.reason("\n".join(lines + ["x"] * copies)), reason)
        for copies, reason in ((3, None), (6, "Gopher: repeated lines")):  # of the characters an eighth; 0.22
            spread = [line for i in range(20) for line in [lines[i]] + [lines[1]] * (i % 3 == 2 and i // 3 < copies)]
            self.assertEqual(len(spread), 20 + copies)
            self.assertEqual(self.reason("\n".join(spread)), reason)
        text = "\n".join(lines)
        self.assertEqual(self.reason(text + "\n\nx\n\nx"), "Gopher: repeated paragraphs")  # one of three
        self.assertIsNone(self.reason(text.replace("\n", "\n\n", 1) + "\n\nx\n\nx"))  # one of four

    def test_one_ngram_again_and_again(self):
        text = words(90)
        for n, most in ((2, 0.20), (3, 0.18), (4, 0.16)):
            gram = text[:n]
            for share, reason in ((most * 0.9, None), (most * 1.2, f"Gopher: one {n}-gram again and again")):
                # k repetitions of n words, with other words in between, so that nothing longer repeats.
                k = round(share * 90 / n)
                rest = iter(["the", "and"] + text[n:])
                mixed = [word for i in range(k) for word in (*gram, next(rest), next(rest))]
                mixed += list(rest)[:90 - len(mixed)]
                with self.subTest(n=n, share=share):
                    self.assertEqual(self.reason(" ".join(mixed)), reason)

    def test_repeated_ngrams(self):
        self.assertEqual(rules.repeated_ngram_characters("a bb a bb a bb c".split(), 2), 3 + 3)
        self.assertEqual(rules.repeated_ngram_characters("a b c a b c".split(), 3), 3)
        self.assertEqual(rules.repeated_ngram_characters("a b c d".split(), 2), 0)
        text = words(100)
        self.assertIsNone(self.reason(" ".join(["the", "and"] + text + text[:9])))
        # 10 of 110 words are in a repeated 10-gram; 12 of 112 are more than a tenth.
        self.assertIsNone(self.reason(" ".join(["the", "and"] + text[:98] + text[:10])))
        self.assertEqual(self.reason(" ".join(["the", "and"] + text[:98] + text[:12])), "Gopher: repeated 10-grams")
        self.assertEqual(self.reason(" ".join(["the", "and"] + text[:48] + text[:9])), "Gopher: repeated 5-grams")

    def test_limits_are_the_published_ones(self):
        self.assertEqual(rules.GOPHER_REPEATED_NGRAMS, {5: .15, 6: .14, 7: .13, 8: .12, 9: .11, 10: .10})


class Texts(unittest.TestCase):
    def test_normalize(self):
        text = "e\u0301 \ufb01\r\nnext\rlast\ttab\x00\x07\u200b\ufeff"
        self.assertEqual(rules.normalize(text, "nfc"), "\u00e9 \ufb01\nnext\nlast\ttab")
        self.assertEqual(rules.normalize(text, "nfkc"), "\u00e9 fi\nnext\nlast\ttab")

    def test_decode(self):
        self.assertEqual(readers.decode(b"\xef\xbb\xbfa"), ("a", 0))
        self.assertEqual(readers.decode(b"a\0b"), (None, 0))
        self.assertEqual(readers.decode(b"ab\xff"), ("ab\ufffd", 1))  # a third, not more
        self.assertEqual(readers.decode(b"a\xff"), (None, 0))
        self.assertEqual(readers.decode("ab\ufffd\xff".encode() + b"\xff c"), ("ab\ufffd\xff\ufffd c", 1))

    def test_contamination(self):
        ngrams = rules.contamination_ngrams(["One, two THREE four five six seven eight nine ten eleven twelve 13 14."])
        self.assertEqual(len(ngrams), 2)
        text = "so two - three four five! six seven eight nine ten eleven twelve 13 14 it is"
        self.assertTrue(rules.is_contaminated(text, ngrams))
        self.assertFalse(rules.is_contaminated(text.replace("five", "5"), ngrams))
        self.assertEqual(rules.contamination_ngrams(["fewer than thirteen words"]), set())


def near(text, changes, seed=3):
    """The text with that many words replaced, evenly spread."""
    parts = text.split()
    for i in range(changes):
        parts[(2 * i + 1) * len(parts) // (2 * changes)] = f"other{seed}x{i}"
    return " ".join(parts)


class Dropped(TestCase):
    def documents_of(self, documents, *flags, workers=1):
        self.path("in.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in documents).encode())
        self.output = self.prepared("text", self.path("in.jsonl"), "--out", self.path("out"), "--val-fraction", 0,
                                    "--overwrite", "--workers", workers, *flags)
        self.facts = json.loads(self.read("out/report.json"))
        return self.documents("train")

    def test_exact_duplicates(self):
        documents = ["one", "two", "one", "One", "two", "three"]
        self.assertEqual(self.documents_of(documents), ["one", "two", "One", "three"])
        self.assertEqual(self.facts["dropped"], {"duplicate": 2})
        self.assertEqual(self.documents_of(documents, "--dedup", "none"), documents)
        self.assertEqual(self.documents_of(["a\r\nb", "a\nb"], "--normalize", "nfc"), ["a\nb"])

    @needs("datasketch")
    def test_near_duplicates(self):
        texts = [" ".join(words(400, seed)) for seed in range(20)]
        # Replacing a word changes 5 of 396 5-grams: with 4 the Jaccard similarity is 376 / 416 = 0.90, with 60 about
        # 0.14.
        documents = texts + [near(texts[3], 4), texts[5], near(texts[7], 60)]
        expected = texts + [near(texts[7], 60)]
        for workers in (1, 2):
            with mock.patch.object(readers, "PART_BYTES", 5000), mock.patch.object(chunks, "CHUNK_BYTES", 5000):
                self.assertEqual(self.documents_of(documents, "--dedup", "minhash", workers=workers), expected)
            self.assertEqual(self.facts["dropped"], {"duplicate": 1, "near duplicate": 1})
        self.assertEqual(self.documents_of(documents, "--dedup", "exact"), documents[:21] + documents[22:])

    @needs("datasketch")
    def test_documents_without_words_differ(self):
        documents = [f"{i:09b}".replace("0", "- ").replace("1", "+ ") for i in range(300)]
        self.assertEqual(self.documents_of([*documents, documents[7]], "--dedup", "minhash"), documents)
        self.assertEqual(self.facts["dropped"], {"duplicate": 1})

    @needs("datasketch")
    def test_estimates_of_similarity(self):
        """112 permutations estimate a Jaccard similarity J with a standard deviation of sqrt(J (1 - J) / 112)."""
        text = " ".join(words(400))
        first = duplicates.signature(text)
        for changes in (0, 4, 20, 60):
            similar = (396 - 5 * changes) / (396 + 5 * changes)
            estimate = (first == duplicates.signature(near(text, changes))).mean()
            self.assertLessEqual(abs(estimate - similar), 5 * (similar * (1 - similar) / 112)**0.5, changes)

    def test_a_band_in_common_is_not_enough(self):
        first = numpy.arange(112, dtype="<u4")
        for same, kept in ((8, True), (83, True), (84, False)):  # of 112; 84 are three quarters
            found = duplicates.Duplicates("minhash")
            shared = 2**duplicates.BANDS - 1
            self.assertIsNone(found.reason_to_drop(b"1", first, shared))
            second = numpy.where(numpy.arange(112) < same, first, 1000 + first)
            self.assertEqual(found.reason_to_drop(b"2", second, shared), None if kept else "near duplicate")

    def test_documents_that_share_no_band_are_not_needed(self):
        """The verdicts are those of all bands of all documents, whatever the blocks."""
        rng = numpy.random.default_rng(5)
        minima = rng.integers(0, 2**32, (600, 112), dtype=numpy.uint64).astype("<u4")
        for copy in range(300, 600):  # with 60 to 100 % of an earlier one's minima; 100 more share a single band
            minima[copy] = numpy.where(rng.random(112) < rng.uniform(0.6, 1), minima[rng.integers(0, 200)], minima[copy])
        minima[200:300, 8:16] = minima[0, 8:16]
        everything = duplicates.Duplicates("minhash")
        expected = [everything.reason_to_drop(bytes([i // 256, i % 256]), m, 2**14 - 1) for i, m in enumerate(minima)]
        self.assertGreater(min(expected.count(None), expected.count("near duplicate")), 100)
        folder = self.path("bands")
        os.mkdir(folder)
        for size in (600, 7):
            blocks = (minima[i:i + size] for i in range(0, 600, size))
            shared = duplicates.shared_bands(blocks, 650, folder)
            self.assertEqual(os.listdir(folder), [])
            found = duplicates.Duplicates("minhash")
            self.assertEqual([found.reason_to_drop(bytes([i // 256, i % 256]), m, int(s))
                              for i, (m, s) in enumerate(zip(minima, shared))], expected)
            self.assertLess(len(found.kept), len(everything.kept))
        self.assertEqual(list(duplicates.shared_bands([], 0, folder)), [])

    def test_without_datasketch(self):
        with mock.patch.dict("sys.modules", {"datasketch": None}):
            self.path("a", b"text")
            self.assertIn("--dedup minhash needs the Python package datasketch; install", self.refused(
                "text", self.path("a"), "--dedup", "minhash", "--out", self.path("no")))

    def test_rules_by_flag(self):
        page = "\n".join(f"This is line number {i} of it." for i in range(12))
        self.assertEqual(self.documents_of([page + "\nmenu", "too short.", page + "{"], "--rules", "c4"), [page])
        self.assertEqual(self.facts["dropped"], {"C4: curly bracket": 1, "C4: fewer than 3 sentences": 1})
        self.assertIn("1 dropped: C4: curly bracket", self.output)
        good = " ".join(["the", "and"] + words(70))
        self.assertEqual(self.documents_of(["too short", good], "--rules", "gopher"), [good])
        with self.assertRaises(SystemExit), mock.patch("sys.stderr"):
            self.prepare("text", self.path("in.jsonl"), "--rules", "c5", "--out", self.path("out"))

    def test_decontamination(self):
        question = " ".join(words(20, seed=8))
        self.path("eval.jsonl", json.dumps({"ctx": "short", "endings": ["no", question]}).encode() + b"\n")
        self.path("eval.txt", " ".join(words(20, seed=9)).encode())
        documents = ["clean", "It asks: " + question.upper(), " ".join(words(20, seed=9)[3:17]),
                     " ".join(words(20, seed=9)[:12])]
        kept = self.documents_of(documents, "--decontaminate", self.path("eval.jsonl"), "--decontaminate",
                                 self.path("eval.txt"))
        self.assertEqual(kept, [documents[0], documents[3]])
        self.assertEqual(self.facts["dropped"], {"in the evaluation set": 2})


class Mixture(TestCase):
    def setUp(self):
        super().setUp()
        for source, count in (("a", 600), ("b", 300)):
            self.path(source + ".jsonl", "".join(json.dumps({"text": source * 50 + f"{i:04}"}) + "\n"
                                                 for i in range(count)).encode())
        for module, name in ((readers, "PART_BYTES"), (chunks, "CHUNK_BYTES")):
            patch = mock.patch.object(module, name, 2000)
            patch.start()
            self.addCleanup(patch.stop)

    def mixed(self, a, b, *flags, out="out"):
        self.prepared("text", self.path(f"a.jsonl@{a}"), self.path(f"b.jsonl@{b}"), "--out", self.path(out),
                      "--val-fraction", 0, "--overwrite", *flags)
        documents = self.documents("train", out)
        return documents, [sum(document[0] == source for document in documents) for source in "ab"]

    def close(self, found, expected):
        # Documents are drawn by their hashes; this allows five standard deviations of a binomial of 600.
        for value, goal in zip(found, expected):
            self.assertLessEqual(abs(value - goal), 5 * (600 / 4)**0.5, (found, expected))

    def test_weights(self):
        documents, found = self.mixed(0.5, 0.5)
        self.assertEqual(found[1], 300)
        self.close(found, (300, 300))
        self.assertEqual(len(set(documents)), len(documents))
        _, found = self.mixed(8, 1)
        self.assertEqual(found[0], 600)
        self.close(found, (600, 75))

    def test_more_than_one_epoch(self):
        documents, found = self.mixed(1, 3, "--max-epochs", 2.5)
        self.close(found, (250, 750))
        counts = {document: documents.count(document) for document in documents}
        self.assertEqual({count for document, count in counts.items() if document[0] == "b"}, {2, 3})

    def test_no_epoch_begins_after_the_last(self):
        """The quotients of these numbers are rounded up."""
        options = chunks.Options([("a", 0.3), ("b", 0.7)])
        self.assertGreater(0.3 * (3186149 / 0.3) / 3186149, 1)
        self.assertEqual(pipeline.epochs_of(options, [3186149, 10**9])[0], 1)

    def test_sources_are_spread(self):
        documents, found = self.mixed(2, 1)
        quarter = documents[:len(documents) // 4]
        self.close([4 * sum(document[0] == source for document in quarter) for source in "ab"], found)

    def test_workers(self):
        self.assertEqual(self.mixed(1, 2)[0], self.mixed(1, 2, "--workers", 3, out="other")[0])

    def test_whole_documents_may_miss_the_shares(self):
        args = ("--out", self.path("texts"), "--val-fraction", 0, "--overwrite")
        small, large, huge = (self.path(f"{size}.txt", b"x\n" * (size // 2)) for size in (100, 150, 10_000))
        output = self.prepared("text", small + "@1", large + "@1", "--max-epochs", 2, *args)
        notes = json.loads(self.read("texts/report.json"))["notes"]
        self.assertEqual([self.path(note.split(" ")[0]) for note in notes], [small, large])
        # 2 times 101 tokens, and once or twice 151.
        self.assertRegex(notes[1], r"150.txt has (42\.8|59\.9) % of the training tokens instead of 50 %: a mixture takes or "
                         r"leaves out whole documents, and \S+/150.txt has 1; --separator makes several documents")
        self.assertIn("note: " + notes[1], output)
        self.assertIn(f"the training text has nothing of {huge} instead of 50 %: a mixture takes or leaves out whole "
                      f"documents, and {huge} has 1; --separator", self.refused("text", small + "@1", huge + "@1", *args))
        self.mixed(1, 1)
        self.assertEqual(json.loads(self.read("out/report.json"))["notes"], [])

    def test_without_weights_all_in_order(self):
        self.prepared("text", self.path("b.jsonl"), self.path("a.jsonl"), "--out", self.path("out"),
                      "--val-fraction", 0)
        documents = self.documents("train")
        self.assertEqual(documents, sorted(documents, key=lambda text: (text[0] == "a", text)))
        self.assertEqual(len(documents), 900)


class Report(TestCase):
    def test_counts(self):
        texts = ["x" * (2**i - 1) for i in range(1, 9)] + ["", "", "x"]  # with the end token powers of two
        self.path("in.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
        output = self.prepared("text", self.path("in.jsonl"), "--out", self.path("out"), "--val-fraction", 0)
        facts = json.loads(self.read("out/report.json"))
        self.assertEqual((facts["documents"], facts["kept"], facts["dropped"]), (11, 8, {"duplicate": 1, "empty": 2}))
        self.assertEqual(facts["lengths"], {str(2**i): 1 for i in range(1, 9)})
        self.assertEqual(facts["train"], {"shards": 1, "tokens": sum(2**i for i in range(1, 9)), "documents": 8})
        self.assertEqual(facts["bytes_per_token"], 1)
        speed = facts["speed"]
        self.assertAlmostEqual(speed["documents_per_s"] * speed["seconds"], 11)
        self.assertTrue(0 < speed["of_the_tokenizer_alone"] < 1)
        self.assertEqual(self.read("out/report.txt").decode(), output)
        self.assertRegex(output, r"11 documents in, 8 kept\n +1 dropped: duplicate\n +2 dropped: empty\n")
        self.assertIn("from      256:         1 " + "#" * 50, output)

    @needs("tqdm")
    def test_progress_is_for_terminals(self):
        for terminal in (False, True):
            with mock.patch("sys.stderr", io.StringIO()) as error:
                error.isatty = lambda: terminal
                with report.progress_bar(100) as progress:
                    progress.update(60)
                    progress.update(40)
            self.assertEqual("100%" in error.getvalue(), terminal)
            self.assertEqual(error.getvalue() != "", terminal)

    @needs("matplotlib")
    def test_picture(self):
        self.draw = DRAW
        self.prepared("text", self.path("a", b"text\n"), "--out", self.path("out"), "--val-fraction", 0)
        from matplotlib import image
        height, width = image.imread(self.path("out/report.png")).shape[:2]
        self.assertGreater(min(height, width), 300)

    def test_without_matplotlib_and_tqdm(self):
        self.draw = DRAW
        with mock.patch.dict("sys.modules", {"matplotlib": None, "tqdm": None}):
            self.prepared("text", self.path("a", b"text\n"), "--out", self.path("out"), "--val-fraction", 0)
        self.assertFalse(os.path.exists(self.path("out/report.png")))


if __name__ == "__main__":
    unittest.main()
