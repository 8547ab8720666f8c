"""scripts/supervise.py: runs that are really killed, stopped and made to diverge, and what it did."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from test_ranks import ENVIRONMENT
from test_run_checkpoints import Directory, micro_flags, whole_run
from test_run_ranks import LAUNCH, MPIRUN, ONE_THREAD
from trainer import (DATA, FAILURE, FLAGS, NUMBERS, PROGRAM, ROOT, STOPPED, Case, new_path, processes,
                     workspace, write_shard)

SCRIPT = os.path.join(ROOT, "scripts", "supervise.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from supervise import Command  # noqa: E402

# --keep 3,5: no checkpoint is left out because the one before is still being written.
LONG = ["--max-steps", "100", "-n", "5", "--keep", "3,5", "--val-every", "0"]
BAD = [2438, 2836, 3632]  # sequences that the run reaches once its loss is low, one after the other


def script(text, name="program"):
    """The path of an executable shell script."""
    path = os.path.join(new_path("commands"), name)
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n" + text)
    os.chmod(path, 0o755)
    return path


class Supervised(Directory):
    """A run under the supervisor."""

    def supervise(self, test, *flags, options=(), program=(PROGRAM,), env=None):
        words = ["--back-off", "0.01", *options, "--", *program, *micro_flags("--out", self.path, *flags)]
        return test.started(subprocess.Popen(
            [sys.executable, SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=workspace(), env={**ENVIRONMENT, **ONE_THREAD, **(env or {})}))

    @property
    def lives(self):
        if not os.path.exists(self.file("lives.jsonl")):
            return []
        with open(self.file("lives.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    @property
    def did(self):
        return [(life["exit_code"], life["action"]) for life in self.lives]

    def wait_for_checkpoint(self, lives):
        """Returns once there is a new checkpoint after this number of lives."""
        deadline = time.monotonic() + 300
        while len(self.lives) < lives and time.monotonic() < deadline:
            time.sleep(0.01)
        before = max(self.checkpoints, default=0)
        while max(self.checkpoints, default=0) <= before and time.monotonic() < deadline:
            time.sleep(0.005)

    def kill(self, number, which):
        """Sends a signal to one process of the program."""
        os.kill(processes(f"^{re.escape(PROGRAM)} .*{self.path}")[which], number)


class Supervising(Case):
    def ended(self, process, code=0, limit=300):
        return super().ended(process, code, limit)


class Lives(Supervising):
    LAUNCHES = [([], [], 0)]  # words before the program, flags, the process that is killed
    if MPIRUN:
        LAUNCHES.append(([*LAUNCH, "-np", "3"], ["--total-batch", "192", "--reduce-order", "rank"], 1))

    def slow_until(self, life):
        """The program, with slow steps in the lives before this one, so that a signal arrives before their end."""
        return script(f'[ "$SUPERVISE_LIFE" -ge {life} ] || export LLMC_DELAY=update_kernel:100\nexec {PROGRAM} "$@"\n')

    def undisturbed(self, launch, flags):
        whole = Directory()
        self.succeeds(whole.run(*LONG, *flags, ranks=3 if launch else 1))
        return whole

    def test_killed_again_and_again(self):
        for launch, flags, which in self.LAUNCHES:
            with self.subTest(launch=launch):
                run_ = Supervised()
                process = run_.supervise(self, *LONG, *flags, program=[*launch, self.slow_until(4)])
                for life, number in enumerate((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)):
                    run_.wait_for_checkpoint(life)
                    run_.kill(number, which)
                self.ended(process)
                self.assertEqual(run_.did, [(137, "restart"), (139, "restart"), (STOPPED, "restart"), (0, "done")])
                self.assertEqual([life["life"] for life in run_.lives], [1, 2, 3, 4])
                self.same_run(run_, self.undisturbed(launch, flags), 100)

    def test_a_device_that_is_lost_in_every_life(self):
        run_ = Supervised()
        self.ended(run_.supervise(self, *LONG, options=["--max-failures", "1"], env={"LLMC_FAULT": "2500"}))
        self.assertGreater(len(run_.lives), 1, "each life with a new checkpoint is followed by another")
        self.assertEqual(run_.did, [(FAILURE, "restart")] * (len(run_.lives) - 1) + [(0, "done")])
        self.same_run(run_, whole_run(*LONG), 100)
        hopeless = Supervised()
        process = hopeless.supervise(self, options=["--max-failures", "3"], env={"LLMC_FAULT": "60"})
        result = self.ended(process, FAILURE)
        self.assertEqual(hopeless.did, [(FAILURE, "restart")] * 2 + [(FAILURE, "stop")])
        self.assertIn("3 lives in a row without a new checkpoint", result.err)

    def test_stopped_and_continued(self):
        for launch, flags, _ in self.LAUNCHES:
            for number in (signal.SIGINT, signal.SIGTERM) if not launch else (signal.SIGTERM,):
                with self.subTest(launch=launch, number=number):
                    run_ = Supervised()
                    process = run_.supervise(self, *LONG, *flags, program=[*launch, self.slow_until(2)])
                    run_.wait_for_checkpoint(0)
                    self.refused(self.ended(run_.supervise(self, *LONG, *flags), FLAGS), FLAGS, "is going on already")
                    process.send_signal(number)
                    self.ended(process, STOPPED)
                    self.ended(run_.supervise(self, *LONG, *flags, program=[*launch, PROGRAM]))
                    self.assertEqual(run_.did, [(STOPPED, "stopped"), (0, "done")])
                    self.assertEqual([life["life"] for life in run_.lives], [1, 2])
                    self.same_run(run_, self.undisturbed(launch, flags), 100)

    def test_time_limit(self):
        config = new_path("limit.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"max-minutes": 0.005}, file)
        for limit in (["--max-minutes", "0.005"], ["--config", config]):
            with self.subTest(limit=limit):
                run_ = Supervised()
                self.ended(run_.supervise(self, "--max-steps", "100000", *limit), STOPPED)
                self.assertEqual(run_.did, [(STOPPED, "stopped")])
                self.assertIn("--max-minutes reached", run_.lives[0]["reason"])

    def test_what_a_restart_does_not_mend(self):
        for flags, code in ((["--layers", "x"], FLAGS), (["--train", new_path()], DATA)):
            run_ = Supervised()
            self.ended(run_.supervise(self, *flags), code)
            self.assertEqual(run_.did, [(code, "stop")])
        run_ = Supervised()
        self.ended(run_.supervise(self, program=[new_path()]), 127)
        self.assertEqual(run_.did, [(127, "stop")])
        run_ = Supervised()
        self.ended(run_.supervise(self, program=[script("exit 0")]), FAILURE)
        self.assertEqual(run_.did, [(0, "stop")])
        self.assertIn("has no step of a run", run_.lives[0]["reason"])

    def test_damaged_records_of_lives(self):
        """The last whole line counts, and the next line begins as one. A record that cannot be written ends nothing."""
        run_ = Supervised()
        os.mkdir(run_.path)
        with open(run_.file("lives.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"action": "restart", "state": {"life": 7}}\n{"life": 8, "sta')
        result = self.ended(run_.supervise(self, program=[script("exit 2")]), FLAGS)
        self.assertIn("lives.jsonl:2 is damaged; the line before it counts", result.err)
        with open(run_.file("lives.jsonl"), encoding="utf-8") as file:
            self.assertEqual(json.loads(file.readlines()[-1])["life"], 8)
        run_ = Supervised()
        result = self.ended(run_.supervise(self, program=[script(f"mkdir {run_.path}/lives.jsonl; exit 2")]), FLAGS)
        self.assertIn("lives.jsonl cannot be written (Is a directory), so it lacks life 1", result.err)
        self.assertNotIn("Traceback", result.err)

    def test_refusals(self):
        for flags, part in ((["--overwrite"], "--overwrite"), (["--skip-data", "3"], "--skip-data"),
                            (["--resume", "runs/other"], "--resume runs/other"),
                            (["-y", "runs/other"], "--resume runs/other")):
            self.refused(self.ended(Supervised().supervise(self, *flags), FLAGS), FLAGS, part)
        done = subprocess.run([sys.executable, SCRIPT, "--", PROGRAM], capture_output=True, text=True)
        self.assertIn("COMMAND needs --out", done.stderr)

    def test_hooks_and_the_follower(self):
        log, run_ = new_path("events"), Supervised()
        event = "$SUPERVISE_EVENT $SUPERVISE_LIFE $SUPERVISE_EXIT_CODE $SUPERVISE_RUN"
        options = ["--on-event", f'echo "{event}" >> {log}',
                   "--before-resume", f"echo before >> {log}; test $SUPERVISE_LIFE != 2",
                   "--follow", "alert=loss>0,loss<1e9 for 90"]
        result = self.ended(run_.supervise(self, *LONG, options=options, env={"LLMC_FAULT": "4000"}))
        self.assertEqual(run_.did[:2], [(FAILURE, "restart")] * 2)
        self.assertIn("--before-resume ended with exit code 1", run_.lives[1]["reason"])
        with open(log, encoding="utf-8") as file:
            lines = file.read().splitlines()
        alerts = [line for line in lines if line.startswith("alert ")]
        self.assertEqual(len(alerts), 2, "one for each rule")
        for line in alerts:
            self.assertRegex(line, rf"^alert \d+ 0 {re.escape(run_.path)}$")
        lines = [line for line in lines if line not in alerts]
        self.assertEqual(lines[:4], [f"start 0 0 {run_.path}", "before", f"restart 1 1 {run_.path}", "before"])
        self.assertEqual(lines[-1], f"done {len(run_.lives)} 0 {run_.path}")
        self.assertEqual(re.findall(r"^step (\d+: \S+)", result.out, re.MULTILINE), ["1: loss>0:", "90: loss<1e9"])
        self.assertEqual(processes(f"follow.py {run_.path}"), [])


class BadNumbers(Supervising):
    def shard(self, *bad):
        """300 steps of easy data, with a sequence of another token in some places."""
        tokens = [i * 7 % 13 for i in range(16 * 16 * 300 + 1)]
        for sample in bad:
            tokens[sample * 16:sample * 16 + 17] = [200] * 17
        return write_shard(tokens)

    def flags(self, *bad):
        return ["--train", self.shard(*bad), "--vocab", "257", "--batch", "16", "--max-steps", "280", "--lr", "2e-2",
                "-n", "10", "--keep", "3,10", "--val-every", "0", "--skip-spikes", "--max-skips", "1"]

    def hashes(self, run_):
        return [r["batch_hash"] for r in run_.records() if "loss" in r]

    def check_order(self, run_, whole, life):
        """The batches are those of the whole run, without the data that this life of the run left out."""
        to, skip = (run_.lives[life]["state"]["rewind"][key] for key in ("to", "skip"))
        self.assertEqual(to + skip, run_.lives[life]["step"])
        steps = len(self.hashes(run_))
        self.assertEqual(self.hashes(run_), self.hashes(whole)[:to] + self.hashes(whole)[to + skip:steps + skip])

    def test_bad_data_is_skipped(self):
        run_, whole, flags = Supervised(), Directory(), self.flags(BAD[0])
        self.ended(run_.supervise(self, *flags))
        self.assertEqual(run_.did, [(NUMBERS, "rewind"), (0, "done")])
        self.succeeds(whole.run(*flags, "--max-skips", "0", "--max-steps", "300"))
        self.check_order(run_, whole, 0)

    def test_bad_checkpoints_are_passed_over(self):
        """The weights diverge, and checkpoints are made of them. The rewound life dies before it makes one, and the
        next still leaves the data out."""
        program = script("case $SUPERVISE_LIFE in 1 | 3) export LLMC_FAULT=$((3850 - 1250 * SUPERVISE_LIFE)) ;;\n"
                         f'2) set -- "$@" --lr 1e9 --max-skips 13 ;; esac\nexec {PROGRAM} "$@"\n')
        run_ = Supervised()
        self.ended(run_.supervise(self, *LONG, program=[program]))
        self.assertEqual(run_.did, [(FAILURE, "restart"), (NUMBERS, "rewind"), (FAILURE, "restart"), (0, "done")])
        self.assertIn("--rewind", run_.lives[2]["flags"])
        self.assertEqual(run_.lives[3]["flags"][2:], ["--skip-data", str(run_.lives[1]["state"]["rewind"]["skip"])])
        self.check_order(run_, whole_run(*LONG, "--max-steps", "150"), 1)

    def diverging_life(self, run_, checkpoints, bad, last):
        """The shell commands of a stand-in for a life of the run: it saves, and its steps from `bad` to `last` diverge."""
        records = new_path("records")
        with open(records, "w", encoding="utf-8") as file:
            for step in range(901, last + 1):
                file.write(f'{{"step":{step},"loss":1.0' + (',"nonfinite":{"norm":"nan"}' if step >= bad else "") + "}\n")
        saved = "".join(f"mkdir -p {path}; touch {path}/manifest.json; " for path in (
            run_.file(f"checkpoints/step_{step:08}") for step in checkpoints))
        return f"{saved}cp {records} {run_.file('metrics.jsonl')}; exit {NUMBERS}"

    def test_a_second_rewind_leaves_out_the_data_of_both(self):
        """The second life begins with the data of step 1101, so in its step 1050 it is at what was that of step 1150.
        A checkpoint of that life knows this."""
        for saved, flags in (([], ["--rewind", "1", "--skip-data", "250"]), ([1010], ["--skip-data", "40"])):
            run_ = Supervised()
            self.ended(run_.supervise(self, program=[script(f"""case $SUPERVISE_LIFE in
                1) {self.diverging_life(run_, [900, 1000], 1090, 1100)} ;;
                2) {self.diverging_life(run_, saved, 1040, 1050)} ;;
                esac""")]))
            self.assertEqual(run_.did, [(NUMBERS, "rewind")] * 2 + [(0, "done")])
            self.assertEqual([life["flags"][2:] for life in run_.lives[1:]], [["--skip-data", "100"], flags])

    def test_it_gives_up_after_two_rewinds(self):
        run_ = Supervised()
        result = self.ended(run_.supervise(self, *self.flags(*BAD)), NUMBERS)
        self.assertEqual(run_.did, [(NUMBERS, "rewind"), (NUMBERS, "rewind"), (NUMBERS, "stop")])
        self.assertIn("after 2 rewinds", result.err)
        none = Supervised()
        self.ended(none.supervise(self, "--lr", "1e9", "--warmup", "0", "--max-skips", "3"), NUMBERS)
        self.assertEqual(none.did[-1], (NUMBERS, "stop"))
        self.assertIn("no checkpoint to go back to", none.lives[-1]["reason"])

    def test_silent_corruption_and_missing_products(self):
        run_ = Supervised()
        flipped = {"LLMC_FLIP": "layernorm_forward:8"}
        self.ended(run_.supervise(self, "-n", "1", "--verify-every", "2", env=flipped), NUMBERS)
        self.assertEqual(run_.did, [(NUMBERS, "stop")])
        self.assertRegex(run_.lives[0]["reason"], r"^silent data corruption: rank 0 on \S+ \(CPU")
        run_ = Supervised()
        message = "rank 0: a micro-step ran 0 FP8 matmuls instead of the 24 of its FP8 layers"
        self.ended(run_.supervise(self, program=[script(f'echo "{message}" >&2\nexit 6\n')]), NUMBERS)
        self.assertEqual(run_.did, [(NUMBERS, "stop")])
        self.assertIn(message, run_.lives[0]["reason"])


class Hosts(Case):
    """Stand-ins for mpirun and srun, on which host b loses its rank in every life."""

    SRUN = {"LOST": "srun: error: b: task 3: Killed"}

    def commands(self, name, blame, words, **env):
        """The commands that were started, and the run."""
        log, run_ = new_path("log"), Supervised()
        step = f"""echo '{{"step":1,"loss":1}}' > {run_.file("metrics.jsonl")}"""
        launcher = script(f'echo "$@" >> {log}\ncase "$@" in {blame}) {step};; *) echo "$LOST" >&2; exit 137 ;; esac\n',
                          name)
        process = run_.supervise(self, program=[launcher, *words, "train_gpt"], options=["--max-failures", "4"],
                                 env=env)
        process.communicate(timeout=300)
        with open(log, encoding="utf-8") as file:
            return [line.split(" train_gpt")[0] for line in file], run_

    def test_a_host_that_failed_twice_is_left_out(self):
        lost = "prterun noticed that process rank 1 with PID 0 on node b exited on"  # Open MPI 5 breaks the line here
        started, run_ = self.commands("mpirun", "'--host a:2,c:2 '*", ["--host", "a:2,b:2,c:2", "-np", "6"], LOST=lost)
        self.assertEqual(started, ["--host a:2,b:2,c:2 -np 6"] * 2 + ["--host a:2,c:2 -np 4"])
        self.assertEqual(run_.did, [(137, "restart"), (137, "restart"), (0, "done")])
        self.assertEqual(run_.lives[-1]["state"]["left_out"], ["b"])
        for nodes in ("--nodes=2", "--nodes 2-3", "-N 2", "-N2"):
            started, _ = self.commands("srun", "*--exclude=b*", nodes.split(), **self.SRUN, SLURM_JOB_NUM_NODES="3")
            self.assertEqual(started, [nodes] * 2 + [f"--exclude=b {nodes}"])

    def without_b(self, text):
        """The command without host b, or None."""
        words = Command([*text.split(), "-o", "runs/x"]).without(["b"])
        return words and " ".join(words[:-2])

    def test_the_number_of_ranks_in_every_spelling(self):
        """Only the launcher's changes: -n of train_gpt, or of a program that starts it, is something else."""
        for flag in ("-np", "--np", "-n", "--n", "-c"):
            self.assertEqual(self.without_b(f"mpirun --host a:2,b:2,c:2 {flag} 6 ./train_gpt -n 100"),
                             f"mpirun --host a:2,c:2 {flag} 4 ./train_gpt -n 100")
        more = "--oversubscribe --mca btl self,tcp -x OMP_NUM_THREADS --map-by node"
        for program in ("./train_gpt", "nice -n 19 ./train_gpt", "run.sh"):
            for options, fewer in (("", ""), ("-n 6 ", "-n 4 "), ("-n=6 ", "-n=4 ")):
                self.assertEqual(self.without_b(f"env A=1 mpirun -H a:2,b:2,c:2 {options}{more} {program} -n 5000 -c 0.1"),
                                 f"env A=1 mpirun -H a:2,c:2 {fewer}{more} {program} -n 5000 -c 0.1")
        self.assertEqual(self.without_b("mpiexec --host a,b --unknown train_gpt -n 5000"),
                         "mpiexec --host a --unknown train_gpt -n 5000")
        self.assertEqual(self.without_b("scripts/run_mpirun.sh --program ./train_gpt --hosts a:2,b:2 --ranks 4 -- -n 9"),
                         "scripts/run_mpirun.sh --program ./train_gpt --hosts a:2 --ranks 2 -- -n 9")
        for command in ("./train_gpt --host a,b", "mpirun -n 2 ./train_gpt --host a,b", "mpirun --host b ./train_gpt"):
            self.assertIsNone(self.without_b(command))

    def test_without_a_host_to_spare(self):
        started, run_ = self.commands("srun", "never", ["--nodes=2"], **self.SRUN, SLURM_JOB_NUM_NODES="2")
        self.assertEqual(started, ["--nodes=2"] * 4)
        self.assertEqual(run_.did[-1], (137, "stop"))


class Slurm(Supervising):
    """multi_node/train.sbatch with stand-ins for srun and scontrol."""

    def job(self, *flags, srun='exec "$@"', **env):
        """The job, and the file in which scontrol writes its arguments."""
        log = new_path("scontrol")
        commands = [script(f'while [ "${{1#--}}" != "$1" ]; do echo "$1" >> {log}.srun; shift; done\n{srun}\n', "srun"),
                    script(f'case $1 in show) echo localhost ;; *) echo "$@" >> {log} ;; esac\n', "scontrol")]
        path = os.pathsep.join([*map(os.path.dirname, commands), os.environ["PATH"]])
        variables = {"PATH": path, "PROGRAM": PROGRAM, "SUPERVISE": "--back-off 0.01", "SUPERVISOR": SCRIPT,
                     "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a,b", "SLURM_JOB_NUM_NODES": "3",
                     "SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "4"}
        process = subprocess.Popen(["bash", os.path.join(ROOT, "scripts", "multi_node", "train.sbatch"), *flags],
                                   text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=workspace(),
                                   env={**ENVIRONMENT, **ONE_THREAD, **variables, **env})
        return self.started(process), log

    def test_a_time_limit_requeues_and_a_cancellation_does_not(self):
        slow = {"LLMC_DELAY": "update_kernel:100"}
        for number, code in ((signal.SIGUSR1, 0), (signal.SIGTERM, STOPPED)):
            with self.subTest(number=number):
                run_ = Supervised()
                process, log = self.job(*micro_flags("--out", run_.path, *LONG), MAX_REQUEUES="1", **slow)
                run_.wait_for_checkpoint(0)
                process.send_signal(number)
                self.ended(process, code)
                self.assertEqual(run_.did, [(STOPPED, "stopped")])
                self.assertEqual(os.path.exists(log), code == 0)

    def test_a_spare_node(self):
        run_ = Supervised()
        process, log = self.job("--out", run_.path, srun='echo "srun: error: b: task 9: Killed" >&2; exit 137',
                                SPARE_NODES="1", SUPERVISE="--back-off 0.01 --max-failures 4")
        self.ended(process, 137)
        with open(log + ".srun", encoding="utf-8") as file:
            words = file.read()
        self.assertEqual(words.split().count("--exclude=b"), 2)
        self.assertIn("--nodes=2\n--ntasks=16\n", words)
        self.assertIn("--cpus-per-task=4\n", words)


if __name__ == "__main__":
    unittest.main()
