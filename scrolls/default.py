"""Which task to take where none is named: prints `quality`, or `sample` if that is not to be had.

python -m scrolls.default [data.data_dir=/path/to/zips] [data_dir=/path/to/zips]
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from scrolls.sources import find
from scrolls.tasks import SAMPLE, task_named

FIRST = "quality"


def default_task(settings: list[str]) -> str:
    """The settings of the command may name a folder with data.

    Raises:
        FileNotFoundError: if there is no `quality` in that folder.
    """
    folders = [text.partition("=")[2] for text in settings if text.partition("=")[0] in KEYS]
    data_dir = Path(folders[-1]) if folders else None
    try:
        find(task_named(FIRST), "validation", data_dir, Path("cache"))
    except FileNotFoundError as error:
        if data_dir is not None:
            raise
        print(
            f"no task is named, and {error}\ntaking {SAMPLE!r}, which is none of SCROLLS: "
            f"questions about Python's own library",
            file=sys.stderr,
        )
        return SAMPLE
    return FIRST


KEYS = ("data_dir", "data.data_dir")

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        print(default_task(sys.argv[1:]))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
