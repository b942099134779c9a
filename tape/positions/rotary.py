"""Rotary encodings: RoPE and its frequency schedules, xPos, RandPE.

The state is `(B|1, K|1, T, 2, F)`: cosine and sine of a phase per token and frequency, each a
contiguous block of F. Frequencies come from `config.rope_parameters`, where all Hugging Face tools
look for them; `theta` and `scaling` are moved there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tape.names import suggestion
from tape.positions.base import LayerPosition, PositionEncoding, Positions, Tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Schedules that are fixed when the model is built. "dynamic" and "longrope" depend on the input's
# length, which would invalidate cached keys.
# Each with the arguments that it requires.
REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "yarn": ("factor",),
    "proportional": ("partial_rotary_factor",),
    "ntk": ("factor",),
    "clipped": (),
}
# Numeric arguments of the schedules, which the library does not check.
POSITIVE = {
    *("rope_theta", "factor", "attention_factor", "original_max_position_embeddings"),
    *("beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "partial_rotary_factor"),
}
ORDERED = (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor"))


def inverse_frequencies(config: PretrainedConfig) -> tuple[Tensor, float]:
    """Returns radians per position, (F,) float32, and the factor on cosine and sine."""
    rope, D = config.rope_parameters, config.head_dim
    with torch.device("cpu"):  # models are built on the meta device before loading
        if rope["rope_type"] not in ("default", "clipped"):
            return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
        rotated = int(D * (rope.get("partial_rotary_factor") or 1))
        exponent = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        frequencies = 1.0 / rope["rope_theta"] ** exponent
        if rope["rope_type"] == "clipped":
            frequencies = clipped(frequencies, rope["original_max_position_embeddings"])
        return F.pad(frequencies, (0, (D - rotated) // 2)), 1.0


def clipped(frequencies: Tensor, length: int) -> Tensor:
    """Multiplies the n frequencies that turn less than once in `length` tokens by the second half
    of a Hann window, from 1 at the highest of them to 0 at the lowest (arXiv 2602.05258)."""
    slow = frequencies * length < 2 * math.pi
    n = slow.sum()
    place = slow.cumsum(0) - 1 + (n == 1)  # a single one is the lowest
    window = (1 + (math.pi * place / (n - 1).clamp(min=1)).cos()) / 2
    return frequencies * window.where(slow, 1.0)


def apply_rotary(x: Tensor, e: Tensor) -> Tensor:
    """Multiplies pairs (x_f, x_{f+F}) of the last axis by e_f = (cosine, sine), (.., 2, F), as
    complex numbers."""
    if x.requires_grad and not is_compiling():
        return _ApplyRotary.apply(x, e)
    (real, imaginary), (cosine, sine) = x.chunk(2, dim=-1), e.unbind(-2)
    return torch.cat((real * cosine - imaginary * sine, imaginary * cosine + real * sine), dim=-1)


class _ApplyRotary(torch.autograd.Function):
    """`apply_rotary` for training, in half as many passes over memory.

    Fused multiply-adds may change the last bit of a result.
    """

    @staticmethod
    def forward(ctx, x: Tensor, e: Tensor) -> Tensor:
        ctx.save_for_backward(x, e)
        return _ApplyRotary.product(x, e, out=x.new_empty(x.shape))

    @staticmethod
    def product(x: Tensor, e: Tensor, out: Tensor, sign: int = 1) -> Tensor:
        """Returns x (cosine + sign i sine)."""
        (real, imaginary), (cosine, sine) = x.chunk(2, dim=-1), e.unbind(-2)
        out_real, out_imaginary = out.chunk(2, dim=-1)
        torch.mul(real, cosine, out=out_real).addcmul_(imaginary, sine, value=-sign)
        torch.mul(imaginary, cosine, out=out_imaginary).addcmul_(real, sine, value=sign)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, e = ctx.saved_tensors
        grad_x = _ApplyRotary.product(grad, e, out=torch.empty_like(x), sign=-1)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        (real, imaginary), (g_real, g_imaginary) = x.chunk(2, dim=-1), grad.chunk(2, dim=-1)
        grad_e = torch.empty_like(e.expand(*x.shape[:-1], *e.shape[-2:]))
        cosine, sine = grad_e.unbind(-2)
        torch.mul(g_real, real, out=cosine).addcmul_(g_imaginary, imaginary)
        torch.mul(g_imaginary, real, out=sine).addcmul_(g_real, imaginary, value=-1)
        return grad_x, grad_e.sum_to_size(e.shape)


class RotaryLayer(LayerPosition):
    """Rotates queries and keys by the state."""

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: Tensor,
        tokens: Tokens,
        past_BKLM: None,
    ) -> tuple[Tensor, Tensor, None]:
        return *self.rotate(q_BHTD, k_BKTD, e), None

    def rotate(self, q_BHTD: Tensor, k_BKTD: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates queries and keys by a state (B|1, K|1, T, 2, F)."""
        e = e.to(q_BHTD.dtype)
        per_query, (H, K) = e, (q_BHTD.shape[1], k_BKTD.shape[1])
        if e.shape[1] == K < H:  # for the query heads of each key/value head
            per_query = e.repeat_interleave(H // K, dim=1)
        return apply_rotary(q_BHTD, per_query), apply_rotary(k_BKTD, e)


class RoPE(PositionEncoding):
    """Rotates pair f of queries and keys by p * inv_f (Su et al. 2021, arXiv 2104.09864).

    Arguments of the configuration:
        theta: base of the frequencies, inv_f = theta^(-2f/D); 10,000 by default.
        scaling: a schedule in the library's form, e.g. {"rope_type": "linear", "factor": 2.0};
            also "llama3" and "yarn". "proportional" rotates the pairs of the first share
            `partial_rotary_factor` alone, and "default" with that share has their frequencies go
            down to theta^(-1) as well (GPT-NeoX). "ntk" multiplies theta by factor^(D/(D-2))
            (Peng et al. 2023), and "clipped" tapers frequencies that turn less than once in
            `original_max_position_embeddings` tokens, by default the training length.
    """

    config_arguments = ("theta", "scaling")

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.config = config
        frequencies, self.magnitude = inverse_frequencies(config)
        self.register_constant("inv_freq", frequencies)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if config.head_dim % 2:
            raise ValueError(
                f"rotary positions need pairs of channels: head_dim={config.head_dim} must be even"
            )
        theta, scaling = arguments.pop("theta"), arguments.pop("scaling")
        if not isinstance(scaling, Mapping | None):
            raise ValueError(
                f"rotary positions: scaling={scaling!r} must be a mapping with a rope_type, or null"
            )
        current = {"rope_theta": 10_000.0, **(config.rope_parameters or {})}
        scaling = dict(current if scaling is None else scaling)
        scaling.setdefault("rope_theta", current["rope_theta"])
        if theta is not None:
            scaling["rope_theta"] = theta
        for name in POSITIVE & scaling.keys():
            value = scaling[name]
            if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
                raise ValueError(f"rotary positions: {name}={value!r} must be a number > 0")
        scaling["rope_theta"] = float(scaling["rope_theta"])
        rope_type = scaling.setdefault("rope_type", scaling.pop("type", "default"))
        if rope_type not in REQUIRED:
            raise ValueError(
                f"rope_type={rope_type!r}: only schedules that are fixed when the model is built "
                "are supported, because others would change cached "
                f"keys{suggestion(rope_type, REQUIRED)}"
            )
        share = scaling.get("partial_rotary_factor")
        if rope_type not in ("default", "proportional") and share not in (None, 1.0):
            raise ValueError(
                f"partial_rotary_factor={share} with rope_type={rope_type!r}: only 'default' and "
                "'proportional' rotate a part of a head"
            )
        if share is not None and not share <= 1:
            raise ValueError(
                f"rotary positions: partial_rotary_factor={share} must be a number in (0, 1]"
            )
        if rope_type == "default" and int(config.head_dim * (share or 1)) % 2:
            raise ValueError(
                f"rotary positions: partial_rotary_factor={share} of head_dim={config.head_dim} "
                "channels must be an even number of channels"
            )
        if rope_type in ("yarn", "clipped"):
            scaling.setdefault("original_max_position_embeddings", config.max_position_embeddings)
        if missing := [name for name in REQUIRED[rope_type] if scaling.get(name) is None]:
            raise ValueError(
                f"rotary positions: scaling with rope_type={rope_type!r} also needs "
                f"{', '.join(missing)}"
            )
        for less, more in ORDERED:
            if (scaling.get(less) or 0) >= (scaling.get(more) or math.inf):
                raise ValueError(
                    f"rotary positions: {less}={scaling[less]} must be below {more}={scaling[more]}"
                )
        if scaling.get("factor", 1) < 1:
            raise ValueError(f"rotary positions: factor={scaling['factor']} must be a number >= 1")
        if rope_type == "ntk":  # known from here on by its theta
            exponent = config.head_dim / max(config.head_dim - 2, 1)
            theta = scaling["rope_theta"] * scaling["factor"] ** exponent
            scaling = {"rope_type": "default", "rope_theta": theta}
        arguments = super().configure(config, arguments)
        config.rope_parameters = scaling
        config.validate_rope()
        return arguments

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        with torch.autocast(self.inv_freq.device.type, enabled=False):
            phases = positions.query.to(dtype)[..., None] * self.inv_freq.to(dtype)  # (B|1, T, F)
            return torch.stack((phases.cos(), phases.sin()), dim=-2)[:, None] * self.magnitude

    def layer(self, layer_idx: int) -> LayerPosition:
        return RotaryLayer()


class YaRN(RoPE):
    """RoPE with the YaRN schedule (Peng et al. 2023, arXiv 2309.00071): frequencies between
    `beta_fast` and `beta_slow` turns within the training length are interpolated gradually by
    `factor`, and cosine and sine are multiplied by 0.1 ln(factor) + 1."""

    config_arguments = ("factor", "beta_fast", "beta_slow", "original_length")

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["scaling"] is not None:
            raise ValueError(
                "position yarn sets the scaling itself: give factor, beta_fast, beta_slow, or use "
                "position rope with a scaling"
            )
        current = dict(config.rope_parameters or {})
        if current.get("rope_type") != "yarn":
            current = {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
        given = {
            "factor": arguments.pop("factor"),
            "beta_fast": arguments.pop("beta_fast"),
            "beta_slow": arguments.pop("beta_slow"),
            "original_max_position_embeddings": arguments.pop("original_length"),
        }
        given = {name: value for name, value in given.items() if value is not None}
        arguments["scaling"] = {**current, **given, "rope_type": "yarn"}
        return super().configure(config, arguments)


class XPos(RoPE):
    """RoPE with exponential decay (Sun et al. 2022, arXiv 2212.10554): queries are multiplied by
    zeta_f^((p - centre) / scale_base) and keys divided by it, zeta_f = (2f + 0.4 D) / (1.4 D).

    `centre` (by default half the training length) cancels in exact arithmetic; it is constant
    because keys are cached with their scale. Positions so far from it that a scaled key could
    overflow are refused: with the default `scale_base`, more than 12,463 in float16 and 139,370 in
    bfloat16 and float32.
    """

    HEADROOM = 32.0  # bound on the entries of a key before scaling

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        centre: float | None = None,
        scale_base: float = 2048.0,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.centre, self.scale_base = centre, scale_base
        D = config.head_dim
        with torch.device("cpu"):
            self.register_constant(
                "log_zeta", ((torch.arange(0, D, 2) + 0.4 * D) / (1.4 * D)).log()
            )

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        centre = arguments["centre"]
        if centre is None:
            arguments["centre"] = config.max_position_embeddings / 2
        elif type(centre) not in (int, float) or not abs(centre) < 2.0**31:
            raise ValueError(f"position xpos: centre={centre!r} must be a number")
        if not arguments["scale_base"] > 0:
            raise ValueError(
                f"position xpos: scale_base={arguments['scale_base']} must be a number > 0"
            )
        return super().configure(config, arguments)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        if is_compiling():
            return x_BTC
        device = x_BTC.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else x_BTC.dtype
        # Reading positions would synchronise a GPU: use the bound instead, the number of cache
        # slots or the range that positions are drawn from.
        last = (self.sampler.max_positions or positions.key.shape[-1]) - 1
        if device == "cpu":
            last = int(positions.query.max())
        nats = math.log(torch.finfo(dtype).max / self.HEADROOM)
        reach = nats * self.scale_base / math.log(1.4 / 0.4)  # zeta is smallest for f = 0
        if max(self.centre, last - self.centre) > reach:
            raise ValueError(
                f"position xpos with position.centre={self.centre} in {dtype} at positions 0 to "
                f"{last}: allowed are {self.centre - reach:,.0f} to {self.centre + reach:,.0f}, "
                "where its scale does not overflow; use a wider dtype, or move the centre"
            )
        return x_BTC

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        """(B|1, 1, T, 3, F): cosine, sine and the scale of the queries."""
        turned = super().state(positions, dtype)
        with torch.autocast(turned.device.type, enabled=False):
            power = (positions.query.to(dtype) - self.centre) / self.scale_base
            scale = (power[..., None] * self.log_zeta.to(dtype)).exp()
        return torch.cat((turned, scale[:, None, :, None]), dim=-2)

    def layer(self, layer_idx: int) -> LayerPosition:
        return XPosLayer()


class XPosLayer(RotaryLayer):
    """Rotates and scales queries, and keys inversely."""

    def rotate(self, q_BHTD: Tensor, k_BKTD: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        turned, scale = e.split((2, 1), dim=-2)
        grown, shrunk = ((turned * s).to(q_BHTD.dtype) for s in (scale, 1 / scale))
        return apply_rotary(q_BHTD, grown), apply_rotary(k_BKTD, shrunk)


class RandPE(RoPE):
    """RoPE on random coordinates (Ruoss et al. 2023, arXiv 2305.16843): RoPE with the `subset`
    sampler and its arguments `length`, `eval_length` and `seed`."""

    config_arguments = ("length", "eval_length", "seed")

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        given = {name: arguments.pop(name) for name in ("length", "eval_length", "seed")}
        sampler = arguments["sampler"]
        settled = {"name": "subset", **sampler} if isinstance(sampler, dict) else {"name": sampler}
        if settled["name"] not in ("index", "subset"):
            raise ValueError(
                f"position randpe samples positions itself: sampler={settled['name']!r} conflicts "
                f"with it; allowed: 'subset', or position rope with that sampler"
            )
        given = {name: value for name, value in given.items() if value is not None}
        arguments["sampler"] = {**settled, "name": "subset", **given}
        return super().configure(config, arguments)
