"""Dataclasses of plain settings in JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from tape.files import read_object, reading, write_text
from tape.validation import check_arguments

Settings = TypeVar("Settings")


def save(settings: Any, path: Path) -> None:
    """Writes the fields of a dataclass."""
    write_text(path, json.dumps(asdict(settings), indent=1) + "\n")


def load(cls: type[Settings], path: Path, dropped: tuple[str, ...] = ()) -> Settings:
    """Reads settings written by `save`. Fields of former versions in `dropped` may be null.

    Raises:
        ValueError: if the fields in the file are not those of `cls`.
    """
    found = read_object(path)
    found = {name: x for name, x in found.items() if name not in dropped or x is not None}
    with reading(path):
        check_arguments(cls.__name__, found, (field.name for field in fields(cls)))
        return cls(**found)
