"""Tests of `prepare task`: each published format byte by byte, prompts and scored tokens, and rows that are refused.

Run: .venv/bin/python -m unittest discover -s test/data
"""

import json
import random
import struct

from prepare_case import TestCase, needs

ARC = {"id": "q1", "question": {"stem": "Ice is", "choices": [{"text": "hot", "label": "A"},
                                                             {"text": "cold", "label": "B"},
                                                             {"text": "\u00e9t\u00e9", "label": "C"}]}, "answerKey": "B"}
ARC_HF = {"id": "q1", "question": "Ice is", "choices": {"text": ["hot", "cold", "\u00e9t\u00e9"],
                                                      "label": ["A", "B", "C"]}, "answerKey": "B"}
PIQA = {"goal": "Open a jar", "sol1": "turn the lid", "sol2": "<|endoftext|>"}
WINOGRANDE = {"qID": "x-1", "sentence": "The cup is in the bag because _ is small .", "option1": "the cup",
              "option2": "the cap", "answer": "1"}


def numbers(text):
    return list(text.encode())


def file_of(*examples):
    """The bytes of a file: [(label, context, [(scored, length, tokens)])], by the definition of its format."""
    stream, longest = [], 0
    for index, (label, context, rows) in enumerate(examples):
        words = [65535, 0, index, label, len(rows), len(context), *context]
        for scored, length, tokens in rows:
            words += [scored, length, len(tokens), *tokens]
        words[1] = 4 * len(words)
        longest = max(longest, words[1])
        stream += words
    return struct.pack("<256i", 20240522, 2, len(examples), longest, *[0] * 252) + \
        struct.pack(f"<{len(stream)}I", *stream)


def after(context, *endings):
    """The part of file_of() that follows the label, where all endings have one context."""
    return numbers(context), [(len(numbers(" " + e)), len(e), numbers(" " + e)) for e in endings]


class Tasks(TestCase):
    def input(self, *rows, name="in.jsonl"):
        return self.path(name, b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    def task(self, task, path, *flags, tokenizer="bytes"):
        self.prepared("task", task, "--input", path, "--tokenizer", tokenizer, "--out", self.path("out/t.bin"), *flags)
        return self.read("out/t.bin")

    def test_arc(self):
        expected = file_of((1, *after("Question: Ice is\nAnswer:", "hot", "cold", "\u00e9t\u00e9")))
        for row in (ARC, ARC_HF):
            self.assertEqual(self.task("arc", self.input(row)), expected)
        four = file_of((3, *after("Question: Ice is\nAnswer:", "1", "2", "3", "4")),
                       (1, *after("Question: Ice is\nAnswer:", "hot", "cold", "\u00e9t\u00e9")))
        other = {"question": "Ice is", "choices": {"text": list("1234"), "label": list("1234")}, "answerKey": "4"}
        self.assertEqual(self.task("arc", self.input(other, ARC)), four)
        self.assertEqual(json.loads(self.read("out/t.bin.json"))["examples"], 2)

    def test_piqa(self):
        example = after("Question: Open a jar\nAnswer:", "turn the lid", "<|endoftext|>")  # it stays text
        self.assertEqual(self.task("piqa", self.input(PIQA | {"label": 1})), file_of((1, *example)))
        labels = self.path("in-labels.lst", b"0\n1\n")
        self.assertEqual(self.task("piqa", self.input(PIQA, PIQA), "--labels", labels),
                         file_of((0, *example), (1, *example)))

    def test_winogrande(self):
        """Only the end of the sentence is scored. The options share "The cup is in the bag because the c"."""
        end = numbers(" is small .")
        expected = file_of((0, numbers("The cup is in the bag because the c"),
                            [(11, 10, numbers("up") + end), (11, 10, numbers("ap") + end)]))
        self.assertEqual(self.task("winogrande", self.input(WINOGRANDE)), expected)
        first = WINOGRANDE | {"sentence": "_ slept.", "option1": "Ann", "option2": "Bob", "answer": "2"}
        self.assertEqual(self.task("winogrande", self.input(first)),
                         file_of((1, [], [(7, 6, numbers("Ann slept.")), (7, 6, numbers("Bob slept."))])))
        spaces = first | {"option1": "Ann ", "option2": "Amy "}  # the context's last spaces count as the ending's
        self.assertEqual(self.task("winogrande", self.input(spaces)),
                         file_of((1, numbers("A"), [(8, 6, numbers("nn  slept.")), (8, 6, numbers("my  slept."))])))

    @needs("pyarrow")
    def test_parquet(self):
        import pyarrow
        import pyarrow.parquet
        path = self.path("in.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ARC_HF]), path)
        self.assertEqual(self.task("arc", path), self.task("arc", self.input(ARC)))
        self.assertIn("in.parquet", self.refused("task", "arc", "--input", self.path("in.parquet", b"PAR1"), "--out",
                                                 self.path("t.bin"), "--tokenizer", "bytes"))

    @needs("tokenizers")
    def test_tokens_that_cross_the_end_of_the_context(self):
        """A BPE that splits no words merges over it: as in lm-evaluation-harness, the tokens of the whole text count."""
        import tokenizers
        names = ["<|endoftext|>", *sorted(set("Question: jar\nAnswer x")), ": ", ": x"]
        vocab = {token: i for i, token in enumerate(names)}
        model = tokenizers.models.BPE(vocab, [(":", " "), (": ", "x")])
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.save(self.path("bpe.json"))
        row = {"goal": "jar", "sol1": "xx", "sol2": "xj", "label": 0}
        context = [*"Question", ": ", *"jar\nAnswer", ": x"]  # not ":", which the context alone ends with
        self.assertEqual(self.task("piqa", self.input(row), tokenizer=self.path("bpe.json")),
                         file_of((0, [vocab[token] for token in context], [(1, 2, [vocab["x"]]), (1, 2, [vocab["j"]])])))
        output = self.refused("task", "piqa", "--input", self.input(row | {"sol1": "x"}), "--out", self.path("t.bin"),
                              "--tokenizer", self.path("bpe.json"))
        self.assertIn("in.jsonl, line 1: a choice has no tokens of its own", output)

    def test_core_multiple_choice(self):
        row = {"query": "Q: sky?\nA:", "choices": ["blue", "black"], "gold": 0}
        expected = file_of((0, [256, *numbers("Q: sky?\nA: bl")], [(2, 2, numbers("ue")), (3, 3, numbers("ack"))]))
        self.assertEqual(self.task("core", self.input(row)), expected)
        begins = row | {"choices": ["a", "ab"], "gold": 1}
        self.assertEqual(self.task("core", self.input(begins), "--delimiter", "\\n"),
                         file_of((1, [256, *numbers("Q: sky?\nA:\n")], [(1, 1, numbers("a")), (2, 2, numbers("ab"))])))

    def test_core_schema_after_examples(self):
        rows = [{"context_options": [f"Tim {i} and", f"Tom {i} and"], "continuation": f"it {i}", "gold": i % 2}
                for i in range(5)]
        shuffled = list(rows)
        random.Random(1337).shuffle(shuffled)
        self.assertNotEqual(shuffled, rows)
        examples = []
        for index, row in enumerate(shuffled):
            others = [i for i in range(5) if i != index]
            shots = [shuffled[i] for i in random.Random(1234 + index).sample(others, 2)]
            before = "".join(f"{r['context_options'][r['gold']]} {r['continuation']}\n\n" for r in shots)
            rest = numbers("m " + row["context_options"][0][4:] + " " + row["continuation"])
            examples.append((row["gold"], [256, *numbers(before + "T")],
                             [(len(rest), len(rest), numbers("i") + rest), (len(rest), len(rest), numbers("o") + rest)]))
        self.assertEqual(self.task("core", self.input(*rows), "--shots", "2"), file_of(*examples))

    def test_refused(self):
        def refused(task, *rows, flags=()):
            output = self.refused("task", task, "--input", self.input(*rows), "--tokenizer", "bytes", "--out",
                                  self.path("t.bin"), *flags)
            self.assertIn("in.jsonl", output)
            return output

        piqa = PIQA | {"label": 0}
        self.assertIn("line 2: not a question of piqa (KeyError: 'label'); it has goal, sol1, sol2 and label, which "
                      "--labels FILE can give", refused("piqa", piqa, PIQA))
        self.assertIn("line 1: not a question of piqa (ValueError: the answer is 2, not one of 0, 1)",
                      refused("piqa", piqa | {"label": 2}))
        self.assertIn("line 1: not a question of piqa (ValueError: sol2 is '', not a text)",
                      refused("piqa", piqa | {"sol2": ""}))
        self.assertIn("record 1: not a question of piqa (TypeError", refused("piqa", ["goal"]))
        self.assertIn("has no examples", refused("piqa"))
        self.assertIn("(ValueError: the answer is 'D', not one of A, B, C)", refused("arc", ARC | {"answerKey": "D"}))
        twice = ARC_HF | {"choices": {"text": ["hot", "cold"], "label": ["B", "B"]}}
        self.assertIn("(ValueError: the answer is 'B', not exactly one of B, B)", refused("arc", twice))
        self.assertIn("(ValueError: the answer is '', not", refused("winogrande", WINOGRANDE | {"answer": ""}))
        self.assertIn("(ValueError: the sentence has no _)", refused("winogrande", WINOGRANDE | {"sentence": "A cup"}))
        self.assertIn("line 1: a choice has no tokens", refused("winogrande", WINOGRANDE | {"sentence": "It was _"}))
        fewer = {"question": "x", "choices": {"text": ["a", "b"], "label": ["A"]}, "answerKey": "A"}
        self.assertIn("there are 2 choices and 1 labels", refused("arc", fewer))
        self.assertIn("fewer than 2 choices", refused("core", {"query": "x", "choices": ["a"], "gold": 0}))
        self.assertIn("query is None", refused("core", {"query": None, "choices": ["a", "b"], "gold": 0}))
        self.assertIn("--shots 1: ", refused("core", {"query": "x", "choices": ["a", "b"], "gold": 0},
                                             flags=("--shots", "1")))
        for row, words in ((ARC_HF | {"choices": {"text": "abc", "label": ["A", "B", "C"]}}, "choices.text is 'abc', not a list"),
                           (ARC_HF | {"choices": {"text": ["a", "b"], "label": "AB"}}, "choices.label is 'AB', not a list"),
                           (ARC_HF | {"question": "\ud800"}, "UnicodeEncodeError")):
            self.assertIn(words, refused("arc", row))
        for row in ({"query": "x", "choices": "abcd", "gold": 0}, {"context_options": "ab", "continuation": "x", "gold": 0}):
            self.assertIn(", not a list)", refused("core", row))
        labels = self.path("l.lst", b"0\n1\n")
        self.assertIn("record 1: not a question of piqa (", refused("piqa", ["goal"], flags=("--labels", labels)))
        self.assertIn("line 2: not a question of piqa (ValueError: its label is 0, and that in " + labels + " is 1)",
                      refused("piqa", PIQA | {"label": -1}, PIQA | {"label": 0}, flags=("--labels", labels)))
        self.assertIn("l.lst has 2 labels", refused("piqa", PIQA, flags=("--labels", labels)))
        self.assertIn("IndexError", refused("piqa", PIQA, PIQA, PIQA, flags=("--labels", labels)))
        self.path("in.jsonl", json.dumps(piqa).encode() + b"\n\n{\n")
        self.assertIn("line 3: not JSON (",
                      self.refused("task", "piqa", "--input", self.path("in.jsonl"), "--tokenizer", "bytes", "--out",
                                   self.path("t.bin")))
        self.assertIn("nowhere: No such file", self.refused("task", "piqa", "--input", self.path("nowhere"), "--tokenizer",
                                                            "bytes", "--out", self.path("t.bin")))
        for flags in (("arc", "--labels", labels), ("piqa", "--shots", "1")):
            with self.assertRaises(SystemExit):
                self.prepare("task", *flags, "--input", "x", "--out", "y", "--tokenizer", "bytes")
