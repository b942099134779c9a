"""The tasks of SCROLLS, and where their official files are."""

import csv
import re
from pathlib import Path
from typing import Literal, NamedTuple

SPLITS = ("train", "validation", "test")
VARIABLE, FOLDER = "SCROLLS_DIR", "data/scrolls"  # the default folder, and where it is without it
# What precedes the document in an input.
LAYOUTS = {
    "document": r"",
    "question": r".*?\n\n",
    "choices": r".*?\n\n \(A\) .*?\n \(B\) .*?\n \(C\) .*?\n \(D\) .*?\n\n",
}


class Budget(NamedTuple):
    """Tokens of the prompt, including the question, and of the answer without EOS."""

    prompt: int
    answer: int

    @property
    def length(self) -> int:
        return self.prompt + self.answer + 1


# paper8k and table5 are the paper's (its script, its Table 5); demo is for trying things out.
BUDGETS = {
    "paper8k": {"answer": Budget(7991, 200), "summary": Budget(7191, 1000)},
    "table5": {"answer": Budget(823, 200), "summary": Budget(767, 256)},
    "demo": {"answer": Budget(223, 32), "summary": Budget(191, 64)},
}


class Task(NamedTuple):
    name: str  # also of its zip on the hub, and of the folder in the zip
    layout: Literal["document", "question", "choices"]
    metric: Literal["exact_match", "f1", "rouge"]
    size: int = 0  # of its zip on the hub, approximately, in megabytes
    title: str = ""  # in the paper's table

    @property
    def kind(self) -> Literal["answer", "summary"]:
        """The kind of answer, which determines its token budget."""
        return "summary" if self.metric == "rouge" else "answer"

    def document_start(self, text: str) -> int:
        """Returns the offset of the document in an input, after a blank line; raises a ValueError
        if the input does not have this task's layout."""
        found = re.match(LAYOUTS[self.layout], text, re.DOTALL)
        if found is None:
            raise ValueError(f"its input has no {self.layout} and a blank line before the document")
        return found.end()


with Path(__file__).with_name("tasks.csv").open(encoding="utf-8", newline="") as _file:
    _rows = [row | {"size": int(row["size"])} for row in csv.DictReader(_file)]
BENCHMARK = {row["name"]: Task(**row) for row in _rows}
SAMPLE = "sample"  # not part of SCROLLS: see scrolls.sample
TASKS = BENCHMARK | {SAMPLE: Task(SAMPLE, "question", "f1")}
