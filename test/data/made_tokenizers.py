"""Small tokenizers of the kinds that people use, made without a network, and random texts for them."""

import base64
import json
import random

try:
    import tokenizers as library
except ImportError:
    library = None  # only rank_file() goes without

LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")

PARTS = ("the", "The", "house", "dogs", "don't", "I'LL", "we've", "it's", "'s", "1", "12", "1984", "1234567", " ", "  ",
         "        ", "\n", "\n\n", "\r\n", "\t", "\n  ", ".", ", ", "...", "!?", "x=1;", "<s>", "</s>", "<|endoftext|>",
         "\u00e9t\u00e9", "stra\u00dfe", "\u03b1\u03b2\u03b3", "\u4f60\u597d\u4e16\u754c", "\u0928\u092e", "\U0001f600",
         "\U0001f469\u200d\U0001f4bb", "e\u0301", "\u00a0", "\u3000", "\u2581", "\ufffd", "\x01", "\u0660\u0661",
         "A" * 9)


def random_texts(count, seed=1, parts=PARTS):
    """Texts that are not only white space, which prepare would drop."""
    rng, texts = random.Random(seed), []
    while len(texts) < count:
        text = "".join(rng.choice(("", " ")) + rng.choice(parts) for _ in range(rng.randrange(1, 12)))
        texts += [] if text.isspace() else [text]
    return texts


TRAINING = random_texts(300, seed=2) + ["the house of the dogs, the cat and the bird walks in the garden\n"] * 20


def trained_bpe(pattern, vocab):
    """A byte-level BPE without special tokens, which splits text by the pattern."""
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([
        library.pre_tokenizers.Split(library.Regex(pattern), "isolated"),
        library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.train_from_iterator(TRAINING, library.trainers.BpeTrainer(
        vocab_size=vocab, show_progress=False, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def rank_file(merges=()):
    """A file of GPT-2's size: the bytes, some merges, and entries that no text uses."""
    tokens = [bytes([byte]) for byte in range(256)] + list(merges)
    tokens += [b"\xff\xfe%d" % i for i in range(50256 - len(tokens))]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def gpt2_like(merges=400):
    """A .tiktoken file that has GPT-2's size and real merges at its start."""
    from prepare import tokenizers
    made = trained_bpe(tokenizers.GPT2_PATTERN, 256 + merges)
    byte_of = tokenizers.notations()[0]
    by_id = sorted((i, bytes(byte_of[character] for character in token)) for token, i in made.get_vocab().items())
    return rank_file([token for _, token in by_id if len(token) > 1])


def llama3_like():
    """Begins documents with <|begin_of_text|>, which its post-processor adds."""
    tokenizer = trained_bpe(LLAMA3_PATTERN, 500)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    begin = "<|begin_of_text|>"
    template = library.processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, 500)])
    tokenizer.post_processor = library.processors.Sequence([library.processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def llama2_like(metaspace=False, post_processor="<s> $A"):
    """SentencePiece's way: spaces are U+2581, one is put in front of the text, and characters without a token are bytes,
    <0x00> to <0xFF>. `metaspace`: as newer files of the same models say it.
    """
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    merges = []
    for character in "\u2581abcdefghijklmnopqrstuvwxyzTH.,'\u00e9\u4f60":
        vocab[character] = len(vocab)
    for left, right in ("th", ("th", "e"), ("\u2581", "the"), ("\u2581", "h"), "ou", "se", ("ou", "se"), "\u2581\u2581",
                        ("\u2581\u2581", "\u2581\u2581")):
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    tokenizer = library.Tokenizer(library.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True,
                                                     byte_fallback=True))
    decoders, normalizers = library.decoders, library.normalizers
    if metaspace:
        tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace("\u2581", "first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if post_processor:
        tokenizer.post_processor = library.processors.TemplateProcessing(
            post_processor, special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


def neox_like():
    """Has ordinary added tokens: runs of 2 to 24 spaces, as GPT-NeoX and OLMo."""
    from prepare import tokenizers
    tokenizer = trained_bpe(tokenizers.GPT2_PATTERN, 500)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|padding|>"])
    tokenizer.add_tokens([library.AddedToken(" " * count, normalized=False) for count in range(24, 1, -1)])
    return tokenizer


def content(tokenizer):
    return json.dumps(json.loads(tokenizer.to_str())).encode()
