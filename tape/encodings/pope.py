"""PoPE: polar positions, which separate the size of a channel from its phase (arXiv 2509.10534)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import (
    LayerPosition,
    PositionEncoding,
    Positions,
    Prepared,
    Tokens,
    without_autocast,
)
from tape.positions.rotary import waves


class PolarLayer(LayerPosition):
    def __init__(self, config: PretrainedConfig):
        super().__init__()
        self.shift = nn.Parameter(torch.empty(config.num_key_value_heads, 1, config.head_dim))

    def reset_parameters(self) -> None:
        init.zeros_(self.shift)

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        return polar(q_BHTD, *tokens.e.unbind(-2)), polar(k_BKTD, *self(tokens.e)), None

    def forward(self, e: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine of the phases of keys, (B|1, K, T, D)."""
        cosine, sine = e.unbind(-2)  # (B|1, 1, T, D)
        shift = self.shift.to(e.dtype)
        c, s = shift.cos(), shift.sin()
        return cosine * c - sine * s, sine * c + cosine * s


def polar(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Returns softplus(x) times cosine and sine, side by side."""
    # Softplus, whose own gradient has strides that break graphs of torch.compile.
    size = -F.logsigmoid(-x).to(x.dtype)  # autocast widens it on a GPU
    return torch.cat((size * cosine.to(x.dtype), size * sine.to(x.dtype)), dim=-1)


class PoPE(PositionEncoding):
    """Channel c of query i is a complex number of size softplus(q_c) and phase i theta_c, that of
    key j of size softplus(k_c) and phase j theta_c + d_c; the score is the real part of their
    product, with theta_c = base^(-c/D), and d_c, zero at first, learned per key/value head.
    The paper bounds d_c by [-2 pi, 0]; phases are periodic, and a bound at the initial value would
    block the gradient there.

    Queries and keys in the scores and in the cache are twice as wide as in other encodings.
    """

    positive = ("base",)

    base: float = 10_000.0

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        """(B|1, 1, T, 2, D): cosine and sine of the phase of each channel."""
        D, query = self.config.head_dim, positions.query
        with without_autocast(query):
            exponent = torch.arange(D, device=query.device, dtype=dtype) / D
            return waves(query.to(dtype)[..., None] / self.base**exponent)[:, None]

    def layer(self, layer_idx: int) -> LayerPosition:
        return PolarLayer(self.config)
