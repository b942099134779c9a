"""Answers of several encodings to the same questions, with the score of each answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from scrolls.metrics import SCORE, averages, example
from scrolls.rows import Question
from scrolls.scoring import Reference, read_types

LEGENDS = {
    "exact_match": "Scores: exact match in percent, over all questions and for each answer.",
    "f1": "Scores: F1 in percent, over all questions and for each answer.",
    "rouge": "Scores: geometric mean of rouge1, rouge2 and rougeL in percent. The overall score is "
    "the geometric mean of the three averages, so it is not the average of the scores of the "
    "answers.",
}


class Answer(NamedTuple):
    """`score` in percent is that of a set with this answer only: for ROUGE the geometric mean of
    its three variants, whose average over answers is not the task's score."""

    encoding: str
    text: str
    score: float


class Asked(NamedTuple):
    """A question and the answers of all encodings, in the same order for every question."""

    question: Question
    answers: list[Answer]

    @property
    def best(self) -> float | None:
        """The best score if it is above 0."""
        return max(answer.score for answer in self.answers) or None

    @property
    def spread(self) -> tuple[float, int]:
        """The range of the scores, and the number of distinct texts."""
        scores = [answer.score for answer in self.answers]
        return max(scores) - min(scores), len({answer.text for answer in self.answers})


class Reading(NamedTuple):
    """Attributes:
    name: task name.
    means: the task's score over all questions by encoding, as the evaluator computes it.
    total: number of questions.
    asked: the questions to show, in this order.
    """

    name: str
    metric: str
    means: dict[str, float]
    total: int
    asked: list[Asked]

    @property
    def best(self) -> float | None:
        """The best of the means if it is above 0."""
        return max(self.means.values()) or None

    @property
    def title(self) -> str:
        return f"{self.name}: {len(self.asked):,} of {self.total:,} questions"

    @property
    def legend(self) -> str:
        return LEGENDS[self.metric]


def read_folder(folder: Path, reference: Reference) -> dict[str, dict[str, str]]:
    """Returns the predictions in a folder, one <TYPE>.json per encoding.

    Raises:
        ValueError: if there are none, or those of an encoding are invalid.
    """
    found = {}
    for kind, given in read_types(folder).items():
        found[kind], faults = reference.check(given)
        if faults is not None:
            details = faults["details"].items()
            shown = [f"{name}: {', '.join(keys[:3])}" for name, keys in details if keys]
            raise ValueError(" ".join([f"{folder / kind}.json:", *faults["errors"], *shown]))
    if not found:
        raise ValueError(f"{folder} contains no predictions: expected files <TYPE>.json")
    return found


def read(
    reference: Reference,
    predictions: dict[str, dict[str, str]],
    ids: list[str] | None = None,
    sort: str = "spread",
    limit: int | None = None,
) -> Reading:
    """Scores all predictions and selects questions to show.

    Args:
        ids: restricts to these questions.
        sort: `spread` (largest differences between answers first) or `order` (as in the file).
        limit: maximum number of questions.

    Raises:
        ValueError: for an unknown id.
    """
    questions, metric = reference.questions, reference.task.metric
    if unknown := [id_ for id_ in ids or () if id_ not in questions]:
        known = next(iter(questions))
        raise ValueError(
            f"{reference.task.name} has no question {unknown[0]!r}; an example of its questions is "
            f"{known!r}"
        )
    asked = {id_: Asked(question, []) for id_, question in questions.items()}
    means = {}
    for encoding, texts in predictions.items():
        progress = tqdm(questions.items(), encoding, leave=False, disable=None)
        scores = [example(metric, texts[id_], question.outputs) for id_, question in progress]
        means[encoding] = averages(metric, scores)[SCORE[metric]]
        for (id_, one), score in zip(asked.items(), scores, strict=True):
            alone = averages(metric, [score])[SCORE[metric]]
            one.answers.append(Answer(encoding, texts[id_], alone))
    shown = [asked[id_] for id_ in questions if id_ in (ids or questions)]
    if sort == "spread":
        shown.sort(key=lambda one: one.spread, reverse=True)
    return Reading(reference.task.name, metric, means, len(questions), shown[:limit])


# Control and bidi characters, which would affect a terminal or the text around them, are escaped.
_SIGNS = {
    code: f"<{code:02x}>"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def harmless(text: str) -> str:
    """Escapes control characters except line ends and tabs, e.g. as <1b>."""
    return text.replace("\r\n", "\n").translate(_SIGNS)
