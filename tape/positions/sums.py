"""Running sums of earlier tokens, which the extras of keys hold."""

import math

import torch
from torch import Tensor
from transformers import PretrainedConfig

from tape.positions.base import Prepared, Tokens
from tape.positions.rotary import RotaryLayer, waves

PARTS = 3  # numbers of the model's dtype per sum: together 24 bits in bfloat16


def before_softplus(y: float) -> float:
    """Inverse of softplus, for y > 0.

    >>> before_softplus(9999.0)
    9999.0
    """
    return y + math.log(-math.expm1(-y))


def split_sums(x_BKTN: Tensor, dtype: torch.dtype) -> Tensor:
    """Splits sums into `PARTS` numbers of `dtype` each, (B, K, T, N * PARTS)."""
    parts, left = [], x_BKTN
    for _ in range(PARTS):
        parts.append(left.to(dtype))
        left = left - parts[-1].to(left.dtype)
    return torch.stack(parts, dim=-1).flatten(-2)


def join_sums(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `split_sums`."""
    return parts.unflatten(-1, (-1, PARTS)).to(dtype).sum(-1)


def running_sums(steps_BKTN: Tensor, tokens: Tokens) -> Tensor:
    """Returns the sums over each new token and all before it, cached ones included (`split_sums` in
    the first channels of `tokens.past`), with nothing added at padding."""
    steps_BKTN = tokens.without_padding(steps_BKTN)
    if tokens.past is None:
        return steps_BKTN.cumsum(2)
    past = tokens.past[..., : PARTS * steps_BKTN.shape[-1]]
    newest = past.index_select(2, (tokens.slots[:1] - 1).clamp(min=0))
    begin = join_sums(newest, steps_BKTN.dtype) * (tokens.slots[0] > 0)
    return torch.cat((begin, steps_BKTN), dim=2).cumsum(2)[:, :, 1:]


class SummedRotaryLayer(RotaryLayer):
    """Keeps for each token its phases modulo 2 pi, which later ones are added to, as the first
    extras of its keys."""

    def __init__(self, config: PretrainedConfig, values: bool):
        """With `values`, these turn, too."""
        super().__init__()
        self.values = values
        if config.head_dim % 2:
            name = config.position["name"]
            raise ValueError(f"position {name}: head_dim={config.head_dim} must be even")
        self.frequencies = config.head_dim // 2
        self.extras_width = PARTS * self.frequencies

    def rotate_by_sums(
        self, q_BHTD: Tensor, k_BKTD: Tensor, steps_BKTF: Tensor, tokens: Tokens
    ) -> Prepared:
        """Rotates queries and keys by the sums of the steps up to each token."""
        phases = running_sums(steps_BKTF, tokens)
        kept = split_sums(phases.remainder(2 * math.pi), k_BKTD.dtype)
        e = waves(phases)
        q, k, _ = RotaryLayer.prepare(self, q_BHTD, k_BKTD, tokens._replace(e=e))
        return (q, k, kept, e) if self.values else (q, k, kept)
