"""Report of a fine-tuning: some validation questions, answered and scored, in report/."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from scrolls.examples import Examples
from scrolls.generation import answers, plan
from scrolls.metrics import SCORE, averages, example
from scrolls.prompts import Prompts
from scrolls.tasks import TASKS
from tape.evaluation.tables import markdown_table
from tape.modeling import TapeForCausalLM
from tape.training.progress import read_metrics
from tape.training.report import facts, headline, printable, publish

BATCH = 8  # prompts of full budget that are answered together
SHOWN = 12  # answers in the report
SHOWN_CHARACTERS = 120  # per answer


def write_report(
    folder: Path,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    examples: Examples,
    prompts: Prompts,
    rows: list[int],
    trained_for: dict[str, str],
) -> str:
    """Answers the questions of these rows greedily and scores the answers; writes folder/report/
    and returns its text, which is also printed."""
    golds: dict[str, list[str]] = {}
    for id_, tokens in zip(examples.ids, examples.answers, strict=True):
        golds.setdefault(id_, []).append(tokenizer.decode(tokens).strip())
    given: dict[str, str] = {}
    for batch in plan(examples, prompts, rows, BATCH * prompts.budget.length):
        given |= zip(batch.ids, answers(model, tokenizer, batch), strict=True)

    metric = TASKS[trained_for["task"]].metric
    scores = averages(metric, [example(metric, text, golds[id_]) for id_, text in given.items()])
    metrics, score = read_metrics(folder / "metrics.jsonl"), scores[SCORE[metric]]
    summary = facts(model, metrics) | trained_for
    summary |= {"metric": SCORE[metric], "score": round(score, 4), "questions": len(rows)}

    def cell(text: str) -> str:
        return printable(" ".join(text.split()).replace("|", "\\|")[:SHOWN_CHARACTERS])

    shown = [["question", "gold answers", "given"]]
    for row in rows[:SHOWN]:
        question, id_ = tokenizer.decode(examples.questions[row]), examples.ids[row]
        shown.append([cell(question), cell(" / ".join(golds[id_])), cell(given[id_])])
    task = trained_for["task"]
    text = f"""\
# {folder.name}

{headline(summary)}

{task}, budget {trained_for["budget"]}: {SCORE[metric]} {score:.2f} on {len(rows)} validation \
questions, answered greedily. Some of them:

{markdown_table(shown)}

All of them: python -m scrolls.generate model={folder} task={task} output=...
"""
    publish(folder, metrics, summary, text)
    return text
