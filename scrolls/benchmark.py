"""Verifies and scores predictions of several encodings on the benchmark, and tabulates the scores
next to the paper's."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from scrolls.metrics import SUMMARY_LEVEL
from scrolls.scoring import (
    NO_SUMMARY_LEVEL,
    Golds,
    Reference,
    metrics_file,
    read_predictions,
    type_of,
    verify,
    write_json,
)
from scrolls.sources import HUB, Source, find, in_hub_cache
from scrolls.submission import check_complete, submission_csv
from scrolls.table import Row, markdown, paper_rows, table
from scrolls.tasks import BENCHMARK, HARD, TASKS
from tape import origin
from tape.files import write_text
from tape.names import look_up

ON_REQUEST = "narrative_qa"  # gigabytes: downloaded only if requested by name
log = logging.getLogger(__name__)


class Submission(NamedTuple):
    """The encoding to submit and the csv file to write."""

    type: str
    file: Path


class Entry(NamedTuple):
    """Valid predictions of an encoding for a task."""

    type: str
    reference: Reference
    predictions: dict[str, str]


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
        check_complete(submission.type, given, known)
    for kind, given in found.items():
        if missing := [task for task in BENCHMARK if task not in given]:
            log.warning("note: %s has no predictions for %s", kind, ", ".join(missing))
    entries, errors = verify_all(found, known, out)
    if golds.needed:
        score_all(entries, list(found), out, golds)
    else:
        print(f"{len(entries)} files of predictions are valid, {len(errors)} are not.")
    if submission is not None:
        _submit(submission, entries)
    return errors


def read_all(folder: Path) -> dict[str, dict[str, object]]:
    """Returns the contents of the prediction files by type and task.

    Raises:
        ValueError: if there are none, or one cannot be read.
    """
    found: dict[str, dict[str, object]] = {}
    for task in BENCHMARK:
        for path in (folder / task).glob("[!.]*.json"):
            found.setdefault(type_of(path), {})[task] = read_predictions(path)
    if not found:
        raise ValueError(
            f"{folder} holds no predictions: they are expected in it as <task>/<TYPE>.json, the "
            f"tasks being {', '.join(BENCHMARK)}"
        )
    return dict(sorted(found.items()))


def references(tasks: set[str], golds: Golds) -> dict[str, Reference]:
    """References of the tasks, except those that need an explicit download. Includes the
    hard questions of quality where the benchmark scores them."""
    known = {}
    for name in (name for name in BENCHMARK if name in tasks):
        if name != ON_REQUEST:
            known[name] = golds.of(BENCHMARK[name])
        elif (source := _on_request(golds)) is not None:
            known[name] = golds.of(BENCHMARK[name], source)
        else:
            log.warning(
                "note: %s is skipped, because its %s MB are not on this machine: put %s.zip of %s "
                "into --data_dir, or download it with --dataset_name %s; then rerun this command",
                *(name, f"{BENCHMARK[name].size:,}", name, HUB, name),
            )
    if "quality" in known and golds.split == "test" and golds.needed:
        known[HARD] = golds.of(TASKS[HARD])
    return known


def _on_request(golds: Golds) -> Source | None:
    task = BENCHMARK[ON_REQUEST]
    if golds.data_dir is not None:
        with suppress(FileNotFoundError):
            return find(task, golds.split, golds.data_dir, golds.cache)
    return find(task, golds.split, None, golds.cache) if in_hub_cache(task) else None


def verify_all(
    found: dict[str, dict[str, object]], known: dict[str, Reference], out: Path
) -> tuple[list[Entry], dict[Path, list[str]]]:
    """Returns the valid predictions and the errors of the others; writes the errors."""
    entries, errors = [], {}
    for kind, given in found.items():
        for name, reference in known.items():
            if (task := "quality" if name == HARD else name) not in given:
                continue
            predictions = reference.select(given[task])
            faults, details = verify(predictions, reference.questions)
            if faults:
                file = metrics_file(out / kind, reference.task)
                write_json(file, {"errors": faults, "details": details})
                errors[file] = faults
            else:
                entries.append(Entry(kind, reference, predictions))
    return entries, errors


def score_all(entries: list[Entry], kinds: list[str], out: Path, golds: Golds) -> None:
    """Writes the metrics of each entry, the summary of each type, and the overall table."""
    metrics: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in kinds}
    for kind, reference, predictions in entries:
        task = reference.task
        scored = reference.score(predictions, golds.cache)
        write_json(metrics_file(out / kind, task), scored)
        log.info("%s, %s: %s", kind, task.name, scored["display"])
        metrics[kind][task.name] = scored
    rows = []
    for kind in kinds:
        summary = summary_of(metrics[kind])
        write_json(out / kind / "scrolls.json", summary)
        scores = {task: summary[task]["scrolls_score"] for task in BENCHMARK if task in summary}
        rows.append(Row(kind, f"here, {golds.split}", scores))
    rows += paper_rows()
    write_text(out / "table.md", markdown(rows) + "\n")
    write_text(out / "table.csv", table(rows))
    origin.record(out)
    print(f"{markdown(rows)}\n\nalso in {out}, with the metrics of each task")
    if any(
        scored.get(SUMMARY_LEVEL, 0) is None for of in metrics.values() for scored in of.values()
    ):
        log.warning(NO_SUMMARY_LEVEL)


def summary_of(metrics: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the official scrolls.json; its score is null if a task is missing."""
    summary: dict[str, Any] = {
        task: {key: metrics[task][key] for key in ("scrolls_score", "display", "display_keys")}
        for task in BENCHMARK
        if task in metrics
    }
    if HARD in metrics:
        hard, quality = metrics[HARD], summary["quality"]
        quality["display"] = quality["display"] + hard["display"]
        names = [f"hard_{key}" for key in hard["display_keys"]]
        quality["display_keys"] = quality["display_keys"] + names
    complete = all(task in summary for task in BENCHMARK)
    scores = [summary[task]["scrolls_score"] for task in summary]
    return summary | {"scrolls_score": fmean(scores) if complete else None}


def _submit(submission: Submission, entries: list[Entry]) -> None:
    kind, file = submission
    valid = {
        entry.reference.task.name: {
            key: entry.predictions[key] for key in entry.reference.questions
        }
        for entry in entries
        if entry.type == kind
    }
    if any(task not in valid for task in BENCHMARK):
        log.warning("note: %s is not written, as not all predictions of %s are valid", file, kind)
    else:
        write_text(file, submission_csv(valid))
        print(f"The submission of {kind} is {file}.")
