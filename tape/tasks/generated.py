"""Training on sequences that are generated, with questions answered at each validation."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tape.analysis import intervene
from tape.evaluation.accuracy import Accuracy
from tape.evaluation.questions import Batch, Question, Questions, is_within
from tape.evaluation.view import Evaluation
from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics
from tape.saved_settings import load, save
from tape.settings.run import RunSettings
from tape.training.arguments import training_order
from tape.training.criterion import reached
from tape.training.report import facts, headline, publish
from tape.training.task import Task
from tape.validation import check_integer

NO_LABEL = -100


class Source:
    """Settings of generated sequences: a frozen dataclass, saved with the model.

    Attributes:
        FILE: in the folder of the model.
        DROPPED: fields of former versions, which may be null there.
        CHUNK: sequences that are generated at a time.
    """

    FILE: ClassVar[str]
    DROPPED: ClassVar[tuple[str, ...]] = ()
    CHUNK: ClassVar[int]

    @property
    def length(self) -> int:
        """Tokens of a training sequence."""
        raise NotImplementedError

    @property
    def trained(self) -> tuple[int | None, ...]:
        """The last trained value of each condition of a question; None if it is not limited."""
        raise NotImplementedError

    @staticmethod
    def tokenizer() -> PreTrainedTokenizerBase:
        raise NotImplementedError

    def chunk(
        self, number: int, count: int, seed: int, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens and labels of the first `count` sequences of a chunk: (count, length)
        each, with padding last, where causal attention does not look, and without labels there."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        save(self, Path(folder) / self.FILE)

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Returns whether the model in a folder was trained on such sequences."""
        return (Path(folder) / cls.FILE).is_file()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads settings written by `save`.

        Raises:
            ValueError: if the folder has none, or the file has others.
        """
        if not cls.is_in(folder):
            raise ValueError(f"{folder} has no {cls.FILE}: give the folder of a run on this task")
        return load(cls, Path(folder) / cls.FILE, cls.DROPPED)


class GeneratedSequences(Dataset):
    """`total` sequences as input_ids and labels, (length,) each. Sequence i is a function of i and
    the seed, independent of batches, processes and interruptions. Held-out sequences differ from
    training sequences for all seeds. Only the latest chunk is kept: read them in order.

    Raises:
        ValueError: for total below 1, or a negative seed.
    """

    def __init__(self, source: Source, total: int, seed: int, held_out: bool = False):
        check_integer("total", total)
        check_integer("seed", seed, least=0)
        self.source, self.total, self.seed, self.held_out = source, total, seed, held_out
        self._latest: tuple[int, list[Tensor]] | None = None

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        if not 0 <= i < self.total:
            raise IndexError(f"sequence {i} of {self.total}")
        size = self.source.CHUNK
        number, place = divmod(i, size)
        if self._latest is None or self._latest[0] != number:
            count = min(size, self.total - number * size)
            rows = self.source.chunk(number, count, self.seed, self.held_out)
            self._latest = number, [*map(torch.from_numpy, rows)]
        tokens, labels = self._latest[1]
        return {"input_ids": tokens[place], "labels": labels[place]}


class Answered(NamedTuple):
    question: Question
    given: str
    right: bool


class Asked(NamedTuple):
    """What a command asks of a model.

    Attributes:
        settings: of the questions and the training, for the journal and the summary.
        name: of the folder for the results.
    """

    questions: Questions
    batches: list[Batch]
    settings: dict[str, Any]
    name: str


class GeneratedTask(Task):
    """A task whose sequences and questions are generated. Each validation answers a fixed sample of
    questions. `accuracy in` and `accuracy out` are the fractions answered correctly within and
    beyond the trained lengths. `tape evaluate` (tape/tasks/evaluate.py) asks further ones.

    Attributes:
        kind: of the source.
        unit: of the sequences, plural.
        template: of the report.
        results: of an evaluation.
        load: returns the model in a folder with a change of its state, and its tokenizer.

    Args:
        source: settings of the sequences.
        samples: questions of each cell.

    Raises:
        ValueError: for a source of another task; unless the run's `length` equals that of the
            sequences.
    """

    kind: type[Source]
    unit: str
    template: str
    results: Accuracy
    load = staticmethod(intervene.load)

    def __init__(
        self, source: Source, settings: RunSettings, arguments: TrainingArguments, samples: int
    ):
        unit, blocks = self.unit, settings.eval_blocks
        if not isinstance(source, self.kind):
            raise ValueError(
                f"data makes {type(source).__name__}: this task needs {self.kind.__name__}; choose "
                f"another data=..., or another experiment=..."
            )
        if settings.length != source.length:
            raise ValueError(
                f"length={settings.length}: these {unit} have {source.length} tokens; give "
                f"length={source.length}"
            )
        if blocks is None:
            raise ValueError(f"eval_blocks=null: the number of {unit} is unlimited; give a number")
        check_integer("task.samples", samples)
        self.source, self.tokenizer = source, source.tokenizer()
        self.train = GeneratedSequences(source, *training_order(arguments))
        # All seeds of a comparison share the held-out sequences and the questions.
        self.evaluation = GeneratedSequences(source, blocks, seed=0, held_out=True)
        sets = GeneratedSequences(source, 1, seed=0), self.evaluation
        written = "".join(self.tokenizer.decode(of[0]["input_ids"]) for of in sets)
        self.fingerprints = {unit: hashlib.sha256(written.encode()).hexdigest()[:16]}
        self.questions, self.batches = self.plan(samples)

    def plan(self, samples: int) -> tuple[Questions, list[Batch]]:
        """Returns the questions of a validation, and their batches."""
        raise NotImplementedError

    def answer(self, model: TapeForCausalLM) -> list[Answered]:
        return [
            Answered(question, answer.text, answer.right)
            for batch in self.batches
            for question, answer in zip(
                batch.questions, self.questions.answers(model, self.tokenizer, batch), strict=True
            )
        ]

    def summarize(self, answered: list[Answered]) -> dict[str, Any]:
        """Returns the accuracies within and beyond the trained lengths."""
        parts: dict[str, list[bool]] = {"accuracy_in": [], "accuracy_out": []}
        for question, _, right in answered:
            inside = is_within(question.cell, self.source.trained)
            parts["accuracy_in" if inside else "accuracy_out"].append(right)
        return {name: mean(right) for name, right in parts.items()}

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        """Returns further values for the template of the report."""
        raise NotImplementedError

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        return GeneratedTask.summarize(self, self.answer(model))

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.source.save(folder)
        answered = self.answer(model)
        metrics = read_metrics(folder / "metrics.jsonl")
        summary = facts(model, metrics) | self.summarize(answered)
        if self.criterion is not None:
            summary["criterion_step"] = reached(metrics, self.criterion)
        values = {
            **summary,
            "folder": folder,
            "name": folder.name,
            "headline": headline(summary),
            "questions": len(answered),
            **self.fill(summary, answered),
        }
        text = self.template.format_map(values)
        publish(folder, metrics, summary, text)
        return text

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Adds the options of an evaluation."""
        raise NotImplementedError

    @staticmethod
    def ask(
        given: argparse.Namespace,
        folder: Path,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
    ) -> Asked:
        """Returns what a command asks of the model in a folder.

        Raises:
            ValueError: if the options do not go together, or the model does not support them.
        """
        raise NotImplementedError

    @staticmethod
    def draw(folder: Path, name: str, evaluation: Evaluation) -> None:
        """Writes pictures of results besides the heat map."""


def by_length(answered: list[Answered]) -> dict[int, float]:
    """Returns the share of right answers by the first condition, ascending."""
    right: dict[int, list[bool]] = {}
    for question, _, is_right in answered:
        right.setdefault(question.cell[0], []).append(is_right)
    return {length: mean(right[length]) for length in sorted(right)}
