"""The tokenizers that text can be prepared with."""

import base64

GPT2_END = 50256
GPT2_FILE = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"  # GPT-2's ranks
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

    def __init__(self, rank_file=None):
        ranks = None if rank_file is None else read_ranks(rank_file)
        try:
            import tiktoken
        except ImportError:
            raise PrepareError("GPT-2's tokenizer needs the Python package tiktoken: scripts/setup.sh installs it into "
                               ".venv; or use --tokenizer bytes") from None
        if ranks is None:
            try:
                self.encoding = tiktoken.get_encoding("gpt2")
            except Exception as error:  # whatever its download raises
                raise PrepareError(f"tiktoken could not download GPT-2's vocabulary ({type(error).__name__}); fetch "
                                   f"{GPT2_FILE} elsewhere and give it with --tokenizer FILE") from None
        else:
            self.encoding = tiktoken.Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks,
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
        raise PrepareError(f"cannot read {path}: {error.strerror}; the tokenizers are bytes, gpt2, or a file with "
                           "GPT-2's ranks (gpt2.tiktoken)") from None
    except ValueError:
        raise PrepareError(f"{path} is not a tiktoken file (lines of `base64 rank`)") from None
    if sorted(ranks.values()) != list(range(GPT2_END)):
        raise PrepareError(f"{path} has {len(ranks)} tokens; GPT-2's file has the ranks 0 to {GPT2_END - 1}")
    return ranks


def open_tokenizer(name):
    """`name` is bytes, gpt2 or a file with GPT-2's ranks."""
    return Bytes() if name == "bytes" else GPT2(None if name == "gpt2" else name)
