"""The benchmark's submission file: predictions of all tasks in one csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping

from scrolls.tasks import BENCHMARK

COLUMNS = ("Task", "ID", "Prediction")


def check_complete(kind: str, tasks: Collection[str], known: Collection[str]) -> None:
    """Checks that a submission covers all seven tasks.

    Args:
        tasks: tasks with predictions of this type.
        known: tasks whose questions are available.

    Raises:
        ValueError: if either lacks one of the seven.
    """
    if missing := [task for task in BENCHMARK if task not in tasks]:
        raise ValueError(
            f"a submission has predictions for all seven tasks; {kind} has none for "
            f"{', '.join(missing)}"
        )
    if missing := [task for task in BENCHMARK if task not in known]:
        raise ValueError(
            f"a submission is checked against the ids of all seven tasks; those of "
            f"{', '.join(missing)} are missing"
        )


def submission_csv(predictions: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the csv of a submission.

    Args:
        predictions: by task and id, all valid.
    """
    text = io.StringIO()
    # Quotes everything, so that empty answers and line breaks within answers survive.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for task in BENCHMARK:
        writer.writerows((task, key, answer) for key, answer in predictions[task].items())
    return text.getvalue()
