"""Checks of arguments and their values."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TypeVar

Value = TypeVar("Value")


def suggestion(name: object, known: Iterable[str]) -> str:
    """Returns the end of an error message, e.g. "; did you mean 'alibi'? Known: alibi, fire"."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"{hint} Known: {', '.join(known) or 'none'}"


def look_up(kind: str, name: object, table: Mapping[str, Value]) -> Value:
    """Returns `table[name]`, or raises a ValueError that lists the known names."""
    if isinstance(name, str) and name in table:
        return table[name]
    raise ValueError(f"unknown {kind} {name!r}{suggestion(name, table)}")


def check_arguments(owner: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Raises a ValueError for the first argument that `owner` does not accept."""
    accepted = set(accepted)
    for name in given:
        if name not in accepted:
            raise ValueError(f"{owner} takes no argument {name!r}{suggestion(name, accepted)}")


def check_name(setting: str, name: object) -> str:
    """Returns a valid folder name, or raises a ValueError."""
    plain = isinstance(name, str | int) and not isinstance(name, bool)  # 7 is a valid name
    if not plain or not re.fullmatch(r"[\w+=-][\w.+=-]*", str(name), re.ASCII):
        what = "a single folder name of letters, digits and ._-+=, not beginning with a dot"
        raise ValueError(f"{setting}={name!r}: it must be {what}")
    return str(name)


def check_integer(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raises a ValueError unless `value` is an integer from `least` to `most`."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"in {least}..{most}"
        raise ValueError(f"{name}={value!r} must be an integer {bounds}")


def is_number(value: object) -> bool:
    """Returns whether `value` is a finite number; true and false are none."""
    return type(value) in (int, float) and math.isfinite(value)


def check_fraction(name: str, value: object) -> None:
    """Raises a ValueError unless `value` is a number between 0 and 1, exclusive."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ValueError(f"{name}={value!r} must lie in (0, 1)")


def check_flag(name: str, value: object) -> None:
    """Raises a ValueError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be true or false")


def check_path(name: str, value: object) -> Path:
    """Returns `value` as a path, or raises a ValueError."""
    if not isinstance(value, str | Path) or not str(value) or not encodable(str(value)):
        raise ValueError(f"{name}={value!r} must be a path")
    return Path(value)


def encodable(text: str) -> bool:
    """Returns whether a string can be written to a file: JSON strings and file names may contain
    lone surrogates."""
    return re.search(r"[\ud800-\udfff]", text) is None


def check_no_gguf(source: str | Path) -> None:
    """Raises a ValueError for a GGUF file, or a folder whose only weights are in such files."""
    path = Path(source)
    found = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    if found and found[0].suffix == ".gguf" and not any(path.glob("*.safetensors")):
        command = f"tape import {quote(str(found[0]))} --out FOLDER"
        raise ValueError(f"{found[0]} is a GGUF file: convert it by `{command}`, and give FOLDER")
