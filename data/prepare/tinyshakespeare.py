"""The 1 MB of Shakespeare that llm.c starts with: `prepare download tinyshakespeare` fetches its text, and `prepare
tinyshakespeare` makes shards that equal llm.c's byte for byte.

In these shards every speech is a document. The first 32,768 tokens are the validation set.
"""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request

import numpy

from . import outputs, readers
from .shard import open_regular, write_atomically, write_shards
from .table import MISCOUNTED, write_tokenizer
from .tokenizers import PrepareError

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
VAL_TOKENS = 32768
PAUSES = (1, 4)  # seconds before each further attempt to download


def download(url, instead):
    """The bytes of a page."""
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return reply.read()
        except (OSError, http.client.HTTPException) as error:
            if pause is None or isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise PrepareError(f"could not download {url}: {getattr(error, 'reason', error)}; without a network, "
                                   f"{instead}") from None
            if isinstance(error, urllib.error.HTTPError):
                error.close()
        time.sleep(pause)


def download_text(out):
    path = os.path.join(out, "tinyshakespeare.txt")
    outputs.require_own(path, is_text)
    if not os.path.exists(path):
        text = download(URL, f"fetch it elsewhere, save it as {path} and give the same command again, or go on with a text "
                        "of your own")
        if hashlib.sha256(text).hexdigest() != SHA256:
            raise PrepareError(f"{URL} arrived with other bytes ({len(text)}) than the published text; give the same "
                               "command again")
        os.makedirs(out, exist_ok=True)
        write_atomically(path, text)
    print(f"{path}: {os.path.getsize(path):,} bytes, with the published checksum")


def is_text(path):
    return hashlib.sha256(outputs.read(path)).hexdigest() == SHA256


def read_or_download(file, url, flag="--text FILE"):
    """The bytes of the file `file`, or of the page `url` if `file` is None."""
    if file is None:
        return download(url, f"fetch it elsewhere and give it with {flag}")
    try:
        with open_regular(file) as stream:
            return stream.read()
    except OSError as error:
        raise PrepareError(f"cannot read {file}: {error.strerror}") from None


def speeches(text):
    """The texts of the documents. The blank line after a speech belongs to it."""
    parts = text.split(b"\n\n")
    return [part + b"\n\n" for part in parts[:-1]] + parts[-1:]


def prepare_tinyshakespeare(out, tokenizer, text_file=None):
    text = read_or_download(text_file, URL)
    if readers.decode(text) != (text.decode(errors="replace"), 0):
        raise PrepareError(f"{text_file or URL} is not UTF-8 text without a byte order mark")
    texts = [speech.decode(errors="replace") for speech in speeches(text)]
    documents = [tokenizer.encode(speech) for speech in texts]
    lengths, sizes = [len(document) + 1 for document in documents], [len(speech.encode()) for speech in texts]
    exact = sum(map(tokenizer.miscounted, documents, sizes)) <= MISCOUNTED * sum(sizes)
    end = numpy.array([tokenizer.end_token], documents[0].dtype)
    tokens = numpy.concatenate([part for document in documents for part in (end, document)])
    sizes = tokenizer.sizes_in_documents(tokens, numpy.array(lengths), numpy.array(sizes))
    if len(tokens) <= VAL_TOKENS:
        raise PrepareError(f"the text has {len(tokens)} tokens; the validation set alone takes {VAL_TOKENS}")
    val, train = paths = [os.path.join(out, f"tinyshakespeare_{split}.bin") for split in ("val", "train")]
    for path in paths:
        outputs.require_own(path, outputs.is_shard)
        outputs.require_own(path + ".json", outputs.is_sidecar)
    outputs.require_own_tokenizer(tokenizer.content, out)
    outputs.require_one_tokenizer(out, tokenizer.sidecar(), tokenizer.content is not None,
                                  [path + ".json" for path in paths])
    os.makedirs(out, exist_ok=True)
    for path, where in ((val, slice(VAL_TOKENS)), (train, slice(VAL_TOKENS, None))):
        write_shards([(tokens[where], sizes[where])], lambda _: path, tokenizer=tokenizer.name, vocab=tokenizer.vocab,
                     end_token=tokenizer.end_token, extra=tokenizer.sidecar())
        print(f"{path}: {len(tokens[where])} tokens")
    write_tokenizer(tokenizer, out, exact)
