"""Stick-breaking attention, without a softmax (Tan et al. 2024, arXiv 2410.17980)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.encodings.cope import seen_tokens
from tape.positions.base import LayerPosition, PositionEncoding, Tokens
from tape.positions.pairs import PairBias, PairLayer, for_queries
from tape.positions.scores import SCORE_BACKENDS, ScoreBias


class StickScores(PairBias):
    """Those of a `StickLayer`, where a token has no part of itself."""

    def dense(self, dtype: torch.dtype) -> Tensor:
        earlier = earlier_tokens(self.tokens, self.k)
        return super().dense(dtype).masked_fill(~earlier, torch.finfo(dtype).min)


class StickLayer(PairLayer):
    """ln b_ij + the sum of ln(1 - b_it) over the tokens t between j and i, b_ij = sigmoid(q_i . k_j
    / sqrt(D)). Their softmax, times the sum of their exponentials, are the weights."""

    replaces_products = True
    needs_lse = True

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> ScoreBias:
        return StickScores(self, q_BHTD, k_BKSD, extras, tokens)

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> Tensor:
        q = q_BHTD * q_BHTD.shape[-1] ** -0.5
        logits = q @ for_queries(k_BKSD, q).mT
        counted = earlier_tokens(tokens, k_BKSD) & seen_tokens(tokens, k_BKSD.shape[2])
        # What each token leaves of the stick, and all tokens after it up to the query.
        left = F.logsigmoid(-logits) * counted
        after = F.pad(left.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
        return F.logsigmoid(logits) + after

    def finish(self, attended_BHTD: Tensor, lse_BHT: Tensor) -> Tensor:
        return attended_BHTD * lse_BHT.exp()[..., None].to(attended_BHTD.dtype)


def earlier_tokens(tokens: Tokens, k_BKSD: Tensor) -> Tensor:
    """Returns which keys are of tokens before the query, (T, S)."""
    return torch.arange(k_BKSD.shape[2], device=k_BKSD.device) < tokens.slots[:, None]


class StickBreaking(PositionEncoding):
    """Token i takes the share b_ij of what the tokens between j and i leave: the weight of j is
    b_ij times the product of 1 - b_it over them, b_ij = sigmoid(q_i . k_j / sqrt(D)). Weights add
    up to less than 1, and a token has none for itself. The weights equal those of
    flash-linear-attention's naive form (fla/ops/stickbreaking_attn/naive.py at 617966b) in float64.
    """

    backends = SCORE_BACKENDS
    causal = True

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
