"""DAPE: a bias adapted to the scores (Zheng et al. 2024, arXiv 2405.14722)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape.positions.base import LayerPosition, Tokens, WideLinear
from tape.positions.bias import Kerple
from tape.positions.scores import ScoreBias

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class AdaptedBias(ScoreBias):
    """B + MLP([S; B]) for scores S and a bias B; the MLP mixes the heads of a pair of tokens."""

    def __init__(self, mlp: nn.Sequential, bias: ScoreBias, q_BHTD: Tensor, k_BKSD: Tensor):
        self.mlp, self.bias, self.q, self.k = mlp, bias, q_BHTD, k_BKSD

    def dense(self, dtype: torch.dtype) -> Tensor:
        H, D = self.q.shape[1], self.q.shape[-1]
        wide = torch.promote_types(dtype, torch.float32)
        first, second = self.mlp
        with torch.autocast(self.q.device.type, enabled=False):
            k = self.k.to(wide).repeat_interleave(H // self.k.shape[1], dim=1)
            scores = self.q.to(wide) @ k.mT * D**-0.5
            bias = self.bias.dense(wide).expand_as(scores)
            x = torch.cat((scores, bias), dim=1).movedim(1, -1)  # (B, T, S, 2 H)
            return (bias + second(F.leaky_relu(first(x))).movedim(-1, 1)).to(dtype)


class AdaptedLayer(LayerPosition):
    def __init__(self, num_heads: int, width: int):
        super().__init__()
        # A constant per head would not change the weights: the last map needs no bias.
        last = WideLinear(width, num_heads, bias=False)
        self.mlp = nn.Sequential(WideLinear(2 * num_heads, width), last)

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: None, tokens: Tokens
    ) -> ScoreBias:
        return AdaptedBias(self.mlp, tokens.bias, q_BHTD, k_BKSD)


class DAPE(Kerple):
    """Adds B + MLP([S; B]) to the scores S, where B is Kerple's bias and the MLP maps 2 H -> width
    -> H over the heads of each pair of tokens, with LeakyReLU.

    Arguments of the configuration:
        width: of the MLP.
    """

    shards = False  # its MLP mixes all heads of a pair of tokens

    def __init__(self, config: PretrainedConfig, *, width: int = 32, **arguments: Any):
        super().__init__(config, **arguments)
        if width < 1:
            raise ValueError(f"position dape: width={width} must be an integer >= 1")
        self.num_heads, self.width = config.num_attention_heads, width

    def layer(self, layer_idx: int) -> LayerPosition:
        return AdaptedLayer(self.num_heads, self.width)
