"""Arguments and their values, with errors that say what would have worked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
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


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise a ValueError unless `value` is a whole number, `least` or more and `most` or less."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more")
    if most is not None and value > most:
        raise ValueError(f"{name}={value} must be {most:,} or less")
