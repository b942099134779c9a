"""Questions of an evaluation: every pair of operand lengths, in batches.

Prompts of a batch are equally long, so that nothing is padded: cells (n, m) and (k, l) with
n + m = k + l are decoded together.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import NamedTuple

from arithmetic.problems import Problems
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.positions.abacus import Abacus

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
        return each * (problems.answer_width(question.n, question.m) + 1)  # with EOS

    batches = []
    for prompt, group in groups.items():
        group.sort(key=tokens)  # stable: cells stay together
        for first in range(0, len(group), batch_size):
            questions = group[first : first + batch_size]
            length = prompt + tokens(group[-1])
            batches.append(Batch(questions, tokens(questions[-1]), length, problems))
    return sorted(batches, key=lambda batch: -batch.cost)


def check_positions(
    model: TapeForCausalLM,
    problems: Problems,
    cell: tuple[int, int],
    length: int,
    purpose: str,
    training: bool = False,
) -> None:
    """Raises a ValueError if the model's encoding has fewer positions than the problems of cells up
    to this one need: `length` tokens, or with Abacus a row per digit of a number, and for offsets
    in training."""
    encoding = model.base_model.position
    if not isinstance(encoding, Abacus):
        check_length(model, length, purpose)
        return
    if problems.spaces:
        raise ValueError(
            f"data.spaces={problems.spaces} with position=abacus: a space would end a number; set "
            "it to 0 or take another encoding"
        )
    needed = problems.digits(*cell) + (encoding.offset if training else 0) + 1
    check_length(model, needed, purpose, len(encoding.table))
