"""Finds repeated documents. The order of the inputs alone decides which copy is the first, so the result does not
depend on the number of workers.

Near duplicates are found by MinHash over 5-grams of words, with 112 permutations in 14 bands of 8 rows, as for FineWeb
(Penedo et al., The FineWeb Datasets, 2024). Documents with 75 % of their 5-grams in common share a band with
probability 0.77, with 85 % 0.99, with 50 % 0.05. A document of fewer than 5 words is one n-gram.
"""

import collections
import hashlib

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
    words = plain_words(text)
    ngrams = {" ".join(words[i:i + NGRAM]).encode() for i in range(max(len(words) - NGRAM + 1, 1))}
    minhash = datasketch.MinHash(num_perm=BANDS * ROWS, seed=1)
    minhash.update_batch(sorted(ngrams))
    return minhash.hashvalues.astype("<u4")  # enough bits to compare two minima


class Duplicates:
    """Takes documents one after the other and decides which ones to drop."""

    def __init__(self, mode):
        self.mode = mode
        self.seen = set()
        self.bands = [collections.defaultdict(list) for _ in range(BANDS)]  # by the rows of a band
        self.kept = []

    def reason_to_drop(self, digest, minima):
        if self.mode == "none":
            return None
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        if self.mode == "minhash" and not self.keep(minima):
            return "near duplicate"
        return None

    def keep(self, minima):
        """Returns True and keeps the document if it resembles none of the documents kept so far."""
        places = [band[rows.tobytes()] for band, rows in zip(self.bands, minima.reshape(BANDS, ROWS))]
        candidates = set().union(*places)
        if any((self.kept[i] == minima).mean() >= SIMILAR for i in candidates):
            return False
        for place in places:
            place.append(len(self.kept))
        self.kept.append(minima)
        return True
