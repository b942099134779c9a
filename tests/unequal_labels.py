"""A task whose sequences differ in their number of labels; many have none."""

import torch
from transformers import TrainingArguments

from arithmetic.problems import character_tokenizer
from tape.training.arguments import training_order
from tape.training.task import Task

LENGTH = 32
LABELS = [0, 0, 29, 3, 5, 1, 0, 0]  # of sequence after sequence


def sequence(index: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    tokens = torch.randint(10, (LENGTH,), generator=generator)
    labels = tokens.clone()
    labels[: LENGTH - LABELS[index % len(LABELS)]] = -100
    return {"input_ids": tokens, "labels": labels}


class UnequalLabels(Task):
    def __init__(self, data, settings: dict, arguments: TrainingArguments):
        self.tokenizer = character_tokenizer()
        self.train = [sequence(index) for index in range(training_order(arguments)[0])]
        # Two processes with batches of two: one has no label, then both fill up their batch.
        self.evaluation = [sequence(index) for index in range(5)]
        self.fingerprints = {}

    def describe(self) -> str:
        return "sequences with unequal labels"

    def report(self, folder, model) -> str:
        return ""
