"""Corpora: sources of documents, split into training and validation; those in files."""

import glob
import hashlib
import logging
import math
import os
import sysconfig
from codecs import BOM_UTF8
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NoReturn

from huggingface_hub import hf_hub_download

from tape.core.validation import check_fraction, check_path
from tape.data.readers import PLAIN, documents, reading

Split = Literal["train", "validation", "test"]
Paths = str | Path | list[str | Path] | tuple[str | Path, ...]

FEW = 100  # files that are read once more to name those that are held out
NAMED = 5  # of which so many are named
KNOWN = (*PLAIN, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
TABLES = (".csv", ".csv.gz")  # read if named, but not from a folder, where they may be anything
log = logging.getLogger(__name__)


class Corpus:
    """Named documents in splits. Splits and their order are the same on every machine with the
    same files.

    Args:
        documents: what training does at their borders: "mask", tokens attend within their document;
            "join" or None, to all earlier tokens of a block.
    """

    splits: tuple[Split, ...] = ("train", "validation")
    streaming = False  # read during training rather than tokenized as a whole
    remedy = "give more text"  # for a split without documents

    def __init__(self, name: str, documents: str | None):
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

    def no_documents(self, split: Split) -> ValueError:
        """Returns the error for a split without documents."""
        return ValueError(f"the {split} split of {self.name} has no documents; {self.remedy}")


class FileCorpus(Corpus):
    """Local files, read as a whole. Documents are held out for validation by their content, so that
    copies of a document are in the same split: those whose hash, as a number in [0, 1), is below
    `validation_fraction`. If there are none, the one with the lowest hash is held out, provided
    that others are left.

    Attributes:
        files: all of them.
        parts: files of each split; None: both splits are in all of them.
        rule: what determines the splits besides the files.
    """

    files: list[Path]
    parts: dict[Split, list[Path]] | None = None
    rule: str
    field = "text"
    validation_fraction: float

    def documents(self, split: Split) -> Iterator[str]:
        for path in self.files if self.parts is None else self.parts[split]:
            for text in documents(path, self.field):
                held_out = self.parts is None and fraction(text) <= self.highest
                if self.parts or held_out == (split == "validation"):
                    yield text

    @cached_property
    def highest(self) -> float:
        """The highest hash that is held out."""
        below = math.nextafter(self.validation_fraction, 0)
        hashes = set()
        for path in self.files:
            for text in documents(path, self.field):
                hashes.add(found := fraction(text))
                if found <= below:
                    return below
        return min(hashes) if len(hashes) > 1 else below

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.rule.encode())
        if self.parts is None and self.highest >= self.validation_fraction:
            digest.update(b"the lowest")
        for path in self.files:
            # The same bytes give other documents if the file type differs.
            kind = b"plain" if path.suffix in PLAIN else b"rows"
            kind = b"table" if ".csv" in path.suffixes else kind
            with reading(path), path.open("rb") as file:
                if kind == b"plain" and file.read(len(BOM_UTF8)) != BOM_UTF8:
                    file.seek(0)  # a byte order mark is no part of the document
                digest.update(kind + hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def describe(self) -> str:
        size = sum(path.stat().st_size for path in self.files)
        digest = self.fingerprint()[:16]
        text = f"{self.name}: {len(self.files):,} files, {size:,} bytes, sha256 {digest}"
        if not (held_out := self.held_out()):
            return text
        told = f"{len(held_out):,} of them" if len(held_out) > NAMED else ", ".join(held_out)
        return f"{text}; for validation: {told}"

    def held_out(self) -> list[str]:
        """Returns the files all of whose documents are for validation, if the files are FEW."""
        if self.parts is not None:
            return [str(path) for path in self.parts["validation"]]
        if len(self.files) > FEW:
            return []
        found = []
        for path in self.files:
            texts = documents(path, self.field)
            if fraction(next(texts, "")) <= self.highest and all(
                fraction(text) <= self.highest for text in texts
            ):
                found.append(str(path))
        return found


class LocalCorpus(FileCorpus):
    """Real text available wherever Python is: the standard library's modules and documentation,
    without installed packages and tests. One file in twenty, chosen by name, is for validation."""

    EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

    def __init__(self, name: str = "local", documents: str | None = None):
        super().__init__(name, documents)
        self.root = Path(sysconfig.get_paths()["stdlib"]).resolve()
        paths = (path for suffix in PLAIN for path in self.root.rglob(f"*{suffix}"))
        found = sorted(path.relative_to(self.root) for path in paths)
        names = [path.as_posix() for path in found if not self.EXCLUDED & {*path.parts}]
        if not names:
            missing = f"Python's standard library has no source files in {self.root}"
            raise FileNotFoundError(f"{missing}; use data=text with data.files=... instead")
        self.files, self.parts = [self.root / name for name in names], defaultdict(list)
        for path, name in zip(self.files, names, strict=True):
            self.parts["validation" if fraction(name) < 0.05 else "train"].append(path)
        self.rule = "\n".join(names)


class TextCorpus(FileCorpus):
    """The user's own files; settings: config/data/text.yaml. Without files for validation, some
    documents are held out; a single plain file is cut near its end instead."""

    remedy = "empty files have none: give more documents, or data.validation=FILE"

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
            what = "data=text needs data.files=... (paths, folders or globs)"
            raise ValueError(f"{what}; data=local needs none: it is Python's own source code")
        check_fraction("data.validation_fraction", validation_fraction)
        super().__init__(name, documents)
        self.field, self.validation_fraction = field, validation_fraction
        held_out = [] if validation is None else _expand("data.validation", validation)
        others = {path.resolve() for path in held_out}
        train = [path for path in _expand("data.files", files) if path.resolve() not in others]
        if not train:
            raise FileNotFoundError("every file of data.files is in data.validation as well")
        self.parts = {"train": train, "validation": held_out} if held_out else None
        self.files = train + held_out
        self.is_lone = len(self.files) == 1 and self.files[0].suffix in PLAIN
        self.rule = f"{len(held_out)} held out, {validation_fraction}, {field}"

    def held_out(self) -> list[str]:
        return [f"the end of {self.files[0]}"] if self.is_lone else super().held_out()

    def documents(self, split: Split) -> Iterator[str]:
        if not self.is_lone:
            yield from super().documents(split)
            return
        for text in documents(self.files[0], self.field):
            cut = _near_end(text, self.validation_fraction)
            half = text[:cut] if split == "train" else text[cut:]
            if half.strip():
                yield half


class WholeText(FileCorpus):
    """Files to be measured, and not trained on: all of their documents are for validation."""

    rule = "whole"

    def __init__(self, files: Paths):
        super().__init__("text", None)
        self.files = _expand("--files", files)
        self.parts = {"train": [], "validation": self.files}


class RedPajamaCorpus(FileCorpus):
    """RedPajama-Data-1T-Sample (Together Computer 2023): eleven JSON lines files, about a billion
    tokens from the sources of Llama's training data. Settings: config/data/redpajama.yaml."""

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
        super().__init__(name, documents)
        self.validation_fraction = validation_fraction
        self.rule = f"redpajama {validation_fraction}"
        names = [f"{source}_sample.jsonl" for source in self.SOURCES]
        folder = self._from_hub(names) if dir is None else check_path("data.dir", dir)
        self.files = [folder / each for each in names if (folder / each).is_file()]
        missing = [each for each in names if folder / each not in self.files]
        if not self.files:
            hub = f"https://huggingface.co/datasets/{self.HUB}"
            raise FileNotFoundError(f"data.dir={folder} has none of {', '.join(names)}: {hub}")
        if missing:
            log.warning("%s lacks %s of %s files: %s", folder, len(missing), len(names), missing)

    def _from_hub(self, names: list[str]) -> Path:
        log.info("downloading %s once, about 5 GB", self.HUB)
        try:
            for name in names:
                file = hf_hub_download(self.HUB, name, repo_type="dataset")
            return Path(file).parent
        except Exception as error:  # the hub's client also raises errors of its HTTP clients
            raise FileNotFoundError(
                f"{self.HUB} is neither in the hub's cache nor available from the hub ({error}); "
                f"give data.dir=..., a folder with its files, or another corpus, data=local"
            ) from error


def fraction(text: str) -> float:
    """Maps a text to a number in [0, 1) by its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) / 256**7


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
        read = f"{len(inside):,} files of {path} are read; left out: {kinds}"
        log.warning(f"{setting}: {read}; only {', '.join(KNOWN)} are read")
    return inside
