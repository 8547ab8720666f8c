"""`prepare download`: fetches published shards in llm.c's format from the Hugging Face hub, checks each, and writes its
sidecar. The first call notes the hub's revision in the sidecars; later calls take files of that revision.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time

import numpy

from . import outputs
from .shard import HEADER_BYTES, UINT16, open_regular, write_atomically
from .table import table_of, write_tokenizer
from .tokenizers import PrepareError, open_tokenizer

BLOCK = 1 << 22  # bytes that are read at a time


@dataclasses.dataclass
class Published:
    repo: str
    prefix: str
    shards: int  # for training, of about 100M tokens each, numbered from 1; one for validation, number 0
    tokenizer: str = "gpt2"

    def files(self, shards):
        """Pairs of a file's name here and on the hub. The validation shard comes first."""
        return [("val_000000.bin", f"{self.prefix}_val_000000.bin")] + [
            (f"train_{i:06}.bin", f"{self.prefix}_train_{i:06}.bin") for i in range(1, shards + 1)]


SETS = {"fineweb10B": Published("kjj0/fineweb10B-gpt2", "fineweb", 103),
        "fineweb-edu10B": Published("kjj0/finewebedu10B-gpt2", "finewebedu", 99)}


def endpoint():
    """Another address of the hub than the package's, or None."""
    return os.environ.get("HF_ENDPOINT")


def size_text(count):
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def source_of(repo, revision):
    return f"hf:{repo}@{revision}"


def kept_revision(out, repo):
    """The revision of the shards that `out` has, or None."""
    source = outputs.json_object(os.path.join(out, "val_000000.bin.json")).get("source", "")
    return source.removeprefix(source_of(repo, "")) if source.startswith(source_of(repo, "")) else None


def is_here(path, size, source):
    return os.path.exists(path) and os.path.getsize(path) == size and \
        outputs.json_object(path + ".json").get("source") == source


def describe(path, expected, tokenizer, source):
    """Checks a file that arrived, and returns its sidecar."""
    of_file, of_tokens = hashlib.sha256(), hashlib.sha256()
    sizes, count, documents, most, text = table_of(tokenizer).sizes(), 0, 0, -1, 0
    with open_regular(path) as file:
        head = file.read(HEADER_BYTES)
        of_file.update(head)
        magic, version, tokens = numpy.frombuffer(head[:12].ljust(12, b"\0"), "<i4").tolist()
        while block := file.read(BLOCK):
            of_file.update(block)
            of_tokens.update(block)
            part = numpy.frombuffer(block[:len(block) // 2 * 2], "<u2")
            count += len(part)
            most = max(most, int(part.max(initial=0)))
            if most >= tokenizer.vocab:
                break
            documents += int((part == tokenizer.end_token).sum())
            text += int(sizes[part].sum())
    name = os.path.basename(path)
    if expected.lfs and of_file.hexdigest() != expected.lfs.sha256:
        raise PrepareError(f"{name} arrived with other bytes than the hub says; give the same command again")
    if (magic, version) != UINT16 or tokens != count or most >= tokenizer.vocab:
        raise PrepareError(f"{name} is not a shard of {tokenizer.name}: magic {magic}, version {version}, {count} tokens "
                           f"of {tokens}, largest {most}")
    return {**tokenizer.sidecar(), "max_token": most, "documents": documents, "tokens": tokens,
            "checksum": "sha256:" + of_tokens.hexdigest(), "bytes": text, "source": source}


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def fetch(repo, revision, name, expected, folder):
    """Downloads a file, or the rest of it, into `folder`."""
    import huggingface_hub
    try:
        return huggingface_hub.hf_hub_download(repo, name, repo_type="dataset", revision=revision, local_dir=folder,
                                               endpoint=endpoint())
    except Exception as error:  # the package's versions raise errors of several HTTP libraries
        raise PrepareError(f"could not download {name} ({size_text(expected.size)}): {first_line(error)}; give the same command "
                           "again to continue") from None


def put(arrived, path, sidecar):
    """Gives a shard its name. A sidecar may lie there without its shard, but not a shard without its sidecar."""
    if os.path.exists(path):
        os.remove(path)
    write_atomically(path + ".json", json.dumps(sidecar, indent=2).encode() + b"\n")
    os.replace(arrived, path)


def remove_work(work):
    """Deletes what the hub's package left in `work`, and nothing else."""
    shutil.rmtree(os.path.join(work, ".cache", "huggingface"), ignore_errors=True)
    for folder in (os.path.join(work, ".cache"), work):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def ask_hub(published, revision, names):
    """The revision and, by name, what the hub says about each file."""
    try:
        import huggingface_hub
    except ImportError:
        raise PrepareError("download needs the Python package huggingface_hub: pip install huggingface_hub, or "
                           "scripts/setup.sh --with-prepare") from None
    hub = huggingface_hub.HfApi(endpoint())
    try:
        revision = revision or hub.dataset_info(published.repo, timeout=60).sha
        found = hub.get_paths_info(published.repo, names, repo_type="dataset", revision=revision)
    except Exception as error:  # as in fetch()
        raise PrepareError(f"the hub does not answer for {published.repo}: {first_line(error)}") from None
    files = {file.path: file for file in found}
    missing = [name for name in names if name not in files]
    if missing:
        raise PrepareError(f"{published.repo} has no {', '.join(missing[:3])} in revision {revision}")
    return revision, files


def download(name, out, shards=None, revision=None, tokenizer=None):
    published = SETS[name]
    shards = published.shards if shards is None else shards
    if not 1 <= shards <= published.shards:
        raise PrepareError(f"--shards {shards}: {name} has 1 to {published.shards}")
    tokenizer = open_tokenizer(tokenizer or published.tokenizer)
    if tokenizer.name != published.tokenizer:
        raise PrepareError(f"{name} has tokens of {published.tokenizer}, not of {tokenizer.name}")
    kept = kept_revision(out, published.repo)
    if kept and revision and kept != revision:
        raise PrepareError(f"{out} has shards of revision {kept}; choose another --out for {revision}")
    names = published.files(shards)
    revision, on_hub = ask_hub(published, revision or kept, [remote for _, remote in names])
    source = source_of(published.repo, revision)
    wanted = [(os.path.join(out, local), remote) for local, remote in names
              if not is_here(os.path.join(out, local), on_hub[remote].size, source)]
    for path, _ in wanted:
        outputs.require_own(path, outputs.is_shard)
        outputs.require_own(path + ".json", outputs.is_sidecar)
    outputs.require_own_tokenizer(tokenizer.content, out)
    outputs.require_one_tokenizer(out, tokenizer.sidecar(), tokenizer.content is not None,
                                  [path + ".json" for path, _ in wanted])
    os.makedirs(out, exist_ok=True)
    needed, free = sum(on_hub[remote].size for _, remote in wanted), shutil.disk_usage(out).free
    print(f"{source}: {len(wanted)} of {len(names)} shards to download, {size_text(needed)}; {size_text(free)} of disk "
          "are free", flush=True)
    if needed > free:
        raise PrepareError(f"{out}: {size_text(needed)} are needed and {size_text(free)} are free; --shards N takes fewer")
    work = os.path.join(out, ".download")
    for path, remote in wanted:
        start = time.monotonic()
        arrived = fetch(published.repo, revision, remote, on_hub[remote], work)
        seconds = time.monotonic() - start
        try:
            sidecar = describe(arrived, on_hub[remote], tokenizer, source)
        except PrepareError:
            os.remove(arrived)
            raise
        put(arrived, path, sidecar)
        print(f"{path}: {sidecar['tokens']:,} tokens, {size_text(on_hub[remote].size)} in {seconds:.0f} s", flush=True)
    remove_work(work)
    write_tokenizer(tokenizer, out)
