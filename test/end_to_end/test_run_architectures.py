"""Models of architectures other than GPT-2, from their description to text: training, resuming, exporting, evaluating.
"""

import json
import os
import re
import shutil
import unittest

from test_run_ranks import MPIRUN, run_ranks
from trainer import (BRIEF, CHECKPOINT, FLAGS, TINY_BATCH, Case, corpus, new_path, read_json, read_safetensors, run,
                     write_json)

SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "channels": 64, "head_dim": 32, "hidden": 96, "context": 64}


def described(architecture, **more):
    """Writes a model file."""
    path = new_path() + ".json"
    write_json(path, {"architecture": architecture, **SHAPE, **more})
    return path


def flags(model, *more):
    return ["--train", corpus().train, "-e", model, *TINY_BATCH, "--max-steps", "4", "--lr", "2e-3", *more]


class Architectures(Case):
    def succeeded(self, *arguments, env=None):
        return self.succeeds(run(*arguments, env=env)).out

    def assert_same_weights(self, *directories):
        one, other = (read_safetensors(os.path.join(path, "model.safetensors")) for path in directories)
        self.assertEqual(list(one), list(other))
        self.assertEqual([name for name in one if one[name] != other[name]], [])

    def check(self, model, hf_class, *more):
        whole, parts = new_path(), new_path()
        self.succeeded(*flags(model, "--out", whole, *more))
        self.succeeded(*flags(model, "--out", parts, "--stop-after", "2", *more))
        self.succeeded(*flags(model, "--out", parts, "--resume", "latest", *more))
        self.assertEqual(read_json(os.path.join(whole, "config.json"))["architectures"], [hf_class])
        self.assert_same_weights(parts, whole)
        # The same weights from a checkpoint, which describes its model, and from its Hugging Face form.
        checkpoint = os.path.join(parts, "checkpoints", sorted(os.listdir(os.path.join(parts, "checkpoints")))[-1])
        directory = new_path()
        self.succeeded("export", "--from", checkpoint, "--to", directory)
        losses = [self.succeeded("eval", "--from", source, "--val", corpus().val, "-m", "2", "-b", "2", "-t", "32",
                                 "--precision", "fp32").splitlines()[1:] for source in (checkpoint, directory)]
        self.assertEqual(losses[0], losses[1])
        texts = [self.succeeded("sample", "--from", directory, "--tokenizer", "bytes", "--prompt", "a", "-g", "20", *how)
                 for how in ([], ["--no-cache"])]
        self.assertEqual(texts[0], texts[1])
        return parts

    def test_llama(self):
        run_directory = self.check(described("llama"), "LlamaForCausalLM", "--precision", "fp8")
        self.refused(run(*flags(described("llama", rope_theta=1e4), "--precision", "fp8", "--out", run_directory,
                                "--resume", "latest")), CHECKPOINT, "holds another model", '"rope_theta":10000.0')
        self.refused(run(*flags(described("qwen3"), "--init-from", run_directory)), CHECKPOINT, "the architecture is llama")
        self.refused(run("export", "--from", run_directory, "--to", new_path(), "--format", "llmc"), CHECKPOINT,
                     "llm.c's model files hold GPT-2")

    def test_fp8_exports_are_read(self):
        """FP8 weights are those that the run's matmuls see, so evaluations in FP8 agree with them better than with BF16."""
        trained, exported = new_path(), new_path()
        self.succeeded(*flags(described("qwen2"), "--out", trained, "--precision", "fp8"))
        self.succeeded("export", "--from", trained, "--to", exported, "--dtype", "fp8")
        losses = []
        for source in (trained, exported):
            path = new_path() + ".json"
            self.succeeded("eval", "--from", source, "--val", corpus().val, "-m", "2", "-b", "2", "-t", "32", "--precision",
                           "fp32", "--out", path)
            losses.append(read_json(path)["val_loss"])
        self.assertNotEqual(*losses)
        self.assertLess(abs(losses[0] - losses[1]), 0.02 * losses[0])
        again = new_path()
        self.succeeded(*flags(exported, "--init-from", exported, "--out", again, "--max-steps", "1"))
        config = os.path.join(exported, "config.json")
        write_json(config, dict(read_json(config), quantization_config={"quant_method": "gptq"}))
        self.refused(run("eval", "--from", exported, "--val", corpus().val), CHECKPOINT, '"quant_method" is "gptq"')

    def test_weights_alone(self):
        """Without a config.json the start says which values no tensor shows, because -e may name another model."""
        trained, bare = new_path(), new_path() + ".safetensors"
        self.succeeded(*flags(described("llama"), "--out", trained, "--max-steps", "1"))
        shutil.copy(os.path.join(trained, "model.safetensors"), bare)
        for source, model, found in ((bare, described("llama", rope_theta=7.0), True), (trained, described("llama"), False)):
            out = self.succeeded(*flags(model, "--init-from", source, "--max-steps", "1"))
            self.assertEqual((f"note: {source} has no config.json" in out, '"rope_theta":7.0' in out), (found, found), out)

    def test_mistral(self):
        run_directory = self.check(described("mistral", window=8), "MistralForCausalLM", "--precision", "fp8")
        self.assertEqual(read_json(os.path.join(run_directory, "config.json"))["sliding_window"], 8)

    def test_qwen2(self):
        run_directory = self.check(described("qwen2"), "Qwen2ForCausalLM", "--precision", "bf16")
        tensors = read_safetensors(os.path.join(run_directory, "model.safetensors"))
        self.assertEqual(tensors["model.layers.1.self_attn.k_proj.bias"][1], [64])
        self.assertNotIn("model.layers.1.self_attn.o_proj.bias", tensors)

    def test_qwen3(self):
        model = described("qwen3", tied=True, window=8, window_layers="SL")
        run_directory = self.check(model, "Qwen3ForCausalLM", "--precision", "bf16")
        self.assertEqual(read_json(os.path.join(run_directory, "config.json"))["layer_types"],
                         ["sliding_attention", "full_attention"])
        self.assertIn("tied head, windows of 8 tokens in 1 of 2 layers\n",
                      self.succeeded(*flags(model), "--dry-run", "--gpu", "h100"))

    def test_nano(self):
        self.check(described("nano"), "NanoChatForCausalLM", "--precision", "bf16")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_two_processes_write_what_one_does(self):
        env = {"OMP_NUM_THREADS": "1"}  # with more threads OpenBLAS sums in another order
        for layers in ("all,+lm_head", "all,-forward,+lm_head"):
            with self.subTest(layers=layers):
                directories = new_path(), new_path()
                same = flags(described("llama"), "--precision", "fp8", "--fp8-layers", layers, "--reduce-order", "rank",
                             "--total-batch", "512", "--verify-every", "2")
                self.succeeded(*same, "--out", directories[0], env=env)
                self.succeeds(run_ranks(2, *same, "--zero", "3", "--out", directories[1], env=env))
                self.assert_same_weights(*directories)

    def test_plans_published_shapes(self):
        for name, head in (("llama3-8b", "untied"), ("qwen2.5-3b", "tied"), ("mistral-7b", "untied")):
            text = self.succeeded("-e", name, "--dry-run", "--world", "8", "--gpu", "h100", "-b", "1", "-t", "4096",
                                  "-r", "block", "-z", "3")
            self.assertRegex(text, f"[28] heads of keys and values, .* {head} head")
            for kind in ("weights", "gradients", "optimizer", "activations", "workspace"):
                self.assertRegex(text, rf"\n  {kind} +[0-9.]+ [GM]iB")

    def test_what_is_not_there_is_refused_by_name(self):
        directory = new_path()
        os.mkdir(directory)
        write_json(os.path.join(directory, "config.json"),
                   {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "intermediate_size": 96, "vocab_size": 300, "attention_bias": True})
        self.refused(run("-e", directory, "--dry-run"), FLAGS, "attention_bias")
        self.refused(run("-e", described("llama", logit_cap=30.0), "--dry-run"), FLAGS, "no such setting: logit_cap")
        self.refused(run("-e", described("mamba"), "--dry-run"), FLAGS, 'unknown architecture "mamba"')


class EveryName(Case):
    """Every name of -e list whose model is not too large trains a step, and the others are planned. Only layers are left
    out, and the data has a small vocabulary. dev/soak.sh trains all but llama3-70b.
    """

    NARROW = ["--layers", "1", "-b", "1", "-t", "32", "--max-steps", "1"]
    MOST = float(os.environ.get("LARGEST_GIB", "0.35" if BRIEF else "1.1"))

    def test_every_name_trains_a_step(self):
        names = re.findall(r"[\w.-]+", run("-e", "list").out.split(":", 1)[1].split(";")[0])
        self.assertGreater(len(names), 30)
        too_large = set()
        for name in names:
            with self.subTest(name=name):
                flags = ["--train", corpus().train, "-e", name, *self.NARROW]
                result = run(*flags, "--dry-run", "--json", "--gpu", "b300")
                memory = json.loads(result.out)["memory"]
                if memory["total"] - memory["libraries"] > self.MOST * 2**30:
                    too_large.add(name)
                    continue
                done = self.succeeds(run(*flags))
                self.assertRegex(done.out, r"step +1/1 \| loss \d+\.\d+ \| norm \d")
                self.assertNotIn("first pass went wrong", done.out)
        # One of each family is small enough.
        for family in ("gpt2", "gpt3", "d2", "nano", "qwen2.5", "qwen3"):
            self.assertTrue(any(name.startswith(family) for name in set(names) - too_large), family)
        if self.MOST == 6:
            self.assertEqual(too_large, {"llama3-70b"})


if __name__ == "__main__":
    unittest.main()
