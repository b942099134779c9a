"""Cost of tokenizing and packing long documents: time, cores in use and peak memory.

python benchmarks/scrolls_tokenize.py --documents 10000 --words 5000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import publish, table, table_folder

from scrolls.examples import tokenize_split
from scrolls.prompts import Prompts, budget_of
from scrolls.tasks import task_named
from tape.analysis.measuring import memory_in_use, reset_peak
from tape.command import Parser, expected_errors, integer
from tape.data import LocalCorpus, train_tokenizer


def write_rows(path: Path, documents: int, words: int) -> int:
    """Writes rows of gov_report with text from Python's library; returns their text size in
    bytes."""
    stream: Iterator[str] = (
        word
        for text in cycle([*LocalCorpus().documents("train")])
        for word in text.split(" ")
        if word
    )
    size = 0
    with path.open("w") as file:
        for number in range(documents):
            text = f"{number} " + " ".join(islice(stream, words - 1))
            size += len(text.encode())
            row = {"id": str(number), "pid": f"{number}_0", "input": text, "output": "nothing"}
            file.write(json.dumps(row) + "\n")
    return size


@expected_errors()
def main(arguments: argparse.Namespace, work: Path) -> None:
    (work / "gov_report").mkdir()
    size = write_rows(work / "gov_report" / "train.jsonl", arguments.documents, arguments.words)
    tokenizer = train_tokenizer(LocalCorpus(), arguments.vocabulary, Path("cache"))
    task = task_named("gov_report")
    prompts = Prompts(tokenizer, task, budget_of("paper8k", task))
    reset_peak()
    before, wall, cpu = memory_in_use(peak=False), time.perf_counter(), os.times()
    examples = tokenize_split(task, "train", work, tokenizer, prompts, work / "cache")
    wall, after = time.perf_counter() - wall, os.times()
    used = after.user + after.system - cpu.user - cpu.system
    row = {
        "documents": f"{arguments.documents:,}",
        "text, MB": f"{size / 1e6:,.0f}",
        "tokens": f"{examples.documents.ends[-1]:,}",
        "seconds": f"{wall:.0f}",
        "MB/s": f"{size / 1e6 / wall:.1f}",
        "cores in use": f"{used / wall:.2f}",
        "peak memory, GiB": f"{memory_in_use(peak=True) / 2**30:.2f}",
        "before, GiB": f"{before / 2**30:.2f}",
    }
    publish("scrolls_tokenize", table([row]), arguments.out)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--documents", type=integer(1), default=10_000)
    parser.add_argument("--words", type=integer(1), default=5_000, help="of each document")
    parser.add_argument("--vocabulary", type=integer(258), default=4096)
    parser.add_argument(
        "--out", type=table_folder, help="folder for the table; printed only by default"
    )
    return parser.parse_args()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(parse(), Path(folder))
