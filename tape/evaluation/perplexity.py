"""Perplexity under windows of several lengths, only the last `stride` tokens of each scored.

The same tokens are scored at every length, each with at least length - stride and less than length
tokens before it, so that lengths differ in the context alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from tape.modeling import TapeForCausalLM


@dataclass(frozen=True)
class Perplexity:
    """Negative log-likelihood (nats) of `tokens` tokens under windows of `length`."""

    length: int
    stride: int
    tokens: int
    nll: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.tokens)

    def bits_per_byte(self, scored_bytes: float) -> float:
        """`scored_bytes`: size of the scored text in UTF-8."""
        return self.nll / math.log(2) / scored_bytes


def window_ends(available: int, longest: int, stride: int, tokens: int) -> np.ndarray:
    """Where windows end, so that they score about `tokens` tokens, none of them twice, spread
    evenly over a text of `available` tokens, and the longest window fits before each end.

    Raises:
        ValueError: if the text is too short for one window.
    """
    first = max(longest, stride)
    if available < first:
        raise ValueError(f"{available:,} tokens of text are fewer than one window of {longest:,}")
    count = min(max(1, tokens // stride), 1 + (available - first) // stride)
    return np.linspace(first, available, count).astype(np.int64)


@contextmanager
def _evaluating(model: TapeForCausalLM) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def sliding_perplexity(
    model: TapeForCausalLM,
    tokens: np.ndarray,
    ends: np.ndarray,
    length: int,
    stride: int,
    batch_tokens: int = 16_384,
) -> Perplexity:
    """Score the last `stride` tokens before each of `ends` in a window of `length`.

    Args:
        ends: from `window_ends`, for the longest of the lengths that are compared.
        batch_tokens: how many tokens to run at once.

    Raises:
        ValueError: if the stride leaves a scored token without context.
    """
    if not 0 < stride < length:
        raise ValueError(f"stride={stride} must lie in 1..{length - 1}, below the window's length")
    per_batch = max(1, batch_tokens // length)
    nll = 0.0
    with _evaluating(model), model.evaluation_length(length):
        batches = range(0, len(ends), per_batch)
        for first in tqdm(batches, desc=f"perplexity at {length}", leave=False, disable=None):
            batch = ends[first : first + per_batch]
            windows = np.stack([tokens[end - length : end] for end in batch]).astype(np.int64)
            ids = torch.from_numpy(windows).to(model.device)
            logits = model(ids, logits_to_keep=stride + 1, use_cache=False).logits[:, :-1]
            losses = F.cross_entropy(
                logits.float().transpose(1, 2), ids[:, -stride:], reduction="none"
            )
            nll += losses.double().sum().item()
    return Perplexity(length, stride, len(ends) * stride, nll)
