"""Nothing is lost: runs that are killed, stopped, moved to other ranks or stages, or hit by disk errors continue from
their checkpoints with the bits they would have had.

CHECKPOINT_MATRIX=1 (make soak) kills more often, at every system call, with every recipe, and on several ranks.
"""

import array
import errno
import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from test_ranks import ENVIRONMENT
from test_run_ranks import MPIRUN, ONE_THREAD, command, run_each, run_on
from trainer import (CHECKPOINT, DATA, FLAGS, FP8_RECIPES, PROGRAM, RESOURCES, ROOT, STOPPED, TIME_FIELDS, Case, corpus,
                     disk_trouble, kill_processes, new_path, open_files, read_bytes, read_json, read_records,
                     read_safetensors, recipe_flags, run, train_flags, workspace, write_json, write_shard)

MATRIX = bool(os.environ.get("CHECKPOINT_MATRIX"))
# One layer of 32 channels: a few milliseconds a step.
MICRO = ["--layers", "1", "--channels", "32", "--heads", "1", "--context", "16", "--seq", "16", "--batch", "4",
         "--lr", "1e-3"]


def micro_flags(*flags):
    return [*train_flags(flags), "--val", corpus().val, *MICRO, "--precision", "bf16", "--max-steps", "12",
            "--val-every", "5", "--val-batches", "1", "--fp8-log-every", "2", *flags]


# Everything in its narrowest format, and in host memory.
NARROW = [*recipe_flags("delayed"), "--master", "bf16", "--gradients", "bf16", "--adam-moments", "fp8",
          "--offload", "optimizer"]


class Directory:
    """A run directory and its contents."""

    def __init__(self, path=None):
        self.path = path or new_path()

    def file(self, *names):
        return os.path.join(self.path, *names)

    def run(self, *flags, env=None, ranks=1):
        return run_on(ranks, *micro_flags("--out", self.path, *flags), env=env)

    def start(self, *flags, env=None, ranks=1):
        flags = micro_flags("--out", self.path, *flags)
        return subprocess.Popen([PROGRAM, *flags] if ranks == 1 else command(ranks, *flags), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=workspace(),
                                env={**ENVIRONMENT, **(env or {})})

    @property
    def checkpoints(self):
        """Returns {step: path} of the checkpoints that look complete."""
        parent = self.file("checkpoints")
        names = os.listdir(parent) if os.path.isdir(parent) else []
        return {int(name[5:]): os.path.join(parent, name) for name in sorted(names) if name[5:].isdigit()}

    def manifest(self, step):
        return read_json(os.path.join(self.checkpoints[step], "manifest.json"))["manifest"]

    def state(self, step):
        """Returns {(tensor, part): values' bytes}, from all files."""
        manifest, parts = self.manifest(step), {}
        for file in manifest["files"]:
            tensors = read_safetensors(os.path.join(self.checkpoints[step], file["name"]))
            for s in file["slices"]:
                parts.setdefault((s["tensor"], s["part"]), {})[s["start"]] = tensors[f"{s['tensor']}.{s['part']}"][2]
        return {name: b"".join(data for _, data in sorted(slices.items())) for name, slices in parts.items()}

    def records(self):
        """The records of the run's numbers, without those of clocks."""
        return [{k: v for k, v in r.items() if k not in TIME_FIELDS} for r in read_records(self.path)
                if "memory" not in r and "slow_rank" not in r]

    def log(self):
        with open(self.file("main.log"), encoding="utf-8") as file:
            return file.read()


def damage(path, offset=-1):
    """Flips one bit."""
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


@functools.cache
def llama():
    """A file that describes a small Llama."""
    path = new_path() + ".json"
    write_json(path, {"architecture": "llama", "layers": 1, "heads": 1, "channels": 32, "hidden": 32, "context": 16})
    return path


@functools.cache
def whole_run(*flags):
    """The undisturbed run."""
    directory = Directory()
    result = directory.run(*flags)
    assert result.code == 0, result.out + result.err
    return directory


class Resume(Case):
    def test_same_bits(self):
        """In every precision, with accumulation. FP8's histories are restored, too (Megatron-Bridge#1730,
        TransformerEngine#982). Every optimizer and every format of the state: test/train/state.cpp."""
        kinds = [["--precision", "fp32"], ["--precision", "bf16"]]
        kinds += [[*recipe_flags(r), "--batch", "8"] for r in FP8_RECIPES]
        for precision in (["--precision", "bf16"], [*recipe_flags("delayed"), "--batch", "8", "--master", "bf16"]):
            kinds.append([*precision, "--qk-clip", "0.01", "--signals-every", "1"])
            logits = [t["max_logit"] for r in whole_run(*kinds[-1]).records() for t in r.get("signals", [])
                      if "max_logit" in t]
            self.assertGreater(max(logits), 0.01, "it clips")
        kinds.append(["--precision", "fp8", "--fp8-fallback", "0.5,0.0001,3", "--total-batch", "128", "--skip-spikes",
                      "--model", llama()])  # its records have gate and up, too
        for kind in kinds:
            with self.subTest(kind=kind):
                stopped = Directory()
                for limits in (["--max-minutes", "1e-9"], ["--resume", "latest", "--max-minutes", "1e-9"],
                               ["--resume", "auto", "--max-minutes", "1e-9"], ["--resume", "latest"]):
                    last = limits[-1] != "1e-9"
                    self.succeeds(stopped.run(*kind, *limits), 0 if last else STOPPED)
                self.same_run(stopped, whole_run(*kind))

    def test_killed_at_random_moments(self):
        """SIGKILL at any time: at most the steps since the last checkpoint are repeated."""
        rng = random.Random(20240520)
        kinds = [["--precision", "fp8", "--total-batch", "128"], [*NARROW, "--total-batch", "192"]]
        if MATRIX:
            kinds = [["--precision", "bf16", "--total-batch", "192"]]
            kinds.append([*kinds[0], "--reduce", "fp8"])
            kinds += [[*NARROW, "--adam-moments", moments, "--total-batch", "192"] for moments in ("bf16", "fp8")]
            kinds += [[*recipe_flags(r), "--batch", "8", "--total-batch", "384"] for r in FP8_RECIPES]
        for kind in kinds:
            for ranks in (1, 3) if MATRIX and MPIRUN else (1,):
                with self.subTest(kind=kind, ranks=ranks):
                    whole_weights = ["--zero", "0"] if "block" in kind else []  # on every rank
                    flags = [*kind, *whole_weights, "--max-steps", "40", "-n", "3", "--reduce-order", "rank",
                             "--keep", "2"]
                    whole = Directory()
                    self.succeeds(whole.run(*flags, ranks=ranks))
                    killed = Directory()
                    for _ in range(10 if MATRIX else 4):
                        process = killed.start(*flags, "--resume", "auto", ranks=ranks)
                        for _ in range(rng.randrange(4, 24)):  # lines of output before the kill
                            process.stdout.readline()
                        time.sleep(rng.uniform(0, 0.02))
                        process.kill()
                        process.communicate()
                        if ranks > 1:  # mpirun's children end when they notice that it is gone
                            kill_processes(re.escape(killed.path))
                            time.sleep(0.2)
                    self.assertTrue(killed.checkpoints, "some of it was done by runs that were killed")
                    last = self.succeeds(killed.run(*flags, "--resume", "auto", ranks=ranks))
                    self.same_run(killed, whole, 40)
                    self.assertEqual(*(read_bytes(run_.file("model.safetensors")) for run_ in (killed, whole)))
                    # Otherwise it was complete, and kills left older ones.
                    if "checkpoint of step 40 written" in last.out:
                        self.assertEqual(sorted(os.listdir(killed.file("checkpoints"))),
                                         [os.path.basename(path) for path in killed.checkpoints.values()][-2:])

    def test_later_epochs(self):
        """In a later epoch (transformers#40691), exactly at an epoch's end (verl#7401), and with the place counted once
        (Megatron-Bridge#4601)."""
        rng = random.Random(3)
        shard = write_shard([rng.randrange(257) for _ in range(16 * 4 * 5 + 1)])  # 5 steps per epoch
        flags = ["--train", shard, "--vocab", "257", "--max-steps", "13", "--val-every", "0"]
        whole = whole_run(*flags)
        hashes = [r["batch_hash"] for r in whole.records() if "loss" in r]
        self.assertEqual(len(set(hashes)), 13, "every epoch has an order of its own")
        for stop in (4, 5, 6, 10, 11):
            with self.subTest(stop=stop):
                stopped = Directory()
                self.succeeds(stopped.run(*flags, "--stop-after", str(stop)))
                self.succeeds(stopped.run(*flags, "--resume", "latest"))
                self.same_run(stopped, whole, 13)
        place = whole.manifest(13)["run"]["data"]
        self.assertEqual((place["epoch"], place["sample"]), (2, 3 * 4))

    def test_with_the_configuration_of_its_run_json(self):
        """`-o RUN --resume latest` alone makes the same run."""
        stopped = Directory()
        self.succeeds(stopped.run("--stop-after", "5"))
        result = self.succeeds(run("-o", stopped.path, "--resume", "latest", env=ONE_THREAD))
        self.assertIn(f"the configuration is that of {stopped.file('run.json')}", result.out)
        self.same_run(stopped, whole_run())
        facts = read_json(stopped.file("run.json"))
        self.assertEqual([entry["step"] for entry in facts["resumed"]], [5])
        self.assertEqual(facts["run_id"], stopped.manifest(12)["run_id"])
        result = self.succeeds(run("-o", stopped.path, "--resume", "auto", "--max-steps", "7", env=ONE_THREAD))
        self.assertRegex(result.out, r"(?s)step 12 is done.*\nnothing to do: step 12 is past --max-steps 7\n")

    def test_state_does_not_grow(self):
        """Not with steps (TransformerEngine#231), and a resumed run uses no more memory than a new one (nanoGPT#236).
        """
        sizes = {}
        for steps in ("4", "40"):
            run_ = Directory()
            self.succeeds(run_.run("--precision", "fp8", "--max-steps", steps, "--val-every", "0"))
            state = run_.manifest(int(steps))["state"]
            sizes[steps] = [os.path.getsize(os.path.join(run_.checkpoints[int(steps)], "rank_00000.safetensors")),
                            {name: len(window) for name, window in state["spikes"].items() if isinstance(window, list)},
                            [(t["name"], len(t), len(t["history"])) for t in state["fp8"]["tensors"]]]
        self.assertEqual(sizes["4"], sizes["40"])
        stopped = Directory()
        self.succeeds(stopped.run("--stop-after", "4"))
        self.succeeds(stopped.run("--resume", "latest"))
        self.assertEqual(self.memory(stopped)[-1], self.memory(whole_run())[-1])

    def memory(self, run_):
        return [r["memory"] for r in read_records(run_.path) if "memory" in r]

    def test_into_another_directory(self):
        first, second = Directory(), Directory()
        self.succeeds(first.run("--stop-after", "6"))
        self.succeeds(second.run("--resume", first.path))
        self.assertEqual([r["step"] for r in second.records() if "loss" in r], list(range(7, 13)))
        self.same_state(second.state(12), whole_run().state(12))
        # Stopped at once, the new directory still has a checkpoint of its own.
        third = Directory()
        self.succeeds(third.run("--resume", first.checkpoints[6], "--stop-after", "6"))
        self.same_state(third.state(6), first.state(6))

    def test_rewind_and_other_data(self):
        run_ = Directory()
        for stop in (2, 4, 6, 8):
            self.succeeds(run_.run("--keep", "0", "--stop-after", str(stop), "--resume", "auto"))
        damage(os.path.join(run_.checkpoints[8], "rank_00000.safetensors"))  # what is skipped is not read
        result = self.succeeds(run_.run("--keep", "0", "--resume", "latest", "--rewind", "2", "--skip-data", "3"))
        self.assertIn("step 4 is done", result.out)
        whole = [r["batch_hash"] for r in whole_run("--max-steps", "16").records() if "loss" in r]
        again = [r["batch_hash"] for r in run_.records() if "loss" in r]
        self.assertEqual(again, whole[:4] + whole[7:15], "three steps' data is left out, from there on")
        self.assertIn("step_00000008.set_aside", os.listdir(run_.file("checkpoints")))
        self.refused(run_.run("--resume", "latest", "--rewind", "9"), CHECKPOINT, "--rewind 9", "at most")

    def test_a_damaged_newer_one_costs_no_good_one(self):
        """It is set aside, so it neither counts towards --keep nor is used by a later resume. Every other kind of damage:
        test/checkpoint/checkpoint_reader.cpp."""
        run_ = Directory()
        for stop in ("3", "6"):
            self.succeeds(run_.run("--stop-after", stop, "--resume", "auto"))
        damage(os.path.join(run_.checkpoints[6], "rank_00000.safetensors"), 5000)
        names = os.listdir(run_.checkpoints[6])
        result = self.succeeds(run_.run("--resume", "latest", "--keep", "1", "--stop-after", "4"))
        self.assertIn("train_gpt: skipping ", result.err)
        self.assertRegex(result.err, r"rank_00000.safetensors: is damaged between bytes \d+ and \d+ \(tensors? \S+")
        self.assertIn("step 3 is done", result.out)
        self.assertEqual(os.listdir(run_.file("checkpoints", "step_00000006.set_aside")), names)
        self.assertEqual(list(run_.checkpoints), [3, 4])
        result = self.succeeds(run_.run("--resume", "latest", "--verify", "none"))
        self.assertIn("step 4 is done", result.out)
        self.same_state(run_.state(12), whole_run().state(12))

    def test_a_refused_resume_changes_nothing(self):
        run_ = Directory()
        for stop in ("3", "6"):
            self.succeeds(run_.run("--stop-after", stop, "--resume", "auto"))
        before = run_.records(), list(run_.checkpoints), os.listdir(run_.path)
        self.refused(run_.run("--resume", "latest", "--rewind", "1", "--layers", "2"), CHECKPOINT, "--layers")
        self.refused(run_.run("--resume", "latest", "--rewind", "1", "--new-data", "--train", new_path()), DATA, "no file")
        self.assertEqual((run_.records(), list(run_.checkpoints), os.listdir(run_.path)), before)

    def test_retention_leaves_what_was_resumed_from(self):
        run_ = Directory()
        self.succeeds(run_.run("--stop-after", "4"))
        self.succeeds(run_.run("--resume", "latest", "--keep", "1", "-n", "8", "--stop-after", "8"))
        self.assertEqual(list(run_.checkpoints), [4, 8])

    def test_a_command_after_each(self):
        """--after-checkpoint gets the paths of complete checkpoints, one at a time, and --keep deletes none of those that
        it reads. What it does never ends a run, which waits for it."""
        run_, log, go = Directory(), new_path(), new_path()
        command = (f'f() {{ until [ -e {go} ]; do sleep 0.01; done; test -s "$1/manifest.json" && basename "$1" >> {log}; '
                   '}; f # a note')
        process = self.started(run_.start("-n", "2", "--max-steps", "9", "--keep", "1", "--after-checkpoint", command))
        said = self.wait_for(process, "waiting for --after-checkpoint of step 9\n")
        first, *others, last = re.findall(r"checkpoint of step (\d+) written", said)
        self.assertEqual(list(run_.checkpoints), sorted({int(first), int((others or [first])[-1]), 9}),
                         "the first is read, and the last but one waited while the last was saved")
        with open(go, "w", encoding="utf-8"):
            pass
        self.ended(process)
        for step in others:
            self.assertIn(f"note: --after-checkpoint is not run for step {step}: it still runs for step {first}, and", said)
        with open(log, encoding="utf-8") as file:
            self.assertEqual(file.read().split(), [f"step_{int(step):08}" for step in (first, last)])
        failed = self.succeeds(Directory().run("--max-steps", "2", "--after-checkpoint", "f() { exit 3; }; f &"))
        self.assertNotIn("warning", failed.err)
        failed = self.succeeds(Directory().run("--max-steps", "2", "--after-checkpoint", "f() { exit 3; }; f"))
        self.assertIn("warning: --after-checkpoint 'f() { exit 3; }; f' failed with exit code 3 for the checkpoint of step "
                      "2; training continues\n", failed.err)
        failed = self.succeeds(Directory().run("--max-steps", "2", "--after-checkpoint", "kill -s PIPE $$; true"))
        self.assertIn("true' was killed by signal 13 for", failed.err, "the run's own ignored signals reach no pipeline")

    def test_a_command_in_a_strangers_run_json(self):
        """It is printed and not run, with --resume and with --config."""
        run_, touched = Directory(), new_path()
        self.succeeds(run_.run("--stop-after", "2", "--after-checkpoint", f"touch {touched}; true"))
        os.remove(touched)
        for flags in (["--out", new_path(), "--config", run_.file("run.json"), "--stop-after", "2"],
                      ["--out", run_.path, "--resume", "latest", "--stop-after", "4"]):
            done = self.succeeds(run(*flags))
            self.assertIn(f"has --after-checkpoint 'touch {touched}; true', which counts on the command line alone", done.out)
            self.assertFalse(os.path.exists(touched))
        self.succeeds(run("--out", run_.path, "--resume", "latest", "--stop-after", "6", "--after-checkpoint",
                          f"touch {touched}; true"))
        self.assertTrue(os.path.exists(touched))

    def test_resumed_from_a_run_that_prunes(self):
        """The newest checkpoint is deleted after it was found: there is a newer one by then."""
        other = Directory()
        for stop in ("3", "6", "9"):
            self.succeeds(other.run("--keep", "0", "--stop-after", stop, "--resume", "auto"))
        there = other.checkpoints
        newer = shutil.move(there[9], new_path())
        run_, hold = Directory(), new_path()
        shutil.copy(opened := os.path.join(there[6], "rank_00000.safetensors"), hold)
        process = self.started(run_.start("--resume", other.path, env={
            "LD_PRELOAD": disk_trouble(), "DISK_HOLD": hold, "DISK_READS_OF": "step_00000006/rank_00000.safetensors"}))
        while process.poll() is None and opened not in open_files(process):
            time.sleep(0.001)
        shutil.move(newer, there[9])
        for step in (3, 6):
            shutil.rmtree(there[step])
        os.remove(hold)
        self.wait_for(process, "step 9 is done")
        process.kill()

    def test_another_reader(self):
        """A reader that only knows the description finds the same numbers."""
        sys.path.insert(0, os.path.join(ROOT, "scripts"))
        from read_checkpoint import Checkpoint, newest
        checkpoint = Checkpoint(newest(whole_run().path))
        self.assertEqual(checkpoint.manifest, whole_run().manifest(12))
        for (tensor, part), data in whole_run().state(12).items():
            self.assertEqual(array.array("f", checkpoint.read(tensor, part)).tobytes(), data)
        script = os.path.join(ROOT, "scripts", "read_checkpoint.py")
        said = json.loads(subprocess.run([sys.executable, script, whole_run().path, "h.0.fc.weight", "--json"],
                                         capture_output=True, text=True, check=True).stdout)
        (tensor,) = said["tensors"]
        self.assertEqual((said["step"], tensor["shape"], list(tensor["numbers"])), (12, [128, 32], ["master", "m", "v"]))
        self.assertEqual(tensor["numbers"]["v"]["max"], max(checkpoint.read("h.0.fc.weight", "v")))
        cut = new_path()
        shutil.copytree(checkpoint.path, cut)
        with open(os.path.join(cut, checkpoint.manifest["files"][0]["name"]), "ab") as file:
            file.truncate(file.tell() - 1)
        done = subprocess.run([sys.executable, "-S", script, cut], capture_output=True, text=True, check=False)  # no xxhash
        self.assertEqual(done.returncode, 1)
        self.assertIn("has another size than it was written with", done.stderr)
        narrow = whole_run("--adam-moments", "bf16")
        values = Checkpoint(newest(narrow.path)).read("h.0.fc.weight", "v")
        self.assertEqual(array.array("f", values).tobytes()[2::4] + array.array("f", values).tobytes()[3::4],
                         (data := narrow.state(12)["h.0.fc.weight", "v"])[::2] + data[1::2])

    def test_exported_weights_are_those_of_the_end(self):
        run_ = Directory()
        self.succeeds(run_.run("--stop-after", "3"))
        self.assertTrue(os.path.exists(run_.file("model.safetensors")))
        self.succeeds(run_.run("--resume", "latest", "--max-minutes", "1e-9"), STOPPED)
        self.assertFalse(os.path.exists(run_.file("model.safetensors")), "they would be of step 3")
        exported = new_path()
        self.succeeds(run("export", "--from", run_.path, "--to", exported))
        self.succeeds(run_.run("--resume", run_.checkpoints[4], "--stop-after", "4"))
        with open(os.path.join(exported, "model.safetensors"), "rb") as one, \
                open(run_.file("model.safetensors"), "rb") as other:
            self.assertEqual(one.read(), other.read())


@unittest.skipUnless(MPIRUN, "no mpirun")
class Ranks(Case):
    """Saved on some ranks, resumed on others: slices that do not match (torchtitan#1702), and the place in the data
    (torchtitan#816)."""
    FLAGS = ["--batch", "1", "--total-batch", "384", "--reduce-order", "rank", "--precision", "fp8"]

    def test_another_number_of_ranks_and_another_stage(self):
        pairs = [((3, 2), (1, 0)), ((1, 0), (3, 3)), ((2, 1), (3, 0))]
        if MATRIX:
            some = (1, 2, 3, 4, 8)
            pairs = [((n, a), (m, b)) for n in some for m in some for a in range(4) for b in range(4)
                     if (n > 1 or a == 0) and (m > 1 or b == 0)]
        self.check_pairs(pairs, self.FLAGS)

    def test_what_one_rank_keeps_of_a_whole_matrix(self):
        """NorMuon's second moments belong to a matrix's owner, which changes with the number of ranks. The momentum
        continues unchanged."""
        self.check_pairs([((3, 2), (1, 0)), ((1, 0), (2, 3))],
                         [*self.FLAGS, "--optimizer", "normuon", "--momentum", "0.95,8", "--cautious-decay",
                          "--adam-moments", "bf16"])

    def test_the_narrowest_state(self):
        self.check_pairs([((3, 1), (2, 1))], [*self.FLAGS, *NARROW])

    def check_pairs(self, pairs, flags):
        """Runs saved by (ranks, stage) and resumed by others equal a run on one rank."""
        whole = Directory()
        self.succeeds(whole.run(*flags, ranks=1))
        for (n, stage), (m, other) in pairs:
            with self.subTest(save=(n, stage), load=(m, other)):
                run_ = Directory()
                self.succeeds(run_.run(*flags, "--zero", str(stage), "--stop-after", "5", ranks=n))
                self.assertEqual(run_.manifest(5)["world"], n)
                self.succeeds(run_.run(*flags, "--zero", str(other), "--resume", "latest", ranks=m))
                self.same_state(run_.state(12), whole.state(12))
                for field in ("loss", "norm", "batch_hash"):
                    self.assertEqual([r[field] for r in run_.records() if "loss" in r],
                                     [r[field] for r in whole.records() if "loss" in r])

    def test_the_first_rank_decides_what_there_is(self):
        """A file system may show other ranks something different (KempnerForge#49)."""
        run_ = Directory()
        flags = ["--total-batch", "384", "--zero", "2"]
        self.succeeds(run_.run(*flags, "--stop-after", "3", ranks=2))
        flags = micro_flags("--out", run_.path, *flags, "--resume", "latest")
        done = self.succeeds(run_with_disks(flags, None, "DISK_HIDE=1"))
        self.assertIn("step 3 is done", done.out)

    def test_no_two_ranks_write_to_one_file(self):
        """NFS would make them wait for each other for a day (NeMo-RL#3504)."""
        flags = micro_flags("--out", Directory().path, *self.FLAGS, "--zero", "2", "-n", "2", "--stop-after", "4")
        lists = [new_path("opened") for _ in range(3)]
        self.succeeds(run_with_disks(flags, *(f"DISK_OPENED={path}" for path in lists)))
        opened = []
        for path in lists:
            with open(path, encoding="utf-8") as file:
                opened.append(set(file.read().split()))
        self.assertEqual([sum("rank" in os.path.basename(path) for path in paths) for paths in opened], [2, 2, 2], opened)
        for one, other in itertools.combinations(opened, 2):
            self.assertEqual(one & other, set())

    def test_a_failure_of_one_is_a_failure_of_all(self):
        """Rank 1's disk is full: there is no checkpoint, and the run continues or stops, as configured."""
        for policy in ("continue", "stop"):
            with self.subTest(policy=policy):
                run_ = Directory()
                flags = micro_flags("--out", run_.path, "--total-batch", "384", "-n", "4", "--on-save-error", policy,
                                    "--stop-after", "11")
                done = run_with_disks(flags, None, f"DISK_FAIL_AT=3 DISK_ERRNO={errno.ENOSPC}")
                text = done.out + done.err
                self.assertIn("rank 1: ", text)
                self.assertIn(os.strerror(errno.ENOSPC), text)
                self.assertEqual(run_.checkpoints, {})
                self.succeeds(done, RESOURCES)  # the last checkpoint could not be written either
                if policy == "continue":
                    self.assertIn("training continues", text)
                    self.assertEqual(len([r for r in run_.records() if "loss" in r]), 11)


class Refused(Case):
    def setUp(self):
        self.run_ = Directory()

    def save(self, *flags):
        for stop in ("3", "6"):
            self.succeeds(self.run_.run("--stop-after", stop, "--resume", "auto", *flags))

    def test_nothing_to_resume(self):
        """An explicit resume that finds nothing is an error and never starts at step 0 (torchtitan#3732)."""
        self.refused(self.run_.run("--resume", "latest"), CHECKPOINT, "no checkpoint", "--resume auto")
        self.refused(self.run_.run("--resume", self.run_.file("nowhere")), CHECKPOINT, "nowhere")
        self.succeeds(self.run_.run("--resume", "auto", "--stop-after", "2"))
        self.assertEqual(list(self.run_.checkpoints), [2])

    def test_a_directory_that_holds_a_run(self):
        self.save()
        self.refused(self.run_.run(), FLAGS, "--resume latest", "--overwrite")
        self.succeeds(self.run_.run("--overwrite", "--stop-after", "1"))
        self.assertEqual(list(self.run_.checkpoints), [1])

    def test_flags_that_contradict(self):
        self.refused(self.run_.run("--resume", "latest", "--overwrite"), FLAGS, "--overwrite")
        self.refused(self.run_.run("--rewind", "1"), FLAGS, "--resume")
        self.refused(run("--train", corpus().train, *MICRO, "--resume", "latest"), FLAGS, "--out")

    def test_another_model(self):
        self.save()
        result = self.run_.run("--resume", "latest", "--layers", "2")
        self.refused(result, CHECKPOINT, "--layers 1", "--layers 2", "in another --out")
        self.assertNotIn("--init-from", result.err, "weights of another shape are of no use to it")
        self.refused(self.run_.run("--resume", "latest", "--total-batch", "128"), CHECKPOINT, "--total-batch")
        self.refused(self.run_.run("--resume", "latest", "--optimizer", "lion"), CHECKPOINT,
                     "was written with --optimizer adamw, this run has --optimizer lion", "--init-from")

    def test_other_data(self):
        self.save()
        other = write_shard([i % 200 for i in range(5000)])
        for flags, words in ((["--train", other, "--vocab", "257"], "other training data"), (["--seed", "7"], "--seed 7")):
            with self.subTest(flags=flags):
                self.refused(self.run_.run("--resume", "latest", *flags), CHECKPOINT, words, "--new-data")
        self.succeeds(self.run_.run("--resume", "latest", "--train", other, "--vocab", "257", "--new-data"))

    def test_state_in_another_format(self):
        """It is converted, with a message. From BF16 to FP32 nothing is lost."""
        for flag, part in (("--adam-moments", "v"), ("--master", "master")):
            with self.subTest(flag=flag):
                self.run_ = Directory()
                self.save()
                result = self.succeeds(self.run_.run("--resume", "latest", flag, "bf16", "--stop-after", "7"))
                self.assertIn(f"{flag} bf16 from here on; until now it was fp32", result.out)
                name = "h.0.fc.weight", part
                self.assertEqual(2 * len(self.run_.state(7)[name]), len(self.run_.state(6)[name]))
                result = self.succeeds(self.run_.run("--resume", "latest", "--stop-after", "8"))
                self.assertIn(f"{flag} fp32 from here on; until now it was bf16", result.out)
                self.assertEqual(len(self.run_.state(8)[name]), len(self.run_.state(6)[name]))

    def test_all_damaged(self):
        self.save()
        before = self.run_.records()
        for path in self.run_.checkpoints.values():
            damage(os.path.join(path, "rank_00000.safetensors"))
        for how in ("latest", "auto"):
            self.refused(self.run_.run("--resume", how), CHECKPOINT, "every checkpoint is damaged", "nothing is overwritten")
        self.assertEqual(self.run_.records(), before)
        self.succeeds(self.run_.run("--resume", "latest", "--verify", "size"))

    def test_a_second_run_in_the_same_directory(self):
        process = self.started(self.run_.start("--max-steps", "100000"))
        self.wait_for(process, "step ")
        for how in (["--overwrite"], ["--resume", "auto"], []):
            self.refused(self.run_.run(*how), FLAGS, "in use by another run", str(process.pid))
        process.kill()
        process.wait()
        self.succeeds(self.run_.run("--resume", "auto", "--stop-after", "1"))


class ValidationWatch(Case):
    """Lowering the rate and stopping by validation losses: with a rate of zero they never improve."""

    FLAGS = ["--lr", "1e-30", "--schedule", "constant", "--max-steps", "10", "--val-every", "1"]

    def test_plateau(self):
        flags = [*self.FLAGS, "--plateau", "0.5,2"]
        records = whole_run(*flags).records()
        rates = [record["lr"] / 1e-30 for record in records if "loss" in record]
        # Validations 1 to 3 are no better than the one at step 0; then 4 to 6, then 7 to 9.
        for rate, expected in zip(rates, [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125], strict=True):
            self.assertAlmostEqual(rate, expected, places=5)
        self.assertEqual([(r["step"], r["rate_factor"]) for r in records if "rate_factor" in r],
                         [(3, 0.5), (6, 0.25), (9, 0.125)])
        stopped = Directory()  # where the rate has just fallen
        self.succeeds(stopped.run(*flags, "--stop-after", "3"))
        self.succeeds(stopped.run(*flags, "--resume", "latest"))
        self.assertEqual(stopped.records(), records)

    def test_early_stop(self):
        run_ = Directory()
        result = self.succeeds(run_.run(*self.FLAGS, "--early-stop", "3"))
        self.assertIn("step 4: no better validation loss in 4 validations: the run ends here", result.out)
        self.assertTrue(os.path.exists(os.path.join(run_.path, "model.safetensors")))
        result = self.succeeds(run_.run(*self.FLAGS, "--early-stop", "3", "--resume", "latest"))
        self.assertIn("nothing to do: --early-stop 3 ended the run after step 4; ", result.out)
        self.assertEqual(max(record["step"] for record in run_.records()), 4)
        self.succeeds(run_.run(*self.FLAGS, "--early-stop", "0", "--resume", "latest"))
        self.assertEqual(max(record["step"] for record in run_.records()), 10)

    def test_without_validations(self):
        for flags in (["--plateau", "0.5,2"], ["--early-stop", "1"]):
            self.refused(Directory().run(*flags, "--val-every", "0"), FLAGS, "--plateau and --early-stop")


class DecayNow(Case):
    """A file named `decay` begins a decay after the step in which it is seen: the bits are those of --decay-from."""

    # Six micro-batches a step, in rank order: any number of ranks has the same bits.
    FLAGS = ["--schedule", "wsd", "--warmup", "2", "--val-every", "0", "--reduce-order", "rank", "--batch", "2",
             "--total-batch", str(6 * 2 * 16)]
    LONG = [*FLAGS, "--max-steps", "60"]  # a run that overlooks the file ends soon, too

    def ask(self, run_, text):
        with open(run_.file("decay"), "w", encoding="utf-8") as file:
            file.write(text)

    def weights(self, run_):
        return read_bytes(run_.file("model.safetensors"))

    @functools.cached_property
    def expected(self):
        planned = Directory()
        self.succeeds(planned.run(*self.FLAGS, "--max-steps", "10", "--decay-from", "6"))
        return self.weights(planned)

    def test_the_bits_of_a_planned_decay_through_three_lives(self):
        for ranks in (1, 3) if MPIRUN else (1,):
            with self.subTest(ranks=ranks):
                run_ = Directory()
                self.succeeds(run_.run(*self.LONG, "--stop-after", "5", ranks=ranks))
                self.ask(run_, "4\n")
                result = self.succeeds(run_.run(*self.LONG, "--stop-after", "8", "--resume", "latest", ranks=ranks))
                self.assertIn("step 6: the learning rate decays from here on, and the run ends with step 10", result.out)
                self.assertFalse(os.path.exists(run_.file("decay")))
                # As if the run had been killed before step 8 was saved: the checkpoint that came with the decay is left.
                shutil.rmtree(run_.checkpoints[8])
                result = self.succeeds(run_.run(*self.LONG, "--resume", "latest", ranks=ranks))
                self.assertIn("that began after step 6 ends with step 10", result.out)
                self.assertEqual([(r["step"], r["decay_from"], r["decay_until"]) for r in run_.records()
                                  if "decay_from" in r], [(6, 6, 10)])
                self.assertEqual(self.weights(run_), self.expected)
                self.assertIn("to do: step 10 was", self.succeeds(run_.run(*self.LONG, "--resume", "latest")).out)
                # A flag takes the place of the recorded decay.
                self.succeeds(run_.run(*self.FLAGS, "--max-steps", "12", "--decay-from", "11", "--resume", "latest"))
                self.assertEqual(max(record["step"] for record in run_.records()), 12)

    def test_killed_before_it_is_saved(self):
        """The order stays in its file until a checkpoint has it. A slow disk still writes that of step 6 in step 9."""
        run_ = Directory()
        self.succeeds(run_.run(*self.LONG, "--stop-after", "5"))
        self.ask(run_, "4\n")
        process = self.started(run_.start(*self.LONG, "--resume", "latest",
                                          env={"LD_PRELOAD": disk_trouble(), "DISK_SLOW": "20"}))
        self.wait_for(process, "step     9/10 ")
        process.kill()
        process.wait()
        self.assertEqual((max(run_.checkpoints), os.path.exists(run_.file("decay"))), (5, True))
        self.succeeds(run_.run(*self.LONG, "--resume", "latest"))
        self.assertEqual(self.weights(run_), self.expected)

    def test_a_share_of_the_run_is_one_of_the_shorter_run(self):
        """--fp8-until 94% follows the end of the run, also after another resume."""
        fp8 = ["--precision", "fp8", "--fp8-until", "94%"]
        planned = Directory()
        self.succeeds(planned.run(*self.FLAGS, *fp8, "--max-steps", "10", "--decay-from", "6"))
        run_ = Directory()
        self.succeeds(run_.run(*self.LONG, *fp8, "--stop-after", "5"))
        self.ask(run_, "4\n")
        self.succeeds(run_.run(*self.LONG, *fp8, "--stop-after", "8", "--resume", "latest"))
        result = self.succeeds(run_.run(*self.LONG, *fp8, "--resume", "latest"))
        self.assertIn("step 9: all layers continue in BF16 (--fp8-until 94%)", result.out)
        self.assertEqual(self.weights(run_), self.weights(planned))

    def test_refusals(self):
        for flags, text, problem in ((["--schedule", "cosine"], "4\n", "--schedule cosine has no decay to begin"),
                                     ([], "0\n", "1 to 11 are possible"),
                                     ([], "12\n", "1 to 11 are possible"),
                                     (["--warmup", "5"], "4\n", "the warm-up takes 5 steps"),
                                     (["--decay-from", "0", "--warmup", "0"], "4\n", "the learning rate decays already")):
            with self.subTest(flags=flags, text=text):
                run_ = Directory()
                os.makedirs(run_.path)
                self.ask(run_, text)
                result = self.succeeds(run_.run(*self.FLAGS, "--warmup", "1", *flags))
                self.assertRegex(result.err, rf"step 1: .*decay is ignored and deleted: .*{problem}")
                self.assertFalse(os.path.exists(run_.file("decay")))
                self.assertEqual(max(record["step"] for record in run_.records()), 12)


def run_with_disks(flags, *disks):
    """Runs a rank for each of `disks`: disk_trouble.c's instructions for it, or None."""
    return run_each(*((flags, [f"LD_PRELOAD={disk_trouble()}", *disk.split()] if disk else []) for disk in disks))


class Disk(Case):
    FLAGS = ["-n", "4", "--keep", "1", "--val-every", "0", "--max-steps", "8"]

    def calls(self, *flags):
        """The number of system calls that a run with FLAGS makes on files."""
        count = new_path("count")
        self.succeeds(Directory().run(*self.FLAGS, *flags, env={"LD_PRELOAD": disk_trouble(), "DISK_COUNT": count}))
        with open(count, encoding="utf-8") as file:
            return int(file.read())

    def test_killed_at_system_calls(self):
        """After a kill at any call, complete checkpoints load and equal the state at their step (speculators#739), and
        the next run is not held up (Automodel#3261). Every point of a save: test/checkpoint/saver.cpp."""
        for flags, some in (([], 5), (NARROW, 2)):
            whole = Directory()
            self.succeeds(whole.run("--keep", "0", "--val-every", "0", "--max-steps", "8", *flags, "--stop-after", "4"))
            self.succeeds(whole.run("--keep", "0", "--val-every", "0", "--max-steps", "8", *flags, "--resume", "latest"))
            states = {step: whole.state(step) for step in whole.checkpoints}
            calls = self.calls(*flags)
            self.assertGreater(calls, 20)
            for call in range(1, calls + 1, 1 if MATRIX else calls // some):
                with self.subTest(flags=flags, call=call):
                    run_ = Directory()
                    killed = run_.run(*self.FLAGS, *flags, env={"LD_PRELOAD": disk_trouble(), "DISK_KILL_AT": str(call)})
                    self.assertEqual(killed.code, -signal.SIGKILL)
                    for step, path in run_.checkpoints.items():
                        if os.path.exists(os.path.join(path, "manifest.json")):
                            self.same_state(run_.state(step), states[step])
                    self.succeeds(run_.run(*self.FLAGS, *flags, "--resume", "auto"))
                    self.same_run(run_, whole, 8)
                    self.assertFalse([n for n in os.listdir(run_.file("checkpoints")) if n.endswith(".tmp")])

    def test_calls_that_fail(self):
        """The run continues, saved checkpoints stay, and the message includes the disk's error."""
        calls = self.calls()
        for error, code in ((errno.ENOSPC, RESOURCES), (errno.EDQUOT, RESOURCES), (errno.EIO, CHECKPOINT)):
            at = random.Random(error).sample(range(1, calls + 1), calls if MATRIX else 3)
            for call in at:
                with self.subTest(error=errno.errorcode[error], call=call):
                    run_ = Directory()
                    result = run_.run(*self.FLAGS, env={"LD_PRELOAD": disk_trouble(), "DISK_FAIL_AT": str(call),
                                                        "DISK_ERRNO": str(error)})
                    self.assertIn(os.strerror(error), result.err)
                    self.assertIn(result.code, (0, code), result.err)  # 0: an old checkpoint could not be deleted
                    self.assertEqual(len(run_.records()), 8, "all steps were made")
                    whole = [p for p in run_.checkpoints.values() if os.path.exists(os.path.join(p, "manifest.json"))]
                    if whole:
                        self.succeeds(run_.run(*self.FLAGS, "--resume", "latest"))

    def test_a_slow_disk_does_not_hold_up_steps(self):
        """Saving takes seconds, but the steps in between do not (NVRx#373)."""
        run_, slow = Directory(), 4
        process = run_.start("-n", "2", "--val-every", "0", "--max-steps", "12",
                             env={"LD_PRELOAD": disk_trouble(), "DISK_SLOW": str(slow)})
        lines, seen = [], {}
        for line in process.stdout:
            lines.append(line)
            seen[line[:10]] = time.monotonic()
        self.ended(process)
        self.assertIn("step 4: no checkpoint, because the last one is still being written\n", lines)
        # The lines of steps 3 to 6 appear while the file of step 2 is still being written.
        self.assertLess(seen["step     6"] - seen["step     2"], slow)
        self.assertIn(12, run_.checkpoints)

    def test_milestones_are_not_skipped(self):
        """A checkpoint of --keep N,EVERY waits for the one before it."""
        run_ = Directory()
        done = self.succeeds(run_.run("-n", "1", "--keep", "3,3", "--max-steps", "4", "--val-every", "0",
                                      env={"LD_PRELOAD": disk_trouble(), "DISK_SLOW": "1"}))
        self.assertIn(3, run_.checkpoints, done.out)

    def test_a_save_that_takes_longer_than_its_time_limit(self):
        """Progress is a sign of life. The file has some 50 parts, so it takes longer than a second."""
        run_ = Directory()
        self.succeeds(run_.run("--stop-after", "1", "--timeout-save", "1", "--val-every", "0",
                               env={"LD_PRELOAD": disk_trouble(), "DISK_WRITE_MS": "50"}))
        self.assertIn(1, run_.checkpoints)

    def test_a_run_whose_every_save_failed_begins_again(self):
        """Its weights are moved aside, like its records."""
        run_ = Directory()
        failed = run_.run("--max-steps", "4", env={"LD_PRELOAD": disk_trouble(), "DISK_FAIL_AT": "1",
                                                   "DISK_ERRNO": str(errno.EIO)})
        self.refused(failed, CHECKPOINT, "the checkpoint of step 4 could not be written")
        weights = read_bytes(run_.file("model.safetensors"))
        self.succeeds(run_.run("--max-steps", "4", "--resume", "auto"))
        self.assertEqual(read_bytes(run_.file("before-1", "model.safetensors")), weights)
        self.assertIn(4, run_.checkpoints)

    def mounted(self, size):
        """The path of a file system of this size in bytes."""
        mount = new_path("tmpfs")
        os.mkdir(mount)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], capture_output=True).returncode:
            self.skipTest("tmpfs cannot be mounted")
        self.addCleanup(subprocess.run, ["umount", mount])
        return mount

    def test_a_full_file_system(self):
        """A real file system of one megabyte."""
        mount = self.mounted(1 << 20)
        run_ = Directory(os.path.join(mount, "run"))
        self.succeeds(run_.run("--stop-after", "2"))
        with open(os.path.join(mount, "filler"), "wb") as file:
            file.write(b"x" * max(0, shutil.disk_usage(mount).free - 40000))
        self.refused(run_.run("-n", "2", "--resume", "latest"), RESOURCES, "a checkpoint takes")
        self.assertEqual(list(run_.checkpoints), [2])
        self.succeeds(run_.run("--stop-after", "2", "--overwrite"))  # deletes the checkpoint that takes the room
        os.remove(os.path.join(mount, "filler"))
        self.succeeds(run_.run("--resume", "latest", "--keep", "1"))

    def test_room_is_asked_for_what_is_written(self):
        """Masters and moments in BF16 take half of the room that FP32 takes, at the start and when saving."""
        wide = ["--layers", "2", "--channels", "64", "--max-steps", "2"]
        narrow = [*wide, "--master", "bf16", "--adam-moments", "fp8"]
        elsewhere = Directory()
        self.succeeds(elsewhere.run(*narrow))
        parameters = read_json(elsewhere.file("run.json"))["model"]["parameters"]
        # FP32 needs 12 bytes per parameter; BF16 needs 6, and model.safetensors at the end 4.
        run_ = Directory(os.path.join(self.mounted(parameters * 23 // 2), "run"))
        self.refused(run_.run(*wide), RESOURCES, "a checkpoint takes")
        self.succeeds(run_.run(*narrow))
        self.assertEqual(list(run_.checkpoints), [2])

    def test_memory_and_local_disk(self):
        """--checkpoint-local first writes to another disk, and uses no memory (marin#8508)."""
        local = Directory()
        self.succeeds(local.run("-n", "4", "--checkpoint-local", local.file("local")))
        self.same_state(local.state(12), whole_run().state(12))
        self.assertEqual(os.listdir(local.file("local")), [])


if __name__ == "__main__":
    unittest.main()
