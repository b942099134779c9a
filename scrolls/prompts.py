"""Tokens of a prompt and its answer, in training and generation alike:

    [BOS if the tokenizer adds it]  question  document  "\n\nAnswer:"   " " answer  EOS

A budget bounds the tokens of prompt and answer. The document is truncated at its end to fit the
prompt's budget; the question and the room for the answer are never reduced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from scrolls.tasks import Task
from tape.data.blocks import tokenize
from tape.training.trainer import IGNORED
from tape.validation import look_up

TAILS = {"answer": "\n\nAnswer:", "summary": "\n\nSummary:"}


class Budget(NamedTuple):
    """Tokens of the prompt, including the question, and of the answer without EOS."""

    prompt: int
    answer: int

    @property
    def length(self) -> int:
        return self.prompt + self.answer + 1


# paper8k and table5 are the paper's (its script, its Table 5); demo is for trying things out.
BUDGETS = {
    "paper8k": {"answer": Budget(7991, 200), "summary": Budget(7191, 1000)},
    "table5": {"answer": Budget(823, 200), "summary": Budget(767, 256)},
    "demo": {"answer": Budget(223, 32), "summary": Budget(191, 64)},
}


TRAINED_FOR = "scrolls.json"  # in the folder of a fine-tuned model: its task and budget


def trained_budget(folder: Path) -> str:
    """Returns the name of the budget that a model was fine-tuned with.

    Raises:
        ValueError: if it was not fine-tuned on a task, or its record is damaged.
    """
    if not (folder / TRAINED_FOR).is_file():
        raise ValueError(
            f"{folder} has no {TRAINED_FOR}: it was not fine-tuned on a task; give budget=..."
        )
    try:
        return json.loads((folder / TRAINED_FOR).read_text())["budget"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{folder / TRAINED_FOR} is damaged ({error}): give budget=..., as in training"
        ) from error


def budget_of(name: str, task: Task) -> Budget:
    """Returns a budget by name; raises a ValueError that lists the known ones."""
    return look_up("budget", name, BUDGETS)[task.kind]


class Prompts:
    """Assembles the tokens of a task's prompts.

    Raises:
        ValueError: if the tokenizer merges the end of a prompt with its answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: Task, budget: Budget):
        self.tokenizer, self.budget = tokenizer, budget
        self.tail_text = TAILS[task.kind]
        self.start = np.array(tokenizer("")["input_ids"], dtype=np.int64)
        if len(self.start) and self.start[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
            self.start = self.start[:-1]  # some tokenizers also end every text
        self.tail = tokenize(tokenizer, [self.tail_text])[0]

    def answers(self, texts: list[str]) -> list[np.ndarray]:
        """Returns the tokens of answers as they follow a prompt."""
        texts = [f"{self.tail_text} {text.strip()}" for text in texts]
        whole, end = tokenize(self.tokenizer, texts), len(self.tail)
        for tokens in whole:
            if not np.array_equal(tokens[:end], self.tail):
                raise ValueError(f"this tokenizer merges {self.tail_text!r} with the text after it")
        return [tokens[end:] for tokens in whole]

    def check(self, question: np.ndarray) -> None:
        """Raises a ValueError unless there is room for a document."""
        fixed = len(self.start) + len(question) + len(self.tail)
        if fixed >= self.budget.prompt:
            raise ValueError(
                f"no room for the document: the question and the template take {fixed:,} of the "
                f"prompt's {self.budget.prompt:,} tokens; use a larger budget=..."
            )

    def prompt(self, question: np.ndarray, document: np.ndarray) -> np.ndarray:
        """Returns the prompt's tokens within the budget, (T,) int64."""
        room = self.budget.prompt - len(self.start) - len(question) - len(self.tail)
        return np.concatenate((self.start, question, document[:room], self.tail), dtype=np.int64)

    def example(
        self, question: np.ndarray, document: np.ndarray, answer: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and labels, (T,) int64 each: answer and EOS are predicted. A truncated
        answer has no EOS."""
        prompt = self.prompt(question, document)
        if len(answer) <= self.budget.answer:
            answer = np.append(answer, self.tokenizer.eos_token_id)
        else:
            answer = answer[: self.budget.answer]
        ids = np.concatenate((prompt, answer), dtype=np.int64)
        labels = ids.copy()
        labels[: len(prompt)] = IGNORED
        return ids, labels
