"""Fine-tuning on a task: rows in batches of similar length, and a score at the end."""

import json
from collections import defaultdict
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset
from transformers import TrainingArguments

from scrolls.examples import BUDGETS, TRAINED_FOR, Examples, Prompts, ScrollsData, tokenize_split
from scrolls.generate import AS_WRITTEN, answers, plan
from scrolls.metrics import SCORE, results
from scrolls.tasks import TASKS
from tape.core.files import write_text
from tape.data import EpochOrder, load_tokenizer
from tape.model.checkpoint import check_length
from tape.model.loss import IGNORED
from tape.model.modeling import TapeForCausalLM
from tape.training.arguments import sequences_per_step, training_order
from tape.training.report import facts, headline, publish
from tape.training.settings import RunSettings
from tape.training.task import Task

POOL = 32  # steps whose sequences are sorted by length together
BATCH = 8  # prompts of full budget that are answered together in the report


class TrainingRows(EpochOrder):
    """Sequences of a step have similar lengths, those of a batch even more so, except in steps
    across two epochs. The order also depends on the number of sequences per step."""

    def __init__(self, examples: Examples, total: int, seed: int, per_step: int):
        super().__init__(examples, total, seed)
        self.per_step = per_step
        self.lengths = np.minimum(examples.lengths, examples.prompts.budget.prompt)

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
    """Trains on every gold answer of a task; validates on the first one of each question."""

    collate = staticmethod(padded)

    def __init__(
        self, data: ScrollsData, settings: RunSettings, arguments: TrainingArguments, samples: int
    ):
        if settings.base_model is None:
            raise ValueError("give base_model=..., the folder of a pre-trained model")
        task = TASKS[data.task]
        self.data, self.samples = data, samples
        self.tokenizer = load_tokenizer(settings.tokenizer)
        self.prompts = Prompts(self.tokenizer, task, BUDGETS[data.budget][task.kind])
        length = self.prompts.budget.length
        if settings.length != length:
            what = f"length={settings.length}: budget {data.budget} has {length} tokens"
            raise ValueError(f"{what}; give budget={data.budget}, which sets both")
        cache = Path(settings.cache_dir)
        folder = data.data_dir and Path(data.data_dir)
        train = tokenize_split(self.prompts, "train", folder, cache)
        self.validation = tokenize_split(self.prompts, "validation", folder, cache)
        total, seed = training_order(arguments)
        self.train = TrainingRows(train, total, seed, sequences_per_step(arguments))
        rows = self.validation.questions_spread(settings.eval_blocks)
        self.evaluation = Subset(self.validation, rows)
        self.fingerprints = {"train": train.fingerprint, "validation": self.validation.fingerprint}

    def describe(self) -> str:
        answers, questions = len(self.train.sequences), len({*self.validation.ids})
        return f"{self.data.task}: {answers:,} answers to learn, {questions:,} validation questions"

    def check(self, model: TapeForCausalLM) -> None:
        check_length(model, self.prompts.budget.length, f"budget={self.data.budget}")

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        """Answers some validation questions greedily and scores the answers."""
        task, budget = self.data.task, self.data.budget
        trained_for = {"task": task, "budget": budget}
        write_text(folder / TRAINED_FOR, json.dumps(trained_for) + "\n")
        golds, examples = defaultdict(list), self.validation
        for row, id_ in enumerate(examples.ids):
            gold = self.tokenizer.decode(examples.tokens("answer", row), **AS_WRITTEN)
            golds[id_].append(gold.strip())
        rows = examples.questions_spread(self.samples)
        given: dict[str, str] = {}
        for batch in plan(examples, rows, BATCH * self.prompts.budget.length):
            given |= answers(model, self.tokenizer, batch)
        scores = results(self.prompts.task, [*given.values()], [golds[id_] for id_ in given])
        metric, score = SCORE[self.prompts.task.metric], scores["scrolls_score"]
        summary = facts(folder, model) | trained_for
        summary |= {"metric": metric, "score": score, "questions": len(rows)}
        found = f"{metric} {score:.2f} on {len(rows)} validation questions, greedily."
        more = f"tape scrolls-generate {quote(f'model={folder}')} task={task} output=answers.json"
        if self.data.data_dir:
            more += f" {quote(f'data_dir={self.data.data_dir}')}"
        text = f"# {folder.name}\n\n{headline(summary)}\n\n{task}, budget {budget}: {found}\n\n"
        text += f"All of them: {more}\n"
        publish(folder, summary, text)
        return text
