#!/usr/bin/env python3
"""Converts an export of train_gpt to a GGUF file, for llama.cpp, Ollama and other programs that read it.

    ./train_gpt export --from runs/first --to out/hf
    python3 scripts/to_gguf.py out/hf out/first.gguf [--type f32|f16|bf16|q8_0]

Architectures: gpt2, llama, mistral (as llama), qwen2, qwen3. nanochat's has no counterpart in llama.cpp. The tokenizer
is that of the export's tokenizer.json. llama.cpp knows each way of cutting a text into words by a name: --pre gives it
if this script does not recognize the tokenizer's.

The file is read back, and every tensor compared, before it gets its name. Needs the Python packages gguf and
numpy (and tqdm, which gguf needs, too).
"""

import argparse
import glob
import json
import os
import struct
import sys

from runs import continue_in_venv, start

continue_in_venv("gguf")
try:
    import gguf
    import numpy
    import tqdm
except ImportError as missing:
    sys.exit(f"to_gguf.py needs the Python package {missing.name}: pip install {missing.name}, or scripts/setup.sh "
             "--with-prepare")

ARCHITECTURES = {"gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA,
                 "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
TYPES = {name: (gguf.GGMLQuantizationType[name.upper()], gguf.LlamaFileType[file])
         for name, file in (("f32", "ALL_F32"), ("f16", "MOSTLY_F16"), ("bf16", "MOSTLY_BF16"), ("q8_0", "MOSTLY_Q8_0"))}
KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" \
    r"\s+(?!\S)|\s+"
# How each tokenizer cuts a text into words, and llama.cpp's name for it.
PRE_TOKENIZERS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
    LLAMA3_WORDS: "llama-bpe",
    LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
}


class Refused(Exception):
    """A model that has no GGUF form."""


# ---- the export ----------------------------------------------------------------------------------------------------


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def tensors_of(directory):
    """Yields (name, FP32 array) of all .safetensors files."""
    paths = sorted(glob.glob(os.path.join(glob.escape(directory), "*.safetensors")))
    if not paths:
        raise Refused(f"{directory} has no .safetensors file; train_gpt export writes one")
    for path in paths:
        try:
            yield from tensors_in(path)
        except (ValueError, LookupError, TypeError, OverflowError, MemoryError, struct.error) as error:
            raise Refused(f"{path} is truncated, or no safetensors file: {error}") from error


def tensors_in(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if entry["dtype"] not in KINDS:
            raise Refused(f"{path}: {name} is {entry['dtype']}; export it with --dtype fp32 or bf16")
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = numpy.dtype(KINDS[entry["dtype"]])
        values = numpy.memmap(path, kind, "r", 8 + length + begin, ((end - begin) // kind.itemsize,))
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        yield name, numpy.asarray(values, numpy.float32).reshape(entry["shape"])


def rope_of(config):
    """The base of rotary positions and their scaling, or None: transformers 5 has both in one place, 4 in two."""
    place = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {name: value for name, value in place.items() if name != "rope_theta"}
    kind = scaling.get("rope_type", scaling.get("type", "default"))  # older models have "type"
    if kind not in ("default", "llama3"):
        raise Refused(f"rotary positions scaled by '{kind}' are not converted")
    return place.get("rope_theta", config.get("rope_theta", 10000.0)), scaling if kind == "llama3" else None


def rope_factors(base, scaling, dimension):
    """By how much Llama 3.1 divides each frequency (transformers, modeling_rope_utils: llama3)."""
    frequencies = base ** -(numpy.arange(0, dimension, 2, dtype=numpy.float64) / dimension)
    lengths = 2 * numpy.pi / frequencies
    old, low, high = (scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor",
                                                 "high_freq_factor"))
    smooth = numpy.clip((old / lengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).astype(numpy.float32)


def interleaved(weight, heads):
    """Rows of queries or keys in llama.cpp's order for Llama, where the two halves of a rotation are neighbours."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


# ---- what is written -----------------------------------------------------------------------------------------------


def add_model(writer, config, arch):
    get = lambda *names: next(config[name] for name in names if name in config)  # GPT-2 has names of its own
    channels, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    writer.add_context_length(get("max_position_embeddings", "n_positions"))
    writer.add_embedding_length(channels)
    writer.add_block_count(get("num_hidden_layers", "n_layer"))
    writer.add_feed_forward_length(config.get("intermediate_size") or config.get("n_inner") or 4 * channels)
    writer.add_head_count(heads)
    writer.add_vocab_size(config["vocab_size"])
    if arch == gguf.MODEL_ARCH.GPT2:
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return None
    dimension = config.get("head_dim") or channels // heads
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(dimension)
    writer.add_value_length(dimension)
    writer.add_rope_dimension_count(dimension)
    base, scaling = rope_of(config)
    writer.add_rope_freq_base(base)
    return rope_factors(base, scaling, dimension) if scaling else None


def converted(directory, config, arch):
    """Yields (GGUF name, FP32 array)."""
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers", config.get("n_layer")))
    heads = {"q": config.get("num_attention_heads"), "k": config.get("num_key_value_heads")}
    for name, values in tensors_of(directory):
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue  # the embedding once more
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise Refused(f"{name} has no place in GGUF's {gguf.MODEL_ARCH_NAMES[arch]}")
        if arch == gguf.MODEL_ARCH.GPT2 and ".c_" in name and name.endswith(".weight"):
            values = values.T  # Conv1D has (in, out)
        for part, count in heads.items() if arch == gguf.MODEL_ARCH.LLAMA else ():
            if f".{part}_proj." in name:
                values = interleaved(values, count)
        yield new, numpy.ascontiguousarray(values)


def name_of_cuts(cuts):
    """llama.cpp's name for a pre_tokenizer of tokenizer.json, or None."""
    parts = cuts.get("pretokenizers", [cuts]) if cuts else []
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return "gpt-2"  # GPT-2's words, or without use_regex a tokenizer of bytes, which merges nothing
    if kinds == ["Split", "ByteLevel"]:
        return PRE_TOKENIZERS.get(parts[0]["pattern"].get("Regex"))
    return None


def scores(vocab, merges):
    """SentencePiece's scores, with which llama.cpp merges in the order of `merges`."""
    rank = {}
    for number, (left, right) in enumerate(merges):
        rank.setdefault(left + right, number)
    return [-float(rank.get(token, len(merges))) for token in vocab]


def adds_space(tokenizer):
    """True if a Llama-2-like tokenizer puts a space in front of a text: by its normalizer or by its pre-tokenizer."""
    cuts = tokenizer["pre_tokenizer"]
    return '"Prepend"' in json.dumps(tokenizer["normalizer"]) or \
        cuts is not None and '"prepend_scheme": "never"' not in json.dumps(cuts)


def add_tokenizer(writer, directory, config, pre):
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.exists(path):
        raise Refused(f"{directory} has no tokenizer.json, which belongs into the file")
    tokenizer = read_json(path)
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE":
        raise Refused(f"a tokenizer of type {model['type']} is not converted")
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    vocab = {**model["vocab"], **{token["content"]: token["id"] for token in tokenizer["added_tokens"]}}
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    added = {token["id"] for token in tokenizer["added_tokens"]}
    by_id = {i: text for text, i in vocab.items()}
    count = config["vocab_size"]
    if max(by_id) >= count:
        raise Refused(f"{path} has token {max(by_id)}, and the model has {count} tokens: it is another model's tokenizer")
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(count)]
    kind = gguf.TokenType
    types = [kind.UNUSED if i not in by_id else kind.CONTROL if i in special else kind.USER_DEFINED if i in added else
             kind.NORMAL for i in range(count)]
    if model.get("byte_fallback"):
        types = [kind.BYTE if kind.NORMAL == type_ and text.startswith("<0x") and len(text) == 6 else type_
                 for text, type_ in zip(tokens, types)]
        if model.get("unk_token") in vocab:
            types[vocab[model["unk_token"]]] = kind.UNKNOWN
            writer.add_unk_token_id(vocab[model["unk_token"]])
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores(tokens, merges))
        writer.add_add_space_prefix(adds_space(tokenizer))
    else:
        pre = pre or name_of_cuts(tokenizer["pre_tokenizer"])
        if not pre:
            raise Refused("the tokenizer cuts texts in a way that this script does not know; --pre gives llama.cpp's name "
                          "of it")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    processor = json.dumps(tokenizer.get("post_processor"))
    for name, add, switch in (("bos_token_id", writer.add_bos_token_id, writer.add_add_bos_token),
                              ("eos_token_id", writer.add_eos_token_id, writer.add_add_eos_token)):
        token = config.get(name)
        token = token[0] if isinstance(token, list) else token  # llama.cpp finds a chat model's others by their texts
        if token is not None:
            add(token)
            switch(name == "bos_token_id" and json.dumps(by_id.get(token)) in processor)


def stored(values, kind):
    """The array as it is in the file: vectors stay FP32, as llama.cpp's programs expect."""
    if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        return values, gguf.GGMLQuantizationType.F32
    if kind == gguf.GGMLQuantizationType.Q8_0 and values.shape[-1] % 32:
        kind = gguf.GGMLQuantizationType.F16
    with numpy.errstate(over="ignore"):  # convert() refuses values that are too large
        return gguf.quants.quantize(values, kind), kind


def check(path, written):
    """Reads the file back."""
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, (values, shape) in written.items():
        tensor = found.pop(name)
        if list(reversed(tensor.shape.tolist())) != list(shape) or \
                numpy.asarray(tensor.data).tobytes() != values.tobytes():
            raise Refused(f"{path}: {name} is not what was written")
    if found:
        raise Refused(f"{path}: {', '.join(found)} came from nowhere")


def require_whole(directory, config, names):
    """Refuses a model with missing tensors. llama.cpp takes one without output.weight for a model with tied embeddings."""
    of_blocks = [{name.split(".", 2)[2] for name in names if name.startswith(f"blk.{block}.")}
                 for block in range(config.get("num_hidden_layers", config.get("n_layer")))]
    tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    channels = config.get("hidden_size", config.get("n_embd"))
    if (found := names.get("token_embd.weight")) and found[1] != (config["vocab_size"], channels):
        raise Refused(f"{directory}: the embedding is {' x '.join(map(str, found[1]))}, and config.json says "
                      f"{config['vocab_size']} x {channels}: it is another model's")
    lacks = {"token_embd.weight", "output_norm.weight", *(() if tied else ("output.weight",)),
             *(f"blk.{block}.{name}" for name in set().union(*of_blocks) for block in range(len(of_blocks)))} - set(names)
    if lacks or not set().union(*of_blocks):
        raise Refused(f"{directory} lacks tensors, such as {min(lacks, default='those of blocks')}; export it again")


def convert(directory, path, kind, pre):
    config = read_json(os.path.join(directory, "config.json"))
    if not isinstance(config, dict):
        raise Refused(f"{directory}/config.json is not the description of a model")
    if config["model_type"] not in ARCHITECTURES:
        raise Refused(f"llama.cpp has no model like {config['model_type']}; it has {', '.join(ARCHITECTURES)}")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window and window < config["max_position_embeddings"]:
        raise Refused(f"llama.cpp would ignore the attention window of {window} tokens")
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path + ".tmp", gguf.MODEL_ARCH_NAMES[arch])
    quantization, file_type = TYPES[kind]
    writer.add_name(os.path.basename(os.path.abspath(directory)))
    writer.add_file_type(file_type)
    factors = add_model(writer, config, arch)
    add_tokenizer(writer, directory, config, pre)
    written = {}
    if factors is not None:
        written["rope_freqs.weight"] = factors, factors.shape
        writer.add_tensor("rope_freqs.weight", factors)
    for name, values in tqdm.tqdm(converted(directory, config, arch), "converting", unit=" tensors", disable=None):
        data, of_tensor = stored(values, quantization)
        back = data if data.dtype.kind == "f" else gguf.quants.dequantize(data, of_tensor)
        if not numpy.isfinite(back).all():
            raise Refused(f"{name} has a value that is " + (f"too large for {of_tensor.name}; give another --type" if
                                                            numpy.isfinite(values).all() else "NaN or infinite"))
        written[name] = data, values.shape
        writer.add_tensor(name, data, raw_dtype=of_tensor)
    require_whole(directory, config, written)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=sys.stderr.isatty())
        writer.close()
        check(path + ".tmp", written)
        os.replace(path + ".tmp", path)
    finally:
        if os.path.exists(path + ".tmp"):
            os.remove(path + ".tmp")
    print(f"{path}: {len(written)} tensors of {gguf.MODEL_ARCH_NAMES[arch]} in {kind}, {os.path.getsize(path) / 1e6:.1f} MB")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", help="what train_gpt export wrote")
    parser.add_argument("path", metavar="FILE.gguf")
    parser.add_argument("--type", choices=sorted(TYPES), default="bf16", help="of matrices; default: bf16")
    parser.add_argument("--pre", metavar="NAME", help="llama.cpp's name of the tokenizer's pre-tokenizer")
    args = parser.parse_args(argv)
    try:
        if not os.path.exists(os.path.join(args.directory, "config.json")):
            raise Refused(f"{args.directory} has no config.json; give the directory that train_gpt export wrote")
        if os.path.exists(args.path):
            with open(args.path, "rb") as file:
                if file.read(4) != b"GGUF":
                    raise Refused(f"{args.path} exists and is no GGUF file, so it is not replaced")
        convert(args.directory, args.path, args.type, args.pre)
    except (Refused, OSError, ValueError, KeyError) as error:
        sys.exit(f"to_gguf.py: {'missing: ' if isinstance(error, KeyError) else ''}{error}")


if __name__ == "__main__":
    start(main)
