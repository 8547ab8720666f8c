"""The report of a run of `prepare text`: counts, sizes and speed, as report.json, report.txt and, with matplotlib, a
picture.
"""

import json
import os
import sys
import time

import numpy

from .chunks import DROPPED, TRAIN, VAL
from .outputs import PICTURE
from .readers import TEXT_KINDS, import_tqdm, with_crlf
from .table import MISCOUNTED
from .tokenizers import PrepareError

SHARE_ERROR = 0.1  # a larger error of an input's share of the mixture, relative to the share, gets a note
SPLITS = {TRAIN: "train", VAL: "val"}


def plural(count, noun):
    return f"{count} {noun}" + "s" * (count != 1)


def printable(text):
    """The text without characters that could disturb a terminal, such as escape sequences and newlines."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def quoted(text):
    """The text as a shell and --separator take it."""
    return "'" + text.encode("unicode_escape").decode("ascii") + "'"


def progress_bar(total):
    """A progress bar of tqdm, which shows itself on a terminal only, or one that never does if tqdm is missing."""
    try:
        tqdm = import_tqdm()
    except ImportError:
        return NoProgress()
    return tqdm(total=total, unit="B", unit_scale=True, desc="tokenizing", disable=not sys.stderr.isatty())


class NoProgress:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, _):
        pass


class Report:
    def __init__(self, options, tokenizer, workers, by_place, parts):
        self.options, self.tokenizer, self.workers = options, tokenizer, workers
        self.by_place, self.files = by_place, len({part.path for part in parts})
        self.kinds = {part.kind for part in parts}
        self.separated_files = self.unseparated_files = self.crlf_files = self.html = 0
        self.changed_files = []  # inputs that changed while they were read
        self.markers = {}  # texts that usually begin or end documents, with the number of occurrences
        self.started = time.perf_counter()
        self.documents = self.replaced_documents = self.replaced = 0
        self.changed = 0  # documents whose tokens stand for another text
        self.bytes = self.miscounted = 0  # of all documents
        self.documents_now = self.tokens_now = 0  # without those of a stopped run that this one continues
        self.dropped, self.bad, self.replaced_in = {}, [], []
        self.seconds = self.tokenizer_seconds = 0.0
        self.train_tokens = [0] * len(options.inputs)  # by source, before the mixture
        self.mixture_notes = []
        self.documents_of = {"train": 0, "val": 0}
        self.kept_bytes = self.kept_tokens = 0
        self.lengths = numpy.zeros(64, numpy.int64)  # documents by the logarithm of their number of tokens
        self.shards = {}

    def add_chunk(self, counts):
        for name in ("documents", "replaced_documents", "replaced", "changed", "bytes", "miscounted", "separated_files",
                     "unseparated_files", "crlf_files", "html", "seconds", "tokenizer_seconds"):
            setattr(self, name, getattr(self, name) + counts[name])
        for reason, count in counts["dropped"].items():
            self.drop(reason, count)
        for marker, count in counts["markers"].items():
            self.markers[marker] = self.markers.get(marker, 0) + count
        self.bad += counts["bad"]
        self.replaced_in += [path for path in counts["replaced_in"] if path not in self.replaced_in]
        if not counts.get("earlier"):
            self.documents_now += counts["documents"]
            self.tokens_now += counts["tokens"]

    def drop(self, reason, count=1):
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def keep(self, source, verdicts, lengths, sizes):
        kept = verdicts != DROPPED
        for verdict, name in SPLITS.items():
            self.documents_of[name] += int((verdicts == verdict).sum())
        self.train_tokens[source] += int(lengths[verdicts == TRAIN].sum())
        self.kept_bytes += int(sizes[kept].sum())
        self.kept_tokens += int((lengths[kept] - 1).sum())  # without the end token
        self.lengths += numpy.bincount(numpy.log2(lengths[kept]).astype(int), minlength=64)

    def check_splits(self):
        train, val = self.documents_of["train"], self.documents_of["val"]
        reasons = sorted(self.dropped.items())
        if train + val == 0:
            why = "; ".join(f"{reason}: {count}" if len(reasons) > 1 else reason for reason, count in reasons)
            raise PrepareError(f"no document is left of {plural(self.files, 'file')}" + (f" ({why})" if why else ""))
        if train == 0:
            raise PrepareError(f"--val-fraction {self.options.val_fraction}: too little text ({plural(val, 'document')}) "
                               "to leave anything for training; --val-fraction 0 makes no validation set")
        if val == 0 and self.options.val_fraction > 0:
            raise PrepareError(f"none of {plural(train, 'document')} fell into the validation set of --val-fraction "
                               f"{self.options.val_fraction}; use a larger fraction, or 0 for no validation set")

    def check_mixture(self, tokens, documents):
        """Refuses a mixture without anything of an input, and notes shares that differ from the weights. Both lists are
        by source: the training tokens in the mixture, and the number of documents to choose from.
        """
        weights = [weight for _, weight in self.options.inputs]
        for (name, weight), own, count in zip(self.options.inputs, tokens, documents):
            share = weight / sum(weights)
            why = f"a mixture takes or leaves out whole documents, and {name} has {count}"
            if self.kinds & TEXT_KINDS and self.options.separator is None:
                why += "; --separator makes several documents of a text file"
            if own == 0:
                raise PrepareError(f"the training text has nothing of {name} instead of {100 * share:.3g} %: {why}")
            if abs(own / sum(tokens) - share) > SHARE_ERROR * share:
                self.mixture_notes.append(f"{name} has {100 * own / sum(tokens):.3g} % of the training tokens instead of "
                                          f"{100 * share:.3g} %: {why}")

    def notes(self):
        """Sentences about shares of the mixture, options and markers that had no effect, and inputs that may not be what was
        meant.
        """
        options, notes = self.options, list(self.mixture_notes)
        if self.changed_files:
            notes.append(f"{self.changed_files[0]} changed while it was read, so documents of it may be missing or cut off; give "
                         "the command again with --overwrite")
        if options.separator is not None:
            flag = f"--separator {quoted(options.separator)}"
            if "separated" not in self.kinds:
                notes.append(f"{flag} had no effect, because no input is a text file")
            elif self.unseparated_files == self.separated_files:
                notes.append(f"{flag} occurs in none of {plural(self.separated_files, 'text file')}: each became one "
                             "document")
            if self.crlf_files:
                better = with_crlf(options.separator.encode()).decode()
                notes.append(f"{plural(self.crlf_files, 'text file')} without {flag} would be separated by "
                             f"--separator {quoted(better)}: the lines end with CRLF")
        if options.column != "text" and self.kinds <= TEXT_KINDS | {"bad"}:
            notes.append(f"--column {options.column} had no effect, because no input has fields")
        if options.max_epochs != 1 and not options.is_mixture:
            notes.append(f"--max-epochs {options.max_epochs:g} had no effect, because no input has a weight")
        if self.html:
            notes.append(f"HTML was tokenized with its tags, in {plural(self.html, 'document')}; extract the texts first unless "
                         "the model is to write HTML")
        for marker, count in sorted(self.markers.items()):
            notes.append(f"{quoted(marker)} occurs {plural(count, 'time')} in the text and was tokenized like other "
                         f"text; if it separates the documents of text files, give --separator {quoted(marker)}")
        return notes

    def add_shards(self, name, sidecars):
        self.shards[name] = {"shards": len(sidecars), "tokens": sum(s["tokens"] for s in sidecars),
                             "documents": sum(s["documents"] for s in sidecars)}

    def table_is_exact(self):
        """True if the bytes of the tokens add up to those of the documents."""
        return self.miscounted <= MISCOUNTED * self.bytes

    def facts(self):
        wall = time.perf_counter() - self.started
        kept = sum(self.documents_of.values())
        used = numpy.flatnonzero(self.lengths)
        return {
            "inputs": [name if weight is None else f"{name}@{weight:g}" for name, weight in self.options.inputs],
            "tokenizer": self.tokenizer.name, "vocab": self.tokenizer.vocab, "tokenizer_hash": self.tokenizer.hash,
            "documents": self.documents, "kept": kept, "dropped": dict(sorted(self.dropped.items())),
            "invalid_utf8": {"documents": self.replaced_documents, "characters": self.replaced},
            "changed_by_tokenizer": {"documents": self.changed, "miscounted_bytes": self.miscounted},
            "split": "start" if self.by_place else "hash", **self.shards,
            "bytes_per_token": self.kept_bytes / max(self.kept_tokens, 1),
            "notes": self.notes(),
            "lengths": {f"{1 << i}": int(self.lengths[i]) for i in range(used[0], used[-1] + 1)},
            "speed": {"seconds": wall, "workers": self.workers, "documents_per_s": self.documents_now / wall,
                      "tokens_per_s": self.tokens_now / wall,
                      "of_the_tokenizer_alone": self.tokenizer_seconds / max(self.seconds, 1e-9)},
        }

    def text(self, facts):
        lines = [f"{plural(facts['documents'], 'document')} in, {facts['kept']} kept"]
        lines += [f"  {count:>10} dropped: {reason}" for reason, count in facts["dropped"].items()]
        lines += [f"  {'':>10}   {printable(message)}" for message in self.bad[:5]]
        if self.replaced_documents:
            lines.append(f"  {self.replaced_documents:>10} had bytes that are not valid UTF-8: {self.replaced} replaced")
            lines += [f"  {'':>10}   {printable(path)}" for path in self.replaced_in[:5]]
        if self.changed:
            lines.append(f"  {self.changed:>10} changed by the tokenizer: the tokens stand for another text; lengths "
                         f"differ by {plural(self.miscounted, 'byte')} of {self.bytes}")
        if not self.table_is_exact():
            lines.append("so bits per byte will be computed from the mean bytes per token")
        for name, shards in self.shards.items():
            lines.append(f"{name}: {plural(shards['tokens'], 'token')}, {plural(shards['documents'], 'document')}, "
                         f"{plural(shards['shards'], 'shard')}")
        lines.append(f"{facts['bytes_per_token']:.3f} bytes per token ({facts['tokenizer']}, vocabulary "
                     f"{facts['vocab']})")
        lines.append("documents by their length in tokens:")
        most = max(facts["lengths"].values())
        for length, count in facts["lengths"].items():
            lines.append(f"  from {length:>8}: {count:>9} " + "#" * -(-50 * count // most))
        speed = facts["speed"]
        lines.append(f"{speed['seconds']:.1f} s, {plural(speed['workers'], 'worker')}: {speed['documents_per_s']:.0f} "
                     f"documents/s, {speed['tokens_per_s']:.0f} tokens/s; {100 * speed['of_the_tokenizer_alone']:.0f} % "
                     "of the time for the tokenizer")
        lines += [f"note: {note}" for note in facts["notes"]]
        return "\n".join(lines) + "\n"

    def write(self, folder):
        facts = self.facts()
        text = self.text(facts)
        with open(os.path.join(folder, "report.json"), "w") as file:
            json.dump(facts, file, indent=2)
            file.write("\n")
        with open(os.path.join(folder, "report.txt"), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        draw(facts, os.path.join(folder, "report.png"))
        print(text, end="")


def draw(facts, path):
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.bar(range(len(facts["lengths"])), facts["lengths"].values(), width=0.9)
    axes.set_xticks(range(len(facts["lengths"])), facts["lengths"], rotation=45)
    axes.set(xlabel="tokens in a document, from", ylabel="documents",
             title=f"{facts['kept']} documents, {facts['bytes_per_token']:.2f} bytes per token")
    figure.savefig(path, dpi=120, metadata={"Software": PICTURE})
    pyplot.close(figure)
