"""Hugging Face's transformers and this program compute the same for weights that the other has written, and for every
config.json that the program accepts.

Needs the Python packages torch and transformers, and compressed-tensors for FP8, which scripts/setup.sh does not
install; skipped without them. dev/soak.sh runs it with every Python in TRANSFORMERS_PYTHONS, to test several versions.
"""

import copy
import importlib.util
import json
import os
import struct
import unittest

from test_run_architectures import described, flags
from test_run_prompts import prepare, tokenizers
from test_run_sample import HAS_TOKENIZERS
from trainer import (ROOT, TINY_BATCH, Case, corpus, new_path, read_bytes, read_json, read_records, run, write_json,
                     write_shard)

BATCH, LENGTH = 4, 32
FIRST = 2  # tokens of a row, for the loss of the first
PACKAGES = ("torch", "transformers")

# Sums of at most a few hundred terms of order 1, added in two orders: each errs by at most 2^-24 times their number.
SAME = 2e-5
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+")
SCALING = {"factor": 8, "low_freq": 1, "high_freq": 4, "old_context": 32}


def installed(*packages):
    return all(map(importlib.util.find_spec, packages))


@unittest.skipUnless(installed(*PACKAGES), "torch and transformers are not installed")
class WithTransformers(Case):
    def succeeded(self, *arguments):
        return self.succeeds(run(*arguments)).out

    def evaluated(self, directory, length=LENGTH):
        """The result of an evaluation, and the path of its report."""
        path = new_path() + ".json"
        return run("eval", "--from", directory, "--val", corpus().val, "-m", "1", "-b", BATCH, "-t", length,
                   "--precision", "fp32", "--out", path), path

    def our_loss(self, directory, length=LENGTH):
        result, path = self.evaluated(directory, length)
        self.succeeds(result)
        return read_json(path)["val_loss"]

    def their_model(self, directory):
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()

    def their_loss(self, model, length=LENGTH):
        import torch
        with open(corpus().val, "rb") as file:
            tokens = struct.unpack(f"<{BATCH * length + 1}H", file.read(1024 + 2 * (BATCH * length + 1))[1024:])
        inputs, targets = (torch.tensor(part).view(BATCH, length) for part in (tokens[:-1], tokens[1:]))
        with torch.no_grad():
            logits = model(input_ids=inputs, return_dict=True).logits.double()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()

    def trained(self, model, *more):
        directory = new_path()
        self.succeeded(*flags(model, "--out", directory, "--precision", "fp32", *more))
        return directory

    def exported(self, directory, dtype):
        path = new_path()
        self.succeeded("export", "--from", directory, "--to", path, "--dtype", dtype)
        return path

    def needs(self, hf_class):
        import transformers
        if not hasattr(transformers, hf_class):
            self.skipTest(f"transformers {transformers.__version__} has no {hf_class}")


def gpt2():
    path = new_path() + ".json"
    write_json(path, {"layers": 2, "heads": 2, "channels": 64, "context": 64})
    return path


# Models by the class that transformers has for them.
MODELS = {
    "GPT2LMHeadModel": [gpt2],
    "LlamaForCausalLM": [lambda: described("llama", rope_scaling=SCALING), lambda: described("llama", tied=True)],
    "MistralForCausalLM": [lambda: described("mistral"), lambda: described("mistral", window=8)],
    "Qwen2ForCausalLM": [lambda: described("qwen2", tied=True), lambda: described("qwen2", window=8, window_layers="LS")],
    "Qwen3ForCausalLM": [lambda: described("qwen3", tied=True), lambda: described("qwen3", window=8, window_layers="SL")],
    "NanoChatForCausalLM": [lambda: described("nano", kv_heads=4)],
}


class Transformers(WithTransformers):
    """Exports in every format: losses, also of the first tokens, texts, and the way back."""

    def check_end_token(self, directory, model):
        import transformers
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.assertEqual((tokenizer.eos_token_id, tokenizer.bos_token_id), (256, 256))
        self.assertEqual((model.config.eos_token_id, model.generation_config.eos_token_id), (256, 256))
        self.assertEqual(tokenizer("dan koc").input_ids, list(b"dan koc"))

    def check_text(self, directory, model):
        """Both take the most likely byte every time."""
        import torch
        prompt, count = "dan ", 24
        ours = self.succeeded("sample", "--from", directory, "--tokenizer", "bytes", "--prompt", prompt, "-g", count,
                              "--temperature", "0", "--precision", "fp32")
        with torch.no_grad():
            ids = model.generate(torch.tensor([list(prompt.encode())]), max_new_tokens=count, do_sample=False)[0]
        theirs = bytes(token for token in ids.tolist() if token < 256).decode(errors="replace")
        self.assertIn(theirs, ours)

    def check(self, name, model):
        trained, back = self.trained(model), new_path()
        for dtype in ("fp32", "bf16", "fp8"):
            if dtype == "fp8" and (name == "GPT2LMHeadModel" or not installed("compressed_tensors")):
                continue
            with self.subTest(dtype=dtype):
                exported = self.exported(trained, dtype)
                theirs = self.their_model(exported)
                self.check_end_token(exported, theirs)
                self.assertEqual(type(theirs).__name__, name)
                for length in (LENGTH, FIRST):
                    self.assertLess(abs(self.their_loss(theirs, length) - self.our_loss(exported, length)), SAME)
                self.check_text(exported, theirs)
            if dtype == "bf16":
                kept = theirs
        kept.save_pretrained(back)
        self.assertIn("model.safetensors", os.listdir(back))
        self.assertLess(abs(self.their_loss(kept) - self.our_loss(back)), SAME)
        # Trained weights, not those of a fresh model of the same shape.
        fresh = type(kept)(kept.config)
        self.assertGreater(abs(self.their_loss(fresh) - self.their_loss(kept)), 100 * SAME)

    def logits(self, model, tokens, length):
        import torch
        with torch.no_grad():
            logits = [model(input_ids=part, return_dict=True).logits.double() for part in tokens.view(-1, length).split(16)]
        return torch.cat(logits).flatten(0, 1)

    def test_validation_of_an_fp8_run(self):
        """It equals that of the exported weights in transformers in BF16.

        Both round to BF16, but in different places, so predictions differ. If KL is the divergence of BF16's predictions from
        FP32's, each mean loss over n tokens is KL off, with an error of sqrt(2 KL / n) for the tokens that follow in the data."""
        import torch
        import transformers
        length = 64
        with open(corpus().val, "rb") as file:
            tokens = torch.tensor(struct.unpack("<7681H", file.read(1024 + 2 * 7681)[1024:]))
        for model in (gpt2, lambda: described("llama")):
            directory = new_path()
            self.succeeded(*flags(model(), "--out", directory, "--precision", "fp8", "--val", corpus().val, "-t", length,
                                  "--val-batches", "30", "--max-steps", "60"))
            ours = [r["val_loss"] for r in read_records(directory) if "val_loss" in r][-1]
            path = self.exported(directory, "bf16")
            exact, rounded = (self.logits(transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval(),
                                          tokens[:-1], length) for dtype in ("float32", "bfloat16"))
            theirs = torch.nn.functional.cross_entropy(rounded, tokens[1:]).item()
            kl = torch.nn.functional.kl_div(rounded.log_softmax(1), exact.log_softmax(1), reduction="batchmean",
                                            log_target=True).item()
            self.assertLess(abs(ours - theirs), 2 * kl + 4 * (4 * kl / 7680) ** 0.5)

    def test_exports(self):
        for name, models in MODELS.items():
            for number, model in enumerate(models):
                with self.subTest(name=name, number=number):
                    self.needs(name)
                    self.check(name, model())


# Values to try instead of this one.
def others(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 2, None]
    if isinstance(value, list):
        return [value[::-1], value[1:], None]
    if isinstance(value, dict):
        return [None]
    return [True, 1, "other"] if value is None else ["other", None]


# Keys of other models and of earlier versions, which a file may have as well.
MORE = {"head_dim": 64, "attention_bias": True, "mlp_bias": True, "sliding_window": 3, "use_sliding_window": True,
        "max_window_layers": 0, "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 100.0,
        "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16, "n_inner": 100, "n_ctx": 32,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0, "type": "linear"}, "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0}, "final_logit_softcapping": 1.0,
        "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "unknown_to_everyone": 1}


class EveryKey(WithTransformers):
    """Each key of a config.json that transformers itself wrote is removed and changed. The program refuses the file, or
    has the same loss as transformers. If transformers cannot load it, the change must make no difference here.
    """

    def changed(self, config):
        """Yields (what was done, a changed config)."""
        places = [()] + [(key,) for key, value in config.items() if isinstance(value, dict)]
        for place in places:
            inside = config[place[0]] if place else config
            for key in inside:
                for value in [..., *others(inside[key])]:
                    yield (*place, key, "removed" if value is ... else value), self.set(config, (*place, key), value)
                if place:
                    yield (*place, key, "outside"), self.set(self.set(config, (*place, key), ...), (key,), inside[key])
        for key, value in MORE.items():
            if config.get(key) != value:
                yield (key, value), self.set(config, (key,), value)

    def set(self, config, path, value):
        config = copy.deepcopy(config)
        inside = config
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        if value is ...:
            del inside[path[-1]]
        return config

    def complete(self, directory):
        """Writes every key of the class's configuration, not only those that differ from its defaults."""
        import transformers
        path = os.path.join(directory, "config.json")
        config = transformers.AutoConfig.from_pretrained(directory)
        values = {**config.to_dict(), **read_json(path)}
        if "rope_parameters" not in type(config)().to_dict():
            values.pop("rope_parameters", None)  # version 4 copies the key from our file, and does not read it
        write_json(path, values)
        return path, values

    def check(self, model):
        saved = new_path()
        self.their_model(self.exported(self.trained(model), "fp32")).save_pretrained(saved)
        path, config = self.complete(saved)
        plain = self.our_loss(saved)
        self.assertLess(abs(self.their_loss(self.their_model(saved)) - plain), SAME)
        accepted, moved = 0, 0
        for what, changed in self.changed(config):
            write_json(path, changed)
            result, report = self.evaluated(saved)
            if result.code != 0:
                continue
            accepted += 1
            with self.subTest(changed=what):
                ours = read_json(report)["val_loss"]
                moved += abs(ours - plain) > SAME
                try:
                    theirs = self.their_loss(self.their_model(saved))
                except Exception:  # of many classes
                    theirs = plain
                self.assertLess(abs(theirs - ours), SAME)
        self.assertGreater(accepted, 20)
        return moved

    def test_keys(self):
        moved = 0
        for name, models in MODELS.items():
            for number, model in enumerate(models):
                with self.subTest(name=name, number=number):
                    self.needs(name)
                    moved += self.check(model())
        self.assertGreater(moved, 5)  # the test can see a difference


@unittest.skipUnless(HAS_TOKENIZERS and installed(*PACKAGES), "torch, transformers or tokenizers are not installed")
class Documents(Case):
    """The tokenizer of an export gives the ids of the shards, with the token that begins documents. So the first tokens of
    documents have the loss that they have in the run.
    """

    def check(self, kind, begin):
        import torch
        import transformers
        folder, directory, exported, first = new_path("shards"), new_path(), new_path(), 16
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            texts = [text.strip() for text in file.read().split("\n\n")]
        texts = [text for text in texts if len(text) > 40]
        with open(new_path("texts") + ".jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        prepare("text", file.name, "--tokenizer", tokenizers()[kind][0], "--val-fraction", "0", "--out", folder)
        self.assertEqual(read_json(os.path.join(folder, "train_000000.bin.json"))["end_token"], begin)
        shard = os.path.join(folder, "train_000000.bin")
        self.succeeds(run("--train", shard, "-e", described("llama"), *TINY_BATCH, "--max-steps", "30", "--lr", "1e-2",
                          "--out", directory, "--precision", "fp32"))
        self.succeeds(run("export", "--from", directory, "--to", exported))

        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype="float32").eval()
        self.assertEqual({tokenizer.bos_token_id, tokenizer.eos_token_id, model.config.bos_token_id,
                          model.config.eos_token_id, model.generation_config.bos_token_id,
                          model.generation_config.eos_token_id}, {begin})
        theirs = [tokenizer(text).input_ids for text in texts]
        content = read_bytes(shard)[1024:]
        tokens = struct.unpack(f"<{len(content) // 2}H", content)
        starts = [i for i, token in enumerate(tokens) if token == begin] + [len(tokens)]
        self.assertEqual(sorted(theirs), sorted(list(tokens[a:b]) for a, b in zip(starts, starts[1:])))

        def loss(rows):
            inputs = torch.tensor(rows)
            with torch.no_grad():
                logits = model(input_ids=inputs[:, :-1]).logits.double()
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten()).item()

        rows = [ids[:first] for ids in theirs if len(ids) >= first]
        rows = rows[:len(rows) // BATCH * BATCH]
        beginnings = write_shard([token for row in rows for token in row] + [begin])
        self.succeeds(run("eval", "--from", directory, "--val", beginnings, "-b", BATCH, "-t", first, "--precision",
                          "fp32", "--out", directory + ".json"))
        whole = [[*row, begin] for row in rows]
        self.assertLess(abs(loss(whole) - read_json(directory + ".json")["val_loss"]), SAME)
        self.assertGreater(abs(loss([[row[1], *row[1:]] for row in whole]) - loss(whole)), 20 * SAME)

    def test_every_architecture(self):
        """AutoTokenizer gives the ids of tokenizer.json, or the export says how to get them."""
        import tokenizers as library
        import transformers
        transformers.logging.set_verbosity_error()
        folder, text = new_path("shards"), "In 1066, caf\u00e9s (12,345 of them) weren't open."
        prepare("text", "README.md", "--tokenizer", tokenizers()["llama3"][0], "--val-fraction", "0", "--out", folder)
        expected = library.Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(text, add_special_tokens=False).ids
        for name in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "nano"):
            with self.subTest(name=name):
                directory, exported = new_path(), new_path()
                self.succeeds(run("--train", os.path.join(folder, "train_000000.bin"), "-e",
                                  gpt2() if name == "gpt2" else described(name, kv_heads=4), *TINY_BATCH, "--max-steps", "1",
                                  "--out", directory, "--precision", "fp32"))
                noted = "note: transformers 5" in self.succeeds(run("export", "--from", directory, "--to", exported)).out
                self.assertEqual(noted, name == "qwen2")
                how = transformers.PreTrainedTokenizerFast if noted else transformers.AutoTokenizer
                self.assertEqual(how.from_pretrained(exported)(text, add_special_tokens=False).input_ids, expected)
                if noted:
                    tokenizer = read_json(os.path.join(exported, "tokenizer.json"))
                    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = QWEN2_SPLIT
                    write_json(qwens := new_path() + ".json", tokenizer)
                    done = run("export", "--from", directory, "--to", new_path(), "--tokenizer", qwens)
                    self.assertNotIn("note: transformers 5", self.succeeds(done).out)

    def test_llama2(self):
        self.check("llama2", 1)

    def test_llama3(self):
        self.check("llama3", 500)


if __name__ == "__main__":
    unittest.main()
