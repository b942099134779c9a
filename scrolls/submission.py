"""The file that is submitted to the benchmark: the predictions of all tasks in one csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping

from scrolls.tasks import BENCHMARK

COLUMNS = ("Task", "ID", "Prediction")


def check_complete(kind: str, tasks: Collection[str], known: Collection[str]) -> None:
    """
    Args:
        tasks: those that the type has predictions for.
        known: those whose questions are at hand.

    Raises:
        ValueError: if one of the seven is missing in either.
    """
    if missing := [task for task in BENCHMARK if task not in tasks]:
        raise ValueError(
            f"a submission has predictions for all seven tasks; {kind} has none for "
            f"{', '.join(missing)}"
        )
    if missing := [task for task in BENCHMARK if task not in known]:
        raise ValueError(
            f"a submission is checked against the ids of all seven tasks; those of "
            f"{', '.join(missing)} are not here"
        )


def submission_csv(predictions: Mapping[str, Mapping[str, str]]) -> str:
    """
    Args:
        predictions: by task and id, all of them valid.
    """
    text = io.StringIO()
    # Everything quoted: an empty answer stays one, and line ends in an answer do not end its row.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for task in BENCHMARK:
        writer.writerows((task, key, answer) for key, answer in predictions[task].items())
    return text.getvalue()
