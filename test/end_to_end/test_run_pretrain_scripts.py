"""scripts/pretrain: the runs of GPT-2 and GPT-3, with their flags, their launch commands, and a small run."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import unittest

import trainer
from trainer import ROOT, new_path, read_json, read_records

SCRIPTS = os.path.join(ROOT, "scripts", "pretrain")
SMALL = [*trainer.TINY_MODEL, "--context", "16", "-t", "16", "-d", "64", "-b", "1", "-m", "1", "-x", "2", "-u", "0"]

spec = importlib.util.spec_from_file_location("pretrain_table", os.path.join(ROOT, "dev", "pretrain_table.py"))
pretrain_table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pretrain_table)


def start(script, *flags, **environment):
    env = {name: value for name, value in os.environ.items() if name not in ("GPUS", "HOSTS", "NODES", "DATA", "OUT")}
    env.update(PROGRAM=trainer.PROGRAM, OMP_NUM_THREADS="1", **environment)
    return subprocess.run([os.path.join(SCRIPTS, script), *flags], env=env, cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False)


def config(*flags, **environment):
    done = start("gpt2_124M.sh", "--print-config", *flags, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Pretraining(unittest.TestCase):
    def test_predicted_times(self):
        """The README's times are those of the present program."""
        with open(os.path.join(SCRIPTS, "README.md"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        for script in pretrain_table.scripts():
            with self.subTest(script):
                self.assertIn(pretrain_table.row(script, trainer.PROGRAM), lines)

    def test_a_step_is_the_same_on_any_number_of_ranks(self):
        for ranks, batch in ((1, 64), (8, 64), (24, 7), (64, 8)):
            with self.subTest(ranks=ranks):
                done = start("gpt2_124M.sh", "--dry-run", "--gpu", "h100", GPUS=str(ranks))
                if ranks == 24:  # 512 sequences cannot be shared by 24
                    self.assertEqual(done.returncode, 2, done.stdout)
                    continue
                self.assertIn("Step: 524,288 tokens", done.stdout)
                self.assertIn(f"{batch} sequences x 1,024 tokens x {ranks} rank", done.stdout)
                self.assertEqual(config(GPUS=str(ranks))["val-batches"] * batch * 1024 * ranks, 10485760)
        self.assertIn("too few for 1024 ranks", start("gpt2_124M.sh", "--dry-run", GPUS="1024").stderr)

    def test_precision_and_flags_behind_the_own(self):
        self.assertEqual(config()["precision"], "fp8")
        changed = config("--lr", "1e-4", PRECISION="bf16")
        self.assertEqual((changed["precision"], changed["lr"]), ("bf16", 1e-4))
        self.assertTrue(changed["out"].endswith("runs/gpt2_124M-bf16"))

    def test_contradictions(self):
        """A BF16 run in the directory of the FP8 run would continue there as that."""
        for flags, environment, words in ((["--precision", "bf16"], {}, "give PRECISION=bf16 instead of --precision bf16"),
                                          ([], dict(GPUS="2", NODES="2"), "set one of them"),
                                          ([], dict(GPUS="2", HOSTS="a:2"), "set one of them")):
            done = start("gpt2_124M.sh", *flags, DATA=new_path(), **environment)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(words, done.stderr)
        self.assertEqual(start("gpt2_124M.sh", "--precision", "bf16", DATA=new_path(), OUT=new_path()).returncode, 3)
        self.assertEqual(config("--precision", "bf16")["precision"], "bf16")

    def shards(self):
        """A folder with the corpus, named as in llm.c."""
        data = new_path()
        os.makedirs(data)
        for split in ("train", "val"):
            os.symlink(getattr(trainer.corpus(), split), os.path.join(data, f"fineweb_{split}_000001.bin"))
        return data

    def test_without_shards(self):
        done = start("gpt3_125M.sh", DATA=new_path())
        self.assertEqual(done.returncode, 3)
        self.assertIn("has no shards", done.stderr)

    def test_every_script_reaches_its_first_sample_and_validation(self):
        data = self.shards()
        for script in sorted(name for name in os.listdir(SCRIPTS) if name.startswith("gpt")):
            done = start(script, *SMALL, DATA=data, OUT=new_path())
            self.assertEqual(done.returncode, 0, script + done.stderr)
            self.assertRegex(done.stdout, r"sample after step 2:\n\d+ \d+ ", script)
            self.assertRegex(done.stdout, r"\nval +2 \| val_loss ", script)

    def test_a_run_on_one_rank_and_on_two(self):
        data, losses = self.shards(), []
        for ranks in ("1", "2"):
            out = new_path()
            done = start("gpt2_350M.sh", *SMALL, "--reduce-order", "rank", GPUS=ranks, DATA=data, OUT=out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"samples are printed as token ids, because there is no tokenizer\.json.*\.tiktoken")
            self.assertEqual(read_json(os.path.join(out, "run.json"))["world"], int(ranks))
            losses.append([record["loss"] for record in read_records(out) if "loss" in record])
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(losses[0], losses[1])

    def test_several_machines(self):
        """The final command of each way to launch, with stand-ins for mpirun and sbatch."""
        commands, data = new_path(), self.shards()
        os.makedirs(commands)
        for name in ("mpirun", "sbatch"):
            path = os.path.join(commands, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\necho {name} "$@"\n')
            os.chmod(path, 0o755)
        path = commands + os.pathsep + os.environ["PATH"]
        by_mpirun = start("gpt2_1558M.sh", HOSTS="a:8,b:8", DATA=data, OUT=new_path(), PATH=path).stdout
        self.assertRegex(by_mpirun, r"^mpirun .*--host a:8,b:8 -np 16 .*-e d48 .*-d 1048576 -b 16 -m 40 .*--resume auto")
        by_slurm = start("gpt2_1558M.sh", "-l", "1e-3", NODES="4", DATA=data, PATH=path).stdout
        self.assertRegex(by_slurm, r"^sbatch --nodes=4 .*scripts/multi_node/train.sbatch .*-b 16 -m 20 .*-l 1e-3$")

    def test_mpirun_in_the_caller_s_directory(self):
        """Relative paths stay those of the caller, and the program is found by the script's path."""
        place, copy = os.path.realpath(new_path()), new_path()
        os.makedirs(os.path.join(place, "bin"))
        script = os.path.join(copy, "scripts", "multi_node", "run_mpirun.sh")
        os.makedirs(os.path.dirname(script))
        shutil.copy(os.path.join(ROOT, "scripts", "multi_node", "run_mpirun.sh"), script)
        for path, text in (("bin/mpirun", 'pwd\nprintf "%s\\n" "$@"'), ("mine", ""), (os.path.join(copy, "train_gpt"), "")):
            path = os.path.join(place, path)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{text}\n")
            os.chmod(path, 0o755)
        env = {**os.environ, "PATH": os.path.join(place, "bin") + os.pathsep + os.environ["PATH"]}
        flags = ["--ranks", "2", "--", "-i", "data/*.bin", "-o", "out/x"]
        for name in (script, os.path.relpath(script, place)):
            for options, program in (([], os.path.join(copy, "train_gpt")), (["--program", "./mine"], "./mine")):
                call = lambda *more, name=name: subprocess.run(
                    [name, *more], cwd=place, env=env, capture_output=True, text=True, check=True).stdout
                lines = call(*options, *flags).splitlines()
                self.assertEqual((lines[0], lines[-5:]), (place, [program, *flags[3:]]))
                self.assertEqual(shlex.split(call("--print", *options, *flags))[1:], lines[1:])
            self.assertIn("--hosts LIST", call("--help"))


class Tour(unittest.TestCase):
    def test_printed_commands_can_be_pasted(self):
        with open(os.path.join(ROOT, "scripts", "tour.sh"), encoding="utf-8") as file:
            function = re.search(r"^run\(\) \{\n.*?^\}$", file.read(), re.MULTILINE | re.DOTALL).group()
        words = ["true", "--separator", r"\n\n", "--prompt", "The ", "data/train_*.bin", "it's", ""]
        done = subprocess.run(["bash", "-c", function + '\nrun "$@"', "-", *words], capture_output=True, text=True, check=True)
        self.assertEqual(shlex.split(done.stdout), words)


if __name__ == "__main__":
    unittest.main()
