"""A tokenized split of a task on disk; documents with several questions are stored once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from scrolls.prompts import BUDGETS, Prompts
from scrolls.rows import Row, read_rows
from scrolls.sources import find, identity
from scrolls.tasks import TASKS, Split, Task
from tape.data.blocks import (
    batches,
    check_unknown,
    token_dtype,
    tokenize,
    tokenizer_fingerprint,
)
from tape.data.tokenizer import vocabulary_size
from tape.files import new_folder, read_or_discard
from tape.validation import check_path, look_up

TEXTS = ("documents", "questions", "answers")


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
        return pd.Series(self.ids).drop_duplicates().index.tolist()

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
        data_dir: folder with the official zips or their contents; None: see `scrolls.sources.find`.
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
        (task.name, split, identity(source), prompts.tail_text, tokenizer_fingerprint(tokenizer))
    )
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = cache / "scrolls" / fingerprint
    examples = read_or_discard(folder, partial(_read, tokenizer))
    if examples is None:
        title = f"tokenizing {task.name} ({split})"
        rows = tqdm(read_rows(source, task, split), title, unit="row", disable=None)
        with new_folder(folder) as work:
            _write(rows, tokenizer, prompts, work)
        examples = _read(tokenizer, folder)
    lists = (getattr(examples, name).tokens for name in TEXTS)
    parts = [tokens for tokens in lists if tokens is not None]
    check_unknown(tokenizer, f"{task.name} ({split})", parts)
    return examples


def _read(tokenizer: PreTrainedTokenizerBase, folder: Path) -> Examples:
    """Reads examples written by `_write`.

    Raises:
        ValueError, LookupError, TypeError, FileNotFoundError: if they are damaged.
    """
    facts = json.loads((folder / "rows.json").read_text())
    vocabulary = vocabulary_size(tokenizer)
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
    lengths: dict[str, list[int]] = {name: [] for name in TEXTS}
    numbers: dict[bytes, int] = {}  # of documents, by their hashes
    ids: list[str] = []
    document: list[int] = []
    dtype = token_dtype(tokenizer)
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / f"{name}.bin").open("wb")) for name in TEXTS}
        for batch in batches(rows):
            hashes = [hashlib.sha256(row.document.encode()).digest() for row in batch]
            texts = {digest: row.document for digest, row in zip(hashes, batch, strict=True)}
            new = [digest for digest in texts if digest not in numbers]
            numbers |= {digest: len(numbers) + n for n, digest in enumerate(new)}
            found = (
                tokenize(tokenizer, [texts[digest] for digest in new]),
                tokenize(tokenizer, [row.question for row in batch]),
                prompts.answers([row.output or "" for row in batch]),
            )
            for name, lists in zip(TEXTS, found, strict=True):
                files[name].writelines(tokens.astype(dtype) for tokens in lists)
                lengths[name] += map(len, lists)
            ids += [row.id for row in batch]
            document += [numbers[digest] for digest in hashes]
    for name, found in lengths.items():
        np.save(folder / f"{name}.npy", np.cumsum(found, dtype=np.int64), allow_pickle=False)
    facts = {"dtype": dtype.name, "ids": ids, "document": document}
    (folder / "rows.json").write_text(json.dumps(facts))
