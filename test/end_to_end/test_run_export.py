"""train_gpt export: models from one program's files to another's and back, and refusals."""

import json
import os
import resource
import shutil
import struct
import unittest

from test_run_sample import HAS_TOKENIZERS
from trainer import (CHECKPOINT, DATA, ENVIRONMENT, FLAGS, PROGRAM, RESOURCES, VOCAB, Case, FinishedRun, corpus,
                     llmc_tensors, new_path, read_bytes as read, read_safetensors, run, run_command, tiny_flags,
                     write_as_llmc, write_json, write_llmc_model)

TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json"]
# data.prepare makes the tokenizer.json of a run on bytes.
OF_A_RUN = TOKENIZER_FILES if HAS_TOKENIZERS else []
TOKENIZER = {"model": {"type": "BPE", "vocab": {f"<{i}>": i for i in range(256)}, "merges": []}}
SHAPE = dict(context=64, vocab=VOCAB, layers=2, heads=2, channels=64)


def bf16(data):
    """FP32 numbers as BF16, rounded to nearest even."""
    bits = struct.unpack(f"<{len(data) // 4}I", data)
    return struct.pack(f"<{len(bits)}H", *(b + 0x7fff + (b >> 16 & 1) >> 16 for b in bits))


class Export(Case):
    @classmethod
    def setUpClass(cls):
        cls.trained = FinishedRun("--max-steps", "3")
        cls.tensors = read_safetensors(cls.trained.path("model.safetensors"))

    def export(self, source, *flags, to=None):
        to = to or new_path("export")
        result = run("export", "--from", source, "--to", to, *flags)
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertIn("parameters in", result.out)
        return to

    def refuses(self, code, flags, *parts, env=None):
        self.refused(run("export", *flags, env=env), code, *parts)

    def llmc_file(self):
        """The run's weights as an llm.c file, written by this test itself."""
        return write_as_llmc(SHAPE, self.tensors)

    def test_there_and_back(self):
        directory = self.export(self.trained.directory)
        self.assertEqual(sorted(os.listdir(directory)), ["config.json", "generation_config.json", "model.safetensors",
                                                         *OF_A_RUN])
        for name in ("config.json", "model.safetensors"):
            self.assertEqual(read(os.path.join(directory, name)), self.trained.read(name), name)

        expected = read(self.llmc_file())
        path = self.export(self.trained.path("model.safetensors"), "--format", "llmc", to=new_path() + ".bin")
        self.assertEqual(read(path), expected)
        inside = self.export(self.trained.directory, "--format", "llmc")
        self.assertEqual(read(os.path.join(inside, "model.bin")), expected)
        back = self.export(path)
        self.assertEqual(read_safetensors(os.path.join(back, "model.safetensors")), self.tensors)
        # llm.c's files have none.
        ours = dict(json.loads(self.trained.read("config.json")), bos_token_id=None, eos_token_id=None)
        self.assertEqual(json.loads(read(os.path.join(back, "config.json"))), ours)

    def test_bf16(self):
        directory = self.export(self.llmc_file(), "--dtype", "bf16")
        tensors = read_safetensors(os.path.join(directory, "model.safetensors"))
        self.assertEqual(set(tensors), set(self.tensors))
        for name, (dtype, shape, data) in tensors.items():
            self.assertEqual((dtype, shape), ("BF16", self.tensors[name][1]))
            self.assertEqual(data, bf16(self.tensors[name][2]), name)
        config = json.loads(read(os.path.join(directory, "config.json")))
        self.assertEqual((config["torch_dtype"], config["n_head"]), ("bfloat16", 2))
        # The same numbers as llm.c's; a run that starts from either is the same.
        path = self.export(directory, "--format", "llmc", "--dtype", "bf16", to=new_path() + ".bin")
        self.assertEqual(len(read(path)), 1024 + (os.path.getsize(self.llmc_file()) - 1024) // 2)
        losses = [FinishedRun("--max-steps", "2", "--init-from", source).losses for source in (directory, path)]
        self.assertEqual(losses[0], losses[1])

    def test_fp8_is_not_for_gpt2(self):
        directory = new_path()
        self.refuses(FLAGS, ["--from", self.trained.directory, "--to", directory, "--dtype", "fp8"], "Conv1D", "--dtype bf16")
        self.assertFalse(os.path.exists(directory))

    def test_a_checkpoint(self):
        (name,) = os.listdir(self.trained.path("checkpoints"))
        path = self.trained.path("checkpoints/" + name)
        directory = self.export(path)
        self.assertEqual(read_safetensors(os.path.join(directory, "model.safetensors")), self.tensors)
        losses = [FinishedRun("--max-steps", "2", "--init-from", source).losses
                  for source in (path, self.trained.directory, self.trained.path("model.safetensors"))]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])
        self.refused(run(*tiny_flags("--init-from", path, "--layers", "1")), CHECKPOINT,
                     "holds another model: layers is 2, this model has 1")
        copy = new_path()
        shutil.copytree(path, copy)
        with open(os.path.join(copy, "rank_00000.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
        self.refuses(CHECKPOINT, ["--from", copy, "--to", new_path()], "is damaged")

    def test_what_is_there_stays_without_overwrite(self):
        directory = self.export(self.trained.directory)
        before = read(os.path.join(directory, "model.safetensors"))
        self.refuses(FLAGS, ["--from", self.trained.directory, "--to", directory], "is not empty", "--overwrite")
        self.assertEqual(read(os.path.join(directory, "model.safetensors")), before)
        for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "notes.txt"):
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write("old")
        self.export(self.trained.directory, "--dtype", "bf16", "--overwrite", to=directory)
        self.assertEqual(sorted(os.listdir(directory)), ["config.json", "generation_config.json", "model.safetensors",
                                                         "notes.txt", *OF_A_RUN])
        self.assertLess(os.path.getsize(os.path.join(directory, "model.safetensors")), len(before))

        path = self.export(directory, "--format", "llmc", to=new_path() + ".bin")
        self.refuses(FLAGS, ["--from", directory, "--to", path, "--format", "llmc"], "exists", "--overwrite")
        self.export(directory, "--format", "llmc", "--overwrite", to=path)

    def test_an_export_that_fails_replaces_nothing(self):
        directory = self.export(self.trained.directory)
        write_json(os.path.join(directory, "tokenizer.json"), {"no": "tokenizer"})
        before = {name: read(os.path.join(directory, name)) for name in os.listdir(directory)}
        size = os.path.getsize(self.trained.path("model.safetensors")) // 2
        for flags, limit in ((["--tokenizer", os.path.join(directory, "tokenizer.json")], None),
                             (["--tokenizer", os.path.join(directory, "tokenizer.jsn")], None), ([], size)):
            with self.subTest(flags=flags):
                failed = run_command([PROGRAM, "export", "--from", self.trained.directory, "--to", directory, "--overwrite",
                                      *flags], 120, ENVIRONMENT, preexec_fn=limit and
                                     (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))))
                self.assertNotEqual(failed.code, 0)
                self.assertEqual({name: read(os.path.join(directory, name)) for name in os.listdir(directory)}, before)

    def test_what_a_killed_export_has_left(self):
        directory = self.export(self.trained.directory)
        partial = os.path.join(directory, "export.partial")
        os.mkdir(partial)
        for name in ("config.json", "model.safetensors.tmp"):
            write_json(os.path.join(partial, name), {})
        self.export(self.trained.directory, "--overwrite", to=directory)
        self.assertFalse(os.path.exists(partial))
        os.mkdir(partial)
        write_json(os.path.join(partial, "mine.json"), {})
        self.refuses(FLAGS, ["--from", self.trained.directory, "--to", directory, "--overwrite"], partial, "is in the way")
        self.assertTrue(os.path.exists(os.path.join(partial, "mine.json")))

    def test_a_limit_on_the_size_of_files(self):
        """`ulimit -f` ends the command like a full disk, and no part of a file stays."""
        size = os.path.getsize(self.trained.path("model.safetensors")) // 2
        directory = new_path()
        limited = run_command([PROGRAM, "export", "--from", self.trained.directory, "--to", directory], 120, ENVIRONMENT,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        self.refused(limited, RESOURCES, "model.safetensors", "File too large; free space there")
        self.assertFalse([name for name in os.listdir(directory) if name.startswith("model")])

    def test_overwrite_replaces_a_model_and_nothing_else(self):
        """Not another run, and no file that would be read together with the new model. An earlier tokenizer goes."""
        run_directory = new_path()
        shutil.copytree(self.trained.directory, run_directory)
        adapted = self.export(self.trained.directory)
        write_json(os.path.join(adapted, "adapter_config.json"), {})
        for to, name in ((run_directory, "run.json"), (adapted, "adapter_config.json")):
            before = sorted(os.listdir(to)), read(os.path.join(to, "model.safetensors"))
            self.refuses(FLAGS, ["--from", self.llmc_file(), "--to", to, "--overwrite"], name, "from another program or a run")
            self.assertEqual((sorted(os.listdir(to)), read(os.path.join(to, "model.safetensors"))), before)
        shard = os.path.join(new_path(), "val.bin")
        os.mkdir(os.path.dirname(shard))
        shutil.copy(corpus().val, shard)
        self.refuses(FLAGS, ["--from", run_directory, "--to", shard, "--format", "llmc", "--overwrite"],
                     "is not a model file of llm.c")
        self.assertEqual(read(shard), read(corpus().val))
        os.remove(os.path.join(adapted, "adapter_config.json"))
        write_json(os.path.join(adapted, "tokenizer.json"), TOKENIZER)
        self.export(self.llmc_file(), "--overwrite", to=adapted)
        self.assertEqual(sorted(os.listdir(adapted)), ["config.json", "model.safetensors"])

    @unittest.skipUnless(HAS_TOKENIZERS, "needs tokenizers")
    def test_a_tokenizer_of_other_tokens(self):
        directory = self.export(self.trained.directory)
        with open(os.path.join(directory, "tokenizer.bin"), "wb") as file:
            file.write(struct.pack("<4i", 20240328, 2, 98, 0).ljust(1024, b"\0") + b"\1x" * 98)
        self.refuses(DATA, ["--from", self.trained.directory, "--to", new_path(), "--tokenizer",
                            os.path.join(directory, "tokenizer.bin")], "they are different tokenizers")

    def test_the_source_is_not_replaced(self):
        for source in (self.trained.directory, self.trained.path("model.safetensors")):
            self.refuses(FLAGS, ["--from", source, "--to", self.trained.directory + "/.", "--overwrite"],
                         "would replace the model that --from reads")
        path = self.llmc_file()
        self.refuses(FLAGS, ["--from", path, "--to", path, "--format", "llmc", "--overwrite"], "would replace")
        self.assertEqual(read_safetensors(self.trained.path("model.safetensors")), self.tensors)

    def test_tokenizer(self):
        """Its files, and refusals. More: test/data/tokenizer.cpp, test_run_prompts.py."""
        shape = dict(context=64, vocab=300, layers=1, heads=1, channels=32)
        model = write_llmc_model(shape, {name: [0.5] * count for name, _, count in llmc_tensors(shape)})
        os.makedirs(directory := new_path("tokenizer"))
        tokenizer = dict(TOKENIZER, added_tokens=[dict(id=267, content="<|endoftext|>", special=True)])
        write_json(file := os.path.join(directory, "tokenizer.json"), tokenizer)
        exported = self.export(model, "--tokenizer", directory)
        config = json.loads(read(os.path.join(exported, "tokenizer_config.json")))
        self.assertEqual(config, dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=64,
                                      bos_token="<|endoftext|>", eos_token="<|endoftext|>"))
        again = self.export(model, "--tokenizer", os.path.join(exported, "tokenizer.json"))
        for name in TOKENIZER_FILES:
            self.assertEqual(read(os.path.join(again, name)), read(os.path.join(exported, name)))
        self.assertEqual(read(os.path.join(again, "tokenizer.json")), read(file))

        self.refuses(FLAGS, ["--from", model, "--to", new_path(), "--format", "llmc", "--tokenizer", file], "--format hf")
        self.refuses(DATA, ["--from", model, "--to", new_path(), "--tokenizer", self.trained.path("run.json")],
                     "not a tokenizer.json")
        for wrong in (new_path(), "nowhere"):
            self.refuses(DATA, ["--from", model, "--to", new_path(), "--tokenizer", wrong], f"the tokenizer {wrong}: ")
        self.refuses(DATA, ["--from", self.trained.directory, "--to", new_path(), "--tokenizer", file],
                     "has 268 tokens, but the vocabulary has 257")

    def test_end_token(self):
        """generate() stops at the token between documents: from the run's data, else from the tokenizer, else by its
        name.
        """
        def ends(directory, *texts):
            ids = [json.loads(read(os.path.join(directory, name)))[key] for key in ("eos_token_id", "bos_token_id")
                   for name in ("config.json", "generation_config.json")]
            config = json.loads(read(os.path.join(directory, "tokenizer_config.json")))
            self.assertEqual((config["eos_token"], config["bos_token"]), texts)
            return set(ids)

        (checkpoint,) = os.listdir(self.trained.path("checkpoints"))
        for source in (self.trained.directory, self.trained.path("checkpoints/" + checkpoint)) if HAS_TOKENIZERS else ():
            self.assertEqual(ends(self.export(source), "<|endoftext|>", "<|endoftext|>"), {256})
        self.assertEqual(json.loads(self.trained.read("config.json"))["eos_token_id"], 256)
        # Hugging Face's files: the id of the name; and the run's data count more than what a file says.
        model = self.llmc_file()
        tokenizer = dict(TOKENIZER, added_tokens=[dict(id=256, content="<|endoftext|>"), dict(id=7, content="<|im_end|>")])
        directory = new_path()
        os.makedirs(directory)
        write_json(os.path.join(directory, "tokenizer.json"), tokenizer)
        self.assertEqual(ends(self.export(model, "--tokenizer", directory), "<|endoftext|>", "<|endoftext|>"), {256})
        write_json(os.path.join(directory, "tokenizer_config.json"),
                   {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_end|>"})
        of_file = self.export(model, "--tokenizer", os.path.join(directory, "tokenizer.json"))
        self.assertEqual(read(os.path.join(of_file, "tokenizer_config.json")),
                         read(os.path.join(directory, "tokenizer_config.json")))
        self.assertEqual(json.loads(read(os.path.join(of_file, "config.json")))["eos_token_id"], 7)
        of_run = self.export(self.trained.directory, "--tokenizer", directory)
        self.assertEqual(ends(of_run, "<|endoftext|>", "<|endoftext|>"), {256})
        # A chat model keeps all tokens that end a text, and its tokenizer the token that it names.
        shutil.copytree(of_file, chat := new_path())
        config = json.loads(read(os.path.join(chat, "config.json")))
        write_json(os.path.join(chat, "config.json"), {**config, "eos_token_id": [256, 7]})
        again = self.export(chat, "--tokenizer", chat)
        self.assertEqual([json.loads(read(os.path.join(again, name)))["eos_token_id"]
                          for name in ("config.json", "generation_config.json")], [[256, 7]] * 2)
        self.assertEqual(read(os.path.join(again, "tokenizer_config.json")),
                         read(os.path.join(chat, "tokenizer_config.json")))

    def test_flags(self):
        result = run("export", "--help")
        self.assertEqual((result.code, result.err), (0, ""))
        for part in ("train_gpt export", "--from", "--to", "--format", "--dtype", "--overwrite", "--tokenizer", "lm_eval --model hf"):
            self.assertIn(part, result.out)
        both = ["--from", self.trained.directory, "--to", new_path()]
        self.refuses(FLAGS, [], "--from PATH is missing", "train_gpt export --help")
        self.refuses(FLAGS, both[:2], "--to PATH is missing")
        self.refuses(FLAGS, [*both, "--format", "gguf"], "--format", "gguf")
        self.refuses(FLAGS, [*both, "--dtype", "fp16"], "--dtype", "fp16")
        self.refuses(FLAGS, [*both, "--format", "llmc", "--dtype", "fp8"], "--dtype fp8 needs --format hf")
        self.refuses(FLAGS, [*both, "--fromm", "x"], "--fromm")
        self.refuses(FLAGS, both, "in one process, not in 2", env=dict(RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost"))
        self.refuses(FLAGS, ["--from", self.trained.directory, "--to", self.trained.path("run.json")], "is not a directory")
        self.refuses(CHECKPOINT, ["--from", "nowhere", "--to", new_path()], "nowhere")
        self.refuses(CHECKPOINT, ["--from", self.trained.path("run.json"), "--to", new_path()], "run.json")
        self.assertFalse(os.path.exists(both[3]))


if __name__ == "__main__":
    unittest.main()
