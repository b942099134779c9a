"""Arithmetic: training on generated problems, and the questions of an evaluation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arithmetic.grid import GRID, GridQuestions
from arithmetic.problems import Problems
from tape.command import integer
from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.positions.abacus import Abacus
from tape.runs.folder import TRAINED, read_configuration
from tape.tasks.generated import Answered, GeneratedTask

MAX_DIGITS = 1000  # digits of an operand; the grid has their square
SHOWN = 10  # problems in the report


class ArithmeticTask(GeneratedTask):
    """The questions are `samples` problems of each cell up to twice the trained lengths."""

    kind = Problems
    name = "addition"
    unit = "problems"
    results = GRID
    batching = ("batch_size", 256)

    def questions(self, samples: int) -> list[GridQuestions]:
        return [GridQuestions(self.source, 2 * max(self.source.trained), samples)]

    def describe(self) -> str:
        problems = self.source
        return (
            f"{problems.task} of up to {problems.max_first} and {problems.max_second} digits, "
            f"{len(self.train):,} problems"
        )

    def check(self, model: TapeForCausalLM) -> None:
        encoding, problems = model.base_model.position, self.source
        if isinstance(encoding, Abacus):
            needed = problems.digits(*problems.trained) + encoding.offset + 1
            check_length(model, needed, "training on these problems", len(encoding.table))
        super().check(model)

    def told(self, summary: dict[str, Any], answered: Answered) -> str:
        ordered = sorted(answered, key=lambda each: (sum(each[0].cell), each[0].cell))
        lines: list[list[object]] = [["n", "m", "problem", "answer", "given"]]
        for question, answer in ordered[:: -(-len(ordered) // SHOWN)]:
            given = "right" if answer.right else f"`{answer.text}`"
            lines.append([*question.cell, f"`{question.prompt}`", f"`{question.answer}`", given])
        return (
            f"Right answers: {summary['accuracy_in']:.1%} in the trained lengths, "
            f"{summary['accuracy_out']:.1%} beyond them up to twice as long, of "
            f"{len(answered):,} problems spread over the grid.\n\n{markdown_table(lines)}"
        )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        about = "digits of the longest operands; by default twice those of the training"
        parser.add_argument("--max_length", type=integer(1, MAX_DIGITS), help=about)
        about = "problems of each pair of lengths"
        parser.add_argument("--samples", type=integer(1), default=100, help=about)

    @staticmethod
    def asked(
        given: argparse.Namespace, folder: Path, model: TapeForCausalLM
    ) -> tuple[GridQuestions, str]:
        recorded = read_configuration(folder, TRAINED) if (folder / TRAINED).is_file() else {}
        if recorded.get("task.original_fault"):
            raise ValueError(
                f"{folder} was trained with task.original_fault=true, which this version lacks: "
                "its attention ignored the state; evaluate it with the version that trained it"
            )
        problems = Problems.load(folder)
        longest = given.max_length or 2 * max(problems.trained)
        return GridQuestions(problems, longest, given.samples, given.seed), "grid"
