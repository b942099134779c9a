"""Path-integral additive GRAPE: decay that depends on the query and on every token between it and
the key (Zhang et al. 2026, arXiv 2512.07805, section 5).

The sums equal those of x-transformers' PerRowDataDependentAlibi (2.31.10) with its keys moved on by
one token: it sums over t = j .. i-1. Rotations, norms and slopes are re-derived from the paper. The
authors' decoder (model/llama-mha-grape-a-pi.py of model-architectures/GRAPE at 135ee30, and
llama-mha-grape-ap-v1.py of tensorgi/GRAPE at a7ee651) does not normalise p_i, and rotates in the
other direction.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.encodings.bias import ALiBi
from tape.positions.base import LayerPosition, Prepared, Tokens, WideLinear, widen
from tape.positions.rotary import apply_rotary, waves
from tape.positions.scores import DENSE_BACKENDS, ScoreBias


class PathIntegral(ScoreBias):
    """The sum of slope_h ln sigmoid(q_i . k_t) over the real tokens t = j+1 .. i, for q (B, H, T,
    P), k (B, H, S, P), slopes (H,) and `real` (B, 1, S, 1), zero at padding, or None without
    padding."""

    def __init__(self, q: Tensor, k: Tensor, slopes: Tensor, slots: Tensor, real: Tensor | None):
        self.q, self.k, self.slopes, self.slots, self.real = q, k, slopes, slots, real

    def dense(self, dtype: torch.dtype) -> Tensor:
        with torch.autocast(self.k.device.type, enabled=False):
            steps = F.logsigmoid(self.q @ self.k.mT)  # (B, H, T, S)
        if self.real is not None:
            steps = steps * self.real.mT
        sums, slopes = steps.cumsum(-1), self.slopes[:, None, None]
        at_query = sums.gather(-1, self.slots[:, None].expand(*sums.shape[:2], -1, -1))
        return torch.addcmul(slopes * at_query, slopes, sums, value=-1).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        q, k, slots = self.q[:, :, queries], self.k[:, :, keys], self.slots[queries] - keys.start
        real = None if self.real is None else self.real[:, :, keys]
        return PathIntegral(q, k, self.slopes, slots, real)


class ProbeLayer(LayerPosition):
    """Keeps R(t) p_t of each token, and whether it is real."""

    decays = ("probe",)

    def __init__(self, config: PretrainedConfig, width: int):
        super().__init__()
        heads, self.width, self.eps = config.num_attention_heads, width, config.rms_norm_eps
        self.probe = WideLinear(config.hidden_size, heads * width, bias=False)
        self.extras_width = heads // config.num_key_value_heads * width + 1

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        p_BTHP = widen(self.probe, tokens.x).unflatten(-1, (-1, self.width))
        p_BHTP = F.rms_norm(p_BTHP, (self.width,), eps=self.eps).transpose(1, 2)
        kept_BKGTP = turned(p_BHTP, tokens.positions.query).unflatten(1, (k_BKTD.shape[1], -1))
        kept_BKTM = F.pad(kept_BKGTP.transpose(2, 3).flatten(3), (0, 1), value=1.0)
        return q_BHTD, k_BKTD, tokens.without_padding(kept_BKTM).to(k_BKTD.dtype)

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> ScoreBias:
        kept_BKSM = extras.to(torch.promote_types(extras.dtype, torch.float32))
        key, real = kept_BKSM[..., :-1], kept_BKSM[:, :1, :, -1:]
        key = key.unflatten(-1, (-1, self.width)).transpose(2, 3).flatten(1, 2)  # (B, H, S, P)
        query = turned(key.index_select(2, tokens.slots), -tokens.positions.query) / self.width
        if tokens.real is None and len(tokens.slots) == key.shape[2]:
            real = None
        return PathIntegral(query, key, tokens.bias.slopes(key.dtype), tokens.slots, real)


def turned(x_BHTP: Tensor, angle_BT: Tensor) -> Tensor:
    """Rotates all pairs of channels by one angle."""
    angle = angle_BT.to(x_BHTP.dtype)[:, None, :, None]
    return apply_rotary(x_BHTP, waves(angle).expand(-1, -1, -1, -1, x_BHTP.shape[-1] // 2))


class GrapeAP(ALiBi):
    """Adds slope_h times the sum of ln sigmoid(p_i . R(t) p_t / width) over t = j+1 .. i, with
    ALiBi's slopes, R(t) a rotation of all pairs of channels by t radians, and p the projection of x
    to `width` channels for each head, normalised to a mean square of 1. If all p are zero, it is
    ALiBi with slopes times ln 2; if products depend on t alone, it is FoX."""

    fused_bias = False
    backends = DENSE_BACKENDS
    causal = True

    width: int = 8  # of p

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        if self.width < 2 or self.width % 2:
            raise ValueError(f"position grape_ap: width={self.width} must be even and at least 2")

    def layer(self, layer_idx: int) -> LayerPosition:
        return ProbeLayer(self.config, self.width)
