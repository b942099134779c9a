"""Atomic creation of files and folders."""

from __future__ import annotations

import ast
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Content = TypeVar("Content")
# What readers raise for damaged files.
DAMAGED = (ValueError, LookupError, TypeError, RecursionError, EOFError, FileNotFoundError)
log = logging.getLogger(__name__)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Raises OSErrors anew, naming a file that is in the way of a folder."""
    try:
        yield
    except OSError as error:
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        reason = error.strerror if file is None else f"{file} is a file"
        verb = "written to" if folder.is_dir() else "created"
        raise OSError(
            f"the folder {folder} cannot be {verb}: {reason}; give another one"
        ) from error


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents if they do not exist.

    Raises:
        OSError: if that fails; names the file that is in the way.
    """
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_folder(folder: Path) -> None:
    """Checks that files can be written in a folder. It is not created if it does not exist, because
    the work that leads to the files may still be refused.

    Raises:
        OSError: if they cannot; names the file that is in the way.
    """
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    with _usable(folder), tempfile.TemporaryFile(dir=place):
        pass


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields a temporary folder to fill and renames it to `target`; removes it on failure.

    If another process created `target` meanwhile, that folder stays: both have the same content.
    """
    make_folder(target.parent)
    with naming(target):
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        yield work
        work.chmod(0o755)
        for path in work.rglob("*"):  # flushed to disk before the rename
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
def naming(target: Path) -> Iterator[None]:
    """Raises OSErrors about a temporary file anew, with the name of the one that it is for."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns any error caused by the content of a file into a ValueError that names the file."""
    try:
        yield
    except (OSError, MemoryError, ImportError):  # not caused by the content
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            raise
        if type(error) is ValueError:  # already says what is wrong
            raise ValueError(f"{path}: {error}") from error
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({what}): create it again, or remove it") from error


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        ValueError: if the file is damaged or holds anything but an object.
        OSError: if it cannot be read.
    """
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError(f"it must be a JSON object, not {type(found).__name__}")
        return found


def assigned(source: Path) -> dict[str, ast.expr]:
    """Returns what a Python file assigns to names, without importing what it imports."""
    found = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[ast.unparse(target)] = node.value
    return found


def read_or_discard(folder: Path, read: Callable[[Path], Content]) -> Content | None:
    """Returns `read(folder)` for a cached folder; None if there is none. A folder that `read` finds
    damaged is removed, to be created again."""
    if not folder.exists():
        return None
    try:
        return read(folder)
    except DAMAGED as error:
        reason = " ".join(str(error).split())
        log.warning("%s is damaged (%s): it is created again", folder, reason)
        shutil.rmtree(folder)
        return None


def write_text(target: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8; undecodable bytes of file names are escaped."""
    write_bytes(target, text.encode(errors="backslashreplace"))


def check_replaceable(setting: str, target: Path, mark: str) -> None:
    """Raise a ValueError for a file without the text `mark`, which shows that it may be written
    anew."""
    if target.is_file() and mark.encode() not in target.read_bytes():
        raise ValueError(
            f"{setting} {target} contains something else: remove it, or give another file"
        )


def write_bytes(target: Path, content: bytes) -> None:
    """Writes a file under a temporary name, then renames it."""
    make_folder(target.parent)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give the file to write")
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with naming(target):
            with work.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            work.replace(target)
    finally:
        work.unlink(missing_ok=True)
