"""A model to export, and the records of the run that trained it."""

from __future__ import annotations

import filecmp
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from tape.files import read_object
from tape.model.checkpoint import load_model, read_tokenizer
from tape.model.modeling import TapeForCausalLM
from tape.runs.folder import (
    CONFIGURATION,
    HASHES,
    checkpoints,
    last_complete,
    step_of,
    verify_checkpoint,
)
from tape.runs.metrics import MetricsFile, read_metrics

CHECKPOINT = re.compile(r"checkpoint-\d+")
REPORT = Path("report", "report.json")


@dataclass(frozen=True)
class Source:
    """A folder with one of our models: a run, one of its checkpoints, or any other.

    Attributes:
        run: folder of the run that it belongs to, if any.
        step: training steps of its weights, if recorded.
    """

    folder: Path
    run: Path | None
    step: int | None

    @classmethod
    def open(cls, folder: Path) -> Source:
        """Raises a ValueError for a checkpoint that is damaged."""
        folder = folder.resolve()
        is_checkpoint = CHECKPOINT.fullmatch(folder.name) is not None
        run = folder.parent if is_checkpoint else folder
        recorded = (run / CONFIGURATION).exists()
        hashed = (folder / HASHES).exists() or (is_checkpoint and recorded)
        if hashed and (found := verify_checkpoint(folder)) is not None:
            newest = last_complete(run) or "no checkpoint"
            raise ValueError(f"{folder} is a damaged checkpoint ({found}): {newest} is complete")
        step = step_of(folder) if is_checkpoint else _step_of_final(run) if recorded else None
        return cls(folder, run if recorded else None, step)

    def load(self) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase | None]:
        """Returns the model in its saved dtype, and its tokenizer if it has one; an adapter is
        merged into its base.

        Raises:
            ValueError: if there is no complete model of ours.
        """
        model = load_model(self.folder).cpu()
        has_tokenizer = (self.folder / "tokenizer_config.json").exists()
        return model, read_tokenizer(self.folder) if has_tokenizer else None

    def settings(self) -> dict[str, Any] | None:
        """Returns the configuration of the run."""
        return None if self.run is None else read_object(self.run / CONFIGURATION)

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the run's metrics up to the step of these weights."""
        if self.run is None or not (path := self.run / MetricsFile.FILE).exists():
            return []
        rows = read_metrics(path)
        return [row for row in rows if self.step is None or row["step"] <= self.step]

    def report(self) -> dict[str, Any] | None:
        """Returns the run's report if it is about these weights."""
        if self.run is None or not (self.run / REPORT).exists():
            return None
        report = read_object(self.run / REPORT)
        return report if report.get("steps") == self.step else None


def _step_of_final(run: Path) -> int | None:
    """Returns the step of the run's final model: of the checkpoint with the same weights, because
    the log may have continued; without such a checkpoint, the report's."""
    weights = sorted(path.name for path in run.glob("*model*.safetensors"))
    for checkpoint in reversed(checkpoints(run)):
        if verify_checkpoint(checkpoint) is None and not any(
            filecmp.cmpfiles(run, checkpoint, weights, False)[1:]
        ):
            return step_of(checkpoint)
    return read_object(run / REPORT).get("steps") if (run / REPORT).exists() else None
