"""Tokens of prompts and answers, the same in training and generation:

    [BOS if the tokenizer adds it]  question  document  "\n\nAnswer:"   " " answer  EOS

A budget bounds the tokens of prompt and answer. The document is truncated at its end to fit the
prompt's budget; the question and the room for the answer are never reduced.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from scrolls.rows import Row, Split, find, identity, read_rows, spread
from scrolls.tasks import BUDGETS, TASKS, Budget, Task
from tape.core.files import new_folder, read_object, read_or_discard
from tape.core.progress import track
from tape.core.validation import look_up
from tape.data.blocks import batches, check_unknown, token_dtype, tokenize, tokenizer_fingerprint
from tape.model.loss import IGNORED

TAILS = {"answer": "\n\nAnswer:", "summary": "\n\nSummary:"}
TRAINED_FOR = "scrolls.json"  # in the folder of a fine-tuned model: its task and budget
ROWS = "rows.arrow"


def trained_for(folder: Path, what: Literal["task", "budget"]) -> str:
    """Returns the name of the task or the budget that a model was fine-tuned on."""
    file = folder / TRAINED_FOR
    name = read_object(file).get(what) if file.is_file() else None
    if name not in [*{"task": TASKS, "budget": BUDGETS}[what]]:
        raise ValueError(
            f"{file} names no {what} of a fine-tuning: give a run of a task, or {what}="
        )
    return name


@dataclass(frozen=True)
class ScrollsData:
    """A task of SCROLLS, the folder with the official zips or their contents (None: see `find`),
    and the name of a budget."""

    task: str
    data_dir: str | None = None
    budget: str = "table5"

    def __post_init__(self) -> None:
        look_up("data.task", self.task, TASKS)
        look_up("data.budget", self.budget, BUDGETS)


class Prompts:
    """The template and the budget of a task's prompts, as tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: Task, budget: Budget):
        self.tokenizer, self.task, self.budget = tokenizer, task, budget
        self.dtype, self.tail_text = token_dtype(tokenizer), TAILS[task.kind]
        self.start = np.array(tokenizer("")["input_ids"], dtype=np.int64)
        if len(self.start) and self.start[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
            self.start = self.start[:-1]  # some tokenizers also end every text
        self.tail = tokenize(tokenizer, [self.tail_text])[0]

    def tokenized(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Returns rows of `Examples.table`."""
        texts = [*dict.fromkeys(row.document for row in rows)]  # with many questions each
        documents = dict(zip(texts, tokenize(self.tokenizer, texts), strict=True))
        questions = tokenize(self.tokenizer, [row.question for row in rows])
        endings = [f"{self.tail_text} {(row.output or '').strip()}" for row in rows]
        endings, end = tokenize(self.tokenizer, endings), len(self.tail)
        found = []
        for row, question, ending in zip(rows, questions, endings, strict=True):
            if not np.array_equal(ending[:end], self.tail):
                raise ValueError(f"this tokenizer merges {self.tail_text!r} with the text after it")
            fixed, most = len(self.start) + len(question) + end, self.budget.prompt
            if fixed >= most:
                raise ValueError(
                    f"id {row.id!r}: no room for the document: the question and the template take "
                    f"{fixed:,} of the prompt's {most:,} tokens; use a larger budget=..."
                )
            document = documents[row.document]
            prompt = np.concatenate((self.start, question, document[: most - fixed], self.tail))
            prompt, answer = prompt.astype(self.dtype), ending[end:].astype(self.dtype)
            length = len(question) + len(document)
            found.append({"id": row.id, "prompt": prompt, "answer": answer, "length": length})
        return found


class Examples(Dataset):
    """The tokenized rows of a split, in file order, as inputs and labels of a causal model. A row
    of the table has its `id`, the tokens of `prompt`, within the budget, and of `answer`, whole,
    and the `length` of the question and the whole document in tokens."""

    def __init__(self, table: pa.Table, prompts: Prompts, fingerprint: str):
        self.table, self.prompts, self.fingerprint = table, prompts, fingerprint
        self.ids: list[str] = table["id"].to_pylist()
        self.lengths = table["length"].to_numpy()

    def questions_spread(self, count: int | None) -> list[int]:
        """Returns the first rows of `count` ids, spread evenly over the file; None: of all ids."""
        return spread(pd.Series(self.ids).drop_duplicates().index.tolist(), count)

    def tokens(self, column: str, row: int) -> np.ndarray:
        """Returns the tokens of a prompt or an answer, (T,) int64."""
        return self.table[column][row].values.to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        """Returns tokens and labels, (T,) int64 each: answer and EOS are predicted. A truncated
        answer has no EOS."""
        prompt, answer = self.tokens("prompt", row), self.tokens("answer", row)
        if len(answer) <= self.prompts.budget.answer:
            answer = np.append(answer, self.prompts.tokenizer.eos_token_id)
        else:
            answer = answer[: self.prompts.budget.answer]
        labels = np.append(np.full_like(prompt, IGNORED), answer)
        ids = np.append(prompt, answer)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


def tokenize_split(prompts: Prompts, split: Split, data_dir: Path | None, cache: Path) -> Examples:
    """Returns the tokens of a split, cached on disk. Uses all cores."""
    task, tokenizer = prompts.task, prompts.tokenizer
    source = find(task, split, data_dir, cache)
    content = f"{task.name} {split} {identity(source)} {prompts.tail_text}"
    content += f" {tokenizer_fingerprint(tokenizer)}"
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
    folder = cache / "scrolls" / f"{fingerprint}-{prompts.budget.prompt}"
    tokens = pa.list_(pa.from_numpy_dtype(prompts.dtype))
    columns = {"id": pa.string(), "prompt": tokens, "answer": tokens, "length": pa.int64()}
    schema = pa.schema(columns)
    table = read_or_discard(folder, partial(_read, schema))
    if table is None:
        title = f"tokenizing {task.name} ({split})"
        rows = track(read_rows(source, task, split), desc=title, unit="row")
        with new_folder(folder) as work, pa.ipc.new_file(str(work / ROWS), schema) as file:
            for batch in batches(rows):
                file.write_batch(pa.RecordBatch.from_pylist(prompts.tokenized(batch), schema))
        table = _read(schema, folder)
    parts = (p.values.to_numpy() for name in ("prompt", "answer") for p in table[name].chunks)
    check_unknown(tokenizer, f"{task.name} ({split})", parts)
    return Examples(table, prompts, fingerprint)


def _read(schema: pa.Schema, folder: Path) -> pa.Table:
    """Maps the tokens of a split into memory; raises a ValueError if they are damaged."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(folder / ROWS))).read_all()
    except OSError as error:
        raise ValueError(str(error)) from error
    table.validate(full=True)
    if table.schema != schema:
        raise ValueError("it has other columns")
    return table
