"""Finds repeated documents. The order of the inputs alone decides which copy is the first, so the result does not
depend on the number of workers.

Near duplicates are found by MinHash over 5-grams of words, with 112 permutations in 14 bands of 8 rows, as for FineWeb
(Penedo et al., The FineWeb Datasets, 2024). Documents with 75 % of their 5-grams in common share a band with
probability 0.77, with 85 % 0.99, with 50 % 0.05. A document of fewer than 5 words is one n-gram. Without any word, that
n-gram is its text, so that documents of punctuation are not all alike.

Most documents share no band with another one, so only the others are kept in memory. Which ones do is found first, on
disk: a file has 8 bytes for each band of each document, and one band at a time is sorted.
"""

import collections
import hashlib
import os
import tempfile

import numpy

from .rules import plain_words
from .tokenizers import missing

NGRAM = 5
BANDS, ROWS = 14, 8
SIMILAR = 0.75  # estimated from the signatures of two documents that share a band


def document_hash(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def signature(text):
    """The document's minima: BANDS * ROWS numbers."""
    try:
        import datasketch
    except ImportError:
        raise missing("datasketch", "--dedup minhash") from None
    words = plain_words(text) or [text]
    ngrams = {" ".join(words[i:i + NGRAM]).encode() for i in range(max(len(words) - NGRAM + 1, 1))}
    minhash = datasketch.MinHash(num_perm=BANDS * ROWS, seed=1)
    minhash.update_batch(sorted(ngrams))
    return minhash.hashvalues.astype("<u4")  # enough bits to compare two minima


def keys_of(minima):
    """A number of 8 bytes for each band of each document (BANDS, documents), equal if the band's rows are."""
    rows = minima.reshape(len(minima), BANDS, ROWS).astype(numpy.uint64)
    keys = numpy.zeros(rows.shape[:2], numpy.uint64)
    for row in range(ROWS):
        keys = (keys ^ rows[:, :, row]) * numpy.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> numpy.uint64(29)
    return keys.T


def shared_bands(blocks, most, folder):
    """For each document, a number with a bit for each band that another document has too. `blocks` yields the minima of
    at most `most` documents, block by block; `folder` is where the keys lie meanwhile.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, BANDS * max(most, 1) * 8)  # a full disk is an error here, not a signal later
        keys = numpy.memmap(file, numpy.uint64, "r+", shape=(BANDS, max(most, 1)))
        count = 0
        for minima in blocks:
            keys[:, count:count + len(minima)] = keys_of(minima)
            count += len(minima)
        shared = numpy.zeros(count, numpy.uint16)
        for band in range(BANDS):
            ordered = numpy.sort(keys[band, :count])
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            shared |= numpy.isin(keys[band, :count], twice).astype(numpy.uint16) << numpy.uint16(band)
        return shared


class Duplicates:
    """Takes documents one after the other and decides which ones to drop."""

    def __init__(self, mode):
        self.mode = mode
        self.seen = set()
        self.bands = [collections.defaultdict(list) for _ in range(BANDS)]  # by the rows of a band
        self.kept = []

    def reason_to_drop(self, digest, minima=None, shared=0):
        """`shared`: the document's number of shared_bands()."""
        if self.mode == "none":
            return None
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        if shared and not self.keep(minima, shared):
            return "near duplicate"
        return None

    def keep(self, minima, shared):
        """Returns True and keeps the document if it resembles none of the documents kept so far."""
        places = [self.bands[band][rows.tobytes()] for band, rows in enumerate(minima.reshape(BANDS, ROWS))
                  if shared >> band & 1]
        candidates = set().union(*places)
        if any((self.kept[i] == minima).mean() >= SIMILAR for i in candidates):
            return False
        for place in places:
            place.append(len(self.kept))
        self.kept.append(minima.copy())  # not a view, which would hold all documents of its block
        return True
