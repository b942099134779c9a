"""Training on arithmetic: generated problems, and accuracy within and beyond trained lengths."""

from __future__ import annotations

import hashlib
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from transformers import TrainingArguments

from arithmetic.decoding import answers
from arithmetic.plan import Question, plan
from arithmetic.problems import Problems, ProblemSequences
from arithmetic.tokenizer import character_tokenizer
from tape.evaluation.checkpoint import check_length
from tape.modeling import TapeForCausalLM
from tape.names import check_integer
from tape.training.arguments import training_order
from tape.training.progress import read_metrics
from tape.training.report import facts, headline, publish
from tape.training.task import Task

SHOWN = 10  # problems in the report


class Answered(NamedTuple):
    question: Question
    given: str  # including EOS
    right: bool


class ArithmeticTask(Task):
    """Trains on `problems`. Each validation also answers a fixed sample of the grid up to twice the
    trained lengths, `samples` problems per cell: `accuracy in` and `accuracy out` are the
    fractions answered correctly within and beyond the trained lengths.

    Raises:
        ValueError: unless the run's `length` equals that of the problems.
    """

    def __init__(
        self,
        problems: Problems,
        settings: dict[str, Any],
        arguments: TrainingArguments,
        *,
        samples: int,
    ):
        if settings["length"] != problems.length:
            raise ValueError(
                f"length={settings['length']}: these problems have {problems.length} tokens; give "
                f"length={problems.length}"
            )
        if settings["eval_blocks"] is None:
            raise ValueError("eval_blocks=null: the number of problems is unlimited; give a number")
        check_integer("task.samples", samples)
        self.problems = problems
        self.tokenizer = character_tokenizer()
        self.train = ProblemSequences(problems, self.tokenizer, *training_order(arguments))
        # All seeds of a comparison share the held-out problems.
        self.evaluation = ProblemSequences(
            problems, self.tokenizer, settings["eval_blocks"], seed=0, held_out=True
        )
        longest = 2 * max(problems.max_first, problems.max_second)
        self.batches = plan(problems, longest, samples, seed=0, batch_size=1024)
        sets = ProblemSequences(problems, self.tokenizer, 1, seed=0), self.evaluation
        written = "".join(self.tokenizer.decode(of[0]["input_ids"]) for of in sets)
        self.fingerprints = {"problems": hashlib.sha256(written.encode()).hexdigest()[:16]}

    def describe(self) -> str:
        problems = self.problems
        return (
            f"{problems.task} of up to {problems.max_first} and {problems.max_second} digits, "
            f"{len(self.train):,} problems"
        )

    def check(self, model: TapeForCausalLM) -> None:
        name = model.config.position["name"]
        if self.problems.abacus_offset is not None and name != "learned":
            raise ValueError(
                f"data.abacus_offset={self.problems.abacus_offset}: positions that restart in each "
                f"number require position=learned, not position={name}"
            )
        check_length(model, self.problems.positions, "training on these problems")
        needed = max(batch.positions for batch in self.batches)
        check_length(model, needed, "measuring the accuracy up to twice the trained lengths")

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        return self._accuracies(self._answered(model))

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.problems.save(folder)
        answered = self._answered(model)
        metrics = read_metrics(folder / "metrics.jsonl")
        summary = facts(model, metrics) | self._accuracies(answered)
        text = _markdown(folder, summary, answered)
        publish(folder, metrics, summary, text)
        return text

    def _answered(self, model: TapeForCausalLM) -> list[Answered]:
        end = self.tokenizer.eos_token
        return [
            Answered(question, given, question.is_answered(given, end))
            for batch in self.batches
            for question, given in zip(
                batch.questions, answers(model, self.tokenizer, batch), strict=True
            )
        ]

    def _accuracies(self, answered: list[Answered]) -> dict[str, float]:
        """Returns accuracies within and beyond the trained lengths."""
        right: dict[str, list[bool]] = {"accuracy_in": [], "accuracy_out": []}
        for question, _, is_right in answered:
            inside = (
                question.n <= self.problems.max_first and question.m <= self.problems.max_second
            )
            right["accuracy_in" if inside else "accuracy_out"].append(is_right)
        return {name: mean(marks) for name, marks in right.items()}


def _markdown(folder: Path, summary: dict[str, Any], answered: list[Answered]) -> str:
    by_length = sorted(answered, key=lambda row: (row.question.n + row.question.m, row.question.n))
    shown = by_length[:: -(-len(by_length) // SHOWN)]
    rows = [
        f"| {n} | {m} | `{prompt}` | `{answer}` | {'right' if right else f'`{given}`'} |"
        for (n, m, prompt, answer), given, right in shown
    ]
    return "\n".join(
        [
            f"# {folder.name}",
            "",
            headline(summary),
            "",
            f"Right answers: {summary['accuracy_in']:.1%} in the trained lengths, "
            f"{summary['accuracy_out']:.1%} beyond them up to twice as long, of "
            f"{len(answered):,} problems spread over the grid.",
            "",
            "| n | m | problem | answer | given |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"The whole grid and its picture: python -m arithmetic.evaluate model={folder}",
            "",
        ]
    )
