"""Encodings of positions, by name.

A new encoding is one file here, one line in `ENCODINGS` and one YAML in config/position/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tape.names import check_arguments, look_up
from tape.positions.absolute import NoPE, SinCos
from tape.positions.base import (
    ContextUpdate,
    PositionEncoding,
    PositionModule,
    Positions,
    ScoreBias,
)
from tape.positions.bias import FIRE, ALiBi, T5Bias
from tape.positions.rotary import RandPE, RoPE, XPos, YaRN
from tape.positions.tape import Tape, TapeYaRN

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "nope": NoPE,
    "sincos": SinCos,
    "rope": RoPE,
    "yarn": YaRN,
    "xpos": XPos,
    "randpe": RandPE,
    "alibi": ALiBi,
    "fire": FIRE,
    "t5": T5Bias,
    "tape": Tape,
    "tape_yarn": TapeYaRN,
}
# The names that the paper's code uses.
ALIASES = {"adape": "tape", "randrope": "randpe", "t5rb": "t5", "adayarn": "tape_yarn"}


def configure(config: PretrainedConfig, position: str | dict[str, Any]) -> dict[str, Any]:
    """Settle an encoding, given by name or as {"name": ..., arguments}, for a configuration.

    Raises:
        ValueError: for an unknown name or argument, naming the nearest one and all that are known.
    """
    given = {"name": position} if isinstance(position, str) else dict(position)
    canonical = dict(zip(ENCODINGS, ENCODINGS, strict=True)) | ALIASES
    name = look_up("position encoding", given.pop("name", None), canonical)
    cls = ENCODINGS[name]
    check_arguments(f"position encoding '{name}'", given, cls.defaults())
    return {"name": name, **cls.configure(config, cls.defaults() | given)}


def build(config: PretrainedConfig) -> PositionEncoding:
    """The encoding that a settled configuration names."""
    arguments = dict(config.position)
    return ENCODINGS[arguments.pop("name")](config, **arguments)


__all__ = [
    "ALIASES",
    "ENCODINGS",
    "ContextUpdate",
    "PositionEncoding",
    "PositionModule",
    "Positions",
    "ScoreBias",
    "build",
    "configure",
]
