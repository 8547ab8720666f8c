"""Hugging Face's transformers and this program give the same losses for weights that the other has written.

Needs the Python packages torch and transformers, which scripts/setup.sh does not install; skipped without them.
"""

import importlib.util
import json
import os
import struct
import unittest

from test_run_architectures import described, flags
from test_run_prompts import prepare, tokenizers
from test_run_sample import HAS_TOKENIZERS
from trainer import ROOT, TINY_BATCH, Case, corpus, new_path, read_bytes, read_json, run, write_json, write_shard

BATCH, LENGTH = 4, 32
PACKAGES = ("torch", "transformers")

# Sums of at most a few hundred terms of order 1, added in two orders: each errs by at most 2^-24 times their number.
SAME = 2e-5


@unittest.skipUnless(all(map(importlib.util.find_spec, PACKAGES)), "torch and transformers are not installed")
class Transformers(Case):
    def succeeded(self, *arguments):
        self.succeeds(run(*arguments))

    def our_loss(self, directory):
        path = new_path() + ".json"
        self.succeeded("eval", "--from", directory, "--val", corpus().val, "-m", "1", "-b", BATCH, "-t", LENGTH,
                       "--precision", "fp32", "--out", path)
        return read_json(path)["val_loss"]

    def their_model(self, directory):
        import transformers
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()

    def their_loss(self, model):
        import torch
        with open(corpus().val, "rb") as file:
            tokens = struct.unpack(f"<{BATCH * LENGTH + 1}H", file.read(1024 + 2 * (BATCH * LENGTH + 1))[1024:])
        inputs, targets = (torch.tensor(part).view(BATCH, LENGTH) for part in (tokens[:-1], tokens[1:]))
        with torch.no_grad():
            logits = model(input_ids=inputs).logits.double()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()

    def check_end_token(self, directory, model):
        import transformers
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.assertEqual((tokenizer.eos_token_id, tokenizer.bos_token_id), (256, 256))
        self.assertEqual((model.config.eos_token_id, model.generation_config.eos_token_id), (256, 256))
        self.assertEqual(tokenizer("dan koc").input_ids, list(b"dan koc"))

    def check(self, name, model):
        trained, back = new_path(), new_path()
        self.succeeded(*flags(model, "--out", trained, "--precision", "fp32"))
        for dtype in ("fp32", "bf16"):
            exported = new_path()
            self.succeeded("export", "--from", trained, "--to", exported, "--dtype", dtype)
            theirs = self.their_model(exported)
            self.check_end_token(exported, theirs)
            self.assertEqual(type(theirs).__name__, name)
            self.assertLess(abs(self.their_loss(theirs) - self.our_loss(exported)), SAME)
        theirs.save_pretrained(back)
        self.assertIn("model.safetensors", os.listdir(back))
        self.assertLess(abs(self.their_loss(theirs) - self.our_loss(back)), SAME)
        # Trained weights, not those of a fresh model of the same shape.
        fresh = type(theirs)(theirs.config)
        self.assertGreater(abs(self.their_loss(fresh) - self.their_loss(theirs)), 100 * SAME)

    def test_gpt2(self):
        path = new_path() + ".json"
        write_json(path, {"layers": 2, "heads": 2, "channels": 64, "context": 64})
        self.check("GPT2LMHeadModel", path)

    def test_llama(self):
        scaling = {"factor": 8, "low_freq": 1, "high_freq": 4, "old_context": 32}
        self.check("LlamaForCausalLM", described("llama", rope_scaling=scaling))

    def test_qwen3(self):
        self.check("Qwen3ForCausalLM", described("qwen3", tied=True))

    def test_qwen3_in_windows(self):
        self.check("Qwen3ForCausalLM", described("qwen3", tied=True, window=8, window_layers="SL"))

    def test_nano(self):
        self.check("NanoChatForCausalLM", described("nano", kv_heads=4))


@unittest.skipUnless(HAS_TOKENIZERS and all(map(importlib.util.find_spec, PACKAGES)),
                     "torch, transformers or tokenizers are not installed")
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

    def test_llama2(self):
        self.check("llama2", 1)

    def test_llama3(self):
        self.check("llama3", 500)


if __name__ == "__main__":
    unittest.main()
