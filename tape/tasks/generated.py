"""Tasks whose sequences and questions are generated: training, validation, evaluation."""

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from shlex import quote
from statistics import mean
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainingArguments

from tape.core.files import read_object, reading, write_text
from tape.core.hashing import splitmix64
from tape.core.metrics import read_metrics
from tape.core.validation import check_arguments, check_fraction
from tape.data.tokenizer import END, PADDING
from tape.evaluation.accuracy import Accuracy
from tape.evaluation.questions import Answer, Question, Questions
from tape.evaluation.tables import markdown_table
from tape.evaluation.task import TaskRecord
from tape.model.modeling import TapeForCausalLM
from tape.training.arguments import training_order
from tape.training.callbacks import reached
from tape.training.report import facts, headline, publish
from tape.training.settings import RunSettings
from tape.training.task import Task

HELD_OUT_BITS = 4  # one problem in 2**4 is for evaluation only
Block = tuple[np.ndarray, np.ndarray]  # tokens and labels (B, T) of sequences


def is_held_out(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns which problems (B,) are for evaluation only, by a hash: the sum of a random number
    per place, times 1 + the value. Values (B, ...) of -1 are left out."""
    weighted = (values + 1).astype(np.uint64) * splitmix64(places.astype(np.uint64))
    hashes = splitmix64(weighted.reshape(len(values), -1).sum(axis=1))
    return hashes >> (64 - HELD_OUT_BITS) == 0


def word_tokenizer(words: list[str], split: Any, decoder: Any = None) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of `words`, among them EOS and padding, which refuses all others. `split`
    divides a text, and `decoder` joins words, by default with spaces."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}))
    tokenizer.pre_tokenizer = split
    if decoder is not None:
        tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )


def added(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Adds numbers of decimal digits (B, W), the lowest first: (B, W + 1)."""
    digits = np.pad(first + second, ((0, 0), (0, 1)))
    for place in range(first.shape[1]):
        carried, digits[:, place] = np.divmod(digits[:, place], 10)
        digits[:, place + 1] += carried
    return digits


class Source:
    """Settings of generated sequences: a frozen dataclass, saved with the model."""

    FILE: ClassVar[str]  # in the folder of the model
    CHUNK: ClassVar[int]  # sequences that are generated at a time
    tokenizer: ClassVar[Callable[[], PreTrainedTokenizerBase]]  # of all such sequences
    length: int  # tokens of a training sequence
    trained: tuple[int | None, ...]  # last trained value of each condition; None: not limited

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
        """Returns tokens and labels of the first `count` sequences of a chunk: (count, length)
        each, with padding last, where causal attention does not look, and without labels there."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        write_text(Path(folder) / self.FILE, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads settings written by `save`, and refuses others."""
        file = Path(folder) / cls.FILE
        if not file.is_file():
            raise ValueError(f"{folder} has no {cls.FILE}: give the folder of a run on this task")
        found = read_object(file)
        with reading(file):
            check_arguments(cls.__name__, found, (field.name for field in fields(cls)))
            return cls(**found)


class GeneratedSequences(Dataset):
    """`total` sequences as input_ids and labels, (length,) each. Sequence i is a function of i and
    the seed. Held-out sequences differ from training sequences for all seeds. Only the latest chunk
    is kept: read them in order."""

    def __init__(self, source: Source, total: int, seed: int, held_out: bool = False):
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
    beyond the trained lengths. `tape evaluate` (tape/tasks/evaluate.py) asks further ones."""

    kind: type[Source]
    record: TaskRecord
    unit: str  # of the sequences, plural
    results: Accuracy

    def __init__(
        self,
        source: Source,
        settings: RunSettings,
        arguments: TrainingArguments,
        samples: int,
        criterion: float | None = None,
    ):
        unit = self.unit
        if not isinstance(source, self.kind):
            what = f"data makes {type(source).__name__}: this task needs {self.kind.__name__}"
            raise ValueError(f"{what}; choose another data=..., or another experiment=...")
        given, n = settings.length, source.length
        if given != n:
            raise ValueError(f"length={given}: these {unit} have {n} tokens; give length={n}")
        if settings.eval_blocks is None:
            raise ValueError(f"eval_blocks=null: the number of {unit} is unlimited; give a number")
        if criterion is not None:
            check_fraction("task.criterion", criterion)
        self.source, self.tokenizer, self.criterion = source, source.tokenizer(), criterion
        self.train = GeneratedSequences(source, *training_order(arguments))
        # All seeds of a comparison share the held-out sequences and the questions.
        self.evaluation = GeneratedSequences(source, settings.eval_blocks, seed=0, held_out=True)
        sets = GeneratedSequences(source, 1, seed=0), self.evaluation
        written = "".join(self.tokenizer.decode(of[0]["input_ids"]) for of in sets)
        self.fingerprints = {unit: hashlib.sha256(written.encode()).hexdigest()[:16]}
        how = dict([self.record.batches])
        self.planned = [(q, q.plan(self.tokenizer, **how)) for q in self.questions(samples)]

    def questions(self, samples: int) -> list[Questions]:
        """Returns the questions of a validation."""
        raise NotImplementedError

    def describe(self) -> str:
        return f"{len(self.train):,} {self.unit} of {self.source}"

    def check(self, model: TapeForCausalLM) -> None:
        for questions, batches in self.planned:
            questions.check(model, batches, "the validation with ")

    def answer(self, model: TapeForCausalLM) -> list[tuple[Question, Answer]]:
        answered = []
        for questions, batches in self.planned:
            for batch in batches:
                answers = questions.answers(model, self.tokenizer, batch)
                answered += zip(batch.questions, answers, strict=True)
        return answered

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        return self.accuracies(self.answer(model))

    def accuracies(self, answered: list[tuple[Question, Answer]]) -> dict[str, float]:
        """Returns the accuracies within and, if any are asked, beyond the trained lengths."""
        parts: dict[str, list[bool]] = {"accuracy_in": [], "accuracy_out": []}
        for question, answer in answered:
            limits = zip(question.cell, self.source.trained, strict=True)
            inside = all(last is None or at <= last for at, last in limits)
            parts["accuracy_in" if inside else "accuracy_out"].append(answer.right)
        return {name: mean(right) for name, right in parts.items() if right}

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.source.save(folder)
        answered = self.answer(model)
        summary = facts(folder, model) | self.accuracies(answered)
        parts = [f"# {folder.name}", headline(summary)]
        if self.criterion is not None:
            metrics = read_metrics(folder / "metrics.jsonl")
            step = summary["criterion_step"] = reached(metrics, self.criterion)
            goal = f"{self.criterion:.0%} right answers in the trained lengths"
            parts.append(f"Reached {goal} at step {step}." if step else f"Failed to reach {goal}.")
        lengths = [max(question.cell) for question, _ in answered]  # the other condition is less
        shares = pd.Series([answer.right for _, answer in answered]).groupby(lengths).mean()
        rows = [(length, f"{share:.1%}") for length, share in shares.items()]
        parts.append(markdown_table([("length", "right answers"), *rows]))
        more = (
            f"answers and a picture: tape evaluate {quote(str(folder))} --task {self.record.name}"
        )
        text = "\n\n".join([*parts, f"{len(answered):,} {self.unit}. More of them, {more}"]) + "\n"
        publish(folder, summary, text)
        return text

    @staticmethod
    def asked(
        given: argparse.Namespace, folder: Path, model: TapeForCausalLM
    ) -> tuple[Questions, str]:
        """Returns what a command asks of the model in a folder, and the name of the results."""
        raise NotImplementedError
