"""Files of earlier versions, as dev/CHANGELOG.md promises: a checkpoint and a run.json of each version since 0.2 continue.

    python3 test/end_to_end/test_run_versions.py --store 0.2      # makes test/fixtures/version_0.2.tar.xz, once a version

An archive has a run of 22 steps that was stopped after step 16, its shards, and what that version's program printed
afterwards: the losses of the other steps, and the losses of its weights on the validation set.
"""

import glob
import os
import random
import shutil
import sys
import tarfile
import unittest

from trainer import PROGRAM, Case, read_json, read_records, run, workspace, write_json, write_shard

FIXTURES = os.path.join(os.path.dirname(__file__), "..", "fixtures")
ARCHIVES = sorted(glob.glob(os.path.join(FIXTURES, "version_*.tar.xz")))
STOPPED, STEPS = 16, 22
# Between versions and CPUs, roundings differ: with each of five CPU types these losses had the same six digits.
BOUND = 0.002


def losses(records, after):
    return {str(r["step"]): r["loss"] for r in records if "loss" in r and r["step"] > after}


def last_validation(records):
    return [r["val_loss"] for r in records if "val_loss" in r][-1]


def evaluated(directory, out):
    done = run("eval", "--from", f"{directory}/run/checkpoints/step_{STOPPED:08}", "--val", f"{directory}/val.bin",
               "-o", out)
    return done, read_json(os.path.join(workspace(), out))["val_loss"] if done.code == 0 else None


class Versions(Case):
    def test_an_archive_is_there(self):
        self.assertGreater(len(ARCHIVES), 0)

    def test_a_run_continues(self):
        for archive in ARCHIVES:
            name = os.path.basename(archive)[:-len(".tar.xz")]
            with self.subTest(name):
                with tarfile.open(archive) as files:
                    files.extractall(workspace())
                expected = read_json(os.path.join(workspace(), name, "expected.json"))
                done, loss = evaluated(name, f"{name}.json")
                self.succeeds(done)
                self.close(loss, expected["evaluated"])
                self.succeeds(run("-o", f"{name}/run", "--resume", "latest"))
                records = read_records(os.path.join(workspace(), name, "run"))
                found = losses(records, STOPPED)
                self.assertEqual(found.keys(), expected["losses"].keys())
                for step in found:
                    self.close(found[step], expected["losses"][step])
                self.close(last_validation(records), expected["validation"])

    def close(self, loss, expected):
        self.assertLess(abs(loss / expected - 1), BOUND)


# A Llama of 9,000 parameters: a checkpoint is small, and has every kind of state that FP8 and AdamW have.
MODEL = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 32, "vocab_size": 64,
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}


def store(version):
    """Makes the archive of the program's version."""
    name, rng = f"version_{version}", random.Random(1)
    os.makedirs(os.path.join(workspace(), name))
    following = [[rng.randrange(1, 64) for _ in range(3)] for _ in range(64)]  # so that a few steps teach something
    for kind, tokens in (("train", 3000), ("val", 600)):
        line = [0]
        while len(line) < tokens:
            line.append(rng.choice(following[line[-1]]))
        os.rename(write_shard(line), os.path.join(workspace(), name, f"{kind}.bin"))
    write_json(os.path.join(workspace(), name, "model.json"), MODEL)
    flags = (f"-i {name}/train.bin -j {name}/val.bin -e {name}/model.json -o {name}/run -t 32 -b 4 -x {STEPS} -l 1e-2 "
             f"-u 2 -n {STOPPED} -v {STOPPED} -m -1 --precision fp8 --fp8-emulation").split()
    path = os.path.join(workspace(), name, "run")
    for command in ([*flags, "--stop-after", STOPPED], ["-o", f"{name}/run", "--resume", "latest"]):
        done = run(*command)
        if done.code:
            sys.exit(done.err)
        if command[0] == "-i":
            loss = evaluated(name, f"{name}.json")[1]
            shutil.copytree(path, path + ".stopped", ignore=shutil.ignore_patterns("model.safetensors", "lock"))
    records = read_records(path)
    write_json(os.path.join(workspace(), name, "expected.json"),
               {"losses": losses(records, STOPPED), "validation": last_validation(records), "evaluated": loss})
    shutil.rmtree(path)
    os.rename(path + ".stopped", path)
    info = read_json(os.path.join(path, "run.json"))
    write_json(os.path.join(path, "run.json"), {**info, "command": info["command"].replace(PROGRAM, "./train_gpt_cpu")})
    with tarfile.open(os.path.join(FIXTURES, f"{name}.tar.xz"), "w:xz") as files:
        files.add(os.path.join(workspace(), name), name, filter=without_owner)


def without_owner(member):
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    if sys.argv[1:2] == ["--store"]:
        store(sys.argv[2])
    else:
        unittest.main()
