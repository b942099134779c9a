"""Prompts of several lengths in one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def left_padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """(B, T) tokens and their mask, zero at the padding: all prompts end where answers begin."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.as_tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask
