"""Documents in files: plain text, lines of JSON and columns of parquet."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import fsspec
import pyarrow
from pyarrow import parquet

from tape.validation import encodable

PLAIN = (".txt", ".md", ".rst", ".py")  # a file is a document
OBJECT = 'each line must be a JSON object, {"text": ...}'
# Zips with a password raise RuntimeError, those of an unknown compression NotImplementedError.
OF_ZIPS = (RuntimeError, zipfile.BadZipFile)
UNREADABLE = (OSError, EOFError, ValueError, zlib.error, pyarrow.ArrowException, *OF_ZIPS)


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turns errors while a file is read into ValueErrors that name the file."""
    try:
        yield
    except UNREADABLE as error:
        if type(error) is ValueError:  # already names the file
            raise
        reason = "is not UTF-8 text" if isinstance(error, UnicodeError) else "cannot be read"
        raise ValueError(f"{path} {reason}: {' '.join(str(error).split())}") from error


def documents(path: str | Path, field: str = "text", first: int = 0) -> Iterator[tuple[int, str]]:
    """Yields the documents of a file that are not blank, each with the number of its row: the whole
    of a plain file, or `field` of each line of JSON or row of .parquet.

    Args:
        path: of a local file; of JSON lines also a URL. A .gz is decompressed.
        first: number of the row to begin with.

    Raises:
        ValueError: for a row without text, or a file that cannot be read; names them.
    """
    suffix = Path(path).suffix
    rows = _whole if suffix in PLAIN else _column if suffix == ".parquet" else _lines
    with reading(path):
        for number, text in enumerate(rows(path, field)):
            if number >= first and text.strip():
                yield number, text


def _whole(path: Path, field: str) -> Iterator[str]:
    text = path.read_bytes().decode("utf-8-sig")  # as it is, line ends too
    if "\0" in text:
        raise ValueError(f"{path} is binary: it has a zero byte at {text.index(chr(0)):,}")
    yield text


def _column(path: Path, field: str) -> Iterator[str]:
    with parquet.ParquetFile(path) as file:
        if field not in file.schema_arrow.names:
            among = ", ".join(file.schema_arrow.names)
            raise ValueError(f"{path}: no column {field!r} among {among}; set data.field")
        batches = file.iter_batches(1024, columns=[field])
        texts = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for number, text in enumerate(texts):
            yield _checked(text, field, f"{path}, row {number:,}")


def _lines(path: str | Path, field: str) -> Iterator[str]:
    opened = fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig")
    with opened as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                yield ""
                continue
            where = f"{path}, line {number:,}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error}); {OBJECT}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{where}: a {type(row).__name__}; {OBJECT}")
            if field not in row:
                has = f"the row has fields {', '.join(row)}"
                raise ValueError(f"{where}: no text in field {field!r} ({has}); set data.field")
            yield _checked(row[field], field, where)


def _checked(text: object, field: str, where: str) -> str:
    if not isinstance(text, str):
        kind = "null" if text is None else f"{type(text).__name__} {text!r:.40}"
        raise ValueError(f"{where}: field {field!r} has {kind}; a document must be a string")
    if not encodable(text):
        raise ValueError(f"{where}: {field!r} holds a lone surrogate")
    return text
