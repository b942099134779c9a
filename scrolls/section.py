"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from scrolls.score import COLUMNS
from tape.results.html import number, records
from tape.results.kinds import Found, Kind, columns_of, rows_of, runs, shown, task_of, text_of
from tape.results.report import Experiment

METRICS = "_metrics.json"


def read_table(folder: Path) -> Found:
    rows_of(folder / "table.csv")
    return shown(folder, text_of(folder / "table.md"))


def metrics_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"[!.]*{METRICS}"))


def read_metrics(folder: Path) -> Found:
    """A row per file: the metrics of a task, or the errors that stand in their place.

    Raises:
        ValueError: if a file has neither.
    """
    rows = []
    for path in metrics_in(folder):
        try:
            scored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): score again") from error
        if scored.keys().isdisjoint(("scrolls_score", "errors")):
            raise ValueError(f"{path} has neither a score nor errors: score again")
        rows.append(
            {
                "file": path,
                "task": path.name.removesuffix(METRICS),
                "score": number(scored.get("scrolls_score")),
                "answers": number(scored.get("num_predicted")),
                "mean characters of an answer": number(
                    scored.get("mean_prediction_length_characters")
                ),
                "errors": " ".join(scored.get("errors", [])),
            }
        )
    return Found(rows)


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
            holds=lambda folder: {"encoding", *COLUMNS} <= {*columns_of(folder / "table.csv")},
            read=read_table,
        ),
        Kind(
            title="folders of scores",
            command="python eval_scrolls.py --split validation --dataset_name quality "
            "--predictions scrolls/quality/adape.json --metrics_output_dir scrolls/metrics",
            holds=lambda folder: bool(metrics_in(folder)),
            read=read_metrics,
            table=partial(records, caption="Scores by the official rules"),
        ),
        runs(
            lambda run: task_of(run).startswith("scrolls."),
            "TYPE=adape DATASET_NAME=quality bash script/ft_scrolls.sh",
        ),
    ],
)
