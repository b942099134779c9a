"""Verifies and scores predictions for SCROLLS by the rules of its evaluator: of one task, or of all
tasks and several encodings, in a table next to the paper's."""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from scrolls.metrics import SUMMARY_LEVEL, results
from scrolls.official_files import HUB, default_folder, find
from scrolls.predictions import Golds, Reference, add_data, read_predictions, read_types
from scrolls.tasks import BENCHMARK, HARD, SPLITS, TASKS
from tape import provenance
from tape.command import Parser, expected_errors, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import check_replaceable, write_text
from tape.validation import look_up

ON_REQUEST = "narrative_qa"  # gigabytes: downloaded only if requested by name
SUBMITTED = ("Task", "ID", "Prediction")  # columns of a submission
NO_SUMMARY_LEVEL = (
    f"note: {SUMMARY_LEVEL}, not part of any score, is null: it needs nltk's sentence splitter "
    f"(python -m nltk.downloader punkt_tab)"
)
# Of the table, in the paper's order and naming.
PAPER = Path(__file__).with_name("paper.csv")
COLUMNS = {
    "qasper": "Qasper F1",
    "contract_nli": "ContractNLI EM",
    "narrative_qa": "NarrativeQA F1",
    "quality": "QuALITY EM",
    "qmsum": "QMSum Rgm",
    "summ_screen_fd": "SummScreen Rgm",
    "gov_report": "GovReport Rgm",
}
NOTE = """\
Percent. Rgm: geometric mean of rouge1, rouge2 and rougeL. Avg: mean of the seven tasks, if all are
there. Rows from arXiv 2501.00712 are the paper's, on validation sets; their Avg is computed."""
log = logging.getLogger("scrolls.score")


def read_all(folder: Path) -> dict[str, dict[str, object]]:
    """Returns the contents of the prediction files folder/<task>/<TYPE>.json by type and task.

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
    """References of the tasks, except one that needs an explicit download. Includes the hard
    questions of quality where the benchmark scores them."""
    known = {}
    for name, task in BENCHMARK.items():
        if name not in tasks:
            continue
        source = None
        if name == ON_REQUEST:
            try:
                source = find(task, golds.split, golds.data_dir, golds.cache, download=False)
            except FileNotFoundError:
                log.warning(
                    "note: %s is skipped, because its %s MB are not on this machine: put %s.zip of "
                    "%s into %s, or download it with --dataset_name %s; then rerun this command",
                    name,
                    f"{task.size:,}",
                    name,
                    HUB,
                    golds.data_dir or default_folder(),
                    name,
                )
                continue
        known[name] = golds.of(task, source)
    if "quality" in known and golds.split == "test" and golds.needed:
        known[HARD] = golds.of(TASKS[HARD])
    return known


def evaluate(
    reference: Reference, predictions: object, out: Path, golds: Golds
) -> dict[str, Any] | None:
    """Verifies predictions, scores them if golds are needed, and writes out/<task>_metrics.json:
    the results, or the errors.

    Returns:
        What was written; None of valid predictions that are not scored.
    """
    valid, found = reference.check(predictions)
    if found is None and golds.needed:
        questions = reference.questions.items()
        pairs = [(valid[id_], question.outputs) for id_, question in questions]
        found = results(reference.task, *map(list, zip(*pairs, strict=True)))
    if found is not None:
        write_json(out / f"{reference.task.name}_metrics.json", found)
    return found


def write_json(path: Path, content: object) -> None:
    """As in the official files."""
    write_text(path, json.dumps(content, indent=4) + "\n")


def evaluate_one(given: argparse.Namespace, golds: Golds) -> bool:
    """Prints the results, or the errors, of one task; returns whether there are none."""
    predictions = read_predictions(given.predictions)
    reference = golds.of(TASKS[given.dataset_name], given.test_data_file)
    name, out = reference.task.name, given.metrics_output_dir
    found = evaluate(reference, predictions, out, golds)
    if found is None:
        print(f"The {len(reference.questions):,} predictions for {name} are valid.")
        return True
    if "errors" in found:
        print(json.dumps(found["errors"], indent=4))
        print(f"See details in: {out / f'{name}_metrics.json'}")
        return False
    print(json.dumps(found, indent=4))
    if found.get(SUMMARY_LEVEL, 0) is None:
        log.warning(NO_SUMMARY_LEVEL)
    return True


def evaluate_all(given: argparse.Namespace, golds: Golds) -> bool:
    """Evaluates the predictions in <task>/<TYPE>.json; writes <TYPE>/<task>_metrics.json,
    <TYPE>/scrolls.json, and table.md and table.csv. Errors in one file do not stop the others.

    Returns:
        Whether all predictions are valid.

    Raises:
        ValueError: before scoring, for unreadable predictions or an incomplete submission.
    """
    found, out = read_all(given.predictions), given.metrics_output_dir
    known = references({task for tasks in found.values() for task in tasks}, golds)
    if given.submission is not None:
        _check_complete(given.type, look_up("type of predictions", given.type, found), known)
    for kind, tasks in found.items():
        if missing := [task for task in BENCHMARK if task not in tasks]:
            log.warning("note: %s has no predictions for %s", kind, ", ".join(missing))
    scores, errors, count, summary_level = {}, {}, 0, True
    for kind, tasks in found.items():
        metrics: dict[str, dict[str, Any]] = {}
        for name, reference in known.items():
            if reference.task.folder not in tasks:
                continue
            result = evaluate(reference, tasks[reference.task.folder], out / kind, golds)
            if result is None:
                count += 1
            elif "errors" in result:
                errors[kind, name] = result["errors"]
            else:
                metrics[name] = result
                log.info("%s, %s: %s", kind, name, result["display"])
                summary_level &= result.get(SUMMARY_LEVEL, 0) is not None
        if golds.needed:
            write_json(out / kind / "scrolls.json", summary_of(metrics))
        scores[kind] = {n: m["scrolls_score"] for n, m in metrics.items() if n != HARD}
    if golds.needed:
        rows = table(scores, f"here, {golds.split}")
        write_text(out / "table.md", markdown(rows) + "\n")
        write_text(out / "table.csv", csv_of(rows))
        provenance.record(out)
        print(f"{markdown(rows)}\n\nalso in {out}, with the metrics of each task")
    else:
        print(f"{count} files of predictions are valid, {len(errors)} are not.")
    if not summary_level:
        log.warning(NO_SUMMARY_LEVEL)
    if given.submission is not None:
        if {(given.type, task) for task in BENCHMARK}.isdisjoint(errors):
            _submit(given.submission, given.type, found[given.type], known)
        else:
            text = "note: %s is not written, as not all predictions of %s are valid"
            log.warning(text, given.submission, given.type)
    for (kind, name), faults in errors.items():
        file = out / kind / f"{name}_metrics.json"
        print(f"error: {' '.join(faults)} See details in: {file}", file=sys.stderr)
    return not errors


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


# ---- the table of the benchmark (the paper's Table 1), and its submission


def table(scores: dict[str, dict[str, float]], origin: str) -> pd.DataFrame:
    """Returns scores in percent, a row per encoding; the paper's Table 1 (validation sets) follows.
    `mean`, the benchmark's score, is missing where a task is.

    Args:
        scores: by encoding and task.
        origin: where they are from.
    """
    ours = [{"encoding": name, **of, "from": origin} for name, of in scores.items()]
    rows = pd.concat([pd.DataFrame(ours), pd.read_csv(PAPER)], ignore_index=True)
    rows["mean"] = rows.reindex(columns=[*COLUMNS]).mean(axis="columns", skipna=False)
    return rows.reindex(columns=["encoding", *COLUMNS, "mean", "from"])


def markdown(rows: pd.DataFrame) -> str:
    """With two decimals, as in the paper; "-" for what is not there."""
    shown = rows.rename(columns=COLUMNS | {"mean": "Avg"}).map(
        lambda cell: cell if isinstance(cell, str) else "-" if pd.isna(cell) else f"{cell:.2f}"
    )
    return f"{markdown_table([shown.columns, *shown.to_numpy()])}\n\n{NOTE}"


def csv_of(rows: pd.DataFrame) -> str:
    """With all four decimals; empty for what is not there."""
    return rows.round(4).to_csv(index=False, lineterminator="\n")


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
    file: Path, kind: str, given: dict[str, dict[str, str]], known: dict[str, Reference]
) -> None:
    rows = [(task, id_, given[task][id_]) for task in BENCHMARK for id_ in known[task].questions]
    submitted = pd.DataFrame(rows, columns=SUBMITTED)
    # Quotes everything, so that empty answers and line breaks within answers survive.
    text = submitted.to_csv(index=False, quoting=csv.QUOTE_ALL, lineterminator="\n")
    write_text(file, text)
    print(f"The submission of {kind} is {file}.")


# ---- command line


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        description="Verify and score predictions for SCROLLS. Predictions that are not valid exit "
        "with 65, and have their errors in the file of their metrics."
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dataset_name", choices=TASKS, help="score the predictions of one task")
    what.add_argument(
        "--all",
        action="store_true",
        help="score all <task>/<TYPE>.json in the folder of predictions, and write a table of them",
    )
    add("--predictions", type=Path, required=True, help="a file {id: text}; with --all a folder")
    add("--metrics_output_dir", type=result_folder, required=True, help="a folder for the results")
    add("--split", choices=SPLITS, help="default: test, as officially; with --all validation")
    add("--test_data_file", type=Path, help="the test split with answers, as .jsonl")
    add("--verify_only", action="store_true", help="check form and ids, and score nothing")
    add("--submission", type=Path, help="with --all: write the benchmark's submission to this csv")
    add("--type", help="with --submission: whose predictions are submitted, such as adape")
    add_data(parser)
    return parser


def check(given: argparse.Namespace) -> None:
    """Raises a ValueError for settings that do not go together."""
    if (given.submission is None) != (given.type is None):
        raise ValueError("--submission and --type go together: the file, and whose predictions")
    if given.submission is not None and not given.all:
        raise ValueError("--submission needs --all: it holds the predictions for all tasks")
    if given.submission is not None:
        check_replaceable("--submission", given.submission, '","'.join(SUBMITTED))
    if given.test_data_file is not None and (given.all or given.split != "test"):
        raise ValueError("--test_data_file is the test split of one --dataset_name")


def main() -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("scrolls").setLevel(logging.INFO)
    with expected_errors():
        given = parser().parse_args()
        given.split = given.split or ("validation" if given.all else "test")
        check(given)
        golds = Golds(given.split, given.data_dir, given.cache_dir, not given.verify_only)
        valid = (evaluate_all if given.all else evaluate_one)(given, golds)
    if not valid:
        sys.exit(os.EX_DATAERR)


if __name__ == "__main__":
    main()
