"""Options of attention, the same for every encoding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from tape.attention.payload import per_query_head
from tape.positions.base import PositionModule
from tape.positions.scores import ScaledBias, ScoreBias


class AttentionSink(PositionModule):
    """A term exp(s_h) in the denominator of head h's softmax, which belongs to no token: attention
    need not add up to 1. In gpt-oss (arXiv 2508.10925)."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.s = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        init.zeros_(self.s)

    def forward(self, average_BHTP: Tensor, lse_BHT: Tensor) -> Tensor:
        """Returns averages as they are with the term, given the log-sum-exp without it."""
        share = torch.sigmoid(lse_BHT - self.s[:, None])
        return average_BHTP * share[..., None].to(average_BHTP.dtype)


def warmed(q_BHTD: Tensor, positions_BT: Tensor, scale: float, length: int) -> Tensor:
    """Multiplies the query at position i by 1 + scale log(1 + floor((i + 1) / length)), as in Llama
    4, after Scalable-Softmax (arXiv 2501.19399)."""
    positions = positions_BT.to(torch.promote_types(q_BHTD.dtype, torch.float32))
    factor = 1 + scale * torch.log1p(((positions + 1) / length).floor())
    return (q_BHTD * factor[:, None, :, None]).to(q_BHTD.dtype)


def exclusive(average_BHTD: Tensor, v_BKTD: Tensor) -> Tensor:
    """Takes off a head's averages what they have in the direction of the tokens' own values, as in
    XSA (Zhai 2026, arXiv 2603.09078)."""
    own = per_query_head(F.normalize(v_BKTD, dim=-1), average_BHTD.shape[1])
    return average_BHTD - ((average_BHTD * own).sum(-1, keepdim=True) * own).to(average_BHTD.dtype)


class ScalableSoftmax(PositionModule):
    """Multiplies the scores of a query that sees n keys by s_h log n, where s_h, one at first, is
    learned (Nakanishi 2025, arXiv 2501.19399); with a `length`, by max(1, log n / log length), as
    Qwen (arXiv 2309.16609) does in inference."""

    def __init__(self, num_heads: int, form: bool | dict[str, int]):
        """`form` is true or {"length": n}, as `TapeConfig.scalable_softmax`."""
        super().__init__()
        self.length = form["length"] if isinstance(form, dict) else None
        if self.length is None:
            self.s = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        if self.length is None:
            init.ones_(self.s)

    def forward(
        self, q_BHTD: Tensor, bias: ScoreBias | None, visible_BT: Tensor
    ) -> tuple[Tensor, ScoreBias | None]:
        """Returns queries and bias of the multiplied scores; each query sees `visible_BT` keys."""
        log_n = visible_BT.to(torch.promote_types(q_BHTD.dtype, torch.float32)).log()[:, None]
        if self.length is None:
            factor = self.s.to(log_n.dtype)[:, None] * log_n  # (B|1, H, T)
        else:
            factor = (log_n / math.log(self.length)).clamp(min=1).expand(-1, q_BHTD.shape[1], -1)
        q = (q_BHTD * factor[..., None]).to(q_BHTD.dtype)
        return q, None if bias is None else ScaledBias(bias, factor)
