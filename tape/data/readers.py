"""Documents in files: plain text, and rows through the builders of `datasets`.

JSON lines are read as text, line by line: the JSON builder wants the same columns and types in all
rows, which metadata seldom have, and reads texts that look like dates as dates.
"""

from __future__ import annotations

import json
import locale
import logging
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
from datasets import IterableDataset, load_dataset
from datasets.data_files import DataFilesDict, DataFilesList
from fsspec.compression import register_compression
from huggingface_hub import hf_hub_download, snapshot_download

from tape.validation import encodable

BYTE_ORDER_MARK = BOM_UTF8.decode()
UNREADABLE = (OSError, EOFError, zlib.error, pyarrow.ArrowException)

# fsspec's own reader takes truncated zstd data for complete.
register_compression(
    "zstd", lambda file, **_: pyarrow.input_stream(file, compression="zstd"), "zst", force=True
)
# They log errors that they also raise.
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turns errors while a file is read into errors that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} at "
            f"{error.start:,}; convert it, or leave it out"
        ) from error
    except Exception as error:
        if type(error) is ValueError:  # already names the file
            raise
        if not isinstance(error, (*UNREADABLE, ValueError)):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read: {reason}") from error


def plain_text(path: Path) -> str:
    """Returns the text of a file without a byte order mark. The text builder of `datasets` would
    change its line ends."""
    with reading(path):
        text = path.read_bytes().decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    if "\0" in text:
        raise ValueError(f"{path} is binary: it has a zero byte at {text.index(chr(0)):,}")
    return text


def _load(builder: str, path: str | Path, **options) -> IterableDataset:
    # As a DataFilesList, a name with brackets is not taken for a pattern.
    files = DataFilesDict(train=DataFilesList([str(path)], []))
    return load_dataset(builder, data_files=files, split="train", streaming=True, **options)


def json_lines(path: str | Path, field: str) -> IterableDataset:
    """Returns rows with the document of each line as `text`, empty for a blank line.

    Args:
        path: a local file or a URL; .gz, .zst and other compressed files are decompressed.
        field: the key of the document.
    """

    def parse(row: dict[str, str], number: int) -> dict[str, str]:
        where, line = f"{path}, line {number + 1:,}", row["text"]
        line = line if number else line.removeprefix(BYTE_ORDER_MARK)
        if not line.strip():
            return {"text": ""}
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        return {"text": _text(where, found, field)}

    if locale.getpreferredencoding(False).lower() not in ("utf-8", "utf8"):
        raise ValueError(
            f"{path}: the locale's encoding, {locale.getpreferredencoding(False)}, would be used "
            "for compressed text; set PYTHONUTF8=1"
        )
    return _load("text", path).map(parse, with_indices=True)


def _table(path: Path, field: str) -> IterableDataset:
    """Returns rows with the document of each row of a .csv or .parquet file as `text`."""

    def pick(row: dict[str, Any], number: int) -> dict[str, str]:
        return {"text": _text(f"{path}, row {number:,}", row, field)}

    if ".csv" in path.suffixes:
        rows = _load("csv", path, keep_default_na=False)
    else:
        columns = _load("parquet", path).column_names
        rows = _load("parquet", path, columns=[field] if field in columns else columns)
    return rows.map(pick, with_indices=True)


def _text(where: str, row: Any, field: str) -> str:
    if not isinstance(row, dict) or field not in row:
        has = f"fields {', '.join(row)}" if isinstance(row, dict) else "no fields"
        raise ValueError(f"{where}: no text in field {field!r} (the row has {has}); set data.field")
    text = row[field]
    if not isinstance(text, str):
        kind = "null" if text is None else f"{type(text).__name__} {text!r:.40}"
        raise ValueError(f"{where}: field {field!r} has {kind}; a document must be a string")
    if not encodable(text):
        raise ValueError(f"{where}: {field!r} holds a lone surrogate")
    return text


def texts(rows: IterableDataset, path: str | Path) -> Iterator[str]:
    """Yields the documents of a file, also blank ones.

    Raises:
        ValueError: for a row without text, or a file that cannot be read; names them.
    """
    with reading(path):
        for row in rows:
            yield row["text"]


def rows_of(path: Path, field: str) -> Iterator[str]:
    """Yields the document of each row of a local file (see `texts`)."""
    with reading(path):
        rows = json_lines(path, field) if ".jsonl" in path.suffixes else _table(path, field)
    return texts(rows, path)


def from_hub(repository: str, names: list[str] | None, revision: str | None = None) -> list[Path]:
    """Returns files of a data set in the hub's cache, downloaded where they are missing, or (None)
    the folder of what is in the cache.

    Raises:
        FileNotFoundError: if one is neither in the cache nor available.
    """
    where = {"repo_type": "dataset", "revision": revision}
    try:
        if names is None:
            return [Path(snapshot_download(repository, local_files_only=True, **where))]
        return [Path(hf_hub_download(repository, name, **where)) for name in names]
    except Exception as error:  # the hub's client also raises errors of its HTTP clients
        raise FileNotFoundError(
            f"{repository} is neither in the hub's cache nor available from the hub ({error}); "
            f"give data.dir=..., a folder with its files, or another corpus, data=local"
        ) from error
