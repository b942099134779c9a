"""Settings that are plain numbers and names, kept in a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from tape.files import write_text
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
    try:
        found = dict(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} does not hold settings of {cls.__name__}: {error}") from error
    check_arguments(str(path), found, (field.name for field in fields(cls)))
    try:
        return cls(**found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
