"""Questions of an evaluation: every pair of operand lengths, in batches.

Prompts of a batch are equally long, so that nothing is padded: cells (n, m) and (k, l) with
n + m = k + l are decoded together.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import NamedTuple

from arithmetic.problems import Problems

MOST = 10**7  # questions


class Question(NamedTuple):
    """One problem of the cell (n, m): the lengths of its first and second operand."""

    n: int
    m: int
    prompt: str
    answer: str


class Batch(NamedTuple):
    """Questions that are decoded together."""

    questions: list[Question]
    new_tokens: int  # of the longest answer of these cells, with EOS
    length: int  # tokens of the longest text that begins with so long a prompt, in the whole grid
    problems: Problems  # as the model learned them

    @property
    def cost(self) -> int:
        """Tokens to run, roughly proportional to time."""
        return len(self.questions) * (len(self.questions[0].prompt) + self.new_tokens)

    @property
    def positions(self) -> int:
        """Number of positions of its longest text."""
        if self.problems.abacus_offset is None:
            return self.length
        digits = max(max(question.n, question.m) for question in self.questions)
        return max(digits, self.new_tokens - 1) + 1


def plan(
    problems: Problems, max_length: int, samples: int, seed: int, batch_size: int
) -> list[Batch]:
    """Returns all questions of the grid 1..max_length x 1..max_length in batches, the costliest
    first: if memory is short, it shows at once.

    Raises:
        ValueError: for more than `MOST` questions.
    """
    if (asked := max_length**2 * samples) > MOST:
        raise ValueError(
            f"max_length={max_length} and samples={samples} are {asked:,} problems; at most "
            f"{MOST:,} are allowed"
        )
    groups: dict[int, list[Question]] = defaultdict(list)
    for n, m in product(range(1, max_length + 1), repeat=2):
        for prompt, answer in problems.evaluation(n, m, samples, seed):
            groups[len(prompt)].append(Question(n, m, prompt, answer))

    each = 2 if problems.spaces else 1

    def tokens(question: Question) -> int:
        return each * problems.answer_width(question.n, question.m) + 1

    batches = []
    for prompt, group in groups.items():
        group.sort(key=tokens)  # stable: cells stay together
        for first in range(0, len(group), batch_size):
            questions = group[first : first + batch_size]
            length = prompt + tokens(group[-1])
            batches.append(Batch(questions, tokens(questions[-1]), length, problems))
    return sorted(batches, key=lambda batch: -batch.cost)
