"""The files that prepare writes, with a test of each file's content. Only a file that passes its test is replaced or
deleted; everything else at such a name belongs to somebody else, and the command is refused.
"""

import glob
import hashlib
import os
import re
import stat
import struct

from . import table
from .shard import UINT16, UINT32, open_regular, parse_json
from .tokenizers import PrepareError

WORK = ".prepare"  # the directory of a run of `prepare text` that is not finished
PICTURE = "data.prepare"  # names the program in report.png


def read(path):
    with open_regular(path) as file:
        return file.read()


def json_object(path):
    """The JSON object in a file, or {}."""
    try:
        value = parse_json(read(path))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def begins_with(*numbers):
    def test(path):
        with open_regular(path) as file:
            return file.read(8) in [struct.pack("<2i", *pair) for pair in numbers]
    return test


is_questions = begins_with((20240522, 1), (20240522, 2))
has_shard_head = begins_with(UINT16, UINT32)
has_table_head = begins_with((table.MAGIC, table.VERSION), (table.MAGIC, table.WIDE_VERSION))


def is_sidecar(path):
    return json_object(path).keys() >= {"tokenizer", "vocab"}


def is_shard(path):
    """llm.c's scripts write shards without sidecars."""
    return has_shard_head(path) and is_sidecar(path + ".json")


def descriptions(path):
    """The sidecars and the report next to a file of the tokenizer, which they describe."""
    folder = os.path.dirname(path)
    for name in glob.glob(os.path.join(glob.escape(folder), "*.bin.json")) + [os.path.join(folder, "report.json")]:
        yield json_object(name)


def is_table(path):
    with open_regular(path) as file:
        vocab = struct.unpack("<3i", file.read(12).ljust(12, b"\0"))[2]
    return has_table_head(path) and any(found.get("vocab") == vocab for found in descriptions(path))


def is_tokenizer(path):
    """A tokenizer.json is prepare's if shards next to it were made with that tokenizer, or if prepare trained it."""
    found = json_object(path)
    if isinstance(found.get("model"), dict) and isinstance(found.get("added_tokens"), list):
        from .tokenizers import open_tokenizer
        hashes = {description.get("tokenizer_hash") for description in descriptions(path)} - {None}
        try:
            return bool(hashes) and ("sha256:" + hashlib.sha256(read(path)).hexdigest() in hashes
                                     or open_tokenizer(path, needs_end=False).hash in hashes)
        except (PrepareError, ValueError):
            pass
    return False


def is_trained(path):
    """True for the tokenizer.json of train-tokenizer."""
    found = json_object(path)
    cuts, model, added = found.get("pre_tokenizer"), found.get("model"), found.get("added_tokens")
    return isinstance(cuts, dict) and cuts.get("type") == "ByteLevel" and isinstance(model, dict) and \
        model.get("type") == "BPE" and found.get("post_processor") is None and isinstance(added, list) and \
        [token.get("content") for token in added if isinstance(token, dict)] == ["<|endoftext|>"]


def is_report(path):
    return json_object(path).keys() >= {"inputs", "tokenizer_hash", "documents", "kept"}


def is_report_text(path):
    return re.match(rb"\d+ documents? in, \d+ kept\n", read(path)) is not None


def is_picture(path):
    content = read(path)
    # Earlier versions did not put their name into the picture.
    of_earlier = b"Matplotlib" in content and is_report(os.path.join(os.path.dirname(path), "report.json"))
    return content.startswith(b"\x89PNG") and (PICTURE.encode() in content or of_earlier)


# The files of `prepare text --out`, in the order of deletion: a file after those whose test needs it.
OWNED = [(re.compile(r"(train|val)_\d{6}\.bin"), is_shard), (re.compile(r"tokenizer\.bin"), is_table),
         (re.compile(r"tokenizer\.json"), is_tokenizer), (re.compile(r"report\.txt"), is_report_text),
         (re.compile(r"report\.png"), is_picture), (re.compile(r"(train|val)_\d{6}\.bin\.json"), is_sidecar),
         (re.compile(r"report\.json"), is_report)]
# The files in WORK and in its directories.
WORK_FILES = {"": re.compile(r"lock|done|plan(\.tmp)?"),
              "chunks": re.compile(r"\d{8,}\.json(\.tmp)?|\d{8,}-\d{4,}\.npz(\.tmp)?"),
              "shards": re.compile("|".join(f"({name.pattern})" for name, _ in OWNED) + r"|.*\.bin(\.json)?\.tmp|"
                                   r"tokenizer\.json\.tmp")}


def is_output(path, out):
    """True if `path` is the directory of `prepare text --out`, or has the name of a file in it."""
    folder, name = os.path.split(os.path.abspath(path))
    is_ours = any(pattern.fullmatch(name) for pattern, _ in OWNED)
    return os.path.realpath(out) in (os.path.realpath(path), *([os.path.realpath(folder)] if is_ours else []))


def is_regular(path):
    return stat.S_ISREG(os.lstat(path).st_mode)


def require_own(path, *tests):
    """Refuses to replace the file at `path` unless it passes one of the tests."""
    try:
        ours = not os.path.lexists(path) or is_regular(path) and any(test(path) for test in tests)
    except OSError:
        ours = False
    if not ours:
        raise in_the_way(path)


def in_the_way(path):
    return PrepareError(f"{path} is in the way, and prepare did not write it; move it away or choose another --out")


def is_same(content):
    return lambda path: read(path) == content


def require_own_tokenizer(content, folder):
    """Refuses to replace files of another tokenizer next to shards. `content`: of the new tokenizer.json, or None."""
    require_own(os.path.join(folder, "tokenizer.bin"), is_table)
    if content is not None:
        require_own(os.path.join(folder, "tokenizer.json"), is_tokenizer, is_same(content))


def require_one_tokenizer(folder, own, has_json, replaced=()):
    """Refuses a directory where the tokenizer's files would be next to shards that are not `replaced` and that have
    another tokenizer, or begin documents with another token. `own`: a sidecar of the new shards. `has_json`: whether
    they have a tokenizer.json.
    """
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.bin.json"))):
        sidecar = json_object(path) if path not in replaced else {}
        for name in ("tokenizer_hash" if "tokenizer_hash" in sidecar else "tokenizer", "end_token"):
            if sidecar.get(name, own.get(name)) != own.get(name):
                raise PrepareError(f"{path.removesuffix('.json')} has the {name} {sidecar[name]}, the new files have "
                                   f"{own.get(name)}; they need different tokenizer files, so choose another --out")
    path = os.path.join(folder, "tokenizer.json")
    if os.path.lexists(path) and not has_json and path not in replaced:
        raise PrepareError(f"{path} is not the tokenizer of the new shards, which have none; remove it, or choose "
                           "another --out")


def require_tokenizer_of_shards(path, own):
    """Refuses to write a file of a tokenizer where train_gpt would take it for that of shards of another tokenizer."""
    if os.path.basename(path) in ("tokenizer.bin", "tokenizer.json"):
        require_one_tokenizer(os.path.dirname(path) or ".", own, has_json=True)


def own_files(out, tokenizer_content=None):
    """The files of an earlier run in `out`, in the order of deletion. Refuses files that only have their names, except
    the present tokenizer.json.
    """
    names = sorted(os.listdir(out)) if os.path.isdir(out) else []
    found = [(os.path.join(out, name), test) for pattern, test in OWNED for name in names if pattern.fullmatch(name)]
    for path, test in found:
        require_own(path, test, is_same(tokenizer_content))
    return [path for path, _ in found]


def work_files(work, folder):
    """The files in WORK or one of its directories. Refuses anything else there, and a file or link instead
    of the directory."""
    here = os.path.join(work, folder) if folder else work
    if not os.path.lexists(here):
        return []
    if not stat.S_ISDIR(os.lstat(here).st_mode):
        raise in_the_way(here)
    paths = [os.path.join(here, name) for name in sorted(os.listdir(here)) if folder or name not in WORK_FILES]
    for path in paths:
        if not WORK_FILES[folder].fullmatch(os.path.basename(path)) or not is_regular(path):
            raise in_the_way(path)
    return paths


def check_work(work):
    for folder in WORK_FILES:
        work_files(work, folder)


def clear(work, *kept):
    """Empties WORK, except for the files `kept`."""
    check_work(work)
    for folder in ("shards", "chunks"):
        clear_folder(work, folder)
    for path in work_files(work, ""):
        if os.path.basename(path) not in kept:
            os.remove(path)


def clear_folder(work, folder):
    """Deletes a directory in WORK."""
    for path in work_files(work, folder):
        os.remove(path)
    if os.path.isdir(os.path.join(work, folder)):
        os.rmdir(os.path.join(work, folder))


def remove(work):
    """Deletes WORK."""
    clear(work)
    os.rmdir(work)
