"""Near-duplicates among paragraphs, by the sequences of eight words that they share."""

import re
import zlib

import numpy as np

WORDS = 8  # of a gram
SHARE = 0.25  # of its grams that a paragraph may share with those before it, or after it
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that hashes of different orders differ


def grams(text: str) -> np.ndarray:
    """Hashes each sequence of eight words of a text, or all of a shorter one: (N,) uint64. Words
    are runs of ASCII letters and digits, in lower case."""
    found = re.findall("[a-z0-9]+", text.lower())
    words = np.array([zlib.crc32(word.encode()) for word in found], np.uint64)
    hashes = np.zeros(max(len(words) - WORDS + 1, 1), np.uint64)
    for n in range(min(WORDS, len(words))):
        hashes = hashes * BASE + words[n : n + len(hashes)]
    return hashes


def shares(paragraphs: list[np.ndarray]) -> np.ndarray:
    """Returns the share of each paragraph's grams that occur in a paragraph before it: (P,)."""
    lengths = np.array([len(each) for each in paragraphs])
    owner = np.repeat(np.arange(len(paragraphs)), lengths)
    _, first, inverse = np.unique(
        np.concatenate(paragraphs), return_index=True, return_inverse=True
    )
    return np.bincount(owner, owner[first[inverse]] < owner, len(paragraphs)) / lengths


def distinct(paragraphs: list[str]) -> np.ndarray:
    """Marks the paragraphs to keep, (P,): not those that share more than a quarter of their grams
    with paragraphs before them, and, of the rest, not those that do with paragraphs after them."""
    hashes = [grams(text) for text in paragraphs]
    kept = np.arange(len(paragraphs))
    for _ in range(2):  # forwards, then backwards
        kept = kept[shares([hashes[n] for n in kept]) <= SHARE][::-1] if len(kept) else kept
    return np.isin(np.arange(len(paragraphs)), kept)
