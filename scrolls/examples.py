"""A tokenized split of a task on disk; documents with several questions are stored once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from scrolls.prompts import BUDGETS, Prompts
from scrolls.rows import Row, read_rows
from scrolls.sources import find
from scrolls.tasks import TASKS, Split, Task
from tape.data.blocks import batches, token_dtype, tokenize, tokenizer_fingerprint
from tape.files import new_folder, read_or_discard
from tape.names import check_path, look_up

TEXTS = ("documents", "questions", "answers")
log = logging.getLogger(__name__)


class TokenLists:
    """Concatenated token lists in `name`.bin, with their ends in `name`.npy.

    Raises:
        ValueError, TypeError, FileNotFoundError: if they are damaged.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, vocabulary: int):
        self.ends = np.load(folder / f"{name}.npy", allow_pickle=False)
        path, size = folder / f"{name}.bin", dtype.itemsize * int(self.ends[-1])
        if path.stat().st_size != size or (self.lengths() < 0).any():
            raise ValueError(f"{path} changed after it was written")
        self.tokens = np.memmap(path, dtype, "r") if size else None
        if size and self.tokens.max() >= vocabulary:
            raise ValueError(f"{path} has tokens beyond those of the tokenizer")

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def __getitem__(self, index: int) -> np.ndarray:
        start, end = (self.ends[index - 1] if index else 0), self.ends[index]
        return np.empty(0, np.int64) if start == end else self.tokens[start:end]


class _Writer:
    """Writes token lists one at a time."""

    def __init__(self, folder: Path, name: str):
        self.target, self.file = folder / f"{name}.npy", (folder / f"{name}.bin").open("wb")
        self.ends: list[int] = []

    def add(self, tokens: np.ndarray) -> int:
        """Appends a list and returns its number."""
        self.file.write(tokens)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(tokens))
        return len(self.ends) - 1

    def close(self) -> None:
        self.file.close()
        np.save(self.target, np.array(self.ends, dtype=np.int64), allow_pickle=False)


@dataclass(frozen=True)
class Examples:
    """The rows of a split, in file order.

    Attributes:
        ids: of each row.
        document: number of each row's document; rows may share one.
        documents, questions, answers: tokens; the latter two per row.
        fingerprint: of the file and the tokenizer.
    """

    ids: list[str]
    document: np.ndarray
    documents: TokenLists
    questions: TokenLists
    answers: TokenLists
    fingerprint: str

    def first_rows(self) -> list[int]:
        """Returns the first row of each id, in file order."""
        first: dict[str, int] = {}
        for row, id_ in enumerate(self.ids):
            first.setdefault(id_, row)
        return list(first.values())

    def questions_spread(self, count: int | None) -> list[int]:
        """Returns the first rows of `count` ids, spread evenly over the file; None: of all ids."""
        rows = self.first_rows()
        if count is None or count >= len(rows):
            return rows
        return [rows[place] for place in np.linspace(0, len(rows) - 1, count).astype(int)]

    def check(self, prompts: Prompts) -> None:
        """Raises a ValueError that names an id whose question leaves no room for the document."""
        row = int(self.questions.lengths().argmax())
        try:
            prompts.check(self.questions[row])
        except ValueError as error:
            raise ValueError(f"id {self.ids[row]!r}: {error}") from error

    def prompt(self, row: int, prompts: Prompts) -> np.ndarray:
        return prompts.prompt(self.questions[row], self.documents[self.document[row]])

    def example(self, row: int, prompts: Prompts) -> tuple[np.ndarray, np.ndarray]:
        document = self.documents[self.document[row]]
        return prompts.example(self.questions[row], document, self.answers[row])


@dataclass(frozen=True)
class ScrollsData:
    """A SCROLLS task and its prompt budget.

    Args:
        task: task name.
        data_dir: folder with the official zips or their contents; None: the hub.
        budget: see `scrolls.prompts.BUDGETS`.

    Raises:
        ValueError: for an unknown task or budget.
    """

    task: str
    data_dir: str | None = None
    budget: str = "table5"

    def __post_init__(self) -> None:
        look_up("data.task", self.task, TASKS)
        look_up("data.budget", self.budget, BUDGETS)
        if self.data_dir is not None:
            check_path("data.data_dir", self.data_dir)


def tokenize_split(
    task: Task,
    split: Split,
    data_dir: Path | None,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompts,
    cache: Path,
) -> Examples:
    """Returns the tokens of a split, cached on disk. Uses all cores.

    Raises:
        ValueError, FileNotFoundError: if rows are missing or invalid.
    """
    source = find(task, split, data_dir, cache)
    content = " ".join(
        (task.name, split, source.identity(), prompts.tail_text, tokenizer_fingerprint(tokenizer))
    )
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = cache / "scrolls" / fingerprint
    read = partial(_read, tokenizer)
    examples = read_or_discard(folder, read)
    if examples is None:
        with new_folder(folder) as work:
            rows = tqdm(
                read_rows(source, task, split),
                desc=f"tokenizing {task.name} ({split})",
                unit="row",
                disable=None,
            )
            _write(rows, tokenizer, prompts, work)
        examples = read(folder)
    return examples


def _read(tokenizer: PreTrainedTokenizerBase, folder: Path) -> Examples:
    """Reads examples written by `_write`.

    Raises:
        ValueError, LookupError, TypeError, FileNotFoundError: if they are damaged.
    """
    facts = json.loads((folder / "rows.json").read_text())
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    documents, questions, answers = (
        TokenLists(folder, name, token_dtype(tokenizer), vocabulary) for name in TEXTS
    )
    ids, document = facts["ids"], np.array(facts["document"], dtype=np.int64)
    if {len(ids), len(document), len(answers)} != {len(questions)}:
        raise ValueError("its files have different rows")
    if set(document.tolist()) != set(range(len(documents))):
        raise ValueError("its rows refer to other documents")
    return Examples(ids, document, documents, questions, answers, folder.name)


def _write(
    rows: Iterator[Row], tokenizer: PreTrainedTokenizerBase, prompts: Prompts, folder: Path
) -> None:
    writers = {name: _Writer(folder, name) for name in TEXTS}
    numbers: dict[bytes, int] = {}  # of documents, by their hashes
    ids: list[str] = []
    document: list[int] = []
    for batch in batches(rows):
        new: dict[bytes, str] = {}
        hashes = [hashlib.sha256(row.document.encode()).digest() for row in batch]
        for row, digest in zip(batch, hashes, strict=True):
            if digest not in numbers:
                new[digest] = row.document
        for digest, tokens in zip(new, tokenize(tokenizer, [*new.values()]), strict=True):
            numbers[digest] = writers["documents"].add(tokens)
        for tokens in tokenize(tokenizer, [row.question for row in batch]):
            writers["questions"].add(tokens)
        for tokens in prompts.answers([row.output or "" for row in batch]):
            writers["answers"].add(tokens)
        ids += [row.id for row in batch]
        document += [numbers[digest] for digest in hashes]
    for writer in writers.values():
        writer.close()
    facts = {"dtype": token_dtype(tokenizer).name, "ids": ids, "document": document}
    (folder / "rows.json").write_text(json.dumps(facts))
