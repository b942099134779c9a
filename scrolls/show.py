"""Scores the answers of several encodings, and shows them side by side on a page: question, gold
answers, and every encoding's answer with its score.

python -m scrolls.show --dataset_name quality --predictions scrolls/quality --out page.html
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from scrolls.metrics import SCORE, averages, example
from scrolls.official_files import Question, find, read_rows
from scrolls.predictions import Golds, Reference, add_data, read_types
from scrolls.tasks import SPLITS, TASKS
from tape.command import Parser, expected_errors
from tape.files import check_replaceable, write_text
from tape.results.html import mark, page

PROGRAM = "scrolls.show"
TEMPLATE = Path(__file__).with_name("answers.html")
LEGENDS = {
    "exact_match": "Scores: exact match in percent, over all questions and for each answer.",
    "f1": "Scores: F1 in percent, over all questions and for each answer.",
    "rouge": "Scores: geometric mean of rouge1, rouge2 and rougeL in percent. The overall score is "
    "the geometric mean of the three averages, so it is not the average of the scores of the "
    "answers.",
}
# Control and bidi characters, which would affect a terminal or the text around them, are escaped.
_SIGNS = {
    code: f"<{code:02x}>"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
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


def majority(reference: Reference, data_dir: Path | None, cache: Path) -> dict[str, str]:
    """Returns the answers of a baseline without documents, by id: the most frequent gold answer of
    the training rows with the same question, or of all training rows if the question is new."""
    task = reference.task
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in read_rows(find(task, "train", data_dir, cache), task, "train"):
        counts[row.question][row.output] += 1
    overall = sum(counts.values(), Counter())
    usual = {question: max(golds, key=golds.get) for question, golds in counts.items()}
    return {
        id_: usual.get(asked.question, max(overall, key=overall.get))
        for id_, asked in reference.questions.items()
    }


def scored(
    reference: Reference, predictions: dict[str, dict[str, str]]
) -> tuple[dict[str, float], list[Asked]]:
    """Returns the task's score by encoding, as the evaluator computes it, and all questions with
    their answers."""
    metric, questions = reference.task.metric, reference.questions
    asked = [Asked(question, []) for question in questions.values()]
    means = {}
    for encoding, texts in predictions.items():
        progress = tqdm(questions.items(), encoding, leave=False, disable=None)
        scores = [example(metric, texts[id_], question.outputs) for id_, question in progress]
        means[encoding] = averages(metric, scores)[SCORE[metric]]
        for one, score in zip(asked, scores, strict=True):
            alone = averages(metric, [score])[SCORE[metric]]
            one.answers.append(Answer(encoding, texts[one.question.id], alone))
    return means, asked


def harmless(text: str) -> str:
    """Escapes control characters except line ends and tabs, e.g. as <1b>."""
    return text.replace("\r\n", "\n").translate(_SIGNS)


@expected_errors()
def main() -> None:
    parser = Parser(
        prog="python -m scrolls.show", description="Show answers of encodings side by side."
    )
    add = parser.add_argument
    add("--dataset_name", choices=TASKS, required=True)
    add("--split", choices=SPLITS, default="validation", help="default: validation")
    add_data(parser)
    add("--predictions", type=Path, required=True, help="folder with one <TYPE>.json per encoding")
    add(
        "--majority",
        action="store_true",
        help="show a baseline without documents as well: the most frequent gold answer in training "
        "to the same question",
    )
    add("--ids", nargs="+", help="show these questions only")
    add("--limit", type=int, default=20, help="maximum number of questions (default: 20)")
    add(
        "--sort",
        choices=("spread", "order"),
        default="spread",
        help="spread: largest differences first (default); order: as in the file",
    )
    add("--out", type=Path, help="HTML page to write; without it, only scores are printed")
    given = parser.parse_args()
    if given.limit < 1:
        raise ValueError(f"--limit {given.limit} must be at least 1")
    if given.out is not None:
        check_replaceable("--out", given.out, mark(PROGRAM))
    golds = Golds(given.split, given.data_dir, given.cache_dir, with_inputs=True)
    task = TASKS[given.dataset_name]
    reference = golds.of(task)
    known = reference.questions
    if unknown := [id_ for id_ in given.ids or () if id_ not in known]:
        raise ValueError(
            f"{task.name} has no question {unknown[0]!r}; an example of its questions is "
            f"{next(iter(known))!r}"
        )
    predictions = read_folder(given.predictions, reference)
    if given.majority:
        predictions["majority"] = majority(reference, given.data_dir, given.cache_dir)
    means, asked = scored(reference, predictions)
    best = max(means.values()) or None
    for name, mean in means.items():
        print(f"{'*' if mean == best else ' '} {harmless(name):{max(map(len, means))}} {mean:6.2f}")
    if given.out is None:
        return
    asked = [one for one in asked if one.question.id in (given.ids or known)]
    if given.sort == "spread":
        asked.sort(key=lambda one: one.spread, reverse=True)
    asked = asked if given.ids else asked[: given.limit]
    title = f"{task.name}: {len(asked):,} of {len(known):,} questions"
    values = {"means": means, "best": best, "asked": asked, "legend": LEGENDS[task.metric]}
    text = page(TEMPLATE, PROGRAM, title, **values, harmless=harmless)
    write_text(given.out, text)
    print(f"the answers are in {given.out}")


if __name__ == "__main__":
    main()
