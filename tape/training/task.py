"""What a run is about: the sequences that it trains and is validated on, and its last words."""

from __future__ import annotations

from pathlib import Path

from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, default_data_collator

from tape.modeling import TapeForCausalLM


class Task:
    """Made by `config/task` from the data, the settings of the run (plain dictionaries) and its
    TrainingArguments. Every process makes one; the first one before the others.

    Attributes:
        tokenizer: saved beside the model.
        train: the training sequences, as many as the run takes, in the order of training.
        evaluation: the validation sequences.
        fingerprints: of the data by their names; a run is only continued with the same.
        collate: makes a batch of a list of sequences.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    evaluation: Dataset
    fingerprints: dict[str, str]
    collate = staticmethod(default_data_collator)

    def describe(self) -> str:
        """How much there is to learn from, for the console."""
        raise NotImplementedError

    def check(self, model: TapeForCausalLM) -> None:
        """Before training: raise a ValueError for a model that `measure` or `report` could not
        do."""

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        """Numbers by name that each validation adds to its loss, the same in every process."""
        return {}

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        """Write folder/report/ on the model that was saved there; its text, for the console."""
        raise NotImplementedError
