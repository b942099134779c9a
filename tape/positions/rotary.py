"""RoPE, and RoPE with the YaRN schedule.

The state is `(B|1, K|1, T, 2, F)`: cosine and sine of a phase per token and frequency. `theta` and
`scaling` are moved to `config.rope_parameters`, where Hugging Face tools look for them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active  # what torch.autograd itself asks
from torch.compiler import is_compiling
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, PositionEncoding, Positions, Prepared, Tokens
from tape.positions.schedules import (
    OF_A_LENGTH,
    ORIGINAL,
    inverse_frequencies,
    kind_of,
    rope_of,
    settled,
    yarn,
)


def waves(phases: Tensor) -> Tensor:
    """Returns cosine and sine, (.., 2, F)."""
    return torch.stack((phases.cos(), phases.sin()), dim=-2)


def apply_rotary(x: Tensor, e: Tensor) -> Tensor:
    """Multiplies pairs (x_f, x_{f+F}) as complex numbers by e_f = (cosine, sine), (.., 2, F)."""
    if x.requires_grad and not (is_compiling() or _are_functorch_transforms_active()):
        return _ApplyRotary.apply(x, e)
    return _plain(x, e)


def _plain(x: Tensor, e: Tensor) -> Tensor:
    cosines, sines = factors(e)
    return x * cosines + x.roll(x.shape[-1] // 2, dims=-1) * sines


def factors(e: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (cosine, cosine) and (-sine, sine) of all frequencies, each (.., D). They stay with
    e, which layers share, unless there are gradients."""
    keep = not (torch.is_grad_enabled() or is_compiling())
    if not keep or not hasattr(e, "_tape_factors"):
        cosine, sine = e.unbind(-2)
        found = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
        if not keep:
            return found
        e._tape_factors = found
    return e._tape_factors


class _ApplyRotary(torch.autograd.Function):
    """`apply_rotary` for training, in half the passes over memory, rounded in another order."""

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
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, e = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives
            # As views: x may depend on e, which layers share, and both derivatives are partial.
            x, e = x.view_as(x), e.view_as(e)
            inputs = [y for y, needed in zip((x, e), ctx.needs_input_grad, strict=True) if needed]
            found = iter(torch.autograd.grad(_plain(x, e), inputs, grad, create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        grad_x = _ApplyRotary.product(grad, e, out=torch.empty_like(x), sign=-1)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        (real, imaginary), (g_real, g_imaginary) = x.chunk(2, dim=-1), grad.chunk(2, dim=-1)
        grad_e = torch.empty_like(e.expand(*x.shape[:-1], *e.shape[-2:]))
        cosine, sine = grad_e.unbind(-2)
        torch.mul(g_real, real, out=cosine).addcmul_(g_imaginary, imaginary)
        torch.mul(g_imaginary, real, out=sine).addcmul_(g_real, imaginary, value=-1)
        return grad_x, grad_e.sum_to_size(e.shape)


def turned(x_BHTD: Tensor, e: Tensor, back: bool = False) -> Tensor:
    """Rotates heads by the state (B|1, K|1, T, 2, F) of their key/value heads, or back."""
    e, (H, K) = e.to(x_BHTD.dtype), (x_BHTD.shape[1], e.shape[1])
    if back:
        e = torch.stack((e[..., 0, :], -e[..., 1, :]), dim=-2)
    return apply_rotary(x_BHTD, e if K in (1, H) else e.repeat_interleave(H // K, dim=1))


class RotaryLayer(LayerPosition):
    """Rotates queries and keys by the state, (B|1, K|1, T, 2, F); subclasses replace `tokens.e`."""

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        e = tokens.e.to(q_BHTD.dtype)
        return turned(q_BHTD, e), turned(k_BKTD, e), None


class RoPE(PositionEncoding):
    """Rotates pair f of queries and keys by p * inv_f (Su et al. 2021, arXiv 2104.09864).

    Arguments of the configuration:
        theta: base of the frequencies, inv_f = theta^(-2f/D); 10,000 by default.
        scaling: a schedule in transformers' form, e.g. {"rope_type": "linear", "factor": 2.0};
            also "llama3", "yarn", "longrope" (one set of factors). "proportional" rotates the pairs
            of the first share `partial_rotary_factor` alone, and "default" with that share has
            their frequencies go down to theta^(-1) as well (GPT-NeoX). "ntk" multiplies theta by
            factor^(D/(D-2)) (Peng et al. 2023), and "clipped" tapers frequencies that turn less
            than once in `original_max_position_embeddings` tokens, by default the training length.
    """

    real = True
    config_arguments = ("theta", "scaling")

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        frequencies, self.magnitude = inverse_frequencies(config)
        self.register_constant("inv_freq", frequencies)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if config.head_dim % 2:
            raise ValueError(
                f"rotary positions need pairs of channels: head_dim={config.head_dim} must be even"
            )
        scaling = settled(config, arguments.pop("theta"), arguments.pop("scaling"))
        arguments = super().configure(config, arguments)
        config.rope_parameters = scaling
        config.validate_rope()
        return arguments

    @classmethod
    def on_checkpoint(cls, arguments: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        scaling = arguments.get("scaling")
        if not isinstance(scaling, Mapping) or kind_of(scaling) not in OF_A_LENGTH:
            return arguments
        length = rope_of(saved).get(ORIGINAL) or saved.get("max_position_embeddings")
        return arguments | {"scaling": {**({ORIGINAL: length} if length else {}), **scaling}}

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        # Autocast, which would round a product of matrices, leaves these operations as they are.
        phases = positions.query.to(dtype)[..., None] * self.inv_freq.to(dtype)  # (B|1, T, F)
        e = waves(phases)[:, None]
        return e if self.magnitude == 1 else e * self.magnitude

    def layer(self, layer_idx: int) -> LayerPosition:
        return RotaryLayer()


class YaRN(RoPE):
    """RoPE with the YaRN schedule (Peng et al. 2023, arXiv 2309.00071): frequencies between
    `beta_fast` and `beta_slow` turns within the training length are interpolated gradually by
    `factor`, and cosine and sine are multiplied by 0.1 ln(factor) + 1. A schedule that the
    frequencies have already is kept if it is YaRN, and otherwise refused."""

    config_arguments = ("factor", "beta_fast", "beta_slow", "original_length")

    @classmethod
    def on_checkpoint(cls, arguments: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        if kind_of(rope_of(saved)) == "yarn" or arguments.get("original_length") is not None:
            return arguments
        return arguments | {"original_length": saved.get("max_position_embeddings")}

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["scaling"] is not None:
            raise ValueError(
                "position yarn sets the scaling itself: give factor, beta_fast, beta_slow, or use "
                "position rope with a scaling"
            )
        given = {name: arguments.pop(name) for name in YaRN.config_arguments}
        given["original_max_position_embeddings"] = given.pop("original_length")
        given = {name: value for name, value in given.items() if value is not None}
        arguments["scaling"] = yarn(config.rope_parameters or {}) | given
        return super().configure(config, arguments)
