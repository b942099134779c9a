"""Prints the default task: `quality`, or `sample` if quality is not available.

python -m scrolls.default [data.data_dir=/path/to/zips] [data_dir=/path/to/zips]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from scrolls.sources import find
from scrolls.tasks import SAMPLE, TASKS

FIRST = "quality"
KEYS = ("data_dir", "data.data_dir")


def default_task(settings: list[str]) -> str:
    """Returns the default task; the command's settings may name a data folder.

    Raises:
        FileNotFoundError: if that folder does not contain `quality`.
    """
    pairs = (setting.partition("=") for setting in settings)
    *_, data_dir = (None, *(Path(value) for key, _, value in pairs if key in KEYS))
    try:
        find(TASKS[FIRST], "validation", data_dir, Path("cache"))
    except FileNotFoundError as error:
        if data_dir is not None:
            raise
        print(
            f"no task is named, and {error}\nusing {SAMPLE!r}, which is not part of SCROLLS: "
            f"questions about Python's own library",
            file=sys.stderr,
        )
        return SAMPLE
    return FIRST


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        print(default_task(sys.argv[1:]))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
