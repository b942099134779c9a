"""English prose from fixed versions of public packages, the same bytes on every machine."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from tape.core.files import new_folder, reading, sha256_of
from tape.core.progress import track
from tape.core.validation import check_path
from tape.data.corpora import Corpus, Split, fraction
from tape.data.debian import files_of
from tape.data.duplicates import distinct
from tape.data.fetch import fetch

TABLE = Path(__file__).with_name("english.yaml")
VARIABLE = "ENGLISH_PACKAGES"  # folder with the packages' files
SHARES: dict[Split, float] = {"test": 0.06, "validation": 0.10, "train": 1.0}  # cumulative
LEAST = 1_000  # characters of a document
LOST = 0.5  # share of a document's characters that may be duplicates; with more it is left out
Document = tuple[str, list[str]]  # name and paragraphs


class EnglishCorpus(Corpus):
    """Books and manuals (docs/english.md), built on first use. A document's split is chosen by a
    hash of its name. Learning rates are chosen on the validation split; the test split is for
    results.

    Args:
        dir: folder of the built text and of what is downloaded for it; None: `english` in the
            cache, which TAPE_CACHE names. Nothing is downloaded if ENGLISH_PACKAGES names a folder
            with the packages' files.
        table: the packages, in the form of english.yaml beside this file, which is the default.

    Raises:
        ValueError: if a file has another SHA-256 than the table says.
        OSError: if a file is missing and cannot be downloaded.
    """

    splits = ("train", "validation", "test")

    def __init__(
        self,
        dir: str | Path | None = None,
        table: str | Path | None = None,
        name: str = "english",
        documents: str | None = None,
    ):
        super().__init__(name, documents)
        table = check_path("data.table", table or TABLE)
        with reading(table):
            wanted = yaml.safe_load(table.read_text("utf-8"))
        key = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16]
        folder = Path(os.environ.get("TAPE_CACHE", "cache"), "english")
        folder = folder if dir is None else check_path("data.dir", dir)
        self.folder = folder / key
        if not self.folder.is_dir():
            from tape.data import prose  # its lxml is optional

            files = obtain(wanted, os.environ.get(VARIABLE), folder / "packages")
            with new_folder(self.folder) as work:
                write(work, split(documents_of(wanted, files, prose)))
        self.expected = wanted.get("sha256")
        self.fingerprint()

    def documents(self, split: Split) -> Iterator[str]:
        with (self.folder / f"{split}.jsonl").open(encoding="utf-8") as file:
            yield from (json.loads(line)["text"] for line in file)

    @cache  # noqa: B019 - a corpus lives as long as the run
    def fingerprint(self) -> str:
        sums = [sha256_of(self.folder / f"{split}.jsonl") for split in self.splits]
        found = hashlib.sha256(" ".join(sums).encode()).hexdigest()
        if self.expected not in (None, found):
            raise ValueError(
                f"{self.folder} has SHA-256 {found}, not {self.expected}: remove it, and install "
                "the version of lxml in docs/english.md if the new text differs, too"
            )
        return found

    def describe(self) -> str:
        size = sum((self.folder / f"{split}.jsonl").stat().st_size for split in self.splits)
        return f"{self.name}: {size:,} bytes in {self.folder}, sha256 {self.fingerprint()[:16]}"


def obtain(table: dict[str, Any], have: str | None, cache: Path) -> list[Path]:
    """Returns the file of each package, from a folder that has all of them, or downloaded."""
    try:
        if have:
            return [find(source, Path(have)) for source in table["packages"]]
        files = [(source["file"], source["sha256"]) for source in table["packages"]]
        return [fetch(f"{table['address']}/{x}", y, cache / Path(x).name) for x, y in files]
    except OSError as error:
        named = " ".join(f"{source['name']}={source['version']}" for source in table["packages"])
        remedy = f"put the files of these Debian packages into a folder and set {VARIABLE} to it"
        raise FileNotFoundError(f"{error}; {remedy}: {named}") from error


def find(source: dict[str, str], folder: Path) -> Path:
    """Returns a package's file in a folder; apt-get names it differently than the archive does if
    the version has an epoch."""
    for path in sorted(folder.glob(f"{source['name']}_*.deb")):
        if sha256_of(path) == source["sha256"]:
            return path
    what = f"{source['name']}_*.deb of version {source['version']}"
    raise FileNotFoundError(f"{folder} has no {what} with SHA-256 {source['sha256']}")


def documents_of(table: dict[str, Any], files: list[Path], prose: ModuleType) -> Iterator[Document]:
    for source, file in zip(table["packages"], track(files, desc="reading English"), strict=True):
        with reading(file):
            chosen = {n: x for n, x in files_of(file) if re.search(source["members"], n)}
            for name, texts in prose.FORMATS[source["format"]](chosen):
                yield f"{source['name']}/{name}", prose.paragraphs(texts)


def split(documents: Iterator[Document]) -> dict[Split, list[Document]]:
    """Returns the documents of each split, sorted by name, without near-duplicates."""
    by_split: dict[Split, list[Document]] = {name: [] for name in SHARES}
    for document in sorted(documents):
        number = fraction(document[0])
        by_split[next(name for name, most in SHARES.items() if number < most)].append(document)
    found = {name: [] for name in SHARES}
    marks = iter(distinct([x for each in by_split.values() for _, texts in each for x in texts]))
    for name, each in by_split.items():
        for title, texts in each:
            kept = [text for text in texts if next(marks)]
            size, before = sum(map(len, kept)), sum(map(len, texts))
            if size >= max(LEAST, LOST * before):
                found[name].append((title, kept))
    return found


def write(folder: Path, documents: dict[Split, list[Document]]) -> None:
    for name, each in documents.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            for title, texts in each:
                row = {"name": title, "text": "\n\n".join(texts)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
