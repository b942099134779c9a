"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scrolls.scoring import read_predictions
from scrolls.table import COLUMNS
from scrolls.tasks import TASKS
from tape.results.experiment import Experiment, Folder, Kind, Read
from tape.results.html import Block, Details, Paragraph, Table, number
from tape.results.run_section import runs, task_of
from tape.results.sections import blocks_of, has_columns, rows_of, show

METRICS = "_metrics.json"
SHOWN = 12  # questions
SHOWN_CHARACTERS = 200  # of each answer


def is_table(folder: Folder) -> bool:
    return has_columns(folder.path / "table.csv", ("encoding", *COLUMNS))


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


def answers_in(folder: Folder) -> list[Path]:
    """The predictions of a task, if the folder has its name."""
    if folder.path.name not in TASKS:
        return []
    paths = (folder.path / name for name in sorted(folder.files) if name.endswith(".json"))
    return [path for path in paths if not path.name.endswith(METRICS)]


def read_answers(folder: Folder) -> dict[str, dict[str, str]]:
    """By type, then by question."""
    found = {path.stem: read_predictions(path) for path in answers_in(folder)}
    for name, predictions in found.items():
        if not isinstance(predictions, dict):
            raise ValueError(f"{folder.path / name}.json holds no answers by question")
    return found


def show_answers(found: Read[dict[str, dict[str, str]]]) -> list[Block]:
    """Some answers of every type side by side."""
    blocks: list[Block] = []
    for folder, answers in found:
        questions = list(dict.fromkeys(id_ for given in answers.values() for id_ in given))
        rows = [
            [id_, *(str(given.get(id_, "-"))[:SHOWN_CHARACTERS] for given in answers.values())]
            for id_ in questions[:SHOWN]
        ]
        shown = f"{min(SHOWN, len(questions))} of {len(questions):,} questions"
        more = (
            "With questions, gold answers and scores: python -m scrolls.show "
            f"--dataset_name {folder.path.name} --predictions {folder.path} --out page.html"
        )
        table = Table(["question", *answers], rows)
        blocks.append(Details(f"Answers in {folder.path}: {shown}", [table, Paragraph(more)]))
    return blocks


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
            holds=is_table,
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
        Kind(
            title="folders of answers",
            command="SAVE_DIR=scrolls/quality bash script/gen_scrolls.sh",
            holds=lambda folder: bool(answers_in(folder)),
            read=read_answers,
            show=show_answers,
        ),
        runs(
            lambda run: task_of(run).startswith("scrolls."),
            "TYPE=adape DATASET_NAME=quality bash script/ft_scrolls.sh",
        ),
    ],
)
