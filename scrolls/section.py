"""What this experiment leaves behind, on the page of all results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from scrolls.scoring import read_predictions
from scrolls.table import COLUMNS
from scrolls.tasks import TASKS
from tape.results.html import Details, number, records, table
from tape.results.kinds import Found, Kind, columns_of, rows_of, runs, shown, task_of, text_of
from tape.results.report import Experiment

METRICS = "_metrics.json"
SHOWN = 12  # questions
SHOWN_CHARACTERS = 200  # of each answer


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


def answers_in(folder: Path) -> list[Path]:
    """The predictions of a task, if the folder has its name."""
    if folder.name not in TASKS:
        return []
    return [path for path in sorted(folder.glob("[!.]*.json")) if not path.match(f"*{METRICS}")]


def read_answers(folder: Path) -> Found:
    """Some answers of every type side by side."""
    answers = {path.stem: read_predictions(path) for path in answers_in(folder)}
    for name, predictions in answers.items():
        if not isinstance(predictions, dict):
            raise ValueError(f"{folder / name}.json holds no answers by question")
    questions = list(dict.fromkeys(id_ for given in answers.values() for id_ in given))
    rows = [
        [id_, *(str(given.get(id_, "-"))[:SHOWN_CHARACTERS] for given in answers.values())]
        for id_ in questions[:SHOWN]
    ]
    some = f"{min(SHOWN, len(questions))} of {len(questions):,} questions"
    more = (
        "With questions, gold answers and scores: python -m scrolls.show "
        f"--dataset_name {folder.name} --predictions {folder} --out page.html"
    )
    blocks = [table([["question", *answers], *rows]), more]
    return Found(blocks=[Details(f"Answers in {folder}: {some}", blocks)])


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
        Kind(
            title="folders of answers",
            command="SAVE_DIR=scrolls/quality bash script/gen_scrolls.sh",
            holds=lambda folder: bool(answers_in(folder)),
            read=read_answers,
        ),
        runs(
            lambda run: task_of(run).startswith("scrolls."),
            "TYPE=adape DATASET_NAME=quality bash script/ft_scrolls.sh",
        ),
    ],
)
