"""Scale-invariant attention: scores by the logarithm of the distance (Anson et al. 2025, arXiv
2505.17083)."""

import torch
from torch import Tensor

from tape.positions.base import LayerPosition, Tokens
from tape.positions.pairs import PairLayer, for_queries
from tape.positions.rotary import RoPE, RotaryLayer
from tape.positions.scores import SCORE_BACKENDS


class ScaleInvariantLayer(PairLayer, RotaryLayer):
    """a q . k / sqrt(D) - a^2 + 1 for rotated queries and keys, where a^2 = 1 + 2 ln(1 + (i - j) /
    tau)."""

    replaces_products = True

    def __init__(self, tau: float):
        super().__init__()
        self.tau = tau

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> Tensor:
        grown = 2 * (tokens.positions.distances()[:, None].to(q_BHTD.dtype) / self.tau).log1p()
        scores = q_BHTD * q_BHTD.shape[-1] ** -0.5 @ for_queries(k_BKSD, q_BHTD).mT
        return torch.addcmul(-grown, scores, (1 + grown).sqrt())


class ScaleInvariant(RoPE):
    """RoPE with the score s of tokens at distance d as a(d) s + m(d), a^2 = 1 + 2 ln(1 + d / tau)
    and m = 1 - a^2. If scores without it were independent normal numbers, with a variance of 1, the
    expected weights before normalisation would be e^0.5 / (1 + d / tau): as much for the tokens at
    distances 10 to 100 as for those at 100 to 1,000. The paper prefers RoPE without its lowest
    frequencies (`scaling`, "proportional"), and its models normalise queries and keys."""

    backends = SCORE_BACKENDS
    positive = ("tau",)

    tau: float = 10.0  # distance up to which scores hardly change

    def layer(self, layer_idx: int) -> LayerPosition:
        return ScaleInvariantLayer(self.tau)
