"""CoPE: counts the tokens that a query selects (Golovneva et al. 2024, arXiv 2405.18719)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Tokens
from tape.positions.pairs import PairLayer, for_queries
from tape.positions.scores import DENSE_BACKENDS


def seen_tokens(tokens: Tokens, S: int) -> Tensor:
    """Returns which tokens are real, and seen by a 4-D mask: broadcasts to (B, 1, T, S)."""
    if tokens.seen is not None:
        return tokens.seen[:, None]
    if tokens.real is None:
        return torch.ones(S, dtype=torch.bool, device=tokens.slots.device)
    real = tokens.real[:, None, None, :S]
    return F.pad(real, (0, S - real.shape[-1]))


class CountLayer(PairLayer):
    """q_i . e[p_ij] / sqrt(D), linear between the rows of e (D, N); p_ij is the sum of
    sigmoid(q_i . k_t / sqrt(D)) over the real tokens t = j .. i that i sees by a 4-D mask, at most
    N - 1."""

    def __init__(self, head_dim: int, count: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(head_dim, count))

    def reset_parameters(self) -> None:
        init.zeros_(self.table)

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> Tensor:
        S, (D, N) = k_BKSD.shape[2], self.table.shape
        q = q_BHTD * D**-0.5
        slots = torch.arange(S, device=q.device)
        counted = (slots <= tokens.slots[:, None]) & seen_tokens(tokens, S)
        gates = (q @ for_queries(k_BKSD, q).mT).sigmoid() * counted
        # Sums from j on: from the last slot back.
        place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=N - 1)
        scores = q @ self.table.to(q.dtype)  # (B, H, T, N)
        below = place.detach().floor().long()
        low, high = (scores.gather(-1, at) for at in (below, (below + 1).clamp(max=N - 1)))
        return low.lerp(high, place - below)


class CoPE(PositionEncoding):
    """Adds q_i . e[p_ij] to the products q_i . k_j, for the number p_ij of tokens from j to i, each
    counted as far as the query selects it. All heads of a layer share e, zero at first."""

    backends = DENSE_BACKENDS
    above = {"count": 1}

    count: int = 64  # positions; further tokens are at the last

    def layer(self, layer_idx: int) -> LayerPosition:
        return CountLayer(self.config.head_dim, self.count)
