"""Fine-tuning on a task: rows in batches of similar length, and sample answers at the end."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import TrainingArguments

from scrolls.examples import (
    TRAINED_FOR,
    Examples,
    Prompts,
    ScrollsData,
    budget_of,
    tokenize_split,
)
from scrolls.generate import answers, plan
from scrolls.metrics import SCORE, averages, example
from scrolls.tasks import TASKS
from tape.data import EpochOrder, load_tokenizer
from tape.evaluation.tables import markdown_table
from tape.files import write_text
from tape.model.checkpoint import check_length
from tape.model.loss import IGNORED
from tape.model.modeling import TapeForCausalLM
from tape.runs.metrics import read_metrics
from tape.settings.run import RunSettings
from tape.training.arguments import sequences_per_step, training_order
from tape.training.report import facts, headline, printable, publish
from tape.training.task import Task
from tape.validation import check_integer, check_path

POOL = 32  # steps whose sequences are sorted by length together
BATCH = 8  # prompts of full budget that are answered together in the report
SHOWN = 12  # answers in the report
SHOWN_CHARACTERS = 120  # per answer
REPORT = """\
# {run}

{headline}

{task}, budget {budget}: {metric} {score:.2f} on {questions} validation questions, \
answered greedily. Some of them:

{table}

All of them: python -m scrolls.generate model={folder} task={task} output=...
"""


class RowSequences(Dataset):
    """Rows of a split as inputs and labels of a causal model."""

    def __init__(self, examples: Examples, rows: list[int]):
        self.examples, self.rows = examples, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, labels = self.examples.example(self.rows[index])
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}


class TrainingRows(EpochOrder):
    """Sequences of a step have similar lengths, those of a batch even more so, except in steps
    across two epochs. The order also depends on the number of sequences per step."""

    def __init__(self, sequences: RowSequences, total: int, seed: int, per_step: int):
        super().__init__(sequences, total, seed)
        self.per_step = per_step
        most = sequences.examples.prompts.budget.prompt
        self.lengths = np.minimum(sequences.examples.lengths[sequences.rows], most)

    def _order(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.sequences))
        # The first sequences complete the step begun in the previous epoch.
        first = min(-epoch * len(order) % self.per_step, len(order))
        begun, order = order[:first], order[first:]
        pools = np.split(order, range(POOL * self.per_step, len(order), POOL * self.per_step))
        order = np.concatenate([pool[self.lengths[pool].argsort(kind="stable")] for pool in pools])
        *whole, last = np.split(order, range(self.per_step, len(order), self.per_step))
        random.shuffle(whole)  # the last one may be partial and stays at the end
        return np.concatenate([begun, *whole, last])


def padded(sequences: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pads a batch on the right, where causal attention does not look, so it needs no mask."""
    return {
        name: pad_sequence([sequence[name] for sequence in sequences], True, padding)
        for name, padding in (("input_ids", 0), ("labels", IGNORED))
    }


class ScrollsTask(Task):
    """Trains on every gold answer of a task; validates on the first one of each question.

    Raises:
        ValueError: unless the run's `length` equals the budget's; for a question that leaves no
            room for the document.
    """

    collate = staticmethod(padded)

    def __init__(
        self,
        data: ScrollsData,
        settings: RunSettings,
        arguments: TrainingArguments,
        *,
        samples: int,
    ):
        check_integer("task.samples", samples)
        if settings.base_model is None:
            raise ValueError("give base_model=..., the folder of a pre-trained model")
        task = TASKS[data.task]
        self.data, self.settings, self.samples = data, settings, samples
        self.tokenizer = load_tokenizer(settings.tokenizer)
        self.prompts = Prompts(self.tokenizer, task, budget_of(data.budget, task))
        length = self.prompts.budget.length
        if settings.length != length:
            raise ValueError(
                f"length={settings.length}: budget {data.budget} has {length} tokens; give "
                f"budget={data.budget}, which sets both"
            )
        cache = check_path("cache_dir", settings.cache_dir)
        folder = data.data_dir and Path(data.data_dir)
        train = tokenize_split(self.prompts, "train", folder, cache)
        self.validation = tokenize_split(self.prompts, "validation", folder, cache)
        total, seed = training_order(arguments)
        sequences = RowSequences(train, list(range(len(train.ids))))
        self.train = TrainingRows(sequences, total, seed, sequences_per_step(arguments))
        rows = self.validation.questions_spread(settings.eval_blocks)
        self.evaluation = RowSequences(self.validation, rows)
        self.fingerprints = {"train": train.fingerprint, "validation": self.validation.fingerprint}

    def describe(self) -> str:
        return (
            f"{self.data.task}: {len(self.train.sequences):,} answers to learn, "
            f"{len(set(self.validation.ids)):,} questions to validate on"
        )

    def check(self, model: TapeForCausalLM) -> None:
        check_length(model, self.prompts.budget.length, f"budget={self.data.budget}")

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        """Answers some validation questions greedily and scores the answers."""
        trained_for = {"task": self.data.task, "budget": self.data.budget}
        write_text(folder / TRAINED_FOR, json.dumps(trained_for) + "\n")
        examples, golds = self.validation, defaultdict(list)
        for row, id_ in enumerate(examples.ids):
            golds[id_].append(self.tokenizer.decode(examples.tokens("answer", row)).strip())
        rows = examples.questions_spread(self.samples)
        given: dict[str, str] = {}
        for batch in plan(examples, rows, BATCH * self.prompts.budget.length):
            given |= zip(batch.ids, answers(model, self.tokenizer, batch), strict=True)

        metric, metrics = TASKS[self.data.task].metric, read_metrics(folder / "metrics.jsonl")
        scores = [example(metric, text, golds[id_]) for id_, text in given.items()]
        score = round(averages(metric, scores)[SCORE[metric]], 4)
        summary = facts(model, metrics) | trained_for
        summary |= {"metric": SCORE[metric], "score": score, "questions": len(rows)}

        def cell(text: str) -> str:
            return printable(" ".join(text.split()).replace("|", "\\|")[:SHOWN_CHARACTERS])

        shown = [["question", "gold answers", "given"]]
        for row in rows[:SHOWN]:
            id_, question = examples.ids[row], self.tokenizer.decode(examples.question(row))
            shown.append([cell(question), cell(" / ".join(golds[id_])), cell(given[id_])])
        about = {"run": folder.name, "headline": headline(summary), "table": markdown_table(shown)}
        text = REPORT.format(folder=folder, **about, **summary)
        publish(folder, metrics, summary, text)
        return text
