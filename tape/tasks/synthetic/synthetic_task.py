"""Synthetic problems: training to a criterion, and the questions of an evaluation by length."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tape.command import integer
from tape.evaluation.questions import Batch
from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.runs.folder import TRAINED, read_configuration
from tape.runs.metrics import MetricsFile, read_metrics
from tape.settings.run import RunSettings
from tape.tasks.generated import NO_LABEL, Answered, Asked, GeneratedTask, by_length
from tape.tasks.synthetic.problems import Synthetic
from tape.tasks.synthetic.results import FOLDER, SYNTHETIC
from tape.tasks.synthetic.synthetic_questions import SyntheticQuestions, lengths_to, words
from tape.tasks.synthetic.words import EQUALS
from tape.training.criterion import reached
from tape.validation import check_fraction

INSIDE = 8  # trained lengths of a validation
BATCH_TOKENS = 16_384
FROM_THE_LAST_RATE = ("reduce_lr_on_plateau", "greedy")  # schedules


class SyntheticTask(GeneratedTask):
    """The questions are `samples` problems of each of up to eight trained lengths, and of twice the
    longest one, where the task has such problems."""

    kind = Synthetic
    unit = "problems"
    results = SYNTHETIC
    template = """\
# {name}

{headline}

{outcome}

{table}

{questions:,} problems. One of the shortest, and what the model answers:

> {problem} -> **{given}**

All lengths and their picture: tape evaluate {folder} --task synthetic
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
        super().__init__(problems, settings, arguments, samples)

    def plan(self, samples: int) -> tuple[SyntheticQuestions, list[Batch]]:
        problems = self.source
        trained = np.linspace(problems.min_length, problems.max_length, INSIDE)
        twice = min(2 * problems.max_length, problems.of.longest)
        lengths = sorted({*map(int, trained.round()), twice})
        questions = SyntheticQuestions(problems, tuple(lengths), samples, seed=1)
        return questions, questions.plan(self.tokenizer, BATCH_TOKENS)

    def describe(self) -> str:
        problems = self.source
        return (
            f"{problems.task} of lengths {problems.min_length} to {problems.max_length}, "
            f"{len(self.train):,} problems"
        )

    def check(self, model: TapeForCausalLM) -> None:
        needed = max(batch.length for batch in self.batches)
        check_length(model, needed, "measuring the accuracy at twice the trained length")

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        rows = [(length, f"{share:.1%}") for length, share in by_length(answered).items()]
        question, given, _ = min(answered, key=lambda each: each.question.cell)
        tokens = question.prompt
        if EQUALS in tokens:  # the answer follows
            tokens = tokens[: int(np.argmax(question.answer != NO_LABEL))]
        step, outcome = summary.get("criterion_step"), "Trained without a criterion."
        if self.criterion is not None:
            wanted = f"{self.criterion:.0%} right answers in the trained lengths"
            outcome = f"Reached {wanted} at step {step}." if step else f"Failed to reach {wanted}."
        return {
            "outcome": outcome,
            "table": markdown_table([("length", "right answers"), *rows]),
            "problem": words(tokens),
            "given": given,
        }

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add, whole = parser.add_argument, integer(1)
        about = "of the problems; by default the suite's, or 4 times the trained one"
        add("--max_length", type=integer(0), help=about)
        add("--samples", type=whole, default=100, help="problems per length")
        add("--batch_tokens", type=whole, default=BATCH_TOKENS, help="tokens per batch")
        parser.set_defaults(processes=1)

    @staticmethod
    def ask(
        given: argparse.Namespace,
        folder: Path,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
    ) -> Asked:
        problems, trained = Synthetic.load(folder), read_configuration(folder, TRAINED)
        lengths = lengths_to(problems, given.max_length)
        criterion, most = trained["task.criterion"], trained["trainer.max_steps"]
        rows = read_metrics(folder / MetricsFile.FILE)  # some may be of a continuation
        step = reached((row for row in rows if row["step"] <= most), criterion)
        has_reached = criterion is None or step is not None
        questions = SyntheticQuestions(
            problems, tuple(lengths), given.samples, given.seed, has_reached
        )
        batches = questions.plan(tokenizer, given.batch_tokens)
        needed = max(batch.length for batch in batches)
        check_length(model, needed, f"max_length={lengths[-1]}")
        settings = {
            **asdict(problems),
            "trained": problems.max_length,
            "max_length": lengths[-1],
            "criterion": criterion,
            "criterion_step": step,
            "samples": given.samples,
            "seed": given.seed,
            "wrong": given.wrong,
            "batch_tokens": given.batch_tokens,
        }
        return Asked(questions, batches, settings, FOLDER)
