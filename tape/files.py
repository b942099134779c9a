"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def write_text(target: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(target, text.encode())


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
