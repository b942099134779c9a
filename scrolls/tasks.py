"""The tasks of SCROLLS: layout of their inputs, and metrics."""

from __future__ import annotations

from typing import Literal, NamedTuple

Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")


class Task(NamedTuple):
    """Attributes:
    name: also of its zip on the hub, and of the folder in the zip.
    layout: text before the document: nothing, a question, or a question with choices.
    metric: exact_match, f1 or rouge.
    size: of its zip on the hub, approximately, in megabytes.
    """

    name: str
    layout: Literal["document", "question", "choices"]
    metric: Literal["exact_match", "f1", "rouge"]
    size: int = 0

    @property
    def kind(self) -> Literal["answer", "summary"]:
        """The kind of answer, which determines its token budget."""
        return "summary" if self.metric == "rouge" else "answer"

    def document_start(self, text: str) -> int:
        """Returns the offset of the document in an input; the question and a blank line precede it.

        Raises:
            ValueError: if the input does not have this task's layout.
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
SAMPLE = "sample"  # not part of SCROLLS: see scrolls.sample
TASKS = BENCHMARK | {SAMPLE: Task(SAMPLE, "question", "f1")}
