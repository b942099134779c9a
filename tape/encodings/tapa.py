"""TAPA: scores with a phase that depends on both tokens (Wang et al. 2025, arXiv 2509.12635)."""

import math
from typing import Any

from torch import Tensor
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, PositionEncoding, Tokens
from tape.positions.pairs import PairLayer, for_queries
from tape.positions.scores import SCORE_BACKENDS


class PhaseLayer(PairLayer):
    """q_A . k_A / sqrt(A) cos(2 pi |i - j|^alpha q_P . k_P / sqrt(D - A)), in place of q . k /
    sqrt(D); q_A are the first A channels of q, and q_P the others."""

    replaces_products = True

    def __init__(self, amplitude: int, alpha: float):
        super().__init__()
        self.amplitude, self.alpha = amplitude, alpha

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> Tensor:
        query, key = (x.to(q_BHTD.dtype) for x in tokens.positions[:2])
        turns = (query[:, None, :, None] - key[:, None, None]).abs() ** self.alpha
        widths = (self.amplitude, q_BHTD.shape[-1] - self.amplitude)
        of_keys = for_queries(k_BKSD, q_BHTD).split(widths, -1)
        parts = zip(q_BHTD.split(widths, -1), of_keys, strict=True)
        amplitude, phase = (q @ k.mT * q.shape[-1] ** -0.5 for q, k in parts)
        return amplitude * (2 * math.pi * turns * phase).cos()


class TAPA(PositionEncoding):
    """The score of a query i and a key j is the product of their first channels, times the cosine
    of 2 pi |i - j|^alpha times the product of the others (the paper's equation 12). It has no
    parameters. No code is published: re-derived from the equation."""

    backends = SCORE_BACKENDS
    positive = ("alpha",)

    alpha: float = 0.1  # exponent of the distance
    share: float = 0.5  # of a head's channels in the first product

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.amplitude = round(self.share * config.head_dim)
        if not 0 < self.amplitude < config.head_dim:
            raise ValueError(
                f"position tapa: share={self.share} must leave both products one of the "
                f"{config.head_dim} channels of a head, or more"
            )

    def layer(self, layer_idx: int) -> LayerPosition:
        return PhaseLayer(self.amplitude, self.alpha)
