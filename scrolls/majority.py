"""Baseline without documents: the most frequent gold answer of the training rows with the same
question, or of all training rows if the question is new.

python -m scrolls.majority --dataset_name sample --output scrolls/sample/majority.json
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path

from scrolls.rows import read_rows
from scrolls.sources import find
from scrolls.tasks import SPLITS, TASKS, Split, Task
from tape.command import Parser, expected_errors
from tape.files import check_replaceable, write_text


def majority(task: Task, split: Split, data_dir: Path | None, cache: Path) -> dict[str, str]:
    """Returns an answer for each id of a split, in file order."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for row in read_rows(find(task, "train", data_dir, cache), task, "train"):
        counts[row.question][row.output] += 1
        overall[row.output] += 1
    ((usual, _),) = overall.most_common(1)
    found = {}
    for row in read_rows(find(task, split, data_dir, cache), task, split):
        asked = counts.get(row.question)
        found[row.id] = asked.most_common(1)[0][0] if asked else usual
    return found


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m scrolls.majority", description="Baseline that reads no documents."
    )
    parser.add_argument("--dataset_name", choices=[*TASKS], required=True)
    parser.add_argument("--split", choices=SPLITS, default="validation")
    parser.add_argument("--data_dir", type=Path, help="folder with the official zips")
    parser.add_argument("--cache_dir", type=Path, default=os.environ.get("TAPE_CACHE", "cache"))
    parser.add_argument("--output", type=Path, required=True, help="the file to write, {id: text}")
    given = parser.parse_args()
    found = majority(TASKS[given.dataset_name], given.split, given.data_dir, given.cache_dir)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    check_replaceable("--output", given.output, text)
    write_text(given.output, text)
    print(f"{len(found):,} answers are in {given.output}")


if __name__ == "__main__":
    main()
