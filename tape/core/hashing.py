"""Random bits as a function of a number, the same on every machine and in every version."""

import numpy as np

STEP = 0x9E3779B97F4A7C15  # of SplitMix64


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Hashes each uint64 bijectively (SplitMix64: Steele, Lea and Flood 2014)."""
    x = x + STEP
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


def keys_of(*parts: np.ndarray | int) -> np.ndarray:
    """Hashes integers >= 0, of shapes that broadcast to (B,), to keys (B,)."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = splitmix64(key + np.asarray(part, dtype=np.uint64))
    return key


class Draws:
    """Random numbers for each of B keys (B,): the outputs of SplitMix64, started from it."""

    def __init__(self, keys: np.ndarray):
        self.keys, self.used = keys[:, None], 0

    def bits(self, count: int) -> np.ndarray:
        """(B, count) of uint64."""
        places = np.arange(self.used, self.used + count, dtype=np.uint64)
        self.used += count
        return splitmix64(self.keys + places * STEP)

    def integers(self, bound: int, count: int) -> np.ndarray:
        """(B, count) in 0..bound-1, of equal probability up to bound / 2**32."""
        return ((self.bits(count) >> 32) * np.uint64(bound) >> 32).astype(np.int64)

    def permutation(self, count: int) -> np.ndarray:
        """(B, count): 0..count-1 in random order."""
        return np.argsort(self.bits(count), axis=1, kind="stable")
