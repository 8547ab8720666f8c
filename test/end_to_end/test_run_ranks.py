"""train_gpt as several processes: the same training as one process in every sharding stage, one set of files, a common
decision to stop, and refused starts.
"""

import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import hostile_peers
from test_ranks import ENVIRONMENT, FOREIGN, commands_by_rank, free_port
from trainer import (CHECKPOINT, COMMUNICATION, DATA, FLAGS, PROGRAM, STOPPED, TINY_BATCH, TINY_MODEL, Case, FinishedRun, corpus,
                     disk_trouble, new_path, processes, read_bytes, read_json, read_records, run, run_command, tiny_flags,
                     workspace, write_choices, write_json)

MPIRUN = shutil.which("mpirun")
LAUNCH = [MPIRUN or "mpirun", "--oversubscribe", "--bind-to", "none"]
# OpenBLAS rounds differently with another number of threads, so every process of these tests has one.
ONE_THREAD = {"OMP_NUM_THREADS": ENVIRONMENT["OMP_NUM_THREADS"]}


def command(ranks, *flags):
    return [*LAUNCH, "-np", str(ranks), PROGRAM, *map(str, flags)]


def run_ranks(ranks, *flags, limit=180, env=None):
    return run_command(command(ranks, *flags), limit, {**ENVIRONMENT, **(env or {})})


def run_on(ranks, *flags, env=None, **how):
    """Any number of ranks. One has a single thread, like each of several."""
    if ranks > 1:
        return run_ranks(ranks, *flags, env=env, **how)
    return run(*flags, env={**ONE_THREAD, **(env or {})}, **how)


def each(*ranks):
    """The command with one rank for each (flags, settings of its environment, as env has them)."""
    return [*LAUNCH, *commands_by_rank(*(["env", *settings, PROGRAM, *map(str, flags)] for flags, settings in ranks))]


def run_each(*ranks, limit=180):
    return run_command(each(*ranks), limit, ENVIRONMENT)


def wait_for_steps(directory):
    """Until a run has recorded some, at most for a minute."""
    deadline, metrics = time.monotonic() + 60, os.path.join(directory, "metrics.jsonl")
    while not (os.path.exists(metrics) and os.path.getsize(metrics) > 500) and time.monotonic() < deadline:
        time.sleep(0.05)


class RankRun(FinishedRun):
    """A run of several processes that must succeed, and the files it left."""

    def __init__(self, ranks, *flags, env=None):
        super().__init__(*flags, program=functools.partial(run_ranks, ranks), env=env)


def worst(a, b):
    assert len(a) == len(b)
    return max(abs(x / y - 1) for x, y in zip(a, b))


def check_same_run(test, run, other):
    """Two runs that agree to the bit."""
    test.assertEqual(run.losses, other.losses)
    test.assertEqual([s["norm"] for s in run.steps], [s["norm"] for s in other.steps])
    test.assertEqual(run.scales_at(20), other.scales_at(20))
    test.assertEqual(run.read("model.safetensors"), other.read("model.safetensors"))


@unittest.skipUnless(MPIRUN, "no mpirun")
class Ranks(Case):
    # 6 samples per step: one process with 6, three with 2, or two with 1 and three micro-steps.
    FLAGS = ["--total-batch", "384", "--max-steps", "20", "--lr", "1e-3", "--warmup", "5", "--reduce-order", "rank"]

    def flags(self, *more):
        return [*self.FLAGS, "--val", corpus().val, "--val-every", "10", "--val-batches", "4", *more]

    def test_every_stage(self):
        """In FP8; FP32 and BF16 are in test/comm/ranks/training.cpp, on any number of ranks."""
        precision = ["--precision", "fp8", "--fp8-log-every", "20"]
        one = FinishedRun(*self.flags("--batch", "6", "--val-batches", "2", *precision))
        # Micro-batches of another size round differently, even on one rank. With the same size and sums in rank order,
        # one rank and three agree to the bit.
        same_size = FinishedRun(*self.flags("--batch", "2", *precision, "--val-batches", "6"), env=ONE_THREAD)
        self.assertEqual(len(same_size.scales_at(20)), 24)
        noise = []
        for stage in range(4):
            with self.subTest(stage=stage):
                three = RankRun(3, *self.flags("--batch", "2", "--val-batches", "2", *precision, "--zero", stage,
                                               "--signals-every", "10"))
                self.assertLess(worst(three.losses, one.losses), 1e-3)
                self.assertEqual([s["batch_hash"] for s in three.steps], [s["batch_hash"] for s in one.steps])
                self.assertEqual([s["tokens"] for s in three.steps], [s["tokens"] for s in one.steps])
                self.assertLess(worst(three.validations.values(), one.validations.values()), 1e-3)
                self.assertIn(f"3 ranks over mpi, --zero {stage}", three.result.out)
                three.check_memory(self)
                check_same_run(self, three, same_size)
                self.assertEqual(three.validations, same_size.validations)
                noise.append([r["noise"] for r in three.records if "noise" in r])
        self.assertEqual([len(records) for records in noise], [2] * 4)
        for stage in range(1, 4):
            for ours, first in zip(noise[stage], noise[0]):
                for name, value in first.items():
                    self.assertLess(abs(ours[name] - value), 1e-9 * abs(value), f"{name} with --zero {stage}")

    def test_gradient_noise(self):
        """From the first micro-batches of the ranks, which are the steps of a run that learns nothing."""
        flags = ["--batch", "2", "--lr", "1e-12", "--precision", "fp32"]
        parts = FinishedRun(*flags, "--total-batch", "128", "--max-steps", "3")
        three = RankRun(3, *flags, "--total-batch", "384", "--max-steps", "1", "--signals-every", "1")
        micro, step = sum(s["norm"] ** 2 for s in parts.steps) / 3, three.steps[0]["norm"] ** 2
        (found,) = (r["noise"] for r in three.records if "noise" in r)
        self.assertLess(abs(found["square"] - (3 * step - micro) / 2), 1e-4 * micro)
        self.assertLess(abs(found["noise"] - (micro - step) * 128 * 3 / 2), 1e-4 * micro * 128)
        verified = FinishedRun(*flags, "--total-batch", "256", "--max-steps", "4", "--signals-every", "1", "--verify-every", "2")
        self.assertEqual([r["step"] for r in verified.records if "noise" in r], [1, 3])  # a verified one is computed twice

    def test_micro_steps_and_fp8_counters(self):
        flags = self.flags("--precision", "fp8", "--fp8-log-every", "5")
        one, two = FinishedRun(*flags, "--batch", "6"), RankRun(2, *flags, "--batch", "1", "--zero", "3")
        self.assertLess(worst(two.losses, one.losses), 1e-3)
        for a, b in zip((r["fp8"] for r in one.records if "fp8" in r), (r["fp8"] for r in two.records if "fp8" in r)):
            for x, y in zip(a, b):
                with self.subTest(tensor=x["tensor"]):
                    self.assertEqual(x["tensor"], y["tensor"])
                    self.assertEqual(x["elements"], y["elements"])

    def test_a_stop_of_one_is_a_stop_of_all(self):
        directory = new_path()
        flags = tiny_flags("--out", directory, "--max-steps", "100000", "--precision", "bf16")
        process = self.started(subprocess.Popen(command(3, *flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                text=True, cwd=workspace(), env=ENVIRONMENT))
        wait_for_steps(directory)
        pids = processes(f"^{PROGRAM}.*{directory}")
        self.assertEqual(len(pids), 3)
        os.kill(pids[1], signal.SIGTERM)
        output = self.ended(process, STOPPED).out
        self.assertIn("stopping after step", output)
        self.assertIn("checkpoint of step", output)

    def slow_run(self, *settings):
        """Three ranks, of which rank 1 has these settings, and what the run says about slow ranks."""
        directory = new_path()
        flags = tiny_flags("--out", directory, "--max-steps", "13", "--batch", "2")
        result = self.succeeds(run_each((flags, []), (flags, settings), (flags, [])))
        records = read_records(directory)
        steps = [r for r in records if "loss" in r]
        # The last step is reported after the last exchange.
        self.assertEqual([r["step"] for r in steps if "slowest_rank" in r], list(range(1, 13)))
        (found,) = [r for r in records if r.get("slow_rank")]
        return result.out, steps[-6:-1], found

    def test_a_slow_rank(self):
        """Rank 1 takes 100 ms longer in each of two kernels of a step. The others wait as long, and it is named."""
        output, steps, found = self.slow_run("LLMC_DELAY=attention_forward:100")
        for step in steps:
            self.assertEqual(step["slowest_rank"], 1)
            self.assertGreater(step["peers_ms"], 100)
            self.assertGreater(step["slowest_ratio"], 1.2)
            self.assertLess(step["slowest_data_ms"], 100)
        self.assertEqual(found["slow_rank"]["rank"], 1)
        self.assertGreaterEqual(found["slow_rank"]["ms"], 200)
        self.assertRegex(found["slow_rank"]["where"], r"^rank 1 on \S+ \(.+\)$")
        self.assertRegex(output, rf"step {found['step']}: rank 1 on \S+ \(.+\) is slow: its own work took \S+ ms, \S+ "
                         "times as long as the other ranks', 5 steps in a row; it does not wait for its data\n")

    def test_a_rank_with_slow_data(self):
        """Rank 1 reads two sequences per step, and each takes 250 ms. It has read four steps' before the first."""
        output, steps, found = self.slow_run(f"LD_PRELOAD={disk_trouble()}", "DISK_READ_MS=250")
        self.assertEqual([step["slowest_rank"] for step in steps], [1] * len(steps))
        self.assertGreater(found["slow_rank"]["data_ms"], 100)
        self.assertRegex(output, r"rank 1 on .* is slow: .*; it waits \S+ ms for its data\n")

    def test_a_command_that_takes_longer_than_the_time_limit(self):
        """Only the first rank has commands of --after-checkpoint. The others wait with it, without a limit."""
        done = RankRun(2, "--max-steps", "1", "--timeout-save", "1", "--after-checkpoint", "sleep 4; true").result
        self.assertIn("waiting for --after-checkpoint of step 1\n", done.out)

    def test_weights_that_take_longer_to_read_than_the_start_may(self):
        """Every tensor is a sign of life. There are 52, each read in one call."""
        flags = ["--layers", "4", "--max-steps", "1"]
        saved = FinishedRun(*flags).path("checkpoints/step_00000001")
        done = RankRun(2, *flags, "--init-from", saved, "--timeout-start", "2",
                       env={"LD_PRELOAD": disk_trouble(), "DISK_READ_MS": "80"}).result
        self.assertGreater(float(re.search(r"weights read from .* in ([0-9.]+) s", done.out)[1]), 3)

    def test_eval_checks_every_byte_of_a_checkpoint(self):
        """Each rank half of them, of the moments too, which eval does not need."""
        saved = FinishedRun("--max-steps", "1").path("checkpoints/step_00000001")
        file = os.path.join(saved, "rank_00000.safetensors")
        whole = read_bytes(file)
        for offset in (len(whole) // 4, len(whole) - 1):
            with open(file, "wb") as damaged:
                damaged.write(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1:])
            for ranks in (1, 2):
                self.refused(run_on(ranks, "eval", "--from", saved, "--val", corpus().val, "-m", "1", "-b", "1"),
                             CHECKPOINT, "rank_00000.safetensors: is damaged between bytes")

    def test_refusals(self):
        tiny = tiny_flags()
        for flags, part in ((["--zero", "4"], "--zero"),
                            (["--zero", "3", "--total-batch", "1000"], "is not a multiple of the micro-step"),
                            (["--zero", "1", "--precision", "fp8", "--fp8-recipe", "block", "--channels", "128",
                              "--heads", "2"], "use --zero 0 or --fp8-recipe delayed"),
                            (["--shard-within", "3"], "2 ranks cannot be divided into groups"),
                            (["--zero", "0", "--shard-within", "2"], "--zero 0 shards nothing"),
                            (["--comm", "nccl"], "NCCL")):
            with self.subTest(flags=flags):
                result = run_ranks(2, *tiny, *flags)
                self.assertNotEqual(result.code, 0)
                self.assertIn(part, result.err + result.out)
        self.refused(run_each(([*tiny, "--lr", "1e-3"], []), ([*tiny, "--lr", "2e-3"], [])), FLAGS, '"lr"')


class OtherInputs(Case):
    """Ranks whose flags are the same, but lead to different files."""

    @classmethod
    def setUpClass(cls):
        """Two directories with the same files."""
        cls.places = [new_path("place"), new_path("place")]
        done = FinishedRun("--max-steps", "1")
        os.mkdir(cls.places[0])
        for name, path in {"train.bin": corpus().train, "val.bin": corpus().val, "tokenizer.bin": done.path("tokenizer.bin"),
                           "config.json": done.path("config.json"),
                           "model.safetensors": done.path("model.safetensors"),
                           "task.bin": write_choices([(0, [1, 2], [[3, 4], [5, 6]])])}.items():
            shutil.copy(path, os.path.join(cls.places[0], name))
        for name in ("train.bin.json", "val.bin.json"):
            write_json(os.path.join(cls.places[0], name), {"vocab": 257, "end_token": 256})
        write_json(os.path.join(cls.places[0], "model.json"), {
            "layers": 1, "heads": 1, "channels": 32, "context": 64, "vocab": 257})
        shutil.copytree(*cls.places)

    def run_with(self, name, changed, *flags):
        """Runs two ranks. `changed` changes the file of this name that rank 1 reads."""
        path = os.path.join(self.places[1], name)
        before = read_bytes(path)
        with open(path, "wb") as file:
            file.write(changed(before))
        try:
            return run_each(*((flags, ["-C", place]) for place in self.places))
        finally:
            with open(path, "wb") as file:
                file.write(before)

    @unittest.skipUnless(MPIRUN, "mpirun is not installed")
    def test_each_input_is_compared(self):
        def at(offset):
            return lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1:]

        def text(old, new):
            return lambda data: data.replace(old.encode(), new.encode())

        small = ["--train", "train.bin", *TINY_MODEL, *TINY_BATCH, "--max-steps", "1", "--precision", "fp32"]
        evaluation = ["eval", "--from", "./model.safetensors", "--val", "val.bin", "-m", "1", "-b", "2", "-t", "64"]
        for name, changed, flags, found in (
                ("train.bin", at(1024 + 120000), small, "training set 'train.bin'"),
                ("train.bin.json", text("257", "300"), small, "set of sidecars of training set 'train.bin'"),
                ("train.bin.json", text("256", "255"), small, "set of sidecars of training set 'train.bin'"),
                ("val.bin", at(-2), [*small, "--val", "val.bin"], "validation set 'val.bin'"),
                ("val.bin.json", text("}", ', "bytes": 9}'), [*small, "--val", "val.bin"],
                 "set of sidecars of validation set 'val.bin'"),
                ("task.bin", at(-2), [*small, "--task", "a=task.bin"], "task file task.bin"),
                ("tokenizer.bin", at(-1), small, "tokenizer than rank 0"),
                ("model.json", text("64", "128"), [*small, "-e", "model.json"], "model file model.json"),
                ("model.safetensors", at(-2), [*small, "--init-from", "model.safetensors"],
                 "set of weights from model.safetensors"),
                ("model.safetensors", at(-2), evaluation, "set of weights from ./model.safetensors"),
                ("val.bin", at(-2), evaluation, "validation set 'val.bin'")):
            with self.subTest(name=name, found=found):
                self.refused(self.run_with(name, changed, *flags), DATA, "rank 1 on", "has read another " + found)
        for flags in ([*small, "--val", "val.bin", "--task", "a=task.bin", "--init-from", "model.safetensors"], evaluation):
            self.succeeds(self.run_with("train.bin", lambda data: data, *flags))

    @unittest.skipUnless(MPIRUN, "mpirun is not installed")
    def test_rank_that_mpi_does_not_know(self):
        """It would train alone, and so would the others."""
        self.refused(run(*tiny_flags("--max-steps", "1"), env={"PMIX_RANK": "1"}), FLAGS, "PMIX_RANK=1", "rank 0 of 1")
        for name in ("PMIX_RANK", "PMI_RANK"):
            self.assertIn(f"note: one process runs; the environment has {name}=0 but no number of ranks\n",
                          self.succeeds(run(*tiny_flags("--max-steps", "1"), env={name: "0"})).out)

    @unittest.skipUnless(MPIRUN, "mpirun is not installed")
    def test_another_device_is_noted(self):
        flags = ["--train", corpus().train, *TINY_MODEL, *TINY_BATCH, "--max-steps", "1", "--precision", "fp32"]
        note = "note: rank 1 has another device or other libraries than rank 0 and may round differently: CPU (2 threads) "
        for threads, noted in (("2", True), ("1", False)):
            done = self.succeeds(run_each((flags, ["OMP_NUM_THREADS=1"]), (flags, ["OMP_NUM_THREADS=" + threads])))
            self.assertEqual((note in done.out, "may round differently" in done.out), (noted, noted), done.out)

    @unittest.skipUnless(MPIRUN, "mpirun is not installed")
    def test_a_checkpoint_that_is_another_one_elsewhere(self):
        flags = ["--train", "train.bin", *TINY_MODEL, *TINY_BATCH, "--total-batch", "512", "--precision", "fp32"]
        for place, seed in zip(self.places, ("1", "2")):
            shutil.rmtree(os.path.join(place, "saved"), ignore_errors=True)
            self.succeeds(run_command(["env", "-C", place, PROGRAM, *flags, "--max-steps", "1", "--seed", seed, "--out",
                                       "saved"], 60, ENVIRONMENT))
        more = [*flags, "--max-steps", "2", "--seed", "1", "--resume", "saved", "--out", "more"]
        result = run_each(*((more, ["-C", place]) for place in self.places))
        self.refused(result, DATA, "rank 1: ", "is another checkpoint here than on rank 0")


class OverTcp(Case):
    """Ranks that meet with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

    def start(self, rank, port, directory, *flags, address="127.0.0.1"):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        return self.started(subprocess.Popen([PROGRAM, *map(str, tiny_flags("--out", directory, *flags))], text=True,
                                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=workspace(),
                                             env={**ENVIRONMENT, **own}))

    def test_strangers_at_the_port(self):
        hostile_peers.check_strangers(random.Random(1))

    def test_rank_that_lies(self):
        hostile_peers.check_lie(0, "text without an end", random.Random(1))

    def test_ranks_that_do_not_meet(self):
        """The meeting reports the problem before the watchdog, which has the same limit, reports that nothing moves."""
        for rank, address, message in (
                (1, "no.such.host.invalid", "rank 1: could not reach rank 0 at no.such.host.invalid:"),
                (1, "127.0.0.1", "Connection refused; are MASTER_ADDR and MASTER_PORT right"),
                (0, "127.0.0.1", "rank 0: rank 1 did not connect to 127.0.0.1:")):
            with self.subTest(rank=rank, address=address):
                process = self.start(rank, free_port(), new_path(), "--timeout-start", "1", address=address)
                error = self.ended(process, COMMUNICATION).err
                self.assertIn(message, error)
                self.assertNotIn("nothing moved", error)

    def test_rank_killed(self):
        """The other rank ends with code 7, a line that names the lost one, and a report."""
        directory, port = new_path(), free_port()
        ranks = [self.start(rank, port, directory, "--max-steps", "1000000") for rank in range(2)]
        wait_for_steps(directory)
        ranks[1].kill()
        error = self.ended(ranks[0], COMMUNICATION).err
        self.assertRegex(error, r"rank 0(: rank 1 was lost during| on \S+: rank 1 on \S+ is gone)")
        report = read_json(os.path.join(directory, "watchdog_rank00000.json"))
        self.assertRegex(report["problem"], "rank 1 (was lost|on .* is gone)")
        self.assertGreater(report["step"], 0)


class Planning(Case):
    def plan(self, *flags, code=0):
        done = self.succeeds(run_command([PROGRAM, "-e", "d12", *map(str, flags)], 60,
                                         {k: v for k, v in ENVIRONMENT.items() if not FOREIGN.match(k)}), code)
        return done.out if code == 0 else done.err

    def rows(self, text):
        """The table of stages as {stage: its cells}."""
        table = text.split("Sharding: ")[1]
        return {int(row[0]): row[1:] for row in re.findall(
            r"^  (\d) +(\S+ \S+) +(\S+ \S+) +(\S+ \S+) +(\S+ \S+) +(\S+ \S+) +([\d.]+) ms +([\d.]+) ms",
            table, re.MULTILINE)}

    def test_stages_beside_each_other(self):
        """test/plan/stages.cpp works out by hand how much ranks send, how long they wait, and which stage is best."""
        flags = ["--dry-run", "--world", "8", "--gpu", "h200", "--batch", "32"]
        text = self.plan(*flags, "--zero", "2")
        rows = self.rows(text)
        self.assertEqual(list(rows), [0, 1, 2, 3])
        for stage in rows:  # each row is the plan of a run with that stage
            memory = self.plan(*flags, "--zero", stage).split("Predicted step")[0]
            for name, cell in zip(("weights", "gradients", "optimizer", "total"), rows[stage]):
                self.assertRegex(memory, rf"{name} +{re.escape(cell)}")
            self.assertLess(float(rows[stage][5]), 0.2 * float(rows[stage][6]))  # most of it is hidden
        self.assertRegex(text, r"(?m)^  2 .* this run$")
        self.assertNotRegex(text, r"(?m)^  [013] .*this run")
        self.assertRegex(text, r"(?m)^  1 .* recommended$")
        self.assertEqual(text.count("recommended"), 1)
        self.assertNotIn("Sharding", self.plan("--dry-run", "--gpu", "h200"))
        memory = self.plan(*flags, "--reduce", "fp8")
        self.assertIn("with the residuals of --reduce fp8: 2 bytes per parameter on every rank", memory)
        self.assertIn("whole weights", self.plan(*flags, "--zero", "0", "--fp8-recipe", "block").split("Sharding")[1])
        grouped = self.rows(self.plan(*flags, "--shard-within", "4"))
        self.assertEqual(grouped[0], rows[0])
        self.assertNotEqual(grouped[3][2], rows[3][2])

    def test_estimate_of_scaling(self):
        out = new_path("estimate")
        flags = ["--estimate-scaling", "--batch", "32", "--gpu", "h200"]
        text = self.plan(*flags, "--zero", "3", "--out", out)
        self.assertIn("nothing here is measured", text)
        rows = re.findall(r"^ +(\d+) +([\d,]+) +([\d.]+) % +([\d.]+) ms +([\d.]+) ms .* (yes|NO)$", text,
                          re.MULTILINE)
        self.assertEqual([int(row[0]) for row in rows], [2**i for i in range(11)])
        points = read_json(os.path.join(out, "scaling.json"))["points"]
        for row, point in zip(rows, points):
            self.assertEqual(int(row[1].replace(",", "")), round(point["tokens_per_s"]))
            step = point["compute_ms"] + point["exposed_ms"]
            self.assertAlmostEqual(point["tokens_per_s"] * step / (32 * 1024 * point["gpus"] * 1e3), 1)
        self.assertEqual(points[0]["efficiency"], 1)
        self.assertLess(points[-1]["efficiency"], points[3]["efficiency"])
        self.assertEqual(os.listdir(out), ["scaling.json"])
        printed = self.plan(*flags, "--zero", "3", "--out", out, "--json")
        self.assertEqual(json.loads(printed), read_json(os.path.join(out, "scaling.json")))
        # In groups of 8 the weights stay in a node, and up to 8 GPUs nothing is different.
        within = self.plan(*flags, "--zero", "3", "--shard-within", "8", "--out", out)
        self.assertIn("--zero 3 --shard-within 8:", within)
        grouped = read_json(os.path.join(out, "scaling.json"))["points"]
        self.assertEqual(grouped[:4], points[:4])
        self.assertGreater(grouped[-1]["tokens_per_s"], points[-1]["tokens_per_s"])
        self.assertIn("PCIe", self.plan(*flags[:-1], "l40s", "--zero", "3"))
        self.assertIn("--zero 1:", self.plan(*flags))

    def test_what_cannot_be_estimated(self):
        self.assertIn("name one with --gpu: a100", self.plan("--estimate-scaling", code=2))
        self.assertIn("'h900' is not in the table: a100", self.plan("--estimate-scaling", "--gpu", "h900", code=2))
        self.assertIn("has no FP8", self.plan("--estimate-scaling", "--gpu", "a100", code=2))
        self.assertIn("whole weights",
                      self.plan("--estimate-scaling", "--gpu", "h200", "--fp8-recipe", "block", code=2))
        self.assertIn("cannot write", self.plan("--estimate-scaling", "--gpu", "h200", "-o", PROGRAM, code=2))


if __name__ == "__main__":
    unittest.main()
