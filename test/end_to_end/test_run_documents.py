"""--doc-mask reaches training, validation, `eval` and resuming, and data whose documents have no known beginning is
refused. What it computes: test/model/documents.cpp."""

import unittest

from trainer import (CHECKPOINT, DATA, Case, FinishedRun, corpus, new_path, read_json, run, tiny_flags,
                     write_json, write_shard)

VALIDATION = ["--val", corpus().val, "--val-batches", "3", "--precision", "fp32"]


def shard(tokens, **sidecar):
    path = write_shard(tokens)
    if sidecar:
        write_json(path + ".json", sidecar)
    return path


class Documents(Case):
    def evaluated(self, trained, *flags):
        path = new_path() + ".json"
        self.succeeds(run("eval", "--from", trained.directory, *VALIDATION, "-b", 4, *flags, "-o", path))
        return read_json(path)["val_loss"]

    def test_the_flag_changes_training_validation_and_eval(self):
        short = ["--seq", "32"]  # half the context
        plain = FinishedRun(*VALIDATION, *short)
        masked = FinishedRun(*VALIDATION, *short, "--doc-mask", "--sample-every", "5", "--sample-tokens", "8")
        self.assertNotEqual(plain.losses[0], masked.losses[0])
        self.assertNotEqual(plain.validations[5], masked.validations[5])
        self.assertEqual(self.evaluated(masked), masked.validations[5])  # eval takes both flags from the run
        self.assertNotEqual(self.evaluated(masked, "--doc-mask=false"), masked.validations[5])
        self.assertNotEqual(self.evaluated(masked, "-t", 64), masked.validations[5])
        self.assertIs(masked.info["config"]["doc-mask"], True)
        self.assertEqual(len(masked.result.samples), 1)

    def test_refused(self):
        tokens = [i % 200 for i in range(4000)]
        llmc, other = shard(tokens), shard(tokens, tokenizer="my.json", vocab=257)
        for code, flags, *words in (
                (DATA, tiny_flags("--doc-mask", "--train", llmc, "--vocab", "257"),
                 "should begin with token 50256, as llm.c's do", "vocabulary of 257", llmc + '.json can say {"end_token"'),
                (DATA, tiny_flags("--doc-mask", "--train", other),
                 "which token begins the documents of " + other + " is not known"),
                (DATA, tiny_flags("--doc-mask", "--train", shard(tokens, vocab=257, end_token=201), "--val",
                                  shard(tokens, vocab=257, end_token=201)), "no document of", "begins with token 201"),
                (DATA, tiny_flags("--doc-mask", "--val", shard(tokens, vocab=257, end_token=7)),
                 "end_token 7 and 256")):
            with self.subTest(flags=flags):
                self.refused(run(*flags), code, *words)
        self.assertEqual(run("-e", "d12", "--doc-mask", "--dry-run", "--gpu", "h100").code, 0)  # a plan needs no data

    def test_resume(self):
        directory = new_path()
        flags = tiny_flags("--out", directory)
        self.assertEqual(run(*flags, "--stop-after", "2", "-n", "2").code, 0)
        self.refused(run(*flags, "--resume", "latest", "--doc-mask"), CHECKPOINT,
                     "written with --doc-mask false, this run has --doc-mask true, which is other data; --new-data")
        self.assertEqual(run(*flags, "--resume", "latest", "--doc-mask", "--new-data").code, 0)


if __name__ == "__main__":
    unittest.main()
