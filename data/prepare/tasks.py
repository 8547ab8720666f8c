"""`prepare task`: ARC, PIQA, Winogrande and the tasks of nanochat's CORE, from the files that their authors or Hugging
Face publish, as multiple-choice questions for train_gpt.

The file is HellaSwag's (hellaswag.py) in version 2: uint32 instead of uint16, and in front of each ending the number of
its last tokens that are scored and the length by which the normalized score is divided. So every vocabulary fits, and
endings may begin with a part of the context that is their own. Prompts, scored tokens and lengths are those of
EleutherAI's lm-evaluation-harness, for CORE those of nanochat.
"""

import array
import os
import random

from .hellaswag import START, common, list_of, write_file
from .readers import rows
from .shard import open_regular
from .tokenizers import PrepareError

WIDE_VERSION = 2

# ---- what a row says ------------------------------------------------------------------------------------------------


def text_of(row, *keys):
    """row[key][key]..., which must be a text with a visible character."""
    for key in keys:
        row = row[key]
    if not isinstance(row, str) or not row.strip():
        raise ValueError(f"{'.'.join(map(str, keys))} is {row!r}, not a text")
    return row


def answer_of(text, answers):
    if answers.count(str(text)) != 1:
        raise ValueError(f"the answer is {text!r}, not {'exactly ' * (str(text) in answers)}one of {', '.join(answers)}")
    return answers.index(str(text))


def arc(row):
    if isinstance(row["question"], dict):  # as published; else Hugging Face's
        question, choices = text_of(row, "question", "stem"), row["question"]["choices"]
        texts, labels = [text_of(choice, "text") for choice in choices], [choice["label"] for choice in choices]
    else:
        question, labels = text_of(row, "question"), list_of(row, "choices", "label")
        texts = [text_of(row, "choices", "text", i) for i in range(len(list_of(row, "choices", "text")))]
    if len(labels) != len(texts):
        raise ValueError(f"there are {len(texts)} choices and {len(labels)} labels")
    return [(f"Question: {question}\nAnswer:", text) for text in texts], answer_of(row["answerKey"], labels)


def piqa(row):
    context = f"Question: {text_of(row, 'goal')}\nAnswer:"
    return [(context, text_of(row, "sol1")), (context, text_of(row, "sol2"))], answer_of(row["label"], ["0", "1"])


def winogrande(row):
    """The options differ in their context; what is scored is the rest of the sentence, which they share."""
    before, gap, rest = text_of(row, "sentence").partition("_")
    if not gap:
        raise ValueError("the sentence has no _")
    return ([(before + text_of(row, option), rest.strip()) for option in ("option1", "option2")],
            answer_of(row["answer"], ["1", "2"]))


def core(row):
    """Returns (context, ending) pairs without the delimiter between them: one context or one ending is the same."""
    if "context_options" in row:
        ending = text_of(row, "continuation")
        pairs = [(text_of(row, "context_options", i), ending) for i in range(len(list_of(row, "context_options")))]
    else:
        pairs = [(row["query"], text_of(row, "choices", i)) for i in range(len(list_of(row, "choices")))]
        if not isinstance(row["query"], str):
            raise ValueError(f"query is {row['query']!r}, not a text")
    return pairs, answer_of(row["gold"], [str(i) for i in range(len(pairs))])


TASKS = {  # the function that reads a row, and what a row has
    "arc": (arc, "question, choices and answerKey"),
    "piqa": (piqa, "goal, sol1, sol2 and label, which --labels FILE can give"),
    "winogrande": (winogrande, "sentence, option1, option2 and answer"),
    "core": (core, "query, choices and gold, or context_options, continuation and gold"),
}


def read_questions(task, path, labels_path=None):
    """Returns [([(context, ending), ...], index of the right one, where it is)]."""
    read, needs = TASKS[task]
    labels = None
    if labels_path:
        with open_regular(labels_path) as file:
            labels = file.read().decode(errors="replace").split()
    questions = []
    for where, row in rows(path):
        try:
            if labels is not None:
                label = labels[len(questions)]
                if str(row.get("label", label)) not in (label, "-1"):  # -1 says that it is not known
                    raise ValueError(f"its label is {row['label']}, and that in {labels_path} is {label}")
                row = row | {"label": label}
            pairs, right = read(row)
            "".join(text for pair in pairs for text in pair).encode()  # raises an error for what is no Unicode
            if len(pairs) < 2:
                raise ValueError("there are fewer than 2 choices")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise PrepareError(f"{where}: not a question of {task} ({type(error).__name__}: {error}); it "
                               f"has {needs}") from None
        questions.append((pairs, right, where))
    if labels is not None and len(labels) != len(questions):
        raise PrepareError(f"{labels_path} has {len(labels)} labels, {path} has {len(questions)} questions")
    return questions


# ---- tokens ---------------------------------------------------------------------------------------------------------


def encode_pair(context, ending, tokenizer):
    """(tokens, scored, length) as lm-evaluation-harness has them: the tokens of the whole text, scored after those of the
    context, whose spaces at the end belong to the ending. The length is in characters.
    """
    tokens = tokenizer.encode(context + " " + ending).tolist()
    return tokens, len(tokens) - len(tokenizer.encode(context.rstrip())), len(ending)


def core_prompts(questions, index, shots, delimiter):
    """The texts of a question of CORE, after `shots` others that nanochat would draw."""
    def joined(pair):
        return pair[0] + delimiter + pair[1]

    others = [i for i in range(len(questions)) if i != index]
    drawn = random.Random(1234 + index).sample(others, shots) if shots else []
    before = "".join(joined(questions[i][0][questions[i][1]]) + "\n\n" for i in drawn)
    return [before + joined(pair) for pair in questions[index][0]]


def encode_core(prompts, pairs, tokenizer):
    """[(tokens, scored, length)] as nanochat has them: scored are the tokens after those that all prompts begin with, or
    if the contexts differ those that all prompts end with. The length is their number.
    """
    rows = [[tokenizer.end_token, *tokenizer.encode(prompt).tolist()] for prompt in prompts]
    if len({context for context, _ in pairs}) > 1:
        shared = min(common([row[::-1] for row in rows]), min(map(len, rows)) - 1)
        return [(row, shared, shared) for row in rows]
    start = min(common(rows), min(map(len, rows)) - 1)  # an ending that begins another keeps a token
    return [(row, len(row) - start, len(row) - start) for row in rows]


def prepare_task(task, out, tokenizer, path, labels=None, shots=0, delimiter=" "):
    """Writes `out` and its sidecar."""
    questions = read_questions(task, path, labels)
    if task == "core":
        random.Random(1337).shuffle(questions)  # nanochat's order, which decides the examples in front
    if shots and shots >= len(questions):
        raise PrepareError(f"--shots {shots}: {path} has {len(questions)} questions")
    bodies = []
    for index, (pairs, right, where) in enumerate(questions):
        if task == "core":
            choices = encode_core(core_prompts(questions, index, shots, delimiter), pairs, tokenizer)
        else:
            choices = [encode_pair(context, ending, tokenizer) for context, ending in pairs]
        if min(min(scored, length) for _, scored, length in choices) < 1:
            raise PrepareError(f"{where}: a choice has no tokens of its own that could be scored")
        shared = common([tokens[:len(tokens) - scored] for tokens, scored, _ in choices])
        body = [START, 0, index, right, len(choices), shared, *choices[0][0][:shared]]
        for tokens, scored, length in choices:
            body += [scored, length, len(tokens) - shared, *tokens[shared:]]
        body[1] = 4 * len(body)
        bodies.append(array.array("I", body))
    write_file(out, tokenizer, bodies, WIDE_VERSION, os.path.basename(path))
