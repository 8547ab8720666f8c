"""Bad input: each kind ends with its exit code and a message that names the value and what to do, before any training.
The messages of one kind are tested where they are made: test/flags, test/data, test/model, test/checkpoint."""

import glob
import json
import os
import re
import shutil
import struct
import subprocess
import unittest

from trainer import (CHECKPOINT, DATA, FLAGS, PROGRAM, RESOURCES, ROOT, VOCAB, Case, FinishedRun, corpus, new_path, run,
                     tiny_flags, write_choices, write_json, write_shard)

TRAINED = re.compile("^step ", re.MULTILINE)
SOME_TOKENS = [256] + [ord("a") + i % 26 for i in range(999)]


def write_file(text, name="file"):
    path = new_path(name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def link_to_training_data():
    path = new_path("link") + ".bin"
    os.symlink(corpus().train, path)
    return path


def train_on(path):
    return ["--train", path, "--vocab", VOCAB]


def with_sidecar(text):
    path = write_shard(SOME_TOKENS)
    with open(path + ".json", "w", encoding="utf-8") as file:
        file.write(text)
    return path


def questions_of_another_tokenizer():
    path = write_choices([(0, [97, 98], [[99], [100]])])
    write_json(path + ".json", {"tokenizer": "gpt2"})
    return path


def weights_of_another_tokenizer(tokens=98):
    """A directory with a tokenizer of this many tokens, in which 97 is not "a"."""
    path = new_path("weights")
    os.mkdir(path)
    with open(os.path.join(path, "tokenizer.bin"), "wb") as file:
        file.write(struct.pack("<4i", 20240328, 2, tokens, 0).ljust(1024, b"\0") + b"\1x" * tokens)
    return path


def unwritable_directory():
    path = new_path()
    os.mkdir(path, mode=0o500)
    return os.path.join(path, "run")


def directory_with_an_index():
    path = new_path("shards")
    os.mkdir(path)
    with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        file.write('{"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}')
    return path


def hostile_model():
    path = new_path()
    header = json.dumps({"\x1b]0;mine\x07\x9b": {"dtype": "F1", "shape": [], "data_offsets": [0, 0]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
    return path


# Exit code, flags (a function that makes the files they name), parts of the message. Added to a run that is fine.
REFUSED = [
    (DATA, lambda: train_on("nowhere/train_*.bin"), ["no file matches 'nowhere/train_*.bin'", "quoted pattern"]),
    (DATA, lambda: train_on(corpus().train + "x*"), ["demo_train.binx*", "; the directory has demo_train.bin: use '"]),
    (DATA, lambda: train_on(write_file("Once upon a time\n" * 99)),
     ["it looks like text: `python3 -m data.prepare text`"]),
    (DATA, lambda: train_on(write_shard(SOME_TOKENS, magic=20240328)), ["tokenizer", "--tokenizer"]),
    (DATA, lambda: train_on(write_shard(SOME_TOKENS, cut=3)), ["truncated", "1000 tokens", "3024 bytes", "3021"]),
    (DATA, lambda: train_on(write_shard([])), ["no sequence of T=64", "use a smaller -t or more data"]),
    (DATA, lambda: train_on(write_shard(SOME_TOKENS + [VOCAB])),
     ["token 1000 has id 257", "257 ids", "--vocab to at least 258"]),
    (DATA, lambda: train_on(with_sidecar("{ no JSON")), ["sidecar", "is not valid", "write the file again"]),
    (DATA, lambda: ["--val", "nowhere/val.bin"], ["no file matches 'nowhere/val.bin'"]),
    (DATA, lambda: ["--val", write_shard(SOME_TOKENS + [9999])], ["token 1000 has id 9999"]),
    (DATA, lambda: ["--tokenizer", "nowhere.tiktoken", "--sample-every", "1"], ["nowhere.tiktoken"]),
    # A prompt is encoded before the first step, not when the first sample is due.
    (FLAGS, lambda: [*train_on(write_shard(SOME_TOKENS)), "--sample-every", "99", "--prompt", "Once"],
     ["--prompt needs a tokenizer"]),
    (FLAGS, lambda: [*train_on(write_shard(SOME_TOKENS)), "--sample-every", "99", "--prompt", " "], ["contains no token"]),
    (DATA, lambda: [*train_on(write_shard(SOME_TOKENS)), "--sample-every", "99", "--prompt", "5 257"],
     ["token id 257, which is outside the model's vocabulary of 257"]),
    (FLAGS, lambda: ["--bacth", "4"], ["unknown flag --bacth", "did you mean --batch?"]),
    (FLAGS, lambda: ["--kernels", "gelu_fp8"], ["'gelu_fp8' is not one of auto, portable"]),
    (FLAGS, lambda: ["--model", "gpt2-larg"], ['unknown model "gpt2-larg"', "gpt2-large"]),
    (FLAGS, lambda: ["--channels", "96", "--heads", "2"], ["head dimension 48", "32, 64, 80, 96, 128 or 256", "--heads 3"]),
    (FLAGS, lambda: ["--vocab", "100"], ["--vocab 100", "257", "use --vocab 257"]),
    (FLAGS, lambda: [*train_on(write_shard(SOME_TOKENS)), "--batch", "64", "--max-steps", "-1"],
     ["960 tokens", "4,096", "use a smaller -d"]),
    (FLAGS, lambda: ["--config", "nowhere.json"], ["nowhere.json"]),
    (FLAGS, lambda: ["--config", write_file('{"batch": 0}')], ["--batch", "0 is out of range"]),
    (FLAGS, lambda: ["--out", os.path.join(write_file("x"), "run")], ["Not a directory", "--out"]),
    (FLAGS, lambda: ["--out", write_file("x")], ["--out"]),
    (FLAGS, lambda: ["--out", "/proc/run"], ["/proc/run", "--out"]),
    (CHECKPOINT, lambda: ["--init-from", "nowhere.safetensors"], ["nowhere.safetensors", "No such file"]),
    (CHECKPOINT, lambda: ["--init-from", write_file("not a model")], ["file"]),
    (CHECKPOINT, lambda: ["--init-from", directory_with_an_index()],
     ["names model-00001-of-00002.safetensors, which does not exist"]),
    (CHECKPOINT, lambda: ["--init-from", hostile_model()], [r"tensor \x1b]0;mine\x07\xc2\x9b has the unknown dtype F1"]),
    (DATA, lambda: ["--task", "a=" + questions_of_another_tokenizer()], ["were made with different tokenizers"]),
    (DATA, lambda: ["--init-from", weights_of_another_tokenizer(70000)],
     ["--init-from", "it has 70000 tokens", "copy the weights to a directory without a tokenizer"]),
    (DATA, lambda: ["--init-from", weights_of_another_tokenizer()],
     ["they are different tokenizers", "a directory without a tokenizer"]),
    (FLAGS, lambda: ["--world", "8"], ["--world plans", "mpirun"]),
    (RESOURCES, lambda: ["--layers", "96", "--channels", "12288", "--heads", "96", "--precision", "fp32"],
     ["this run needs", "CPU (", " has ", "weights", "activations", "optimizer", "smaller model or a larger device"]),
]


class BadInput(Case):
    def refuses(self, code, flags, *parts, env=None):
        out = new_path()
        result = run(*tiny_flags("--out", out, *flags), env=env)
        self.refused(result, code, *parts)
        self.assertTrue(result.err.startswith("train_gpt: "), result.err)
        self.assertNotIn("terminate called", result.err)
        self.assertNotRegex(result.out, TRAINED)
        metrics = os.path.join(out, "metrics.jsonl")
        self.assertFalse(os.path.exists(metrics) and os.path.getsize(metrics), "it began to train")

    def test_the_run_is_fine_without_bad_flags(self):
        result = run(*tiny_flags("--max-steps", "1"))
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertRegex(result.out, TRAINED)

    def test_refused(self):
        for code, flags, parts in REFUSED:
            with self.subTest(flags=(given := flags())):
                self.refuses(code, given, *parts)

    def test_commands(self):
        for flags, part in ((["--layers", "2"], "--train"), (["trian", *tiny_flags()], "unknown command 'trian'")):
            self.refused(run(*flags), FLAGS, part)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_output_that_cannot_be_written(self):
        """A configuration or a plan must not be lost silently; a run continues without its reader."""
        for flags, code in ((["--print-config"], 1), (["--dry-run"], 1), (["eval", "--help"], 1), (tiny_flags("-x", "1"), 0)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([PROGRAM, *flags], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(result.returncode, code, flags)
            self.assertEqual("standard output cannot be written" in result.stderr, code == 1, result.stderr)

    def test_environment_of_the_host_device(self):
        for name, value, expected in (("LLMC_STREAMS", "sideways", "now, lazy, random"),
                                      ("OMP_NUM_THREADS", "100000", "a whole number from 1 to 1024"),
                                      ("LLMC_MEMORY_MB", "0", "a whole number from 1 to 1073741824"),
                                      ("LLMC_MEMORY_MB", "x", "a whole number from 1 to 1073741824")):
            self.refuses(FLAGS, [], f"{name}={value}", expected, env={name: value})

    def test_validation_on_what_is_trained_on(self):
        """It may be meant, as a set of its own next to another: noted, not refused."""
        link = link_to_training_data()
        for *flags, val in ([corpus().train], [link], ["--val", f"unseen={corpus().val}", f"trained={link}"]):
            with self.subTest(val):
                done = self.succeeds(run(*tiny_flags("--max-steps", "1", *flags, "--val", val)))
                self.assertIn(f"note: {val.split('=')[-1]} is in both -i and -j", done.out)
        self.assertNotIn("is a shard of", run(*tiny_flags("--max-steps", "1", "--val", corpus().val)).out)

    def test_a_shard_that_is_a_copy_is_noted(self):
        """Somebody may count it twice on purpose."""
        folder = new_path("copies")
        os.mkdir(folder)
        for name in ("a.bin", "b.bin"):
            shutil.copy(write_shard(SOME_TOKENS), os.path.join(folder, name))
        done = self.succeeds(run(*tiny_flags("--max-steps", "1", "--vocab", VOCAB, "--train", folder + "/*.bin")))
        self.assertIn("b.bin is a copy of another shard of -i, so a pass reads its tokens twice", done.out)

    def test_a_misspelled_variable_is_noted(self):
        done = self.succeeds(run(*tiny_flags("--max-steps", "1"), env={"LLMC_SECRETS": "x", "LLMC_SYNC": "0"}))
        (note,) = [line for line in done.out.splitlines() if "in the environment" in line]
        self.assertIn("note: nothing reads LLMC_SECRETS in the environment; there are LLMC_SECRET, LLMC_SYNC, ", note)
        def read_in(folder):  # by its sources
            read = set()
            for path in glob.glob(os.path.join(ROOT, folder, "**", "*.*"), recursive=True):
                with open(path, encoding="utf-8") as file:
                    read.update(re.findall(r'"(LLMC_[A-Z_]+)"', file.read()))
            return read

        read = read_in("llmc")
        self.assertEqual(set(re.findall("LLMC_[A-Z_]+", note)) - {"LLMC_SECRETS"}, read)
        with open(os.path.join(ROOT, "dev", "notes", "testing.md"), encoding="utf-8") as file:
            table = re.findall(r"^\| `(LLMC_[A-Z_]+)` \|", file.read(), re.MULTILINE)
        # For users: dev/guide/several_gpus.md.
        self.assertEqual(sorted(table), sorted((read | read_in("dev/emulator")) - {"LLMC_SECRET"}))

    def test_weights_of_zeros(self):
        """A file with holes, as an incomplete download may leave one. A bias may be zero."""
        trained = FinishedRun("--max-steps", "1")
        whole = trained.read("model.safetensors")
        begin = 8 + struct.unpack("<Q", whole[:8])[0]
        offsets = {name: value["data_offsets"] for name, value in json.loads(whole[8:begin]).items() if "." in name}

        def with_zeros(*names):
            path, data = new_path("holes"), bytearray(whole)
            for start, stop in (offsets["transformer." + name] for name in names):
                data[begin + start:begin + stop] = bytes(stop - start)
            os.mkdir(path)
            shutil.copy(trained.path("config.json"), path)
            with open(os.path.join(path, "model.safetensors"), "wb") as file:
                file.write(data)
            return path

        zeros = "note: all values of h.0.fc.weight and of 1 more are zero in "
        for names, code, part in ((["wte.weight"], CHECKPOINT, "all values of wte are zero"), (["h.1.mlp.c_fc.bias"], 0, ""),
                                  (["h.1.ln_1.weight", "h.0.mlp.c_fc.weight"], 0, zeros)):
            path = with_zeros(*names)
            for flags in (tiny_flags("--max-steps", "1", "--init-from", path), ["export", "--from", path, "--to", new_path()],
                          ["eval", "--from", path, "--val", corpus().val, "-m", "1"],
                          ["sample", "--from", path, "--prompt", "ids:1", "-g", "1"]):
                with self.subTest(flags=flags):
                    done = self.succeeds(run(*flags), code)
                    self.assertIn(part, done.out + done.err)
                    self.assertEqual("all values" in done.out + done.err, bool(part))

    def test_weights_that_a_resumed_run_does_not_read_are_noted(self):
        first = FinishedRun("--max-steps", "1")
        note = f"note: --init-from {first.directory} is not read: the weights are those of the checkpoint\n"
        self.assertIn(note, self.succeeds(first.resume("--max-steps", "2", "--init-from", first.directory)).out)
        self.assertNotIn("is not read", self.succeeds(first.resume("--max-steps", "3", "--init-from", first.directory)).out)

    def test_a_forgotten_srun_is_noted(self):
        done = self.succeeds(run(*tiny_flags("--max-steps", "1"), env={"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}))
        self.assertIn("note: one process runs, and the Slurm job has 4 tasks; srun starts all of them\n", done.out)

    @unittest.skipIf(os.geteuid() == 0, "root may write anywhere")
    def test_output_directory_without_permission(self):
        self.refuses(FLAGS, ["--out", unwritable_directory()], "Permission denied", "--out")

    def test_files_that_are_not_the_real_ones(self):
        """Every file that is opened is a regular one, and no pointer of Git LFS; test/base/files.cpp has the kinds."""
        small = tiny_flags()[2:]  # without --train
        trained = ["--train", corpus().train]
        pipe, pointer = new_path("pipe"), write_file("version https://git-lfs.github.com/spec/v1\nsize 9\n", "pointer")
        os.mkfifo(pipe)
        for path, reason in ((pipe, "it is a pipe, not a regular file; give "),
                             (pointer, "it is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`")):
            shard, export = write_shard(SOME_TOKENS), new_path("export")
            os.mkdir(export)
            for link in (shard + ".json", os.path.join(export, "model.safetensors")):
                os.symlink(path, link)
            for flags, code, name in ((train_on(path), DATA, "token shard"), (["--train", shard], DATA, "sidecar"),
                                      (["--init-from", path, *trained], CHECKPOINT, "weights"),
                                      (["--init-from", export, *trained], CHECKPOINT, "weights"),
                                      (["--model", path, "--dry-run"], FLAGS, "model file"),
                                      (["--config", path], FLAGS, "configuration file"),
                                      (["--task", "a=" + path, *trained], DATA,
                                       "file of multiple-choice examples"),
                                      (["--tokenizer", path, "--sample-every", "1", *trained], DATA, "tokenizer file")):
                with self.subTest(file=name, reason=reason):
                    result = self.succeeds(run(*small, *flags, limit=20), code)
                    self.assertRegex(result.err, f"^train_gpt: cannot open the {name} .*: {reason}")


if __name__ == "__main__":
    unittest.main()
