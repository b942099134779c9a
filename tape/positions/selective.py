"""Selective RoPE: rotations by angles that depend on the text (Movahedi et al. 2025, arXiv
2511.17388)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.positions.base import LayerPosition, PositionEncoding, Tokens
from tape.positions.convolution import Convolution
from tape.positions.rotary import RotaryLayer
from tape.positions.sums import PARTS, running_sums, split_sums

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class SelectiveLayer(RotaryLayer):
    """Keeps for each token its phases modulo 2 pi, which later ones are added to, and the input of
    the convolution, W1 x."""

    def __init__(self, config: PretrainedConfig, rank: int, kernel: int, theta: float):
        super().__init__()
        self.num_heads, self.frequencies = config.num_attention_heads, config.head_dim // 2
        self.rank, self.theta = rank, theta
        channels = config.num_key_value_heads * self.frequencies
        self.convolution = Convolution(config.hidden_size, rank, channels, kernel)
        self.extras_width = PARTS * self.frequencies + rank

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        past = low = None
        if past_BKLM is not None:
            past, low = past_BKLM.split((self.extras_width - self.rank, self.rank), dim=-1)
        by_head = x_BTC.unflatten(-1, (self.num_heads, -1))
        steps, low = self.convolution(F.normalize(by_head, dim=-1).flatten(-2), k_BKTD, low, tokens)
        with torch.autocast(x_BTC.device.type, enabled=False):
            steps = steps.unflatten(-1, (-1, self.frequencies)).transpose(1, 2)  # (B, K, T, F)
            share = torch.arange(self.frequencies, device=x_BTC.device, dtype=steps.dtype)
            steps = steps * self.theta ** (-share / self.frequencies)
            phases = running_sums(steps, past, tokens)
            e = torch.stack((phases.cos(), phases.sin()), dim=-2)
            kept = split_sums(phases.remainder(2 * math.pi), k_BKTD.dtype)
        return *self.rotate(q_BHTD, k_BKTD, e), torch.cat((kept, low), dim=-1)


class SelectiveRoPE(PositionEncoding):
    """Rotates pair f of queries and keys by theta^(-2f/D) times the sum of phi_f over the tokens up
    to theirs, where phi is a causal convolution per channel of W2 W1 x, and each head's part of x
    has length 1. Phases belong to key/value heads.

    Arguments of the configuration:
        rank: of W2 W1.
        kernel: tokens that the convolution reads.
        theta: base of the frequencies.
    """

    per_head = True

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        rank: int = 16,
        kernel: int = 4,
        theta: float = 500_000.0,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        if config.head_dim % 2 or config.hidden_size % config.num_attention_heads:
            raise ValueError(
                f"position selective: head_dim={config.head_dim} must be even, and hidden_size="
                f"{config.hidden_size} a multiple of num_attention_heads="
                f"{config.num_attention_heads}"
            )
        for name, value in {"rank": rank, "kernel": kernel}.items():
            if value < 1:
                raise ValueError(f"position selective: {name}={value} must be an integer >= 1")
        if not theta > 0:
            raise ValueError(f"position selective: theta={theta} must be a number > 0")
        self.config, self.shape = config, (rank, kernel, theta)

    def layer(self, layer_idx: int) -> LayerPosition:
        return SelectiveLayer(self.config, *self.shape)
