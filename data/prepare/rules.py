"""Cleans and filters a document's text before tokenization: Unicode normalization, the published rules of C4 and
Gopher, and decontamination. Each rule looks at one document alone, so the order of documents does not matter.
"""

import collections
import re
import unicodedata

# C4: Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, JMLR 2020,
# section 2.2. From its code comes the rule that "..." does not end a line. Not implemented: its list of bad words, its
# language detector, and the removal of repeated spans of three sentences (duplicates.py handles whole documents).
C4_LINE_ENDS = (".", "!", "?", '"')
C4_LINE_WORDS = 5
C4_SENTENCES = 3
C4_POLICY = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies")
C4_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)")

# Gopher: Rae et al., Scaling Language Models: Methods, Analysis & Insights from Training Gopher, 2021, appendix A1.1;
# the limits of repetition are in its table A1.
GOPHER_STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
GOPHER_BULLETS = ("\u2022", "\u2023", "\u25e6", "*", "-")
GOPHER_TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
GOPHER_REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}

# GPT-3: Brown et al., Language Models are Few-Shot Learners, 2020, appendix C: 13 consecutive words in common, in lower
# case and without punctuation. (GPT-3 cuts out 200 characters around them; here the document is dropped.)
CONTAMINATION_WORDS = 13


def normalize(text, form):
    """Applies Unicode's normal form NFC or NFKC, ends all lines with a line feed, and removes characters that are never
    shown.
    """
    text = unicodedata.normalize(form.upper(), text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u200b\ufeff]", "", text)


def apply_c4(text):
    """Returns (the text reduced to the lines that C4 keeps, the reason to drop it or None)."""
    lower = text.lower()
    if "lorem ipsum" in lower:
        return text, "C4: lorem ipsum"
    if "{" in text:
        return text, "C4: curly bracket"
    lines = []
    for line in text.splitlines():
        line = C4_CITATION.sub("", line).strip()
        small = line.lower()
        if (line.endswith(C4_LINE_ENDS) and not line.endswith("...") and len(line.split()) >= C4_LINE_WORDS
                and "javascript" not in small and not C4_POLICY.search(small)):
            lines.append(line)
    text = "\n".join(lines)
    if len(SENTENCE_END.findall(text)) < C4_SENTENCES:
        return text, f"C4: fewer than {C4_SENTENCES} sentences"
    return text, None


def apply_gopher(text):
    """Returns (the unchanged text, the reason to drop it or None)."""
    words = text.split()
    return text, gopher_quality(text, words) or gopher_repetition(text, words)


def gopher_quality(text, words):
    if not 50 <= len(words) <= 100_000:
        return "Gopher: not 50 to 100000 words"
    if not 3 <= sum(map(len, words)) / len(words) <= 10:
        return "Gopher: mean length of words"
    if max(text.count("#"), text.count("...") + text.count("\u2026")) / len(words) > 0.1:
        return "Gopher: symbols"
    lines = text.splitlines()
    if sum(line.lstrip().startswith(GOPHER_BULLETS) for line in lines) > 0.9 * len(lines):
        return "Gopher: bullets"
    if sum(line.rstrip().endswith(("...", "\u2026")) for line in lines) > 0.3 * len(lines):
        return "Gopher: lines end with an ellipsis"
    if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * len(words):
        return "Gopher: words without letters"
    if len(GOPHER_STOP_WORDS.intersection(word.strip(".,;:!?\"'()").lower() for word in words)) < 2:
        return "Gopher: stop words"
    return None


def repeated(pieces):
    """Returns the fractions of pieces and of characters that repeat an earlier piece."""
    seen, count, characters = set(), 0, 0
    for piece in pieces:
        if piece in seen:
            count, characters = count + 1, characters + len(piece)
        seen.add(piece)
    return count / max(len(pieces), 1), characters


def gopher_repetition(text, words):
    for name, pieces in (("lines", text.splitlines()), ("paragraphs", re.split(r"\n\s*\n", text))):
        fraction, characters = repeated([piece.strip() for piece in pieces if piece.strip()])
        if fraction > 0.3 or characters > 0.2 * len(text):
            return f"Gopher: repeated {name}"
    total = sum(map(len, words))
    for n, most in GOPHER_TOP_NGRAMS.items():
        counts = collections.Counter(zip(*(words[i:] for i in range(n))))
        # Takes the longest of the most frequent ones; an n-gram that occurs once repeats nothing.
        count, length = max(((count, sum(map(len, gram))) for gram, count in counts.items()), default=(0, 0))
        if count > 1 and count * length > most * total:
            return f"Gopher: one {n}-gram again and again"
    for n, most in GOPHER_REPEATED_NGRAMS.items():
        if repeated_ngram_characters(words, n) > most * total:
            return f"Gopher: repeated {n}-grams"
    return None


def repeated_ngram_characters(words, n):
    """The number of characters of words in repeated n-grams; each word counts once."""
    seen, characters, covered = set(), 0, 0
    for i, gram in enumerate(zip(*(words[k:] for k in range(n)))):
        if gram in seen:
            first = max(i, covered)
            characters += sum(map(len, words[first:i + n]))
            covered = i + n
        seen.add(gram)
    return characters


RULES = {"c4": apply_c4, "gopher": apply_gopher}


def plain_words(text):
    return re.findall(r"\w+", text.lower())


def contamination_ngrams(texts):
    """Hashable n-grams of an evaluation set."""
    ngrams = set()
    for text in texts:
        words = plain_words(text)
        ngrams.update(" ".join(words[i:i + CONTAMINATION_WORDS]) for i in range(len(words) - CONTAMINATION_WORDS + 1))
    return ngrams


def is_contaminated(text, ngrams):
    words = plain_words(text)
    return any(" ".join(words[i:i + CONTAMINATION_WORDS]) in ngrams
               for i in range(len(words) - CONTAMINATION_WORDS + 1))
