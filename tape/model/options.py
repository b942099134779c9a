"""Options of attention, the same for every encoding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions import PositionModule


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
