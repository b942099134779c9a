"""Training on passkey retrieval: generated prompts, and accuracy up to 8 times their length."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from retrieval.decoding import Answer, answers
from retrieval.plan import Question, Questions, plan
from retrieval.sequences import Passkeys, PromptSequences
from retrieval.tokenizer import plain_tokenizer
from tape.evaluation.checkpoint import check_length
from tape.modeling import TapeForCausalLM
from tape.names import check_integer
from tape.training.arguments import training_order
from tape.training.progress import read_metrics
from tape.training.report import facts, headline, publish
from tape.training.task import Task

TIMES = (1, 2, 4, 8)  # multiples of the trained length at which accuracy is measured
BATCH_TOKENS = 16_384


class PasskeyTask(Task):
    """Trains on `passkeys`. Each validation also answers a fixed sample, `samples` prompts at each
    of five depths, of the longest trained length and of two, four and eight times that:
    `accuracy in` and `accuracy out` are the fractions answered correctly within and beyond it.

    Raises:
        ValueError: unless the run's `length` equals that of the prompts with their answers.
    """

    def __init__(
        self,
        passkeys: Passkeys,
        settings: dict[str, Any],
        arguments: TrainingArguments,
        *,
        samples: int,
    ):
        if settings["length"] != passkeys.length:
            raise ValueError(
                f"length={settings['length']}: these prompts and their answers have "
                f"{passkeys.length} tokens; give length={passkeys.length}"
            )
        if settings["eval_blocks"] is None:
            raise ValueError("eval_blocks=null: the number of prompts is unlimited; give a number")
        check_integer("task.samples", samples)
        self.passkeys = passkeys
        self.tokenizer = plain_tokenizer()
        self.train = PromptSequences(passkeys, self.tokenizer, *training_order(arguments))
        # All seeds of a comparison share the questions.
        self.evaluation = PromptSequences(
            passkeys, self.tokenizer, settings["eval_blocks"], seed=0, evaluation=True
        )
        self.batches = []
        for times in TIMES:
            length = times * passkeys.max_length
            questions = Questions(
                length, length, samples, depths=5, needles=passkeys.needles, plain=True
            )
            self.batches += plan(questions, self.tokenizer, BATCH_TOKENS)
        sets = PromptSequences(passkeys, self.tokenizer, 1, seed=0), self.evaluation
        written = "".join(self.tokenizer.decode(of[0]["input_ids"]) for of in sets)
        self.fingerprints = {"prompts": hashlib.sha256(written.encode()).hexdigest()[:16]}

    def describe(self) -> str:
        return f"prompts of up to {self.passkeys.max_length} tokens, {len(self.train):,} of them"

    def check(self, model: TapeForCausalLM) -> None:
        needed = max(batch.positions for batch in self.batches)
        purpose = f"measuring the accuracy up to {TIMES[-1]} times the trained length"
        check_length(model, needed, purpose)

    def measure(self, model: TapeForCausalLM) -> dict[str, float]:
        shares = accuracies(self._answered(model))
        inside = shares.pop(self.passkeys.max_length)
        return {"accuracy_in": inside, "accuracy_out": sum(shares.values()) / len(shares)}

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        self.passkeys.save(folder)
        answered = self._answered(model)
        metrics = read_metrics(folder / "metrics.jsonl")
        shares = accuracies(answered)
        summary = facts(model, metrics) | {"accuracy": shares}
        text = _markdown(folder, headline(summary), shares, answered)
        publish(folder, metrics, summary, text)
        return text

    def _answered(self, model: TapeForCausalLM) -> list[tuple[Question, Answer]]:
        return [
            pair
            for batch in self.batches
            for pair in zip(batch.questions, answers(model, self.tokenizer, batch), strict=True)
        ]


def accuracies(answered: list[tuple[Question, Answer]]) -> dict[int, float]:
    """Returns the fraction of right answers at each length."""
    right: dict[int, list[bool]] = {}
    for question, answer in answered:
        right.setdefault(question.length, []).append(answer.right)
    return {length: sum(right[length]) / len(right[length]) for length in sorted(right)}


def _markdown(
    folder: Path,
    headline: str,
    shares: dict[int, float],
    answered: list[tuple[Question, Answer]],
) -> str:
    rows = [f"| {length} | {share:.1%} |" for length, share in shares.items()]
    question, answer = next(pair for pair in answered if pair[0].length == min(shares))
    return "\n".join(
        [
            f"# {folder.name}",
            "",
            headline,
            "",
            "| tokens | right answers |",
            "|---|---|",
            *rows,
            "",
            f"{len(answered)} prompts, with the key at five depths. One of them and its answer:",
            "",
            f"> {question.prompt.text} **{answer.text.strip()}**",
            "",
            f"All lengths and depths: python eval_retrieval.py --base_model {folder}",
            "",
        ]
    )
