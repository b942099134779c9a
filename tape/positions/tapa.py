"""TAPA: scores with a phase that depends on both tokens (Wang et al. 2025, arXiv 2509.12635)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tape.positions.base import LayerPosition, PositionEncoding, Positions, Tokens
from tape.positions.scores import ScoreBias

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class PhaseScores(ScoreBias):
    """q_A . k_A / sqrt(A) cos(2 pi |i - j|^alpha q_P . k_P / sqrt(D - A)), in place of q . k /
    sqrt(D); q_A are the first A channels of q, and q_P the others."""

    replaces_products = True

    def __init__(
        self, q_BHTD: Tensor, k_BKSD: Tensor, positions: Positions, amplitude: int, alpha: float
    ):
        self.q, self.k, self.positions = q_BHTD, k_BKSD, positions
        self.amplitude, self.alpha = amplitude, alpha

    def dense(self, dtype: torch.dtype) -> Tensor:
        (H, D), K = (self.q.shape[1], self.q.shape[-1]), self.k.shape[1]
        wide = torch.promote_types(dtype, torch.float32)
        query, key = (x.to(wide) for x in self.positions[:2])
        turns = (query[:, None, :, None] - key[:, None, None]).abs() ** self.alpha
        widths = (self.amplitude, D - self.amplitude)
        with torch.autocast(self.q.device.type, enabled=False):
            k = self.k.to(wide).repeat_interleave(H // K, dim=1)
            parts = zip(self.q.to(wide).split(widths, -1), k.split(widths, -1), strict=True)
            amplitude, phase = (q @ k.mT * q.shape[-1] ** -0.5 for q, k in parts)
            return (amplitude * (2 * math.pi * turns * phase).cos()).to(dtype)


class PhaseLayer(LayerPosition):
    def __init__(self, amplitude: int, alpha: float):
        super().__init__()
        self.amplitude, self.alpha = amplitude, alpha

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: None, tokens: Tokens
    ) -> ScoreBias:
        return PhaseScores(q_BHTD, k_BKSD, tokens.positions, self.amplitude, self.alpha)


class TAPA(PositionEncoding):
    """The score of a query i and a key j is the product of their first channels, times the cosine
    of 2 pi |i - j|^alpha times the product of the others (the paper's equation 12). It has no
    parameters. No code is published: re-derived from the equation.

    Arguments of the configuration:
        alpha: exponent of the distance.
        share: of a head's channels in the first product.
    """

    backends = frozenset({"eager", "sdpa"})

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        alpha: float = 0.1,
        share: float = 0.5,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.amplitude, self.alpha = round(share * config.head_dim), alpha
        if not alpha > 0:
            raise ValueError(f"position tapa: alpha={alpha} must be a number > 0")
        if not 0 < self.amplitude < config.head_dim:
            raise ValueError(
                f"position tapa: share={share} must leave both products one of the "
                f"{config.head_dim} channels of a head, or more"
            )

    def layer(self, layer_idx: int) -> LayerPosition:
        return PhaseLayer(self.amplitude, self.alpha)
