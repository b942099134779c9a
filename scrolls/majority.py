"""Baseline without documents: the most frequent gold answer of the training rows with the same
question, or of all training rows if the question is new.

python -m scrolls.majority --dataset_name sample --output scrolls/sample/majority.json
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

from scrolls.rows import read_rows
from scrolls.scoring import add_task
from scrolls.sources import find
from scrolls.tasks import TASKS, Split, Task
from tape.command import Parser, expected_errors
from tape.files import check_replaceable, write_text


def majority(task: Task, split: Split, data_dir: Path | None, cache: Path) -> dict[str, str]:
    """Returns an answer for each id of a split, in file order."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    overall: Counter[str] = Counter()
    for row in read_rows(find(task, "train", data_dir, cache), task, "train"):
        counts[row.question][row.output] += 1
        overall[row.output] += 1
    usual = {question: max(golds, key=golds.get) for question, golds in counts.items()}
    usual_overall = max(overall, key=overall.get)
    rows = read_rows(find(task, split, data_dir, cache), task, split)
    return {row.id: usual.get(row.question, usual_overall) for row in rows}


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m scrolls.majority", description="Baseline that reads no documents."
    )
    add_task(parser)
    parser.add_argument("--output", type=Path, required=True, help="the file to write, {id: text}")
    given = parser.parse_args()
    found = majority(TASKS[given.dataset_name], given.split, given.data_dir, given.cache_dir)
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    check_replaceable("--output", given.output, text)
    write_text(given.output, text)
    print(f"{len(found):,} answers are in {given.output}")


if __name__ == "__main__":
    main()
