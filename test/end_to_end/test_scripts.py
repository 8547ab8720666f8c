"""The scripts themselves: counting of results, which GPUs are built for, setup without rights, the pictures of a run
and of an estimate."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import unittest

from trainer import ROOT, read_records


def load(name, folder="scripts"):
    """Imports a script as a module, with its neighbours, as it is when it is run."""
    scripts = os.path.join(ROOT, folder)
    if scripts not in sys.path:
        sys.path.insert(0, scripts)
    # Import all of them again: a neighbour that was kept would have other classes than the new module expects.
    for other, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(scripts + os.sep):
            del sys.modules[other]
    return importlib.import_module(name)


class InDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def write(self, name, text, executable=False):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if executable:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


class Stages(InDirectory):
    """dev/stages.sh with commands that print what real ones would."""

    def stages(self, script, **environment):
        text = f'source "{ROOT}/dev/stages.sh"\n{script}\nfinish\n'
        environment = {k: v for k, v in os.environ.items() if k != "CI"} | environment
        result = subprocess.run(["bash", "-c", text], cwd=self.directory, capture_output=True, text=True,
                                env=environment)
        self.assertEqual(result.stderr, "")
        return result.returncode, result.stdout.splitlines()[-1], result.stdout

    DOCTEST = "[doctest] test cases: {} | {} passed | {} failed | {} skipped"
    UNITTEST = r'printf "Ran {} in 1.2s\n\n{}\n"; exit {}'

    def test_counts(self):
        """Crashes, and runs without any test, are failures."""
        for kind, command, code, counts in (
                ("check", "true", 0, "1 passed, 0 failed, 0 skipped"),
                ("check", "echo why; exit 3", 1, "0 passed, 1 failed, 0 skipped"),
                ("doctest", f'echo "{self.DOCTEST.format(12, 12, 0, 3)}"', 0, "12 passed, 0 failed, 3 skipped"),
                ("doctest", f'echo "{self.DOCTEST.format(12, 10, 2, 0)}"; exit 1', 1, "10 passed, 2 failed, 0 skipped"),
                ("unittest", self.UNITTEST.format("9 tests", "OK (skipped=2)", 0), 0, "7 passed, 0 failed, 2 skipped"),
                ("unittest", self.UNITTEST.format("9 tests", "FAILED (failures=1, errors=2)", 1), 1,
                 "6 passed, 3 failed, 0 skipped"),
                *((kind, "kill -SEGV $$", 1, "0 passed, 1 failed, 0 skipped") for kind in ("doctest", "unittest", "check")),
                # Everything passed, and then it crashed.
                ("doctest", f'echo "{self.DOCTEST.format(3, 3, 0, 0)}"; exit 139', 1, "3 passed, 1 failed, 0 skipped"),
                ("unittest", self.UNITTEST.format("0 tests", "OK", 0), 1, "0 passed, 1 failed, 0 skipped"),
                ("check", "sleep 60", 1, "0 passed, 1 failed, 0 skipped")):
            with self.subTest(kind=kind, command=command):
                limit = "1" if command == "sleep 60" else "60"
                found, last, out = self.stages(f"stage t {kind} bash -c {shlex.quote(command)}", STAGE_LIMIT=limit)
                self.assertEqual((found, last), (code, counts))
                for part in {"echo why; exit 3": ["why", "exit code 3"], "sleep 60": ["stopped after 1 s"]}.get(command, []):
                    self.assertIn(part, out)

    def test_a_stage_that_skips_all_of_its_tests(self):
        """A newcomer's machine lacks some packages. CI has them all, so there it is a failure."""
        script = "stage t unittest bash -c " + shlex.quote(self.UNITTEST.format("4 tests", "OK (skipped=4)", 0))
        self.assertEqual(self.stages(script)[:2], (0, "0 passed, 0 failed, 4 skipped"))
        self.assertEqual(self.stages(script, CI="true")[:2], (1, "0 passed, 1 failed, 4 skipped"))

    def test_queue(self):
        line = self.DOCTEST.format(3, 2, 1, 0)
        code, last, out = self.stages(f"""
            queue stage "a b" check bash -c 'echo $OMP_NUM_THREADS >threads; while [[ ! -e met ]]; do sleep 0.01; done'
            queue stage c check touch met
            queue stage d doctest bash -c 'echo "{line}"; exit 1'
            queue stage e check false
            drain
            queue stage f check test "$(cat threads)" = 1
            drain""", JOBS="2", STAGE_LIMIT="20")
        self.assertEqual((code, last), (1, "5 passed, 2 failed, 0 skipped"))
        self.assertEqual(len(re.findall(r"^(?:a b|[c-f]) ", out, re.MULTILINE)), 5, out)

    def test_a_worker_that_dies_is_a_failure(self):
        code, last, _ = self.stages("queue stage a check true; queue exit; drain", JOBS="1")
        self.assertEqual((code, last), (1, "1 passed, 1 failed, 0 skipped"))

    def test_what_cannot_run(self):
        script = "stage good check true; require cuda 'no nvcc'; skip gpu 'no GPU'"
        code, last, _ = self.stages(script)
        self.assertEqual((code, last), (0, "1 passed, 0 failed, 2 skipped"))
        code, last, _ = self.stages(script, CI="true")
        self.assertEqual((code, last), (1, "1 passed, 1 failed, 1 skipped"))


class Setup(InDirectory):
    """scripts/setup.sh on a made-up system."""

    def setup_on(self, *arguments, **tools):
        """Runs it with these programs, and a few harmless ones, as the whole PATH."""
        for name, script in tools.items():
            self.write(f"bin/{name.replace('_', '-')}", "#!/bin/bash\n" + script, executable=True)
        for name in ("bash", "sed", "tr", "dirname", "env", "mkdir", "cp", "mktemp", "rm", "tail"):
            os.symlink(f"/usr/bin/{name}", os.path.join(self.directory, "bin", name))
        script = os.path.join(self.directory, "repository", "scripts", "setup.sh")
        with open(os.path.join(ROOT, "scripts", "setup.sh"), encoding="utf-8") as file:
            self.write("repository/scripts/setup.sh", file.read(), executable=True)
        # A CUDA toolkit would ask for NCCL's package.
        environment = {"PATH": os.path.join(self.directory, "bin"), "CUDA_HOME": os.path.join(self.directory, "none")}
        return subprocess.run(["/bin/bash", script, *arguments], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, env=environment)

    ALL_BUT_DOCTEST = "for p in \"${@:3}\"; do [[ $p == doctest-dev ]] || echo \"installed $p\"; done; exit 1"
    VENV = 'if [[ $* == *venv* ]]; then mkdir -p .venv/bin; cp "$0" .venv/bin/python; fi; [[ $1 != - ]]'

    @unittest.skipIf(os.geteuid() == 0, "root installs by itself")
    def test_without_rights_it_lists_the_packages(self):
        result = self.setup_on(dpkg_query=self.ALL_BUT_DOCTEST, apt_get="echo called; exit 9")
        self.assertEqual(result.returncode, 1)
        self.assertIn("apt-get install doctest-dev\n", result.stderr)
        self.assertNotIn("called", result.stdout)

    @unittest.skipIf(os.geteuid() != 0, "needs no sudo as root alone")
    def test_as_root_it_installs_what_is_missing(self):
        log = os.path.join(self.directory, "log")
        result = self.setup_on(dpkg_query=self.ALL_BUT_DOCTEST, apt_get=f'echo "$@" >>{log}', python3=self.VENV)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(log, encoding="utf-8") as file:
            update, install = file.read().splitlines()
        self.assertIn("update", update)
        self.assertTrue(install.endswith(" doctest-dev"), install)
        self.assertIn("setup: installing doctest-dev", result.stdout)

    def pip_installs(self, *arguments, venv=VENV):
        """The packages that pip is asked to install, and the output, if no system package is missing."""
        log = os.path.join(self.directory, "log")
        result = self.setup_on(*arguments, dpkg_query='for p in "${@:3}"; do echo "installed $p"; done',
                               apt_get="exit 9", python3=f'echo "$@" >>{log}\n{venv}')
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(log, encoding="utf-8") as file:
            return [line.split()[-1] for line in file if "pip install" in line], result.stderr

    def test_packages_by_flag(self):
        for flags, packages in (([], ["matplotlib", "./data"]), (["--with-prepare"], ["matplotlib", "./data[all]"]),
                                (["--with-tracking"], ["wandb", "./data"]),
                                (["--with-tiktoken"], ["matplotlib", "./data"])):  # a flag of earlier versions
            with self.subTest(flags=flags):
                self.assertEqual(self.pip_installs(*flags), (packages, ""))
                self.directory = tempfile.mkdtemp(dir=self.directory)

    def test_without_data_preparation_the_rest_works(self):
        installed, said = self.pip_installs(venv=self.VENV + ' && [[ $* != *install*./data ]]')
        self.assertEqual(installed, ["matplotlib", "./data"])
        self.assertIn("text can be prepared with --tokenizer bytes alone", said)

    def test_a_failed_installation_stops(self):
        result = self.setup_on(dpkg_query=self.ALL_BUT_DOCTEST, apt_get="exit 100", sudo='"$@"', python3=self.VENV)
        self.assertNotEqual(result.returncode, 0)

    def test_without_apt_it_names_what_is_needed(self):
        result = self.setup_on(make="", git="", python3=self.VENV)
        self.assertEqual(result.returncode, 1)
        for name in ("g++", "OpenBLAS", "doctest", "nlohmann"):
            self.assertIn(name, result.stderr)


class Tour(InDirectory):
    """scripts/tour.sh, up to the first script that it calls."""

    def tour(self, *arguments):
        script = os.path.join(self.directory, "scripts", "tour.sh")
        with open(os.path.join(ROOT, "scripts", "tour.sh"), encoding="utf-8") as file:
            self.write("scripts/tour.sh", file.read())
        self.write("scripts/setup.sh", "#!/bin/sh\nexit 9\n", executable=True)
        return subprocess.run(["bash", script, *arguments], capture_output=True, text=True)

    def test_it_replaces_only_what_a_tour_has_made(self):
        self.write("out/tour/run/metrics.jsonl", "")
        self.write("runs/mine/run/metrics.jsonl", "")
        os.mkdir(os.path.join(self.directory, "empty"))
        for out in ("out/tour", "runs/new", "runs/new", "empty"):
            self.assertEqual(self.tour("--out", out).returncode, 9, out)
        self.assertEqual(self.tour().returncode, 9)
        for out in ("runs/mine", "runs/mine/", "runs"):
            result = self.tour("--out", out)
            self.assertEqual(result.returncode, 2, out)
            self.assertIn(f"tour.sh: {out} has files that no tour made", result.stderr)
        self.assertEqual(os.listdir(os.path.join(self.directory, "runs", "mine")), ["run"])


class GpuArch(InDirectory):
    """Which GPUs the Makefile builds for, by what nvidia-smi says and by GPU_ARCH."""

    FAILURE = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."

    def make(self, *arguments, printed="", code=0):
        """The directory of the CUDA build and nvcc's --generate-code flags, with a nvidia-smi that prints this."""
        self.write("bin/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit {code}\n", executable=True)
        unset = ("GPU_ARCH", "PRECISION", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")
        environment = {k: v for k, v in os.environ.items() if k not in unset}
        environment["PATH"] = os.path.join(self.directory, "bin") + os.pathsep + environment["PATH"]
        # Without what else the Makefile would look for.
        command = ["make", "-s", "-C", ROOT, "--no-print-directory", "USE_MPI=1", "USE_NCCL=1", "MPICXX=x",
                   "NCCL_INCLUDE=x", "--eval", "show: ; @echo $(NVCCFLAGS); echo $(CUDA_DIR)", "gpu-build", "show"]
        return subprocess.run(command + list(arguments), capture_output=True, text=True, env=environment)

    def built_for(self, *arguments, **nvidia_smi):
        """The architectures in the flags, and the directory."""
        result = self.make(*arguments, **nvidia_smi)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        found, flags, directory = result.stdout.split("\n")[:3]
        self.assertIn(found, ("", directory))
        return re.findall(r"--generate-code=(\S+)", flags), directory, bool(found)

    def test_the_gpu_found(self):
        hopper = ["arch=compute_90a,code=sm_90a"]
        self.assertEqual(self.built_for(printed="9.0"), (hopper, "build/cuda-sm_90a", True))
        for printed, code in (("", 127), (self.FAILURE, 9), ("[N/A]\n7.5", 0)):
            with self.subTest(printed=printed):
                self.assertEqual(self.built_for(printed=printed, code=code), (hopper, "build/cuda-sm_90a", False))

    def test_a_guess_is_said(self):
        note = "note: no GPU found here: built for H100"
        for arguments, printed, said in (([], "", True), ([], "8.9", False), (["GPU_ARCH=sm_90a"], "", False)):
            with self.subTest(arguments=arguments, printed=printed):
                self.assertEqual(note in self.make("-n", "train_gpt", *arguments, printed=printed).stdout, said)

    def test_several_gpus(self):
        ada, hopper = "arch=compute_89,code=sm_89", "arch=compute_90a,code=sm_90a"
        self.assertEqual(self.built_for(printed="8.9\n8.9"), ([ada], "build/cuda-sm_89", True))
        self.assertEqual(self.built_for(printed=f"9.0\n{self.FAILURE}\n8.9"),
                         ([ada, hopper], "build/cuda-sm_89-sm_90a", True))
        self.assertEqual(self.built_for(printed="8.6\n10.3\n12.1")[1], "build/cuda-sm_100-sm_120-sm_80")

    def test_gpu_arch(self):
        hopper = (["arch=compute_90a,code=sm_90a"], "build/cuda-sm_90a", True)
        for asked in ("sm_90a", "90a"):
            self.assertEqual(self.built_for(f"GPU_ARCH={asked}", printed="8.9"), hopper)
        flags, directory, _ = self.built_for("GPU_ARCH=90a,sm_80")
        self.assertEqual(([flag.split("=")[-1] for flag in flags], directory),
                         (["sm_80", "sm_90a"], "build/cuda-sm_80-sm_90a"))
        flags, directory, _ = self.built_for("GPU_ARCH=all")
        self.assertEqual(([flag.split("=")[-1] for flag in flags], directory),
                         (["sm_80", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_120"], "build/cuda-all"))
        self.assertEqual(flags[-1], "arch=compute_120,code=compute_120")

    def test_other_values_are_refused_with_the_list(self):
        for asked in ("sm_86", "sm_80,foo", ""):
            with self.subTest(asked=asked):
                result = self.make(f"GPU_ARCH={asked}")
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"GPU_ARCH={asked}: expected all, or some of sm_80 sm_89 sm_90a sm_100 sm_120",
                              result.stderr)


def write_run(case, name, steps=40, precision="bf16", factor=1.0, weights="w", batch="b{step}", val_every=10, **config):
    """A run directory with made-up records: the loss falls as 5 / step, times `factor`."""
    fp8 = precision == "fp8"
    records = []
    for step in range(1, steps + 1):
        records.append(dict(step=step, loss=5 * factor / step, lr=1e-3, norm=1.0, tokens=100 * step, ms=1.0,
                            tokens_per_s=50.0 if fp8 else 100.0, products=dict(fp8=24 if fp8 else 0, bf16=3, fp32=0),
                            skipped=0, loss_scale=1, batch_hash=batch.format(step=step)))
        if step % val_every == 0:
            records.append(dict(step=step, val_loss=5.5 * factor / step, val_precision="bf16"))
            if fp8:
                tensors = [dict(tensor=f"h.0.qkv.{role}", amax=1.0, scale=448.0 * step, elements=1000, saturated=step,
                                underflowed=2, nonfinite=0) for role in ("x", "w", "dout")]
                records.append(dict(step=step, fp8=tensors))
    write_records(case, name, records)
    info = dict(model=dict(layers=1, channels=32, heads=1, parameters=12345), device="x", weights_hash=weights,
                config={"precision": precision, "fp8-recipe": "delayed", "fp8-layers": "all", "val": None, "train": None,
                        **config})
    case.write(f"{name}/run.json", json.dumps(info))
    return os.path.join(case.directory, name)


def write_records(case, name, records, end=""):
    return case.write(f"{name}/metrics.jsonl", "".join(json.dumps(r) + "\n" for r in records) + end)


class Records(InDirectory):
    """scripts/runs.py"""

    def setUp(self):
        super().setUp()
        self.module = load("runs")

    def test_a_resumed_run_has_each_step_as_it_was_done_last(self):
        def attempt(first, last, mark):
            for step in range(first, last + 1):
                yield dict(step=step, loss=mark, tokens=step)
                if step % 5 == 0:
                    yield dict(step=step, val_loss=mark)
                    yield dict(step=step, fp8=[], mark=mark)

        records = [*attempt(1, 23, 1.0), dict(step=10, val_loss=2.0), *attempt(11, 17, 2.0), *attempt(13, 20, 3.0)]
        write_records(self, "run", records)
        run = self.module.read_run(self.directory + "/run")
        self.assertEqual([(r["step"], r["loss"]) for r in run.steps],
                         [(s, 1.0 if s < 11 else 2.0 if s < 13 else 3.0) for s in range(1, 21)])
        self.assertEqual(run.val["val_loss"], [(5, 1.0), (10, 2.0), (15, 3.0), (20, 3.0)])
        self.assertEqual([(r["step"], r["mark"]) for r in run.fp8], [(5, 1.0), (10, 1.0), (15, 3.0), (20, 3.0)])

    def test_a_shorter_second_attempt_hides_the_first(self):
        write_records(self, "run", [dict(step=s, loss=1.0) for s in (1, 2, 3, 4, 5, 6, 2, 3)])
        self.assertEqual([r["step"] for r in self.module.read_run(self.directory + "/run").steps], [1, 2, 3])

    def test_tokens_of_a_batch_schedule(self):
        """100 tokens a step, and 200 from step 11 on; validations between the records of a damaged file."""
        run = self.module.read_run(os.path.dirname(write_records(self, "run", [
            dict(step=s, loss=5.0, tokens=100 * s + 100 * max(0, s - 10)) for s in (*range(1, 13), *range(15, 21))])))
        self.assertEqual([run.tokens_at(step) for step in (0, 5, 10, 14, 20, 22)], [0, 500, 1000, 1800, 3000, 3400])
        self.assertEqual([run.step_at(tokens) for tokens in (0, 500, 1400, 3000)], [0, 5, 12, 20])
        self.assertIsNone(run.tokens_per_step)
        self.assertEqual(self.module.read_run(write_run(self, "even")).tokens_per_step, 100)

    def test_a_torn_last_line(self):
        path = write_records(self, "run", [dict(step=1, loss=1.0)], end='{"step": 2, "lo')
        self.assertEqual(len(self.module.read_run(path).steps), 1)

    def test_the_name_of_a_run_is_its_directory(self):
        for name in ("first", "tour/run"):  # "run" alone would not say which
            self.assertEqual(self.module.read_run(write_records(self, name, [dict(step=1, loss=1.0)])).name, name)

    def test_what_cannot_be_read(self):
        def reason(path):
            with self.assertRaises(self.module.RunError) as caught:
                self.module.read_run(path)
            return str(caught.exception)

        self.assertIn("holds no metrics.jsonl", reason(self.directory))
        self.assertIn("does not exist", reason(self.directory + "/nowhere"))
        self.assertIn("has no step yet", reason(write_records(self, "empty", [])))
        self.assertIn(":1 is not JSON", reason(write_records(self, "torn", [dict(step=2, loss=1.0)][:0], "{\n{}\n")))
        self.assertIn(":1 is not a record", reason(write_records(self, "other", [[1, 2]])))

    def test_floor_of_a_pattern_after_a_name_with_brackets(self):
        """As the trainer reads it: [1]{2} is a part of the directory's name, and [v] and {u,v} are patterns."""
        directory = os.path.join(self.directory, "data[1]{2}")
        os.mkdir(directory)
        for name, text in (("v.bin", ""), ("v.bin.json", '{"entropy_floor": 0.75}')):
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
        for name in ("v.bin", "v*.bin", "[v].bin", "{u,v}.bin", "{t,{u,v}.b}{.bin,in}"):
            self.assertEqual(self.module.find_floor({"val": [os.path.join(directory, name)]}), 0.75, name)
        self.assertEqual(self.module.files_of("~"), [os.path.expanduser("~")])


class Ends(unittest.TestCase):
    """How scripts end when somebody stops them or stops reading."""

    @staticmethod
    def run_main(body):
        code = f"import sys\nsys.path.insert(0, {ROOT + '/scripts'!r})\nimport runs\ndef main():\n    {body}\nruns.start(main)"
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_stopped(self):
        process = self.run_main("raise KeyboardInterrupt")
        self.assertEqual(process.communicate(), ("", "-c: stopped\n"))
        self.assertEqual(process.returncode, 130)

    def test_a_closed_pipe(self):
        process = self.run_main("sys.stdin.read() or print('x' * 100000)")
        process.stdout.close()
        self.assertEqual(process.stderr.read(), "")
        process.stderr.close()
        self.assertEqual(process.wait(), 141)

    def test_every_script_that_reads_runs(self):
        for name in os.listdir(os.path.join(ROOT, "scripts")):
            with open(os.path.join(ROOT, "scripts", name), encoding="utf-8") if name.endswith(".py") else io.StringIO() as file:
                text = file.read()
            if "from runs import" in text:
                self.assertTrue("\n    start(main)\n" in text or "KeyboardInterrupt" in text, name)


@unittest.skipIf(importlib.util.find_spec("matplotlib") is None, "matplotlib is in .venv alone")
class Picture(InDirectory):
    def run_directory(self, name, steps=20, shard=None):
        run = write_run(self, name, steps, val_every=5, val=[f"a={shard}"] if shard else None)
        records = read_records(run)
        records[2] |= dict(loss=None, nonfinite=dict(loss="nan"))
        write_records(self, name, records, '{"step": 21, "lo')  # killed while writing
        return run

    def setUp(self):
        super().setUp()
        self.module = load("plot_run")

    def assert_picture(self, path):
        with open(path, "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(len(data), 20000)

    def test_one_run(self):
        run = self.run_directory("run")
        self.module.main([run])
        self.assert_picture(os.path.join(run, "loss.png"))

    def test_several_runs(self):
        out = os.path.join(self.directory, "both.png")
        runs = [self.run_directory("a"), self.run_directory("b", 30)]
        self.module.main([*runs, "--x", "tokens", "--floor", "0.1", "--out", out])
        self.assert_picture(out)

    def test_what_is_read(self):
        shard = os.path.join(self.directory, "v.bin")
        self.write("v.bin", "")
        self.write("v.bin.json", '{"entropy_floor": 0.75}')
        run = load("runs").read_run(self.run_directory("run", shard=shard))
        self.assertEqual((len(run.steps), run.val["val_loss"][-1], run.floor), (20, (20, 5.5 / 20), 0.75))
        self.assertIn("0.01 M parameters", run.title)

    def test_smoothing(self):
        smooth = load("runs").smooth
        self.assertEqual(smooth([1, 2, 6], 3), [1, 3, 6])
        self.assertEqual(smooth([1, None, 3], 3), [1, 2, 3])

    def test_comparison(self):
        runs = [write_run(self, "bf16"), write_run(self, "delayed", precision="fp8", factor=1.01),
                write_run(self, "current", steps=30, precision="fp8", factor=0.99)]
        for name, some in (("all.png", runs), ("bf16.png", [runs[0], write_run(self, "b")])):
            out = os.path.join(self.directory, name)
            self.assertEqual(load("compare_runs").main([*some, "-o", out, "--max-gap", "2%"]), 0)
            self.assert_picture(out)
        for some in (runs[:1], runs):
            self.assertEqual(load("compare_runs").main([*some, "-o", out, "--published", "llmc-124M"]), 0)
            self.assert_picture(out)

    def test_steps_to_loss(self):
        runs = [write_run(self, "a"), write_run(self, "b", factor=0.5), write_run(self, "never", factor=9)]
        out = os.path.join(self.directory, "steps.png")
        self.assertEqual(load("steps_to_loss").main([*runs, "--loss", "0.2", "--loss", "0.001", "-o", out]), 0)
        self.assert_picture(out)

    def test_a_file_of_records(self):
        """Pictures go next to it."""
        run = self.run_directory("run")
        for script, picture in ((self.module, "loss.png"), (load("steps_to_loss"), "steps.png")):
            script.main([os.path.join(run, "metrics.jsonl")])
            self.assert_picture(os.path.join(run, picture))

    def test_a_picture_that_cannot_be_written(self):
        runs = [write_run(self, "a"), write_run(self, "b")]
        for name in ("nowhere/a.png", "a.gif4"):
            out = os.path.join(self.directory, name)

            def draw(*_, out=out):
                plot = importlib.import_module("plot_run")
                plot.save(plot.plt.figure(), out)

            for script in ("compare_runs", "steps_to_loss"):
                module = load(script)
                module.draw = draw
                with contextlib.redirect_stderr(io.StringIO()) as err:
                    self.assertEqual(module.main([*runs, "-o", out]), 2)
                self.assertIn(f"{script}: cannot draw to {out}: ", err.getvalue())
            module = load("plot_run")
            module.draw = draw
            with self.assertRaisesRegex(SystemExit, f"^cannot draw to {out}: "):
                module.main([*runs, "--out", out])

    def test_no_run(self):
        with self.assertRaisesRegex(SystemExit, "holds no metrics.jsonl"):
            self.module.main([self.directory])

    def estimate(self, name, zero, fits=True):
        points = [dict(gpus=2**i, tokens_per_s=1e5 * 2**i * 0.95**i, efficiency=0.95**i, compute_ms=40,
                       exposed_ms=2.0 * i, memory_bytes=1e10, fits=fits or i > 3)
                  for i in range(11)]
        self.write(f"{name}/scaling.json", json.dumps(dict(
            predicted=True, model=dict(name="d12", parameters=1), card="H200", precision="fp8", zero=zero, batch=32,
            seq=1024, micro_steps=1, link_bytes_per_s=350e9, nic_bytes_per_s=50e9, node_gpus=8, points=points)))
        return os.path.join(self.directory, name)

    def test_scaling(self):
        module = load("plot_scaling")
        one, two = self.estimate("one", 1), self.estimate("two", 3, fits=False)
        module.main([one])
        self.assert_picture(os.path.join(one, "scaling.png"))
        out = os.path.join(self.directory, "both.png")
        module.main([os.path.join(one, "scaling.json"), two, "--out", out])
        self.assert_picture(out)

    def test_scaling_as_read(self):
        scaling = load("runs").read_scaling(self.estimate("one", 1))
        self.assertEqual(scaling.label, "d12, fp8, --zero 1, 32 x 1024 tokens x 1 micro-step a GPU")
        self.assertEqual([p["gpus"] for p in scaling.points], [2**i for i in range(11)])
        self.assertIn("350 GB/s in nodes of 8 GPUs, a NIC of 50 GB/s", scaling.assumptions)

    def test_no_scaling(self):
        module = load("plot_scaling")
        with self.assertRaisesRegex(SystemExit, "holds no scaling.json"):
            module.main([self.directory])
        for text in ("{", "[]", "{}", '{"points": [{}]}'):
            self.write("bad/scaling.json", text)
            with self.assertRaisesRegex(SystemExit, "is not what --estimate-scaling writes"):
                module.main([os.path.join(self.directory, "bad")])


if __name__ == "__main__":
    unittest.main()
