"""Multiplicative GRAPE: RoPE with learned frequencies, and its contextual form (Zhang et al. 2026,
arXiv 2512.07805).

Re-derived by hand from the paper and from the authors' two decoders (model-architectures/GRAPE,
model/llama-mha-grape-m-nonctx.py and -ctx.py), which rotate in the other direction: scores are the
same up to the order of channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Tokens, WideLinear
from tape.positions.rotary import RotaryLayer
from tape.positions.schedules import frequencies_of, plain_theta, state_at
from tape.positions.sums import PARTS, running_sums, split_sums

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# A key's extras count angles in units of so many radians: float16 ends at a million then, where
# float32 resolves no phase any more. A power of two: other dtypes round alike.
UNIT = 16


class FrequencyLayer(RotaryLayer):
    """Rotates by theta^(-2f/D) exp(log_ratio_f), with log_ratio zero at first. The logarithm of the
    frequency itself, such as -9.2, would lose more when bfloat16 rounds it."""

    def __init__(self, config: PretrainedConfig, theta: float, rows: int):
        super().__init__()
        self.theta = theta
        self.log_ratio = nn.Parameter(torch.empty(rows, config.head_dim // 2))

    def reset_parameters(self) -> None:
        init.zeros_(self.log_ratio)

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: None,
    ) -> tuple[Tensor, Tensor, None]:
        e = self(tokens.positions.query[:, None])
        return *self.rotate(q_BHTD, k_BKTD, e), None

    def forward(self, place_BKT: Tensor) -> Tensor:
        """Returns cosine and sine of the phases, (B|1, K|1, T, 2, F), at these places."""
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        with torch.autocast(place_BKT.device.type, enabled=False):
            ratio = self.log_ratio.to(wide).exp()[:, None]  # (K|1, 1, F)
            frequencies = frequencies_of(self.theta, ratio.shape[-1], ratio) * ratio
            return state_at(place_BKT.to(wide), frequencies)


class ContextualLayer(FrequencyLayer):
    """Rotates by the sum of softplus(w . x_t + b) over the tokens before, in place of their number.
    Keeps that sum with its own token, split into `PARTS` numbers."""

    decays = ("scale",)
    extras_width = PARTS

    def __init__(self, config: PretrainedConfig, theta: float, rows: int, start: float):
        super().__init__(config, theta, rows)
        self.start = start
        self.scale = WideLinear(config.hidden_size, rows)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.constant_(self.scale.bias, math.log(math.expm1(self.start)))

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            # Softplus, whose own gradient has strides that break graphs of torch.compile.
            steps_BTK = -F.logsigmoid(-self.scale(x_BTC.to(wide))) / UNIT
        steps_BKT1 = steps_BTK.mT[..., None].expand(-1, k_BKTD.shape[1], -1, -1)
        sums_BKT1 = running_sums(steps_BKT1, past_BKLM, tokens)
        rows = len(self.log_ratio)
        e = self(UNIT * (sums_BKT1 - steps_BKT1)[:, :rows, :, 0])
        return *self.rotate(q_BHTD, k_BKTD, e), split_sums(sums_BKT1, k_BKTD.dtype)


class GrapeM(PositionEncoding):
    """Rotates pair f of queries and keys by p theta^(-2f/D) exp(r_f), with r learned in each layer
    and zero at first, where it is RoPE. In the contextual form the sum of softplus(w . x_t + b)
    over the tokens t before takes the place of p.

    Arguments of the configuration:
        theta: base of the first frequencies; by default that of the configuration.
        shared: whether all heads have one r and one (w, b), or each key/value head its own.
        contextual: whether angles depend on the text.
        start: softplus(b) at first, the angle from token to token of the fastest pair. The
            default, which is the authors', is near no positions; 1 is near RoPE.
    """

    shards = per_head = True

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        theta: float | None = None,
        shared: bool = True,
        contextual: bool = False,
        start: float = 1e-3,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.config, self.theta, self.start = config, theta, start
        self.contextual, self.rows = contextual, 1 if shared else config.num_key_value_heads

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        theta, start = arguments["theta"], arguments["start"]
        if not 0 < start < math.inf:
            raise ValueError(f"position grape_m: start={start} must be a number > 0")
        theta = plain_theta(config, "position grape_m", theta)
        return super().configure(config, arguments | {"theta": theta})

    def layer(self, layer_idx: int) -> LayerPosition:
        if self.contextual:
            return ContextualLayer(self.config, self.theta, self.rows, self.start)
        return FrequencyLayer(self.config, self.theta, self.rows)
