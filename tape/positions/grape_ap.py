"""Path-integral additive GRAPE: decay that depends on the query and on every token between it and
the key (Zhang et al. 2026, arXiv 2512.07805, section 5).

The sums were compared with x-transformers' PerRowDataDependentAlibi, which has neither rotations
nor slopes and sums over t = j .. i-1; rotations, norms and slopes are re-derived from the paper.
The authors' decoder (model-architectures/GRAPE, model/llama-mha-grape-a-pi.py) differs from the
paper in that it does not normalise p_i and rotates in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.positions.base import LayerPosition, Tokens, WideLinear
from tape.positions.bias import DENSE_BACKENDS, ALiBi
from tape.positions.rotary import apply_rotary
from tape.positions.scores import ScoreBias

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class PathIntegral(ScoreBias):
    """The sum of slope_h ln sigmoid(q_i . k_t) over the real tokens t = j+1 .. i.

    Args:
        query: q, (B, H, T, P).
        key: k of all tokens, (B, H, S, P).
        slopes: (H,).
        slots: of the queries, (T,).
        real: (B, 1, S, 1) zero at padding and otherwise one, or None without padding.
    """

    def __init__(
        self, query: Tensor, key: Tensor, slopes: Tensor, slots: Tensor, real: Tensor | None
    ):
        self.query, self.key, self.slopes, self.slots = query, key, slopes, slots
        self.real = real

    def dense(self, dtype: torch.dtype) -> Tensor:
        with torch.autocast(self.key.device.type, enabled=False):
            steps = F.logsigmoid(self.query @ self.key.mT)  # (B, H, T, S)
        if self.real is not None:
            steps = steps * self.real.mT
        sums, slopes = steps.cumsum(-1), self.slopes.to(steps.dtype)[:, None, None]
        at_query = sums.gather(-1, self.slots[:, None].expand(*sums.shape[:2], -1, -1))
        return torch.addcmul(slopes * at_query, slopes, sums, value=-1).to(dtype)

    def across(self, to_heads: Callable[[Tensor], Tensor], first: int, count: int) -> ScoreBias:
        query, key, real = to_heads(self.query), to_heads(self.key), self.real
        if real is not None:
            real = to_heads(real.expand(-1, self.key.shape[1], -1, -1))
        slots = torch.arange(query.shape[2], device=query.device)
        return PathIntegral(query, key, self.slopes[first : first + count], slots, real)


class ProbeLayer(LayerPosition):
    """Keeps R(t) p_t of each token, and whether it is real."""

    decays = ("probe",)

    def __init__(self, config: PretrainedConfig, width: int):
        super().__init__()
        heads, self.width, self.eps = config.num_attention_heads, width, config.rms_norm_eps
        self.probe = WideLinear(config.hidden_size, heads * width, bias=False)
        self.extras_width = heads // config.num_key_value_heads * width + 1

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(self.probe.weight.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            p_BTHP = self.probe(x_BTC.to(wide)).unflatten(-1, (-1, self.width))
            p_BHTP = F.rms_norm(p_BTHP, (self.width,), eps=self.eps).transpose(1, 2)
        kept_BKGTP = turned(p_BHTP, tokens.positions.query).unflatten(1, (k_BKTD.shape[1], -1))
        kept_BKTM = F.pad(kept_BKGTP.transpose(2, 3).flatten(3), (0, 1), value=1.0)
        if tokens.real is not None:
            kept_BKTM = kept_BKTM * tokens.real[:, None, tokens.slots, None]
        return q_BHTD, k_BKTD, kept_BKTM.to(k_BKTD.dtype)

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: Tensor, tokens: Tokens
    ) -> ScoreBias:
        kept_BKSM = extras_BKSM.to(torch.promote_types(extras_BKSM.dtype, torch.float32))
        key, real = kept_BKSM[..., :-1], kept_BKSM[:, :1, :, -1:]
        key = key.unflatten(-1, (-1, self.width)).transpose(2, 3).flatten(1, 2)  # (B, H, S, P)
        query = turned(key.index_select(2, tokens.slots), -tokens.positions.query) / self.width
        if tokens.real is None and len(tokens.slots) == key.shape[2]:
            real = None
        return PathIntegral(query, key, tokens.bias.slopes, tokens.slots, real)


def turned(x_BHTP: Tensor, angle_BT: Tensor) -> Tensor:
    """Rotates all pairs of channels by one angle."""
    angle = angle_BT.to(x_BHTP.dtype)[:, None, :, None]
    waves = torch.stack((angle.cos(), angle.sin()), dim=-2)  # (B|1, 1, T, 2, 1)
    return apply_rotary(x_BHTP, waves.expand(*waves.shape[:-1], x_BHTP.shape[-1] // 2))


class GrapeAP(ALiBi):
    """Adds slope_h times the sum of ln sigmoid(p_i . R(t) p_t / width) over t = j+1 .. i, with
    ALiBi's slopes, R(t) a rotation of all pairs of channels by t radians, and p the projection of x
    to `width` channels for each head, normalised to a mean square of 1. If all p are zero, it is
    ALiBi with slopes times ln 2; if products depend on t alone, it is FoX.

    Arguments of the configuration:
        width: of p.
    """

    backends = DENSE_BACKENDS

    def __init__(self, config: PretrainedConfig, *, width: int = 8, **arguments: Any):
        super().__init__(config, **arguments)
        if width < 2 or width % 2:
            raise ValueError(f"position grape_ap: width={width} must be even and at least 2")
        self.config, self.width = config, width

    def layer(self, layer_idx: int) -> LayerPosition:
        return ProbeLayer(self.config, self.width)
