"""Tasks whose sequences and questions are generated: training, validation, evaluation."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Self

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainingArguments

from tape.data.tokenizer import END, PADDING
from tape.evaluation.accuracy import Accuracy
from tape.evaluation.questions import Answer, Question, Questions
from tape.evaluation.tables import markdown_table
from tape.evaluation.view import Evaluation
from tape.files import read_object, reading, write_text
from tape.hashing import splitmix64
from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics
from tape.settings.run import RunSettings
from tape.training.arguments import training_order
from tape.training.criterion import reached
from tape.training.report import facts, headline, publish
from tape.training.task import Task
from tape.validation import check_arguments, check_integer

NO_LABEL = -100
HELD_OUT_BITS = 4  # one problem in 2**4 is for evaluation only
Answered = list[tuple[Question, Answer]]


def is_held_out(hashes: np.ndarray) -> np.ndarray:
    """Returns which problems are for evaluation only, from uint64 sums over their tokens."""
    return splitmix64(hashes) >> (64 - HELD_OUT_BITS) == 0


def word_tokenizer(words: list[str], split: Any, decoder: Any = None) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per word, which refuses all others.

    Args:
        words: the vocabulary, in order; EOS and padding are among them.
        split: divides a text into words.
        decoder: joins words; None: with spaces.
    """
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
    tokenizer.pre_tokenizer = split
    if decoder is not None:
        tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )


def save(settings: Any, path: Path) -> None:
    """Writes the fields of a dataclass."""
    write_text(path, json.dumps(asdict(settings), indent=1) + "\n")


def load(cls: type, path: Path, dropped: tuple[str, ...] = ()) -> Any:
    """Reads settings written by `save`. Fields of former versions in `dropped` may be null.

    Raises:
        ValueError: if the fields in the file are not those of `cls`.
    """
    found = read_object(path)
    found = {name: x for name, x in found.items() if name not in dropped or x is not None}
    with reading(path):
        check_arguments(cls.__name__, found, (field.name for field in fields(cls)))
        return cls(**found)


class Source:
    """Settings of generated sequences: a frozen dataclass, saved with the model.

    Attributes:
        FILE: in the folder of the model.
        DROPPED: fields of former versions, which may be null there.
        CHUNK: sequences that are generated at a time.
        tokenizer: returns that of all such sequences.
        length: tokens of a training sequence.
        trained: the last trained value of each condition of a question; None if it is not limited.
    """

    FILE: ClassVar[str]
    DROPPED: ClassVar[tuple[str, ...]] = ()
    CHUNK: ClassVar[int]
    tokenizer: ClassVar[Callable[[], PreTrainedTokenizerBase]]
    length: int
    trained: tuple[int | None, ...]

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


class GeneratedTask(Task):
    """A task whose sequences and questions are generated. Each validation answers a fixed sample of
    questions. `accuracy in` and `accuracy out` are the fractions answered correctly within and
    beyond the trained lengths. `tape evaluate` (tape/tasks/evaluate.py) asks further ones.

    Attributes:
        kind: of the source.
        name: of the task on the command line.
        unit: of the sequences, plural.
        results: of an evaluation.
        batching: the argument of `Questions.plan`, an option of the command, and its default.

    Args:
        source: settings of the sequences.
        samples: questions of each cell.

    Raises:
        ValueError: for a source of another task; unless the run's `length` equals that of the
            sequences.
    """

    kind: type[Source]
    name: str
    unit: str
    results: Accuracy
    batching: tuple[str, int] = ("batch_tokens", 16_384)

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
        how = dict([self.batching])
        self.planned = [(q, q.plan(self.tokenizer, **how)) for q in self.questions(samples)]

    def questions(self, samples: int) -> list[Questions]:
        """Returns the questions of a validation."""
        raise NotImplementedError

    def check(self, model: TapeForCausalLM) -> None:
        for questions, batches in self.planned:
            questions.check(model, batches, "the validation with ")

    def answer(self, model: TapeForCausalLM) -> Answered:
        return [
            pair
            for questions, batches in self.planned
            for batch in batches
            for pair in zip(
                batch.questions, questions.answers(model, self.tokenizer, batch), strict=True
            )
        ]

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        return self.accuracies(self.answer(model))

    def accuracies(self, answered: Answered) -> dict[str, float]:
        """Returns the accuracies within and beyond the trained lengths."""
        parts: dict[str, list[bool]] = {"accuracy_in": [], "accuracy_out": []}
        for question, answer in answered:
            limits = zip(question.cell, self.source.trained, strict=True)
            inside = all(last is None or at <= last for at, last in limits)
            parts["accuracy_in" if inside else "accuracy_out"].append(answer.right)
        return {name: mean(right) for name, right in parts.items()}

    def summarize(self, answered: Answered) -> dict[str, Any]:
        """Returns the accuracies for report.json."""
        return self.accuracies(answered)

    def told(self, summary: dict[str, Any], answered: Answered) -> str:
        """Returns what the report tells of the answers."""
        raise NotImplementedError

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.source.save(folder)
        answered = self.answer(model)
        metrics = read_metrics(folder / "metrics.jsonl")
        summary = facts(model, metrics) | self.summarize(answered)
        if self.criterion is not None:
            summary["criterion_step"] = reached(metrics, self.criterion)
        parts = [
            f"# {folder.name}",
            headline(summary),
            self.told(summary, answered),
            f"More {self.unit} and a picture: tape evaluate {folder} --task {self.name}",
        ]
        text = "\n\n".join(parts) + "\n"
        publish(folder, metrics, summary, text)
        return text

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Adds the options of an evaluation."""
        raise NotImplementedError

    @staticmethod
    def asked(
        given: argparse.Namespace, folder: Path, model: TapeForCausalLM
    ) -> tuple[Questions, str]:
        """Returns what a command asks of the model in a folder, and the name of the results.

        Raises:
            ValueError: if the options do not go together.
        """
        raise NotImplementedError

    @staticmethod
    def draw(folder: Path, name: str, evaluation: Evaluation) -> None:
        """Writes pictures of results besides the heat map."""


def by_length(answered: Answered) -> dict[int, float]:
    """Returns the share of right answers by the first condition, ascending."""
    right: dict[int, list[bool]] = {}
    for question, answer in answered:
        right.setdefault(question.cell[0], []).append(answer.right)
    return {length: mean(right[length]) for length in sorted(right)}


def table_by_length(answered: Answered, title: str) -> str:
    rows = [(length, f"{share:.1%}") for length, share in by_length(answered).items()]
    return markdown_table([(title, "right answers"), *rows])
