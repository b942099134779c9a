"""CARoPE: rotations by frequencies of the text (Veisi et al. 2025, arXiv 2507.23083)."""

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear, widen
from tape.positions.schedules import plain_theta
from tape.positions.sums import SummedRotaryLayer, before_softplus


class ContextRotaryLayer(SummedRotaryLayer):
    decays = ("frequency",)

    def __init__(self, config: PretrainedConfig, theta: float, values: bool):
        super().__init__(config, values)
        self.ratio = theta ** (2 / config.head_dim)  # of a frequency and the next
        self.frequency = WideLinear(config.hidden_size, config.num_key_value_heads)

    def reset_parameters(self) -> None:
        init.zeros_(self.frequency.weight)
        init.constant_(self.frequency.bias, before_softplus(self.ratio - 1))

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        logit = widen(self.frequency, tokens.x).mT[..., None]  # (B, K, T, 1)
        # ln(1 + softplus), of which torch's softplus would round large ones.
        slower = torch.logaddexp(logit, torch.zeros_like(logit)).log1p()
        power = torch.arange(self.frequencies, device=logit.device, dtype=logit.dtype)
        return self.rotate_by_sums(q_BHTD, k_BKTD, (-power * slower).exp(), tokens)


class CARoPE(PositionEncoding):
    """Rotates pair f of queries and keys by the sum of b(x_t)^f over the tokens up to theirs, where
    b(x) = 1 / (1 + softplus(w . x + c)) lies in (0, 1). It starts as RoPE: w = 0, and b =
    theta^(-2/D). Phases belong to key/value heads. The paper has neither c nor f = 0, without which
    it would not start as RoPE. No code is published: re-derived from the paper's equations."""

    above = {"theta": 1}

    theta: float | None = None  # base of the first frequencies; by default the configuration's
    values: bool = False  # whether values turn, too (Godavarti 2026, arXiv 2606.24975)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        theta = plain_theta(config, "position carope", arguments["theta"])
        cls.check_numbers("position carope", {"theta": theta})
        return super().configure(config, arguments | {"theta": theta})

    def layer(self, layer_idx: int) -> LayerPosition:
        return ContextRotaryLayer(self.config, self.theta, self.values)
