"""Arithmetic: training on generated problems, and the questions of an evaluation."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, TrainingArguments

from arithmetic import fault
from arithmetic.grid import GRID, GridQuestions
from arithmetic.problems import Problems
from tape.command import integer
from tape.evaluation.questions import Batch
from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.positions.abacus import Abacus
from tape.settings.run import RunSettings
from tape.tasks.generated import Answered, Asked, GeneratedTask

MAX_DIGITS = 1000  # digits of an operand; the grid has their square
SHOWN = 10  # problems in the report


class ArithmeticTask(GeneratedTask):
    """The questions are `samples` problems of each cell up to twice the trained lengths."""

    kind = Problems
    unit = "problems"
    results = GRID
    load = staticmethod(fault.load)
    template = """\
# {name}

{headline}

Right answers: {accuracy_in:.1%} in the trained lengths, {accuracy_out:.1%} beyond them up to \
twice as long, of {questions:,} problems spread over the grid.

{table}

The whole grid and its picture: tape evaluate {folder} --task addition
"""

    def __init__(
        self,
        problems: Problems,
        settings: RunSettings,
        arguments: TrainingArguments,
        *,
        samples: int,
        original_fault: bool | None = None,
    ):
        fault.check_fault(original_fault)
        self.original_fault = original_fault
        super().__init__(problems, settings, arguments, samples)

    def plan(self, samples: int) -> tuple[GridQuestions, list[Batch]]:
        questions = GridQuestions(self.source, 2 * max(self.source.trained), samples)
        return questions, questions.plan(self.tokenizer, batch_size=1024)

    def describe(self) -> str:
        problems = self.source
        return (
            f"{problems.task} of up to {problems.max_first} and {problems.max_second} digits, "
            f"{len(self.train):,} problems"
        )

    def alter(self, model: TapeForCausalLM) -> None:
        if self.original_fault:
            fault.leave_unrotated(model)

    def check(self, model: TapeForCausalLM) -> None:
        problems = self.source
        purpose = "training on these problems"
        check_positions(model, problems, problems.trained, problems.length, purpose, training=True)
        twice = (self.questions.max_length,) * 2
        length = max(batch.length for batch in self.batches)
        purpose = "measuring the accuracy up to twice the trained lengths"
        check_positions(model, problems, twice, length, purpose)

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        ordered = sorted(answered, key=lambda x: (sum(x.question.cell), x.question.cell))
        lines: list[list[object]] = [["n", "m", "problem", "answer", "given"]]
        for question, given, right in ordered[:: -(-len(ordered) // SHOWN)]:
            shown = f"`{question.prompt}`", f"`{question.answer}`"
            lines.append([*question.cell, *shown, "right" if right else f"`{given}`"])
        return {"table": markdown_table(lines)}

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add, whole = parser.add_argument, integer(1)
        about = "digits of the longest operands; by default twice those of the training"
        add("--max_length", type=integer(1, MAX_DIGITS), help=about)
        add("--samples", type=whole, default=100, help="problems of each pair of lengths")
        about = "problems decoded together; a GPU takes thousands"
        add("--batch_size", type=whole, default=256, help=about)

    @staticmethod
    def ask(
        given: argparse.Namespace,
        folder: Path,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
    ) -> Asked:
        problems = Problems.load(folder)
        max_length = given.max_length or 2 * max(problems.trained)
        questions = GridQuestions(problems, max_length, given.samples, given.seed)
        batches = questions.plan(tokenizer, batch_size=given.batch_size)
        longest = max(batch.length for batch in batches)
        cell, purpose = (max_length, max_length), f"max_length={max_length}"
        check_positions(model, problems, cell, longest, purpose)
        settings = {
            **{f"problems.{name}": value for name, value in asdict(problems).items()},
            "max_length": max_length,
            "samples": given.samples,
            "seed": given.seed,
            "batch_size": given.batch_size,
            "wrong": given.wrong,
        }
        return Asked(questions, batches, settings, "grid")


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
