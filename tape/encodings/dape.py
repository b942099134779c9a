"""DAPE: a bias adapted to the scores (Zheng et al. 2024, arXiv 2405.14722)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tape.encodings.bias import Kerple
from tape.positions.base import LayerPosition, Tokens, WideLinear
from tape.positions.pairs import PairLayer, for_queries


class AdaptedLayer(PairLayer):
    """B + MLP([S; B]) for scores S and a bias B; the MLP mixes the heads of a pair of tokens."""

    def __init__(self, num_heads: int, width: int):
        super().__init__()
        # A constant per head would not change the weights: the last map needs no bias.
        last = WideLinear(width, num_heads, bias=False)
        self.mlp = nn.Sequential(WideLinear(2 * num_heads, width), last)

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> Tensor:
        first, second = self.mlp
        scores = q_BHTD @ for_queries(k_BKSD, q_BHTD).mT * q_BHTD.shape[-1] ** -0.5
        bias = tokens.bias.dense(scores.dtype).expand_as(scores)
        x = torch.cat((scores, bias), dim=1).movedim(1, -1)  # (B, T, S, 2 H)
        return bias + second(F.leaky_relu(first(x))).movedim(-1, 1)


class DAPE(Kerple):
    """Adds B + MLP([S; B]) to the scores S, where B is Kerple's bias and the MLP maps 2 H -> width
    -> H over the heads of each pair of tokens, with LeakyReLU."""

    fused_bias = False
    positive = ("width",)

    width: int = 32  # of the MLP

    def layer(self, layer_idx: int) -> LayerPosition:
        return AdaptedLayer(self.config.num_attention_heads, self.width)
