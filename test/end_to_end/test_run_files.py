"""The output and files of a run, how it ends, and the uses of its files."""

import json
import math
import os
import platform
import pty
import re
import resource
import subprocess
import unittest

from test_ranks import free_port
from trainer import (ENVIRONMENT, FAILURE, FLAGS, PROGRAM, RESOURCES, ROOT, Case, FinishedRun, corpus, new_path,
                     read_json, read_records, run, tiny_flags, workspace)


class Files(Case):
    @classmethod
    def setUpClass(cls):
        cls.done = FinishedRun("--val", corpus().val, "--val-every", "3", "--val-batches", "2", "--max-steps", "7",
                               "--lr", "2e-3", "--warmup", "4", "--total-batch", "512")

    def test_training_records(self):
        names = ["step", "loss", "lr", "norm", "tokens", "ms", "tokens_per_s", "products", "skipped", "loss_scale",
                 "batch_hash"]
        times = ["time", "elapsed"]
        self.assertEqual([r["step"] for r in self.done.steps], list(range(1, 8)))
        for record in self.done.steps:
            self.assertEqual(list(record), names + ["fresh_weights"] * (record["step"] == 1) + times)
            self.assertEqual(record["tokens"], 512 * record["step"])
            self.assertEqual((record["skipped"], record["loss_scale"]), (0, 1))
            for name in ("loss", "norm", "ms", "tokens_per_s"):
                self.assertGreater(record[name], 0, name)
            self.assertAlmostEqual(record["tokens_per_s"] * record["ms"] / 1000, 512, delta=0.01)
        # Warm-up over 4 steps, then a cosine.
        rates = [r["lr"] for r in self.done.steps]
        self.assertAlmostEqual(rates[0], 2e-3 / 4, delta=1e-9)
        self.assertAlmostEqual(rates[3], 2e-3, delta=1e-9)
        self.assertEqual(rates[3:], sorted(rates[3:], reverse=True))

    def test_products_of_a_micro_step(self):
        def products(*flags):
            return FinishedRun("--max-steps", "2", *flags).steps[-1]["products"]

        # 4 layers a block with 3 products each, and the head's.
        for precision, other in (("bf16", "fp32"), ("fp32", "bf16")):
            counts = products("--precision", precision, "--recompute", "none")
            self.assertEqual((counts["fp8"], counts[other]), (0, 0))
            head = counts[precision] - 2 * 12
            self.assertTrue(head > 0 and head % 3 == 0, counts)
        plain = products("--recompute", "none")["bf16"]
        self.assertEqual(products("--total-batch", "1024", "--recompute", "none")["bf16"], plain, "per micro-step")
        again = products("--recompute", "block")["bf16"] - plain
        self.assertTrue(2 * 3 <= again <= 2 * 4, "what backward computes again counts too")

    def test_validation_records(self):
        self.assertEqual(list(self.done.validations), [0, 3, 6, 7])
        for record in self.done.records:
            if "val_loss" in record:
                self.assertEqual(list(record), ["step", "val_loss", "val_perplexity", "val_bpb", "val_hash",
                                                "val_precision", "time", "elapsed"])

    @unittest.skipUnless(platform.machine() == "x86_64", "names of x86 processors")
    def test_the_processor_that_openblas_has_chosen(self):
        if "DYNAMIC_ARCH" not in run("--version").out:
            self.skipTest("this OpenBLAS knows one processor")
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cores = ["Nehalem", "Haswell"] if " avx2 " in file.read() else ["Nehalem"]
        for core in cores:
            done = FinishedRun("--max-steps", "1", env={"OPENBLAS_CORETYPE": core})
            self.assertEqual(done.info["versions"]["openblas_core"], core)

    def output_in_a_terminal(self, *flags, **variables):
        """The output of a run in a terminal."""
        ours = re.compile(r"NO_COLOR$|TERM$|OMPI_|PMI|SLURM_|RANK$|WORLD_SIZE$")
        env = {k: v for k, v in ENVIRONMENT.items() if not ours.match(k)}
        terminal, inside = pty.openpty()
        with subprocess.Popen([PROGRAM, *tiny_flags("--max-steps", "2", "--val", corpus().val, *flags)], stdout=inside,
                              stderr=inside, stdin=subprocess.DEVNULL, cwd=workspace(),
                              env={**env, "TERM": "xterm", **variables}) as process:
            os.close(inside)
            text = b""
            try:
                while part := os.read(terminal, 4096):
                    text += part
            except OSError:  # its other end was closed
                pass
            os.close(terminal)
        self.assertEqual(process.returncode, 0, text)
        return text.decode().replace("\r\n", "\n")  # what the terminal makes of ends of lines

    def test_the_search_for_what_fits_is_seen(self):
        text = self.output_in_a_terminal("--batch", "32", "--fit", LLMC_MEMORY_MB="8")
        self.assertRegex(text, r"what would fit: planning --world \d+ -z \d -b \d+\x1b\[\?7h\r\x1b\[K[^\x1b]*note: --fit: ")

    def test_status_lines_are_for_a_persons_terminal(self):
        self.assertIn("\033[", self.output_in_a_terminal())
        self.assertNotIn("\033", self.done.result.out, "no status lines in a pipe")
        for variables in ({"OMPI_COMM_WORLD_RANK": "0"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
            with self.subTest(**variables):
                text = self.output_in_a_terminal(**variables)
                self.assertRegex(text, r"(?m)^step     2/2 \| loss ")
                self.assertNotIn("\033", text)
                self.assertNotIn("\r", text)

    def test_a_terminal_shows_the_steps_between_two_lines_in_one(self):
        text = self.output_in_a_terminal("--max-steps", "9", "--log-every", "8")
        clear = "\r\033[K"
        self.assertIn(clear + "\033[?7lvalidation: batch 1 of ", text)
        self.assertRegex(text, r"\r\033\[K\033\[\?7lstep +[2-7]/9")
        left = [re.sub(r"\033\[[\d;?]*[a-zA-Z]", "", line.rpartition(clear)[2]) for line in text.split("\n")]
        self.assertEqual([" ".join(line.split()[:2]) for line in left if re.match("(step|val) ", line)],
                         ["val 0", "step 1/9", "step 8/9", "step 9/9", "val 9"])
        self.assertFalse([line for line in left if line.startswith("validation:")])

    def test_val_batches_all(self):
        everything, beyond_32_bits = (FinishedRun("--val", corpus().val, "--val-batches", count, "--max-steps", "1")
                                      for count in (-1, 2**32))
        self.assertEqual(beyond_32_bits.validations, everything.validations)
        self.assertNotEqual(everything.validations[0], self.done.validations[0])

    def test_without_val_every_it_costs_little(self):
        # 2 batches of a third of a micro-step are 4.8 % of 7 steps of 2 micro-steps, and 5.6 % of 6.
        done = FinishedRun("--val", corpus().val, "--val-batches", "2", "--total-batch", "512", "--max-steps", "8")
        self.assertEqual(done.info["config"]["val-every"], 7)
        self.assertEqual(list(done.validations), [0, 7, 8])

    def test_zero_is_never(self):
        for flags in (["--val-batches", "0"], ["--val-every", "0"], ["--sample-tokens", "0"], ["--sample-every", "0"]):
            with self.subTest(flags=flags):
                quiet = FinishedRun("--max-steps", "2", "--val", corpus().val, "--val-every", "1", "--sample-every", "1",
                                    "--sample-tokens", "2", *flags)
                self.assertNotIn("nan", quiet.result.out)
                self.assertEqual(sorted(quiet.validations), [] if "--val" in flags[0] else [0, 1, 2])
                self.assertEqual([s for s, _ in quiet.result.samples], [] if "--sample" in flags[0] else [1, 2])


class Weights(Case):
    @classmethod
    def setUpClass(cls):
        cls.done = FinishedRun("--val", corpus().val, "--val-batches", "3", "--max-steps", "12", "--lr", "2e-3")
        cls.model = cls.done.path("model.safetensors")

    def test_training_goes_on_from_them(self):
        last = self.done.validations[12]
        for precision in ("bf16", "fp32"):
            again = FinishedRun("--val", corpus().val, "--val-batches", "3", "--max-steps", "12", "--lr", "1e-3",
                                "--init-from", self.model, "--seed", "99", "--precision", precision)
            if precision == "bf16":
                self.assertEqual(again.validations[0], last, "the same weights, the same bits")
            self.assertLess(abs(again.validations[0] - last), 0.01)
            self.assertLess(again.validations[12], last)
        self.assertLess(last, 4.5, "or else it would not show that the weights were used")


class Configuration(Case):
    def test_a_run_from_run_json_is_the_same_run(self):
        first = FinishedRun("--lr", "1.7e-3", "--seed", "5", "--max-steps", "4")
        out = new_path()
        self.succeeds(run("--config", first.path("run.json"), "--out", out))
        self.assertEqual([r["loss"] for r in read_records(out) if "loss" in r], first.losses)
        printed = self.succeeds(run("--config", first.path("run.json"), "--print-config"))
        self.assertEqual(json.loads(printed.out)["lr"], 1.7e-3)


class Fingerprints(Case):
    """The fingerprint that decides if two runs may be compared."""

    @staticmethod
    def of(*flags):
        done = FinishedRun("--max-steps", "4", "--total-batch", "512", *flags)
        return done.info["weights_hash"], [r["batch_hash"] for r in done.steps]

    def test_they_depend_on_nothing_but_weights_and_batches(self):
        weights, batches = self.of()
        self.assertEqual(len(set(batches)), 4)
        self.assertNotEqual(self.of("--seed", "2")[0], weights)
        for flags in (["--precision", "fp32"], ["--precision", "fp8", "--recompute", "block"], ["--batch", "2"],
                      ["--batch", "8"], ["--lr", "1e-2"], ["--max-steps", "4", "--val", corpus().val, "--val-every", "1"]):
            with self.subTest(flags=flags):
                self.assertEqual(self.of(*flags), (weights, batches))


class Planning(Case):
    def plan(self, *flags):
        result = run(*flags, "--dry-run")
        self.assertEqual(result.code, 5 if "DOES NOT FIT" in result.out else 0, result.err)
        return result.out

    def test_named_models_and_cards_without_data(self):
        for model, parameters, card in (("gpt2", "124,439,808", "h100"), ("gpt2-xl", "1,557,611,200", "rtx4090"),
                                        ("gpt2", "124,439,808", "a100")):
            with self.subTest(model=model, card=card):
                text = self.plan("--model", model, "--gpu", card)
                self.assertIn(parameters, text)
                self.assertRegex(text, r"(fits|DOES NOT FIT) into")
                self.assertRegex(text, r"bf16 +[\d,]+ tok/s, MFU \d+\.\d% of the BF16 peak")
                if card == "a100":
                    self.assertIn("has no FP8: use --precision bf16", text)
                else:
                    self.assertRegex(text, r"fp8 +[\d,]+ tok/s, MFU \d+\.\d% of the FP8 peak")

    def test_the_learning_rate(self):
        text = self.plan("--model", "d12", "--gpu", "h100", "--max-steps", "1000", "--schedule", "wsd", "--lr", "4e-4")
        self.assertIn("Learning rate: 0.0004 in step 1, at most 0.0004, 1e-06 in the last step\n    0.0004 |####", text)
        self.assertNotIn("Learning rate", self.plan("--model", "d12", "--gpu", "h100"))  # of unknown length

    def test_what_would_fit(self):
        """Each change is a run that fits, takes what it says and as long as it says. The fastest come first, and runs on
        more ranks last. --fit makes the first change on the same ranks."""
        length = ["--max-steps", "300"]
        for flags, kinds in ((["--model", "gpt2-xl", "--batch", "64", "-r", "gelu"], {"-r", "-b", "--world"}),
                             (["--model", "gpt2-xl", "--batch", "256"], {"-b", "--world"}),
                             (["--model", "gpt3-6.7b", "--batch", "4"], {"--world"}),
                             (["--model", "gpt3-6.7b", "--batch", "4", "--world", "2", "-r", "gelu"],
                              {"-r", "-b", "-z", "--world"}),
                             (["--model", "llama3-8b", "--gpu", "gb10"], {"--adam-moments", "--world"})):
            flags = ["--gpu", "h100", *flags, *length]
            plan = json.loads(self.plan_json(5, *flags))
            self.assertFalse(plan["fits"])
            self.assertEqual(plan["tokens"], 300 * plan["tokens_per_step"])
            self.assertAlmostEqual(plan["hours"], 300 * plan["step_ms"] / 3.6e6, delta=1e-9)
            changes = plan["would_fit"]
            self.assertLessEqual(kinds, {flag for change in changes for flag in change["flags"].split()})
            # A level that was asked for does not become lower, and -r auto follows from the other flags.
            levels = {level for change in changes for level in re.findall(r"-r (\w+)", change["flags"])}
            self.assertLessEqual(levels, {"norm", "block"} if "gelu" in flags else set())
            here = [change for change in changes if change["ranks"] == plan["ranks"]]
            self.assertEqual(changes[:len(here)], here)
            for faster, slower in zip(here, here[1:]):
                self.assertGreater(1.01 * faster["tokens_per_s"], slower["tokens_per_s"])
            for change in changes:
                with self.subTest(flags=flags, change=change):
                    better = json.loads(self.plan_json(0, *flags, *change["flags"].split()))
                    self.assertTrue(better["fits"])
                    self.assertEqual(better["memory"]["total"], change["total"])
                    for name in ("step_ms", "tokens_per_s", "hours"):
                        self.assertAlmostEqual(better[name], change[name], delta=1e-9 * better[name])
            if not here:
                self.assertEqual(json.loads(self.plan_json(5, *flags, "--fit"))["would_fit"], changes)
                continue
            fitted = json.loads(self.plan_json(0, *flags, "--fit"))
            self.assertEqual(fitted["memory"]["total"], here[0]["total"])
            self.assertEqual(fitted["tokens_per_step"], plan["tokens_per_step"])

    def test_what_would_fit_is_printed(self):
        flags = ["--model", "gpt3-6.7b", "--batch", "4", "--gpu", "h100", "--max-steps", "300"]
        changes, text = json.loads(self.plan_json(5, *flags))["would_fit"], self.plan(*flags)
        self.assertEqual([change["flags"] for change in changes if change["flags"] not in text], [])
        self.assertRegex(text, r"Run: 300 steps, [\d.,]+ .*tokens\n +predicted +[\d:]+ +[\d.]+ GPU-hours on \d GPU")
        self.assertIn(f"note: --fit: {changes[0]['flags']}: a rank needs ", self.plan(*flags, "--fit"))

    def test_fit_changes_nothing_that_fits(self):
        flags = ["-e", "d12", "-b", "8", "--gpu", "h100"]
        self.assertEqual(self.plan(*flags, "--fit"), self.plan(*flags))

    def test_fit_searches_many_batches_quickly(self):
        """27720 has 96 divisors and the prime 27743 has two. Halving the list plans seven of them, trying each all."""
        def seconds(batch):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            self.assertIn("note: --fit: ", self.plan("-e", "d12", "-t", "256", "-b", batch, "--gpu", "rtx4090", "--fit"))
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        self.assertLess(seconds("27720"), 8 * seconds("27743"))

    def plan_json(self, code, *flags, **how):
        result = self.succeeds(run(*flags, "--dry-run", "--json", **how), code)
        return result.out

    def test_a_batch_of_one_cannot_be_smaller(self):
        alone = self.plan("-e", "llama3-8b", "-t", "8192", "-b", "1", "--world", "64", "--gpu", "h100")
        self.assertIn("note: -r auto chose block, the least recomputation that fits\n", alone)

    def test_what_fits_on_one_card(self):
        """1558M on an RTX 4090, if --fit may choose; and a card that shares the host's memory holds less."""
        self.assertIn("fits into RTX 4090", self.plan("-e", "gpt2-xl", "-b", "16", "--gpu", "rtx4090", "--fit"))
        smallest = ["-e", "gpt2-xl", "-b", "1", "--adam-moments", "bf16", "-r", "block", "--gpu", "rtx4090"]
        self.assertIn("fits into RTX 4090", self.plan(*smallest, "--precision", "fp8"))
        memory = json.loads(self.plan_json(0, "-e", "d12", "--gpu", "gb10"))["memory"]
        self.assertEqual(memory["total"], sum(memory[name] for name in memory if name != "total"))
        self.assertGreater(memory["host"], 0)
        apart = json.loads(self.plan_json(0, "-e", "d12", "--gpu", "gh200"))["memory"]
        self.assertEqual(memory["total"] - memory["host"], apart["total"])
        here = json.loads(self.plan_json(0, "-e", "d12", "--gpu", "gb10", "--checkpoint-local", "/tmp"))["memory"]
        self.assertEqual((here["host"], here["total"]), (0, apart["total"]))

    def test_a_plan_does_not_depend_on_the_cpu(self):
        """A CPU needs memory for widened operands, and most for those without BF16. A GPU needs 32 MiB for matmuls."""
        flags = ["-e", "d2", "-b", "8", "-d", "32768"]
        plans = {self.plan_json(0, *flags, *card, env={"ONEDNN_MAX_CPU_ISA": isa})
                 for isa in ("DEFAULT", "AVX2") for card in (["--gpu", "h200"], [])}
        self.assertEqual(len(plans), 1)
        emulated = json.loads(self.plan_json(0, *flags, "--fp8-recipe", "mxfp8", "--gpu", "h200"))["memory"]
        self.assertGreater(emulated["workspace"], json.loads(*plans)["memory"]["workspace"] + 2 * 8 * 1024 * 512)

    def test_example_configurations(self):
        directory = os.path.join(ROOT, "scripts", "configs")
        for name in sorted(os.listdir(directory)):
            with self.subTest(name=name):
                self.assertIn("fits into H100", self.plan("--config", os.path.join(directory, name), "--world", "8",
                                                          "--gpu", "h100"))
        config = os.path.join(directory, "shakespeare_cpu.json")
        self.assertEqual(run("--config", config, "-i", corpus().train, "-o", new_path(), "--stop-after", "1").code, 0)


class Fitting(Case):
    """Runs on a device with little memory, which LLMC_MEMORY_MB simulates."""

    LITTLE = {"LLMC_MEMORY_MB": "8"}
    FLAGS = ["--batch", "32", "--max-steps", "2"]

    def test_a_run_that_does_not_fit_says_what_would(self):
        result = self.refused(run(*tiny_flags(*self.FLAGS), env=self.LITTLE), RESOURCES)
        self.assertRegex(result.err, r"^train_gpt: this run needs [\d.]+ MiB and CPU \(.*\) has 8.0 MiB: ")
        changes = re.findall(r"^  (-.*\S) +([\d.]+) MiB$", result.out, re.MULTILINE)
        self.assertTrue(changes, result.out)
        for flags, needed in changes:
            self.assertLessEqual(float(needed), 8)
            self.succeeds(run(*tiny_flags(*self.FLAGS, *flags.split()), env=self.LITTLE))

    def test_no_offloading_where_the_device_has_the_hosts_memory(self):
        """The optimizer's state is most of what this model needs."""
        flags = ["--train", corpus().train, "--model", "d6", "--seq", "64", "--batch", "1", "--max-steps", "1"]
        result = self.refused(run(*flags, env={"LLMC_MEMORY_MB": "170"}), RESOURCES)
        self.assertIn("  --adam-moments bf16 ", result.out)
        self.assertNotIn("--offload", result.out + result.err)

    def needed(self, level, *flags):
        """MiB that a run needs here with this level of recomputation. (A plan's are those of a GPU.)"""
        refused = run(*tiny_flags(*self.FLAGS, "-r", level, *flags), env={"LLMC_MEMORY_MB": "1"})
        return float(re.search(r"this run needs ([\d.]+) MiB", refused.err)[1])

    def test_recomputes_as_little_as_fits(self):
        """-r auto, the default, takes the next level when the one before it does not fit. The bits stay the same."""
        levels = ("none", "gelu", "norm", "block")
        shape = ["--layers", "4", "--batch", "32"]
        needed = [self.needed(level, *shape) for level in levels]
        losses = set()
        for i, level in enumerate(levels):
            memory = math.ceil(needed[i] + 0.05)  # which was rounded
            self.assertLess(memory, ([1e9] + needed)[i], needed)  # the level before does not fit
            done = FinishedRun(*self.FLAGS, *shape, env={"LLMC_MEMORY_MB": str(memory)})
            self.assertEqual(done.info["config"]["recompute"], level)
            notes = re.findall(r"^note: -r auto chose (\w+), the least", done.result.out, re.MULTILINE)
            self.assertEqual(notes, [level] if i else [])
            self.assertEqual("a smaller -b may be faster" in done.result.out, i > 0)
            losses.add(tuple(done.losses))
        self.assertEqual(len(losses), 1)
        too_little = run(*tiny_flags(*self.FLAGS, *shape), env={"LLMC_MEMORY_MB": str(int(needed[-1]))})
        self.refused(too_little, RESOURCES, f"this run needs {needed[-1]:.1f} MiB")
        self.assertNotIn(" -r ", too_little.out)  # auto follows from the other changes

    def test_fit(self):
        """The run has the same steps, its run.json says what --fit chose, and it resumes as it was."""
        directory = new_path()
        result = self.succeeds(run(*tiny_flags(*self.FLAGS, "--fit", "--out", directory, "--stop-after", "1"),
                                   env=self.LITTLE))
        flags, = re.findall(r"^note: --fit: (.*): a rank needs [\d.]+ MiB instead of [\d.]+ MiB, and has 8.0 MiB$",
                            result.out, re.MULTILINE)
        first, second = re.fullmatch(r"-b (\d+) -d (\d+)(?: -r \w+)?", flags).groups()
        config = read_json(os.path.join(directory, "run.json"))["config"]
        self.assertEqual((config["batch"], config["total-batch"]), (int(first), int(second)))
        self.assertEqual(int(second), 32 * 64)
        self.assertNotIn("fit", config)
        resumed = self.succeeds(run("--out", directory, "--resume", "latest", "--stop-after", "2", env=self.LITTLE))
        self.assertIn("step 1 is done", resumed.out)

    def ranks(self, memories, *flags):
        """The outputs of ranks that have this much memory."""
        port = str(free_port())
        flags = tiny_flags(*self.FLAGS, "--total-batch", str(len(memories) * 32 * 64), *flags)
        ranks = [subprocess.Popen([PROGRAM, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": str(len(memories)),
                                       "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                                       "LLMC_MEMORY_MB": memory})
                 for rank, memory in enumerate(memories)]
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * len(ranks), outputs)
        return outputs

    def test_ranks_choose_together(self):
        """Both ranks make the change that the rank with less memory needs."""
        outputs = self.ranks(("1000", "8"), "--fit")
        self.assertRegex(outputs[0], r"note: --fit: .*-b \d+.*, and has 8.0 MiB\n")

    def test_ranks_recompute_alike(self):
        """Both ranks take the level that the rank with less memory needs."""
        shape = ["--layers", "8"]
        memory = math.ceil(self.needed("block", *shape) + 0.05)
        outputs = self.ranks(("1000", str(memory)), *shape)
        self.assertIn("note: -r auto chose block", outputs[0])


class FlagsPage(Case):
    """dev/guide/flags.md is what --help-markdown prints."""

    def test_is_current(self):
        if "(default precision fp8)" not in run("--version").out:
            self.skipTest("a build with another default precision")
        with open(os.path.join(ROOT, "dev", "guide", "flags.md"), encoding="utf-8") as file:
            page = file.read()
        text = run("--help-markdown").out
        self.maxDiff = None
        self.assertEqual(page, text, "./train_gpt_cpu --help-markdown >dev/guide/flags.md")
        self.assertGreater(text.count("\n| `"), 130)
        for part in ("# Flags\n", "\n## Data and output\n", "\n## train_gpt export\n", "| `-b, --batch N` | 4 | ",
                     "--resume latest\\|auto\\|PATH"):
            self.assertIn(part, text)
        for line in text.splitlines():
            if line.startswith("|"):
                self.assertEqual(len(re.findall(r"(?<!\\)\|", line)), 4, line)


class PlansInGuides(Case):
    """The plans that guides show are those of the program: their memory and times are the same on every machine."""

    def shows(self, page, first, *flags):
        """The indented lines of the page from `first` on are the program's, up to gaps that "..." marks."""
        with open(os.path.join(ROOT, "dev", "guide", page), encoding="utf-8") as file:
            lines = file.read().split("\n")
        begin = lines.index("    " + first)
        end = next(i for i in range(begin, len(lines)) if not lines[i].startswith("    "))
        printed = run(*flags, "--dry-run").out.split("\n")
        at, anywhere = printed.index(first), False
        for line in (line[4:] for line in lines[begin:end]):
            if line == "...":
                anywhere = True
                continue
            at = printed.index(line, at) if anywhere and line in printed[at:] else at
            self.assertEqual(line, printed[at], f"dev/guide/{page} does not show what {' '.join(flags)} --dry-run prints")
            at, anywhere = at + 1, False

    def test_planning(self):
        d12 = ("-e", "d12", "-b", "32", "-d", "524288", "-x", "19560", "--gpu", "h200")
        self.shows("planning.md", "  total                    13.5 GiB   fits into H200, which has 139.8 GiB", *d12)
        self.shows("planning.md", "Model d12: 12 layers, 12 heads of 64, 768 channels, vocabulary 50257 (padded to 50304), "
                   "context 1024", *d12)
        self.shows("planning.md", "Sharding: each of 16 ranks, stage by stage", "-e", "d24", "-b", "16", "--world", "16",
                   "--gpu", "h100")

    def test_fitting(self):
        self.shows("fitting.md", "  total                    91.8 GiB   DOES NOT FIT into H100 80GB HBM3, which has 79.2 GiB",
                   "-e", "gpt2-xl", "-b", "256", "-d", "524288", "-x", "20000", "--gpu", "h100")


class HelpOfCommands(Case):
    """Has the layout of --help, and refusals have the style of training's."""

    def test_help_fits(self):
        for command in ("eval", "sample", "export"):
            for columns in ("80", "120"):
                result = self.succeeds(run(command, "--help", env={"COLUMNS": columns}))
                self.assertTrue(result.out.startswith(f"Usage: train_gpt {command} --from PATH"))
                self.assertLessEqual(max(map(len, result.out.splitlines())), int(columns))
                self.assertNotRegex(result.out, r"(?<!prompt )TEXT|REQUIRED|OPTIONS|:\{")

    def test_refusals(self):
        for arguments, message in (
                (["sample", "--max_new_tokens", "5"], "sample: unknown flag --max_new_tokens; here it is -g, --tokens ("),
                (["export", "--from"], "needs a value: --from PATH"),
                (["eval", "--from", "x", "y"], "eval: unexpected argument 'y'; flags start with -"),
                (["sample", "--from", "x", "-g", "4x"], "--tokens: '4x' is not a whole number")):
            self.refused(run(*arguments), FLAGS, message)


class Completion(Case):
    """The script of --completion bash, in bash itself."""

    def offered(self, *lines):
        """The words that bash offers for the last one of each command line, which has the words that bash makes of it."""
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(self.succeeds(run("--completion", "bash")).out)
        calls = [f"COMPREPLY=(); COMP_WORDS=({line}); ((COMP_CWORD = ${{#COMP_WORDS[@]}} - 1)); _train_gpt; echo \"${{COMPREPLY[*]}}\""
                 for line in lines]
        text = "\n".join([f"source {self.script}", "compopt() { COMPREPLY=(compopt \"$@\"); }", *calls])
        done = subprocess.run(["bash", "--norc"], input=text, capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return [line.split() for line in done.stdout.splitlines()]

    def setUp(self):
        self.script = new_path("completion")

    def test_what_is_offered(self):
        first, flags, recipes, equals, part, files, number, commands, of_eval, shared = self.offered(
            "train_gpt ''", "train_gpt -b 4 --fp8-r", "train_gpt --fp8-recipe ''", "train_gpt --precision =",
            "train_gpt --precision = b", "train_gpt --out ''", "train_gpt -b ''", "train_gpt ev", "train_gpt eval --",
            "train_gpt sample --precision f")
        self.assertLessEqual({"--train", "--out", "eval", "train"}, set(first))
        self.assertEqual(flags, ["--fp8-recipe"])
        self.assertEqual(recipes, ["delayed", "current", "block", "mxfp8"])
        self.assertEqual(equals, ["fp8", "bf16", "fp32", "auto"])
        self.assertEqual(part, ["bf16"])
        self.assertEqual(files, [], "bash completes names of files itself")
        self.assertEqual(number, ["compopt", "+o", "default"], "no files where a number belongs")
        self.assertEqual(commands, ["eval"])
        self.assertIn("--average", of_eval)
        self.assertNotIn("--lr", of_eval)
        self.assertEqual(shared, ["fp8", "fp32"])

    def test_a_persons_terminal(self):
        self.offered()
        open(new_path("weights_of_a_model"), "w", encoding="utf-8").close()
        typed = f"source {self.script}\ntrain_gpt_cpu --fp8-rec\tmx\t --from {workspace()}/weights_of\t --end\n"
        terminal, inside = pty.openpty()
        with subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], stdin=inside, stdout=inside, stderr=inside,
                              start_new_session=True, env={**ENVIRONMENT, "TERM": "dumb", "COLUMNS": "300"}) as shell:
            os.close(inside)
            os.write(terminal, (typed + "exit\n").encode())
            text = b""
            try:
                while part := os.read(terminal, 4096):
                    text += part
            except OSError:  # the shell has left
                pass
            os.close(terminal)
        self.assertEqual(shell.wait(), 127, "train_gpt_cpu is not in PATH")
        self.assertRegex(text.decode(), r"--fp8-recipe mxfp8  ?--from \S*/weights_of_a_model\d+  ?--end")


class Sampling(Case):
    def test_sampling_does_not_change_training(self):
        quiet = FinishedRun("--max-steps", "6")
        chatty = FinishedRun("--max-steps", "6", "--sample-every", "2", "--sample-tokens", "3", "--prompt", "Tom")
        self.assertEqual(quiet.losses, chatty.losses)


class Endings(Case):
    def test_stopped_without_out(self):
        """It saved nothing, so nothing may queue it again."""
        result = run(*tiny_flags("--max-steps", "1000000", "--max-minutes", "0.01"))
        self.refused(result, FAILURE, "(--max-minutes reached); nothing was saved because the run has no --out")
        self.assertIn("no --out, so nothing will be saved", result.out)
        self.assertEqual(run(*tiny_flags("--stop-after", "1")).code, 0)

    def test_weights_that_are_not_finite_any_more(self):
        run_ = FinishedRun("--max-steps", "9", "--lr", "1e30", "--optimizer", "sgd", "--clip", "0", code=6)
        self.assertIn("the last training loss is nan", run_.result.err)
        self.assertIn("weights written", run_.result.out)

    def test_output_comes_line_by_line(self):
        """A person may be looking at a pipe."""
        with subprocess.Popen([PROGRAM, *tiny_flags("--max-steps", "1000000")], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, cwd=workspace(), env=ENVIRONMENT) as process:
            first = os.read(process.stdout.fileno(), 1 << 16)
            process.kill()
        self.assertNotIn(b"step     1/", first)

    def test_a_reader_that_leaves(self):
        """The run continues when its `tee` has died."""
        out = new_path()
        with subprocess.Popen([PROGRAM, *tiny_flags("--max-steps", "40", "--out", out)], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, cwd=workspace(), env=ENVIRONMENT) as process:
            process.stdout.readline()
            process.stdout.close()
        self.assertEqual(process.returncode, 0)
        self.assertIn("model.safetensors", os.listdir(out))


if __name__ == "__main__":
    unittest.main()
