"""Command line of the package: `python3 -m data.prepare COMMAND --help`."""

import argparse
import codecs
import errno
import importlib.util
import json
import os
import re
import sys

NEEDED = ("numpy", "tiktoken", "tokenizers")  # packages; if one is missing here, .venv has it


def whole_number(text):
    """Parses 1000, 500k or 100M."""
    found = re.fullmatch(r"(\d+)([kMG]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number like 1000, 500k or 100M")
    return int(found[1]) * {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[found[2]]


def weighted_input(text):
    """Parses NAME@WEIGHT into (name, weight), unless a file has exactly that name."""
    name, at, weight = text.rpartition("@")
    if not at or os.path.exists(text):
        return text, None
    try:
        value = float(weight)
    except ValueError:
        return text, None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"the weight of {text} is not above 0")
    if re.fullmatch("hf:[^@:]+", name) and value >= 1000:
        raise argparse.ArgumentTypeError(f"{weight} could be a revision or a weight of {name}; write {text}: for the revision, "
                                         "or give weights below 1000")
    return name, value


def rule_names(text):
    names = tuple(text.split(","))
    if not set(names) <= {"c4", "gopher"}:
        raise argparse.ArgumentTypeError(f"'{text}' is not c4, gopher or c4,gopher")
    return names


def unescaped(text):
    try:
        found = codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
        found.encode()
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} has a wrong escape sequence: {error.reason}") from None
    return found


def cores():
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def add_tokenizer(command, default):
    command.add_argument("--tokenizer", metavar="NAME|FILE", default=default,
                         help="bytes; gpt2 or another tiktoken name (its vocabulary is downloaded once); NAME=FILE "
                              "with a local copy of that vocabulary; a file with GPT-2's (gpt2.tiktoken, or llm.c's "
                              "tokenizer.bin); or a tokenizer.json; default: %(default)s")
    command.add_argument("--end-token", metavar="TOKEN",
                         help="the token that begins documents, for a tokenizer.json that puts none in front of a text "
                              "and has none with a usual name")


def add_format(command):
    command.add_argument("--column", default="text", metavar="NAME",
                         help="field with the text in JSON, parquet, Arrow files and datasets; default: %(default)s")
    command.add_argument("--separator", type=unescaped, metavar="TEXT",
                         help="text between the documents of a text file ('\\n\\n', '<|endoftext|>'); by default a "
                              "file is one document")
    command.add_argument("--structured-as-text", action="store_true",
                         help="read JSON, tables of comma-separated values, WARC and RTF files as text, as in a folder "
                              "of source code; by default records of JSON are documents and the others are refused")


def add_text(commands):
    about = "Converts text, JSON lines, parquet and datasets to train_*.bin and val_*.bin, with a report."
    text = commands.add_parser("text", help=about, description=about)
    text.add_argument("inputs", nargs="+", type=weighted_input, metavar="INPUT[@WEIGHT]",
                      help="file (text, JSON, parquet or Arrow; text and JSON also compressed with gzip, zstd, xz or "
                           "bzip2), directory, 'pattern', hf:NAME[@REVISION][:CONFIG[:SPLIT]], tinystories, fineweb or "
                           "fineweb-edu; weights are the inputs' shares of the training tokens")
    text.add_argument("--out", required=True, metavar="DIR", help="directory for shards, sidecars and report")
    add_tokenizer(text, "bytes")
    add_format(text)
    text.add_argument("--workers", type=int, default=cores(), metavar="N", help="processes; default: one per core (%(default)s)")
    text.add_argument("--val-fraction", type=float, default=0.05, metavar="F",
                      help="fraction of the documents in the validation set; default: %(default)s")
    text.add_argument("--val-split", choices=("auto", "hash", "start"), default="auto",
                      help="choose validation documents by hash, or take the start of the text (of each input, if they "
                           "have weights); auto (default): start with fewer than 100 text files, otherwise hash")
    text.add_argument("--shard-tokens", type=whole_number, default=100_000_000, metavar="N",
                      help="tokens per shard; default: 100M")
    text.add_argument("--normalize", choices=("none", "nfc", "nfkc"), default="none",
                      help="convert to this Unicode normal form and newlines to \\n, and remove control characters; "
                           "default: %(default)s")
    text.add_argument("--rules", type=rule_names, default=(), metavar="c4,gopher",
                      help="drop documents by these published rules for web text, in the given order")
    text.add_argument("--dedup", choices=("none", "exact", "minhash"), default="exact",
                      help="drop documents that are equal to an earlier one, or (minhash) also similar ones; default: "
                           "%(default)s")
    text.add_argument("--decontaminate", action="append", default=[], metavar="INPUT",
                      help="drop documents that share 13 consecutive words with this evaluation set")
    text.add_argument("--max-epochs", type=float, default=1.0, metavar="N",
                      help="most times that a mixture may contain a document; default: %(default)s")
    text.add_argument("--skip-bad", action="store_true", help="skip and count unreadable records and files")
    text.add_argument("--overwrite", action="store_true", help="replace shards that are already in DIR")


def add_others(commands):
    def add(name, about):
        return commands.add_parser(name, help=about, description=about)

    shakespeare = add("tinyshakespeare", "Prepares Tiny Shakespeare as llm.c does.")
    shakespeare.add_argument("--out", required=True, metavar="DIR", help="directory for the shards and sidecars")
    add_tokenizer(shakespeare, "gpt2")
    shakespeare.add_argument("--text", metavar="FILE", help="a local copy of its text, so that nothing is downloaded")

    download = add("download", "Fetches published shards, or a text to begin with, and checks them.")
    download.add_argument("name", choices=("fineweb10B", "fineweb-edu10B", "tinyshakespeare"),
                          help="10 billion tokens of FineWeb or FineWeb-Edu with GPT-2's tokenizer (20 GB), with their "
                               "sidecars; or the text of Tiny Shakespeare (1 MB)")
    download.add_argument("--out", required=True, metavar="DIR", help="directory for the files")
    download.add_argument("--shards", type=int, metavar="N",
                          help="only the validation shard and the first N training shards, of 100M tokens (0.2 GB) each")
    download.add_argument("--revision", metavar="COMMIT", help="of the data set on the hub; default: the newest, or that "
                                                                "of the shards in DIR")
    download.add_argument("--tokenizer", metavar="FILE",
                          help="gpt2.tiktoken, or llm.c's tokenizer.bin, so that its vocabulary is not downloaded")

    hellaswag = add("hellaswag", "Writes HellaSwag as llm.c's evaluation file.")
    hellaswag.add_argument("--out", required=True, metavar="FILE", help="hellaswag_val.bin, for example")
    add_tokenizer(hellaswag, "gpt2")
    hellaswag.add_argument("--split", choices=("val", "train"), help="the file to download; default: val")
    hellaswag.add_argument("--input", metavar="FILE", help="a local copy of its .jsonl, so that nothing is downloaded")

    task = add("task", "Converts ARC, PIQA, Winogrande, or a task of nanochat's CORE for train_gpt --task NAME=FILE.")
    task.add_argument("task", choices=("arc", "piqa", "winogrande", "core"), help="arc: ARC-Easy and ARC-Challenge")
    task.add_argument("--input", required=True, metavar="FILE",
                      help="its .jsonl as published, or Hugging Face's .jsonl or .parquet")
    task.add_argument("--labels", metavar="FILE",
                      help="for piqa as published: the label of each question, one per line")
    task.add_argument("--out", required=True, metavar="FILE", help="arc_easy.bin, for example")
    add_tokenizer(task, "gpt2")
    task.add_argument("--shots", type=whole_number, default=0, metavar="N",
                      help="for core: number of answered questions before each question; default: 0")
    task.add_argument("--delimiter", type=unescaped, default=" ", metavar="TEXT",
                      help="for core: text between a context and its choice; default: a space")

    train = add("train-tokenizer", "Trains a byte-level BPE tokenizer on text and writes tokenizer.json.")
    train.add_argument("inputs", nargs="+", metavar="INPUT", help="as for text")
    train.add_argument("--out", required=True, metavar="FILE", help="tokenizer.json, for example")
    train.add_argument("--vocab", type=whole_number, required=True, metavar="N",
                       help="number of tokens, including the end token")
    add_format(train)

    encode = add("encode", "Answers each line of standard input, a JSON string, with the text's ids, a JSON array.")
    table = add("table", "Writes tokenizer.bin, the bytes of each token, to standard output.")
    as_json = add("json", "Writes a tokenizer.json that gives the tokenizer's ids to standard output.")
    for command in (encode, table, as_json):
        add_tokenizer(command, "bytes")
    for command in (table, as_json):
        command.add_argument("--out", metavar="FILE", help="write this file instead")

    inspect = add("inspect", "Prints the header, sidecar and first documents of shards.")
    validate = add("validate", "Checks size, checksum and ids of shards, that they share a tokenizer, and that no "
                               "document is in both train and val.")
    merge = add("merge", "Rewrites shards as shards of another size.")
    for command in (inspect, validate, merge):
        command.add_argument("shards", nargs="+", metavar="SHARD")
    for command in (inspect, validate):
        command.add_argument("--tokenizer", metavar="NAME|FILE", help="refuse shards of any other")
    inspect.add_argument("--documents", type=whole_number, default=2, metavar="N",
                         help="number of documents to print; default: %(default)s")
    merge.add_argument("--out", required=True, metavar="PREFIX", help="writes PREFIX_000000.bin and so on")
    merge.add_argument("--shard-tokens", type=whole_number, default=100_000_000, metavar="N",
                       help="tokens per shard; default: 100M")


def parse(argv):
    parser = argparse.ArgumentParser(prog="prepare", description="Turns text into token shards for train_gpt.")
    commands = parser.add_subparsers(dest="command", required=True)
    add_text(commands)
    add_others(commands)
    args = parser.parse_args(argv)
    for name, value in vars(args).items():  # an empty value is usually that of a shell variable which is not set
        if value == "" and name != "delimiter":
            parser.error(f"--{name.replace('_', '-')} is empty")
    return parser, args


def run(parser, args):
    from . import (chunks, download, encode, hellaswag, pipeline, readers, shard_tools, tasks, tinyshakespeare, tokenizers,
                   train_tokenizer)
    if args.command == "text":
        if args.workers < 1:
            parser.error(f"--workers {args.workers}: at least 1")
        fields = chunks.Options.__dataclass_fields__
        options = chunks.Options(**{name: value for name, value in vars(args).items() if name in fields})
        pipeline.prepare(options, args.out, args.workers, args.overwrite)
    elif args.command == "tinyshakespeare":
        tokenizer = tokenizers.open_tokenizer(args.tokenizer, args.end_token)
        tinyshakespeare.prepare_tinyshakespeare(args.out, tokenizer, args.text)
    elif args.command == "download":
        if args.name != "tinyshakespeare":
            download.download(args.name, args.out, args.shards, args.revision, args.tokenizer)
        elif (args.shards, args.revision, args.tokenizer) != (None, None, None):
            parser.error("--shards, --revision and --tokenizer are for shards, not for tinyshakespeare")
        else:
            tinyshakespeare.download_text(args.out)
    elif args.command == "hellaswag":
        if args.input and args.split:
            parser.error("--split chooses the file to download, and --input names one")
        tokenizer = tokenizers.open_tokenizer(args.tokenizer, args.end_token)
        hellaswag.prepare_hellaswag(args.out, tokenizer, args.split or "val", args.input)
    elif args.command == "task":
        if args.task != "piqa" and args.labels:
            parser.error(f"--labels: the labels of {args.task} are in its rows")
        if args.task != "core" and (args.shots or args.delimiter != " "):
            parser.error(f"--shots and --delimiter are for core, not for {args.task}")
        tokenizer = tokenizers.open_tokenizer(args.tokenizer, args.end_token)
        tasks.prepare_task(args.task, args.out, tokenizer, args.input, args.labels, args.shots, args.delimiter)
    elif args.command == "train-tokenizer":
        separator = None if args.separator is None else args.separator.encode()
        train_tokenizer.train_tokenizer(args.inputs, args.out, args.vocab,
                                        readers.Format(args.column, separator, args.structured_as_text))
    elif args.command == "encode":
        return encode.encode(args.tokenizer, args.end_token)
    elif args.command == "table":
        encode.write_table(args.tokenizer, args.end_token, args.out)
    elif args.command == "json":
        encode.write_json(args.tokenizer, args.end_token, args.out)
    elif args.command == "inspect":
        shard_tools.inspect(args.shards, args.tokenizer, args.documents)
    elif args.command == "validate":
        shard_tools.validate(args.shards, args.tokenizer)
    else:
        shard_tools.merge(args.shards, args.out, args.shard_tokens)
    return 0


def restart_in_venv(command):
    """Restarts this program with the Python of .venv if this one lacks a package; setup.sh installs packages there."""
    python = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".venv", "bin", "python"))
    started_by_this = sys.orig_argv[0] == python
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not started_by_this and os.access(python, os.X_OK):
        os.execv(python, [python, *sys.orig_argv[1:]])
    if "numpy" in missing:
        message = "it needs the Python package numpy: pip install numpy, or scripts/setup.sh"
        if command == "encode":  # its reader expects JSON
            print(json.dumps({"error": message}), flush=True)
            sys.exit(1)
        sys.exit(f"prepare: {message}")


def main(argv=None):
    parser, args = parse(argv)
    if argv is None:
        restart_in_venv(args.command)
        sys.stdout.reconfigure(errors="backslashreplace")  # names and texts may have characters that the locale has not
    from .report import printable
    from .tokenizers import PrepareError
    try:
        return run(parser, args)
    except (PrepareError, ValueError) as error:
        print(f"prepare: {printable(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        # A write that fails does not know its file; all files are written to --out.
        name = error.filename or (full or error.errno == errno.EFBIG) and getattr(args, "out", None)
        text = f"{name}: {error.strerror}" if name else str(error)
        print(f"prepare: {printable(text)}" + "; free some space and give the same command again" * full,
              file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare: stopped" + "; the same command continues from here" * (args.command in ("text", "download")),
              file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
