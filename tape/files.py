"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, renamed to `target` at the end; nothing is left if filling it fails.

    If another process made `target` in the meantime, its folder stays: both hold the same.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}-*"):  # by a process that was killed
        if left.stat().st_mtime < time.time() - 24 * 3600:
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield work
        work.chmod(0o755)
        for path in work.rglob("*"):  # on the disk before it has its name
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Have whatever goes wrong with the content of a file be a ValueError that names it: a damaged
    file may hold anything, and readers trip over all of it."""
    try:
        yield
    except (OSError, MemoryError, ImportError):  # it is not the content
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            raise
        if type(error) is ValueError:  # says what is wrong
            raise ValueError(f"{path}: {error}") from error
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({what}): make it again, or remove it") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: if the file is damaged, or holds something else.
        OSError: if it cannot be read.
    """
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError(f"it must be a JSON object, not a {type(found).__name__}")
        return found


def write_text(target: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8; bytes of a file's name that are none are escaped."""
    write_bytes(target, text.encode(errors="backslashreplace"))


def write_bytes(target: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with work.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
