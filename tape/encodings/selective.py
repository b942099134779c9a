"""Selective RoPE: angles that depend on the text (Movahedi et al. 2025, arXiv 2511.17388)."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens
from tape.positions.convolution import Convolution
from tape.positions.schedules import frequencies_of
from tape.positions.sums import SummedRotaryLayer


class SelectiveLayer(SummedRotaryLayer):
    """Keeps, besides the phases, the input of the convolution, W1 x."""

    def __init__(
        self, config: PretrainedConfig, rank: int, kernel: int, theta: float, values: bool
    ):
        super().__init__(config, values)
        self.num_heads, self.theta = config.num_attention_heads, theta
        channels = config.num_key_value_heads * self.frequencies
        self.convolution = Convolution(config.hidden_size, rank, channels, kernel)
        self.extras_width += rank

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        x_BTC = F.normalize(tokens.x.unflatten(-1, (self.num_heads, -1)), dim=-1).flatten(-2)
        steps, low = self.convolution(x_BTC, k_BKTD, tokens)
        steps = steps.unflatten(-1, (-1, self.frequencies)).transpose(1, 2)  # (B, K, T, F)
        steps = steps * frequencies_of(self.theta, self.frequencies, steps)
        q_BHTD, k_BKTD, kept, *e = self.rotate_by_sums(q_BHTD, k_BKTD, steps, tokens)
        return q_BHTD, k_BKTD, torch.cat((kept, low), dim=-1), *e


class SelectiveRoPE(PositionEncoding):
    """Rotates pair f of queries and keys by theta^(-2f/D) times the sum of phi_f over the tokens up
    to theirs, where phi is a causal convolution per channel of W2 W1 x, and each head's part of x
    has length 1. Phases belong to key/value heads."""

    positive = ("rank", "kernel", "theta")

    rank: int = 16  # of W2 W1
    kernel: int = 4  # tokens that the convolution reads
    theta: float = 500_000.0  # base of the frequencies
    values: bool = False  # whether values turn, too (Godavarti 2026, arXiv 2606.24975)

    def layer(self, layer_idx: int) -> LayerPosition:
        return SelectiveLayer(self.config, self.rank, self.kernel, self.theta, self.values)
