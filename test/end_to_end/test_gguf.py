"""scripts/to_gguf.py: exports of each architecture as GGUF, read back by the gguf package and, where they are installed,
by torch and transformers, which read GGUF with code of their own; and refusals.
"""

import fcntl
import importlib.util
import json
import math
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import unittest

from test_run_architectures import described, flags
from test_transformers import gpt2
from trainer import ROOT, Case, new_path, read_bytes, read_json, read_safetensors, run, write_json

HAS_GGUF, HAS_TRANSFORMERS = (all(map(importlib.util.find_spec, packages)) for packages in (
    ("gguf", "numpy"), ("torch", "transformers", "accelerate")))
SCALING = {"factor": 8, "low_freq": 1, "high_freq": 4, "old_context": 32}


def to_gguf(directory, path, *more):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "to_gguf.py"), directory, path, *more],
                          capture_output=True, text=True, timeout=120, check=False)


@unittest.skipUnless(HAS_GGUF, "the Python package gguf is not installed")
class Gguf(Case):
    @classmethod
    def setUpClass(cls):
        cls.exports = {}
        for name, model in (("gpt2", gpt2()), ("llama", described("llama", rope_scaling=SCALING)),
                            ("mistral", described("mistral")), ("qwen2", described("qwen2")), ("qwen3", described("qwen3")),
                            ("nano", described("nano"))):
            out, cls.exports[name] = new_path(), new_path()
            for command in (flags(model, "--out", out, "--precision", "fp32"),
                            ["export", "--from", out, "--to", cls.exports[name], "--dtype", "fp32"]):
                done = run(*command)
                assert done.code == 0, done.err

    def converted(self, name, kind):
        path = new_path() + ".gguf"
        done = to_gguf(self.exports[name], path, "--type", kind)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(os.listdir(os.path.dirname(path)).count(os.path.basename(path) + ".tmp"), 0)
        return path

    def test_progress_is_for_terminals(self):
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        command = [sys.executable, os.path.join(ROOT, "scripts", "to_gguf.py"), self.exports["llama"], new_path() + ".gguf"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=end, check=True)
        os.close(end)
        shown = os.read(terminal, 1 << 16)
        self.assertIn(b"converting: ", shown)
        self.assertIn(b"Writing: 100%", shown)
        self.assertEqual(to_gguf(self.exports["llama"], new_path() + ".gguf").stderr, "")

    def test_what_is_in_the_file(self):
        import gguf
        import numpy
        for name, arch in (("gpt2", "gpt2"), ("llama", "llama"), ("mistral", "llama"), ("qwen2", "qwen2"),
                           ("qwen3", "qwen3")):
            with self.subTest(name):
                reader = gguf.GGUFReader(self.converted(name, "f32"))
                config = read_json(os.path.join(self.exports[name], "config.json"))
                tokenizer = read_json(os.path.join(self.exports[name], "tokenizer.json"))
                field = lambda key: reader.get_field(key).contents()
                self.assertEqual(field("general.architecture"), arch)
                self.assertEqual(field(f"{arch}.block_count"), config.get("num_hidden_layers", config.get("n_layer")))
                self.assertEqual(field("tokenizer.ggml.pre"), "gpt-2")
                self.assertEqual(len(field("tokenizer.ggml.tokens")), config["vocab_size"])
                self.assertEqual(field("tokenizer.ggml.tokens")[40], {i: t for t, i in tokenizer["model"]["vocab"].items()}[40])
                self.assertEqual(field("tokenizer.ggml.bos_token_id"), config["bos_token_id"])
                self.assertFalse(field("tokenizer.ggml.add_bos_token"))
                # No number is lost: the tensors have the numbers of the export, in some order of rows or columns.
                numbers = [numpy.frombuffer(data, "<f4") for _, _, data in
                           read_safetensors(os.path.join(self.exports[name], "model.safetensors")).values()]
                found = [tensor.data.ravel() for tensor in reader.tensors if tensor.name != "rope_freqs.weight"]
                for parts in (numbers, found):
                    parts[:] = [numpy.sort(numpy.concatenate(parts))]
                self.assertTrue(numpy.array_equal(*numbers, *found))
                if name == "llama":
                    self.assertEqual(sum(tensor.name == "rope_freqs.weight" for tensor in reader.tensors), 1)

    def test_the_older_name_of_the_kind_of_scaling(self):
        import gguf
        scaling = dict(read_json(os.path.join(self.exports["llama"], "config.json"))["rope_scaling"])
        scaling["type"] = scaling.pop("rope_type")
        for kind, factors in ((scaling, 1), ({"type": "default"}, 0), (None, 0)):
            path = new_path() + ".gguf"
            done = to_gguf(self.changed("llama", "config.json", rope_parameters=None, rope_scaling=kind), path)
            self.assertEqual(done.returncode, 0, done.stderr)
            names = [tensor.name for tensor in gguf.GGUFReader(path).tensors]
            self.assertEqual(names.count("rope_freqs.weight"), factors, kind)

    def test_a_chat_model_with_several_end_tokens(self):
        import gguf
        path = new_path() + ".gguf"
        done = to_gguf(self.changed("llama", "config.json", eos_token_id=[40, 41]), path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(gguf.GGUFReader(path).get_field("tokenizer.ggml.eos_token_id").contents(), 40)

    @unittest.skipUnless(HAS_TRANSFORMERS, "torch, transformers and accelerate are not installed")
    def test_transformers_computes_the_same(self):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        ids = torch.arange(64).view(2, 32) * 3
        # Roundings of BF16 (2^-9) and Q8_0 (half of 1/127 of the largest of 32) add up over two layers.
        for kind, bound in (("f32", 0), ("bf16", 0.02), ("q8_0", 0.05)):
            for name in ("gpt2", "llama", "qwen2", "qwen3"):
                with self.subTest(name, type=kind):
                    path = self.converted(name, kind)
                    config = transformers.AutoConfig.from_pretrained(self.exports[name])
                    with torch.no_grad():
                        theirs, ours = (load(dtype="float32").eval()(input_ids=ids).logits for load in (
                            lambda **more: transformers.AutoModelForCausalLM.from_pretrained(self.exports[name], **more),
                            lambda **more: transformers.AutoModelForCausalLM.from_pretrained(
                                os.path.dirname(path), gguf_file=os.path.basename(path), config=config, **more)))
                    self.assertLessEqual(((ours - theirs).norm() / theirs.norm()).item(), bound)

    def changed(self, name, file, **changes):
        """A copy of an export with other values in one of its files."""
        copy = new_path()
        shutil.copytree(self.exports[name], copy)
        path = os.path.join(copy, file)
        write_json(path, {**read_json(path), **changes})
        return copy

    def without(self, name, tensor):
        """A copy of an export without one of its tensors."""
        copy = self.changed(name, "config.json")
        path = os.path.join(copy, "model.safetensors")
        data = read_bytes(path)
        length, = struct.unpack("<Q", data[:8])
        tensors = json.loads(data[8:8 + length])
        del tensors[tensor]
        header = json.dumps(tensors).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + data[8 + length:])
        return copy

    def with_bytes(self, change):
        """A copy of an export of GPT-2 whose model.safetensors `change` has modified: the bytes, and where the embedding is."""
        copy = self.changed("gpt2", "config.json")
        path = os.path.join(copy, "model.safetensors")
        data = bytearray(read_bytes(path))
        values = 8 + struct.unpack("<Q", data[:8])[0]
        change(data, values + json.loads(data[8:values])["transformer.wte.weight"]["data_offsets"][0])
        with open(path, "wb") as file:
            file.write(data)
        return copy

    def test_refused(self):
        def first_value(value):
            return lambda data, place: struct.pack_into("<f", data, place, value)

        words = {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}
        cuts = {"type": "Sequence", "pretokenizers": [words, {"type": "ByteLevel", "use_regex": False}]}
        without, fp8 = new_path(), new_path()
        shutil.copytree(self.exports["gpt2"], without)
        os.remove(os.path.join(without, "tokenizer.json"))
        done = run("export", "--from", self.exports["llama"], "--to", fp8, "--dtype", "fp8")
        self.assertEqual(done.code, 0, done.err)
        own = self.changed("llama", "tokenizer.json", pre_tokenizer=cuts)
        more = self.changed("gpt2", "tokenizer.json", added_tokens=[{"id": 999, "content": "<more>", "special": True}])
        for directory, message in ((self.exports["nano"], "llama.cpp has no model like nanochat"),
                                   (more, "has token 999, and the model has"),
                                   (self.without("qwen2", "lm_head.weight"), "lacks tensors, such as output.weight"),
                                   (self.without("gpt2", "transformer.h.1.ln_1.bias"), "such as blk.1.attn_norm.bias"),
                                   (self.changed("mistral", "config.json", sliding_window=16), "window of 16 tokens"),
                                   (self.changed("llama", "config.json", rope_scaling={"rope_type": "yarn"}), "'yarn'"),
                                   (self.changed("llama", "config.json", rope_parameters=None,
                                                 rope_scaling={"type": "linear", "factor": 4.0}), "'linear'"),
                                   (without, "has no tokenizer.json"), (fp8, "export it with --dtype fp32 or bf16"),
                                   (own, "--pre gives llama.cpp's name"), (new_path(), "has no config.json"),
                                   (self.with_bytes(first_value(math.nan)), "that is NaN or infinite"),
                                   (self.with_bytes(lambda data, _: data.clear()), "is truncated, or no safetensors"),
                                   (self.with_bytes(lambda data, _: data.__delitem__(slice(-9, None))), "is truncated"),
                                   (self.changed("gpt2", "config.json", vocab_size=300), "and config.json says 300 x")):
            with self.subTest(message):
                path = new_path() + ".gguf"
                done = to_gguf(directory, path)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(message, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertFalse(os.path.exists(path) or os.path.exists(path + ".tmp"))
        large = self.with_bytes(first_value(1e6))
        self.assertIn("too large for F16; give another --type", to_gguf(large, new_path() + ".gguf", "--type", "f16").stderr)
        path = new_path() + ".gguf"
        with open(path, "w", encoding="utf-8") as file:
            file.write("mine")
        self.assertIn("no GGUF file, so it is not replaced", to_gguf(own, path, "--pre", "my-words").stderr)
        with open(path, "w", encoding="utf-8") as file:
            file.write("GGUF, which is replaced")
        self.assertEqual(to_gguf(own, path, "--pre", "my-words").returncode, 0)

    def test_a_tokenizer_like_llama_2s(self):
        import gguf
        vocab = {"<unk>": 0, "<s>": 1, **{f"<0x{i:02X}>": 2 + i for i in range(200)}, "▁": 202, "a": 203, "b": 204,
                 "ab": 205, "▁a": 206}
        added = [{"id": i, "content": text, "special": True} for text, i in list(vocab.items())[:2]]
        path = self.changed("llama", "tokenizer.json", added_tokens=added, normalizer={"type": "Prepend", "prepend": "▁"},
                            pre_tokenizer=None, post_processor={"type": "TemplateProcessing", "single": [
                                {"SpecialToken": {"id": "<s>", "type_id": 0}}]},
                            model={"type": "BPE", "vocab": vocab, "merges": ["a b", "▁ a"], "byte_fallback": True,
                                   "unk_token": "<unk>"})
        write_json(os.path.join(path, "config.json"), {**read_json(os.path.join(path, "config.json")), "bos_token_id": 1})
        out = new_path() + ".gguf"
        done = to_gguf(path, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        reader = gguf.GGUFReader(out)
        field = lambda key: reader.get_field("tokenizer.ggml." + key).contents()
        self.assertEqual((field("model"), field("add_bos_token"), field("add_space_prefix")), ("llama", True, True))
        scores = dict(zip(field("tokens"), field("scores")))
        self.assertGreater(scores["ab"], scores["▁a"])  # the order of merges
        self.assertGreater(scores["▁a"], scores["a"])
        types = dict(zip(field("tokens"), field("token_type")))
        self.assertEqual([types[token] for token in ("<unk>", "<s>", "<0x00>", "ab", "[PAD250]")],
                         [gguf.TokenType[kind] for kind in ("UNKNOWN", "CONTROL", "BYTE", "NORMAL", "UNUSED")])


if __name__ == "__main__":
    unittest.main()
