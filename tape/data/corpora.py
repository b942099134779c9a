"""Corpora: sources of documents, split into training and validation."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import sysconfig
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NoReturn

from tape.data.readers import plain_text, reading, rows_of
from tape.validation import check_fraction, check_path, check_text

Split = Literal["train", "validation"]
Paths = str | Path | list[str | Path] | tuple[str | Path, ...]

PLAIN = (".txt", ".md", ".rst", ".py")
KNOWN = (*PLAIN, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
TABLES = (".csv", ".csv.gz")  # read if named, but not from a folder, where they may be anything
log = logging.getLogger(__name__)


class Corpus:
    """Named documents in two splits. Splits and their order are the same on every machine with the
    same files.

    Args:
        documents: what training does at their borders: "mask", tokens attend within their document;
            "join" or None, to all earlier tokens of a block.
    """

    masked = False  # whether tokens attend within their document
    streaming = False  # read during training rather than tokenized as a whole
    remedy = "give more text"  # for a split without documents

    def __init__(self, name: str, documents: str | None):
        check_text("data.name", name)
        if documents not in (None, "join", "mask"):
            raise ValueError(f"data.documents={documents!r} must be join or mask, or null for join")
        self.name, self.masked = name, documents == "mask"

    def documents(self, split: Split) -> Iterator[str]:
        raise NotImplementedError

    def sample(self) -> Iterator[str]:
        """Returns the documents that a tokenizer is trained on."""
        return self.documents("train")

    def size(self) -> int | None:
        """Returns the approximate text size in bytes; None if unknown without reading it."""
        return None

    def fingerprint(self) -> str:
        """Returns a hash of everything that determines the content of the splits."""
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError


class FileCorpus(Corpus):
    """A corpus of local files, read as a whole."""

    def files(self) -> list[Path]:
        raise NotImplementedError

    def rule(self) -> str:
        """Describes how documents are chosen: what determines the splits besides the files."""
        raise NotImplementedError

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        """Returns a hash of the files' contents and of the split rule."""
        digest = hashlib.sha256(self.rule().encode())
        for path in self.files():
            with reading(path), path.open("rb") as file:
                # The same bytes give other documents if the file type differs.
                kind = b"plain" if path.suffix in PLAIN else b"rows"
                if ".csv" in path.suffixes:
                    kind = b"table"
                if kind == b"plain" and file.read(len(BOM_UTF8)) != BOM_UTF8:
                    file.seek(0)  # a byte order mark is no part of the document
                digest.update(kind + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def size(self) -> int | None:
        if any(path.suffix not in (*PLAIN, ".jsonl") for path in self.files()):
            return None  # compressed
        return sum(path.stat().st_size for path in self.files())

    def describe(self) -> str:
        files = self.files()
        size = sum(path.stat().st_size for path in files)
        digest = self.fingerprint()[:16]
        return f"{self.name}: {len(files):,} files, {size:,} bytes, sha256 {digest}"


class LocalCorpus(FileCorpus):
    """Real text available wherever Python is: the standard library's modules and documentation,
    without installed packages and tests. One file in twenty, chosen by name, is for validation."""

    EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

    def __init__(self, name: str = "local", documents: str | None = None):
        super().__init__(name, documents)
        self.root = Path(sysconfig.get_paths()["stdlib"]).resolve()

    @cache  # noqa: B019
    def files(self) -> list[Path]:
        found = (path for suffix in PLAIN for path in self.root.rglob(f"*{suffix}"))
        parts = {path: frozenset(path.relative_to(self.root).parts) for path in found}
        files = sorted(path for path, names in parts.items() if not names & self.EXCLUDED)
        if not files:
            raise FileNotFoundError(
                f"Python's standard library has no source files in {self.root}; "
                f"use data=text with data.files=... instead"
            )
        return files

    def rule(self) -> str:
        return "\n".join(self._name(path) for path in self.files())

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def documents(self, split: Split) -> Iterator[str]:
        for path in self.files():
            if (fraction(self._name(path)) < 0.05) == (split == "validation"):
                text = plain_text(path)
                if text.strip():
                    yield text


class TextCorpus(FileCorpus):
    """The user's own files: plain text (a document per file), .jsonl (also .gz, .zst), .csv (also
    .gz; not from a folder) and .parquet (a document per row).

    Args:
        files: one or several paths, folders or globs.
        validation: the same, for validation; without it, `validation_fraction` of the documents,
            chosen by content (copies of a document are in the same split). A single plain file is
            cut at a line instead, and its end is for validation.
        field: name of the text column.
    """

    remedy = (
        "give more text, or choose the validation text with data.validation or "
        "data.validation_fraction"
    )

    def __init__(
        self,
        files: Paths | None,
        validation: Paths | None = None,
        validation_fraction: float = 0.05,
        field: str = "text",
        name: str = "text",
        documents: str | None = None,
    ):
        if files is None:
            raise ValueError("data=text needs data.files=... (paths, folders or globs)")
        check_fraction("data.validation_fraction", validation_fraction)
        check_text("data.field", field)
        super().__init__(name, documents)
        self.field, self.validation_fraction = field, validation_fraction
        self.held_out = [] if validation is None else _expand("data.validation", validation)
        held_out = {path.resolve() for path in self.held_out}
        self.paths = [p for p in _expand("data.files", files) if p.resolve() not in held_out]
        if not self.paths:
            raise FileNotFoundError("every file of data.files is in data.validation as well")

    def files(self) -> list[Path]:
        return self.paths + self.held_out

    def rule(self) -> str:
        return f"{len(self.held_out)} held out, {self.validation_fraction}, {self.field}"

    def documents(self, split: Split) -> Iterator[str]:
        if self.held_out:
            yield from self._read(self.paths if split == "train" else self.held_out)
        elif len(self.paths) == 1 and self.paths[0].suffix in PLAIN:
            text = plain_text(self.paths[0])
            end = int(len(text) * (1 - self.validation_fraction))
            # At a line break, or at a space in a text of one line, unless that is far from the end.
            places = (text.rfind(mark, end // 2, end) for mark in "\n ")
            cut = next((place for place in places if place > 0), end)
            half = text[: cut + 1] if split == "train" else text[cut + 1 :]
            if half.strip():
                yield half
        else:
            for text in self._read(self.paths):
                if (fraction(text) < self.validation_fraction) == (split == "validation"):
                    yield text

    def _read(self, paths: list[Path]) -> Iterator[str]:
        for path in paths:
            plain = path.suffix in PLAIN
            documents = [plain_text(path)] if plain else rows_of(path, self.field)
            yield from (text for text in documents if text.strip())


def fraction(text: str) -> float:
    """Maps a text to a number in [0, 1) by its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / 256**7


def no_documents(corpus: Corpus, split: Split) -> ValueError:
    """Returns the error for a split without documents."""
    return ValueError(f"the {split} split of {corpus.name} has no documents; {corpus.remedy}")


def _expand(setting: str, patterns: Paths) -> list[Path]:
    """Expands paths, folders and globs to sorted files without duplicates, also by links."""
    several = isinstance(patterns, list | tuple)
    if several and not patterns:
        raise ValueError(f"{setting}={patterns!r} must be a path, a folder or a glob, or several")
    found: dict[Path, Path] = {}
    for pattern in patterns if several else [patterns]:
        literal = check_path(setting, pattern).exists()  # file names may contain brackets
        found_here = [str(pattern)] if literal else glob.glob(str(pattern), recursive=True)
        if not found_here:
            raise FileNotFoundError(f"{setting}: nothing matches {str(pattern)!r}")
        for match in map(Path, found_here):
            if not match.exists():
                raise FileNotFoundError(f"{setting}: {match} is a broken link")
            for file in _inside(setting, match.resolve()):
                found.setdefault(file.resolve(), file)
    return sorted(found.values())


def _inside(setting: str, path: Path) -> list[Path]:
    """Returns the file itself, or the files in the folder; warns of files of other types."""
    if path.is_file():
        if not path.name.endswith((*KNOWN, *TABLES)):
            raise ValueError(f"{setting}: {path} must be one of {', '.join((*KNOWN, *TABLES))}")
        return [path]
    if not path.is_dir():
        raise ValueError(f"{setting}: {path} is neither a file nor a folder")

    def refuse(error: OSError) -> NoReturn:
        raise error

    inside, others, known = [], Counter(), set()
    for folder, folders, names in os.walk(path, onerror=refuse, followlinks=True):
        if (place := os.path.realpath(folder)) in known:  # a link to a folder above it
            folders.clear()
            continue
        known.add(place)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(folder, name) for name in names):
            if file.name.startswith("."):
                others["hidden"] += 1
            elif not file.name.endswith(KNOWN):
                others[file.suffix or "without a suffix"] += 1
            elif file.is_file():
                inside.append(file)
    if not inside:
        raise FileNotFoundError(f"{setting}: no {', '.join(KNOWN)} in folder {path}")
    if others:
        files = len(inside) + others.total()
        kinds = sorted(others.items(), key=lambda item: (-item[1], item[0]))
        left_out = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        log.warning(
            f"{setting}: {len(inside):,} of the {files:,} files in {path} are read; left out: "
            f"{left_out}; only {', '.join(KNOWN)} are read"
        )
    return inside
