"""Addition: training on generated problems, the questions of an evaluation, and the grid of
accuracies by the digits of both operands.

Prompts of a group are equally long, so that nothing is padded: cells (n, m) and (k, l) with
n + m = k + l are decoded together.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from transformers import PreTrainedTokenizerBase

from arithmetic import TASK
from arithmetic.problems import Problems
from tape.encodings.abacus import Abacus
from tape.evaluation.accuracy import Accuracy, Measure
from tape.evaluation.questions import Answer, Question, Questions
from tape.evaluation.view import PERCENT, Asked, Column, HeatMap, View, Where
from tape.model.checkpoint import check_length
from tape.tasks.generated import GeneratedTask

HEAT = HeatMap(
    down="first_digits",
    across="second_digits",
    labels=("digits of the first operand", "digits of the second operand"),
    trained=lambda asked: (asked["problems.max_first"], asked["problems.max_second"]),
)


def _beyond(asked: Asked) -> Where:
    return lambda rows: ~HEAT.within(asked, rows)


def _diagonal(rows: pd.DataFrame) -> pd.Series:
    first = rows["first_digits"]
    return first.where(first == rows["second_digits"]).rename("n")


VIEW = View(
    keys=("max_length", "samples", "seed", "problems.max_first", "problems.max_second"),
    columns=lambda asked, rows: [
        Column("trained lengths, %", "accuracy", PERCENT, partial(HEAT.within, asked[0])),
        Column("beyond them, %", "accuracy", PERCENT, _beyond(asked[0]), "beyond"),
        Column("whole grid, %", "accuracy", PERCENT),
    ],
    best=_beyond,
    heatmap=HEAT,
)
GRID = Accuracy(
    file="grid.csv",
    cell={"n": "first_digits", "m": "second_digits"},
    counts=("correct", "total"),
    measures={"accuracy": Measure("correct", "total")},
    view=VIEW,
    listing="diagonal",
    listed=_diagonal,
)


@dataclass(frozen=True)
class GridQuestions(Questions):
    """`samples` problems of every cell (n, m) up to `max_length` digits."""

    problems: Problems
    max_length: int
    samples: int
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        asked = asdict(self)
        problems = asked.pop("problems")
        return {f"problems.{name}": value for name, value in problems.items()} | asked

    def check(self, model, batches, purpose=""):
        """Abacus and position coupling have a row for each digit of a number, others for tokens."""
        encoding = model.base_model.position
        if not isinstance(encoding, Abacus):
            super().check(model, batches, purpose)
            return
        moved = max(self.problems.trained) + encoding.offset  # in training
        needed = max(moved, self.max_length) + 2  # with the carry, and 0 between numbers
        check_length(model, needed, f"{purpose}max_length={self.max_length}", len(encoding.table))

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Collection[list[Question]]:
        groups: dict[int, list[Question]] = defaultdict(list)
        for n, m in product(range(1, self.max_length + 1), repeat=2):
            room = max(n, m) + 2  # with EOS
            for prompt, answer in self.problems.evaluation(n, m, self.samples, self.seed):
                question = Question((n, m), prompt, answer, len(prompt), room)
                groups[len(prompt)].append(question)
        return groups.values()

    def mark(self, question, written, tokenizer):
        """An answer is right if it matches in full and ends."""
        text = tokenizer.decode(written, clean_up_tokenization_spaces=False)
        expected = question.answer + tokenizer.eos_token
        shown = {"prompt": question.prompt, "expected": expected, "given": text}
        return Answer(text == expected, (int(text == expected), 1), shown)


class ArithmeticTask(GeneratedTask):
    """The questions are `samples` problems of each cell up to twice the trained lengths."""

    kind = Problems
    record = TASK
    unit = "problems"
    results = GRID

    def questions(self, samples):
        return [GridQuestions(self.source, 2 * max(self.source.trained), samples)]

    @staticmethod
    def asked(given, folder, model):
        problems = Problems.load(folder)
        longest = given.max_length or 2 * max(problems.trained)
        return GridQuestions(problems, longest, given.samples, given.seed), "grid"
