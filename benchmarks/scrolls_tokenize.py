"""Cost of tokenizing and packing long documents: time, cores in use and peak memory.

python benchmarks/scrolls_tokenize.py --documents 10000 --words 5000
"""

import json
import os
import time
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import heading, parser, publish
from benchmarks.timing import kib
from scrolls.examples import tokenize_split
from scrolls.prompts import Prompts, budget_of
from scrolls.tasks import task_named
from tape.command import expected_errors
from tape.data import LocalCorpus, train_tokenizer
from tape.evaluation.tables import markdown_table

STATUS = "/proc/self/status"


def write_rows(path: Path, documents: int, words: int) -> int:
    """Writes rows of gov_report with text from Python's library; returns their text size in
    bytes."""
    texts = cycle([*LocalCorpus().documents("train")])
    stream = (word for text in texts for word in text.split(" ") if word)
    size = 0
    with path.open("w") as file:
        for number in range(documents):
            text = f"{number} " + " ".join(islice(stream, words - 1))
            size += len(text.encode())
            row = {"id": str(number), "pid": f"{number}_0", "input": text, "output": "nothing"}
            file.write(json.dumps(row) + "\n")
    return size


@expected_errors()
def main() -> None:
    counts = {
        "documents": (10_000, 1, "to tokenize"),
        "words": (5_000, 1, "of each document"),
        "vocabulary": (4096, 258, "of the tokenizer"),
    }
    arguments = parser(__doc__, rounds=None, **counts).parse_args()
    tokenizer = train_tokenizer(LocalCorpus(), arguments.vocabulary, Path("cache"))
    task = task_named("gov_report")
    prompts = Prompts(tokenizer, task, budget_of("paper8k", task))
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "gov_report").mkdir()
        size = write_rows(work / "gov_report" / "train.jsonl", arguments.documents, arguments.words)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use
        before, wall, cpu = kib(STATUS, "VmRSS"), time.perf_counter(), os.times()
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
        "peak memory, GiB": f"{kib(STATUS, 'VmHWM') / 2**30:.2f}",
        "before, GiB": f"{before / 2**30:.2f}",
    }
    text = markdown_table([[*row], row.values()])
    publish("scrolls_tokenize", arguments, f"{heading(arguments)}\n\n{text}")


if __name__ == "__main__":
    main()
