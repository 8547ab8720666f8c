"""Command line of the package: `python3 -m data.prepare text|tinyshakespeare --help`."""

import argparse
import importlib.util
import os
import sys

from .text import prepare_text
from .tinyshakespeare import prepare_tinyshakespeare
from .tokenizers import PrepareError, open_tokenizer


def parse(argv):
    parser = argparse.ArgumentParser(prog="prepare", description="Turns text into token shards for train_gpt.")
    commands = parser.add_subparsers(dest="command", required=True)

    def add_command(name, help, tokenizer):
        command = commands.add_parser(name, help=help, description=help)
        command.add_argument("--out", required=True, metavar="DIR", help="directory for the shards and sidecars")
        command.add_argument("--tokenizer", metavar="NAME|FILE", default=tokenizer,
                             help="bytes, gpt2 (tiktoken downloads its vocabulary once), or a file with GPT-2's ranks "
                                  "(gpt2.tiktoken); default: %(default)s")
        return command

    text = add_command("text", "Text files, each one document, to train_*.bin and val_*.bin.", "bytes")
    text.add_argument("files", nargs="+", metavar="FILE")
    text.add_argument("--val-fraction", type=float, default=0.05, metavar="F",
                      help="part of the text, from its start, for the validation set; default: %(default)s")
    text.add_argument("--shard-tokens", type=int, default=100_000_000, metavar="N",
                      help="tokens in a shard; default: %(default)s")
    text.add_argument("--overwrite", action="store_true", help="replace shards that are already in DIR")
    shakespeare = add_command("tinyshakespeare", "Tiny Shakespeare as llm.c prepares it.", "gpt2")
    shakespeare.add_argument("--text", metavar="FILE", help="a local copy of its text, so that nothing is downloaded")
    return parser.parse_args(argv)


def go_on_in_venv():
    """Starts this program again with the Python of .venv if this one has no tiktoken: setup.sh installs it there."""
    python = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".venv", "bin", "python"))
    started_by_this = sys.orig_argv[0] == python
    if not started_by_this and os.access(python, os.X_OK) and importlib.util.find_spec("tiktoken") is None:
        os.execv(python, [python, *sys.orig_argv[1:]])


def main(argv=None):
    args = parse(argv)
    if argv is None and args.tokenizer != "bytes":
        go_on_in_venv()
    try:
        tokenizer = open_tokenizer(args.tokenizer)
        if args.command == "text":
            prepare_text(args.files, args.out, tokenizer, args.val_fraction, args.shard_tokens, args.overwrite)
        else:
            prepare_tinyshakespeare(args.out, tokenizer, args.text)
    except PrepareError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
