"""Perplexity with a window that slides over a text, only its new tokens scored.

The same tokens are scored at every length, each with at least length - stride and less than length
tokens before it, so that lengths differ in the context alone.
"""

from __future__ import annotations

import math
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

    def bits_per_byte(self, scored_bytes: int) -> float:
        """`scored_bytes`: size of the scored text in UTF-8."""
        return self.nll / math.log(2) / scored_bytes


def scored_span(available: int, longest: int, stride: int, tokens: int) -> slice:
    """The tokens to score: about `tokens` of them, a multiple of `stride`, after `longest` others.

    Raises:
        ValueError: if the text is too short to score any.
    """
    count = min(tokens, available - longest) // stride * stride
    if count <= 0:
        raise ValueError(
            f"{available:,} tokens of text are too few for a window of {longest:,} and a stride of "
            f"{stride}"
        )
    return slice(longest, longest + count)


@torch.no_grad()
def sliding_perplexity(
    model: TapeForCausalLM,
    tokens: np.ndarray,
    span: slice,
    length: int,
    stride: int,
    batch_tokens: int = 16_384,
) -> Perplexity:
    """Score `tokens[span]` with windows of `length` that end every `stride` tokens.

    Args:
        span: from `scored_span`, for the longest of the lengths that are compared.
        batch_tokens: how many tokens to run at once.

    Raises:
        ValueError: if the stride leaves a scored token without context.
    """
    if not 0 < stride < length:
        raise ValueError(f"stride={stride} must lie in 1..{length - 1}, below the window's length")
    ends = range(span.start + stride, span.stop + 1, stride)
    per_batch = max(1, batch_tokens // length)
    nll = 0.0
    training = model.training
    model.eval()
    with model.evaluation_length(length):
        for first in tqdm(
            range(0, len(ends), per_batch), desc=f"perplexity at {length}", leave=False
        ):
            batch = ends[first : first + per_batch]
            windows = np.stack([tokens[end - length : end] for end in batch]).astype(np.int64)
            ids = torch.from_numpy(windows).to(model.device)
            logits = model(ids, logits_to_keep=stride + 1, use_cache=False).logits[:, :-1]
            losses = F.cross_entropy(
                logits.float().transpose(1, 2), ids[:, -stride:], reduction="none"
            )
            nll += losses.double().sum().item()
    model.train(training)
    return Perplexity(length, stride, len(ends) * stride, nll)
