"""Finding documents that are there twice. Who is first is decided by the inputs' order alone, so that the outcome does
not depend on how many workers there were.

Near duplicates: MinHash of 5-grams of words, 112 permutations in 14 bands of 8 rows, as FineWeb has them (Penedo et al.,
The FineWeb Datasets, 2024, section 3.4): documents with 75 % of their 5-grams in common share a band with probability
0.77, with 85 % 0.99, with 50 % 0.05. Documents shorter than 5 words are one n-gram.
"""

import hashlib

from .rules import plain_words
from .tokenizers import missing

NGRAM = 5
BANDS, ROWS = 14, 8
SIMILAR = 0.75  # estimated from the signatures of two documents that share a band


def document_hash(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def import_datasketch():
    try:
        import datasketch
    except ImportError:
        raise missing("datasketch", "--dedup minhash") from None
    return datasketch


def signature(text):
    """The document's minima: BANDS * ROWS uint64."""
    words = plain_words(text)
    ngrams = {" ".join(words[i:i + NGRAM]).encode() for i in range(max(len(words) - NGRAM + 1, 1))}
    minhash = import_datasketch().MinHash(num_perm=BANDS * ROWS, seed=1)
    minhash.update_batch(sorted(ngrams))
    return minhash.hashvalues


class Duplicates:
    """Sees the documents one after the other and says which ones go."""

    def __init__(self, mode):
        self.mode = mode
        self.seen = set()
        if mode == "minhash":
            self.datasketch = import_datasketch()
            self.index = self.datasketch.MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
            self.kept = []

    def reason_to_drop(self, digest, minima):
        if self.mode == "none":
            return None
        if digest in self.seen:
            return "duplicate"
        self.seen.add(digest)
        if self.mode == "minhash":
            minhash = self.datasketch.MinHash(num_perm=BANDS * ROWS, seed=1, hashvalues=minima)
            if any(self.kept[i].jaccard(minhash) >= SIMILAR for i in self.index.query(minhash)):
                return "near duplicate"
            self.index.insert(len(self.kept), minhash, check_duplication=False)
            self.kept.append(self.datasketch.LeanMinHash(minhash))
        return None
