"""--doc-mask: what a run with it says and leaves, which token begins documents, and what is refused."""

import json
import unittest

from trainer import FinishedRun, corpus, new_path, run, tiny_flags, write_shard

DATA, CHECKPOINT = 3, 4
END = 256  # of the corpus: bytes and the token that begins a sentence


def shard(tokens, **sidecar):
    path = write_shard(tokens)
    if sidecar:
        with open(path + ".json", "w", encoding="utf-8") as file:
            json.dump(sidecar, file)
    return path


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.masked = FinishedRun("--doc-mask", "--val", corpus().val, "--val-batches", "3", "--sample-every", "5",
                                 "--sample-tokens", "8", "--precision", "fp32")

    def test_a_run_says_so(self):
        configuration = json.loads(self.masked.read("run.json"))["config"]
        self.assertIs(configuration["doc-mask"], True)
        self.assertEqual(len(self.masked.result.samples), 1)

    def test_losses_are_others(self):
        plain = FinishedRun("--val", corpus().val, "--val-batches", "3", "--precision", "fp32")
        self.assertNotEqual(plain.losses[0], self.masked.losses[0])
        self.assertNotEqual(plain.validations[5], self.masked.validations[5])

    def test_data_without_an_end_token_inside(self):
        """The sidecar of the same tokens names one that none of them is: no bit is another one."""
        tokens = [(i * i + 3 * i) % 256 for i in range(4000)]
        plain = FinishedRun("--train", shard(tokens, vocab=257))
        masked = FinishedRun("--train", shard(tokens, vocab=257, end_token=END), "--doc-mask")
        self.assertEqual(plain.read("model.safetensors"), masked.read("model.safetensors"))

    def test_eval(self):
        def loss(*flags):
            path = new_path() + ".json"
            done = run("eval", "--from", self.masked.directory, "--val", corpus().val, "--val-batches", "3", *flags,
                       *shape, "--precision", "fp32", "-o", path)
            self.assertEqual(done.code, 0, done.err)
            with open(path, encoding="utf-8") as file:
                return json.load(file)["val_loss"]
        configuration = json.loads(self.masked.read("run.json"))["config"]
        shape = ["-b", configuration["batch"], "-t", configuration["seq"]]
        self.assertEqual(loss("--doc-mask"), self.masked.validations[5])
        self.assertNotEqual(loss(), self.masked.validations[5])

    def refused(self, words, *flags):
        result = run(*tiny_flags(*flags, "--doc-mask"))
        self.assertEqual(result.code, DATA, result.err)
        for word in words:
            self.assertIn(word, result.err)

    def test_learned_positions(self):
        """They begin anew on request, while training, in validation, and in `eval`; in a model that has them."""
        flags = ["--doc-mask", "--val", corpus().val, "--val-batches", "3", "--precision", "fp32"]
        anew = FinishedRun(*flags, "--doc-positions")
        self.assertNotEqual(anew.losses[0], self.masked.losses[0])
        path = new_path() + ".json"
        configuration = json.loads(anew.read("run.json"))["config"]
        done = run("eval", "--from", anew.directory, "--val", corpus().val, "--val-batches", "3", "-b",
                   configuration["batch"], "-t", configuration["seq"], "--doc-mask", "--doc-positions", "--precision", "fp32",
                   "-o", path)
        self.assertEqual(done.code, 0, done.err)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["val_loss"], anew.validations[5])
        for words, wrong in (("--doc-positions needs --doc-mask", tiny_flags("--doc-positions")),
                             ("needs learned positions, and this model's are rotary", ["-e", "qwen3-0.6b", "--doc-mask", "--doc-positions",
                                                                      "--dry-run", "--gpu", "h100"])):
            result = run(*wrong)
            self.assertEqual(result.code, 2, result.err)
            self.assertIn(words, result.err)

    def test_unknown_end_tokens_are_refused(self):
        tokens = [i % 200 for i in range(4000)]
        llmc = shard(tokens)
        self.refused(["should begin with token 50256, as llm.c's do", "vocabulary of 257", llmc + '.json can say {"end_token"'],
                     "--train", llmc, "--vocab", "257")
        other = shard(tokens, tokenizer="my.json", vocab=257)
        self.refused(["which token begins the documents of " + other + " is not known"], "--train", other)
        self.refused(["begin with token 7, those of the first set with 256"], "--val",
                     shard(tokens, vocab=257, end_token=7))

    def test_a_plan_needs_no_data(self):
        result = run("-e", "d12", "--doc-mask", "--dry-run", "--gpu", "h100")
        self.assertEqual(result.code, 0, result.err)

    def test_resume(self):
        directory = new_path()
        flags = tiny_flags("--out", directory)
        self.assertEqual(run(*flags, "--stop-after", "2", "-n", "2").code, 0)
        refused = run(*flags, "--resume", "latest", "--doc-mask")
        self.assertEqual(refused.code, CHECKPOINT, refused.err)
        self.assertIn("written with --doc-mask false, this run has --doc-mask true, which is other data; --new-data",
                      refused.err)
        self.assertEqual(run(*flags, "--resume", "latest", "--doc-mask", "--new-data").code, 0)


if __name__ == "__main__":
    unittest.main()
