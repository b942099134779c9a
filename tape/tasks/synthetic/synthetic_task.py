"""Synthetic problems: training to a criterion, questions of every length, accuracy by length.

Greedy decoding gives the right answer exactly if every token of it is the most probable one after
the right tokens before it: one forward pass scores all of them. `accuracy` is the share of problems
whose whole answer is right, and `tokens` that of the answers' tokens. The condition `reached` is 1
if the training reached its criterion, else 0: comparisons average accuracies of the former only,
and count the latter as failed.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from tape.core.metrics import MetricsFile, read_metrics
from tape.core.provenance import TRAINED
from tape.core.run_folder import read_configuration
from tape.core.validation import check_integer
from tape.encodings.abacus import Abacus
from tape.evaluation.accuracy import Accuracy, Measure, ratio
from tape.evaluation.questions import Answer, Question, Questions
from tape.evaluation.view import PERCENT, WHOLE, Asked, Column, HeatMap, Panel, View, select
from tape.model.checkpoint import check_length
from tape.model.loss import IGNORED
from tape.tasks.generated import GeneratedTask
from tape.tasks.synthetic import TASK
from tape.tasks.synthetic.problems import EVALUATION, Synthetic, in_words
from tape.training.callbacks import reached

SOLVED = 0.9  # exact match at a length that counts as solved
FOLDER = "synthetic"  # of an evaluation, in that of the run, and its kind in comparisons
INSIDE = 8  # trained lengths of a validation
TIMES = 4  # the trained length: the default longest length, where the suite has no other


def longest_solved(rows: pd.DataFrame) -> int:
    """Returns the largest length up to which each has at least 90 % exact match; 0 without one."""
    groups = select(rows, "accuracy").groupby("length")
    solved = takewhile(lambda each: ratio(each[1]) >= SOLVED, groups)
    return max((int(length) for length, _ in solved), default=0)


def learned(rows: pd.DataFrame) -> pd.Series:
    """Takes the rows of runs that reached their criterion, which comparisons average."""
    return rows["reached"] == 1


def _columns(asked: list[Asked], rows: pd.DataFrame) -> list[Column]:
    end = asked[0]["trained"]
    trained = lambda rows: (rows["length"] <= end) & learned(rows)  # noqa: E731
    twice = lambda rows: (rows["length"] == 2 * end) & learned(rows)  # noqa: E731
    return [
        Column("trained lengths, %", "accuracy", PERCENT, trained),
        Column("twice, %", "accuracy", PERCENT, twice, "twice"),
        Column("all lengths, %", "accuracy", PERCENT, learned),
        Column("effective length", "accuracy", WHOLE, learned, effective=True),
    ]


HEAT = HeatMap("reached", "length", labels=("criterion reached", "length of the problem"))
CURVE = Panel(
    lambda rows: select(rows, "accuracy", learned), "length", (HEAT.labels[1], "exact match"), "x"
)
VIEW = View(
    keys=("task", "trained", "max_length", "samples", "seed"),
    columns=_columns,
    best=lambda asked: learned,
    panels=(CURVE,),
    heatmap=HEAT,
)
SYNTHETIC = Accuracy(
    file="synthetic.csv",
    cell={"length": "length", "reached": "reached"},
    counts=("problems", "right", "asked", "right_tokens"),
    measures={"accuracy": Measure("right", "problems"), "tokens": Measure("right_tokens", "asked")},
    view=VIEW,
    line="length {length}",
)


def lengths_to(problems: Synthetic, longest: int | None) -> list[int]:
    """Returns the lengths of an evaluation: the longest trained length times powers of sqrt(2),
    from its half, up to `longest`; by default the suite's, or four times the trained length.

    >>> lengths_to(Synthetic("parity", 2, 20), None)
    [10, 14, 20, 28, 40, 57, 80]
    """
    task, trained = problems.of, problems.max_length
    if longest is None:
        longest = task.tested if trained == task.trained else min(TIMES * trained, task.longest)
    check_integer("max_length", longest, task.shortest, task.longest)
    found = [round(trained * 2 ** (n / 2)) for n in range(-2, 64)]
    return sorted({*(n for n in found if problems.min_length <= n < longest), longest})


@dataclass(frozen=True)
class SyntheticQuestions(Questions):
    """`samples` problems of each length."""

    problems: Synthetic
    lengths: tuple[int, ...]
    samples: int
    seed: int
    criterion: float | None = None
    criterion_step: int | None = None  # of the training, if it reached the criterion

    @property
    def max_length(self) -> int:
        return max(self.lengths)

    def settings(self) -> dict[str, Any]:
        asked = asdict(self) | {"trained": self.problems.max_length}
        del asked["lengths"]
        return asked.pop("problems") | asked | {"max_length": self.max_length}

    def check(self, model, batches, purpose=""):
        """Abacus has a row for each digit of a number."""
        super().check(model, batches, purpose)
        if isinstance(encoding := model.base_model.position, Abacus):
            digits = encoding.digit_ids.numpy(force=True)
            prompts = (np.isin(x.prompt, digits) for each in batches for x in each.questions)
            numbers = ("".join(map(str, prompt.astype(int))).split("0") for prompt in prompts)
            needed = max(len(number) for each in numbers for number in each) + 1
            limit = f"{purpose}max_length={self.max_length}"
            check_length(model, needed, limit, len(encoding.table))

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[list[Question]]:
        for length in self.lengths:
            cell = length, int(self.criterion is None or self.criterion_step is not None)
            numbers = np.arange(self.samples)
            rows = zip(*self.problems.draw(self.seed, EVALUATION, numbers, length), strict=True)
            yield [Question(cell, tokens, labels, len(tokens), 0) for tokens, labels in rows]

    @torch.no_grad()
    def answers(self, model, tokenizer, batch):
        """Takes the most probable token wherever there is a label."""
        tokens = torch.from_numpy(np.stack([each.prompt for each in batch.questions]))
        model.eval()
        with model.evaluation_length(batch.length):
            logits = model(tokens.to(model.device), use_cache=False).logits
        pairs = zip(batch.questions, logits[:, :-1].argmax(-1).cpu().numpy(), strict=True)
        return [self.mark(question, written, tokenizer) for question, written in pairs]

    def mark(self, question, written, tokenizer):
        """Marks the tokens (T - 1,) given for each but the first one of a problem."""
        is_asked = question.answer[1:] != IGNORED
        expected, given = question.answer[1:][is_asked], written[is_asked]
        found = int((expected == given).sum())
        right = found == len(expected)
        shown = {"expected": in_words(expected), "given": in_words(given)}
        return Answer(right, (1, int(right), len(expected), found), shown)


class SyntheticTask(GeneratedTask):
    """The questions are `samples` problems of each of up to eight trained lengths, and of twice the
    longest one."""

    kind = Synthetic
    record = TASK
    unit = "problems"
    results = SYNTHETIC

    def questions(self, samples):
        problems, last = self.source, self.source.max_length
        trained = np.linspace(problems.min_length, last, INSIDE).round()
        lengths = sorted({*map(int, trained), min(2 * last, problems.of.longest)})
        return [SyntheticQuestions(problems, tuple(lengths), samples, seed=1)]

    @staticmethod
    def asked(given, folder, model):
        problems, trained = Synthetic.load(folder), read_configuration(folder, TRAINED)
        criterion, most = trained["task.criterion"], trained["trainer.max_steps"]
        rows = read_metrics(folder / MetricsFile.FILE)  # some may be of a continuation
        step = reached((row for row in rows if row["step"] <= most), criterion)
        lengths = tuple(lengths_to(problems, given.max_length))
        asked = SyntheticQuestions(problems, lengths, given.samples, given.seed, criterion, step)
        return asked, FOLDER
