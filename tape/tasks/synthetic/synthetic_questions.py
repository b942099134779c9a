"""Questions by length, and teacher-forced scoring of their answers.

Greedy decoding gives the right answer exactly if every token of it is the most probable one after
the right tokens before it: one forward pass scores all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from tape.evaluation.questions import Answer, Batch, Question, Questions, check_count
from tape.model.modeling import TapeForCausalLM
from tape.tasks.synthetic.generators import NO_LABEL
from tape.tasks.synthetic.problems import Synthetic
from tape.tasks.synthetic.words import NAMES

TIMES = 4  # the trained length: the default longest length, where the suite has no other


def lengths_to(problems: Synthetic, longest: int | None) -> list[int]:
    """Returns the lengths of an evaluation: the longest trained length times powers of sqrt(2),
    from its half, up to `longest`; by default the suite's, or four times the trained length.

    >>> lengths_to(Synthetic("parity", 2, 20), None)
    [10, 14, 20, 28, 40, 57, 80]

    Raises:
        ValueError: if the task has no problems of length `longest`.
    """
    task, trained = problems.of, problems.max_length
    if longest is None:
        longest = task.tested if trained == task.trained else min(TIMES * trained, task.longest)
    task.check(problems.task, longest, "max_length")
    found = [round(trained * 2 ** (n / 2)) for n in range(-2, 64)]
    return sorted({*(n for n in found if problems.min_length <= n < longest), longest})


@dataclass(frozen=True)
class SyntheticQuestions(Questions):
    """
    Args:
        samples: problems of each length.
        has_reached: whether the training reached its criterion.

    Raises:
        ValueError: for more than `MOST` problems.
    """

    problems: Synthetic
    lengths: tuple[int, ...]
    samples: int
    seed: int
    has_reached: bool = True

    def __post_init__(self):
        check_count(self.samples * len(self.lengths), f"samples={self.samples}")

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[list[Question]]:
        for length in self.lengths:
            cell = length, int(self.has_reached)
            rows = zip(*self.problems.evaluation(length, self.samples, self.seed), strict=True)
            yield [Question(cell, tokens, labels, len(tokens), 0) for tokens, labels in rows]

    @torch.no_grad()
    def answers(
        self, model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase, batch: Batch
    ) -> list[Answer]:
        """Takes the most probable token wherever there is a label."""
        tokens = torch.from_numpy(np.stack([each.prompt for each in batch.questions]))
        model.eval()
        with model.evaluation_length(batch.length):
            logits = model(tokens.to(model.device), use_cache=False).logits
        pairs = zip(batch.questions, logits[:, :-1].argmax(-1).cpu().numpy(), strict=True)
        return [self.mark(question, written, tokenizer) for question, written in pairs]

    def mark(
        self, question: Question, written: np.ndarray, tokenizer: PreTrainedTokenizerBase
    ) -> Answer:
        """Marks the tokens (T - 1,) given for each but the first one of a problem."""
        is_asked = question.answer[1:] != NO_LABEL
        expected, given = question.answer[1:][is_asked], written[is_asked]
        found = int((expected == given).sum())
        right = found == len(expected)
        shown = {"expected": words(expected), "given": words(given)}
        return Answer(shown["given"], right, (1, int(right), len(expected), found), shown)


def words(tokens: np.ndarray) -> str:
    return " ".join(NAMES[n] for n in tokens)
