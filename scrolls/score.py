"""Verifies and scores predictions for SCROLLS by the rules of its evaluator, {id: text} in a file:
of one model, of several models on one task, or on all tasks in a table next to the paper's."""

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from scrolls.metrics import results
from scrolls.rows import Split, find, limited, read_rows, spread
from scrolls.tasks import BENCHMARK, TASKS, Task
from tape.core import provenance
from tape.core.files import write_text
from tape.core.validation import encodable
from tape.evaluation.tables import markdown_table

PAPER = Path(__file__).with_name("paper.csv")
NOTE = """\
Percent. Rgm: geometric mean of rouge1, rouge2 and rougeL. Avg: mean of the seven tasks, if all are
there. Rows from arXiv 2501.00712 are the paper's, on validation sets; their Avg is computed."""
PASSAGE = 1000  # characters of a document that the page of answers shows
Reports = dict[str, dict[str, Any]]


class Asked(NamedTuple):
    """A question, the passage of its document that is shown with it, and the gold answers."""

    question: str
    passage: str
    golds: list[str]


def passage(document: str, gold: str | None) -> str:
    """Returns a document, or if it is long the part with a gold answer in its middle; its beginning
    if the answer does not stand there word for word."""
    if len(document) <= PASSAGE:
        return document
    found = gold and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", document, re.IGNORECASE)
    middle = sum(found.span()) // 2 if found else 0
    start = min(max(middle - PASSAGE // 2, 0), len(document) - PASSAGE)
    end = start + PASSAGE
    return "… " * (start > 0) + document[start:end] + " …" * (end < len(document))


def read_questions(
    task: Task, split: Split, data_dir: Path | None, cache: Path, scored: bool = True
) -> dict[str, Asked]:
    """Returns the questions of a task by id, in the order of their first rows. All gold answers
    must be there if answers are to be `scored`."""
    source, questions = find(task, split, data_dir, cache), {}
    for row in read_rows(source, task, split):
        if row.output is None and scored:
            raise ValueError(
                f"{source}, id {row.id!r}: no gold answer to score with; SCROLLS does not publish "
                f"the answers of the test split: use --split validation, or --verify_only"
            )
        if row.id not in questions:
            shown = passage(row.document, row.output)
            questions[row.id] = Asked(row.question, shown, [])
        questions[row.id].golds.append(row.output)
    return questions


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object of JSON, whose readers silently keep the last value of a duplicate key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"duplicate ids: {len(pairs) - len(found)}")
    return found


def verify(path: Path, ids: Collection[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns the predictions in a file in the order of the ids, and the report of their errors:
    empty for a JSON object with a text for each id and no other."""
    try:
        found = json.loads(path.read_bytes(), object_pairs_hook=once_each)
        if not isinstance(found, dict):
            raise ValueError('it must hold a JSON object, {"id1": "prediction1", ...}')
        for id_, text in found.items():
            if not isinstance(text, str) or not encodable(id_ + text):
                raise ValueError(f"the prediction for {id_!r} is not text")
    except (ValueError, RecursionError) as error:
        return {}, {"errors": [f"{path}: {error}"], "details": {}}
    missing, redundant = set(ids) - found.keys(), found.keys() - set(ids)
    if missing or redundant:
        error = f"{path}: {len(missing)} ids are missing, {len(redundant)} are redundant"
        if found.keys() < set(ids):
            error += "; answers of limit=N are scored with --limit N"
        details = {"missing_keys": sorted(missing), "redundant_keys": sorted(redundant)}
        return {}, {"errors": [error], "details": details}
    return {id_: found[id_] for id_ in ids}, {}


def evaluate_task(name: str, files: dict[str, Path], given: argparse.Namespace) -> Reports:
    """Verifies files of predictions for a task, by type, scores them unless they are only verified,
    and writes <TYPE>/<task>_metrics.json, the results or the errors, <task>_scores.md and
    <task>_answers.html. A file without a type has its results in the folder itself alone. Errors in
    one file do not stop the others; in place of results of an earlier file they are in
    <task>_errors.json. Returns the reports by type, empty for valid predictions that are not
    scored."""
    task, scored = TASKS[name], not given.verify_only
    out = limited(given.metrics_output_dir, given.limit)
    questions = read_questions(task, given.split, given.data_dir, given.cache_dir, scored)
    questions = dict(spread([*questions.items()], given.limit))
    reports, answered = {}, {}
    for kind, path in files.items():
        target = out / kind / f"{name}_metrics.json"
        errors = target.with_name(f"{name}_errors.json")
        texts, report = verify(path, questions)
        if report:
            if target.exists() and b'"scrolls_score"' in target.read_bytes():
                target = errors
            print(f"error: {report['errors'][0]}; details are in {target}", file=sys.stderr)
        elif scored:
            answered[kind] = texts
            golds = [asked.golds for asked in questions.values()]
            report = results(task, [*texts.values()], golds)
            errors.unlink(missing_ok=True)
        reports[kind] = report
        if report:
            write_text(target, json.dumps(report, indent=4) + "\n")  # as the official ones
        if texts and not scored:
            print(f"{path}: valid")
    if answered and "" not in answered:
        shown = [[kind, *reports[kind]["display"]] for kind in answered]
        scores = markdown_table([["encoding", *reports[shown[0][0]]["display_keys"]], *shown])
        write_text(out / f"{name}_scores.md", f"{scores}\n")
        if not given.all:  # else a table of all tasks follows
            print(f"{scores}\n\nalso in {out}; {name}_answers.html has the answers side by side")
        asked = pd.DataFrame([*questions.values()], index=[*questions])
        asked = asked.rename(columns={"golds": "gold answers"})
        side_by_side = pd.concat([asked, pd.DataFrame(answered)], axis="columns")
        write_text(out / f"{name}_answers.html", page(side_by_side))
    return reports


def page(table: pd.DataFrame) -> str:
    """Returns a table as HTML, with whole cells and their line breaks."""
    table = table.map(lambda cell: cell if isinstance(cell, str) else "\n".join(cell))
    style = "<style>td { white-space: pre-wrap; vertical-align: top }</style>"
    with pd.option_context("display.max_colwidth", None):
        html = table.to_html(formatters=[str] * len(table.columns))  # line breaks unescaped
    return f'<meta charset="utf-8">\n{style}\n{html}\n'


def table(reports: dict[str, Reports], origin: str) -> pd.DataFrame:
    """Returns scores in percent, a row per type, tasks in the order of the paper, whose Table 1
    (validation sets) follows. `mean`, the benchmark's score, is missing where a task is."""
    paper = pd.read_csv(PAPER)
    ours = [
        {"encoding": kind, "from": origin}
        | {task: report.get("scrolls_score") for task, report in of_tasks.items()}
        for kind, of_tasks in sorted(reports.items())
    ]
    rows = pd.concat([pd.DataFrame(ours), paper], ignore_index=True)
    tasks = [name for name in paper if name in BENCHMARK]
    rows["mean"] = rows.reindex(columns=tasks).mean(axis="columns", skipna=False)
    return rows.reindex(columns=["encoding", *tasks, "mean", "from"])


def markdown(rows: pd.DataFrame) -> str:
    """With two decimals, as in the paper; "-" for what is not there."""
    titles = {name: task.title for name, task in BENCHMARK.items()} | {"mean": "Avg"}
    shown = rows.rename(columns=titles).map(
        lambda cell: cell if isinstance(cell, str) else "-" if pd.isna(cell) else f"{cell:.2f}"
    )
    return f"{markdown_table([shown.columns, *shown.to_numpy()])}\n\n{NOTE}"


def evaluate(given: argparse.Namespace) -> dict[str, Reports]:
    """Evaluates the predictions of one task, or of all, whose folders <task> are in that of the
    predictions; then writes table.md and table.csv as well. Returns the reports by type and task.
    """
    out, found = limited(given.metrics_output_dir, given.limit), {}
    for task in BENCHMARK if given.all else [given.dataset_name]:
        place = given.predictions / task if given.all else given.predictions
        answers = limited(place, given.limit).glob("[!.]*.json")
        files = {path.stem: path for path in sorted(answers)}
        if place.is_file():
            files = {"": place}
        for kind, report in evaluate_task(task, files, given).items() if files else ():
            found.setdefault(kind, {})[task] = report
    if not found:
        raise ValueError(
            f"{given.predictions} has no predictions: expected a file, a folder of files "
            f"<TYPE>.json, or with --all of files <task>/<TYPE>.json of {', '.join(BENCHMARK)}; "
            f"with --limit N, of files limit_N/<TYPE>.json in that folder"
        )
    if given.all and not given.verify_only:
        part = f", {given.limit} questions of a task" if given.limit else ""
        rows = table(found, f"here, {given.split}{part}")
        write_text(out / "table.md", markdown(rows) + "\n")
        # With all four decimals; empty for what is not there.
        write_text(out / "table.csv", rows.round(4).to_csv(index=False, lineterminator="\n"))
        provenance.record(out)
        print(f"\n{markdown(rows)}\n\nalso in {out}, with the metrics and answers of each task")
    return found


def main(given: argparse.Namespace) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scrolls").setLevel(logging.INFO)
    found = evaluate(given)
    reports = [report for of_tasks in found.values() for report in of_tasks.values()]
    if any("errors" in report for report in reports):
        sys.exit(os.EX_DATAERR)
    if "" in found and not given.verify_only:
        print(json.dumps(reports[0], indent=4))
