"""Arguments and their values, with errors that say what would have worked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")


def suggestion(name: object, known: Iterable[str]) -> str:
    """'; did you mean 'alibi'? Known: ...', to end an error message with."""
    known = sorted(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"{hint} Known: {', '.join(known) or 'none'}"


def look_up(kind: str, name: object, table: Mapping[str, Value]) -> Value:
    """`table[name]`, or a ValueError that lists the known names of this kind."""
    if isinstance(name, str) and name in table:
        return table[name]
    raise ValueError(f"unknown {kind} {name!r}{suggestion(name, table)}")


def check_arguments(owner: str, given: Iterable[str], accepted: Iterable[str]) -> None:
    """Raise a ValueError for the first argument that `owner` does not take."""
    accepted = set(accepted)
    for name in given:
        if name not in accepted:
            raise ValueError(f"{owner} takes no argument {name!r}{suggestion(name, accepted)}")


def check_name(setting: str, name: object) -> str:
    """The name of a folder, or a ValueError for what is none, or more than one."""
    plain = isinstance(name, str | int) and not isinstance(name, bool)  # 7 is a name, too
    if not plain or not re.fullmatch(r"[\w+=-][\w.+=-]*", str(name), re.ASCII):
        raise ValueError(
            f"{setting}={name!r}: a name is one folder of letters, digits, . _ - + =, not "
            f"beginning with a dot; choose another"
        )
    return str(name)


def check_integer(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise a ValueError unless `value` is an integer from `least` to `most`."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"in {least}..{most}"
        raise ValueError(f"{name}={value!r} must be an integer {bounds}")


def check_fraction(name: str, value: object) -> None:
    """Raise a ValueError unless `value` is a number between 0 and 1."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ValueError(f"{name}={value!r} must lie in (0, 1)")


def check_flag(name: str, value: object) -> None:
    """Raise a ValueError unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be true or false")


def check_text(name: str, value: object) -> None:
    """Raise a ValueError unless `value` is text, and not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r} must be text that is not empty")


def check_path(name: str, value: object) -> Path:
    """The path that `value` is.

    Raises:
        ValueError: if it is none, or no UTF-8.
    """
    if not isinstance(value, str | Path) or not str(value) or not encodable(str(value)):
        raise ValueError(f"{name}={value!r} must be a path")
    return Path(value)


def encodable(text: str) -> bool:
    """Whether it is text: JSON and names of files can hold halves of surrogate pairs, which no
    file can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
