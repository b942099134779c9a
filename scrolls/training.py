"""Fine-tuning on a task: its rows in batches of about one length, and some answers in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import TrainingArguments

from scrolls.examples import Examples, ScrollsData, tokenize_split
from scrolls.generation import answers, plan
from scrolls.metrics import SCORE, averages, example
from scrolls.prompts import IGNORED, TRAINED_FOR, Prompts, budget_of
from scrolls.tasks import task_named
from tape.data import load_tokenizer
from tape.evaluation.checkpoint import check_length
from tape.files import write_text
from tape.modeling import TapeForCausalLM
from tape.training.arguments import sequences_per_step, training_order
from tape.training.progress import read_metrics
from tape.training.report import facts, headline, plot_loss, printable
from tape.training.task import Task

POOL = 32  # steps whose sequences are sorted by length together
BATCH = 8  # whole budgets that are answered together
SHOWN = 12  # answers in the report
SHOWN_CHARACTERS = 120


class Answered(NamedTuple):
    question: str
    golds: list[str]
    given: str
    scores: dict[str, float]


class RowSequences(Dataset):
    """Rows of a split as a causal model's inputs and labels."""

    def __init__(self, examples: Examples, prompts: Prompts, rows: list[int]):
        self.examples, self.prompts, self.rows = examples, prompts, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, labels = self.examples.example(self.rows[index], self.prompts)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


class TrainingRows(Dataset):
    """The sequences of a run in the order of training: `total` rows, epoch after epoch. Those of
    one step are about equally long, and its batches more so.

    The n-th is a function of n, the seed and the sequences per step. How many processes share a
    step, and whether the run was ever stopped, makes no difference.
    """

    def __init__(self, sequences: RowSequences, total: int, seed: int, per_step: int):
        self.sequences, self.total, self.seed, self.per_step = sequences, total, seed, per_step
        examples, rows = sequences.examples, sequences.rows
        documents = examples.documents.lengths()[examples.document[rows]]
        self.lengths = documents + examples.questions.lengths()[rows]
        self._epoch: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(n, len(self.sequences))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        return self.sequences[self._epoch[1][place]]

    def _order(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.sequences))
        lengths = np.minimum(self.lengths, self.sequences.prompts.budget.prompt)
        pools = np.split(order, range(POOL * self.per_step, len(order), POOL * self.per_step))
        order = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
        steps = np.split(order, range(self.per_step, len(order), self.per_step))
        *whole, last = steps  # a last one that is not whole stays where it is
        random.shuffle(whole)
        return np.concatenate([*whole, last])


def padded(sequences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch, padded on the right, where causal attention does not look: it needs no mask."""
    return {
        name: pad_sequence([sequence[name] for sequence in sequences], True, padding)
        for name, padding in (("input_ids", 0), ("labels", IGNORED))
    }


class ScrollsTask(Task):
    """Train on every gold answer of a task; validate on the first one of each question.

    Raises:
        ValueError: unless the run's `length` is that of the budget; for a question that leaves no
            room for the document.
    """

    collate = staticmethod(padded)

    def __init__(
        self,
        data: ScrollsData,
        settings: dict[str, Any],
        arguments: TrainingArguments,
        *,
        samples: int,
    ):
        task = task_named(data.task)
        self.data, self.settings, self.samples = data, settings, samples
        self.tokenizer = load_tokenizer(settings["tokenizer"])
        self.prompts = Prompts(self.tokenizer, task, budget_of(data.budget, task))
        if settings["length"] != self.prompts.budget.length:
            raise ValueError(
                f"length={settings['length']}: budget {data.budget} has "
                f"{self.prompts.budget.length} tokens; give budget={data.budget}, which sets both"
            )
        data_dir = None if data.data_dir is None else Path(data.data_dir)
        of = (data_dir, self.tokenizer, self.prompts, Path(settings["cache_dir"]))
        train = tokenize_split(task, "train", *of)
        self.validation = tokenize_split(task, "validation", *of)
        for examples in (train, self.validation):
            examples.check(self.prompts)
        total, seed = training_order(arguments)
        self.train = TrainingRows(
            RowSequences(train, self.prompts, list(range(len(train.ids)))),
            *(total, seed, sequences_per_step(arguments)),
        )
        self.evaluation = RowSequences(
            self.validation, self.prompts, self._spread(settings["eval_blocks"])
        )
        self.fingerprints = {"train": train.fingerprint, "validation": self.validation.fingerprint}

    def _spread(self, count: int | None) -> list[int]:
        """Rows of so many questions, spread evenly over the validation."""
        rows = self.validation.first_rows()
        if count is None or count >= len(rows):
            return rows
        return [rows[place] for place in np.linspace(0, len(rows) - 1, count).astype(int)]

    def describe(self) -> str:
        return (
            f"{self.data.task}: {len(self.train.sequences):,} answers to learn, "
            f"{len(self.validation.first_rows()):,} questions to validate on"
        )

    def check(self, model: TapeForCausalLM) -> None:
        check_length(model, self.prompts.budget.length, f"budget={self.data.budget}")

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        trained_for = {"task": self.data.task, "budget": self.data.budget}
        write_text(folder / TRAINED_FOR, json.dumps(trained_for) + "\n")
        answered = self._answered(model)
        metrics = read_metrics(folder / "metrics.jsonl")
        metric = task_named(self.data.task).metric
        score = averages(metric, [one.scores for one in answered])[SCORE[metric]]
        summary = facts(model, metrics) | {
            "task": self.data.task,
            "budget": self.data.budget,
            "metric": SCORE[metric],
            "questions": len(answered),
            "score": round(score, 4),
        }
        text = _markdown(folder, summary, answered)
        write_text(folder / "report" / "report.json", json.dumps(summary, indent=1) + "\n")
        write_text(folder / "report" / "report.md", text)
        plot_loss(metrics, folder.name, folder / "report" / "loss.png")
        return text

    def _answered(self, model: TapeForCausalLM) -> list[Answered]:
        """The answers to a sample of the validation."""
        task, validation = task_named(self.data.task), self.validation
        golds: dict[str, list[str]] = {}
        for row, id_ in enumerate(validation.ids):
            gold = self.tokenizer.decode(validation.answers[row])
            golds.setdefault(id_, []).append(gold.strip())
        rows = self._spread(self.samples)
        batches = plan(validation, self.prompts, rows, BATCH * self.prompts.budget.length)
        given = {
            id_: text
            for batch in batches
            for id_, text in zip(batch.ids, answers(model, self.tokenizer, batch), strict=True)
        }
        return [
            Answered(
                self.tokenizer.decode(validation.questions[row]).strip(),
                golds[id_],
                given[id_],
                example(task.metric, given[id_], golds[id_]),
            )
            for row, id_ in ((row, validation.ids[row]) for row in rows)
        ]


def _markdown(folder: Path, summary: dict[str, Any], answered: list[Answered]) -> str:
    def cell(text: str) -> str:
        return printable(" ".join(text.split()).replace("|", "\\|")[:SHOWN_CHARACTERS])

    rows = [
        f"| {cell(question)} | {cell(' / '.join(golds))} | {cell(given)} |"
        for question, golds, given, _ in answered[:SHOWN]
    ]
    return "\n".join(
        [
            f"# {folder.name}",
            "",
            headline(summary),
            "",
            f"{summary['task']}, budget {summary['budget']}: {summary['metric']} "
            f"{summary['score']:.2f} on {summary['questions']} questions of the validation, "
            f"answered greedily. Some of them:",
            "",
            "| question | gold answers | given |",
            "|---|---|---|",
            *rows,
            "",
            f"All of them: python -m scrolls.generate model={folder} task={summary['task']} "
            f"output=...",
            "",
        ]
    )
