"""Training on arithmetic: generated problems, and accuracy within and beyond trained lengths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers import TrainingArguments

from arithmetic.decoding import answers
from arithmetic.fault import check_fault, leave_unrotated
from arithmetic.grid_plan import Question, check_positions, plan
from arithmetic.problems import Problems, ProblemSequences, character_tokenizer
from tape.evaluation.tables import markdown_table
from tape.model.modeling import TapeForCausalLM
from tape.settings.run import RunSettings
from tape.training.generated import Answered, GeneratedTask

SHOWN = 10  # problems in the report


class ArithmeticTask(GeneratedTask):
    """The questions are `samples` problems of each cell up to twice the trained lengths."""

    kind = Problems
    unit = "problems"
    template = """\
# {name}

{headline}

Right answers: {accuracy_in:.1%} in the trained lengths, {accuracy_out:.1%} beyond them up to \
twice as long, of {questions:,} problems spread over the grid.

{table}

The whole grid and its picture: python -m arithmetic.evaluate model={folder}
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
        check_fault(original_fault)
        self.original_fault = original_fault
        tokenizer = character_tokenizer()
        super().__init__(problems, ProblemSequences, tokenizer, settings, arguments, samples)
        self.longest = 2 * max(problems.max_first, problems.max_second)
        self.batches = plan(problems, self.longest, samples, seed=0, batch_size=1024)

    def describe(self) -> str:
        problems = self.source
        return (
            f"{problems.task} of up to {problems.max_first} and {problems.max_second} digits, "
            f"{len(self.train):,} problems"
        )

    def alter(self, model: TapeForCausalLM) -> None:
        if self.original_fault:
            leave_unrotated(model)

    def check(self, model: TapeForCausalLM) -> None:
        problems = self.source
        cell, twice = (problems.max_first, problems.max_second), (self.longest, self.longest)
        purpose = "training on these problems"
        check_positions(model, problems, cell, problems.length, purpose, training=True)
        length = max(batch.length for batch in self.batches)
        purpose = "measuring the accuracy up to twice the trained lengths"
        check_positions(model, problems, twice, length, purpose)

    def answer(self, model: TapeForCausalLM) -> Iterable[Answered]:
        end = self.tokenizer.eos_token
        for batch in self.batches:
            given = answers(model, self.tokenizer, batch)
            for question, text in zip(batch.questions, given, strict=True):
                yield Answered(question, text, text == question.answer + end)

    def is_inside(self, question: Question) -> bool:
        return question.n <= self.source.max_first and question.m <= self.source.max_second

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        by_length = sorted(answered, key=lambda x: (x.question.n + x.question.m, x.question.n))
        lines: list[list[object]] = [["n", "m", "problem", "answer", "given"]]
        for (n, m, prompt, answer), given, right in by_length[:: -(-len(by_length) // SHOWN)]:
            lines.append([n, m, f"`{prompt}`", f"`{answer}`", "right" if right else f"`{given}`"])
        return {"table": markdown_table(lines)}
