"""Progress of work that takes longer than a moment, with the time that is left."""

import io
import sys
from typing import Any

from tqdm import tqdm

SECONDS = 10  # between lines where there is no terminal; shorter work prints none
LINE = "{desc}: {percentage:.0f} % of {total_fmt}, {remaining} left"


class _Lines(io.TextIOBase):
    """Writes what tqdm would draw over itself as lines of stderr."""

    def write(self, text: str) -> int:
        if line := text.strip("\r\n "):
            print(line, file=sys.stderr, flush=True)
        return len(text)


def track(*given: Any, desc: str, **how: Any) -> tqdm:
    """Returns a bar of tqdm, for the arguments of tqdm; outside a terminal, such as in a log, lines
    with the share that is done and the time that is left."""
    if sys.stderr.isatty():
        return tqdm(*given, desc=desc, **how)
    every = {"mininterval": SECONDS, "delay": SECONDS, "miniters": 1, "bar_format": LINE}
    return tqdm(*given, desc=desc, **how | every | {"file": _Lines(), "leave": False})
