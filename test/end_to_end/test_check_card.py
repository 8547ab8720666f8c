"""check_card, and what a run does with a card before its first step, end to end: on the host device, and on virtual GPUs
that are correct or have one fault each (dev/virtual_gpu/cuda/README.md, "Faults that stay").

The programs are those of `make virtual train_gpt_cpu check_card_cpu`; without the first, the tests that need it are
skipped.
"""

import json
import os
import re
import subprocess
import unittest
from unittest import mock

import test_run_ranks
import trainer
from trainer import FinishedRun, new_path, read_json, recipe_flags, tiny_flags, write_json

# The simulated card. A card without FP8 is checked for a run in BF16.
CARD = os.environ.get("VIRTUAL_GPU_CARD", "sm_90a")
HAS_FP8 = CARD not in ("sm_80", "sm_86")
needs_fp8 = unittest.skipUnless(HAS_FP8, f"{CARD}, the card that is played, has no FP8")
is_hopper = unittest.skipUnless(CARD == "sm_90a", f"{CARD}, the card that is played, is no Hopper card")
# The cards that support these recipes' scales natively.
NATIVE = {"block": ["sm_90a"], "mxfp8": ["sm_100", "sm_120"]}
PROGRAMS = os.path.join(trainer.ROOT, os.environ.get("VIRTUAL_PROGRAMS", "build/virtual"))
VIRTUAL, VIRTUAL_CHECK = (os.path.join(PROGRAMS, name) for name in ("train_gpt", "check_card"))
HOST_CHECK = os.path.join(trainer.ROOT, "build/cpu-native/check_card_cpu")
RANKS = 3
SHAPE = [*trainer.TINY_MODEL, *trainer.TINY_BATCH, "--vocab", "257"]
# N x C x OC of the tiny model: 256 tokens, 64 channels. In cuBLASLt's terms: m = columns, n = rows.
FC = "256x256x64"  # fc, forward: 256 tokens by 256 outputs, over 64 inputs


def cache():
    """Settings of a start that knows nothing of its card yet. Timings overwrite the L2 cache each time, so a small card,
    whose cache is small, too, is much faster to play."""
    return {"OMP_NUM_THREADS": "1", "VIRTUAL_GPU_MULTIPROCESSORS": "2", "XDG_CACHE_HOME": new_path("cache")}


def card_flags(recipe):
    """Flags of a run with the recipe, or of a run in BF16 if the simulated card has no FP8."""
    if not HAS_FP8:
        return ["--precision", "bf16"]
    native = recipe not in NATIVE or CARD in NATIVE[recipe]
    return [*recipe_flags(recipe), *([] if native else ["--fp8-emulation"])]


def check(*flags, fault="", env=None, program=VIRTUAL_CHECK):
    """Runs check_card for a tiny model."""
    with mock.patch.object(trainer, "PROGRAM", program):
        return trainer.run(*SHAPE, "--tune", "2", *flags, env={**cache(), "VIRTUAL_GPU_FAULT": fault, **(env or {})})


def tiny(architecture, **more):
    """Flags of a tiny model of another architecture, with grouped queries."""
    path = new_path("model") + ".json"
    write_json(path, {"architecture": architecture, "layers": 2, "heads": 2, "kv_heads": 1, "channels": 64,
                      "head_dim": 32, "hidden": 96, "context": 64, **more})
    return ["-e", path]


def counts(text):
    """(right, all) of the table's last row."""
    return tuple(int(n) for n in re.search(r"^all +(\d+) of +(\d+) right", text, re.MULTILINE).groups())


def run(*flags, env, code=0):
    with mock.patch.object(trainer, "PROGRAM", VIRTUAL):
        return FinishedRun(*flags, env=env, code=code)


def kept_in(env):
    """The file in which a run or a check keeps what it knows of this kind of card."""
    directory = os.path.join(env["XDG_CACHE_HOME"], "train_gpt")
    path, = (os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".json"))
    return path


class OnHost(unittest.TestCase):
    def test_every_precision(self):
        for flags in (["--precision", "fp32"], ["--precision", "bf16"], recipe_flags("delayed"), recipe_flags("mxfp8"),
                      [*tiny("llama"), *recipe_flags("delayed")],
                      [*tiny("qwen3", window=40, window_layers="SL"), *recipe_flags("delayed")],
                      [*tiny("nano"), "--precision", "fp32"]):
            with self.subTest(flags):
                done = check(*flags, program=HOST_CHECK)
                self.assertEqual(done.code, 0, done.out + done.err)
                right, items = counts(done.out)
                self.assertEqual(right, items)
                self.assertRegex(done.out, r"(?m)^kernels +\d+ of")
                self.assertRegex(done.out, r"(?m)^matmuls +\d+ of")
                # Every item is named before it runs, and appears once.
                self.assertEqual(len(re.findall(r"(?m)^.+ \.\.\. right$", done.out)), items)

    def test_json_and_a_copy_that_goes_wrong(self):
        env = {**cache(), "LLMC_FLIP": "copy_on_device:1"}
        done = check("--json", "--precision", "bf16", program=HOST_CHECK, env=env)
        self.assertEqual(done.code, 1, done.out)
        items = {item["name"]: item["problem"] for item in json.loads(done.out)["items"]}
        self.assertEqual([name for name, problem in items.items() if problem], ["copy"])
        self.assertIn("copy[", items["copy"])
        self.assertIn("copy ... WRONG: copy[", done.err)
        self.assertEqual(read_json(kept_in(env))["entries"]["check_card"]["items"], items)

    def test_a_bit_that_flips(self):
        """In one output of one launch: the item of that kernel or matmul finds it."""
        for work, item in (("layernorm_backward:2", "layernorm_backward bf16 "),
                           ("ActivationValues:1", "gelu_forward_fp8 "), ("matmul forward:3", "matmul forward ")):
            with self.subTest(work):
                done = check(*recipe_flags("delayed"), program=HOST_CHECK, env={"LLMC_FLIP": work})
                self.assertEqual(done.code, 1, done.out)
                self.assertRegex(done.out, rf"(?m)^WRONG: {item}")

    def test_only_some_items(self):
        """They run alone, and their results are not kept as those of the card."""
        env = cache()
        done = check("--precision", "bf16", "--only", "layernorm", program=HOST_CHECK, env=env)
        self.assertEqual(done.code, 0, done.err)
        names = re.findall(r"(?m)^(\w+) .*\.\.\. right$", done.out)
        self.assertEqual(set(names), {"layernorm_forward", "layernorm_backward"})
        self.assertFalse(os.path.exists(os.path.join(env["XDG_CACHE_HOME"], "train_gpt")))
        for only, said in ((["--only"], "--only needs a part of an item's name"),
                           (["--only", "layernorn"], "--only layernorn: no item has this in its name")):
            done = check("--precision", "bf16", *only, program=HOST_CHECK)
            self.assertEqual((done.code, done.err), (2, f"check_card: {said}\n"))

    def test_flags(self):
        self.assertEqual(check("--no-such-flag", program=HOST_CHECK).code, 2)
        for flag in ("--help", "--help-all"):
            text = check(flag, program=HOST_CHECK).out
            self.assertTrue(text.startswith("Usage: check_card [--json] [--only TEXT] FLAGS\n"), text[:100])
            self.assertIn("--precision", text)
            self.assertNotIn("export", text[:500])

    def test_the_host_device_has_no_choice(self):
        """A CPU has one way of making a product, so a run tunes nothing, and a resumed run has nothing to report."""
        env = cache()
        begun = FinishedRun("--precision", "bf16", "--max-steps", "2", "--stop-after", "1", env=env)
        record = json.loads(begun.read("run.json"))
        self.assertEqual((record["products"], record["tuning"]), ({}, None))
        self.assertFalse(os.path.exists(env["XDG_CACHE_HOME"]))
        rest = begun.resume("--precision", "bf16", "--max-steps", "2", env=env)
        self.assertEqual(rest.code, 0, rest.err)
        self.assertNotIn("check_card", begun.result.out + rest.out)

    def test_the_command_and_flags_of_earlier_versions(self):
        for flags in (["check", *SHAPE], [*SHAPE, "--strict"], [*SHAPE, "--card-check", "force"]):
            done = trainer.run(*flags)
            self.assertEqual(done.code, 2)
            self.assertIn("check_card", done.err)

    def test_ranks(self):
        with mock.patch.object(test_run_ranks, "PROGRAM", HOST_CHECK):
            done = test_run_ranks.run_ranks(RANKS, *SHAPE, "--precision", "bf16", "--zero", "2", env=cache())
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, r"(?m)^collectives +1 of +1 right")


@unittest.skipUnless(os.path.exists(VIRTUAL), "no virtual GPU: make virtual")
class OnVirtualGpu(unittest.TestCase):
    def test_an_honest_card(self):
        for recipe in trainer.FP8_RECIPES if HAS_FP8 else ["bf16"]:
            with self.subTest(recipe):
                done = check(*card_flags(recipe))
                self.assertEqual(done.code, 0, done.out + done.err)
                right, items = counts(done.out)
                self.assertEqual(right, items, done.out)

    # Faults, and the item that finds each with what it says. Those that share a check do not disturb each other. After
    # the last two the card takes no more work.
    MISTAKES = [
        {"wrong-kernel:ActivationValues<llmc::Gelu": ("gelu_forward_fp8 ", r"codes\["),
         "unsteady-kernel:layernorm_forward_fp8": ("layernorm_forward_fp8 ", ""),
         "stray:ActivationGradientValues<llmc::Gelu": ("gelu_backward_fp8 ", ""),
         "wrong-kernel:update_kernel<llmc::AdamWRule": ("adamw_update, ", r"[mv] in slices\["),
         f"wrong-product:{FC} TN e4m3*e4m3->bf16 bias": ("matmul forward e4m3 .*algorithm 1 of 2", "must be")},
        {"cast:quantize": ("bf16 to e4m3, all values", ""),
         f"wrong-product:{FC} TN e4m3*e4m3->bf16 bias@2": ("matmul forward e4m3 .*algorithm 2 of 2", "must be")},
        {f"unsteady-product:{FC} TN e4m3*e4m3->bf16 bias":
            ("matmul forward e4m3 ", "(samples are wrong|differ when it is computed again)")},
        {f"refuse:{FC} TN e4m3*e4m3": ("matmul forward e4m3 ", "refuses it")},
        {"stray-fault:ActivationGradientValues<llmc::Gelu": ("gelu_backward_fp8 ", "cudaErrorIllegalAddress")},
        {"fail-kernel:layernorm_backward_fp8": ("layernorm_backward_fp8 ", "cudaErrorLaunchFailure")},
    ]

    def finds(self, done, item, said=""):
        """The item says so where it runs, and in the table."""
        self.assertEqual(done.code, 1, done.out + done.err)
        for where in (rf"^{item}.* \.\.\. WRONG: ", rf"^WRONG: {item}.*: "):
            self.assertRegex(done.out, rf"(?m){where}.*{said}")

    @needs_fp8
    def test_mistakes(self):
        for faults in self.MISTAKES:
            only = [] if len(faults) > 1 else ["--only", *(item for item, _ in faults.values())]
            done = check(*card_flags("delayed"), *only, fault=",".join(faults))
            for fault, (item, said) in faults.items():
                with self.subTest(fault):
                    self.finds(done, item, said)

    @is_hopper
    def test_mistakes_of_hopper_kernels(self):
        flags = [*tiny("llama", head_dim=64), "--precision", "bf16"]
        for fault in ("zero-store:hopper_attention_forward_kernel", "fail-kernel:hopper_attention_forward_kernel",
                      "zero-store:hopper_attention_split_kernel", "unsteady-kernel:hopper_attention_split_kernel"):
            with self.subTest(fault):
                self.finds(check(*flags, "--only", "attention ", fault=fault), "attention .* on Hopper")
        for fault in ("wrong-kernel:hopper_matmul_gelu_kernel<llmc::e4m3", "stray:hopper_matmul_gelu_kernel<llmc::e5m2"):
            with self.subTest(fault):
                self.finds(check(*card_flags("delayed"), "--only", "multiply_gelu_", fault=fault), "multiply_gelu_")

    def test_a_kernel_that_never_ends_is_the_last_one_named(self):
        env = {**trainer.ENVIRONMENT, **cache(), "VIRTUAL_GPU_FAULT": "hang-kernel:embedding_forward"}
        process = subprocess.Popen([VIRTUAL_CHECK, *SHAPE, "--precision", "bf16"], env=env, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        said = b""
        while not re.search(rb"\nembedding_forward [^\n]* \.\.\.$", said):
            more = os.read(process.stdout.fileno(), 1 << 16)
            self.assertTrue(more, said)
            said += more
        with self.assertRaises(subprocess.TimeoutExpired):  # and nothing follows
            process.communicate(timeout=3)

    # architecture: {fault of a kernel: the item that finds it}
    MODERN = {
        "llama": {"wrong-kernel:layernorm_forward_fp8": "rmsnorm_forward_fp8 N=144 C=64:",
                  "wrong-kernel:layernorm_backward_fp8": "rmsnorm_backward_fp8 e5m2 N=144 C=64:",
                  "stray:SwigluValues": "swiglu_forward_fp8 N=144 F=96:",
                  "wrong-kernel:SwigluGradientValues": "swiglu_backward_fp8 e5m2 N=144 F=96:",
                  "wrong-kernel:layernorm_forward_kernel": "rmsnorm_forward bf16 N=149 C=64:",
                  "wrong-kernel:layernorm_backward_kernel": "rmsnorm_backward bf16 N=149 C=64:",
                  "wrong-kernel:rope_kernel": "rope bf16 HD=32 NH=2 NKV=1 N=298 T=149:",
                  "stray:swiglu_forward_kernel": "swiglu_forward bf16 N=149 F=96:",
                  "stray:attention_key_gradient": "attention bf16 HD=32 NH=2 NKV=1 B=2 T=277:",
                  "wrong-kernel:embedding_forward": "embedding_forward bf16 B=2 T=149 C=64 V=251 without positions:"},
        "nano": {"wrong-kernel:ActivationValues<llmc::Relu2": "relu2_forward_fp8 N=144 F=96:",
                 "stray:ActivationGradientValues<llmc::Relu2": "relu2_backward_fp8 e5m2 N=144 F=96:",
                 "wrong-kernel:qk_norm_rope_backward": "qk_norm_rope bf16 HD=32 NH=2 NKV=1 N=298 T=149 without gains:",
                 "wrong-kernel:relu2_forward_kernel": "relu2_forward bf16 N=149 F=96:",
                 "wrong-kernel:softmax_cross_entropy": "softmax_cross_entropy bf16 N=5 V=257/384 capped at 15:"},
    }

    @needs_fp8
    def test_other_architectures(self):
        """Several faults in one check: each is found by its own item."""
        for architecture, faults in self.MODERN.items():
            flags = [*tiny(architecture), *card_flags("delayed")]
            honest, lying = (check(*flags, fault=",".join(some)) for some in ({}, faults))
            with self.subTest(architecture):
                self.assertEqual((honest.code, lying.code), (0, 1), honest.out + lying.err)
                for item in faults.values():
                    self.assertIn(f"\nWRONG: {item} ", lying.out)

    # Kernels that set initial values, and the kernel that counts spikes of the loss.
    UNCHECKED = {"fp8_reset_kernel", "fp8_clear_counts_kernel", "reset_loss_scale_kernel", "reset_spikes_kernel",
                 "update_spikes_kernel"}

    def test_everything_that_a_run_uses_is_checked(self):
        """check_card launches every kernel that the run's steps launch, by the counts of the virtual GPU."""
        def launched(path):
            with open(path, encoding="utf-8") as file:
                return {count["kernel"] for count in map(json.loads, file) if "kernel" in count}

        records = ["--fp8-log-every", "1"]
        for architecture, flags in (("gpt2", card_flags("delayed")), ("llama", [*card_flags("delayed"), *records]),
                                    ("llama", [*card_flags("current"), *records]),
                                    ("qwen3", ["--precision", "bf16"]), ("nano", card_flags("current"))):
            with self.subTest(architecture, flags=flags):
                flags = [*([] if architecture == "gpt2" else tiny(architecture)), *flags]
                of_check, of_run = new_path("counts"), new_path("counts")
                self.assertEqual(check(*flags, env={"VIRTUAL_GPU_COUNTS": of_check}).code, 0)
                run(*flags, "--tune", "0", "--max-steps", "2", env={**cache(), "VIRTUAL_GPU_COUNTS": of_run})
                left = {name for name in launched(of_run) - launched(of_check)
                        if not any(kernel in name for kernel in self.UNCHECKED)}
                self.assertGreater(len(launched(of_run)), 20)
                self.assertEqual(left, set())

    def test_a_run_names_check_card_until_it_has_run(self):
        env, flags = cache(), ["--precision", "bf16", "--tune", "0", "--max-steps", "1"]
        first = run(*flags, env=env)
        self.assertIn("check_card has not been run on this kind of card", first.result.out)
        self.assertIsNone(json.loads(first.read("run.json"))["tuning"]["check_card"])
        self.assertEqual(check("--precision", "bf16", env=env).code, 0)
        second = run(*flags, env=env)
        self.assertNotIn("check_card", second.result.out)
        self.assertRegex(json.loads(second.read("run.json"))["tuning"]["check_card"], r"^20\d\d-")
        self.assertEqual(check("--precision", "bf16", env=env, fault="wrong-kernel:update_kernel<llmc::AdamWRule").code, 1)
        self.assertRegex(run(*flags, env=env).result.out, r"note: check_card found an error .*adamw_update")

    def test_tuning(self):
        """Two starts have the same algorithms, whatever the times of the second would have been."""
        env, flags = cache(), ["--precision", "bf16", "--tune", "2", "--max-steps", "2"]
        first = run(*flags, env=env)
        self.assertRegex(first.result.out, r"tuned \d+ matmuls on .*TFLOP/s: bf16 .*GB/s: copy ")
        record = json.loads(first.read("run.json"))
        self.assertGreater(len(record["products"]), 5)
        self.assertGreater(record["tuning"]["gb_per_s"]["copy"], 0)
        again = run(*flags, env={**env, "VIRTUAL_GPU_HEURISTIC": "reversed"})
        self.assertNotIn("tuned", again.result.out)
        self.assertEqual(json.loads(again.read("run.json"))["products"], record["products"])
        self.assertEqual(again.losses, first.losses)
        untuned = run(*flags[:2], "--tune", "0", "--max-steps", "2", env=env)
        self.assertEqual(json.loads(untuned.read("run.json"))["products"], {})

    def test_plans_use_measured_rates(self):
        """Rates kept for this card replace the table's; rates kept for a named card do not."""
        env, measured = cache(), {"bf16": 6e14, "copy": 4e12, "all_gather": 2e11, "reduce_scatter": 1e11}

        def plan(*flags):
            with mock.patch.object(trainer, "PROGRAM", VIRTUAL):
                done = trainer.run("--dry-run", *SHAPE, "--precision", "bf16", "--world", "8", *flags, env=env)
            self.assertEqual(done.code, 0, done.err)
            return " ".join(done.out.split())

        self.assertEqual(check("--precision", "bf16", env=env).code, 0)
        table = plan()
        self.assertIn("Rates: built-in table for this card, not measured here.", table)
        self.assertIn("Links are assumed", table)
        kept = read_json(kept_in(env))
        kept["entries"].update(rates=measured, measured="2026-01-02")
        write_json(kept_in(env), kept)
        text = plan()
        for said in ("Measured on this kind of card (2026-01-02): matmuls in bf16, memory.",
                     "matmuls at 600 TFLOP/s in bf16", "kernels at 3.7 TB/s",
                     "all_gather 200 GB/s, reduce_scatter 100 GB/s per rank"):
            self.assertIn(said, text)
        self.assertIn("Rates: built-in table for this card, not measured here.", plan("--gpu", "h200"))

    def test_a_resumed_run_keeps_its_products(self):
        """Also if the library now proposes other algorithms first, whose sums have other bits."""
        other = {"VIRTUAL_GPU_HEURISTIC": "reversed"}
        flags = ["--precision", "bf16", "--tune", "2", "--max-steps", "6"]
        # Which of two algorithms is faster is chance on a virtual card, so the first start's choice is kept.
        env = cache()
        whole, different = run(*flags, env=env), run(*flags, env={**cache(), **other})
        self.assertNotEqual(whole.losses, different.losses)  # otherwise this test would show nothing
        begun = run(*flags, "--stop-after", "3", env=env)
        products = json.loads(begun.read("run.json"))["products"]
        with mock.patch.object(trainer, "PROGRAM", VIRTUAL):
            rest = trainer.run(*tiny_flags("--out", begun.directory, *flags, "--resume", "latest"), env={**cache(), **other})
        self.assertEqual(rest.code, 0, rest.err)
        self.assertEqual(json.loads(begun.read("run.json"))["resumed"][0]["products"], products)
        self.assertEqual(begun.losses, whole.losses)

    def test_ranks(self):
        def ranks(program, *flags, fault="", env=None):
            with mock.patch.object(test_run_ranks, "PROGRAM", program):
                return test_run_ranks.run_ranks(
                    RANKS, *flags, *card_flags("delayed"), "--zero", "2",
                    env={**cache(), "VIRTUAL_GPU_DEVICES": str(RANKS), "VIRTUAL_GPU_FAULT": fault, **(env or {})})

        shape, directory = [*SHAPE, "--tune", "2"], {"XDG_CACHE_HOME": new_path("cache")}
        honest = ranks(VIRTUAL_CHECK, *shape)
        self.assertEqual(honest.code, 0, honest.out + honest.err)
        self.assertRegex(honest.out, r"(?m)^collectives +1 of +1 right")
        for operation, call in (("all_gather", "ncclAllGather"), ("reduce_scatter", "ncclReduceScatter")):
            with self.subTest(operation):
                lying = ranks(VIRTUAL_CHECK, *shape, "--only", "collectives", fault=f"corrupt:{call}")
                self.assertEqual(lying.code, 1, lying.out)
                self.assertRegex(lying.out, rf"(?m)^WRONG: collectives: .*{operation}.*expected")
        endless = ranks(VIRTUAL_CHECK, *shape, "--timeout-start", "4", fault="stall:3")
        self.assertEqual(endless.code, 7, endless.out)
        # All ranks of a run take rank 0's algorithms, and the links' rates are kept.
        done, again = (ranks(VIRTUAL, *tiny_flags("--tune", "2"), env=directory) for _ in range(2))
        losses = [re.findall(r"^step .* loss (\S+)", result.out, re.MULTILINE) for result in (done, again)]
        self.assertEqual(len(losses[0]), 5, done.out + done.err)
        self.assertEqual(losses[0], losses[1])
        self.assertLessEqual({"all_gather", "reduce_scatter"}, set(read_json(kept_in(directory))["entries"]["rates"]))


if __name__ == "__main__":
    unittest.main()
