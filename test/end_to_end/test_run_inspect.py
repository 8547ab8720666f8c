"""train_gpt inspect: a micro-batch in three precisions from the weights of a run."""

import json
import os
import unittest

from trainer import DATA, FLAGS, Case, FinishedRun, corpus, new_path, read_records, run, tiny_flags, write_json, write_shard

PRODUCTS = ("forward", "dgrad", "wgrad")
LAYERS = [f"h.{l}.{linear}" for l in (0, 1) for linear in ("qkv", "attn_proj", "fc", "fc_proj")]


class Inspect(Case):
    def inspected(self, *flags):
        result = run("inspect", *flags, "--json")
        self.succeeds(result)
        return json.loads(result.out)

    def test_a_checkpoint(self):
        """With the run's flags, data and FP8 scales, or with flags of its own."""
        trained = FinishedRun("--precision", "fp8", "--max-steps", "4", "--total-batch", "512", "--checkpoint-every", "2")
        found = self.inspected("--from", trained.directory)
        self.assertEqual(found["from"], trained.directory)
        self.assertEqual((found["scales"], found["recipe"]), ("checkpoint", "delayed"))
        self.assertEqual(list(found["matmul_errors"]), sorted(LAYERS))
        for layer, errors in found["matmul_errors"].items():
            self.assertEqual(tuple(errors), PRODUCTS)
            for product, error in errors.items():  # E4M3 of random operands: 0.026 to 0.051
                self.assertTrue(0.004 < error < 0.15, (layer, product, error))
        for precision in ("fp32", "bf16", "fp8"):
            self.assertAlmostEqual(found[precision]["loss"], trained.losses[-1], delta=0.5)
            self.assertEqual(len(found[precision]["gradients"]), 2 + 2 * 12 + 2)
        self.assertAlmostEqual(found["fp32"]["cosine"], 1, delta=1e-12)
        # BF16 has a relative rounding error of at most 2^-9, E4M3 of 2^-4, E5M2 of 2^-3.
        angles = [1 - found[precision]["cosine"] for precision in ("bf16", "fp8")]
        self.assertTrue(0 < angles[0] < angles[1] < 0.01, angles)
        self.assertTrue(0 < 3 * found["against_bf16"]["kl_error"] < found["against_bf16"]["kl"] < 0.01, found["against_bf16"])
        self.assertAlmostEqual(found["against_bf16"]["loss"], found["bf16"]["loss"], delta=1e-5)

        early = os.path.join(trained.directory, "checkpoints", "step_00000002")
        of_early = self.inspected("--from", early)
        self.assertEqual(of_early["scales"], "checkpoint")
        self.assertNotEqual(of_early["fp32"], found["fp32"])
        changed = self.inspected("--from", early, "--fp8-recipe", "current", "--fp8-layers", "all,-block0.fc", "--batch", "2",
                                 "--seed", "5")
        self.assertEqual((changed["scales"], changed["recipe"]), ("measured", "current"))
        self.assertEqual(set(LAYERS) - changed["matmul_errors"].keys(), {"h.0.fc"})
        self.assertNotEqual(changed["fp32"]["loss"], of_early["fp32"]["loss"])
        # An eighth of a step's tokens: its losses have the weight that they have in a step, so gradients fit their scales.
        for layer, errors in self.inspected("--from", early, "--batch", "1")["matmul_errors"].items():
            self.assertLess(max(errors.values()), 0.15, layer)
        # A margin of 16 powers of two makes most values underflow.
        margin = self.inspected("--from", early, "--fp8-margin", "16")
        for layer, errors in margin["matmul_errors"].items():
            self.assertGreater(errors["forward"], 3 * of_early["matmul_errors"][layer]["forward"], layer)
        self.assertGreater(1 - margin["fp8"]["cosine"], 10 * (1 - of_early["fp8"]["cosine"]))

    def test_the_table(self):
        trained = FinishedRun("--precision", "fp8", "--max-steps", "2")
        found, text = self.inspected("--from", trained.directory), run("inspect", "--from", trained.directory).out
        self.assertIn("FP8 scales of the checkpoint", text)
        rows = {row[0]: row[1:] for row in map(str.split, text.splitlines()) if row}
        self.assertEqual(rows["fp32"], [f"{found['fp32']['loss']:.6f}", "+0.0000", "%", "1.000000", "1.000000"])
        self.assertEqual(rows["bf16"][0], f"{found['bf16']['loss']:.6f}")
        self.assertEqual(rows["fp8"][0], "delayed")
        self.assertEqual(rows["KL(BF16"][2], f"{found['against_bf16']['kl']:.4e}")
        fc = found["fp8"]["gradients"]["h.1.fc.weight"]
        expected = [f"{found['bf16']['gradients']['h.1.fc.weight']['cosine']:.6f}", f"{fc['cosine']:.6f}", f"{fc['gain']:.6f}"]
        for product in PRODUCTS:
            expected += [f"{100 * found['matmul_errors']['h.1.fc'][product]:.3f}", "%"]
        self.assertEqual(rows["h.1.fc"], expected)
        self.assertEqual(len(rows["wpe"]), 3)

    def test_gradients_are_those_of_training(self):
        """Loss and norm are those of the first step of a run from these weights, in GPT-2 and a llama with an FP8 head."""
        model = new_path() + ".json"
        write_json(model, {"architecture": "llama", "layers": 2, "heads": 2, "kv_heads": 1, "channels": 64, "hidden": 128,
                           "context": 64})
        for shape in ([], ["--model", model]):
            weights = FinishedRun("--precision", "fp32", "--max-steps", "2", *shape).directory
            layers = ["--fp8-layers", "all,+lm_head" if shape else "all"]
            found = self.inspected("--from", os.path.join(weights, "model.safetensors"), "--train", corpus().train,
                                   "--batch", "4", "--seq", "64", *layers)
            self.assertEqual(found["scales"], "measured")
            self.assertEqual("lm_head" in found["matmul_errors"], bool(shape))
            for precision, digits in (("fp32", 5), ("bf16", 5), ("fp8", 2)):
                with self.subTest(precision=precision, shape=shape):
                    out = new_path()
                    self.succeeds(run(*tiny_flags("--precision", precision, *shape, *layers, "--init-from", weights, "--loss-scale",
                                                  "off", "--max-steps", "1", "--out", out)))
                    first, = [r for r in read_records(out) if "loss" in r]
                    self.assertAlmostEqual(found[precision]["loss"], first["loss"], places=4)
                    self.assertAlmostEqual(found[precision]["norm"] / first["norm"], 1, places=digits)

    def test_a_run_on_a_mixture(self):
        trained = FinishedRun("--precision", "bf16", "--max-steps", "2", "--train", f"{corpus().train}:1,{corpus().val}:1")
        self.assertEqual(self.inspected("--from", trained.directory)["scales"], "measured")

    def test_documents(self):
        """With --doc-mask the token that begins documents must be known, as in training."""
        tokens = [256 if i % 50 == 0 else i % 50 for i in range(2000)]
        shard, weights = write_shard(tokens), FinishedRun("--precision", "fp32", "--max-steps", "1").path("model.safetensors")
        flags = ["--from", weights, "--train", shard, "--batch", "2", "--seq", "64"]
        self.refused(run("inspect", *flags, "--doc-mask"), DATA, "begin with token 50256")
        write_json(shard + ".json", {"end_token": 256})
        self.assertNotEqual(self.inspected(*flags)["fp32"]["loss"], self.inspected(*flags, "--doc-mask")["fp32"]["loss"])

    def test_refusals(self):
        trained = FinishedRun("--precision", "bf16", "--max-steps", "1")
        self.refused(run("inspect", "--from", os.path.join(trained.directory, "model.safetensors")), FLAGS, "add --train")
        self.refused(run("inspect", "--from", trained.directory, "--train", "no/such*.bin"), DATA, "no/such*.bin")
        self.refused(run("inspect", "--from", trained.directory, "--batch", "1", "--seq", "8"), FLAGS, "multiple of 16")


if __name__ == "__main__":
    unittest.main()
