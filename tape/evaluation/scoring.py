"""Negative log-likelihoods of the tokens that windows score.

Logits are computed for scored tokens only, a few at a time: with a vocabulary of 32,000 those of
8,192 tokens would take a gigabyte.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tape.core.progress import track
from tape.evaluation.windows import Batch, Window, batches_of
from tape.model.modeling import TapeForCausalLM

LOGITS = 2**21  # to hold at once: 8 MiB in float32


class Perplexity(NamedTuple):
    """The mean loss `nll` (nats per token) of `tokens` tokens under windows of `length`."""

    length: int
    tokens: int
    nll: float

    @property
    def perplexity(self) -> float:
        return exp(self.nll)

    def bits_per_byte(self, scored_bytes: int | None) -> float | None:
        """`scored_bytes`: size of the scored text in UTF-8; None if unknown."""
        return self.nll * self.tokens / math.log(2) / scored_bytes if scored_bytes else None


def exp(nll: float) -> float:
    """Returns a perplexity; infinity beyond the largest float."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf


@torch.no_grad()
def losses(model: TapeForCausalLM, tokens: np.ndarray, batch: Batch) -> np.ndarray:
    """Returns negative log-likelihoods (nats) of the scored tokens among the (N,) ids of a text,
    window after window: (targets,) float64."""
    windows = np.stack([tokens[window.start : window.stop] for window in batch.windows])
    ids = torch.from_numpy(windows.astype(np.int64)).to(model.device)
    training = model.training
    try:
        with model.eval().evaluation_length(batch.length):
            x_BTC = model.model(ids, use_cache=False).last_hidden_state
    finally:
        model.train(training)
    scored = [window.first - window.start for window in batch.windows]
    # A token is predicted from the hidden state of the one before it.
    x_MC = torch.cat([x[first - 1 : -1] for x, first in zip(x_BTC, scored, strict=True)])
    targets = torch.cat([row[first:] for row, first in zip(ids, scored, strict=True)])
    return cross_entropy(model, x_MC, targets).double().cpu().numpy()


def cross_entropy(model: TapeForCausalLM, x_MC: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy of every token (M,), with the logits of a few at a time."""
    at_once = max(1, LOGITS // model.config.vocab_size)
    # Allocated once: parts kept one by one would fragment the memory of freed logits.
    dtype = torch.promote_types(x_MC.dtype, torch.float32)
    found = torch.empty(len(targets), dtype=dtype, device=x_MC.device)
    for first in range(0, len(targets), at_once):
        part = slice(first, first + at_once)
        logits = model.lm_head(x_MC[part]).to(dtype)
        found[part] = F.cross_entropy(logits, targets[part], reduction="none")
    return found


def perplexity(
    model: TapeForCausalLM, tokens: np.ndarray, windows: list[Window], length: int
) -> Perplexity:
    """Returns the perplexity of the tokens that windows of this length score, weighted alike."""
    bar = track(batches_of(windows, length), desc=f"perplexity at {length}", leave=False)
    found = np.concatenate([losses(model, tokens, batch) for batch in bar])
    return Perplexity(length, len(found), float(found.mean()))
