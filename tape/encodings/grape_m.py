"""Multiplicative GRAPE: RoPE with learned frequencies, and its contextual form (Zhang et al. 2026,
arXiv 2512.07805).

Re-derived by hand from the paper and the authors' decoders (model-architectures/GRAPE at 73b2231,
model/llama-mha-grape-m-*.py), which rotate in the other direction. In their later code
(tensorgi/GRAPE at a7ee651) the steps of the contextual form are sigmoid((w . x_t + b) / 16).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear, widen
from tape.positions.rotary import RotaryLayer, waves
from tape.positions.schedules import frequencies_of, plain_theta
from tape.positions.sums import PARTS, before_softplus, running_sums, split_sums

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

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        e = self(tokens.positions.query[:, None])
        return super().prepare(q_BHTD, k_BKTD, tokens._replace(e=e))

    def forward(self, place_BKT: Tensor) -> Tensor:
        """Returns cosine and sine of the phases, (B|1, K|1, T, 2, F), at these places."""
        wide = torch.promote_types(self.log_ratio.dtype, torch.float32)
        ratio = self.log_ratio.to(wide).exp()[:, None]  # (K|1, 1, F)
        frequencies = frequencies_of(self.theta, ratio.shape[-1], ratio) * ratio
        return waves(place_BKT.to(wide)[..., None] * frequencies)


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
        init.constant_(self.scale.bias, before_softplus(self.start))

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        # Softplus, whose own gradient has strides that break graphs of torch.compile.
        steps_BTK = -F.logsigmoid(-widen(self.scale, tokens.x)) / UNIT
        steps_BKT1 = steps_BTK.mT[..., None].expand(-1, k_BKTD.shape[1], -1, -1)
        sums_BKT1 = running_sums(steps_BKT1, tokens)
        rows = len(self.log_ratio)
        e = self(UNIT * (sums_BKT1 - steps_BKT1)[:, :rows, :, 0])
        q, k, _ = RotaryLayer.prepare(self, q_BHTD, k_BKTD, tokens._replace(e=e))
        return q, k, split_sums(sums_BKT1, k_BKTD.dtype)


class GrapeM(PositionEncoding):
    """Rotates pair f of queries and keys by p theta^(-2f/D) exp(r_f), with r learned in each layer
    and zero at first, where it is RoPE. In the contextual form the sum of softplus(w . x_t + b)
    over the tokens t before takes the place of p."""

    positive = ("theta", "start")

    theta: float | None = None  # base of the first frequencies; by default the configuration's
    shared: bool = True  # one r and one (w, b) for all heads, or each key/value head its own
    contextual: bool = False  # whether angles depend on the text
    # softplus(b) at first, the angle from token to token of the fastest pair. The default, which is
    # that of the authors' first code, is near no positions; 1 is near RoPE.
    start: float = 1e-3

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        theta = plain_theta(config, "position grape_m", arguments["theta"])
        return super().configure(config, arguments | {"theta": theta})

    def layer(self, layer_idx: int) -> LayerPosition:
        rows = 1 if self.shared else self.config.num_key_value_heads
        if self.contextual:
            return ContextualLayer(self.config, self.theta, rows, self.start)
        return FrequencyLayer(self.config, self.theta, rows)
