"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scrolls.score import COLUMNS
from tape.results.experiment import Experiment, Folder, Kind, Read
from tape.results.html import Block, Table, number
from tape.results.run_section import runs, task_of
from tape.results.sections import blocks_of, has_columns, rows_of, show

METRICS = "_metrics.json"


def read_table(folder: Folder) -> list[Block]:
    rows_of(folder.path / "table.csv")
    return blocks_of(folder.path / "table.md")


def metrics_in(folder: Folder) -> list[Path]:
    return [folder.path / name for name in sorted(folder.files) if name.endswith(METRICS)]


def read_metrics(folder: Folder) -> dict[Path, dict[str, Any]]:
    """The metrics of each task, or the errors that stand in their place.

    Raises:
        ValueError: if a file is neither.
    """
    found = {}
    for path in metrics_in(folder):
        try:
            found[path] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): score again") from error
        if found[path].keys().isdisjoint(("scrolls_score", "errors")):
            raise ValueError(f"{path} has neither a score nor errors: score again")
    return found


def show_metrics(found: Read[dict[Path, dict[str, Any]]]) -> list[Block]:
    """A row per file."""
    rows = []
    for _, metrics in found:
        for path, scored in metrics.items():
            errors = " ".join(scored.get("errors", []))
            counts = ("scrolls_score", "num_predicted", "mean_prediction_length_characters")
            numbers = (number(scored.get(key)) for key in counts)
            rows.append([str(path), path.name.removesuffix(METRICS), *numbers, errors])
    head = ["file", "task", "score", "answers", "mean characters of an answer", "errors"]
    return [Table(head, rows, "Scores by the official rules")]


EXPERIMENT = Experiment(
    name="scrolls",
    title="SCROLLS",
    about="Questions on long texts and summaries of them, after fine-tuning (the paper's Table 1, "
    "whose rows are in the tables).",
    kinds=[
        Kind(
            title="tables",
            command="python eval_scrolls.py --all --predictions scrolls "
            "--metrics_output_dir scrolls/metrics",
            holds=lambda folder: has_columns(folder.path / "table.csv", ("encoding", *COLUMNS)),
            read=read_table,
            show=show,
        ),
        Kind(
            title="folders of scores",
            command="python eval_scrolls.py --split validation --dataset_name quality "
            "--predictions scrolls/quality/adape.json --metrics_output_dir scrolls/metrics",
            holds=lambda folder: bool(metrics_in(folder)),
            read=read_metrics,
            show=show_metrics,
        ),
        runs(
            lambda run: task_of(run).startswith("scrolls."),
            "TYPE=adape DATASET_NAME=quality bash script/ft_scrolls.sh",
        ),
    ],
)
