"""Documents in files: plain text, and rows through the builders of `datasets`.

JSON lines are read as text, line by line: the JSON builder wants the same columns and types in all
rows, which metadata seldom have, and reads texts that look like dates as dates.
"""

import csv
import json
import locale
import logging
import re
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
from datasets import IterableDataset, load_dataset
from datasets.data_files import DataFilesDict, DataFilesList
from fsspec.compression import register_compression
from fsspec.utils import compressions

from tape.core.validation import encodable

PLAIN = (".txt", ".md", ".rst", ".py")  # a file is a document
FORM = (
    "fields are separated by commas, those with commas, quotes or line breaks are in quotes, and "
    "quotes in them are doubled, not escaped"
)
OBJECT = 'each line must be a JSON object, {"text": ...}'
BYTE_ORDER_MARK = BOM_UTF8.decode()
# Zips with a password raise RuntimeError, those of an unknown compression NotImplementedError.
OF_ZIPS = (RuntimeError, zipfile.BadZipFile)
UNREADABLE = (OSError, EOFError, ValueError, zlib.error, pyarrow.ArrowException, *OF_ZIPS)

# fsspec's own reader takes truncated zstd data for complete.
register_compression(
    "zstd", lambda file, **_: pyarrow.input_stream(file, compression="zstd"), "zst", force=True
)
csv.field_size_limit(2**31 - 1)  # characters of a document
# They log errors that they also raise.
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)


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


def documents(path: Path, field: str) -> Iterator[str]:
    """Yields the documents of a local file that are not blank: in a file of rows, its column
    `field`. Raises a ValueError that names a row without text, or a file that cannot be read."""
    with reading(path):
        if path.suffix not in PLAIN:
            return texts(rows_of(path, field), path)
        # The text builder of `datasets` would change line ends.
        text = path.read_bytes().decode("utf-8").removeprefix(BYTE_ORDER_MARK)
        if "\0" in text:
            raise ValueError(f"{path} is binary: it has a zero byte at {text.index(chr(0)):,}")
        return texts([{"text": text}], path)


def texts(rows: Iterable[dict[str, str]], path: str | Path) -> Iterator[str]:
    """Yields the documents of a file that are not blank, from its rows (`rows_of`)."""
    with reading(path):
        for row in rows:
            if row["text"].strip():
                yield row["text"]


def rows_of(path: str | Path, field: str) -> IterableDataset | Iterator[dict[str, str]]:
    """Returns rows with the document of each line of a file of JSON lines, or of each row of a
    .csv or .parquet file, as `text`; it is empty for a blank line. The local file or URL may be
    compressed (.gz, .zst and others)."""
    kinds = [suffix for suffix in Path(path).suffixes if suffix[1:] not in compressions]
    is_plain, kind = kinds == Path(path).suffixes, kinds[-1] if kinds else ""
    if "::" in str(path) or (re.search(r"[\[\]]", Path(path).name) and not is_plain):
        raise ValueError(f"{path}: rename it: no :: in a name, no brackets in a compressed file's")
    # As a DataFilesList, a name with brackets is not taken for a pattern.
    files = DataFilesDict(train=DataFilesList([str(path)], []))
    load = partial(load_dataset, data_files=files, split="train", streaming=True)
    encoding, is_json = locale.getpreferredencoding(False), False
    if kind == ".parquet":
        columns = load("parquet").column_names
        rows = load("parquet", columns=[field] if field in columns else columns)
    elif kind == ".csv":
        return csv_rows(path, field)
    elif encoding.lower() in ("utf-8", "utf8"):
        rows, is_json = load("text"), True
    else:
        reason = f"the locale's encoding, {encoding}, would be used for compressed text"
        raise ValueError(f"{path}: {reason}; set PYTHONUTF8=1")
    return rows.map(partial(_document, path, field, is_json), with_indices=True)


def csv_rows(path: str | Path, field: str) -> Iterator[dict[str, str]]:
    """Yields the texts in the column `field` of a .csv, as they are. Raises a ValueError for a file
    without this column, and for rows of another form than the header's, of which other readers make
    other texts."""
    opened = fsspec.open(path, "rt", compression="infer", encoding="utf-8-sig", newline="")
    with opened as file:
        rows, header, number = csv.reader(file, strict=True), [], 0

        def refusal(reason: object) -> ValueError:
            place = f"row {number:,} (to line {rows.line_num:,})" if header else "header"
            return ValueError(f"{path}, {place}: {reason}; {FORM}")

        try:
            for row in rows:
                if len(row) < 2 and not "".join(row).strip():  # a blank line
                    continue
                if not header:
                    header = row
                    if (count := header.count(field)) != 1:
                        among = f"{count or 'no'} columns {field!r} among {', '.join(header)}"
                        raise ValueError(f"{path}: {among}; set data.field to one of them; {FORM}")
                elif len(row) != len(header):
                    raise refusal(f"fields: {len(row)}, in the header: {len(header)}")
                else:
                    yield {"text": row[header.index(field)]}
                    number += 1
        except csv.Error as error:
            raise refusal(error) from error
        if not header:
            raise refusal("missing")


def _document(path: str | Path, field: str, is_json: bool, row: Any, number: int) -> dict[str, str]:
    where = f"{path}, line {number + 1:,}" if is_json else f"{path}, row {number:,}"
    if is_json:
        line = row["text"] if number else row["text"].removeprefix(BYTE_ORDER_MARK)
        if not line.strip():
            return {"text": ""}
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error}); {OBJECT}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a {type(row).__name__}; {OBJECT}")
    if field not in row:
        has = f"the row has fields {', '.join(row)}"
        raise ValueError(
            f"{where}: no text in field {field!r} ({has}); data=text data.field=NAME reads others"
        )
    text = row[field]
    if not isinstance(text, str):
        kind = "null" if text is None else f"{type(text).__name__} {text!r:.40}"
        raise ValueError(f"{where}: field {field!r} has {kind}; a document must be a string")
    if not encodable(text):
        raise ValueError(f"{where}: {field!r} holds a lone surrogate")
    return {"text": text}
