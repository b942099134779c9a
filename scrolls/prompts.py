"""From a question, a document and an answer to tokens, in training and in generation alike.

    [BOS, if the tokenizer begins texts with it] question  document  "\n\nAnswer:"   " " answer  EOS

A budget says how many tokens the prompt and the answer may have. The document is cut to what is
left of the prompt's, at its end; never the question nor the room for the answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from scrolls.tasks import Task
from tape.data.blocks import tokenize
from tape.names import look_up
from tape.training.trainer import IGNORED

TAILS = {"answer": "\n\nAnswer:", "summary": "\n\nSummary:"}


class Budget(NamedTuple):
    """Tokens of the prompt, question and all, and of the answer without EOS."""

    prompt: int
    answer: int

    @property
    def length(self) -> int:
        return self.prompt + self.answer + 1


# paper8k and table5 are the paper's, from its script and from its Table 5; demo is for a trial.
BUDGETS = {
    "paper8k": {"answer": Budget(7991, 200), "summary": Budget(7191, 1000)},
    "table5": {"answer": Budget(823, 200), "summary": Budget(767, 256)},
    "demo": {"answer": Budget(223, 32), "summary": Budget(191, 64)},
}


TRAINED_FOR = "scrolls.json"  # in the folder of a fine-tuned model: the task and the budget


def trained_budget(folder: Path) -> str:
    """The name of the budget that a model was fine-tuned with.

    Raises:
        ValueError: if it was not fine-tuned on a task, or the file that tells is damaged.
    """
    if not (folder / TRAINED_FOR).is_file():
        raise ValueError(
            f"{folder} has no {TRAINED_FOR}: it was not fine-tuned on a task; give budget=..."
        )
    try:
        return json.loads((folder / TRAINED_FOR).read_text())["budget"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{folder / TRAINED_FOR} is damaged ({error}): give budget=..., as in the training"
        ) from error


def budget_of(name: str, task: Task) -> Budget:
    """Raises a ValueError that lists the budgets, if there is none of this name."""
    return look_up("budget", name, BUDGETS)[task.kind]


class Prompts:
    """Puts a task's prompts together, of tokens.

    Raises:
        ValueError: if the tokenizer would not separate the prompt's end from an answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, task: Task, budget: Budget):
        self.tokenizer, self.budget = tokenizer, budget
        self.tail_text = TAILS[task.kind]
        self.start = np.array(tokenizer("")["input_ids"], dtype=np.int64)
        if len(self.start) and self.start[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
            self.start = self.start[:-1]  # some tokenizers also end every text
        self.tail = tokenize(tokenizer, [self.tail_text])[0]

    def answers(self, texts: list[str]) -> list[np.ndarray]:
        """The tokens of answers, as they follow a prompt."""
        texts = [f"{self.tail_text} {text.strip()}" for text in texts]
        whole, end = tokenize(self.tokenizer, texts), len(self.tail)
        for tokens in whole:
            if not np.array_equal(tokens[:end], self.tail):
                raise ValueError(f"this tokenizer joins {self.tail_text!r} with what follows it")
        return [tokens[end:] for tokens in whole]

    def check(self, question: np.ndarray) -> None:
        """Raise a ValueError unless a document has room beside the question."""
        fixed = len(self.start) + len(question) + len(self.tail)
        if fixed >= self.budget.prompt:
            raise ValueError(
                f"no room for the document: the question and what is fixed take {fixed:,} of the "
                f"prompt's {self.budget.prompt:,} tokens; take a larger budget=..."
            )

    def prompt(self, question: np.ndarray, document: np.ndarray) -> np.ndarray:
        """(T,) tokens, not more than the budget's, int64."""
        room = self.budget.prompt - len(self.start) - len(question) - len(self.tail)
        return np.concatenate((self.start, question, document[:room], self.tail), dtype=np.int64)

    def example(
        self, question: np.ndarray, document: np.ndarray, answer: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels, (T,) int64 each: the answer and EOS are learned. An answer that is
        too long ends without EOS, which does not follow there."""
        prompt = self.prompt(question, document)
        if len(answer) <= self.budget.answer:
            answer = np.append(answer, self.tokenizer.eos_token_id)
        else:
            answer = answer[: self.budget.answer]
        ids = np.concatenate((prompt, answer), dtype=np.int64)
        labels = ids.copy()
        labels[: len(prompt)] = IGNORED
        return ids, labels
