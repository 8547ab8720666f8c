"""The tokenizers for preparing text: bytes, GPT-2's, any of tiktoken's, and any tokenizer.json of Hugging Face.

Each has a name, vocab (ids lie below it), end_token (it begins every document), encode(text), pieces() (the bytes of
every id), and hash. The hash covers everything that decides which tokens a text has: shards with different hashes do
not belong together.
"""

import base64
import contextlib
import hashlib
import json
import os
import struct
import sys

import numpy

from .shard import open_regular, write_atomically

GPT2_END = 50256
GPT2_FILE = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"  # GPT-2's ranks
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# Names that a vocabulary may have for the token between documents. llm.c uses Llama's begin token for it.
END_TOKENS = ("<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")

TABLE_MAGIC, TABLE_VERSION = 20240328, 2  # llm.c's tokenizer file
LONGEST_PIECE = 255  # because its lengths are bytes


class PrepareError(Exception):
    """An error message for the user; the program ends with code 1."""


def missing(package, purpose):
    """The error for a missing Python package."""
    return PrepareError(f"{purpose} needs the Python package {package}; install all that prepare can use with "
                        "./scripts/setup.sh --with-prepare, or .venv/bin/pip install " + package)


def token_type(vocab):
    return numpy.dtype("<u2" if vocab <= 1 << 16 else "<u4")


def hash_pieces(pattern, pieces, special):
    """The hash of a byte-pair encoding: its rule for cutting words, the bytes of its tokens, and its special tokens."""
    state = hashlib.sha256(json.dumps([pattern, sorted(special.items())]).encode())
    for piece in pieces:
        state.update(struct.pack("<I", len(piece)) + piece)
    return "sha256:" + state.hexdigest()


class Bytes:
    """256 bytes and the end token."""

    name, vocab, end_token = "bytes", 257, 256

    def __init__(self):
        self.hash = hash_pieces("", self.pieces(), {"\n": 256})

    def encode(self, text):
        return numpy.frombuffer(text.encode(), numpy.uint8).astype("<u2")

    def pieces(self):
        return [bytes([byte]) for byte in range(256)] + [b"\n"]


class Tiktoken:
    """An encoding of the tiktoken package."""

    def __init__(self, encoding, name):
        self.encoding, self.name = encoding, name
        self.vocab, self.end_token = encoding.n_vocab, encoding.eot_token
        # Hash the encoding's name, not its pattern: versions of tiktoken write the same pattern differently.
        self.hash = hash_pieces(name, self.pieces(), encoding._special_tokens)

    def encode(self, text):
        # "<|endoftext|>" in a text is ordinary text, not an end token.
        return self.encoding.encode_to_numpy(text, disallowed_special=()).astype(token_type(self.vocab))

    def pieces(self):
        pieces = [b""] * self.vocab
        for piece, rank in self.encoding._mergeable_ranks.items():
            pieces[rank] = piece
        for text, rank in self.encoding._special_tokens.items():
            pieces[rank] = text.encode()
        return pieces


class Json:
    """A tokenizer.json of the Hugging Face tokenizers package."""

    def __init__(self, path, end_token=None):
        try:
            import tokenizers
        except ImportError:
            raise missing("tokenizers", path) from None
        try:
            with open_regular(path) as file:
                content = file.read()
            self.tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except OSError as error:
            raise PrepareError(f"cannot read {path}: {error.strerror}") from None
        except Exception as error:  # the package raises Exception itself
            raise PrepareError(f"{path} is not a tokenizer.json ({str(error).splitlines()[0]})") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a text is ordinary text, not an end token
        self.content = content
        self.name = os.path.basename(path)
        self.hash = "sha256:" + hashlib.sha256(content).hexdigest()
        ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(ids.values()) + 1
        found = [token for token in ([end_token] if end_token else END_TOKENS) if token in ids]
        if not found:
            raise PrepareError(f"{path} has no token {end_token or 'that is known to end documents'}; name the one "
                               "that begins documents with --end-token")
        self.end_token = ids[found[0]]

    def encode(self, text):
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        return numpy.array(encoded.ids, token_type(self.vocab))

    def pieces(self):
        description = json.loads(self.content)
        to_bytes = piece_of_byte_level if '"ByteLevel"' in json.dumps(description.get("decoder")) else piece_of_spaces
        added = {token["id"] for token in description.get("added_tokens", [])}
        pieces = [b""] * self.vocab
        for token, number in self.tokenizer.get_vocab(with_added_tokens=True).items():
            pieces[number] = token.encode() if number in added else to_bytes(token)
        return pieces


def byte_level_characters():
    """Returns {character: byte} of byte-level vocabularies (GPT-2): visible bytes of Latin-1 stand for themselves, the
    others are the characters from 256 on.
    """
    visible = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = byte_level_characters()


def piece_of_byte_level(token):
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def piece_of_spaces(token):
    """Decodes SentencePiece's notation: U+2581 is a space, <0x0A> is a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def read_ranks(path, count=None):
    """Returns {bytes: rank} of a tiktoken file, which has a line `base64 rank` per token."""
    try:
        with open_regular(path) as file:
            ranks = {base64.b64decode(token, validate=True): int(rank)
                     for token, rank in (line.split() for line in file if line.strip())}
    except OSError as error:
        raise PrepareError(f"cannot read {path}: {error.strerror}; the tokenizers are bytes, gpt2, another name that "
                           "tiktoken knows, NAME=FILE with its table, a tokenizer.json, or a file with GPT-2's ranks "
                           "(gpt2.tiktoken)") from None
    except ValueError:
        raise PrepareError(f"{path} is not a tiktoken file (lines of `base64 rank`)") from None
    if count is not None and sorted(ranks.values()) != list(range(count)):
        raise PrepareError(f"{path} has {len(ranks)} tokens; GPT-2's file has the ranks 0 to {count - 1}; name another "
                           "encoding of tiktoken before its table: NAME=FILE")
    return ranks


def import_tiktoken():
    try:
        import tiktoken
    except ImportError:
        raise PrepareError("this tokenizer needs the Python package tiktoken: scripts/setup.sh installs it into .venv; "
                           "or use --tokenizer bytes") from None
    return tiktoken


def gpt2_from(path):
    ranks = read_ranks(path, GPT2_END)
    return Tiktoken(import_tiktoken().Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks,
                                               special_tokens={"<|endoftext|>": GPT2_END}), "gpt2")


def encoding_from(name, path):
    """tiktoken's encoding `name`, with its table from a file instead of a download. tiktoken checks the file's hash."""
    tiktoken = import_tiktoken()
    from tiktoken_ext import openai_public
    if name not in openai_public.ENCODING_CONSTRUCTORS:
        raise PrepareError(f"tiktoken knows no encoding '{name}'; it has "
                           + ", ".join(sorted(openai_public.ENCODING_CONSTRUCTORS)))

    def load(url, expected_hash=None):
        ranks = read_ranks(path)
        with open_regular(path) as file:
            if expected_hash and hashlib.sha256(file.read()).hexdigest() != expected_hash:
                raise PrepareError(f"{path} is not the table of {name}: {url} is")
        return ranks

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, openai_public, "load_tiktoken_bpe", openai_public.load_tiktoken_bpe)
        openai_public.load_tiktoken_bpe = load
        return Tiktoken(tiktoken.Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]()), name)


def encoding_by_name(name):
    tiktoken = import_tiktoken()
    try:
        return Tiktoken(tiktoken.get_encoding(name), name)
    except Exception as error:  # any error of its download
        table = f"fetch {GPT2_FILE} elsewhere and give it with --tokenizer FILE" if name == "gpt2" else \
            f"fetch its table elsewhere and give it with --tokenizer {name}=FILE"
        raise PrepareError(f"tiktoken could not download {'GPT-2' if name == 'gpt2' else name}'s vocabulary "
                           f"({type(error).__name__}); {table}") from None


def open_tokenizer(name, end_token=None):
    """`name`: bytes, gpt2, an encoding of tiktoken, NAME=FILE with its table, tokenizer.json, GPT-2's ranks."""
    if name == "bytes":
        return Bytes()
    if name.endswith(".json"):
        return Json(name, end_token)
    if not os.path.exists(name):
        encoding, equals, path = name.partition("=")
        if equals:
            return gpt2_from(path) if encoding == "gpt2" else encoding_from(encoding, path)
        if name == "gpt2" or name in import_tiktoken().list_encoding_names():
            return encoding_by_name(name)
    return gpt2_from(name)


def table_bytes(tokenizer):
    """llm.c's tokenizer file, which `train_gpt --tokenizer` uses to decode samples. None if a token is too long for it.
    """
    pieces = tokenizer.pieces()
    if max(map(len, pieces)) > LONGEST_PIECE:
        return None
    head = struct.pack("<4i", TABLE_MAGIC, TABLE_VERSION, len(pieces), tokenizer.end_token)
    return head.ljust(1024, b"\0") + b"".join(bytes([len(piece)]) + piece for piece in pieces)


def write_tokenizer(tokenizer, folder):
    """Writes the tokenizer files that train_gpt looks for next to the shards."""
    table = table_bytes(tokenizer)
    if table is None:
        print("prepare: a token is too long for llm.c's tokenizer file, so there is none", file=sys.stderr)
    else:
        write_atomically(os.path.join(folder, "tokenizer.bin"), table)
    if hasattr(tokenizer, "content"):
        write_atomically(os.path.join(folder, "tokenizer.json"), tokenizer.content)


def read_table(path):
    """Returns (pieces, end token) from llm.c's tokenizer file."""
    with open_regular(path) as file:
        content = file.read()
    if len(content) < 1024 or struct.unpack_from("<2i", content) != (TABLE_MAGIC, TABLE_VERSION):
        raise PrepareError(f"{path} is not a tokenizer file of llm.c, version {TABLE_VERSION}")
    count, end_token = struct.unpack_from("<2i", content, 8)
    pieces, at = [], 1024
    for _ in range(count):
        pieces.append(content[at + 1:at + 1 + content[at]])
        at += 1 + content[at]
    return pieces, end_token
