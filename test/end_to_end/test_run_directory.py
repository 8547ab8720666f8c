"""A run loses nothing that a user has: checkpoints on another disk, links, other programs' files, logs that were moved.
"""

import errno
import os
import resource
import shutil
import signal
import time
import unittest

from test_run_checkpoints import Directory, micro_flags, whole_run
from test_run_ranks import ONE_THREAD
from trainer import (CHECKPOINT, ENVIRONMENT, FLAGS, PROGRAM, RESOURCES, STOPPED, Case, disk_trouble, new_path,
                     read_bytes, run, run_command, workspace, write_shard)


class RunDirectory(Case):
    @classmethod
    def setUpClass(cls):
        """A run with checkpoints of steps 3 and 6, and without model.safetensors, like a killed run."""
        cls.whole = Directory()
        result = cls.whole.run("-n", "3", "--stop-after", "6")
        assert result.code == 0, result.err
        os.remove(cls.whole.file("model.safetensors"))

    def setUp(self):
        self.run_ = Directory(shutil.copytree(self.whole.path, new_path(), symlinks=True))
        self.elsewhere = new_path("elsewhere")

    def files(self):
        """Returns {path: contents} of all files and links."""
        found = {}
        for parent, directories, names in os.walk(self.run_.path):
            for path in (os.path.join(parent, name) for name in directories + names):
                if os.path.islink(path):
                    found[path] = os.readlink(path)
                elif os.path.isfile(path) and not path.endswith("/lock"):
                    found[path] = read_bytes(path)
        return found

    def move_checkpoints(self):
        shutil.move(self.run_.file("checkpoints"), self.elsewhere)

    def somebodys(self):
        """A folder with a user's file."""
        folder = new_path("somebodys")
        os.mkdir(folder)
        with open(os.path.join(folder, "thesis"), "w", encoding="utf-8") as file:
            file.write("mine")
        return folder


class OtherRuns(RunDirectory):
    def test_a_checkpoint_of_another_run(self):
        """It would continue with the records of this run, and with its flags."""
        other = Directory()
        self.succeeds(other.run("-n", "3", "--stop-after", "9"))
        shutil.copytree(other.checkpoints[9], self.run_.file("checkpoints", "step_00000009"))
        before = self.files()
        for how in ("latest", "auto"):
            self.refused(self.run_.run("--resume", how), CHECKPOINT, "step_00000009 is a checkpoint of run ",
                         "/run.json is that of run ", "move the checkpoint away, or continue it with --resume PATH")
        self.assertEqual(self.files(), before)
        branch = Directory()
        self.succeeds(branch.run("--resume", self.run_.file("checkpoints", "step_00000009")))
        self.succeeds(branch.run("--resume", "latest"))

    def test_other_validation_data_is_noted(self):
        resumed = self.succeeds(self.run_.run("--resume", "latest", "--val-batches", "2"))
        self.assertRegex(resumed.out, r"note: validation \S+ of 128 tokens in sequences of 16 from here on; until now it was "
                                      r"\S+ of 64 tokens in sequences of 16\n")


class Branches(RunDirectory):
    def test_a_checkpoint_into_another_directory(self):
        """The refusal names the configuration with which the branch begins."""
        checkpoint, config = self.run_.checkpoints[3], self.run_.file("run.json")
        branch = ["--out", self.elsewhere, "--stop-after", "4", "--resume"]
        for named in (checkpoint, checkpoint + "/", self.run_.path):
            self.refused(run(*branch, named), FLAGS, f"check --out, or add --config {config} or --train 'GLOB'")
        self.refused(run(*branch, "latest"), FLAGS, "check --out, or add --train 'GLOB'")
        result = self.succeeds(run(*branch, checkpoint, "--config", config))
        self.assertIn("step 3 is done", result.out)
        self.assertEqual(list(Directory(self.elsewhere).checkpoints), [4])


class Overwrite(RunDirectory):
    def test_overwrite_deletes_nothing_before_the_new_run_can_begin(self):
        before = self.files()
        for flags in (["--init-from", self.run_.file("typo")], ["--sample-every", "1", "--prompt", "ids:99999"],
                      ["--checkpoint-local", "/proc/nowhere"]):
            with self.subTest(flags=flags):
                self.assertNotEqual(self.run_.run("--overwrite", *flags).code, 0)
                self.assertEqual(self.files(), before)


class Weights(Case):
    def test_steps_that_no_checkpoint_holds(self):
        """A resume that trains them again says so, and which weights it deletes."""
        run_, none = Directory(), ["-n", "0", "--checkpoint-minutes", "0"]
        self.succeeds(run_.run("--stop-after", "2"))
        self.assertNotIn("again", self.succeeds(run_.run("--resume", "latest", "--stop-after", "5", *none)).out)
        done = self.succeeds(run_.run("--resume", "latest", "--stop-after", "3"))
        self.assertIn("note: the run trains 3 steps after step 2 again: their records are cut, and model.safetensors, which "
                      "has the weights of step 5, is deleted\n", done.out)
        self.assertEqual([r["step"] for r in run_.records() if "loss" in r], [1, 2, 3])
        self.assertNotIn("again", self.succeeds(run_.run("--resume", "latest", "--stop-after", "4")).out)


class Auto(RunDirectory):
    """--resume auto begins a new run only if there is no sign of an earlier checkpoint."""

    def refuses(self, *words):
        before = self.files()
        self.refused(self.run_.run("--resume", "auto"), CHECKPOINT, *words)
        self.assertEqual(self.files(), before)

    def test_a_disk_that_is_not_mounted(self):
        self.move_checkpoints()
        os.symlink("/not/mounted", self.run_.file("checkpoints"))
        self.refuses("a link that leads nowhere", "mount their disk", "Nothing was changed")
        os.remove(self.run_.file("checkpoints"))
        self.refuses("run.json says that a checkpoint was written", "--overwrite")
        os.remove(self.run_.file("run.json"))
        self.refuses("metrics.jsonl has steps")
        os.remove(self.run_.file("metrics.jsonl"))
        self.refuses("main.log has steps")

    def test_killed_before_the_first_checkpoint(self):
        """Only the records of steps were lost anyway, and they are kept."""
        self.run_ = Directory()
        process = self.started(self.run_.start("--max-steps", "100000", "--checkpoint-minutes", "0", "-n", "90000",
                                               "--log-every", "1"))
        self.wait_for(process, "step     2/")
        process.kill()
        process.wait()
        self.refused(self.run_.run(), FLAGS, "already holds a run (metrics.jsonl has steps)")
        result = self.succeeds(self.run_.run("--resume", "auto", "--stop-after", "1"))
        self.assertIn("the files of an earlier run, which wrote no checkpoint, are now in", result.out)
        with open(self.run_.file("before-1", "metrics.jsonl"), encoding="utf-8") as file:
            self.assertIn('"step":2,"loss"', file.read())

    def test_a_start_that_failed_is_not_in_the_way(self):
        # Before run.json; after it; after a validation.
        for fault, kept in (("20", []), ("60", []), ("100", ["before-1"])):
            self.run_ = Directory()
            self.succeeds(self.run_.run(env={"LLMC_FAULT": fault}), 1)
            self.assertEqual(os.path.exists(self.run_.file("run.json")), fault != "20")
            self.succeeds(self.run_.run("--stop-after", "1"))
            self.assertEqual([name for name in os.listdir(self.run_.path) if name.startswith("before")], kept)


def tokens(*flags, train=None):
    """The flags of a run whose shards do not name a tokenizer."""
    return ["--train", train or write_shard(list(range(64)) * 8), "--vocab", "257", "--val-every", "0", "--max-steps",
            "1", *flags]


class Links(RunDirectory):
    def test_somebodys_files_in_the_directory_of_the_data(self):
        """--out may be that directory. The run replaces and deletes nothing that it has not written. Every name and
        content: test/log/run_files.cpp."""
        folder = self.somebodys()
        train = shutil.copy(write_shard(list(range(64)) * 8), os.path.join(folder, "train.bin"))
        shutil.copy(self.run_.file("tokenizer.bin"), folder)
        os.makedirs(os.path.join(folder, "tensorboard"))
        shutil.copy(self.run_.file("metrics.jsonl"), os.path.join(folder, "tensorboard", "events.out.tfevents.mine"))
        self.run_ = Directory(folder)
        mine = self.files()
        for flags in ([], ["--overwrite"], ["--resume", "latest", "--max-steps", "2"]):
            self.succeeds(self.run_.run(*tokens("--tokenizer", os.path.join(folder, "tokenizer.bin"), train=train), *flags))
            self.assertEqual(mine.items() - self.files().items(), set())
        shutil.copy(self.run_.file("metrics.jsonl"), self.run_.file("check.json"))
        with open(self.run_.file("config.json"), "a", encoding="utf-8") as file:
            file.write(" ")  # edited by hand
        for name in ("check.json", "config.json"):
            before = self.files()
            for flags in ([], ["--overwrite"], ["--resume", "latest"]):
                self.refused(self.run_.run(*tokens(train=train), *flags), FLAGS, f"no run has written and that this one "
                             f"would replace ({name})", "choose another with --out, or move them away")
            self.assertEqual(self.files(), before)
            os.remove(self.run_.file(name))

    def test_overwrite_deletes_the_copied_tokenizer(self):
        """Samples of the new run would be decoded with the old run's tokenizer."""
        def copies(directory):
            return [name for name in os.listdir(directory) if name.startswith("tokenizer")]

        source = os.path.join(self.somebodys(), "mine.bin")
        shutil.copy(self.run_.file("tokenizer.bin"), source)
        for given in (source, self.run_.file("tokenizer.bin")):  # a file elsewhere, and the copy itself
            self.succeeds(self.run_.run(*tokens("--overwrite", "--tokenizer", given)))
            with open(source, "rb") as mine, open(self.run_.file("tokenizer.bin"), "rb") as kept:
                self.assertEqual(mine.read(), kept.read())
        self.succeeds(self.run_.run(*tokens("--overwrite")))
        self.assertEqual(copies(self.run_.path), [])
        self.assertTrue(os.path.exists(source))


class Names(RunDirectory):
    def test_a_newline_in_the_path(self):
        self.run_ = Directory(os.path.join(workspace(), "new\nline"))
        self.succeeds(self.run_.run("--stop-after", "2"))
        self.assertIn("step 2 is done", self.succeeds(self.run_.run("--resume", "latest", "--stop-after", "3")).out)


class LocalDisk(Case):
    """--checkpoint-local: files have no name there while they are written, so a kill leaves nothing behind."""

    def test_nothing_has_a_name_there(self):
        run_, seen = Directory(), 0
        local = run_.file("checkpoints-local")  # as disk_trouble.c watches
        process = run_.start("-n", "2", "--stop-after", "4", "--checkpoint-local", local,
                             env={"LD_PRELOAD": disk_trouble(), "DISK_SLOW": "1"})
        while process.poll() is None:
            seen += os.path.isdir(local) and bool(os.listdir(local))
            time.sleep(0.01)
        self.ended(process)
        self.assertLessEqual(seen, 1, "a name is there for microseconds")

    def test_a_place_that_cannot_be_written(self):
        local = shutil.copy(__file__, new_path("file"))
        self.refused(Directory().run("--checkpoint-local", local), FLAGS, f"--checkpoint-local {local}: cannot",
                     os.strerror(errno.ENOTDIR))


class FileSizes(Case):
    def test_a_limit_on_the_size_of_files(self):
        """`ulimit -f` ends the run like a full disk (SIGXFSZ), and the earlier checkpoint stays."""
        run_ = Directory()
        self.succeeds(run_.run("-n", "2", "--stop-after", "2"))
        (state,) = (name for name in os.listdir(run_.checkpoints[2]) if name != "manifest.json")
        half = os.path.getsize(os.path.join(run_.checkpoints[2], state)) // 2
        limited = run_command([PROGRAM, *micro_flags("--out", run_.path, "-n", "2", "--resume", "latest")], 120,
                              {**ENVIRONMENT, **ONE_THREAD},
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (half, half)))
        self.refused(limited, RESOURCES,
                     "cannot write to it: File too large; free space there or choose another directory")
        self.assertEqual(list(run_.checkpoints), [2])
        self.succeeds(run_.run("-n", "2", "--resume", "latest"))
        self.same_state(run_.state(12), whole_run("-n", "2").state(12))


class Logs(RunDirectory):
    def test_moved_away_during_a_run(self):
        """Checkpoints are still written, and later records go to a new file."""
        process = self.started(self.run_.start("--max-steps", "100000", "-n", "5", "--resume", "latest"))
        self.wait_for(process, "checkpoint of step")
        for name in ("metrics.jsonl", "main.log"):
            os.rename(self.run_.file(name), self.run_.file(name + ".1"))
        for _ in range(3):
            self.wait_for(process, "checkpoint of step")
        process.send_signal(signal.SIGTERM)
        err = self.ended(process, STOPPED).err
        self.assertEqual(err.count("was moved or deleted"), 2, err)
        records = self.run_.records()
        self.assertGreater(records[0]["step"], 6)
        last = records[-1]["step"]
        # Moved away after the last checkpoint, as rotation may do, the new file is shorter than that checkpoint says.
        os.rename(self.run_.file("metrics.jsonl"), self.run_.file("metrics.jsonl.2"))
        result = self.succeeds(self.run_.run("--max-steps", "100000", "--resume", "latest", "--stop-after", str(last + 2)))
        self.assertRegex(result.err, "metrics.jsonl has 0 B, but had .* when the checkpoint was written")
        self.assertEqual([r["step"] for r in self.run_.records() if "loss" in r], [last + 1, last + 2])


if __name__ == "__main__":
    unittest.main()
