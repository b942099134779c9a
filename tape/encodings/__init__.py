"""Positional encodings by name.

A new encoding is one file here, one line in `ENCODINGS` and one YAML in config/position/; `tape
new-encoding` makes them. Other packages add theirs by entry points `tape.encodings`.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

from transformers import PretrainedConfig

from tape.core.validation import check_arguments, look_up
from tape.encodings.abacus import Abacus, Coupling
from tape.encodings.absolute import Learned, NoPE, SinCos
from tape.encodings.bias import BAM, FIRE, ALiBi, Kerple, T5Bias
from tape.encodings.carope import CARoPE
from tape.encodings.cope import CoPE
from tape.encodings.dape import DAPE
from tape.encodings.extended import ExtendedRoPE
from tape.encodings.fope import FoPE
from tape.encodings.fox import FoX
from tape.encodings.gain import RoPEGain
from tape.encodings.grape_ap import GrapeAP
from tape.encodings.grape_m import GrapeM
from tape.encodings.imaginary import Imaginary
from tape.encodings.mixed import Entry, Mixed, bare, checked
from tape.encodings.path import PaTH
from tape.encodings.pko import PartialKeyOffset
from tape.encodings.pope import PoPE
from tape.encodings.randpe import RandPE
from tape.encodings.relative import Relative
from tape.encodings.repo import RePo
from tape.encodings.scale_invariant import ScaleInvariant
from tape.encodings.selective import SelectiveRoPE
from tape.encodings.stick_breaking import StickBreaking
from tape.encodings.tapa import TAPA
from tape.encodings.tape import Tape, TapeYaRN
from tape.encodings.wall import Wall
from tape.encodings.xpos import XPos
from tape.positions import sampling
from tape.positions.base import LayerPosition, PositionEncoding, PositionModule
from tape.positions.rotary import RoPE, YaRN

Module = TypeVar("Module", bound=PositionModule)

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "nope": NoPE,
    "sincos": SinCos,
    "learned": Learned,
    "abacus": Abacus,
    "rope": RoPE,
    "rope_gain": RoPEGain,
    "yarn": YaRN,
    "extended": ExtendedRoPE,
    "xpos": XPos,
    "randpe": RandPE,
    "alibi": ALiBi,
    "fire": FIRE,
    "t5": T5Bias,
    "kerple": Kerple,
    "dape": DAPE,
    "relative": Relative,
    "cope": CoPE,
    "fox": FoX,
    "pope": PoPE,
    "selective": SelectiveRoPE,
    "path": PaTH,
    "grape_m": GrapeM,
    "grape_ap": GrapeAP,
    "repo": RePo,
    "wall": Wall,
    "tape": Tape,
    "tape_yarn": TapeYaRN,
    "mixed": Mixed,
    "carope": CARoPE,
    "tapa": TAPA,
    "fope": FoPE,
    "stick_breaking": StickBreaking,
    "coupling": Coupling,
    "bam": BAM,
    "pko": PartialKeyOffset,
    "scale_invariant": ScaleInvariant,
    "imaginary": Imaginary,
}
# Names in the paper's code.
ALIASES = {"adape": "tape", "randrope": "randpe", "t5rb": "t5", "adayarn": "tape_yarn"}

# Encodings that `extended` computes at trained distances.
EXTENDABLE = ("rope", "yarn", "extended")


def configure(config: PretrainedConfig, position: str | dict[str, Any]) -> dict[str, Any]:
    """Completes an encoding, given by name or as {"name": ..., arguments}, for a configuration.
    Refuses unknown names and arguments."""
    name, given = canonical(position)
    cls = ENCODINGS[name]
    check_arguments(f"position encoding '{name}'", given, cls.defaults())
    cls.check_numbers(f"position {name}", given)
    settled = {"name": name, **cls.configure(config, cls.defaults() | given)}
    kind = settled["sampler"]["name"]
    parts = [entry["name"] for entry in settled.get("pattern", [settled])]
    if sampling.SAMPLERS[kind].real and (whole := [x for x in parts if not ENCODINGS[x].real]):
        able = ", ".join(x for x, encoding in ENCODINGS.items() if encoding.real)
        raise ValueError(
            f"position {whole[0]}: sampler={kind!r} draws real numbers, and its positions are "
            f"integers; allowed: {able}, or another sampler"
        )
    return settled


def override(saved: str | dict[str, Any] | None, position: str | dict[str, Any]) -> dict[str, Any]:
    """Replaces the saved encoding, or some of its arguments if the encoding is the same: those that
    are not null, and of a sampler of the same name likewise. Refuses unknown names, and `extended`
    on an encoding that is not RoPE with all tokens at their indices. In a mixture of one encoding
    and layers without positions, the new one takes the place of that encoding."""
    name, given = canonical(position)
    kept_name, kept = (None, {}) if saved is None else canonical(saved)
    if kept_name == "mixed" and name != kept_name and single(kept):
        return in_mixture(kept, {"name": name, **given})
    if name == "extended" and kept_name not in (None, *EXTENDABLE):
        raise ValueError(
            f"position extended on a model with position {kept_name!r}, whose scores depend on "
            f"more than RoPE's distances; allowed: models with {', '.join(EXTENDABLE)}"
        )
    kind, sampler = sampling.named(kept.get("sampler", "index"))
    if name == "extended" and "eval_length" in sampler:
        raise ValueError(
            f"position extended on a model with sampler {kind!r}, which draws the distances that "
            "it would map; give a model without it"
        )
    if kept_name != name:
        return {"name": name, **given}
    if "sampler" in given:
        new, arguments = sampling.named(given["sampler"])
        own = updated(sampler, arguments) if new == kind else arguments
        given["sampler"] = {"name": new, **own}
    # Arguments of `extended` determine each other.
    return {"name": name, **(kept | given if name == "extended" else updated(kept, given))}


def single(mixture: Mapping[str, Any]) -> Entry | None:
    """Returns the only encoding of a mixture beside layers without positions, without a window;
    None if it has several, or none."""
    entries = [bare(checked(entry)) for entry in mixture.get("pattern", Mixed.pattern)]
    others = [entry for entry in entries if entry["name"] != "nope"]
    return others[0] if others and all(entry == others[0] for entry in others) else None


def in_mixture(mixture: Mapping[str, Any], position: Entry) -> Entry:
    """Returns a mixture of a single encoding with another one in its place; windows and layers
    without positions stay."""
    own = override(single(mixture), position)
    sampler = {"sampler": own.pop("sampler")} if "sampler" in own else {}
    pattern = [checked(entry) for entry in mixture.get("pattern", Mixed.pattern)]
    for n, entry in enumerate(pattern):
        if entry["name"] != "nope":
            window = {"window": entry["window"]} if "window" in entry else {}
            pattern[n] = own | window
    return {"name": "mixed", **mixture, "pattern": pattern, **sampler}


def updated(kept: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments with others in their place, apart from nulls."""
    return kept | {k: x for k, x in given.items() if x is not None or k not in kept}


def canonical(position: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the name in full, and the arguments that are given. An encoding of another package is
    imported now, because its module imports those of this package."""
    name, given = sampling.named(position)
    known = {each: each for each in ENCODINGS} | ALIASES
    if name not in known:
        added = entry_points(group="tape.encodings")
        known |= {each: each for each in added.names}
        if name in added.names:
            ENCODINGS[name] = added[name].load()
    return look_up("position encoding", name, known), given


def build(config: PretrainedConfig) -> PositionEncoding:
    """Builds the encoding of a completed configuration."""
    arguments = dict(config.position)
    return complete(ENCODINGS[arguments.pop("name")](config, **arguments), config)


def build_layer(encoding: PositionEncoding, layer_idx: int) -> LayerPosition:
    """Builds the part of an encoding that belongs to a decoder layer."""
    return complete(encoding.layer(layer_idx), encoding.config)


def complete(module: Module, config: PretrainedConfig) -> Module:
    """Returns a module of an encoding. Raises a ValueError if it has tensors that a model would
    lack after it is loaded."""
    if lost := module.unregistered():
        raise ValueError(
            f"position {config.position['name']}: {lost[0]} is neither saved nor a constant, so a "
            f"loaded model would lack it; give it to register_constant"
        )
    return module
