"""Interface of training tasks: training and validation sequences, measures and the report."""

from pathlib import Path

from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase, default_data_collator

from tape.model.modeling import TapeForCausalLM


class Task:
    """Created by `config/task` in every process of a run, in the first before the others.

    Attributes:
        train: training sequences in training order, as many as the run consumes.
        evaluation: validation sequences.
        fingerprints: of the data by name; a run only resumes with the same.
        criterion: `accuracy in` of two successive validations that ends training, 20 % more steps
            later (`ToCriterion`); None: training ends at trainer.max_steps.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    evaluation: Dataset
    fingerprints: dict[str, str]
    collate = staticmethod(default_data_collator)
    criterion: float | None = None

    def describe(self) -> str:
        """Describes the amount of data, for the console."""
        raise NotImplementedError

    def check(self, model: TapeForCausalLM) -> None:
        """Raises a ValueError before training for a model that cannot be measured or reported."""

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        """Returns measures by name for each validation, equal in all processes."""
        return {}

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        """Writes folder/report/ for the saved model; returns its text, for the console."""
        raise NotImplementedError
