"""Command line of the package: `cd data && python3 -m prepare text|tinyshakespeare --help`."""

import argparse
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
        command.add_argument("--tokenizer", choices=("bytes", "gpt2"), default=tokenizer, help="default: %(default)s")
        command.add_argument("--tiktoken", metavar="FILE", help="GPT-2's rank file, so that nothing is downloaded")
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


def main(argv=None):
    args = parse(argv)
    try:
        tokenizer = open_tokenizer(args.tokenizer, args.tiktoken)
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
