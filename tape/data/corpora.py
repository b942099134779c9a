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

from huggingface_hub import hf_hub_download

from tape.data.readers import PLAIN, documents, reading
from tape.validation import check_fraction, check_path, check_text

Split = Literal["train", "validation"]
Paths = str | Path | list[str | Path] | tuple[str | Path, ...]

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
                yield from documents(path, "")


class TextCorpus(FileCorpus):
    """The user's own files; settings: config/data/text.yaml.

    Without files for validation, some documents are held out, chosen by content, so that copies of
    a document are in the same split. A single plain file is cut near its end instead.
    """

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
            for text in self._read(self.paths):
                cut = _near_end(text, self.validation_fraction)
                half = text[:cut] if split == "train" else text[cut:]
                if half.strip():
                    yield half
        else:
            for text in self._read(self.paths):
                if (fraction(text) < self.validation_fraction) == (split == "validation"):
                    yield text

    def _read(self, paths: list[Path]) -> Iterator[str]:
        for path in paths:
            yield from documents(path, self.field)


class RedPajamaCorpus(TextCorpus):
    """RedPajama-Data-1T-Sample (Together Computer 2023): eleven JSON lines files, about a billion
    tokens from the sources of Llama's training data. Settings: config/data/redpajama.yaml.

    Raises:
        FileNotFoundError: if the folder has none of the files, or the hub cannot provide one.
    """

    HUB = "togethercomputer/RedPajama-Data-1T-Sample"
    CRAWLS = ("cc_2019-30", "cc_2020-05", "cc_2021-04", "cc_2022-05", "cc_2023-06")
    SOURCES = ("arxiv", "book", "c4", *CRAWLS, "github", "stackexchange", "wikipedia")

    def __init__(
        self,
        dir: str | Path | None = None,
        validation_fraction: float = 0.01,
        name: str = "redpajama",
        documents: str | None = None,
    ):
        check_fraction("data.validation_fraction", validation_fraction)
        Corpus.__init__(self, name, documents)
        self.field, self.held_out, self.validation_fraction = "text", [], validation_fraction
        names = [f"{source}_sample.jsonl" for source in self.SOURCES]
        if dir is None:
            log.info("downloading %s once, about 5 GB", self.HUB)
            self.paths = self._from_hub(names)
            return
        folder = check_path("data.dir", dir)
        self.paths = [folder / each for each in names if (folder / each).is_file()]
        if not self.paths:
            raise FileNotFoundError(
                f"data.dir={folder} has none of {', '.join(names)}; they are on "
                f"https://huggingface.co/datasets/{self.HUB}"
            )
        if missing := {*names} - {path.name for path in self.paths}:
            log.warning("%s lacks %s of %s files: %s", dir, len(missing), len(names), missing)

    def _from_hub(self, names: list[str]) -> list[Path]:
        try:
            return [Path(hf_hub_download(self.HUB, n, repo_type="dataset")) for n in names]
        except Exception as error:  # the hub's client also raises errors of its HTTP clients
            raise FileNotFoundError(
                f"{self.HUB} is neither in the hub's cache nor available from the hub ({error}); "
                f"give data.dir=..., a folder with its files, or another corpus, data=local"
            ) from error

    def rule(self) -> str:
        return f"redpajama {self.validation_fraction}"


def fraction(text: str) -> float:
    """Maps a text to a number in [0, 1) by its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / 256**7


def no_documents(corpus: Corpus, split: Split) -> ValueError:
    """Returns the error for a split without documents."""
    return ValueError(
        f"the {split} split of {corpus.name} has no documents; give more text, or another "
        "validation text"
    )


def _near_end(text: str, share: float) -> int:
    """Returns where the last `share` of a text begins: after a line break, or after a space in a
    text of one line, unless that is far from the end."""
    end = int(len(text) * (1 - share))
    found = (text.rfind(mark, end // 2, end) for mark in "\n ")
    return next((place for place in found if place > 0), end) + 1


def _expand(setting: str, patterns: Paths) -> list[Path]:
    """Expands paths, folders and globs to sorted files without duplicates, also by links."""
    several = patterns if isinstance(patterns, list | tuple) and patterns else [patterns]
    found: dict[Path, Path] = {}
    for pattern in several:
        literal = check_path(setting, pattern).exists()  # file names may contain brackets
        matches = [str(pattern)] if literal else glob.glob(str(pattern), recursive=True)
        if not matches:
            raise FileNotFoundError(f"{setting}: nothing matches {str(pattern)!r}")
        for match in map(Path, matches):
            if not match.exists():
                raise FileNotFoundError(f"{setting}: {match} is a broken link")
            for file in _inside(setting, match.resolve()):
                found.setdefault(file.resolve(), file)
    return sorted(found.values())


def _inside(setting: str, path: Path) -> list[Path]:
    """Returns the file itself, or the files in the folder; warns of files of other types."""
    if path.is_file():
        if not path.name.endswith((*KNOWN, *TABLES)):
            raise ValueError(f"{setting}: {path} must be one of {', '.join(KNOWN + TABLES)}")
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
        for name in names:
            if name.startswith("."):
                others["hidden"] += 1
            elif name.endswith(KNOWN):
                inside.append(Path(folder, name))
            else:
                others[Path(name).suffix or "without a suffix"] += 1
    if not inside:
        raise FileNotFoundError(f"{setting}: no {', '.join(KNOWN)} in folder {path}")
    if others:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common())
        log.warning(
            f"{setting}: {len(inside):,} files of {path} are read; left out: {kinds}; "
            f"only {', '.join(KNOWN)} are read"
        )
    return inside
