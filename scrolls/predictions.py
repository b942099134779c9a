"""Files of predictions, {id: text}, and their verification against a task's questions, with the
rules and messages of the official evaluator."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from scrolls.official_files import Question, Row, Source, find, questions_of, read_rows
from scrolls.tasks import BENCHMARK, HARD, Split, Task
from tape.validation import encodable

NOT_AN_OBJECT = (
    'The predictions must be saved a JSON object: {"id1": "prediction1", "id2": "prediction2", ...}'
)
KEYS_NOT_STRINGS = "All keys of the predictions dictionary must be strings"
VALUES_NOT_STRINGS = "All values of the predictions dictionary must be strings"
MISSING = "There are missing example IDs."
REDUNDANT = "There are redundant example IDs."


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where the rows of a task are."""
    zips = "folder of the official zips or their contents (default: SCROLLS_DIR or data/scrolls)"
    parser.add_argument("--data_dir", type=Path, help=zips)
    parser.add_argument(
        "--cache_dir",
        type=Path,
        default=os.environ.get("TAPE_CACHE", "cache"),
        help="a folder for what is made on the way (default: %(default)s)",
    )


def read_predictions(path: Path) -> object:
    """Returns the content of a prediction file, valid or not.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is not JSON, has duplicate ids, or holds text that is not valid UTF-8.
    """
    if not path.is_file():
        raise FileNotFoundError(f"the file of predictions {path} does not exist")
    try:
        predictions = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as predictions: {error}") from error
    if isinstance(predictions, dict):
        for pair in predictions.items():
            if not all(encodable(text) for text in pair if isinstance(text, str)):
                raise ValueError(f"{path}, id {pair[0]!r}: it contains a lone surrogate")
    return predictions


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # JSON readers silently keep the last one
            raise ValueError(f"duplicate id {key!r}")
        found[key] = value
    return found


def read_types(folder: Path) -> dict[str, object]:
    """Returns the contents of the prediction files <TYPE>.json in a folder by type.

    Raises:
        ValueError: if one cannot be read, or its name is not valid UTF-8.
    """
    found = {}
    for path in sorted(folder.glob("[!.]*.json")):
        if not encodable(path.stem):
            raise ValueError(f"the name of {str(path)!r} is not UTF-8: rename it")
        found[path.stem] = read_predictions(path)
    return found


def verify(predictions: object, ids: Collection[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the errors of predictions in the official evaluator's words, and the ids concerned.

    The lists of ids are present but empty if the format itself is wrong, as in the evaluator.
    """
    unchecked: dict[str, list[str]] = {"missing_keys": [], "redundant_keys": []}
    if not isinstance(predictions, dict):
        return [NOT_AN_OBJECT], unchecked
    errors = []
    if not all(isinstance(key, str) for key in predictions):
        errors.append(KEYS_NOT_STRINGS)
    if not all(isinstance(text, str) for text in predictions.values()):
        errors.append(VALUES_NOT_STRINGS)
    if errors:
        return errors, unchecked
    details = {}
    if missing := sorted(set(ids) - set(predictions)):
        errors.append(MISSING)
        details["missing_keys"] = missing
    if redundant := sorted(set(predictions) - set(ids)):
        errors.append(REDUNDANT)
        details["redundant_keys"] = redundant
    return errors, details


class Reference(NamedTuple):
    """Questions and gold answers of a task.

    Attributes:
        questions: with their gold answers by id, in file order.
        ignored: ids whose predictions are dropped first: for the hard questions of quality, all
            other questions.
    """

    task: Task
    questions: dict[str, Question]
    ignored: frozenset[str] = frozenset()

    def check(self, predictions: object) -> tuple[dict[str, str], dict[str, Any] | None]:
        """Returns the predictions without ignored ids, and the report of their errors in the
        official evaluator's form; None if they are valid."""
        if isinstance(predictions, dict):
            predictions = {k: text for k, text in predictions.items() if k not in self.ignored}
        errors, details = verify(predictions, self.questions)
        return predictions, {"errors": errors, "details": details} if errors else None


@dataclass(frozen=True)
class Golds:
    """Source of questions and gold answers, see `scrolls.official_files.find`.

    Attributes:
        needed: whether predictions are scored, so that a question without a gold is an error.
        with_inputs: whether to read the questions themselves; scores only need their ids.
    """

    split: Split
    data_dir: Path | None
    cache: Path
    needed: bool = True
    with_inputs: bool = False

    def of(self, task: Task, source: Source | None = None) -> Reference:
        """Reads the questions of a task, from its source or from another file.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if a row is invalid or lacks a required gold answer.
        """
        source = source or find(task, self.split, self.data_dir, self.cache)
        questions = self._read(source, task)
        if task.name != HARD:
            return Reference(task, questions)
        others = self._read(source, BENCHMARK["quality"]).keys() - questions.keys()
        return Reference(task, questions, frozenset(others))

    def _read(self, source: Source, task: Task) -> dict[str, Question]:
        rows: Iterator[Row] = read_rows(source, task, self.split, self.with_inputs)
        rows = tqdm(rows, f"reading {source}", unit=" rows", leave=False, disable=None)
        return questions_of(_with_gold(rows, source) if self.needed else rows)


def _with_gold(rows: Iterable[Row], source: Source) -> Iterator[Row]:
    for row in rows:
        if row.output is None:
            raise ValueError(
                f"{source}, id {row.id!r}: no gold answer to score with; SCROLLS does not publish "
                "the answers of the test split: use --split validation (eval_scrolls.py checks "
                "ids with --verify_only, and takes a file with answers as --test_data_file)"
            )
        yield row
