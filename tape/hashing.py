"""Random bits as a function of a number, the same on every machine and in every version."""

import numpy as np


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Hashes each uint64 bijectively (SplitMix64: Steele, Lea and Flood 2014)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
