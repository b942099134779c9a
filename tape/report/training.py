"""Training runs: how far they are, what their reports say, and what they were trained with."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tape.adapters import ADAPTER
from tape.evaluation.checkpoint import WEIGHTS
from tape.origin import read as read_origin
from tape.report.blocks import (
    Block,
    Code,
    Details,
    Markdown,
    Paragraph,
    Pictures,
    Table,
    number,
)
from tape.report.experiment import Kind, Read
from tape.report.finding import Folder, is_png
from tape.training.progress import MetricsFile, read_metrics
from tape.training.runs import CONFIGURATION, TRAINED, read_configuration

Settings = dict[str, Any]  # flat
# In a report.json, what is not what was achieved, or has a column of its own.
FACTS = ("position", "attention", "parameters", "steps", "tokens_per_second", "peak_memory_gib")


@dataclass(frozen=True)
class TrainingRun:
    """Attributes:
    settings: the configuration, flat.
    steps: how many are done; None where no metrics are left.
    last: the last losses in the metrics.
    report: report.json; None where there is none of that many steps as are planned.
    trained: whether the weights of the end were saved. A run that goes on has those of the end that
        it had before.
    weights: whether they are still there.
    """

    settings: Settings
    steps: int | None
    last: dict[str, float]
    report: dict[str, Any] | None
    trained: bool
    weights: bool

    @property
    def planned(self) -> int:
        return self.settings["trainer.max_steps"]

    @property
    def left(self) -> str | None:
        """What is still to be done, or None."""
        done = f"{self.steps or 0:,} of {self.planned:,} steps are done"
        if self.steps is not None and self.steps < self.planned:
            return f"{done}: the same command continues"
        if not self.trained:
            return f"{done}, and {TRAINED} is missing or of others"
        if self.report is None and self.weights:
            return "trained, and no report written: the same command writes it"
        return None


def settings_of(folder: Folder) -> Settings:
    """Of the run in a folder: what it is at work on, else what its weights were trained with.

    Raises:
        ValueError: if neither can be read.
    """
    return read_configuration(folder.path, CONFIGURATION if folder.has(CONFIGURATION) else TRAINED)


def task_of(settings: Settings) -> str:
    """The class of what a run is about; empty if that was not recorded."""
    return str(settings.get("task._target_") or "")


def encoding_of(folder: Path) -> str:
    """The encoding of the run in a folder; empty if that cannot be told."""
    for name in (TRAINED, CONFIGURATION):
        with suppress(OSError, ValueError):
            return str(read_configuration(folder, name).get("position.name", ""))
    return ""


def percent(share: dict[str, float] | None) -> str:
    """A share with its interval."""
    if share is None:
        return "-"
    middle, low, high = (100 * share[key] for key in ("accuracy", "low", "high"))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def is_run(folder: Folder) -> bool:
    return not folder.files.isdisjoint((CONFIGURATION, TRAINED, MetricsFile.FILE))


def read_run(folder: Folder) -> TrainingRun:
    """Raises a ValueError or others for files that are damaged."""
    settings = settings_of(folder)
    metrics: list[dict[str, Any]] = []
    if folder.has(MetricsFile.FILE):
        path = folder.path / MetricsFile.FILE
        metrics = read_metrics(path)
        if len(metrics) + 1 < len(path.read_text().splitlines()):  # the last may be half-written
            raise ValueError(f"{path}, line {len(metrics) + 1}, is damaged")
    planned = settings["trainer.max_steps"]
    path = folder.path / "report" / "report.json"
    report = json.loads(path.read_text()) if path.is_file() else None
    trained = folder.has(TRAINED) and read_configuration(folder.path, TRAINED)
    return TrainingRun(
        settings,
        steps=max((row["step"] for row in metrics), default=0) if metrics else None,
        last={key: row[key] for row in metrics for key in ("loss", "eval_loss") if key in row},
        report=report if report and report["steps"] == planned else None,
        trained=bool(trained) and trained["trainer.max_steps"] == planned,
        weights=folder.has(WEIGHTS) or folder.has(ADAPTER),
    )


def runs(belongs: Callable[[Settings], bool], command: str) -> Kind:
    """Training runs of an experiment: those with settings that belong to it."""

    def holds(folder: Folder) -> bool:
        if not is_run(folder):
            return False
        try:
            return belongs(settings_of(folder))
        except (OSError, ValueError):
            return False

    return Kind(
        title="runs",
        command=command,
        holds=holds,
        read=read_run,
        show=show,
        unfinished=lambda run: run.left,
    )


def achieved_in(report: dict[str, Any] | None) -> dict[str, Any]:
    """What the report of a run measured, by name; perplexity by times the training length."""
    found: dict[str, Any] = {}
    for name, value in (report or {}).items():
        if name == "perplexity":
            found |= {f"perplexity {row['times']}x": row["perplexity"] for row in value}
            found |= {"bits per byte": value[0]["bits_per_byte"]}
        elif isinstance(value, dict) and name not in FACTS:
            found |= {f"{name} {key}": each for key, each in value.items()}
        elif name not in FACTS:
            found[name.replace("_", " ")] = value
    return found


def show(found: Read[TrainingRun]) -> list[Block]:
    """A table with a row per run, and what there is of each."""
    achieved = [achieved_in(run.report) for _, run in found]
    columns = list(dict.fromkeys(name for each in achieved for name in each))
    methods = [run.settings.get("peft.name") for _, run in found]
    method = ["method"] if any(methods) else []
    head = ["run", "encoding", *method, "seed", "state", "steps", "parameters", *columns]
    rows = []
    for (folder, run), each, adapted in zip(found, achieved, methods, strict=True):
        facts = run.report or {}
        rows.append(
            [
                str(folder.path),
                str(run.settings.get("position.name", "")),
                *(str(adapted) for _ in method),
                number(run.settings.get("seed")),
                "finished" if run.left is None else "unfinished",
                number(run.planned if run.steps is None else run.steps),
                number(facts.get("parameters")),
                *(number(each.get(name)) for name in columns),
                number(facts.get("tokens_per_second")),
                number(facts.get("peak_memory_gib")),
            ]
        )
    table = Table([*head, "tokens/s", "memory, GiB"], rows, "Training runs")
    return [table, *(Details(str(folder.path), inside(folder, run)) for folder, run in found)]


def inside(folder: Folder, run: TrainingRun) -> list[Block]:
    """The report of a run, its pictures, and where it comes from."""
    blocks: list[Block] = []
    if run.left is not None:
        losses = {"loss": "training", "eval_loss": "validation"}
        last = [f"{losses[key]} loss {value:.4f}" for key, value in run.last.items()]
        blocks.append(Paragraph(", ".join([run.left, *last]) + "."))
    report = folder.path / "report"
    if (written := report / "report.md").is_file():
        _, _, below = written.read_text(encoding="utf-8", errors="replace").partition("\n")
        blocks.append(Markdown(below))
    if report.is_dir():
        drawn = sorted(path for path in report.iterdir() if is_png(path.name))
        blocks.append(Pictures(drawn))
    return [*blocks, *origin(folder.path), configuration(run.settings)]


def origin(folder: Path) -> list[Block]:
    """The processes that made what is in a folder, if they were recorded."""
    lines = []
    for each in read_origin(folder):
        lines += [f"{key}: {_words(value)}" for key, value in each.items()] + [""]
    if not lines:
        return [Paragraph("Command, commit and machine were not recorded.")]
    return [Details("Command, commit and machine", [Code("\n".join(lines[:-1]))])]


def _words(value: Any) -> str:
    return ", ".join(map(" ".join, value.items())) if isinstance(value, dict) else str(value)


def configuration(settings: Settings) -> Details:
    given = {key: value for key, value in settings.items() if value is not None}
    lines = "\n".join(f"{key}: {value}" for key, value in given.items())
    return Details("Configuration", [Code(lines)])
