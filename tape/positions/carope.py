"""CARoPE: rotations by frequencies that depend on the text (Veisi et al. 2025, arXiv
2507.23083)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Tokens, WideLinear
from tape.positions.rotary import RotaryLayer
from tape.positions.sums import PARTS, running_sums, split_sums

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class ContextRotaryLayer(RotaryLayer):
    """Keeps for each token its phases modulo 2 pi, which later ones are added to."""

    decays = ("frequency",)

    def __init__(self, config: PretrainedConfig, theta: float):
        super().__init__()
        self.frequencies = config.head_dim // 2
        self.ratio = theta ** (2 / config.head_dim)  # of a frequency and the next
        self.frequency = WideLinear(config.hidden_size, config.num_key_value_heads)
        self.extras_width = PARTS * self.frequencies

    def reset_parameters(self) -> None:
        init.zeros_(self.frequency.weight)
        init.constant_(self.frequency.bias, math.log(math.expm1(self.ratio - 1)))

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(self.frequency.weight.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            logit = self.frequency(x_BTC.to(wide)).mT[..., None]  # (B, K, T, 1)
            # ln(1 + softplus), of which torch's softplus would round large ones.
            slower = torch.logaddexp(logit, torch.zeros_like(logit)).log1p()
            power = torch.arange(self.frequencies, device=x_BTC.device, dtype=wide)
            steps = (-power * slower).exp()
            phases = running_sums(steps, past_BKLM, tokens)
            e = torch.stack((phases.cos(), phases.sin()), dim=-2)
            kept = split_sums(phases.remainder(2 * math.pi), k_BKTD.dtype)
        return *self.rotate(q_BHTD, k_BKTD, e), kept


class CARoPE(PositionEncoding):
    """Rotates pair f of queries and keys by the sum of b(x_t)^f over the tokens up to theirs, where
    b(x) = 1 / (1 + softplus(w . x + c)) lies in (0, 1). It starts as RoPE: w = 0, and b =
    theta^(-2/D). Phases belong to key/value heads. The paper has neither c nor f = 0, without which
    it would not start as RoPE. No code is published: re-derived from the paper's equations.

    Arguments of the configuration:
        theta: base of the first frequencies.
    """

    shards = per_head = True

    def __init__(self, config: PretrainedConfig, *, theta: float = 10_000.0, **arguments: Any):
        super().__init__(config, **arguments)
        if config.head_dim % 2:
            raise ValueError(f"position carope: head_dim={config.head_dim} must be even")
        if not theta > 1:
            raise ValueError(f"position carope: theta={theta} must be a number > 1")
        self.config, self.theta = config, theta

    def layer(self, layer_idx: int) -> LayerPosition:
        return ContextRotaryLayer(self.config, self.theta)
