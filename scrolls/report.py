"""Report of a fine-tuning: some validation questions, answered and scored, in report/."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from scrolls.examples import Examples
from scrolls.generation import answers, plan
from scrolls.metrics import SCORE, averages, example
from scrolls.prompts import Prompts
from scrolls.tasks import task_named
from tape.modeling import TapeForCausalLM
from tape.training.progress import read_metrics
from tape.training.report import facts, headline, printable, publish

BATCH = 8  # prompts of full budget that are answered together
SHOWN = 12  # answers in the report
SHOWN_CHARACTERS = 120  # per answer


class Answered(NamedTuple):
    question: str
    golds: list[str]
    given: str


def answer_some(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    prompts: Prompts,
    rows: list[int],
) -> list[Answered]:
    """Answers the questions of these rows greedily."""
    golds: dict[str, list[str]] = {}
    for row, id_ in enumerate(examples.ids):
        golds.setdefault(id_, []).append(tokenizer.decode(examples.answers[row]).strip())
    given: dict[str, str] = {}
    for batch in plan(examples, prompts, rows, BATCH * prompts.budget.length):
        given |= zip(batch.ids, answers(model, tokenizer, batch), strict=True)
    questions = [tokenizer.decode(examples.questions[row]).strip() for row in rows]
    ids = [examples.ids[row] for row in rows]
    return [
        Answered(question, golds[id_], given[id_])
        for question, id_ in zip(questions, ids, strict=True)
    ]


def write_report(
    folder: Path, model: TapeForCausalLM, trained_for: dict[str, str], answered: list[Answered]
) -> str:
    """Writes folder/report/ and returns its text, which is also printed."""
    metric = task_named(trained_for["task"]).metric
    scores = averages(metric, [example(metric, one.given, one.golds) for one in answered])
    metrics = read_metrics(folder / "metrics.jsonl")
    summary = facts(model, metrics) | trained_for
    summary |= {"metric": SCORE[metric], "score": round(scores[SCORE[metric]], 4)}
    summary["questions"] = len(answered)
    text = _markdown(folder, summary, answered)
    publish(folder, metrics, summary, text)
    return text


def _markdown(folder: Path, summary: dict[str, Any], answered: list[Answered]) -> str:
    def cell(text: str) -> str:
        return printable(" ".join(text.split()).replace("|", "\\|")[:SHOWN_CHARACTERS])

    rows = [
        f"| {cell(question)} | {cell(' / '.join(golds))} | {cell(given)} |"
        for question, golds, given in answered[:SHOWN]
    ]
    return "\n".join(
        [
            f"# {folder.name}",
            "",
            headline(summary),
            "",
            f"{summary['task']}, budget {summary['budget']}: {summary['metric']} "
            f"{summary['score']:.2f} on {summary['questions']} validation questions, "
            f"answered greedily. Some of them:",
            "",
            "| question | gold answers | given |",
            "|---|---|---|",
            *rows,
            "",
            f"All of them: python -m scrolls.generate model={folder} task={summary['task']} "
            f"output=...",
            "",
        ]
    )
