"""Bad input: each ends with its exit code and a message that names the value and what to do, before any training."""

import json
import math
import os
import re
import struct
import unittest

from trainer import (VOCAB, corpus, llmc_tensors, new_path, read_safetensors, run, tiny_flags, write_llmc_model,
                     workspace, write_safetensors, write_shard)

FLAGS, DATA, CHECKPOINT, RESOURCES = 2, 3, 4, 5
TRAINED = re.compile("^step ", re.MULTILINE)
SOME_TOKENS = [256] + [ord("a") + i % 26 for i in range(999)]


def write_file(text, name="file"):
    path = new_path(name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


class BadInput(unittest.TestCase):
    """`refused(flags, code, parts)` adds flags to a run that is fine without them."""

    def refused(self, code, flags, *parts, env=None):
        out = new_path()
        result = run(*tiny_flags("--out", out, *flags), env=env)
        message = result.err
        self.assertEqual(result.code, code, f"{flags}: {message or result.out}")
        for part in parts:
            self.assertIn(part, message, f"{flags}")
        self.assertTrue(message.startswith("train_gpt: "), message)
        self.assertNotIn("terminate called", message)
        self.assertNotRegex(result.out, TRAINED)
        metrics = os.path.join(out, "metrics.jsonl")
        self.assertFalse(os.path.exists(metrics) and os.path.getsize(metrics), "it began to train")

    def test_the_run_is_fine_without_bad_flags(self):
        result = run(*tiny_flags("--max-steps", "1"))
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertRegex(result.out, TRAINED)


class BadData(BadInput):
    def refused_shard(self, path, *parts, flags=()):
        self.refused(DATA, ["--train", path, "--vocab", VOCAB, *flags], *parts)

    def test_no_file_matches(self):
        self.refused_shard("nowhere/train_*.bin", "no file matches 'nowhere/train_*.bin'", "quoted pattern")

    def test_no_file_matches_in_a_directory_that_exists(self):
        self.refused_shard(corpus().train + "x*", "no file matches", "demo_train.binx*", "; the directory has demo_train.bin: use '")

    def test_no_file_matches_for_validation(self):
        self.refused(DATA, ["--val", "nowhere/val.bin"], "no file matches 'nowhere/val.bin'")

    def test_empty_pattern(self):
        self.refused(FLAGS, ["--train", ""], "--train", "empty")

    def test_no_data(self):
        result = run("--layers", "2")
        self.assertEqual(result.code, FLAGS)
        self.assertIn("--train", result.err)

    def test_directory(self):
        self.refused_shard(os.path.dirname(corpus().train), "is a directory", "demo_train.bin: use '")

    def test_wrong_magic(self):
        self.refused_shard(write_shard(SOME_TOKENS, magic=12345), "its magic is 12345", "20240520")

    def test_a_file_of_llm_c_that_is_no_shard(self):
        self.refused_shard(write_shard(SOME_TOKENS, magic=20240328), "tokenizer", "--tokenizer")

    def test_text(self):
        self.refused_shard(write_file("Once upon a time\n" * 99), "it looks like text: `python3 -m data.prepare text`")

    def test_wrong_version(self):
        self.refused_shard(write_shard(SOME_TOKENS, version=9), "shard version 9", "version 1")

    def test_truncated(self):
        self.refused_shard(write_shard(SOME_TOKENS, cut=3), "truncated", "1000 tokens", "3024 bytes", "3021")

    def test_oversized(self):
        self.refused_shard(write_shard(SOME_TOKENS, extra=b"more"), "too long", "3024 bytes", "3028")

    def test_shorter_than_a_header(self):
        self.refused_shard(write_file("no\0shard"), "8 bytes", "1024 bytes")

    def test_negative_count(self):
        self.refused_shard(write_shard([], count=-1), "claims -1 tokens")

    def test_no_tokens(self):
        self.refused_shard(write_shard([]), "no sequence of T=64", "use a smaller -t or more data")

    def test_fewer_tokens_than_a_sequence_needs(self):
        self.refused_shard(write_shard(SOME_TOKENS[:64]), "no sequence of T=64", "needs 65 tokens", "has 64")

    def test_token_outside_the_vocabulary(self):
        tokens = SOME_TOKENS[:500] + [VOCAB] + SOME_TOKENS[500:]
        self.refused_shard(write_shard(tokens), "token 500 has id 257", "257 ids", "--vocab to at least 258")

    def test_token_outside_the_vocabulary_of_a_wide_shard(self):
        tokens = SOME_TOKENS + [2**32 - 1]
        path = write_shard(tokens, magic=20240801, version=7, wide=True)
        self.refused_shard(path, "token 1000 has id 4294967295")

    def test_validation_token_outside_the_vocabulary(self):
        path = write_shard(SOME_TOKENS + [9999])
        self.refused(DATA, ["--val", path], "token 1000 has id 9999", os.path.basename(path))

    def test_broken_sidecar(self):
        path = write_shard(SOME_TOKENS)
        with open(path + ".json", "w", encoding="utf-8") as file:
            file.write("{ no JSON")
        self.refused_shard(path, "sidecar", "is not valid", "prepare the shard again")

    def test_sidecar_of_another_shard(self):
        path = write_shard(SOME_TOKENS)
        with open(path + ".json", "w", encoding="utf-8") as file:
            file.write('{"tokens": 7}')
        self.refused_shard(path, "says 7 tokens, its shard has 1000")

    def test_validation_on_what_is_trained_on(self):
        """It may be meant, as a set of its own beside another: said, not refused."""
        link = new_path("link") + ".bin"
        os.symlink(corpus().train, link)
        for *flags, val in ([corpus().train], [link], ["--val", f"unseen={corpus().val}", f"trained={link}"]):
            with self.subTest(val):
                done = run(*tiny_flags("--max-steps", "1", *flags, "--val", val))
                self.assertEqual(done.code, 0, done.err)
                self.assertIn(f"note: {val.split('=')[-1]} is in both -i and -j", done.out)
        self.assertNotIn("is a shard of", run(*tiny_flags("--max-steps", "1", "--val", corpus().val)).out)


class BadShape(BadInput):
    def test_sequence_above_the_context(self):
        self.refused(FLAGS, ["--context", "64", "--seq", "128"], "-t 128", "context 64", "use -t 64 or --context 128")

    def test_channels_not_divisible_by_heads(self):
        self.refused(FLAGS, ["--channels", "96", "--heads", "5"], "channels=96 cannot be divided by heads=5",
                     "--heads 3")

    def test_unsupported_head_dimension(self):
        self.refused(FLAGS, ["--channels", "96", "--heads", "2"], "head dimension 48", "32, 64 and 128", "--heads 3")

    def test_channels_not_a_multiple_of_32(self):
        self.refused(FLAGS, ["--channels", "100", "--heads", "2"], "channels=100", "use --channels 96")

    def test_batch_does_not_divide_the_total_batch(self):
        self.refused(FLAGS, ["--total-batch", "1000"], "-d 1000", "256 tokens", "-b 4 x -t 64", "-d 768 or -d 1024")

    def test_more_tokens_in_a_micro_batch_than_can_be_counted(self):
        self.refused(FLAGS, ["--batch", "67108864"], "-b 67108864 x -t 64 = 4294967296 tokens", "use -b 33554431")

    def test_vocabulary_smaller_than_the_datas(self):
        self.refused(FLAGS, ["--vocab", "100"], "--vocab 100", "257", "use --vocab 257")

    def test_one_step_needs_more_tokens_than_there_are(self):
        path = write_shard(SOME_TOKENS)
        self.refused(FLAGS, ["--train", path, "--vocab", VOCAB, "--batch", "64", "--max-steps", "-1"], "1,000 tokens",
                     "4,096", "use a smaller -d")

    def test_warmup_as_long_as_the_run(self):
        self.refused(FLAGS, ["--warmup", "5"], "--warmup 5", "5 steps", "use a smaller -u")

    def test_unknown_model(self):
        self.refused(FLAGS, ["--model", "gpt2-larg"], 'unknown model "gpt2-larg"', "gpt2-large")

    def test_not_enough_memory(self):
        gpt3 = ["--layers", "96", "--channels", "12288", "--heads", "96", "--precision", "fp32"]
        self.refused(RESOURCES, gpt3, "this run needs", "CPU (", " has ", "weights", "activations", "optimizer",
                     "smaller model or a larger device")
        self.refused(RESOURCES, ["--batch", "16777216"], "this run needs", "activations", "reduce -b")


class BadValue(BadInput):
    CASES = [
        (["--batch", "0"], ["--batch", "0 is out of range", "from 1 to 2147483647"]),
        (["--batch", "-4"], ["--batch", "-4 is out of range"]),
        (["--batch", "four"], ["--batch", "'four' is not a whole number"]),
        (["--batch", "1.5"], ["--batch", "'1.5' is not a whole number"]),
        (["--batch", ""], ["--batch", "'' is not a whole number"]),
        (["--batch", "99999999999999999999"], ["--batch", "99999999999999999999 is out of range"]),
        (["--seq", "0"], ["--seq", "0 is out of range"]),
        (["--seq", "-1"], ["--seq", "-1 is out of range"]),
        (["--total-batch", "0"], ["--total-batch", "0 is out of range"]),
        (["--max-steps", "0"], ["--max-steps", "0 is out of range", "-1: one epoch"]),
        (["--max-steps", "-2"], ["--max-steps", "-2 is out of range"]),
        (["--max-steps", "ten"], ["--max-steps", "'ten' is not a whole number"]),
        (["--layers", "0"], ["--layers", "0 is out of range"]),
        (["--heads", "0"], ["--heads", "0 is out of range"]),
        (["--channels", "-64"], ["--channels", "-64 is out of range"]),
        (["--vocab", "0"], ["--vocab", "0 is out of range"]),
        (["--context", "0"], ["--context", "0 is out of range"]),
        (["--lr", "0"], ["--lr", "0 is out of range", "above 0"]),
        (["--lr", "-1e-3"], ["--lr", "-1e-3 is out of range"]),
        (["--lr", "fast"], ["--lr", "'fast' is not a number"]),
        (["--lr", "nan"], ["--lr", "'nan' is not a number"]),
        (["--lr", "inf"], ["--lr", "'inf' is not a number"]),
        (["--beta1", "1"], ["--beta1", "1 is out of range", "[0, 1)"]),
        (["--eps", "0"], ["--eps", "0 is out of range"]),
        (["--clip", "-1"], ["--clip", "-1 is out of range"]),
        (["--weight-decay", "-0.1"], ["--weight-decay", "-0.1 is out of range"]),
        (["--final-lr-fraction", "1.1"], ["--final-lr-fraction", "1.1 is out of range", "[0, 1]"]),
        (["--warmup", "-1"], ["--warmup", "-1 is out of range"]),
        (["--val-every", "-1"], ["--val-every", "-1 is out of range"]),
        (["--val-batches", "-2"], ["--val-batches", "-2 is out of range"]),
        (["--sample-tokens", "4294967296"], ["--sample-tokens", "4294967296 is out of range", "from 0 to 2147483647"]),
        (["--temperature", "-1"], ["--temperature", "-1 is out of range"]),
        (["--top-p", "0"], ["--top-p", "0 is out of range"]),
        (["--seed", "-1"], ["--seed", "-1 is out of range"]),
        (["--seed", "x"], ["--seed", "'x' is not a whole number"]),
        (["--precision", "fp16"], ["--precision", "'fp16' is not one of", "bf16"]),
        (["--schedule", "cosin"], ["--schedule", "'cosin' is not one of", "cosine"]),
        (["--recompute", "1"], ["--recompute", "-r gelu"]),
        (["--kernels", "gelu_fp8,hopper"], ["--kernels", "'hopper' is not one of auto, portable, layernorm_fp8"]),
        (["--max-steps"], ["--max-steps needs a value"]),
    ]

    def test_values(self):
        for flags, parts in self.CASES:
            with self.subTest(flags=flags):
                self.refused(FLAGS, flags, *parts)


class BadFlag(BadInput):
    def test_unknown_flag_names_the_nearest(self):
        self.refused(FLAGS, ["--bacth", "4"], "unknown flag --bacth", "did you mean --batch?")
        self.refused(FLAGS, ["--val-evry=3"], "unknown flag --val-evry", "did you mean --val-every?")

    def test_unknown_flag_that_resembles_nothing(self):
        self.refused(FLAGS, ["--quux"], "unknown flag --quux", "--help")

    def test_unknown_short_flag(self):
        self.refused(FLAGS, ["-Q", "1"], "unknown flag -Q", "--help")

    def test_one_dash_missing(self):
        self.refused(FLAGS, ["-batch", "4"], "did you mean --batch?")

    def test_stray_argument(self):
        self.refused(FLAGS, ["--train", "a.bin", "b.bin"], "unexpected argument 'b.bin'", "quote the pattern")

    def test_spelling_of_llm_c(self):
        self.refused(FLAGS, ["-y", "1"], "-y", "llm.c", "--resume latest")

    def test_unknown_command(self):
        result = run("trian", *tiny_flags())
        self.assertEqual(result.code, FLAGS)
        self.assertIn("unknown command 'trian'", result.err)

    def test_gpu_without_dry_run(self):
        self.refused(FLAGS, ["--gpu", "h200"], "--dry-run")

    def test_environment_of_the_host_device(self):
        self.refused(FLAGS, [], "LLMC_ORDER=sideways", "ascending, descending, random", env={"LLMC_ORDER": "sideways"})
        for name, value, bounds in (("OMP_NUM_THREADS", "100000", "from 1 to 1024"),
                                    ("LLMC_STACK_KB", "1", "from 32 to 1048576"),
                                    ("LLMC_STACK_KB", "x", "from 32 to 1048576")):
            self.refused(FLAGS, [], f"{name}={value}", f"a whole number {bounds}", env={name: value})


class BadFile(BadInput):
    def test_output_directory_below_a_file(self):
        out = os.path.join(write_file("x"), "run")
        self.refused(FLAGS, ["--out", out], out, "Not a directory", "--out")

    def test_output_directory_is_a_file(self):
        out = write_file("x")
        self.refused(FLAGS, ["--out", out], out, "--out")

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_output_directory_without_permission(self):
        closed = new_path()
        os.mkdir(closed, mode=0o500)
        self.refused(FLAGS, ["--out", os.path.join(closed, "run")], "Permission denied", "--out")

    def test_output_directory_on_a_file_system_that_takes_none(self):
        self.refused(FLAGS, ["--out", "/proc/run"], "/proc/run", "--out")

    def test_output_directory_holds_a_run(self):
        out = new_path()
        self.assertEqual(run(*tiny_flags("--out", out, "--max-steps", "1")).code, 0)
        metrics = os.path.join(out, "metrics.jsonl")
        with open(metrics, "rb") as file:
            before = file.read()
        result = run(*tiny_flags("--out", out, "--max-steps", "2"))
        self.assertEqual(result.code, FLAGS)
        self.assertIn("already holds a run", result.err)
        self.assertIn("--overwrite", result.err)
        with open(metrics, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(run(*tiny_flags("--out", out, "--max-steps", "2", "--overwrite")).code, 0)

    def test_weights_to_start_from(self):
        self.refused(CHECKPOINT, ["--init-from", "nowhere.safetensors"], "nowhere.safetensors", "No such file")
        self.refused(CHECKPOINT, ["--init-from", write_file("not a model")], "file")

    def test_weights_of_another_shape(self):
        out = new_path()
        self.assertEqual(run(*tiny_flags("--out", out, "--max-steps", "1", "--layers", "1")).code, 0)
        model = os.path.join(out, "model.safetensors")
        for weights in (model, out):
            self.refused(CHECKPOINT, ["--init-from", weights], "config.json: n_layer is 1, this model has 2",
                         "choose the model that the file holds: -e")
        os.remove(os.path.join(out, "config.json"))
        for weights in (model, out):
            self.refused(CHECKPOINT, ["--init-from", weights], "h.1.", "choose the model that the file holds")

    def test_weights_that_are_not_finite(self):
        out = new_path()
        self.assertEqual(run(*tiny_flags("--out", out, "--max-steps", "1")).code, 0)
        model = os.path.join(out, "model.safetensors")
        tensors = read_safetensors(model)
        dtype, shape, data = tensors["transformer.h.1.mlp.c_fc.weight"]  # (64, 256)
        at = 4 * (5 * 256 + 7)
        tensors["transformer.h.1.mlp.c_fc.weight"] = dtype, shape, data[:at] + struct.pack("<f", math.nan) + data[at + 4:]
        write_safetensors(model, tensors)
        for weights in (model, out):
            self.refused(CHECKPOINT, ["--init-from", weights], "model.safetensors: transformer.h.1.mlp.c_fc.weight has "
                         "NaN at row 5, column 7")

    def test_weights_of_llm_c(self):
        model = dict(context=64, vocab=VOCAB, layers=2, heads=2, channels=64)
        values = {name: [0.0] * count for name, _, count in llmc_tensors(model)}
        path = new_path() + ".bin"
        write_llmc_model(path, model, values)
        self.assertEqual(run(*tiny_flags("--init-from", path, "--max-steps", "1")).code, 0)
        with open(path, "rb") as file:
            good = file.read()

        def changed(data):
            with open(path, "wb") as file:
                file.write(data)
            return ["--init-from", path]

        self.refused(CHECKPOINT, changed(good[:-1]), "is truncated", f"takes {len(good)} bytes")
        self.refused(CHECKPOINT, changed(good + b"\0"), "is too long")
        self.refused(CHECKPOINT, changed(struct.pack("<i", 20240520) + good[4:]), "20240520 (a token shard: give it to "
                     "--train)")
        self.refused(CHECKPOINT, changed(good[:4] + struct.pack("<i", 1) + good[8:]), "is of version 1")
        self.refused(CHECKPOINT, changed(good[:1024 + 4 * 65] + struct.pack("<f", math.inf) + good[1028 + 4 * 65:]),
                     "wte has Inf at row 1, column 1")
        self.refused(CHECKPOINT, changed(good) + ["--layers", "1"], "layers is 2, this model has 1",
                     "choose the model that the file holds: --layers 2 --heads 2 --channels 64 --context 64 --vocab 257")

    def test_weights_with_a_missing_shard(self):
        directory = new_path("shards")
        os.mkdir(directory)
        self.refused(CHECKPOINT, ["--init-from", directory], "holds neither model.safetensors nor")
        with open(os.path.join(directory, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            file.write('{"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}')
        self.refused(CHECKPOINT, ["--init-from", directory],
                     "names model-00001-of-00002.safetensors, which does not exist")

    def test_configuration_file(self):
        self.refused(FLAGS, ["--config", "nowhere.json"], "nowhere.json")
        self.refused(FLAGS, ["--config", write_file("{")], "is not JSON")
        self.refused(FLAGS, ["--config", write_file('{"bacth": 4}')], 'unknown key "bacth"', 'did you mean "batch"')
        self.refused(FLAGS, ["--config", write_file('{"batch": 0}')], "--batch", "0 is out of range")

    def test_pipes_directories_and_devices(self):
        pipe, shard = new_path("pipe"), write_shard(SOME_TOKENS)
        os.mkfifo(pipe)
        os.symlink(pipe, shard + ".json")
        small = tiny_flags()[2:]  # without --train
        for flags, code, name in ((["--train", pipe, "--vocab", VOCAB], DATA, "token shard"),
                                  (["--train", shard], DATA, "sidecar"),
                                  (["--init-from", pipe, "--train", corpus().train], CHECKPOINT, "weights"),
                                  (["--model", pipe, "--dry-run"], FLAGS, "model file"),
                                  (["--config", pipe], FLAGS, "configuration file"),
                                  (["--tokenizer", pipe, "--sample-every", "1", "--train", corpus().train], DATA,
                                   "tokenizer file")):
            for path, kind in ((pipe, "a pipe"), ("/dev/zero", "a device"), (workspace(), "a directory")):
                given = [path if flag == pipe else flag for flag in flags]
                if name == "sidecar":
                    os.remove(shard + ".json")
                    os.symlink(path, shard + ".json")
                if path == workspace() and name in ("weights", "model file", "tokenizer file", "token shard"):
                    continue  # Hugging Face's directories are fine, and one with shards gets a hint
                with self.subTest(file=name, kind=kind):
                    result = run(*small, *given, limit=20)
                    self.assertEqual(result.code, code, result.err)
                    self.assertRegex(result.err, f"^train_gpt: cannot open the {name} .*: it is {kind}, not a regular "
                                     "file; give ")

    def test_what_files_say_cannot_disturb_a_terminal(self):
        model = new_path()
        header = json.dumps({"\x1b]0;mine\x07\x9b": {"dtype": "F1", "shape": [], "data_offsets": [0, 0]}}).encode()
        with open(model, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
        self.refused(CHECKPOINT, ["--init-from", model], r"tensor \x1b]0;mine\x07\xc2\x9b has the unknown dtype F1")

    def test_tokenizer(self):
        self.refused(DATA, ["--tokenizer", "nowhere.tiktoken", "--sample-every", "1"], "nowhere.tiktoken")


if __name__ == "__main__":
    unittest.main()
