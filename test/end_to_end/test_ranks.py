"""Several processes: the collectives under every launcher, refusals at the start, and ranks that die, stop or stall in
the middle of a run. All other ranks must exit within seconds, with a line that says where they stood.

The program is build/cpu-native/test_ranks (make test-ranks-binary), or the value of TEST_RANKS.
"""

import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PROGRAM = os.path.abspath(os.environ.get("TEST_RANKS", os.path.join(ROOT, "build", "cpu-native", "test_ranks")))
MPIRUN = shutil.which("mpirun")
BRIEF = ["--test-suite-exclude=*long"] if os.environ.get("BRIEF") else []  # scripts/test.sh without --all
LIMIT = 1.25  # seconds, for the watchdog
PATIENCE = 5  # seconds allowed beyond that
HANGS = 240  # seconds after which a run counts as hanging, also on a busy machine
OPERATIONS = ["all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "all_reduce", "broadcast", "barrier", "host_max",
              "split"]

# Variables that a launcher around this test may have set.
FOREIGN = re.compile(r"OMPI_|PMI|SLURM_|RANK$|WORLD_SIZE$|MASTER_|TORCHELASTIC_")
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if not FOREIGN.match(k)}, "OMP_NUM_THREADS": "1",
               "OMP_WAIT_POLICY": "passive", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1"}  # waiting ranks leave the cores to those they wait for

needs_mpi = unittest.skipUnless(MPIRUN, "no mpirun")


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def commands_by_rank(*commands):
    """Words for mpirun that give each rank a command of its own. (Its own syntax, with colons, crashes Open MPI 5.0.)"""
    cases = " ".join(f"{rank}) exec {shlex.join(command)};;" for rank, command in enumerate(commands))
    return ["-np", str(len(commands)), "sh", "-c", f"case ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} in {cases} esac"]


class Ended:
    """Processes that have ended: exit codes by rank (under mpirun {0: mpirun's}), output, and duration."""

    def __init__(self, codes, output, seconds):
        self.codes, self.output, self.seconds = codes, output, seconds

    @property
    def code(self):
        return max(self.codes.values(), key=abs)

    def __repr__(self):
        return f"codes {self.codes} after {self.seconds:.1f} s\n{self.output}"


def mpirun(ranks, *arguments, env=None, limit=HANGS):
    start = time.monotonic()
    done = subprocess.run([MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), PROGRAM, *map(str, arguments)],
                          env={**ENVIRONMENT, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=limit)
    return Ended({0: done.returncode}, done.stdout, time.monotonic() - start)


def tcp(ranks, *arguments, env=None, limit=HANGS, variables=None, without=()):
    """Starts ranks as torchrun does. Ranks in `without` do not end by themselves; they are killed."""
    port = free_port()
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        processes = {}
        for rank in reversed(range(ranks)):
            own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            own.update((variables or {}).get(rank, {}))
            processes[rank] = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=output, stderr=output,
                                               env={**ENVIRONMENT, **own, **(env or {})})
        try:
            codes = {}
            for rank, process in processes.items():
                if rank not in without:
                    codes[rank] = process.wait(timeout=max(0.1, limit + start - time.monotonic()))
            seconds = time.monotonic() - start
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        output.seek(0)
        return Ended(codes, output.read(), seconds)


def victim_of(operation):
    """The rank to stop. A broadcast ends for each rank that has sent it, so its root."""
    return 0 if operation == "broadcast" else 1


def left_over(mark):
    """The live processes with this argument."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
            with open(os.path.join(os.path.dirname(path), "stat"), encoding="utf-8") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark.encode() in words and state != "Z":
            found.append(path)
    return found


class Collectives(unittest.TestCase):
    def check(self, ended):
        self.assertEqual(set(ended.codes.values()), {0}, ended)
        self.assertRegex(ended.output, r"passed: \d ranks over", ended)
        # Two of the counts have odd halves: the assertions really ran.
        self.assertGreater(int(re.search(r"assertions:\s+(\d+)", ended.output).group(1)), 800, ended)

    @needs_mpi
    def test_mpi(self):
        for ranks in (1, 2, 3, 4, 8):
            with self.subTest(ranks=ranks):
                self.check(mpirun(ranks))

    @needs_mpi
    def test_mpi_with_lazy_streams_guarded_memory_and_small_messages(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                self.check(mpirun(ranks, "--largest-message", 1000, "--order", "rank",
                                  env={"LLMC_STREAMS": "lazy", "LLMC_GUARD": "1"}))

    @needs_mpi
    def test_shared_device(self):
        """A build for one GPU: ranks share it, through host memory."""
        self.check(mpirun(2, "--comm", "mpi"))
        self.check(tcp(2, "--comm", "tcp"))

    def test_tcp(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                self.check(tcp(ranks))

    def test_tcp_with_eight_ranks(self):
        self.check(tcp(8))

    def test_tcp_with_lazy_streams_and_guarded_memory(self):
        self.check(tcp(4, env={"LLMC_STREAMS": "lazy", "LLMC_GUARD": "1"}))

    @needs_mpi
    def test_a_failure_on_one_rank_fails_all(self):
        ended = mpirun(3, "--break-rank", 2)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertIn("FAILED", ended.output)


class Training(unittest.TestCase):
    """Training steps in every sharding stage, over TCP: there waiting ranks sleep, while under MPI they take turns on
    the cores. TRAINING_RANKS sets the number of ranks under mpirun.
    """

    def test_equals_one_rank(self):
        launch = mpirun if "TRAINING_RANKS" in os.environ else tcp
        for ranks in map(int, os.environ.get("TRAINING_RANKS", "3").split()):
            with self.subTest(ranks=ranks):
                ended = launch(ranks, "--training", "--order", "rank", *BRIEF, limit=600,
                               env={"LLMC_STREAMS": "random"})
                self.assertEqual(set(ended.codes.values()), {0}, ended)
                self.assertGreater(int(re.search(r"assertions:\s+(\d+)", ended.output).group(1)), 300, ended)

    def test_groups_that_shard_equal_one_rank(self):
        ended = tcp(4, "--training", "--order", "rank", "--test-case=hybrid*", limit=300,
                    env={"LLMC_STREAMS": "random"})
        self.assertEqual(set(ended.codes.values()), {0}, ended)
        self.assertRegex(ended.output, r"test cases:\s+1 \|\s+1 passed", ended)

    def test_muon_on_any_number_of_ranks(self):
        for ranks in (1, 2, 5, 8):  # three ranks are tested with the others
            with self.subTest(ranks=ranks):
                ended = tcp(ranks, "--training", "--order", "rank", "--test-case=muon*", limit=120)
                self.assertEqual(set(ended.codes.values()), {0}, ended)
                self.assertRegex(ended.output, r"test cases:\s+2 \|\s+2 passed", ended)

    def test_odd_sizes_on_seven_ranks_with_guarded_memory(self):
        ended = tcp(7, "--training", "--test-case=a hundred tensors*,a block without attention*", limit=120,
                    env={"LLMC_STREAMS": "random", "LLMC_GUARD": "1"})
        self.assertEqual(set(ended.codes.values()), {0}, ended)
        self.assertRegex(ended.output, r"test cases:\s+3 \|\s+3 passed", ended)


class Faults(unittest.TestCase):
    def scenario(self, *flags, limit=LIMIT):
        """Arguments of a run with its own directory for reports and its own mark."""
        self.directory = tempfile.mkdtemp(prefix="train_gpt_ranks_")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.mark = f"mark{os.getpid()}_{time.monotonic_ns()}"
        return ["--scenario", "loop", "--mark", self.mark, "--out", self.directory, "--limit", limit, *flags]

    def assert_left_in_time(self, ended):
        self.assertLess(ended.seconds, LIMIT + PATIENCE, ended)
        deadline = time.monotonic() + 3
        while left_over(self.mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(left_over(self.mark), [], ended)

    def reports(self):
        found = {}
        for path in glob.glob(os.path.join(self.directory, "watchdog_rank*.json")):
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
            found[report["rank"]] = report
        return found

    def check_reports_of_loss(self, victim):
        """Returns the number of ranks whose report says that another rank was lost."""
        reports = self.reports()
        for rank, report in reports.items():
            self.assertNotEqual(rank, victim)
            self.assertRegex(report["problem"], rf"rank {victim} (was lost|on \S+ is gone)")
            self.assertEqual((report["exit_code"], report["step"]), (7, 5))
        return len(reports)

    def assert_stuck_in(self, ended, operation):
        """Checks the lines and reports of ranks that waited for another one."""
        self.assertRegex(ended.output, rf"rank \d on \S+: nothing moved for \d\.\d s \(--timeout-step {LIMIT}\): it waits for "
                         rf"other ranks in a collective; step 5, last operation: {operation} #\d+ \(\S+, \d+ bytes, "
                         r"step 5, running for \d\.\d s\)\. Leaving with exit code 7", ended)
        # Leaves out ranks that only noticed that another one had exited.
        reports = [r for r in self.reports().values()
                   if r["last_operation"]["state"] == "running" and r["problem"].startswith("nothing moved")]
        self.assertGreater(len(reports), 0, ended)
        for report in reports:
            self.assertEqual((report["exit_code"], report["step"], report["last_operation"]["name"]), (7, 5, operation))
            self.assertGreater(len(report["recent_operations"]), 2)

    @needs_mpi
    def test_nothing_wrong(self):
        ended = mpirun(3, *self.scenario())
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("3 ranks finished over mpi", ended.output)
        self.assertEqual(self.reports(), {})
        ended = tcp(3, *self.scenario())
        self.assertEqual(ended.codes, {0: 0, 1: 0, 2: 0}, ended)
        self.assert_left_in_time(ended)

    @needs_mpi
    def test_mpi_exit_code_of_ranks_that_stop_together(self):
        """Stopped after saving: a batch script requeues on this code."""
        for _ in range(3):
            self.assertEqual(mpirun(4, *self.scenario("--exit", 75)).code, 75)

    @needs_mpi
    def test_mpi_rank_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                ended = mpirun(3, *self.scenario("--victim", victim, "--action", "kill"))
                self.assertNotEqual(ended.code, 0, ended)
                self.assertRegex(ended.output, rf"rank {victim} .*exited on\s+signal 9")
                self.assertRegex(ended.output, rf"rank \d on \S+: rank {victim} on \S+ is gone: its process \d+ has ended; step 5")
                # mpirun's choice, whatever codes the other ranks exit with.
                self.assertEqual(ended.code, 128 + signal.SIGKILL)
                self.assertGreater(self.check_reports_of_loss(victim), 0)
                self.assert_left_in_time(ended)

    @needs_mpi
    def test_mpi_rank_stopped(self):
        # One of each kind; the others are tested over TCP below, where waiting is cheap.
        for operation in ("all_gather", "broadcast", "barrier"):
            with self.subTest(operation=operation):
                ended = mpirun(3, *self.scenario("--operation", operation, "--victim", victim_of(operation),
                                                 "--action", "stop"))
                self.assertEqual(ended.code, 7, ended)
                self.assert_stuck_in(ended, operation)
                self.assert_left_in_time(ended)

    @needs_mpi
    def test_mpi_rank_that_stands_still_names_itself(self):
        for action, phase in (("sleep", "step"), ("save", "save")):
            with self.subTest(action=action):
                # Its own limit expires first, because it began to wait first.
                ended = mpirun(3, *self.scenario("--victim", 1, "--action", action, "--limit1", LIMIT / 2))
                self.assertEqual(ended.code, 7, ended)
                self.assertRegex(ended.output, rf"rank 1 on \S+: nothing moved for \d\.\d s \(--timeout-{phase} "
                                 rf"{LIMIT / 2}\): it is in no collective", ended)
                self.assert_left_in_time(ended)

    def test_run_that_is_suspended_as_a_whole_goes_on(self):
        """The watchdog's clock stops with the process; after waking up, its main thread computes."""
        arguments = self.scenario("--steps", 8, "--operation", "host_max", "--compute", 0.3, limit=5)
        port = str(free_port())
        processes = [subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      env={**ENVIRONMENT, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                                           "MASTER_PORT": port}) for r in range(2)]
        time.sleep(0.8)
        for wanted in (signal.SIGSTOP, signal.SIGCONT):
            for process in processes:
                self.assertIsNone(process.poll(), "over before it was suspended")
                process.send_signal(wanted)
            if wanted == signal.SIGSTOP:
                time.sleep(6)  # more than the limit, which is more than a busy machine needs for a step
        outputs = [process.communicate(timeout=60)[0].decode() for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], outputs)

    @needs_mpi
    def test_mpi_rank_with_an_error_of_its_own(self):
        ended = mpirun(3, *self.scenario("--victim", 1, "--action", "throw"))
        self.assertEqual(ended.code, 3, ended)
        self.assertIn("rank 1: this rank found bad data", ended.output)
        self.assert_left_in_time(ended)

    @needs_mpi
    def test_mpi_launcher_killed(self):
        process = subprocess.Popen([MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", "3", PROGRAM,
                                    *map(str, self.scenario("--victim", 1, "--action", "sleep", limit=30))],
                                   env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while len(left_over(self.mark)) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        process.kill()
        process.wait()
        start = time.monotonic()
        while left_over(self.mark) and time.monotonic() - start < 10:
            time.sleep(0.1)
        self.assertEqual(left_over(self.mark), [])

    def test_tcp_rank_killed(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                ended = tcp(3, *self.scenario("--victim", victim, "--action", "kill"))
                self.assertEqual(ended.codes.pop(victim), -signal.SIGKILL, ended)
                self.assertEqual(set(ended.codes.values()), {7}, ended)
                self.assertRegex(ended.output, rf"rank 1: rank {victim} was lost during \w+ #\d+: ", ended)
                self.assertEqual(self.check_reports_of_loss(victim), 2)
                self.assert_left_in_time(ended)

    def test_tcp_rank_killed_while_the_others_do_something_else(self):
        """No rank is in a collective: the watchdogs notice that the connection is closed."""
        ended = tcp(3, *self.scenario("--victim", 1, "--action", "kill", "--others", "sleep", limit=30))
        self.assertEqual(ended.codes, {0: 7, 1: -signal.SIGKILL, 2: 7}, ended)
        self.assertRegex(ended.output, r"rank 0 on \S+: rank 1 on \S+ is gone: its connection was closed, or its machine "
                         r"answers nothing; step 5", ended)
        self.assert_left_in_time(ended)

    def test_tcp_rank_stopped_at_each_kind_of_collective(self):
        for operation in OPERATIONS:
            with self.subTest(operation=operation):
                victim = victim_of(operation)
                ended = tcp(3, *self.scenario("--operation", operation, "--victim", victim, "--action", "stop"),
                            without=[victim])
                self.assertEqual(set(ended.codes.values()), {7}, ended)
                self.assert_stuck_in(ended, {"host_max": "host_all_gather"}.get(operation, operation))
                self.assert_left_in_time(ended)

    def test_tcp_ranks_out_of_step_say_so(self):
        ended = tcp(2, *self.scenario("--operation", "all_gather", "--victim", 1, "--action", "mismatch"))
        self.assertEqual(ended.codes, {0: 7, 1: 7}, ended)
        self.assertIn("ranks are out of step: rank 0 is in all_gather", ended.output)
        self.assert_left_in_time(ended)


class Starts(unittest.TestCase):
    """Refusals before anything is trained."""

    def start(self, *flags, **variables):
        start = time.monotonic()
        done = subprocess.run([PROGRAM, "--scenario", "loop", "--timeout", "1.5", *map(str, flags)],
                              env={**ENVIRONMENT, **variables}, capture_output=True, text=True, timeout=60)
        return Ended({0: done.returncode}, done.stdout + done.stderr, time.monotonic() - start)

    def test_port_in_use(self):
        with socket.socket(socket.AF_INET6) as taken:
            taken.bind(("::", 0))
            taken.listen()
            port = taken.getsockname()[1]
            ended = self.start(RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(port))
        self.assertEqual(ended.code, 7, ended)
        self.assertIn(f"cannot listen on port {port}: Address already in use; choose another MASTER_PORT", ended.output)

    def test_without_a_secret_on_a_network(self):
        """Warns once, unless all ranks are on this machine or know a secret."""
        warning = "warning: every process that reaches port"
        network = {r: {"MASTER_ADDR": socket.gethostname()} for r in range(2)}
        for expected, variables, env in ((1, network, {}), (0, network, {"LLMC_SECRET": "ours"}), (0, {}, {})):
            ended = tcp(2, "--scenario", "loop", variables=variables, env=env)
            self.assertEqual(ended.codes, {0: 0, 1: 0}, ended)
            self.assertEqual(ended.output.count(warning), expected, ended)

    def test_tasks_of_srun_that_know_nothing_of_each_other(self):
        ended = self.start(SLURM_NTASKS="4", SLURM_PROCID="2", SLURM_STEP_ID="0")
        self.assertEqual(ended.code, 2, ended)
        if MPIRUN:
            self.assertRegex(ended.output, r"srun started 4 tasks, but MPI sees 1: they would train alone.*--mpi=pmix")

    def test_srun_without_mpi_meets_over_tcp(self):
        port = str(free_port())
        variables = {r: {"SLURM_PROCID": str(r), "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "MASTER_ADDR": "localhost",
                         "MASTER_PORT": port, "RANK": "", "WORLD_SIZE": ""} for r in range(2)}
        ended = tcp(2, "--scenario", "loop", variables=variables)
        self.assertEqual(ended.codes, {0: 0, 1: 0}, ended)
        self.assertIn("2 ranks finished over tcp", ended.output)

    @needs_mpi
    def test_programs_that_differ(self):
        with tempfile.TemporaryDirectory() as directory:
            other = os.path.join(directory, "test_ranks")
            shutil.copy(PROGRAM, other)
            with open(other, "ab") as file:
                file.write(b"\0")
            both = commands_by_rank(*([program, "--scenario", "loop"] for program in (PROGRAM, other)))
            done = subprocess.run([MPIRUN, "--oversubscribe", "--bind-to", "none", *both], env=ENVIRONMENT,
                                  capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, r"rank 1 on \S+ has another program than rank 0")


if __name__ == "__main__":
    unittest.main()
