"""The tasks: how an input is made of a question and a document, and how answers are scored."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tape.names import look_up

Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")


class Task(NamedTuple):
    """Attributes:
    name: as its file is called.
    layout: what comes before the document: nothing, a question, or a question with choices.
    metric: exact_match, f1 or rouge.
    size: of its zip on the hub, roughly, in megabytes.
    """

    name: str
    layout: Literal["document", "question", "choices"]
    metric: Literal["exact_match", "f1", "rouge"]
    size: int = 0

    @property
    def kind(self) -> Literal["answer", "summary"]:
        """What is asked for: it decides how many tokens that may take."""
        return "summary" if self.metric == "rouge" else "answer"

    def document_start(self, text: str) -> int:
        """Where the document begins in an input: all before it is the question, blank line and all.

        Raises:
            ValueError: if the input is not laid out like this task's.
        """
        if self.layout == "document":
            return 0
        start = 0
        for mark in ("\n\n (A) ", "\n (B) ", "\n (C) ", "\n (D) ") * (self.layout == "choices"):
            start = text.find(mark, start)
            if start < 0:
                raise ValueError(f"its input has no choice{mark.rstrip()!r} after the question")
            start += len(mark)
        start = text.find("\n\n", start)
        if start < 0:
            raise ValueError("its input has no blank line between the question and the document")
        return start + 2


BENCHMARK = {
    task.name: task
    for task in (
        Task("gov_report", "document", "rouge", 316),
        Task("summ_screen_fd", "document", "rouge", 51),
        Task("qmsum", "question", "rouge", 28),
        Task("narrative_qa", "question", "f1", 8000),
        Task("qasper", "question", "f1", 20),
        Task("quality", "choices", "exact_match", 20),
        Task("contract_nli", "question", "exact_match", 5),
    )
}
HARD = "quality_hard"  # the questions of quality that are hard for people in a hurry
SAMPLE = "sample"  # none of SCROLLS: see scrolls.sample
TASKS = BENCHMARK | {
    HARD: BENCHMARK["quality"]._replace(name=HARD),
    SAMPLE: Task(SAMPLE, "question", "f1"),
}


def task_named(name: str) -> Task:
    """Raises a ValueError that lists the tasks, if there is none of this name."""
    return look_up("task", name, TASKS)
