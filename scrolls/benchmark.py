"""Verifies and scores predictions of several encodings on the benchmark, and tabulates the scores
next to the paper's."""

from __future__ import annotations

import csv
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from scrolls.metrics import SUMMARY_LEVEL
from scrolls.scoring import (
    NO_SUMMARY_LEVEL,
    Golds,
    Reference,
    metrics_file,
    read_types,
    write_json,
)
from scrolls.sources import HUB, default_folder, in_hub_cache
from scrolls.table import csv_of, markdown, table
from scrolls.tasks import BENCHMARK, HARD, TASKS
from tape import provenance
from tape.files import write_text
from tape.validation import look_up

ON_REQUEST = "narrative_qa"  # gigabytes: downloaded only if requested by name
SUBMITTED = ("Task", "ID", "Prediction")  # columns of a submission
Predictions = dict[str, str]
log = logging.getLogger(__name__)


class Submission(NamedTuple):
    """The encoding to submit and the csv file to write."""

    type: str
    file: Path


def evaluate_all(
    folder: Path, out: Path, golds: Golds, submission: Submission | None = None
) -> dict[Path, list[str]]:
    """Verifies the predictions in folder/<task>/<TYPE>.json, and scores them if golds are needed.

    Writes the official files out/<TYPE>/<task>_metrics.json and out/<TYPE>/scrolls.json, and
    out/table.md and out/table.csv. For invalid predictions the metrics file holds their errors;
    the others are scored nevertheless.

    Returns:
        Errors by file.

    Raises:
        ValueError: before scoring, for unreadable predictions or an incomplete submission.
    """
    found = read_all(folder)
    known = references({task for given in found.values() for task in given}, golds)
    if submission is not None:
        given = look_up("type of predictions", submission.type, found)
        _check_complete(submission.type, given, known)
    valid: dict[str, dict[str, Predictions]] = {kind: {} for kind in found}
    errors = {}
    for kind, given in found.items():
        if missing := [task for task in BENCHMARK if task not in given]:
            log.warning("note: %s has no predictions for %s", kind, ", ".join(missing))
        for name, reference in known.items():
            if reference.task.folder in given:
                predictions, faults = reference.check(given[reference.task.folder])
                if faults is None:
                    valid[kind][name] = predictions
                else:
                    file = metrics_file(out / kind, reference.task)
                    write_json(file, faults)
                    errors[file] = faults["errors"]
    if golds.needed:
        score_all(valid, known, out, golds)
    else:
        count = sum(map(len, valid.values()))
        print(f"{count} files of predictions are valid, {len(errors)} are not.")
    if submission is not None:
        _submit(submission, valid[submission.type], known)
    return errors


def read_all(folder: Path) -> dict[str, dict[str, object]]:
    """Returns the contents of the prediction files by type and task.

    Raises:
        ValueError: if there are none, or one cannot be read.
    """
    found: dict[str, dict[str, object]] = {}
    for task in BENCHMARK:
        for kind, predictions in read_types(folder / task).items():
            found.setdefault(kind, {})[task] = predictions
    if not found:
        raise ValueError(
            f"{folder} contains no predictions: expected files <task>/<TYPE>.json with the tasks "
            f"{', '.join(BENCHMARK)}"
        )
    return dict(sorted(found.items()))


def references(tasks: set[str], golds: Golds) -> dict[str, Reference]:
    """References of the tasks, except those that need an explicit download. Includes the
    hard questions of quality where the benchmark scores them."""
    known = {}
    for name in (name for name in BENCHMARK if name in tasks):
        if name != ON_REQUEST:
            known[name] = golds.of(BENCHMARK[name])
        elif (reference := _on_request(golds)) is not None:
            known[name] = reference
        else:
            log.warning(
                "note: %s is skipped, because its %s MB are not on this machine: put %s.zip of %s "
                "into %s, or download it with --dataset_name %s; then rerun this command",
                name,
                f"{BENCHMARK[name].size:,}",
                name,
                HUB,
                golds.data_dir or default_folder(),
                name,
            )
    if "quality" in known and golds.split == "test" and golds.needed:
        known[HARD] = golds.of(TASKS[HARD])
    return known


def _on_request(golds: Golds) -> Reference | None:
    task = BENCHMARK[ON_REQUEST]
    with suppress(FileNotFoundError):
        return replace(golds, data_dir=golds.data_dir or default_folder()).of(task)
    return replace(golds, data_dir=None).of(task) if in_hub_cache(task) else None


def score_all(
    valid: dict[str, dict[str, Predictions]], known: dict[str, Reference], out: Path, golds: Golds
) -> None:
    """Writes the metrics of each type and task, the summary of each type, and the table."""
    scores, summary_level = {}, True
    for kind, given in valid.items():
        metrics: dict[str, dict[str, Any]] = {}
        for name, predictions in given.items():
            metrics[name] = known[name].score(predictions, golds.cache)
            write_json(metrics_file(out / kind, known[name].task), metrics[name])
            log.info("%s, %s: %s", kind, name, metrics[name]["display"])
            summary_level &= metrics[name].get(SUMMARY_LEVEL, 0) is not None
        summary = summary_of(metrics)
        write_json(out / kind / "scrolls.json", summary)
        scores[kind] = {name: metrics[name]["scrolls_score"] for name in given if name != HARD}
    rows = table(scores, f"here, {golds.split}")
    write_text(out / "table.md", markdown(rows) + "\n")
    write_text(out / "table.csv", csv_of(rows))
    provenance.record(out)
    print(f"{markdown(rows)}\n\nalso in {out}, with the metrics of each task")
    if not summary_level:
        log.warning(NO_SUMMARY_LEVEL)


def summary_of(metrics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the official scrolls.json; its score is null if a task is missing."""
    summary: dict[str, Any] = {
        task: {key: metrics[task][key] for key in ("scrolls_score", "display", "display_keys")}
        for task in BENCHMARK
        if task in metrics
    }
    if HARD in metrics and "quality" in summary:
        hard, quality = metrics[HARD], summary["quality"]
        quality["display"] = quality["display"] + hard["display"]
        names = [f"hard_{key}" for key in hard["display_keys"]]
        quality["display_keys"] = quality["display_keys"] + names
    scores = [of_task["scrolls_score"] for of_task in summary.values()]
    return summary | {"scrolls_score": fmean(scores) if len(scores) == len(BENCHMARK) else None}


def _check_complete(kind: str, given: dict[str, object], known: dict[str, Reference]) -> None:
    if missing := ", ".join(task for task in BENCHMARK if task not in given):
        raise ValueError(
            f"a submission has predictions for all seven tasks; {kind} has none for {missing}"
        )
    if missing := ", ".join(task for task in BENCHMARK if task not in known):
        raise ValueError(
            f"a submission is checked against the ids of all seven tasks; the ids of {missing} are "
            f"missing"
        )


def _submit(
    submission: Submission, valid: dict[str, Predictions], known: dict[str, Reference]
) -> None:
    kind, file = submission
    if any(task not in valid for task in BENCHMARK):
        log.warning("note: %s is not written, as not all predictions of %s are valid", file, kind)
        return
    rows = [(task, id_, valid[task][id_]) for task in BENCHMARK for id_ in known[task].questions]
    submitted = pd.DataFrame(rows, columns=SUBMITTED)
    # Quotes everything, so that empty answers and line breaks within answers survive.
    text = submitted.to_csv(index=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
    write_text(file, text)
    print(f"The submission of {kind} is {file}.")
