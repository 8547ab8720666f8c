"""The card check, end to end: on the host device, and on virtual GPUs that are correct or have one fault each
(dev/virtual_gpu/cuda/README.md, "Faults that stay"), with the fallback that a run then uses, or the reason why there is
none.

The programs are those of `make virtual train_gpt_cpu`; without the first, the tests that need it are skipped.
"""

import json
import os
import re
import unittest
from unittest import mock

import test_run_ranks
import trainer
from trainer import FinishedRun, new_path, read_json, recipe_flags, tiny_flags, write_json

# The simulated card. A card without FP8 is checked for a run in BF16.
CARD = os.environ.get("VIRTUAL_GPU_CARD", "sm_90a")
HAS_FP8 = CARD not in ("sm_80", "sm_86")
needs_fp8 = unittest.skipUnless(HAS_FP8, f"{CARD}, the card that is played, has no FP8")
# The cards that support these recipes' scales natively.
NATIVE = {"block": ["sm_90a"], "mxfp8": ["sm_100", "sm_120"]}
VIRTUAL = os.path.join(trainer.ROOT, os.environ.get("VIRTUAL_PROGRAMS", "build/virtual"), "train_gpt")
RANKS = 3
SHAPE = [*trainer.TINY_MODEL, *trainer.TINY_BATCH, "--vocab", "257"]
QUICK = ["--tune", "0", "--timeout-check", "20"]
# N x C x OC of the tiny model: 256 tokens, 64 channels. In cuBLASLt's terms: m = columns, n = rows.
FC = "256x256x64"  # fc, forward: 256 tokens by 256 outputs, over 64 inputs


def cache():
    return {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": new_path("cache")}


def card_flags(recipe):
    """Flags of a run with the recipe, or of a run in BF16 if the simulated card has no FP8."""
    if not HAS_FP8:
        return ["--precision", "bf16"]
    native = recipe not in NATIVE or CARD in NATIVE[recipe]
    return [*recipe_flags(recipe), *([] if native else ["--fp8-emulation"])]


def check(*flags, fault="", env=None, program=VIRTUAL):
    """Runs `train_gpt check` for a tiny model; no results of other checks are reused."""
    with mock.patch.object(trainer, "PROGRAM", program):
        return trainer.run("check", *SHAPE, *QUICK, *flags,
                           env={**cache(), "VIRTUAL_GPU_FAULT": fault, **(env or {})})


def tiny(architecture, **more):
    """Flags of a tiny model of another architecture, with grouped queries."""
    path = new_path("model") + ".json"
    write_json(path, {"architecture": architecture, "layers": 2, "heads": 2, "kv_heads": 1, "channels": 64,
                      "head_dim": 32, "hidden": 96, "context": 64, **more})
    return ["-e", path]


def counts(text):
    """Returns (correct, all, fallbacks) from the last line."""
    return tuple(int(n) for n in re.search(r"(\d+) of (\d+) right, (\d+) fell back", text).groups())


def run(*flags, env, code=0):
    with mock.patch.object(trainer, "PROGRAM", VIRTUAL):
        return FinishedRun(*flags, env=env, code=code)


def files_in(directory):
    return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".json")]


class OnHost(unittest.TestCase):
    def test_every_precision(self):
        for flags in (["--precision", "fp32"], ["--precision", "bf16"], recipe_flags("delayed"), recipe_flags("mxfp8"),
                      [*tiny("llama"), *recipe_flags("delayed")],
                      [*tiny("qwen3", window=40, window_layers="SL"), *recipe_flags("delayed")],
                      [*tiny("nano"), "--precision", "fp32"]):
            with self.subTest(flags):
                done = check(*flags, "--card-check", "force", program=trainer.PROGRAM)
                self.assertEqual(done.code, 0, done.err)
                right, items, fell_back = counts(done.out)
                self.assertEqual((right, fell_back), (items, 0))
                self.assertRegex(done.out, r"kernels +\d+ of")
                self.assertRegex(done.out, r"matmuls +\d+ of")

    def test_rates(self):
        """Measured rates are in the table, in check.json and in run.json; without --tune nothing is measured."""
        table = check("--card-check", "force", "--tune", "2", program=trainer.PROGRAM).out
        self.assertRegex(table, r"memory +1 of +1 right   GB/s: copy [\d.e+]+\n")
        self.assertRegex(table, r"matmuls .* right   up to TFLOP/s: bf16 [\d.e-]+, fp8 [\d.e-]+\n")
        for tune in ("0", "2"):
            done = FinishedRun("--precision", "bf16", "--card-check", "force", "--tune", tune, env=cache())
            summary, findings = json.loads(done.read("run.json"))["card_check"], json.loads(done.read("check.json"))
            measured = {"copy": findings["copy"].get("rates", {}).get("copy", 0) / 1e9} if tune == "2" else {}
            self.assertEqual(summary["gb_per_s"], measured)
            self.assertEqual(set(summary["tflops"]), {"bf16"} if tune == "2" else set())
            self.assertTrue(all(rate > 0 for rate in measured.values()), measured)

    def test_a_copy_that_goes_wrong(self):
        done = check("--card-check", "force", program=trainer.PROGRAM, env={"LLMC_FLIP": "copy_on_device:1"})
        self.assertEqual(done.code, 5, done.out)
        self.assertIn("\n  copy: copy[", done.err)

    def test_the_host_device_has_no_choice(self):
        """The host device has one way of making a product, so a resumed run has nothing to report about it."""
        flags = ["--precision", "bf16", *QUICK, "--card-check", "force", "--max-steps", "2"]
        begun = FinishedRun(*flags, "--stop-after", "1", env=cache())
        self.assertEqual(json.loads(begun.read("run.json"))["products"], {})
        rest = trainer.run(*tiny_flags("--out", begun.directory, *flags, "--resume", "latest"), env=cache())
        self.assertEqual(rest.code, 0, rest.err)
        self.assertNotIn("note: card check", rest.out)

    def test_kept_results(self):
        """Results are reused the second time, and measured again for another shape, on request, and if the file is
        damaged.
        """
        env = cache()
        directory = os.path.join(env["XDG_CACHE_HOME"], "train_gpt")

        def again(*flags):
            done = trainer.run("check", *SHAPE, *QUICK, *flags, env=env)
            self.assertEqual(done.code, 0, done.err)
            return "(known;" in done.out

        self.assertEqual([again(), again(), again("--batch", "2"), again("--batch", "2"), again("--card-check", "force")],
                         [False, True, False, True, False])
        path, = files_in(directory)
        kept = read_json(path)
        self.assertTrue(all(finding["right"] for finding in kept["findings"].values()))
        self.assertIn("program", kept["identity"])
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"identity":')
        self.assertEqual([again(), again()], [False, True])
        kept["findings"][next(iter(kept["findings"]))].update(right=False, problem="planted")
        write_json(path, kept)
        done = trainer.run("check", *SHAPE, *QUICK, env=env)
        self.assertIn("planted", done.out + done.err)

    def test_a_run_reports_its_check(self):
        plain = FinishedRun(env=cache())
        checked = FinishedRun("--card-check", "force", env=cache())
        self.assertEqual(checked.losses, plain.losses)
        self.assertRegex(checked.result.out, r"checked on CPU.*: (\d+) of \1 right, 0 fell back")
        summary = json.loads(checked.read("run.json"))["card_check"]
        self.assertEqual(summary["right"], summary["items"])
        self.assertEqual(len(json.loads(checked.read("check.json"))), summary["items"])
        self.assertNotIn("checked on", plain.result.out)

    def test_mfu_of_a_card_in_no_table(self):
        """It is the fraction of the measured rate."""
        done = FinishedRun("--precision", "bf16", "--card-check", "force", env=cache())
        measured = json.loads(done.read("run.json"))["card_check"]["tflops"]["bf16"]
        self.assertIn(f"MFU is relative to {measured:.3g} TFLOP/s", done.result.out)
        # Two layers of 64 channels, 64 tokens of context and 257 in the vocabulary: weights, then attention.
        flops_per_token = 6 * (2 * 12 * 64 * 64 + 257 * 64) + 6 * 2 * 64 * 64
        shown = re.findall(r"([\d,]+) tok/s \| MFU ([\d.]+)%", done.result.out)
        self.assertGreater(len(shown), 2)
        for speed, mfu in shown:
            expected = 100 * flops_per_token * float(speed.replace(",", "")) / (measured * 1e12)
            self.assertAlmostEqual(float(mfu), expected, delta=0.06 + 1e-3 * expected)
        self.assertNotIn("MFU", FinishedRun("--precision", "bf16", env=cache()).result.out)

    def test_ranks(self):
        for flags in (tiny_flags("--card-check", "force", *QUICK), ["check", *SHAPE, *QUICK]):
            done = test_run_ranks.run_ranks(RANKS, *flags, env=cache())
            self.assertEqual(done.code, 0, done.err)
            self.assertIn("checked between ranks: all_gather", done.out)


@unittest.skipUnless(os.path.exists(VIRTUAL), "no virtual GPU: make virtual")
class OnVirtualGpu(unittest.TestCase):
    def test_an_honest_card(self):
        for recipe in trainer.FP8_RECIPES if HAS_FP8 else ["bf16"]:
            with self.subTest(recipe):
                done = check(*card_flags(recipe))
                self.assertEqual(done.code, 0, done.err)
                right, items, fell_back = counts(done.out)
                self.assertEqual((right, fell_back), (items, 0), done.out)

    # Faults of one check: the message about each
    FALLBACKS = (
        {"wrong-kernel:gelu_forward_fp8_kernel": r"gelu_fp8 falls back to the plain activation and quantize",
         "unsteady-kernel:layernorm_forward_fp8": r"layernorm_fp8 falls back to",
         "stray:gelu_backward_fp8_kernel": r"gelu_backward_fp8 falls back to",
         f"wrong-product:{FC} TN e4m3*e4m3->bf16 bias": r"must be \S+ \(\d+ of \d+ samples are wrong\)"},
        {"hang-kernel:gelu_forward_fp8_kernel": r"did not end within 3 s",
         "stray-fault:gelu_backward_fp8_kernel": r"gelu_backward_fp8 falls back to",
         "fail-kernel:layernorm_backward_fp8": r"layernorm_backward_fp8 falls back to",
         f"unsteady-product:{FC} TN e4m3*e4m3->bf16 bias": r"samples are wrong|differ when it is computed again"},
        {"cast:quantize": r"FP8 falls back to BF16 altogether"},
        {f"wrong-workspace:{FC} TN e4m3*e4m3->bf16 bias@4":
             r": falls back to an algorithm with at most 4.0 MiB of workspace\n"},
        {f"wrong-workspace:{FC} TN e4m3*e4m3->bf16 bias@all": r": falls back to an algorithm without workspace\n"},
        {f"wrong-product:{FC} TN e4m3*e4m3->bf16 bias@all": r"falls back to a separate kernel for the bias"},
        {f"wrong-product:{FC} TN e4m3*e4m3->bf16@all": r"layers fc fall back to BF16"},
        {f"refuse:{FC} TN e4m3*e4m3": r"layers fc fall back to BF16"},
    )

    @needs_fp8
    def test_fallbacks(self):
        for faults in self.FALLBACKS:
            with self.subTest(faults):
                limit = ["--timeout-check", "3"] if "hang-kernel" in str(faults) else []
                done = check(*card_flags("delayed"), *limit, fault=",".join(faults))
                self.assertEqual(done.code, 0, done.out + done.err)
                for said in faults.values():
                    self.assertRegex(done.out, said)

    @unittest.skipUnless(CARD == "sm_90a", f"{CARD}, the card that is played, is no Hopper card")
    def test_hopper_attention(self):
        """A run on a card that is wrong in one of attention's Hopper kernels is a run without this kernel."""
        # With short sequences and a low rate the kernels' rounding would leave the losses alone.
        flags = [*tiny("llama", head_dim=64), "--context", "256", "--seq", "256", "--batch", "1", "--lr", "1e-2",
                 "--warmup", "0", "--precision", "bf16", "--timeout-check", "3", "--tune", "0"]
        for variant, falls_back_to, kernel, faults in (
                ("hopper_attention", "attention_forward", "hopper_attention_forward_kernel",
                 ["zero-store", "fail-kernel"]),
                ("hopper_attention_backward_split", "attention_backward", "hopper_attention_split_kernel",
                 ["zero-store", "unsteady-kernel", "hang-kernel"])):
            alone = [*flags, "--kernels", variant]
            whole = run(*alone, "--card-check", "off", env=cache())
            self.assertEqual(json.loads(whole.read("run.json"))["kernels"], [variant])
            without = run(*flags, "--kernels", "portable", "--card-check", "off", env=cache())
            # Different losses show that equal ones below mean something. The backward pass adds up in the portable
            # kernels' order, which the virtual GPU keeps, so its losses must not differ at all.
            self.assertEqual(without.losses == whole.losses, variant == "hopper_attention_backward_split", variant)
            for fault in faults:
                with self.subTest(fault, variant=variant):
                    lying = run(*alone, env={**cache(), "VIRTUAL_GPU_FAULT": f"{fault}:{kernel}"})
                    self.assertIn(f"note: card check: {variant} falls back to {falls_back_to}", lying.result.out)
                    self.assertEqual(json.loads(lying.read("run.json"))["kernels"], [])
                    self.assertEqual(lying.losses, without.losses)

    def test_a_smaller_workspace(self):
        """If no algorithm with the whole workspace is correct, one with less is used, and counted."""
        flags, fault = ["--precision", "bf16", *QUICK], f"wrong-workspace:{FC} TN bf16*bf16->bf16 bias@4"
        lying = run(*flags, env={**cache(), "VIRTUAL_GPU_FAULT": fault})
        whole = run(*flags, "--card-check", "off", env=cache())
        product = "matmul forward bf16 N=256 C=64 OC=256 with bias"
        summary = json.loads(lying.read("run.json"))["card_check"]
        self.assertEqual(summary["fell_back"], 1)
        self.assertEqual(summary["fallbacks"], [f"{product}: falls back to an algorithm with at most 4.0 MiB of workspace"])
        self.assertEqual(json.loads(lying.read("run.json"))["products"][product]["workspace"], 4 << 20)
        ways = json.loads(lying.read("check.json"))[product]["ways"]
        self.assertEqual([("problem" in way, way.get("workspace")) for way in ways[-2:]],
                         [(True, None), (False, 4 << 20)])
        self.assertEqual(lying.losses, whole.losses)  # the same sums
        strict = check(*flags, "--strict", fault=fault)
        self.assertEqual(strict.code, 5, strict.out)
        self.assertRegex(strict.err, r"--strict.*\n.*attempt 1: ")

    # fault: code, the message about it
    REFUSALS = {
        "wrong-kernel:adamw_kernel": (5, r"adamw_update"),
        "hang-kernel:embedding_forward": (5, r"embedding_forward.*did not end within 3 s"),
        "wrong-product:bf16*bf16->bf16@all": (5, r"is wrong on this card with every algorithm"),
        "memory:1": (5, r"has 1.0 MiB"),
    }

    def test_nothing_correct_is_left(self):
        for fault, (code, said) in self.REFUSALS.items():
            with self.subTest(fault):
                done = check(*card_flags("delayed"), "--timeout-check", "3", fault=fault)
                self.assertEqual(done.code, code, done.out + done.err)
                self.assertRegex(done.err, said)

    # architecture: {fault of a fused kernel: (item that finds it, its fallback)}, {fault of a plain kernel: item}
    MODERN = {
        "llama": ({"wrong-kernel:layernorm_forward_fp8": ("rmsnorm_forward_fp8 N=144 C=64:", "layernorm_fp8"),
                   "wrong-kernel:layernorm_backward_fp8": ("rmsnorm_backward_fp8 e5m2 N=144 C=64:", "layernorm_backward_fp8"),
                   "stray:swiglu_forward_fp8": ("swiglu_forward_fp8 N=144 F=96:", "gelu_fp8"),
                   "wrong-kernel:swiglu_backward_fp8": ("swiglu_backward_fp8 e5m2 N=144 F=96:", "gelu_backward_fp8")},
                  {"wrong-kernel:layernorm_forward_kernel": "rmsnorm_forward bf16 N=149 C=64:",
                   "wrong-kernel:layernorm_backward_kernel": "rmsnorm_backward bf16 N=149 C=64:",
                   "wrong-kernel:rope_kernel": "rope bf16 HD=32 NH=2 NKV=1 N=298 T=149:",
                   "stray:swiglu_forward_kernel": "swiglu_forward bf16 N=149 F=96:",
                   "stray:attention_key_gradient": "attention bf16 HD=32 NH=2 NKV=1 B=2 T=277:",
                   "wrong-kernel:embedding_forward": "embedding_forward bf16 B=2 T=149 C=64 V=251 without positions:"}),
        "nano": ({"wrong-kernel:layernorm_forward_fp8": ("rmsnorm_forward_fp8 N=144 C=64 without gains:", "layernorm_fp8"),
                  "wrong-kernel:relu2_fp8_kernel<llmc::e4m3": ("relu2_forward_fp8 N=144 F=96:", "gelu_fp8"),
                  "stray:relu2_fp8_kernel<llmc::e5m2": ("relu2_backward_fp8 e5m2 N=144 F=96:", "gelu_backward_fp8")},
                 {"wrong-kernel:qk_norm_rope_backward": "qk_norm_rope bf16 HD=32 NH=2 NKV=1 N=298 T=149 without gains:",
                  "wrong-kernel:relu2_forward_kernel": "relu2_forward bf16 N=149 F=96:",
                  "wrong-kernel:softmax_cross_entropy": "softmax_cross_entropy bf16 N=5 V=257/384 capped at 15:"}),
    }

    @needs_fp8
    def test_other_architectures(self):
        """Several faults in one check: each is found by its own item."""
        for architecture, (fused, plain) in self.MODERN.items():
            flags = [*tiny(architecture), *card_flags("delayed")]
            honest, lying, hopeless = (check(*flags, fault=",".join(faults)) for faults in ({}, fused, plain))
            with self.subTest(architecture):
                self.assertEqual((honest.code, lying.code, hopeless.code), (0, 0, 5), lying.err + hopeless.out)
                right, items, fell_back = counts(honest.out)
                self.assertEqual((right, fell_back), (items, 0), honest.out)
                self.assertEqual(counts(lying.out)[2], len(fused), lying.out)
                for item, variant in fused.values():
                    self.assertIn(f"note: card check: {item} ", lying.out)
                    self.assertIn(f"note: card check: {variant} falls back to the plain ", lying.out)
                self.assertIn("this run needs kernels that are wrong on this card:", hopeless.err)
                for item in plain.values():
                    self.assertIn(f"\n  {item} ", hopeless.err)

    # Kernels that set initial values, and the kernel that counts spikes of the loss.
    UNCHECKED = {"fp8_reset_kernel", "fp8_clear_counts_kernel", "reset_loss_scale_kernel", "reset_spikes_kernel",
                 "update_spikes_kernel"}

    def test_everything_that_a_run_uses_is_checked(self):
        """The check launches every kernel that the run's steps launch, by the counts of the virtual GPU."""
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
                run(*flags, "--card-check", "off", "--max-steps", "2", env={**cache(), "VIRTUAL_GPU_COUNTS": of_run})
                left = {name for name in launched(of_run) - launched(of_check)
                        if not any(kernel in name for kernel in self.UNCHECKED)}
                self.assertGreater(len(launched(of_run)), 20)
                self.assertEqual(left, set())

    @needs_fp8
    def test_a_run_after_fallbacks(self):
        """SwiGLU's plain kernels and quantize() give the same codes as the fused ones, so the run is the same."""
        flags = [*tiny("llama"), *card_flags("delayed"), *QUICK]
        whole = run(*flags, "--card-check", "off", env=cache())
        fault = "wrong-kernel:swiglu_forward_fp8,wrong-kernel:swiglu_backward_fp8"
        lying = run(*flags, env={**cache(), "VIRTUAL_GPU_FAULT": fault})
        self.assertEqual(json.loads(lying.read("run.json"))["card_check"]["fell_back"], 2)
        self.assertEqual(lying.losses, whole.losses)

    @needs_fp8
    def test_strict(self):
        done = check(*card_flags("delayed"), "--strict", fault="wrong-kernel:gelu_forward_fp8_kernel")
        self.assertEqual(done.code, 5, done.out)
        self.assertRegex(done.err, r"--strict.*\n.*gelu_forward_fp8")

    def test_bits(self):
        """Found, reused and default algorithms that are correct give the same run."""
        env, flags = cache(), [*card_flags("delayed"), *QUICK]
        found, kept, off = (run(*flags, *more, env=env) for more in ([], [], ["--card-check", "off"]))
        self.assertIn("(known;", kept.result.out)
        self.assertEqual(found.losses, kept.losses)
        self.assertEqual(found.losses, off.losses)

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
        self.assertIn("The card's rates are from the table of cards.", table)
        self.assertIn("Links are assumed", table)
        path, = files_in(os.path.join(env["XDG_CACHE_HOME"], "train_gpt"))
        kept = read_json(path)
        kept["findings"]["copy"]["rates"] = measured
        write_json(path, {**kept, "changed": "2026-01-02"})
        text = plan()
        for said in ("Measured by the card check on this card (2026-01-02): matmuls in bf16, memory.",
                     "matmuls at 600 TFLOP/s in bf16", "kernels at 3.7 TB/s",
                     "all_gather 200 GB/s, reduce_scatter 100 GB/s per rank"):
            self.assertIn(said, text)
        self.assertIn("The card's rates are from the table of cards.", plan("--gpu", "h200"))

    def test_a_resumed_run_keeps_its_products(self):
        """Also if the library now proposes other algorithms first, whose sums have other bits."""
        other = {"VIRTUAL_GPU_HEURISTIC": "reversed"}
        flags = ["--precision", "bf16", *QUICK, "--max-steps", "6"]
        whole, different = run(*flags, env=cache()), run(*flags, env={**cache(), **other})
        self.assertNotEqual(whole.losses, different.losses)  # otherwise this test would show nothing
        begun = run(*flags, "--stop-after", "3", env=cache())
        with mock.patch.object(trainer, "PROGRAM", VIRTUAL):
            rest = trainer.run(*tiny_flags("--out", begun.directory, *flags, "--resume", "latest"), env={**cache(), **other})
        self.assertEqual(rest.code, 0, rest.err)
        self.assertEqual(begun.losses, whole.losses)

    def test_ranks(self):
        def ranks(fault="", *flags, env=None):
            with mock.patch.object(test_run_ranks, "PROGRAM", VIRTUAL):
                return test_run_ranks.run_ranks(
                    RANKS, *tiny_flags(*card_flags("delayed"), *QUICK, "--zero", "2", *flags),
                    env={**cache(), "VIRTUAL_GPU_DEVICES": str(RANKS), "VIRTUAL_GPU_FAULT": fault, **(env or {})})

        directory = {"XDG_CACHE_HOME": new_path("cache")}
        honest, kept = (ranks(env=directory) for _ in range(2))
        for done, known in ((honest, False), (kept, True)):
            self.assertEqual(done.code, 0, done.err)
            self.assertIn("checked between ranks: all_gather", done.out)
            self.assertEqual("(known;" in done.out, known)
        for path in files_in(os.path.join(directory["XDG_CACHE_HOME"], "train_gpt")):  # one per card
            links = read_json(path)["findings"][f"links of {RANKS} ranks"]
            self.assertEqual(set(links["rates"]), {"all_gather", "reduce_scatter"})
        losses = [re.findall(r"^step .* loss (\S+)", done.out, re.MULTILINE) for done in (honest, kept)]
        self.assertEqual(len(losses[0]), 5)
        self.assertEqual(losses[0], losses[1])
        for operation, call in (("all_gather", "ncclAllGather"), ("reduce_scatter", "ncclReduceScatter")):
            with self.subTest(operation):
                lying = ranks(f"corrupt:{call}")
                self.assertEqual(lying.code, 7, lying.out)
                self.assertRegex(lying.err, rf"card check: on .*{operation}.*expected")
        endless = ranks("stall:3", "--timeout-start", "4")
        self.assertEqual(endless.code, 7, endless.out)


if __name__ == "__main__":
    unittest.main()
