"""Questions by length, and teacher-forced scoring of their answers.

Greedy decoding gives the right answer exactly if every token of it is the most probable one after
the right tokens before it: one forward pass scores all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from tape.model.modeling import TapeForCausalLM
from tape.tasks.synthetic.generators import NO_LABEL
from tape.tasks.synthetic.problems import Synthetic

TIMES = 4  # the trained length: the default longest length, where the suite has no other
MOST = 10**6  # problems of an evaluation


class Batch(NamedTuple):
    """Problems of one length, with their tokens and labels (B, T)."""

    length: int
    tokens: np.ndarray
    labels: np.ndarray

    @property
    def cost(self) -> int:
        """Tokens to run."""
        return self.tokens.size


class Score(NamedTuple):
    """Counts of one problem: right tokens of the answer, all its tokens; the tokens given."""

    right: int
    asked: int
    given: list[int]


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


def plan(
    problems: Synthetic, lengths: list[int], samples: int, seed: int, batch_tokens: int
) -> list[Batch]:
    """Returns `samples` problems of each length in batches of about `batch_tokens` tokens, the
    costliest first: if memory is short, it shows at once.

    Raises:
        ValueError: for more than `MOST` problems.
    """
    if (asked := samples * len(lengths)) > MOST:
        raise ValueError(f"samples={samples}: {asked:,} problems; at most {MOST:,} are allowed")
    batches = []
    for length in lengths:
        tokens, labels = problems.evaluation(length, samples, seed)
        size = max(1, batch_tokens // tokens.shape[1])
        for first in range(0, samples, size):
            part = slice(first, first + size)
            batches.append(Batch(length, tokens[part], labels[part]))
    return sorted(batches, key=lambda batch: -batch.cost)


@torch.no_grad()
def score(
    model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase | None, batch: Batch
) -> list[Score]:
    """Scores the most probable token wherever there is a label."""
    model.eval()
    with model.evaluation_length(batch.tokens.shape[1]):
        logits = model(torch.from_numpy(batch.tokens).to(model.device), use_cache=False).logits
    given = logits[:, :-1].argmax(-1).cpu().numpy()
    labels = batch.labels[:, 1:]
    is_asked = labels != NO_LABEL
    right = (given == labels) & is_asked
    return [
        Score(int(right[n].sum()), int(is_asked[n].sum()), given[n][is_asked[n]].tolist())
        for n in range(len(given))
    ]
