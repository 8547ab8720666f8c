"""The tokenizers: bytes, GPT-2's, any of tiktoken's, and any tokenizer.json of Hugging Face.

Text becomes ids only here: shards, task files and the prompts of train_gpt (`prepare encode`) all come from encode().
A tokenizer also knows the bytes that each id contributes to text (`pieces`), so that text is counted and decoded by a
table. The hash covers everything that decides which tokens a text has: shards with different hashes do not belong
together.
"""

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
import struct

import numpy

from . import table
from .shard import open_regular

GPT2_END = 50256
GPT2_FILE = "https://openaipublic.blob.core.windows.net/encodings/r50k_base.tiktoken"  # GPT-2's ranks
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
GPT2_PIECES = {220: b" ", 256: b" t", 257: b" a", 258: b"he", 50255: b" gazed"}  # tell GPT-2's table from others
# Names that a vocabulary may have for the token between documents, for tokenizers that put no token in front of a text.
END_TOKENS = ("<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")

# Ordinary text with what tokenizers treat specially, to find out what one does to text.
SAMPLE = ("The year 1984, isn't it?\n\n  x = [1, 23456];\t# \u4f60\u597d, \u00e9t\u00e9 \U0001f600 I'LL\r\n"
          "        <|endoftext|> end\n  ")


class PrepareError(Exception):
    """An error message for the user; the program ends with code 1."""


def missing(package, purpose):
    """The error for a missing Python package."""
    return PrepareError(f"{purpose} needs the Python package {package}; install it with pip install {package}, "
                        "or all that prepare can use with scripts/setup.sh --with-prepare")


def import_tokenizers(purpose):
    try:
        import tokenizers
    except ImportError:
        raise missing("tokenizers", purpose) from None
    return tokenizers


def token_type(vocab):
    return numpy.dtype("<u2" if vocab <= 1 << 16 else "<u4")


def hash_pieces(pattern, pieces, special):
    """The hash of a byte-pair encoding: its rule for cutting words, the bytes of its tokens, and its special tokens."""
    state = hashlib.sha256(json.dumps([pattern, sorted(special.items())]).encode())
    for piece in pieces:
        state.update(struct.pack("<I", len(piece)) + piece)
    return "sha256:" + state.hexdigest()


class Tokenizer:
    """The base class. Every tokenizer has a name, vocab (ids lie below it), end_token (it begins every document), front
    (the ids that its library puts in front of every text: end_token or none; encode() leaves them out), hash,
    encode(text), pieces, and content (of its tokenizer.json, or None).
    """

    content, front = None, []

    def sidecar(self):
        """The fields with which the sidecars of its shards describe it."""
        return {"tokenizer": self.name, "vocab": self.vocab, "end_token": self.end_token, "tokenizer_hash": self.hash}

    def text_of(self, ids):
        """The bytes that the ids stand for, after what encode() puts in front of every text."""
        return b"".join(map(self.pieces.__getitem__, ids))[self.prefix:]

    @functools.cached_property
    def sizes(self):
        """The bytes that each id contributes to text, as a numpy array."""
        return numpy.array([len(piece) for piece in self.pieces], numpy.int32)

    @functools.cached_property
    def prefix(self):
        """The number of bytes that encode() puts in front of every text: SentencePiece's tokenizers add a space."""
        return max(int(self.sizes[self.encode("a")].sum()) - 1, 0)

    def miscounted(self, tokens, text_bytes):
        """By how many bytes the sizes of a text's tokens, without the prefix, differ from the text's size."""
        return abs(int(self.sizes[tokens].sum()) - self.prefix - text_bytes)

    def sizes_in_documents(self, tokens, lengths, documents_bytes):
        """The bytes of text of each token in a row of documents, which have these numbers of tokens and bytes. What the
        sizes of a document's tokens do not count right, such as the prefix, is put right at its first token, so that
        their sum is always the document's bytes.
        """
        sizes = self.sizes[tokens]
        starts = numpy.cumsum(lengths) - lengths
        sizes[starts] = 0
        sizes[starts] = documents_bytes - numpy.add.reduceat(sizes, starts)
        return sizes


class Bytes(Tokenizer):
    """256 bytes and the end token."""

    name, vocab, end_token = "bytes", 257, 256
    shown_end = b"\n"
    pieces = [bytes([byte]) for byte in range(256)] + [b""]

    def __init__(self):
        self.hash = hash_pieces("", [*self.pieces[:256], b"\n"], {"\n": 256})

    def encode(self, text):
        return numpy.frombuffer(text.encode(), numpy.uint8).astype("<u2")

    def text_of(self, ids):  # the same, but fast
        return bytes(ids)


class Tiktoken(Tokenizer):
    """An encoding of the tiktoken package."""

    def __init__(self, encoding, name):
        self.encoding, self.name = encoding, name
        self.pattern = GPT2_PATTERN if name == "gpt2" else encoding._pat_str
        self.vocab, self.end_token = encoding.n_vocab, encoding.eot_token
        self.pieces = [b""] * self.vocab
        for piece, rank in encoding._mergeable_ranks.items():
            self.pieces[rank] = piece
        self.hash = hash_of_ranks(name, self.pieces, encoding._special_tokens)

    @property
    def shown_end(self):
        return self.encoding.decode_single_token_bytes(self.end_token)

    def encode(self, text):
        # "<|endoftext|>" in a text is ordinary text, not an end token.
        return self.encoding.encode_to_numpy(text, disallowed_special=()).astype(token_type(self.vocab))

    def text_of(self, ids):  # the same, but fast
        return self.encoding.decode_bytes(ids)

    @functools.cached_property
    def content(self):
        return json_of_ranks(self)


class Json(Tokenizer):
    """A tokenizer.json of the Hugging Face tokenizers package."""

    def __init__(self, path, end_token=None, needs_end=True):
        library = import_tokenizers(path)
        try:
            with open_regular(path) as file:
                self.content = file.read()
            self.tokenizer = library.Tokenizer.from_str(self.content.decode())
        except OSError as error:
            raise PrepareError(f"cannot read {path}: {error.strerror}") from None
        except Exception as error:  # the package raises Exception itself
            raise PrepareError(f"{path} is not a tokenizer.json ({str(error).splitlines()[0]})") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        if getattr(self.tokenizer.model, "dropout", None):  # would give a text other ids each time
            self.tokenizer.model.dropout = None
        self.tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a text is ordinary text, not an end token
        if self.tokenizer.decoder is None:  # the package would put spaces between tokens
            byte_level = isinstance(self.tokenizer.pre_tokenizer, library.pre_tokenizers.ByteLevel)
            self.tokenizer.decoder = library.decoders.ByteLevel() if byte_level else library.decoders.Fuse()
        self.name = os.path.basename(path)
        self.ids = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab = max(self.ids.values(), default=-1) + 1
        tokens = {}  # by id
        for token, i in self.ids.items():
            if tokens.setdefault(i, token) != token:  # the package gives new tokens the ids behind the vocabulary's length
                raise PrepareError(f"{path} gives both {tokens[i]} and {token} the id {i}: its vocabulary has a gap")
        self.added = self.tokenizer.get_added_tokens_decoder()
        self.name, self.hash = self.of_tiktoken() or (
            self.name, "sha256:" + hashlib.sha256(self.content).hexdigest())
        self.end_token = self.find_end_token(path, end_token, needs_end)
        if self.end_token is not None and self.end_token in self.encode(self.shown_end.decode()):
            raise PrepareError(f"{path}: {self.shown_end.decode()} would begin documents, but it is not a special "
                               "token, so a text can contain it; name another token with --end-token")

    def of_tiktoken(self):
        """(name, hash) of the tiktoken encoding that has the ids of this file, or None. Such a file is the
        tokenizer.json next to shards of an encoding.
        """
        file = json.loads(self.content)
        if file.get("normalizer") or file.get("post_processor") or not file["model"].get("ignore_merges"):
            return None
        special = {token.content: i for i, token in self.added.items()}
        for name, pattern, tokens, vocab in known_encodings():
            same_tokens = special.items() <= tokens.items() and set(special.values()) == set(tokens.values())
            if same_tokens and vocab in (None, self.vocab) and \
                    json.loads(split_of(pattern).__getstate__()) == file.get("pre_tokenizer"):
                return name, hash_of_ranks(name, self.pieces, tokens)
        return None

    def find_end_token(self, path, named, needed):
        """The id of the token that begins documents: the token that the post-processor puts in front of a text. If it
        puts none there, the token named on the command line, or else a token with a usual name.
        """
        texts = ("a", *self.ids)
        text, plain = next(((text, ids) for text in texts if (ids := self.encode(text).tolist())), ("", []))
        whole = self.tokenizer.encode(text).ids
        at = next((i for i in range(len(whole)) if whole[i:i + len(plain)] == plain), 0)
        front, back = ([self.tokenizer.id_to_token(i) for i in ids] for ids in (whole[:at], whole[at + len(plain):]))
        usual = next((token for token in (front or END_TOKENS) if token in self.ids), None)
        found = named or usual
        if len(front) > 1 or back not in ([], [found]) or front and back:
            raise PrepareError(f"{path} puts {' '.join(front) or 'nothing'} in front of a text and "
                               f"{' '.join(back) or 'nothing'} behind it, but in shards one token begins a document "
                               "and none ends it; change the file's post_processor")
        if front and named not in (None, *front):
            raise PrepareError(f"{path} puts {front[0]} in front of every text, so documents cannot begin with "
                               f"--end-token {named}; leave it out, or change the file's post_processor")
        if found not in self.ids and needed:
            raise PrepareError(f"{path} has no token {named or 'that is known to end documents'}; name the one "
                               "that begins documents with --end-token")
        self.front = [self.ids[token] for token in front]
        return self.ids.get(found)

    @property
    def shown_end(self):
        return self.tokenizer.id_to_token(self.end_token).encode()

    def encode(self, text):
        try:
            encoded = self.tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # the package raises Exception itself
            raise PrepareError(f"{self.name} cannot encode {text[:40]!r}: {error}") from None
        return numpy.array(encoded.ids, token_type(self.vocab))

    @functools.cached_property
    def pieces(self):
        # The package's decoder says what a token adds to a text: it decodes the token between two others. Where the
        # token is only a part of a character, the decoder shows U+FFFD; then the bytes come from the token's notation.
        ids = [i for i in self.ids.values() if i not in self.added or not self.added[i].special]
        around = self.encode("a")[-1:].tolist()
        left, both = self.tokenizer.decode(around), self.tokenizer.decode(around * 2)
        right = both[len(left):]
        pieces = [b""] * self.vocab
        for i, text in zip(ids, self.tokenizer.decode_batch([[*around, i, *around] for i in ids])):
            if not (text.startswith(left) and text.endswith(right) and len(text) >= len(both)):
                text, left_length, end = self.tokenizer.decode([i]), 0, None
            else:
                left_length, end = len(left), len(text) - len(right)
            text = text[left_length:end]
            pieces[i] = text.encode()
            if "\ufffd" in text:
                parts = (bytes_of_notation(self.tokenizer.id_to_token(i), kind) for kind in notations())
                pieces[i] = next((part for part in parts if part and part.decode(errors="replace") == text), pieces[i])
        return pieces


@functools.lru_cache
def notations():
    """The ways in which vocabularies write bytes, as {text: byte}: byte-level BPE has a character for each byte, byte
    fallback has <0x00> to <0xFF>.
    """
    byte_level = import_tokenizers("this tokenizer").pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # The package translates text, which has all bytes but these, and they stand for themselves.
    characters = {chr(byte): byte for byte in (0xc0, 0xc1, *range(0xf5, 0x100))}
    text = "".join(map(chr, (*range(0x800), *range(0x800, 0xd800, 0x800), *range(0xe000, 0x110000, 0x1000))))
    characters.update(zip(byte_level.pre_tokenize_str(text)[0][0], text.encode()))
    return characters, {f"<0x{byte:02X}>": byte for byte in range(256)}


def bytes_of_notation(token, notation):
    """The bytes of a token in one of notations(), or None."""
    parts = [token] if token in notation else token
    return bytes(map(notation.get, parts)) if all(part in notation for part in parts) else None


# ---- tokenizer.json from ranks -------------------------------------------------------------------------------------


def portable(pattern):
    """tiktoken's pattern for other engines: without possessive quantifiers, which only save time, and without $, which
    matches at the end of a line in some.
    """
    return re.sub(r"([?*+]|\{\d+,\d*\})\+", r"\1", pattern).replace(r"\s+$", r"\s+(?![\s\S])")


def last_merge(piece, ranks):
    """The two pieces whose union is `piece` when byte-pair encoding gets there; more if it never does."""
    parts = [piece[i:i + 1] for i in range(len(piece))]
    while len(parts) > 2:
        unions = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:])]
        best = min(unions)
        if best == len(ranks):
            break
        at = unions.index(best)
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return parts


def split_of(pattern):
    """The pre-tokenizer of an encoding of tiktoken."""
    library = import_tokenizers("this tokenizer")
    try:
        regex = library.Regex(portable(pattern))
    except Exception as error:  # the package raises Exception itself
        raise PrepareError(f"no tokenizer.json can split words like {pattern} ({error})") from None
    return library.pre_tokenizers.Sequence([
        library.pre_tokenizers.Split(regex, "isolated"),
        library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def json_of_ranks(tokenizer):
    """The content of a tokenizer.json that gives tiktoken's ids."""
    library = import_tokenizers(f"the tokenizer.json of {tokenizer.name}")
    encoding, characters = tokenizer.encoding, {byte: text for text, byte in notations()[0].items()}
    ranks = encoding._mergeable_ranks
    written = {piece: "".join(characters[byte] for byte in piece) for piece in ranks}
    merges = [(written[parts[0]], written[parts[1]]) for piece, _ in sorted(ranks.items(), key=lambda item: item[1])
              if len(piece) > 1 and len(parts := last_merge(piece, ranks)) == 2]
    # Like tiktoken, take a word that is a token as it is. Special tokens need their ids from the vocabulary.
    special = {rank: text for text, rank in encoding._special_tokens.items()}  # a token may have two names
    vocab = {written[piece]: rank for piece, rank in ranks.items()} | {text: rank for rank, text in special.items()}
    made = library.Tokenizer(library.models.BPE(vocab, merges, ignore_merges=True))
    made.pre_tokenizer, made.decoder = split_of(tokenizer.pattern), library.decoders.ByteLevel()
    made.add_special_tokens(list(special.values()))
    made.encode_special_tokens = True
    for text in (SAMPLE, *encoding._special_tokens):
        if made.encode(text, add_special_tokens=False).ids != tokenizer.encode(text).tolist():
            raise PrepareError(f"no tokenizer.json gives the ids of tiktoken's {tokenizer.name} for {text!r}")
    made.encode_special_tokens = False
    return made.to_str().encode()


def json_of_bytes():
    """The content of a tokenizer.json that gives the ids of `bytes`."""
    library = import_tokenizers("the tokenizer.json of bytes")
    made = library.Tokenizer(library.models.BPE(notations()[0] | {END_TOKENS[0]: Bytes.end_token}, []))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([END_TOKENS[0]])
    return made.to_str().encode()


def hash_of_ranks(name, pieces, special):
    # The encoding's name, not its pattern: versions of tiktoken write the same pattern differently.
    pieces = list(pieces)
    for text, rank in special.items():
        pieces[rank] = text.encode()
    return hash_pieces(name, pieces, special)


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
        raise PrepareError("this tokenizer needs the Python package tiktoken: pip install tiktoken, or "
                           "scripts/setup.sh; or use --tokenizer bytes") from None
    return tiktoken


def gpt2_of(ranks):
    return Tiktoken(import_tiktoken().Encoding("gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks,
                                               special_tokens={"<|endoftext|>": GPT2_END}), "gpt2")


def gpt2_from(path):
    return gpt2_of(read_ranks(path, GPT2_END))


@contextlib.contextmanager
def tiktoken_loads(load):
    """The constructors of tiktoken's encodings, which now call load(url, expected_hash) instead of downloading."""
    import_tiktoken()
    from tiktoken_ext import openai_public
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, openai_public, "load_tiktoken_bpe", openai_public.load_tiktoken_bpe)
        openai_public.load_tiktoken_bpe = load
        yield openai_public.ENCODING_CONSTRUCTORS


def encoding_from(name, path):
    """tiktoken's encoding `name`, with its table from a file instead of a download. tiktoken checks the file's hash."""
    def load(url, expected_hash=None):
        ranks = read_ranks(path)
        with open_regular(path) as file:
            if expected_hash and hashlib.sha256(file.read()).hexdigest() != expected_hash:
                raise PrepareError(f"{path} is not the table of {name}: {url} is")
        return ranks

    with tiktoken_loads(load) as constructors:
        if name not in constructors:
            raise PrepareError(f"tiktoken knows no encoding '{name}'; it has " + ", ".join(sorted(constructors)))
        return Tiktoken(import_tiktoken().Encoding(**constructors[name]()), name)


def known_encodings():
    """Yields (name, pattern, special tokens, vocabulary or None) of GPT-2's encoding and, if tiktoken is installed, of
    its others.
    """
    yield "gpt2", GPT2_PATTERN, {"<|endoftext|>": GPT2_END}, GPT2_END + 1
    with contextlib.suppress(PrepareError), tiktoken_loads(lambda *_, **__: {}) as constructors:
        for name in [name for name in constructors if name != "gpt2"]:  # gpt2 loads other files
            made = constructors[name]()
            yield name, made["pat_str"], made["special_tokens"], made.get("explicit_n_vocab")


def encoding_by_name(name):
    tiktoken = import_tiktoken()
    try:
        return Tiktoken(tiktoken.get_encoding(name), name)
    except Exception as error:  # any error of its download
        table = f"fetch {GPT2_FILE} elsewhere and give it with --tokenizer FILE" if name == "gpt2" else \
            f"fetch its table elsewhere and give it with --tokenizer {name}=FILE"
        raise PrepareError(f"tiktoken could not download {'GPT-2' if name == 'gpt2' else name}'s vocabulary "
                           f"({type(error).__name__}); {table}") from None


def gpt2_from_table(path):
    """The tokenizer of llm.c's tokenizer.bin, whose ids tell how a text is cut only for GPT-2's vocabulary."""
    pieces = table.read_table(path).pieces
    if pieces[:256] == Bytes.pieces[:256] and len(pieces) == 257:
        return Bytes()
    if len(pieces) != GPT2_END + 1 or any(pieces[i] != piece for i, piece in GPT2_PIECES.items()):
        raise PrepareError(f"{path} says what its {len(pieces)} tokens are, but not how a text is cut into them; give "
                           "the tokenizer.json")
    return gpt2_of({piece: rank for rank, piece in enumerate(pieces[:GPT2_END])})


def open_tokenizer(name, end_token=None, needs_end=True):
    """The tokenizer `name`. `end_token`: the name of the token that begins documents, if the user gave one."""
    found = find_tokenizer(name, end_token, needs_end)
    if end_token is not None and not isinstance(found, Json) and end_token.encode() != found.shown_end:
        raise PrepareError(f"--end-token {end_token} is for a tokenizer.json: documents of {found.name} always begin with "
                           f"its token {found.end_token}")
    return found


def find_tokenizer(name, end_token, needs_end):
    """`name`: bytes, gpt2, an encoding of tiktoken, NAME=FILE with its table, or a file, whose content decides: a
    tokenizer.json, GPT-2's ranks or llm.c's tokenizer.bin with them.
    """
    if name == "bytes":
        return Bytes()
    if not os.path.isfile(name) and not name.endswith(".json"):
        encoding, equals, path = name.partition("=")
        if equals:
            return gpt2_from(path) if encoding == "gpt2" else encoding_from(encoding, path)
        if name == "gpt2" or name in import_tiktoken().list_encoding_names():
            return encoding_by_name(name)
    with contextlib.suppress(OSError), open_regular(name) as file:
        start = file.read(4)
        if start == struct.pack("<i", table.MAGIC):
            return gpt2_from_table(name)
        if start.lstrip().startswith(b"{"):
            return Json(name, end_token, needs_end)
        if start.startswith(b"\n"):
            raise PrepareError(f"{name} is a SentencePiece model, not a tokenizer.json; give the tokenizer.json next to "
                               "it (AutoTokenizer.from_pretrained(...).save_pretrained(DIR) writes one)")
    return Json(name, end_token, needs_end) if name.endswith(".json") else gpt2_from(name)
