"""Atomic creation of files and folders."""

import hashlib
import json
import logging
import os
import re
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


def check_folder(folder: Path) -> None:
    """Raises an OSError unless files can be written in a folder, or where it would be created. It
    is not created, because the work that leads to the files may still be refused."""
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    with naming(folder), tempfile.TemporaryFile(dir=place):
        pass


@contextmanager
def new_folder(target: Path, cached: bool = True) -> Iterator[Path]:
    """Yields a temporary folder to fill and renames it to `target`; removes it on failure.

    If another process created `target` meanwhile, that folder stays: both have the same content if
    they are `cached`; otherwise an OSError is raised.
    """
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        with writing(target):
            yield work
        work.chmod(0o755)
        for path in work.rglob("*"):  # flushed to disk before the rename
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        try:
            with naming(target):
                work.rename(target)
        except OSError:
            if not (cached and target.is_dir()):
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
def writing(target: Path) -> Iterator[None]:
    """Turns torch's and safetensors' errors of writing into OSErrors that name the target."""
    try:
        yield
    except Exception as error:
        if re.search("inline_container|iostream|Error while serializing: I/O", str(error)):
            raise OSError(f"{target} cannot be written: is the disk full?") from error
        raise


def let_others_read(folder: Path) -> None:
    """Gives the weights in a model's folder the mode of its other files: safetensors (0.8) lets
    only their owner read them."""
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)


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
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({what}): create it again, or remove it") from error


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; a ValueError says what is wrong with its content."""
    with reading(path):
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError(f"it must be a JSON object, not {type(found).__name__}")
        return found


def read_or_discard(folder: Path, read: Callable[[Path], Content]) -> Content | None:
    """Returns `read(folder)` for a cached folder; None if there is none. A folder that `read` finds
    damaged is removed, to be created again."""
    try:
        return read(folder) if folder.exists() else None
    except DAMAGED as error:
        log.warning("%s is damaged (%s): it is created again", folder, " ".join(str(error).split()))
        with naming(folder):
            shutil.rmtree(folder)
        return None


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_replaceable(setting: str, target: Path, mark: str) -> None:
    """Raises a ValueError for a file without the text `mark`, which another program wrote."""
    if target.is_file() and mark.encode() not in target.read_bytes():
        raise ValueError(f"{setting} {target} contains something else: give another file")


def write_text(target: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8; undecodable bytes of file names are escaped."""
    write_bytes(target, text.encode(errors="backslashreplace"))


def write_bytes(target: Path, content: bytes) -> None:
    """Writes a file under a temporary name, then renames it."""
    target.parent.mkdir(parents=True, exist_ok=True)
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
