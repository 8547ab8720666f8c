"""The tokenizers that text can be prepared with."""

import base64

GPT2_END = 50256
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


class PrepareError(Exception):
    """What the user should read before the program ends with code 1."""


class Bytes:
    """256 bytes and the end token."""

    name, vocab, end_token = "bytes", 257, 256

    def encode(self, text):
        """The tokens of `text`, a bytes object."""
        return list(text)


class GPT2:
    """GPT-2's byte-pair encoding by the tiktoken package, from a local rank file or one that tiktoken fetches."""

    name, vocab, end_token = "gpt2", GPT2_END + 1, GPT2_END

    def __init__(self, tiktoken_file=None):
        try:
            import tiktoken
        except ImportError:
            raise PrepareError("the gpt2 tokenizer needs the tiktoken package: `pip install tiktoken`, or use "
                               "--tokenizer bytes") from None
        if tiktoken_file is None:
            try:
                self.encoding = tiktoken.get_encoding("gpt2")
            except Exception as error:  # whatever its download raises
                raise PrepareError(f"tiktoken could not fetch GPT-2's vocabulary ({error}); without a network give "
                                   "its rank file with --tiktoken FILE") from None
        else:
            self.encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=read_ranks(tiktoken_file),
                                              special_tokens={"<|endoftext|>": GPT2_END})

    def encode(self, text):
        # "<|endoftext|>" in a text is text, not an end. Bytes that are no UTF-8 become U+FFFD.
        return self.encoding.encode_ordinary(text.decode("utf-8", errors="replace"))


def read_ranks(path):
    """{bytes: rank} of a tiktoken file: a line `base64 rank` a token."""
    try:
        with open(path, "rb") as file:
            ranks = {base64.b64decode(token, validate=True): int(rank)
                     for token, rank in (line.split() for line in file if line.strip())}
    except OSError as error:
        raise PrepareError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise PrepareError(f"{path} is not a tiktoken file (lines of `base64 rank`)") from None
    if sorted(ranks.values()) != list(range(GPT2_END)):
        raise PrepareError(f"{path} has {len(ranks)} tokens; GPT-2's file has the ranks 0 to {GPT2_END - 1}")
    return ranks


def open_tokenizer(name, tiktoken_file=None):
    if name == "bytes" and tiktoken_file is not None:
        raise PrepareError("--tiktoken FILE goes with --tokenizer gpt2")
    return Bytes() if name == "bytes" else GPT2(tiktoken_file)
