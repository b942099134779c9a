"""Stick-breaking attention, which needs neither softmax nor positions (Tan et al. 2024, arXiv
2410.17980)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.positions.base import LayerPosition, PositionEncoding, Tokens
from tape.positions.causal import refuse_later_tokens
from tape.positions.cope import seen_tokens
from tape.positions.scores import ScoreBias

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class StickScores(ScoreBias):
    """ln b_ij + the sum of ln(1 - b_it) over the tokens t between j and i, b_ij = sigmoid(q_i . k_j
    / sqrt(D)). Their softmax, times the sum of their exponentials, are the weights."""

    replaces_products = True

    def __init__(self, q_BHTD: Tensor, k_BKSD: Tensor, tokens: Tokens):
        self.q, self.k, self.tokens = q_BHTD, k_BKSD, tokens

    def dense(self, dtype: torch.dtype) -> Tensor:
        (H, D), (K, S) = (self.q.shape[1], self.q.shape[-1]), self.k.shape[1:3]
        q = self.q.to(torch.promote_types(dtype, torch.float32)) * D**-0.5
        slots = torch.arange(S, device=q.device)
        earlier = slots < self.tokens.slots[:, None]  # (T, S)
        with torch.autocast(q.device.type, enabled=False):
            logits = q @ self.k.to(q.dtype).repeat_interleave(H // K, dim=1).mT
            # What each token leaves of the stick, and all tokens after it up to the query.
            left = F.logsigmoid(-logits) * (earlier & seen_tokens(self.tokens, S))
            after = F.pad(left.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
            scores = F.logsigmoid(logits) + after
        lowest = torch.finfo(dtype).min  # a token has no part of itself
        return scores.to(dtype).masked_fill(~earlier, lowest)


class StickLayer(LayerPosition):
    needs_lse = True

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: None, tokens: Tokens
    ) -> ScoreBias:
        refuse_later_tokens("stick_breaking", tokens, self.training)
        return StickScores(q_BHTD, k_BKSD, tokens)

    def finish(self, attended_BHTD: Tensor, lse_BHT: Tensor) -> Tensor:
        return attended_BHTD * lse_BHT.exp()[..., None].to(attended_BHTD.dtype)


class StickBreaking(PositionEncoding):
    """Token i takes the share b_ij of what the tokens between j and i leave: the weight of j is
    b_ij times the product of 1 - b_it over them, b_ij = sigmoid(q_i . k_j / sqrt(D)). Weights add
    up to less than 1, and a token has none for itself. The weights equal those of
    flash-linear-attention's naive form (fla/ops/stickbreaking_attn/naive.py) in float64.
    """

    backends = frozenset({"eager", "sdpa"})

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        for option in ("attention_sink", "scalable_softmax"):
            if getattr(config, option):
                raise ValueError(
                    f"{option} with position stick_breaking, whose weights are no softmax; leave "
                    "it out, or choose another position"
                )
        return super().configure(config, arguments)

    def layer(self, layer_idx: int) -> LayerPosition:
        return StickLayer()
