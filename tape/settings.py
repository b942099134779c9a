"""Settings that are plain numbers and names, kept in a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from tape.files import read_object, reading, write_text
from tape.names import check_arguments

Settings = TypeVar("Settings")


def save(settings: Any, path: Path) -> None:
    """Write the fields of a dataclass."""
    write_text(path, json.dumps(asdict(settings), indent=1) + "\n")


def load(cls: type[Settings], path: Path) -> Settings:
    """What `save` wrote.

    Raises:
        ValueError: if the file holds something else than the fields of `cls`.
    """
    found = read_object(path)
    with reading(path):
        check_arguments(cls.__name__, found, (field.name for field in fields(cls)))
        return cls(**found)
