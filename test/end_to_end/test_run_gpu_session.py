"""The GPU session (dev/gpu/): all its parts on the host device in tiny sizes, and the errors that it must notice."""

import contextlib
import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import unittest
import unittest.mock

import trainer

BUILD = next((path for name in ("cpu-native", "cpu-native-nompi")
              if os.path.exists(os.path.join(path := os.path.join(trainer.ROOT, "build", name), "train_gpt_cpu"))), "")
SESSION = os.path.join(trainer.ROOT, "dev", "gpu")
PROGRAMS = ("train_gpt_cpu", "check_card_cpu", "test_cpu", "probe_cpu", "test_ranks")
sys.path.insert(0, SESSION)

import host_and_gpu  # noqa: E402
import kernel_families  # noqa: E402
import session  # noqa: E402
import several_ranks  # noqa: E402
import tools  # noqa: E402
import training  # noqa: E402


read = trainer.read_json


def run_session(pack, out, *flags):
    command = [sys.executable, os.path.join(SESSION, "session.py"), "--pack", pack, "--out", out, "--dry",
               "--data", os.path.dirname(trainer.corpus().train), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=trainer.ENVIRONMENT, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


class Dry(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [name for name in PROGRAMS if not os.path.exists(os.path.join(BUILD, name))]
        if missing:
            raise unittest.SkipTest(f"{', '.join(missing)} not built: make check_card_cpu test-cpu test-ranks-binary "
                                    "probe-cpu")
        cls.pack, cls.out = trainer.new_path("pack"), trainer.new_path("session")
        subprocess.run([sys.executable, os.path.join(SESSION, "make_references.py"), "--build", BUILD, "--out",
                        os.path.join(cls.pack, "references"), "--dry"], check=True, capture_output=True,
                       env=trainer.ENVIRONMENT)
        for name in PROGRAMS:
            os.symlink(os.path.join(BUILD, name), os.path.join(cls.pack, name))
        cls.text = run_session(cls.pack, cls.out)
        cls.parts = {number: read(path) for number in session.PARTS
                     for path in [next(os.path.join(cls.out, name) for name in sorted(os.listdir(cls.out))
                                       if name.startswith(f"part{number}_"))]}

    def test_every_part_is_complete_and_says_what_it_is(self):
        for number, part in self.parts.items():
            with self.subTest(part=number):
                self.assertTrue(part["complete"], part)
                self.assertEqual(part["part"], number)
                for field in ("date", "command", "card", "driver"):
                    self.assertIn(field, part)
                self.assertFalse(part["measured"])  # the host device's numbers are not a GPU's

    def test_products(self):
        probe = self.parts[1]["items"]["probe"]
        self.assertGreater(probe["counts"]["right"], 20)
        self.assertNotIn("wrong", probe["counts"])
        self.assertEqual(probe["bad"], [])
        self.assertGreater(len(probe["speed"]), 10)
        self.assertGreater(probe["ceilings"]["copy_gbs"], 0)

    def probe(self, *flags):
        return subprocess.run([os.path.join(BUILD, "probe_cpu"), "--shapes", "tiny", *flags], capture_output=True,
                              text=True, env=trainer.ENVIRONMENT, timeout=120, check=False)

    def test_a_case_that_killed_the_probe_is_passed_over(self):
        file = trainer.new_path("probe") + ".json"
        killer = "tiny fc forward bf16 N=48 C=128 OC=256 bias beta=0 - -"
        with open(file + ".running", "w", encoding="utf-8") as marker:
            marker.write(killer + "\n")
        done = self.probe("--out", file, "--filter", "forward bf16 N=48")
        self.assertEqual(done.returncode, 0, done.stderr)
        records = {record["case"]: record for record in read(file)["records"]}
        self.assertEqual(len(records), 8)
        self.assertIsNone(records[killer]["supported"])
        self.assertEqual([key for key, record in records.items() if record["supported"] is None], [killer])
        self.assertFalse(os.path.exists(file + ".running"))

    def test_the_probe_goes_on_in_pieces(self):
        file = trainer.new_path("probe") + ".json"
        for part in ("1/3", "2/3", "3/3"):
            self.assertEqual(self.probe("--out", file, "--filter", "bf16 N=48", "--part", part).returncode, 0)
        self.assertEqual(len(read(file)["records"]), 24)
        stopped = self.probe("--out", file, "--seconds", "0.001")
        self.assertEqual(stopped.returncode, 75, stopped.stdout)
        self.assertEqual(self.probe("--part", "4/3", "--list").returncode, 2)
        self.assertEqual(self.probe("--nonsense", "1").returncode, 2)
        self.assertIn("656 cases", self.probe("--list").stdout)

    def test_tests_were_counted(self):
        self.assertGreater(self.parts[2]["passed"], 5)
        self.assertEqual((self.parts[2]["failed"], self.parts[2]["crashed"]), (0, []))

    def test_host_against_itself(self):
        part = self.parts[3]
        self.assertTrue(part["passed"])
        self.assertEqual(set(part["items"]), {"fp32", "bf16", "delayed", "current", "block"})
        for item in part["items"].values():
            self.assertEqual(item["loss_gap"], 0)
            self.assertTrue(item["repeatable"])
            self.assertEqual(item["gradients"]["projection"]["gap"], 0)

    def test_training_is_compared(self):
        report = self.parts[4]["comparisons"]["1337"]
        self.assertEqual(report["code"], 0, report)
        self.assertIn("gap, last validation", report["text"])
        for run in ("bf16", "delayed"):
            item = self.parts[4]["items"][f"{run} 1337"]
            self.assertEqual(set(item["val_loss_of_weights"]), {"bf16", run})
            for loss in item["val_loss_of_weights"].values():
                self.assertAlmostEqual(loss, float(item["val_loss"]), places=1)
        for run in ("delayed", "control"):
            branch = self.parts[4]["items"][f"{run} from 3"]
            self.assertEqual(list(branch["training_gaps"]), ["4 to 4", "5 to 5", "6 to 6"])
            largest = max(map(abs, (branch["val_gap"], *branch["training_gaps"].values())))
            self.assertTrue(0 < largest < 0.01, (run, largest))
        of_layers = self.parts[4]["items"]["bf16 1337"]["divergence_of_layers"]
        self.assertEqual(list(of_layers), ["all", "none,+qkv"])
        self.assertGreater(of_layers["all"]["kl"], of_layers["none,+qkv"]["kl"])
        errors = self.parts[4]["items"]["bf16 1337"]["gradient_errors"]
        self.assertLess(abs(errors["bf16"]["loss"] / errors["bf16"]["loss_in_fp32"] - 1), 1e-3)
        # BF16 has a relative rounding error of at most 2^-9, E4M3 of 2^-4, E5M2 of 2^-3.
        angles = [1 - errors[kind]["cosine"] for kind in ("bf16", "grad-e4m3", "delayed")]
        self.assertEqual(angles, sorted(angles))
        self.assertLess(angles[-1], 0.01)

    def test_speed(self):
        items = self.parts[5]["items"]
        self.assertEqual(set(items), {f"124M {name}" for name in ("bf16, a minute", "bf16", "bf16 portable", "delayed",
                                                                  "delayed portable")})
        for item in items.values():
            self.assertGreater(item["tokens_per_s"], 0)
        published, = self.parts[5]["against_published"]
        self.assertEqual((published["model"], published["tokens_per_s"]), ("124M", items["124M bf16, a minute"]["tokens_per_s"]))
        self.assertAlmostEqual(published["ratio"], published["tokens_per_s"] / 468000, places=3)

    def test_a_minute_has_the_mean_of_steps_after_warm_up(self):
        ms = [90.0] * 4 + [100.0, 100.0, 400.0]
        self.assertEqual(training.long_rate(2, ms, 300, warm_up_ms=360)["tokens_per_s"], 1500)
        self.assertEqual(training.rate(2, ms, 300)["tokens_per_s"], 3000)

    def test_the_card_is_watched(self):
        tool = os.path.join(trainer.new_path("tools"), "nvidia-smi")
        os.makedirs(os.path.dirname(tool))
        with open(tool, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nfor i in 0 1 2 3 4; do echo \"17${i}0, 69$i.5, [N/A]\"; done; echo error; exec sleep 60\n")
        os.chmod(tool, 0o755)
        with unittest.mock.patch.dict(os.environ, PATH=os.path.dirname(tool) + os.pathsep + os.environ["PATH"]):
            with tools.GpuWatch() as card:
                while os.fstat(card.samples.fileno()).st_size < 5 * 20:
                    time.sleep(0.01)
        self.assertEqual(card.seen, {"clock_mhz": {"samples": 5, "median": 1720, "p5": 1700, "p95": 1740},
                                     "power_w": {"samples": 5, "median": 692.5, "p5": 690.5, "p95": 694.5}})

    def test_multiprocessors_held(self):
        held = self.parts[6]["items"]["124M delayed, multiprocessors held"]["held"]
        self.assertEqual(list(held), ["8", "16", "24"])
        for row in (row for rows in held.values() for row in rows["families"].values()):
            self.assertEqual((row["launches"], row["between"]), (4, 1))
            self.assertEqual(row["ratio"], row["predicted"])
        self.assertEqual([row["predicted"] for row in held["24"]["families"].values()], [2, 1.222])

    def test_ranks_agree_to_the_bit(self):
        part = self.parts[7]
        self.assertTrue(part["passed"], part)
        self.assertEqual(set(part["items"]), {"collectives", "training", *several_ranks.SHARDED})
        self.assertGreaterEqual(part["items"]["training"]["tests"]["passed"], 1)
        for name in several_ranks.SHARDED:
            self.assertEqual(part["items"][name]["different"], {str(stage): [] for stage in range(4)})
        # And differences are named.
        run = os.path.join(self.out, "ranks")
        self.assertEqual(several_ranks.same_run(os.path.join(run, "bf16_one"), os.path.join(run, "fp32_one")),
                         ["losses", "norms", "weights"])
        two = [os.path.join(run, f"{name}_one") for name in ("delayed", "current")]
        self.assertIn("scales", several_ranks.same_run(*two))

    def test_a_second_session_measures_nothing_again(self):
        before = {name: os.path.getmtime(os.path.join(self.out, "logs", name))
                  for name in os.listdir(os.path.join(self.out, "logs"))}
        run_session(self.pack, self.out)
        after = {name: os.path.getmtime(os.path.join(self.out, "logs", name))
                 for name in os.listdir(os.path.join(self.out, "logs"))}
        self.assertEqual(before, after)

    def test_the_archive_goes_on_elsewhere(self):
        archive = os.path.join(self.out, "results.tar.gz")
        with tarfile.open(archive) as tar:
            names = tar.getnames()
        self.assertIn("training/bf16_1337/metrics.jsonl", names)
        self.assertFalse([name for name in names if name.endswith((".safetensors", ".bin"))])
        shutil.copy(archive, os.path.join(self.pack, "results.tar.gz"))
        self.addCleanup(os.remove, os.path.join(self.pack, "results.tar.gz"))
        out = trainer.new_path("elsewhere")
        run_session(self.pack, out, "--parts", "3,5")
        self.assertEqual(read(os.path.join(out, "part5_speed.json"))["items"], self.parts[5]["items"])

    def test_packed_programs(self):
        pack, out = trainer.new_path("pack"), trainer.new_path("session")
        os.makedirs(pack)
        with tarfile.open(os.path.join(pack, "programs.tar.xz"), "w:xz") as tar:
            for name in ("train_gpt_cpu", "check_card_cpu"):
                tar.add(os.path.join(BUILD, name), "./" + name)
        run_session(pack, out, "--parts", "0")
        items = read(os.path.join(out, "part0_machine.json"))["items"]
        self.assertTrue(items["programs"]["done"])
        self.assertEqual(items["check_card d12 fp8"]["code"], 0)
        self.assertRegex(items["check_card d12 fp8"]["output"], r"all +\d+ of +\d+ right")
        with tarfile.open(os.path.join(out, "results.tar.gz")) as tar:
            self.assertFalse([name for name in tar.getnames() if os.path.basename(name).startswith("train_gpt")])

    def test_one_check_that_hangs_takes_the_time_of_one(self):
        hangs = {"done": False, "code": tools.KILLED, "wrong": [], "output": "bf16 ..."}
        here = tools.Session(self.pack, self.pack, trainer.new_path("session"), dry=True, minutes=1)
        with unittest.mock.patch.object(session, "check_card", return_value=hangs) as check_card:
            session.part0(here)
        self.assertEqual(check_card.call_count, 1)
        self.assertFalse(read(here.path("part0_machine.json"))["complete"])

    def test_no_time_is_said(self):
        out = trainer.new_path("hurry")
        run_session(self.pack, out, "--parts", "4", "--minutes", "0.01")
        part = read(os.path.join(out, "part4_training.json"))
        self.assertFalse(part["complete"])
        self.assertTrue(part["skipped"])

    def test_another_device_than_the_hosts_is_seen(self):
        """A positive control of part 3: the reference differs from the results of this program."""
        pack = trainer.new_path("pack")
        shutil.copytree(self.pack, pack, symlinks=True)
        metrics = os.path.join(pack, "references", "bf16", "metrics.jsonl")
        with open(metrics, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        [r for r in records if "loss" in r][-1]["loss"] *= 1.006
        with open(metrics, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        gradients = os.path.join(pack, "references", "fp32", "gradients.json")
        changed = read(gradients)
        changed["gradients"]["h.0.fc.bias"]["norm"] *= 1.5
        trainer.write_json(gradients, changed)
        out = trainer.new_path("session")
        run_session(pack, out, "--parts", "3")
        part = read(os.path.join(out, "part3_host_and_gpu.json"))
        self.assertFalse(part["passed"])
        self.assertFalse(part["items"]["bf16"]["passed"])
        self.assertAlmostEqual(part["items"]["bf16"]["loss_gap"], 0.006, places=4)
        self.assertEqual(part["items"]["fp32"]["gradients"]["norm"]["tensor"], "h.0.fc.bias")

    def test_results_of_another_card_are_not_continued(self):
        out = trainer.new_path("session")
        os.makedirs(out)
        part = copy.deepcopy(self.parts[5])
        part["card"] = "another"
        tools.write_json(os.path.join(out, "part5_speed.json"), part)
        with self.assertRaises(AssertionError) as caught:
            run_session(self.pack, out, "--parts", "5")
        self.assertIn("another", str(caught.exception))


@unittest.skipUnless(all(os.path.exists(os.path.join(BUILD, name)) for name in PROGRAMS[:2]), "not built")
class SeveralGpus(unittest.TestCase):
    def run_it(self, out):
        with contextlib.redirect_stdout(io.StringIO()) as text, unittest.mock.patch.dict(os.environ, trainer.ENVIRONMENT):
            code = several_ranks.main(["--dry", "--programs", BUILD, "--out", out])
        return code, text.getvalue()

    def test_on_the_cpu(self):
        out = trainer.new_path("several")
        code, text = self.run_it(out)
        self.assertEqual(code, 0, text)
        for what in ("check_card", "delayed: bits of one rank", "a rank is killed"):
            self.assertRegex(text, rf"{what} +right\n")
        self.assertRegex(text, r"124M delayed +2 +3 +[\d,]+ +[\d.]+ %\n")
        # Errors are named, and finished items are not run again.
        path = os.path.join(out, "part9_several_gpus.json")
        part = read(path)
        part["items"]["delayed: bits of one rank"]["passed"] = False
        trainer.write_json(path, part)
        code, text = self.run_it(out)
        self.assertEqual(code, 1)
        self.assertRegex(text, r"delayed: bits of one rank +WRONG\n")
        self.assertTrue(text.rstrip().endswith("WRONG: delayed: bits of one rank"), text)

    def test_one_gpu_is_refused(self):
        with contextlib.redirect_stderr(io.StringIO()) as text, self.assertRaises(SystemExit):
            several_ranks.main(["--ranks", "1", "--out", trainer.new_path("several")])
        self.assertIn("several GPUs are needed", text.getvalue())


class Pieces(unittest.TestCase):
    def test_gaps(self):
        self.assertEqual(host_and_gpu.relative_gap(None, 1.0), float("inf"))
        self.assertAlmostEqual(host_and_gpu.relative_gap(1.01, 1.0), 0.01)
        theirs = {"gradients": {"a": {"norm": 2.0, "projection": 1.0}, "b": {"norm": 1.0, "projection": 0.0}}}
        ours = copy.deepcopy(theirs)
        ours["gradients"]["a"]["projection"] = -1.0
        ours["gradients"]["b"]["norm"] = None
        worst = host_and_gpu.compare_gradients(ours, theirs)
        self.assertEqual(worst["norm"], {"gap": "not finite", "tensor": "b"})
        self.assertEqual(worst["projection"], {"gap": 1.0, "tensor": "a"})

    def test_kernels_of_a_step(self):
        short = [{"name": "attention_forward_kernel", "count": 4, "ns": 4000}, {"name": "once", "count": 1, "ns": 9000}]
        longer = [{"name": "attention_forward_kernel", "count": 10, "ns": 10000},
                  {"name": "once", "count": 1, "ns": 9000}, {"name": "nvjet_tst_128x256", "count": 6, "ns": 18000}]
        kernels = kernel_families.per_step(longer, short, 6)
        self.assertEqual([(k["name"], k["launches"], k["us"]) for k in kernels],
                         [("nvjet_tst_128x256", 1, 3.0), ("attention_forward_kernel", 1, 1.0)])
        families = kernel_families.by_family(kernels)
        shares = {name: row["share"] for name, row in families.items()}
        self.assertEqual(shares, {"matrix products": 0.75, "attention": 0.25})
        model = kernel_families.against_model({**families, "communication": {"us": 500.0}},
                                             {"matmuls": 2, "attention": 1, "elementwise": 3, "optimizer": 0})
        self.assertEqual([(part, row["measured_ms"], row["predicted_ms"]) for part, row in model.items()],
                         [("matmuls", 0.0, 2), ("attention", 0.0, 1), ("elementwise", 0.0, 3), ("optimizer", 0.0, 0),
                          ("other", 0.5, None)])
        self.assertLessEqual(set(kernel_families.MODELLED), {name for name, _ in kernel_families.FAMILIES})

    def test_launches_while_multiprocessors_are_held(self):
        """Launches are compared with the same ones of a run without holds, whatever their order in the records."""
        def record(name, *launches):
            return {"name": name, "count": len(launches), "launches": [list(launch) for launch in launches]}
        free = [record("nvjet", (0, 10), (20, 100), (200, 10), (220, 100)), record("matmul_gelu_kernel", (300, 10)),
                record("once", (400, 10))]
        hold = record("3hold_multiprocessors_kernel", (15, 400))
        held = [hold, record("nvjet", (220, 190), (0, 10), (410, 110), (20, 200)), record("matmul_gelu_kernel", (300, 12)),
                record("once", (420, 10), (440, 10))]
        rows = kernel_families.slowdowns(free, held, 24)
        self.assertEqual(rows["holds"], 1)
        self.assertEqual(rows["not_paired"], ["once"])
        # nvjet's second launch took 200 instead of 100 in the hold, the third 190 instead of 10; the last outlasts it.
        products = rows["families"]["matrix products"]
        self.assertEqual((products["launches"], products["ratio"], products["between"]), (2, round(390 / 110, 3), 1))
        self.assertEqual((rows["families"]["matmuls with GELU"]["ratio"], products["predicted"]), (1.2, 2))
        self.assertEqual(rows["families"]["matmuls with GELU"]["predicted"], round(132 / 108, 3))
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertTrue(kernel_families.while_held(lambda n: (held if n else free, ""))["done"])
            # Without a hold during the run, nothing was measured.
            self.assertFalse(kernel_families.while_held(lambda n: (held[1:] if n else free, ""))["done"])
            nothing = kernel_families.while_held(lambda n: ([], "no libcupti"))
        self.assertEqual(nothing, {"done": False, "why": "no libcupti"})

    def test_fp8_layers_of_pytorch(self):
        """E4M3 has a relative rounding error of at most 2^-4, E5M2 of 2^-3."""
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        from torch_fp8 import Fp8Linear
        torch.manual_seed(1)
        layer = torch.nn.Linear(64, 96)
        of_fp8 = Fp8Linear(64, 96)
        of_fp8.load_state_dict(layer.state_dict())
        values, gradient, found = torch.randn(4, 8, 64), torch.randn(4, 8, 96), []
        for linear in (layer, of_fp8):
            x = values.clone().requires_grad_(True)
            out = linear(x)
            (out.float() * gradient).sum().backward()
            found.append((out, x.grad, linear.weight.grad, linear.bias.grad))
        for plain, fp8, bound in zip(*found, (2**-4, 2**-3, 2**-3, 2**-8)):
            self.assertLess(((fp8 - plain).norm() / plain.norm()).item(), bound)

    def test_attention_rates(self):
        kernels = [{"name": "hopper_attention_forward_kernel", "us": 100.0}, {"name": "attention_delta_kernel", "us": 50.0},
                   {"name": "attention_key_gradient_kernel", "us": 450.0}, {"name": "adamw_kernel", "us": 9.0}]
        # Half of Q K^T for 2 layers of 4 sequences and 1000 channels is 2 x 4 x 1024^2 x 1000 flops.
        self.assertEqual(kernel_families.attention_rates(kernels, 2, 1000, 4, 1024), {"forward": 167.8, "backward": 83.9})

    def test_every_kernel_of_the_project_has_a_family(self):
        names = set()
        for folder, _, files in os.walk(os.path.join(trainer.ROOT, "llmc")):
            for name in files:
                if name.endswith((".cu", ".cuh")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = file.read()
                    names.update(re.findall(r"__global__[^;{]*?(\w+_kernel)\(", text))
        self.assertGreater(len(names), 20)
        of_none = {name for name in names if kernel_families.family_of(name) == "other"}
        self.assertEqual(of_none - {"probe_kernel"}, set())

    def test_ncu(self):
        text = ('==PROF== Profiling\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
                '"0","void a(int)","gpu__time_duration.sum","nsecond","1,500"\n'
                '"1","void a(int)","gpu__time_duration.sum","usecond","2.5"\n')
        self.assertEqual(kernel_families.kernels_of_ncu(text), [{"name": "void a(int)", "count": 2, "ns": 4000.0}])

    def test_a_wrong_product_is_named(self):
        record = {"case": "c", "product": "forward", "types": "e4m3", "epilogue": "none", "beta": 0, "mode": "fast",
                  "scaling": "tensor", "N": 1000, "used": True, "status": "CUBLAS_STATUS_SUCCESS", "supported": True,
                  "right": True, "repeatable": True, "us": 1.0, "tflops": 1.0, "error": 1e-3, "same_as_lt": True}
        records = [record, {**record, "case": "wrong", "right": False, "same_as_lt": False},
                   {**record, "case": "changes", "repeatable": False},
                   {**record, "case": "refused", "supported": False, "status": "CUBLAS_STATUS_NOT_SUPPORTED"},
                   {**record, "case": "lost", "supported": None}]
        summary = session.summary_of_probe({"records": records, "cublaslt": "13.1.0"})
        self.assertEqual([r["case"] for r in summary["bad"]], ["wrong", "changes", "lost"])
        self.assertEqual(summary["used_not_supported"], ["refused", "lost"])
        self.assertEqual(summary["not_same_as_cublaslt"], ["wrong"])
        self.assertEqual(summary["counts"], {"right": 2, "wrong": 1, "not supported": 1, "failed": 1})

    def test_a_program_that_does_not_end_is_killed(self):
        done = tools.run([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"], 1)
        self.assertEqual(done.code, -1)
        self.assertIn("here", done.output)
        self.assertLess(done.seconds, 10)

    def test_a_part_says_how_it_ended(self):
        for done, minutes, how in ((True, 9, "complete"), (False, 9, "incomplete"), (True, 0, "no time for: x")):
            out = trainer.new_path("part")
            part = tools.Part(tools.Session(out, out, out, True, minutes), 1, "a part")
            with contextlib.redirect_stdout(io.StringIO()) as text:
                part.item("x", lambda done=done: {"done": done}, seconds=1)
                self.assertEqual(part.finish(), how == "complete")
            self.assertIn(f"  {how}; ", text.getvalue())

    def test_libraries_are_found_by_name(self):
        place = trainer.new_path("lib")
        os.makedirs(place)
        path = os.path.join(place, "libcublasLt.so.13.1.0")
        open(path, "w", encoding="utf-8").close()
        self.assertEqual(tools.find_library("libcublasLt.so.13", ["/nowhere", place]), path)
        self.assertIsNone(tools.find_library("libnccl.so", [place]))

    def test_packed_shards_are_unpacked(self):
        import lzma
        data, out = trainer.new_path("data"), trainer.new_path("out")
        os.makedirs(data)
        with open(trainer.corpus().val, "rb") as file, lzma.open(os.path.join(data, "x_val.bin.xz"), "wb") as packed:
            packed.write(file.read())
        packed_session = tools.Session(out, data, out, True, 1)
        with open(packed_session.shard("val"), "rb") as plain, open(trainer.corpus().val, "rb") as original:
            self.assertEqual(plain.read(), original.read())
        self.assertIsNone(packed_session.shard("train"))

    def test_bad_flags(self):
        for flags in (["--parts", "9"], ["--parts", "x"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                session.parse(["--pack", "p", *flags])


if __name__ == "__main__":
    unittest.main()
