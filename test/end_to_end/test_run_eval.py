"""train_gpt eval and tasks: the numbers of the run that made the weights, scores and bits per byte as Python computes
them, equality on several ranks, and refusals.
"""

import math
import operator
import os
import random
import re
import shutil
import statistics
import struct
import unittest

from test_run_ranks import MPIRUN, run_ranks
from trainer import (CHECKPOINT, DATA, FLAGS, RESOURCES, VOCAB, Case, FinishedRun, corpus, new_path, read_json,
                     read_safetensors, run, write_as_llmc, write_choices, write_json, write_shard)

SHAPE = dict(context=64, vocab=VOCAB, layers=1, heads=1, channels=32)
SMALL = ["--layers", "1", "--channels", "32", "--heads", "1", "--precision", "fp32", "--lr", "1e-2", "--max-steps", "12"]


class Gpt2:
    """GPT-2's forward in Python's doubles, for a model with one head."""

    def __init__(self, path):
        self.tensors = {}
        for name, (_, shape, data) in read_safetensors(path).items():
            values = struct.unpack(f"<{len(data) // 4}f", data)
            rows = [values[i:i + shape[-1]] for i in range(0, len(values), shape[-1])]
            linear = ".c_" in name and len(shape) == 2
            self.tensors[name.removeprefix("transformer.")] = list(zip(*rows)) if linear else rows

    def linear(self, name, x):
        bias = self.tensors[name + ".bias"][0]
        return [sum(map(operator.mul, row, x)) + b for row, b in zip(self.tensors[name + ".weight"], bias)]

    def norm(self, name, x):
        mean = sum(x) / len(x)
        rstd = 1 / math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + 1e-5)
        weight, bias = self.tensors[name + ".weight"][0], self.tensors[name + ".bias"][0]
        return [(v - mean) * rstd * w + b for v, w, b in zip(x, weight, bias)]

    def losses(self, tokens, first):
        """-log p of tokens[first:], each after all before it."""
        return [math.log(sum(map(math.exp, logits))) - logits[token]
                for logits, token in zip(self.logits(self.outputs(tokens, first)), tokens[first:])]

    def logits(self, outputs):
        return [[sum(map(operator.mul, row, x)) for row in self.tensors["wte.weight"]] for x in outputs]

    def outputs(self, tokens, first):
        """The final norm's outputs, from which tokens[first:] are predicted."""
        hidden, residual = self.before_fc_proj(tokens)
        return self.after_fc_proj(hidden[first - 1:], residual[first - 1:])

    def before_fc_proj(self, tokens):
        """The inputs of the block's last matmul, and the residual stream to which its outputs are added."""
        wte, wpe = self.tensors["wte.weight"], self.tensors["wpe.weight"]
        keys, values, inputs, residual = [], [], [], []
        for position, token in enumerate(tokens[:-1]):
            x = list(map(operator.add, wte[token], wpe[position]))
            C = len(x)
            qkv = self.linear("h.0.attn.c_attn", self.norm("h.0.ln_1", x))
            keys.append(qkv[C:2 * C])
            values.append(qkv[2 * C:])
            scores = [math.exp(sum(map(operator.mul, qkv[:C], key)) / math.sqrt(C)) for key in keys]
            out = [sum(s * value[c] for s, value in zip(scores, values)) / sum(scores) for c in range(C)]
            x = list(map(operator.add, x, self.linear("h.0.attn.c_proj", out)))
            hidden = self.linear("h.0.mlp.c_fc", self.norm("h.0.ln_2", x))
            inputs.append([0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ** 3))) for v in hidden])
            residual.append(x)
        return inputs, residual

    def after_fc_proj(self, inputs, residual):
        return [self.norm("ln_f", list(map(operator.add, x, self.linear("h.0.mlp.c_proj", row))))
                for row, x in zip(inputs, residual)]


def rounded(value, mantissa_bits, least_exponent):
    step = 2.0 ** (max(math.frexp(value)[1] - 1, least_exponent) - mantissa_bits)
    return round(value / step) * step


def bf16(rows):
    return [[rounded(value, 7, -126) for value in row] for row in rows]


def e4m3(rows):
    """Rounds with one scale, as the recipe `current` does."""
    largest = max(abs(value) for row in rows for value in row)
    return [[rounded(value * 448 / largest, 3, -6) * largest / 448 for value in row] for row in rows]


def divergence(expected, actual):
    """The mean of KL(expected || actual) of rows of logits."""
    total = 0
    for x, y in zip(expected, actual):
        x_sum, y_sum = (math.log(sum(map(math.exp, row))) for row in (x, y))
        total += sum(math.exp(a - x_sum) * ((a - x_sum) - (b - y_sum)) for a, b in zip(x, y))
    return total / len(expected)


def write_task(examples):
    """Writes [(label, context, [(scored, length, tokens)])] in version 2 of this format."""
    path, stream = new_path("task") + ".bin", []
    for index, (label, context, rows) in enumerate(examples):
        words = [65535, 0, index, label, len(rows), len(context), *context]
        for scored, length, tokens in rows:
            words += [scored, length, len(tokens), *tokens]
        words[1] = 4 * len(words)
        stream += words
    with open(path, "wb") as file:
        file.write(struct.pack("<4i", 20240522, 2, len(examples), 0).ljust(1024, b"\0"))
        file.write(struct.pack(f"<{len(stream)}I", *stream))
    return path


def evaluate(source, *flags, ranks=None):
    """The JSON that eval writes."""
    path = new_path() + ".json"
    arguments = ["eval", "--from", source, "-b", "4", "-t", "64", "--precision", "fp32", "-o", path, *flags]
    done = run_ranks(ranks, *arguments) if ranks else run(*arguments)
    if done.code != 0:
        raise AssertionError(done)
    return read_json(path)


class Eval(Case):
    @classmethod
    def setUpClass(cls):
        """A small model, and examples scored in Python whose answers do not depend on rounding."""
        cls.trained = FinishedRun(*SMALL, "--val", corpus().val, "--val", "train=" + corpus().train, "--val-batches", "3")
        cls.model = model = Gpt2(cls.trained.path("model.safetensors"))
        chance = random.Random(1)
        cls.examples, cls.answers = [], []
        while len(cls.examples) < 26:
            context = [chance.randrange(32, 127) for _ in range(chance.randrange(1, 9))]
            completions = [[chance.randrange(32, 127) for _ in range(chance.randrange(1, 9))]
                           for _ in range(chance.choice((2, 4, 4)))]
            losses = [model.losses(context + completion, len(context)) for completion in completions]
            scores = [[sum(row) for row in losses], [sum(row) / len(row) for row in losses]]
            if all(sorted(s)[1] - sorted(s)[0] > 1e-3 for s in scores):  # FP32's errors are some 1e-5
                cls.examples.append((context, completions))
                cls.answers.append([s.index(min(s)) for s in scores])

    def scored(self, labels, *flags, **how):
        file = write_choices([(label, *example) for label, example in zip(labels, self.examples)])
        result = evaluate(self.trained.directory, "--hellaswag", file, *flags, **how)
        self.assertEqual(result["hellaswag_examples"], len(self.examples))
        return [result["hellaswag_acc"], result["hellaswag_acc_norm"]]

    def expected(self, labels):
        return [sum(answer[kind] == label for answer, label in zip(self.answers, labels)) / len(labels)
                for kind in (0, 1)]

    def test_hellaswag(self):
        by_sum, by_mean = zip(*self.answers)
        self.assertNotEqual(by_sum, by_mean)
        for labels in (by_sum, by_mean, [0] * len(by_sum), [1] * len(by_sum)):
            self.assertEqual(self.scored(labels), self.expected(labels))
        self.assertEqual(self.expected(by_sum)[0], 1)
        self.assertLess(self.expected(by_sum)[1], 1)
        self.assertEqual(self.scored(by_sum, "-b", "1"), self.expected(by_sum))

    def own_contexts(self):
        """Examples in which each completion begins with a context of its own, with the answers by both scores."""
        chance, examples, answers = random.Random(2), [], []
        while len(examples) < 12:
            shared = [chance.randrange(32, 127) for _ in range(chance.randrange(3))]
            rows, scores = [], []
            for _ in range(2):
                tokens = [chance.randrange(32, 127) for _ in range(chance.randrange(3, 8))]
                rows.append((chance.randrange(1, len(tokens)), chance.randrange(1, 9), tokens))
                scored, length, _ = rows[-1]
                loss = sum(self.model.losses(shared + tokens, len(shared + tokens) - scored))
                scores.append([loss, loss / length])
            if all(abs(a - b) > 1e-3 for a, b in zip(*scores)):
                examples.append((shared, rows))
                answers.append([int(b < a) for a, b in zip(*scores)])
        return examples, answers

    def test_tasks(self):
        examples, answers = self.own_contexts()
        by_sum, by_length = zip(*answers)
        self.assertNotEqual(by_sum, by_length)
        labels = [*by_sum[:6], *(1 - answer for answer in by_length[6:])]
        file = write_task([(label, *example) for label, example in zip(labels, examples)])
        hellaswag = write_choices([(0, *example) for example in self.examples])
        result = evaluate(self.trained.directory, "--task", f"b={file}", "--hellaswag", hellaswag, "--task",
                          f"a={hellaswag}")
        found = {key: value for key, value in result.items() if key not in ("from", "precision", "seq")}
        expected = [sum(map(operator.eq, column, labels)) / 12 for column in (by_sum, by_length)]
        self.assertNotEqual(*expected)
        names = [f"{task}_{key}" for task in ("hellaswag", "b", "a") for key in ("acc", "acc_norm")]
        self.assertEqual(list(found), names + ["val_precision", "hellaswag_examples", "b_examples", "a_examples"])
        self.assertEqual([found["b_acc"], found["b_acc_norm"], found["b_examples"]], [*expected, 12])
        first = self.expected([0] * len(self.examples))
        for name in ("hellaswag", "a"):
            self.assertEqual([found[f"{name}_acc"], found[f"{name}_acc_norm"], found[f"{name}_examples"]], [*first, 26])

        done = FinishedRun(*SMALL, "--task", f"b={file}", "--task", f"a={hellaswag}")
        last = [r for r in done.records if "b_acc" in r][-1]
        self.assertEqual([last[name] for name in names[2:]], [found[name] for name in names[2:]])
        self.assertEqual(last["step"], 12)
        self.assertIn(f"b {last['b_acc']:.4f} ({last['b_acc_norm']:.4f} normalized) | a {last['a_acc']:.4f} (",
                      done.result.out)
        self.assertIn(f"s:12 eval:{last['b_acc_norm']:.4f}\n".encode(), done.read("main.log"))

    def test_bits_per_byte(self):
        """Over the targets that are scored, without end tokens, by the bytes of these targets. The bytes are those of the
        run's tokenizer. Weights without a run have the shards' tokenizer, or the mean of their sidecar."""
        chance = random.Random(3)
        tokens = [chance.choice((256, *range(32, 48))) for _ in range(100)]
        ends = tokens.count(256)
        unknown, directory = write_shard(tokens), new_path("shards")
        os.mkdir(directory)
        shard = shutil.copy(unknown, os.path.join(directory, "val.bin"))
        losses = [(target, loss) for row in (0, 1)  # -m 1
                  for target, loss in zip(tokens[16 * row + 1:], self.model.losses(tokens[16 * row:16 * row + 17], 1))]
        scored = [(target, loss) for target, loss in losses if target != 256]
        self.assertTrue(0 < len(scored) < len(losses) == 32)
        bits = sum(loss for _, loss in scored) / math.log(2)

        def evaluated(source, batch="2", **how):
            result = evaluate(source, "--val", f"unknown={unknown}", "--val", shard, "-m", "1", "-b", batch, "-t", "16",
                              **how)
            self.assertAlmostEqual(result["val_loss"], sum(loss for _, loss in losses) / 32, delta=1e-5)
            return result

        os.mkdir(weights := new_path("weights"))
        shutil.copy(self.trained.path("model.safetensors"), weights)
        shutil.copy(self.trained.path("config.json"), weights)

        def found(*arguments, **how):
            result = evaluated(weights, *arguments, **how)
            self.assertNotIn("val_bpb_unknown", result)
            return result.get("val_bpb")

        self.assertIsNone(found())
        write_json(shard + ".json", {"bytes": 300, "tokens": 100, "documents": ends, "end_token": 256})
        self.assertAlmostEqual(found(), bits / len(scored) / (300 / (100 - ends)), delta=1e-5)

        def write_table(prefix=0, inexact=0, empty=()):  # each token has 1 to 5 bytes
            with open(os.path.join(directory, "tokenizer.bin"), "wb") as file:
                file.write(struct.pack("<6i", 20240328, 2, VOCAB, 256, prefix, inexact).ljust(1024, b"\0"))
                for i in range(VOCAB):
                    length = 0 if i in empty else 1 + i % 5
                    file.write(bytes([length]) + (b"%05d" % i)[5 - length:])

        # A tokenizer that puts a byte in front of every document's text.
        begun = sum(token == 256 != target for row in (0, 1)
                    for token, target in zip(tokens[16 * row:], tokens[16 * row + 1:16 * row + 17]))
        self.assertGreater(begun, 0)
        write_table(prefix=1)
        self.assertAlmostEqual(found(), bits / (sum(1 + target % 5 for target, _ in scored) - begun), delta=1e-5)
        # Tokens that are not text count neither in the loss nor in the bytes.
        text = [(target, loss) for target, loss in scored if target not in (33, 40)]
        self.assertLess(len(text), len(scored))
        write_table(empty=(33, 40))
        self.assertAlmostEqual(found(), sum(loss for _, loss in text) / math.log(2) / sum(1 + t % 5 for t, _ in text), delta=1e-5)
        write_table(inexact=1)
        self.assertAlmostEqual(found(), bits / len(scored) / (300 / (100 - ends)), delta=1e-5)
        write_table()
        exact = bits / sum(1 + target % 5 for target, _ in scored)
        self.assertAlmostEqual(found(), exact, delta=1e-5)
        if MPIRUN:
            self.assertAlmostEqual(found("1", ranks=2), exact, delta=1e-5)
        # The run's tokenizer has a byte per token. It is not that of the second set.
        self.refuses(DATA, ["--from", self.trained.directory, "--val", shard, "-b", "2", "-t", "16"], "token 0 is",
                     "they are different tokenizers")
        os.remove(os.path.join(directory, "tokenizer.bin"))
        of_run = evaluated(self.trained.directory)
        for name in ("val_bpb", "val_bpb_unknown"):
            self.assertAlmostEqual(of_run[name], bits / len(scored), delta=1e-5)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_three_ranks(self):
        by_sum, _ = zip(*self.answers)
        for stage in ("1", "3"):
            self.assertEqual(self.scored(by_sum, "-z", stage, ranks=3), self.expected(by_sum))
        alone, three = (evaluate(self.trained.directory, "--val", corpus().val, ranks=ranks) for ranks in (None, 3))
        self.assertAlmostEqual(alone["val_loss"], three["val_loss"], delta=1e-5)
        self.assertEqual(alone["val_hash"], three["val_hash"])

    def test_an_unfinished_run_says_which_checkpoint(self):
        folder = shutil.copytree(self.trained.directory, new_path())
        os.remove(os.path.join(folder, "model.safetensors"))
        done = self.succeeds(run("eval", "--from", folder, "--val", corpus().val, "-m", "1"))
        self.assertIn(f"{folder}/checkpoints/step_00000012: ", done.out)
        done = self.succeeds(run(*SMALL, "--train", corpus().train, "--context", "64", "-t", "64", "-x", "1", "--init-from", folder))
        self.assertIn(f"weights read from {folder}/checkpoints/step_00000012 in ", done.out)
        done = self.succeeds(run("export", "--from", folder, "--to", new_path()))
        self.assertIn(f", from {folder}/checkpoints/step_00000012\n", done.out)

    def test_while_training(self):
        by_sum, by_mean = zip(*self.answers)
        file = write_choices([(label, *example) for label, example in zip(by_mean, self.examples)])
        done = FinishedRun(*SMALL, "--hellaswag", file, "--val-every", "6")
        records = [r for r in done.records if "hellaswag_acc" in r]
        self.assertEqual([r["step"] for r in records], [0, 6, 12])
        self.assertEqual([records[-1]["hellaswag_acc"], records[-1]["hellaswag_acc_norm"]], self.expected(by_mean))
        self.assertNotEqual(records[0]["hellaswag_acc_norm"], 1, "before training it does not know")
        self.assertIn(b"s:12 eval:1.0000\n", done.read("main.log"))
        self.assertNotIn(b"tel:", done.read("main.log"))

    def test_the_loss_of_the_run(self):
        """From a checkpoint, model.safetensors and llm.c's file, eval gives the bits of the run's last validation."""
        last = [r for r in self.trained.records if "val_loss" in r][-1]
        llmc_file = write_as_llmc(SHAPE, read_safetensors(self.trained.path("model.safetensors")))
        for source in (self.trained.directory, self.trained.path("checkpoints/step_00000012"),
                       self.trained.path("model.safetensors"), llmc_file):
            result = evaluate(source, "--val", corpus().val, "--val", "train=" + corpus().train, "-m", "3")
            self.assertEqual({k: v for k, v in result.items() if k.startswith("val_")},
                             {k: v for k, v in last.items() if k.startswith("val_")}, source)
        everything = evaluate(self.trained.directory, "--val", corpus().val)
        for number in ("val_loss", "val_hash"):
            self.assertNotEqual(everything[number], last[number])
        hashes = {evaluate(self.trained.directory, "--val", corpus().val, "-m", "3", *flags)["val_hash"]
                  for flags in ([], ["-t", "32"], ["--doc-mask"])}
        self.assertEqual(len(hashes), 3, "other sequences and other attention are other validations")
        for precision in ("bf16", "fp8"):  # FP8 with scales of the tensors themselves
            other = evaluate(self.trained.directory, "--val", corpus().val, "--precision", precision)
            self.assertNotEqual(other["val_loss"], everything["val_loss"])
            self.assertAlmostEqual(other["val_loss"], everything["val_loss"], delta=0.02 * everything["val_loss"])

    def against_bf16(self, *flags, **how):
        return evaluate(self.trained.directory, "--against", "bf16", "--fp8-recipe", "current", *flags, **how)

    def test_against_bf16(self):
        """Both losses are those of eval in these precisions; equal passes differ by exactly 0; several ranks."""
        val = ["--val", corpus().val, "-m", "3"]
        found = self.against_bf16(*val, "--precision", "fp8")
        fp8, bf16 = (evaluate(self.trained.directory, *val, "--fp8-recipe", "current", "--precision", precision)["val_loss"]
                     for precision in ("fp8", "bf16"))
        against = found["against_bf16"]
        self.assertEqual(found["val_loss"], fp8)
        self.assertAlmostEqual(against["loss"], bf16, delta=1e-6)  # 768 losses in FP32 and their mean
        self.assertAlmostEqual(against["difference"], fp8 - bf16, delta=2e-6)
        self.assertTrue(0 < 10 * against["kl_error"] < against["kl"] < 0.01, against)
        self.assertGreater(against["difference_error"], 10 * against["kl_error"])
        for how in ({"precision": "bf16"}, {"precision": "fp8", "fp8-layers": "none"},
                    {"precision": "fp8", "fp8-layers": "none,+lm_head"}):  # the head's forward product is in BF16
            same = self.against_bf16(*val, *(text for name, value in how.items() for text in ("--" + name, value)))
            self.assertEqual([same["against_bf16"][name] for name in ("difference", "difference_error", "kl", "kl_error")],
                             [0] * 4)
        one = run("eval", "--from", self.trained.directory, "--val", corpus().val, "-m", "1", "-b", "1", "--precision", "fp8",
                  "--against", "bf16")
        self.assertRegex(self.succeeds(one).out, r"\nval +[\d.]+ +\S+ +- +\S+ % +\S+ +-\n")  # no error is known
        if MPIRUN:  # the ranks' batches have other scales
            three = self.against_bf16(*val, "--precision", "fp8", "-z", "3", ranks=3)["against_bf16"]
            self.assertAlmostEqual(three["kl"], against["kl"], delta=0.2 * against["kl"])

    def test_memory_for_both_models(self):
        """A device with room for one of the models refuses the comparison before it allocates."""
        def needed(*flags):
            flags = ["eval", "--from", self.trained.directory, "--val", corpus().val, "-t", "64", "--precision", "fp8", "-b", "64",
                     *flags]
            error = self.refused(run(*flags, env={"LLMC_MEMORY_MB": "1"}), RESOURCES, "; reduce -b\n").err
            return flags, float(re.search(r"this run needs ([\d.]+) MiB", error)[1])
        alone, one = needed()
        both, two = needed("--against", "bf16")
        env = {"LLMC_MEMORY_MB": str(math.ceil(one + 0.05))}
        self.assertEqual(run(*alone, "-m", "1", env=env).code, 0)
        self.assertGreater(int(two), math.ceil(one + 0.05))
        self.refused(run(*both, "-m", "1", env=env), RESOURCES)
        self.assertEqual(run(*both, "-m", "1", env={"LLMC_MEMORY_MB": str(math.ceil(two + 0.05))}).code, 0)

    def test_divergence_of_an_fp8_layer(self):
        """Computed in Python from rounded operands of the block's last matmul, with a head in BF16. The rest of Python's
        forward pass is exact, the program's in BF16, so some of the roundings fall differently: with other tokens the
        result differs by 8 to 19 %. With the weights or the inputs alone in FP8 it would be 0.26 or 0.67 of itself."""
        tokens = [(11 * i * i + 3 * i + 2) % 90 + 32 for i in range(65)]
        inputs, residual = self.model.before_fc_proj(tokens)
        tensors = dict(self.model.tensors)

        def logits(round_operands):
            self.model.tensors = {**tensors, "wte.weight": bf16(tensors["wte.weight"]),
                                  "h.0.mlp.c_proj.weight": round_operands(tensors["h.0.mlp.c_proj.weight"])}
            return bf16(self.model.logits(bf16(self.model.after_fc_proj(round_operands(inputs), residual))))
        try:
            kl = divergence(logits(bf16), logits(e4m3))
        finally:
            self.model.tensors = tensors
        found = self.against_bf16("--val", write_shard(tokens), "-b", "1", "--precision", "fp8", "--fp8-layers", "none,fc_proj")
        self.assertAlmostEqual(found["against_bf16"]["kl"], kl, delta=kl / 4)

    def test_error_of_the_divergence(self):
        """The mean of three sequences, and its error, are those of the three evaluated alone."""
        tokens = [(7 * i * i + 3 * i) % 90 + 32 for i in range(193)]
        sets = [text for i in range(3) for text in ("--val", f"{i}={write_shard(tokens[64 * i:64 * i + 65])}")]
        found = self.against_bf16("--val", write_shard(tokens), *sets, "-b", "1", "--precision", "fp8")
        for name in ("kl", "difference"):
            alone = [found[f"against_bf16_{i}"] for i in range(3)]
            self.assertEqual([values[name + "_error"] for values in alone], [None] * 3)
            values = [of_set[name] for of_set in alone]
            self.assertAlmostEqual(found["against_bf16"][name], statistics.mean(values), delta=1e-12)
            self.assertAlmostEqual(found["against_bf16"][name + "_error"], statistics.stdev(values) / 3 ** 0.5, delta=1e-12)

    def test_table(self):
        result = run("eval", "--checkpoint", self.trained.directory, "--val", corpus().val, "-t", "64", "-m", "1")
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertRegex(result.out, r"(?m)^validation set +loss +perplexity +bits per byte\nval +\d\.\d{4} +\d+\.\d{3} +\d\.\d{4}$")
        self.assertIn("bf16 on", result.out)
        result = run("eval", "--from", self.trained.directory, "--val", corpus().val, "-t", "64", "-m", "1", "--against", "bf16")
        self.assertIn("fp8 on", result.out)
        self.assertRegex(result.out, r"(?m)^against BF16 .*\nval +\d\.\d{4} +[+-]0\.\d{6} +0\.\d{6} +[+-]0\.\d{4} % +"
                                     r"\d\.\d{4}e-0\d +\d\.\de-0\d$")

    def test_notes(self):
        """Flags that change nothing, and weights of another run in this run's directory."""
        other, commands = new_path(), (["eval", "--val", corpus().val, "-m", "1"], ["sample", "-g", "1", "--prompt", "ids:1"],
                                       ["export", "--overwrite", "--to", new_path()])
        shutil.copytree(self.trained.directory, other)
        shutil.copy(FinishedRun(*SMALL, "--seed", "2").path("model.safetensors"), other)
        for command, *flags in commands:
            self.assertEqual(self.succeeds(run(command, "--from", self.trained.directory, *flags)).err.count("note: "), 0)
            self.assertIn(f"note: {other}/model.safetensors was replaced after the run wrote it\n",
                          self.succeeds(run(command, "--from", other, *flags)).err)
        self.assertIn("note: --fp8-recipe has no effect with --precision bf16\n", self.succeeds(
            run("eval", "--from", self.trained.directory, *commands[0][1:], "--fp8-recipe", "current")).err)

    def refuses(self, code, flags, *parts):
        result = run("eval", *flags)
        self.refused(result, code, *parts)
        self.assertLessEqual(len(result.err.splitlines()), 2)

    def test_refused(self):
        source = ["--from", self.trained.directory]
        good = write_choices([(0, *self.examples[0])])
        self.refuses(FLAGS, [], "--from PATH is missing")
        self.refuses(FLAGS, source, "nothing to evaluate on", "--hellaswag FILE", "--task NAME=FILE")
        self.refuses(FLAGS, [*source, "--val", corpus().val, "-m", "0"], "nothing to evaluate on")
        for name in ("run.json", "metrics.jsonl"):
            self.refuses(FLAGS, [*source, "--val", corpus().val, "--out", self.trained.path(name)], name, "a file of a run")
        self.refuses(FLAGS, [*source, "--task", good], "--task", "has no name")
        self.refuses(FLAGS, [*source, "--task", "hellaswag=x", "--hellaswag", good], "give --task x another name")
        long = write_task([(0, [1], [(1, 1, [2] * 64), (1, 1, [3])])])
        self.refuses(DATA, [*source, "--task", f"a={long}", "-t", "48"], long, "a sequence of 64 tokens, but -t is 48")
        self.refuses(FLAGS, [*source, "--task", f"a={good}", "--against", "bf16"], "--against bf16", "--val")
        self.refuses(FLAGS, [*source, "--val", corpus().val, "--batch", "0"], "--batch", "out of range")
        self.refuses(FLAGS, [*source, "--val", corpus().val, "-t", "65"], "context 64 of model", "; use -t 64\n")
        self.refuses(FLAGS, [*source, "--val", corpus().val, "--lr", "1"], "--lr")
        self.refuses(CHECKPOINT, ["--from", "nowhere", "--val", corpus().val], "nowhere")
        self.refuses(DATA, [*source, "--val", "nothing*.bin"], "nothing*.bin")
        self.refuses(DATA, [*source, "--hellaswag", corpus().val], "a token shard")
        self.refuses(DATA, [*source, "--hellaswag", good, "-t", "1"], "example 0", "-t is 1")
        foreign = write_choices([(0, [VOCAB], [[1], [2]])])
        self.refuses(DATA, [*source, "--hellaswag", foreign], f"token {VOCAB}", "another tokenizer")
        with open(good, "r+b") as file:
            file.truncate(1040)
        self.refuses(DATA, [*source, "--hellaswag", good], "ends inside")


if __name__ == "__main__":
    unittest.main()
