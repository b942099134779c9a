"""Training runs: progress, reports, configuration and provenance."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tape import provenance
from tape.model.adapters import ADAPTER
from tape.model.checkpoint import WEIGHTS
from tape.results.experiment import Folder, Kind, Read, is_png
from tape.results.html import Block, Code, Details, Markdown, Paragraph, Pictures, number, records
from tape.runs.folder import CONFIGURATION, TRAINED, read_configuration
from tape.runs.metrics import MetricsFile, read_metrics
from tape.training.criterion import last_step, reached

Settings = dict[str, Any]  # flat
# Keys of report.json that are no measurements, or have a column of their own.
FACTS = (
    "position",
    "attention",
    "parameters",
    "steps",
    "tokens_per_second",
    "peak_memory_gib",
    "data_share",
    "mfu",
    "product_share",
    "ngrams",
    "scored_bytes",
)
LOSSES = {"loss": "training", "eval_loss": "validation"}


class TrainingRun(NamedTuple):
    """
    Attributes:
        settings: the configuration.
        steps: finished steps.
        losses: the last ones in the metrics.
        report: report.json if it is of the planned number of steps, else empty.
        left: what is still to be done, or None.
    """

    settings: Settings
    steps: int
    losses: dict[str, float]
    report: dict[str, Any]
    left: str | None


def settings_of(folder: Folder) -> Settings:
    """Returns the configuration of a run: of the present training, else of its weights.

    Raises:
        ValueError: if neither can be read.
    """
    return read_configuration(folder.path, CONFIGURATION if folder.has(CONFIGURATION) else TRAINED)


def task_of(settings: Settings) -> str:
    """Returns the class of a run's task, or "" if it was not recorded."""
    return str(settings.get("task._target_") or "")


def encoding_of(folder: Path) -> str:
    """Returns the encoding of the run in a folder, or "" if it is unknown."""
    for name in (TRAINED, CONFIGURATION):
        with suppress(OSError, ValueError):
            return str(read_configuration(folder, name).get("position.name", ""))
    return ""


def is_run(folder: Folder) -> bool:
    return not folder.files.isdisjoint((CONFIGURATION, TRAINED, MetricsFile.FILE))


def read_run(folder: Folder) -> TrainingRun:
    """Raises a ValueError or other exceptions for damaged files."""
    settings = settings_of(folder)
    planned = settings["trainer.max_steps"]
    metrics: list[dict[str, Any]] = []
    if folder.has(MetricsFile.FILE):
        path = folder.path / MetricsFile.FILE
        metrics = read_metrics(path)
        if len(metrics) + 1 < len(path.read_text().splitlines()):  # the last may be half-written
            raise ValueError(f"{path}, line {len(metrics) + 1}, is damaged")
    steps = max(row["step"] for row in metrics) if metrics else None
    most, criterion = planned, settings.get("task.criterion")
    planned = last_step(reached(metrics, criterion), most)
    path = folder.path / "report" / "report.json"
    report = json.loads(path.read_text()) if path.is_file() else None
    if not report or report["steps"] != planned:
        report = {}
    trained = folder.has(TRAINED) and read_configuration(folder.path, TRAINED)
    done, left = f"{steps or 0:,} of {planned:,} steps are done", None
    if steps is not None and steps < planned:
        left = f"{done}: the same command continues"
    elif not trained or trained["trainer.max_steps"] != most:
        left = f"{done}, and {TRAINED} is missing or of others"
    elif not report and (folder.has(WEIGHTS) or folder.has(ADAPTER)):
        left = "trained, and no report written: the same command writes it"
    losses = {key: row[key] for row in metrics for key in LOSSES if key in row}
    return TrainingRun(settings, planned if steps is None else steps, losses, report, left)


def runs(belongs: Callable[[Settings], bool], command: str) -> Kind:
    """Training runs whose settings `belongs` accepts."""

    def holds(folder: Folder) -> bool:
        with suppress(OSError, ValueError):
            return is_run(folder) and belongs(settings_of(folder))
        return False

    return Kind("runs", command, holds, read_run, show, lambda run: run.left)


def achieved_in(report: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurements of a report by name; perplexities by multiples of the training
    length."""
    found: dict[str, Any] = {}
    for name, value in report.items():
        if name == "perplexity":
            found |= {f"perplexity {row['times']}x": row["perplexity"] for row in value}
            if report.get("scored_bytes"):  # others: of the mean bytes per token of a whole text
                found |= {"bits per byte": value[0]["bits_per_byte"]}
        elif isinstance(value, dict) and name not in FACTS:
            found |= {f"{name} {key}": each for key, each in value.items()}
        elif name not in FACTS:
            found[name.replace("_", " ")] = value
    return found


def show(found: Read[TrainingRun]) -> list[Block]:
    """A table with a row per run, then the details of each."""
    achieved = [achieved_in(run.report) for _, run in found]
    columns = list(dict.fromkeys(name for each in achieved for name in each))
    methods = any(run.settings.get("peft.name") for _, run in found)
    rows = []
    for (folder, (settings, steps, _, report, left)), each in zip(found, achieved, strict=True):
        rows.append(
            {
                "run": str(folder.path),
                "encoding": str(settings.get("position.name", "")),
                **({"method": str(settings.get("peft.name"))} if methods else {}),
                "seed": number(settings.get("seed")),
                "state": "finished" if left is None else "unfinished",
                "steps": number(steps),
                "parameters": number(report.get("parameters")),
                **{name: number(each.get(name)) for name in columns},
                "tokens/s": number(report.get("tokens_per_second")),
                "memory, GiB": number(report.get("peak_memory_gib")),
            }
        )
    details = (Details(str(folder.path), inside(folder, run)) for folder, run in found)
    return [records(rows, "Training runs"), *details]


def inside(folder: Folder, run: TrainingRun) -> list[Block]:
    """The report of a run, its pictures, provenance and configuration."""
    blocks: list[Block] = []
    if run.left is not None:
        last = [f"{LOSSES[key]} loss {value:.4f}" for key, value in run.losses.items()]
        blocks.append(Paragraph(", ".join([run.left, *last]) + "."))
    report = folder.path / "report"
    if (written := report / "report.md").is_file():
        _, _, below = written.read_text(encoding="utf-8", errors="replace").partition("\n")
        blocks.append(Markdown(below))
    if report.is_dir():
        blocks.append(Pictures(sorted(path for path in report.iterdir() if is_png(path.name))))
    settings = [f"{key}: {value}" for key, value in run.settings.items() if value is not None]
    return [*blocks, *made_by(folder.path), Details("Configuration", [Code("\n".join(settings))])]


def made_by(folder: Path) -> list[Block]:
    """The processes that produced a folder, if they were recorded."""
    processes = []
    for process in provenance.read(folder):
        words = {
            key: ", ".join(map(" ".join, value.items())) if isinstance(value, dict) else value
            for key, value in process.items()
        }
        processes.append("\n".join(f"{key}: {value}" for key, value in words.items()))
    if not processes:
        return [Paragraph("Command, commit and machine were not recorded.")]
    return [Details("Command, commit and machine", [Code("\n\n".join(processes))])]
