"""Schedules of the frequencies of rotary encodings, in the form of `config.rope_parameters`."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tape.core.validation import check_arguments, is_number, suggestion

ORIGINAL = "original_max_position_embeddings"
# Schedules that are fixed when the model is built. "dynamic" depends on the input's length, which
# would invalidate cached keys, and so does "longrope" if its factors for short texts are others.
# Each with the arguments that it requires.
REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor",),
    "longrope": ("factor", "long_factor"),
    "proportional": ("partial_rotary_factor",),
    "ntk": ("factor",),
    "clipped": (),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}  # by default
OF_A_LENGTH = ("yarn", "clipped", "longrope")  # which is ORIGINAL
ORDERED = (("beta_slow", "beta_fast"), ("low_freq_factor", "high_freq_factor"))
# Numeric arguments of the schedules, which transformers does not check.
POSITIVE = {"rope_theta", "factor", "attention_factor", "partial_rotary_factor", ORIGINAL}
POSITIVE |= {name for pair in ORDERED for name in pair}
NAMES = {"rope_type", "type", "short_factor", "long_factor", "truncate", "mscale", "mscale_all_dim"}
NAMES |= POSITIVE


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
            frequencies = clipped(frequencies, rope[ORIGINAL])
        return F.pad(frequencies, (0, (D - rotated) // 2)), 1.0


def kind_of(rope: Mapping[str, Any]) -> str:
    """Returns the type of a schedule, also in transformers' old form."""
    return rope.get("rope_type", rope.get("type", "default"))


def rope_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schedule in a saved configuration, also in transformers' old form."""
    return saved.get("rope_scaling") or saved.get("rope_parameters") or {}


def clipped(frequencies: Tensor, length: int) -> Tensor:
    """Multiplies the n frequencies that turn less than once in `length` tokens by the second half
    of a Hann window, from 1 at the highest of them to 0 at the lowest (arXiv 2602.05258)."""
    slow = frequencies * length < 2 * math.pi
    n = slow.sum()
    place = slow.cumsum(0) - 1 + (n == 1)  # a single one is the lowest
    window = (1 + (math.pi * place.float() / (n - 1).clamp(min=1)).cos()) / 2
    return frequencies * window.where(slow, 1.0)


def settled(
    config: PretrainedConfig, theta: float | None, scaling: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the `rope_parameters` for `theta` and `scaling`, which default to those of the
    configuration. Refuses unknown schedules, those of some layers, and arguments that are missing
    or out of bounds."""
    if not isinstance(scaling, Mapping | None):
        raise ValueError(
            f"rotary positions: scaling={scaling!r} must be a mapping with a rope_type, or null"
        )
    current = {"rope_theta": 10_000.0, **(config.rope_parameters or {})}
    if scaling is not None:
        check_arguments("scaling", scaling.keys() - current.keys(), NAMES)
        if not {"rope_type", "type"} & scaling.keys():
            kinds = ", ".join(sorted(REQUIRED))
            raise ValueError(f"scaling={dict(scaling)!r} needs a rope_type; known: {kinds}")
    scaling = dict(current if scaling is None else scaling)
    for name, value in scaling.items():
        if isinstance(value, Mapping):
            raise ValueError(
                f"rotary positions: {name}={dict(value)!r} is a schedule for some layers, as other "
                "families of models have; allowed: one schedule for all layers"
            )
    scaling.setdefault("rope_theta", current["rope_theta"])
    if theta is not None:
        scaling["rope_theta"] = theta
    for name in POSITIVE & scaling.keys():
        if scaling[name] is not None and not (is_number(scaling[name]) and scaling[name] > 0):
            raise ValueError(f"rotary positions: {name}={scaling[name]!r} must be a number > 0")
    scaling["rope_theta"] = float(scaling["rope_theta"])
    rope_type = scaling.setdefault("rope_type", scaling.pop("type", "default"))
    if rope_type == "longrope":
        scaling.setdefault("short_factor", scaling.get("long_factor"))
    if rope_type in OF_A_LENGTH:
        scaling.setdefault(ORIGINAL, config.max_position_embeddings)
    _check_schedule(scaling, config.head_dim)
    if rope_type == "ntk":  # known from here on by its theta
        exponent = config.head_dim / max(config.head_dim - 2, 1)
        theta = scaling["rope_theta"] * scaling["factor"] ** exponent
        scaling = {"rope_type": "default", "rope_theta": theta}
    return scaling


def _check_schedule(scaling: Mapping[str, Any], D: int) -> None:
    """Raises a ValueError for a schedule that is unknown, incomplete or contradicts itself."""
    rope_type, share = scaling["rope_type"], scaling.get("partial_rotary_factor")
    varies = scaling.get("short_factor") != scaling.get("long_factor")
    if rope_type not in [*REQUIRED] or (rope_type == "longrope" and varies):
        allowed = suggestion(rope_type, REQUIRED)
        if rope_type == "longrope":
            allowed = "; its short_factor must be its long_factor"
        raise ValueError(
            f"rope_type={rope_type!r}: only schedules that are fixed when the model is built "
            f"are supported, because others would change cached keys{allowed}"
        )
    factor, factors = scaling.get("factor"), scaling.get("long_factor")
    right = isinstance(factors, list | tuple) and len(factors) == D // 2
    right = right and all(is_number(x) and x >= 1 for x in factors)
    missing = [name for name in REQUIRED[rope_type] if scaling.get(name) is None]
    part, kind = f"partial_rotary_factor={share}", f"rope_type={rope_type!r}"
    odd = rope_type == "default" and int(D * (share or 1)) % 2
    whole = rope_type not in ("default", "proportional")
    refusals = [
        (whole and share not in (None, 1.0), f"{part} with {kind}, not default or proportional"),
        ((share or 0) > 1, f"{part} must be a number in (0, 1]"),
        (odd, f"{part} of head_dim={D} channels must be an even number of channels"),
        (missing, f"scaling with {kind} also needs {', '.join(missing)}"),
        (
            rope_type == "longrope" and not right,
            f"long_factor={factors!r} must be a list of {D // 2} numbers >= 1, one for each "
            "frequency",
        ),
        ((factor or 1) < 1, f"factor={factor} must be a number >= 1"),
    ]
    for less, more in ORDERED:
        low, high = scaling.get(less), scaling.get(more)
        refusals.append(
            ((low or 0) >= (high or math.inf), f"{less}={low} must be below {more}={high}")
        )
    for wrong, message in refusals:
        if wrong:
            raise ValueError(f"rotary positions: {message}")


def yarn(current: Mapping[str, Any]) -> dict[str, Any]:
    """Returns YaRN's schedule: that of the current `rope_parameters`, or else the default one.
    Refuses frequencies with another schedule, which YaRN would replace."""
    schedule, share = current.get("rope_type", "default"), current.get("partial_rotary_factor")
    if schedule not in ("default", "yarn") or share not in (None, 1.0):
        partial = "" if share is None else f" and partial_rotary_factor={share}"
        raise ValueError(
            f"position yarn on frequencies with rope_type={schedule!r}{partial}: allowed: "
            "frequencies without a schedule, or with YaRN's; choose position rope or tape, which "
            "keep the schedule"
        )
    if schedule == "yarn":
        return dict(current)
    return dict(YARN)


def plain_theta(config: PretrainedConfig, owner: str, theta: float | None) -> float:
    """Returns the base of frequencies theta^(-2f/D), by default that of the configuration. Refuses
    a configuration with a schedule and no `theta`, and heads with an odd number of channels."""
    rope = config.rope_parameters or {}
    if theta is None and (kind := rope.get("rope_type", "default")) != "default":
        raise ValueError(f"{owner} on frequencies with rope_type={kind!r}: it has none; give theta")
    if config.head_dim % 2:
        raise ValueError(f"{owner}: head_dim={config.head_dim} must be even")
    return float(rope.get("rope_theta", 10_000.0) if theta is None else theta)


def frequencies_of(theta: float, count: int, like: Tensor) -> Tensor:
    """Returns theta^(-f/count) for f < count, in the dtype and on the device of a tensor."""
    return theta ** (-torch.arange(count, dtype=like.dtype, device=like.device) / count)
