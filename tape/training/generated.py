"""Training on sequences that are generated, with questions answered at each validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics
from tape.settings.run import RunSettings
from tape.training.arguments import training_order
from tape.training.criterion import reached
from tape.training.report import facts, headline, publish
from tape.training.task import Task
from tape.validation import check_integer


class GeneratedSequences(Dataset):
    """`total` sequences. Sequence i is a function of i and the seed, independent of batches,
    processes and interruptions. Held-out sequences differ from training sequences for all seeds.

    Raises:
        ValueError: for total below 1, or a negative seed.
    """

    def __init__(
        self,
        source: Any,
        tokenizer: PreTrainedTokenizerBase,
        total: int,
        seed: int,
        held_out: bool = False,
    ):
        check_integer("total", total)
        check_integer("seed", seed, least=0)
        self.source, self.tokenizer = source, tokenizer
        self.total, self.seed, self.held_out = total, seed, held_out

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        if not 0 <= i < self.total:
            raise IndexError(f"sequence {i} of {self.total}")
        return self.sequence(i)

    def sequence(self, i: int) -> dict[str, Tensor]:
        raise NotImplementedError


class Answered(NamedTuple):
    question: Any
    given: str
    right: bool


class GeneratedTask(Task):
    """Each validation answers a fixed sample of questions. `accuracy in` and `accuracy out` are the
    fractions answered correctly within and beyond the trained lengths.

    Args:
        source: settings of the sequences, with their `length` in tokens; saved with the model.
        sequences: subclass of GeneratedSequences.
        samples: questions of each cell.

    Raises:
        ValueError: for a source of another task; unless the run's `length` equals that of the
            sequences.
    """

    kind: type  # of the source
    unit: str  # plural
    template: str  # of the report

    def __init__(
        self,
        source: Any,
        sequences: type[GeneratedSequences],
        tokenizer: PreTrainedTokenizerBase,
        settings: RunSettings,
        arguments: TrainingArguments,
        samples: int,
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
        self.source, self.tokenizer = source, tokenizer
        self.train = sequences(source, tokenizer, *training_order(arguments))
        # All seeds of a comparison share the held-out sequences and the questions.
        self.evaluation = sequences(source, tokenizer, blocks, seed=0, held_out=True)
        sets = sequences(source, tokenizer, 1, seed=0), self.evaluation
        written = "".join(tokenizer.decode(of[0]["input_ids"]) for of in sets)
        self.fingerprints = {unit: hashlib.sha256(written.encode()).hexdigest()[:16]}

    def answer(self, model: TapeForCausalLM) -> Iterable[Answered]:
        raise NotImplementedError

    def is_inside(self, question: Any) -> bool:
        """Returns whether a question is within the trained lengths."""
        raise NotImplementedError

    def summarize(self, answered: list[Answered]) -> dict[str, Any]:
        """Returns the accuracies of the report."""
        parts: dict[str, list[bool]] = {"accuracy_in": [], "accuracy_out": []}
        for question, _, right in answered:
            parts["accuracy_in" if self.is_inside(question) else "accuracy_out"].append(right)
        return {name: mean(right) for name, right in parts.items()}

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        """Returns further values for the template of the report."""
        raise NotImplementedError

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        return GeneratedTask.summarize(self, [*self.answer(model)])

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.source.save(folder)
        answered = [*self.answer(model)]
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
