"""Training on synthetic problems, to a criterion."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from transformers import TrainingArguments

from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.settings.run import RunSettings
from tape.tasks.synthetic.generators import NO_LABEL
from tape.tasks.synthetic.problems import Synthetic, SyntheticSequences
from tape.tasks.synthetic.scoring import plan, score
from tape.tasks.synthetic.words import EQUALS, NAMES, words_tokenizer
from tape.training.generated import Answered, GeneratedTask
from tape.validation import check_fraction

INSIDE = 8  # trained lengths of a validation
BATCH_TOKENS = 16_384
FROM_THE_LAST_RATE = ("reduce_lr_on_plateau", "greedy")  # schedules


class Question(NamedTuple):
    length: int
    tokens: np.ndarray
    labels: np.ndarray


class SyntheticTask(GeneratedTask):
    """The questions are `samples` problems of each of up to eight trained lengths, and of twice the
    longest one, where the task has such problems."""

    kind = Synthetic
    unit = "problems"
    template = """\
# {name}

{headline}

{outcome}

{table}

{questions:,} problems. One of the shortest, and what the model answers:

> {problem} -> **{given}**

All lengths and their picture: python -m tape.tasks.synthetic.evaluate --model {folder}
"""

    def __init__(
        self,
        problems: Synthetic,
        settings: RunSettings,
        arguments: TrainingArguments,
        *,
        samples: int,
        criterion: float | None,
    ):
        if criterion is not None:
            check_fraction("task.criterion", criterion)
            if (kind := arguments.lr_scheduler_type) in FROM_THE_LAST_RATE:
                raise ValueError(
                    f"trainer.lr_scheduler_type={kind.value} with task.criterion: the rate must "
                    "follow from the step alone; give linear, cosine or constant"
                )
        self.criterion = criterion
        tokenizer = words_tokenizer()
        super().__init__(problems, SyntheticSequences, tokenizer, settings, arguments, samples)
        trained = np.linspace(problems.min_length, problems.max_length, INSIDE)
        twice = min(2 * problems.max_length, problems.of.longest)
        lengths = sorted({*map(int, trained.round()), twice})
        self.batches = plan(problems, lengths, samples, seed=1, batch_tokens=BATCH_TOKENS)

    def describe(self) -> str:
        problems = self.source
        return (
            f"{problems.task} of lengths {problems.min_length} to {problems.max_length}, "
            f"{len(self.train):,} problems"
        )

    def check(self, model: TapeForCausalLM) -> None:
        needed = max(batch.tokens.shape[1] for batch in self.batches)
        check_length(model, needed, "measuring the accuracy at twice the trained length")

    def answer(self, model: TapeForCausalLM) -> Iterable[Answered]:
        for batch in self.batches:
            for n, (right, asked, given) in enumerate(score(model, self.tokenizer, batch)):
                question = Question(batch.length, batch.tokens[n], batch.labels[n])
                yield Answered(question, " ".join(NAMES[i] for i in given), right == asked)

    def is_inside(self, question: Question) -> bool:
        return question.length <= self.source.max_length

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        right: dict[int, list[bool]] = {}
        for question, _, is_right in answered:
            right.setdefault(question.length, []).append(is_right)
        rows = [(length, f"{mean(right[length]):.1%}") for length in sorted(right)]
        question, given, _ = min(answered, key=lambda each: each.question.length)
        tokens = question.tokens
        if EQUALS in tokens:  # the answer follows
            tokens = tokens[: int(np.argmax(question.labels != NO_LABEL))]
        step, outcome = summary.get("criterion_step"), "Trained without a criterion."
        if self.criterion is not None:
            wanted = f"{self.criterion:.0%} right answers in the trained lengths"
            outcome = f"Reached {wanted} at step {step}." if step else f"Failed to reach {wanted}."
        return {
            "outcome": outcome,
            "table": markdown_table([("length", "right answers"), *rows]),
            "problem": " ".join(NAMES[n] for n in tokens),
            "given": given,
        }
