"""Options of evaluations that extend a model to longer texts without training."""

import argparse
from pathlib import Path
from typing import Any

from tape.encodings import single
from tape.encodings.pieces import METHODS
from tape.model.checkpoint import read_config

SCALED = ("rope", "tape")  # encodings that take one


def extension(given: argparse.Namespace) -> str:
    """Returns a name for what the options ask for; empty without --extend. Raises a ValueError for
    --factor alone."""
    if given.factor is None:
        return given.extend or ""
    if given.extend is None:
        raise ValueError(f"--factor {given.factor:g} without --extend: give a method")
    return f"{given.extend} {given.factor:g}"


def extended(given: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Returns the position with which the model in a folder is to be loaded; raises a ValueError as
    `extension`, and for a model that the method is not defined for."""
    if not extension(given):
        return None
    if given.extend in METHODS:
        position = {"name": "extended", "method": given.extend, "factor": given.factor}
    else:
        config = read_config(folder)
        name, rope = config.position["name"], config.rope_parameters or {}
        if name == "mixed" and (encoding := single(config.position)):
            name = encoding["name"]
        kind, share = rope.get("rope_type"), rope.get("partial_rotary_factor")
        if name not in SCALED or kind != "default" or share not in (None, 1.0):
            what = f"a model with position {name!r} and rope_type={kind!r}"
            allowed = f"{' and '.join(SCALED)} without a schedule"
            raise ValueError(f"--extend {given.extend} on {what}: allowed: {allowed}")
        factor = 4.0 if given.factor is None else given.factor
        position = {"name": name, "scaling": {"rope_type": given.extend, "factor": factor}}
    read_config(folder, position)  # refused before anything else happens
    return position
