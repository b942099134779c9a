"""Passkey retrieval: training on generated prompts, and the questions of an evaluation."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from tape.command import integer
from tape.evaluation.questions import Batch
from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.tasks.generated import Answered, Asked, GeneratedTask, by_length
from tape.tasks.passkey.passkey_questions import ONE, PasskeyQuestions
from tape.tasks.passkey.prompts import Needles
from tape.tasks.passkey.results import PASSKEY, draw_lengths
from tape.tasks.passkey.sequences import Passkeys

TIMES = (1, 2, 4, 8)  # multiples of the trained length at which accuracy is measured
BATCH_TOKENS = 16_384
LENGTHS = 8  # default multiple of the trained length, for models trained on plain prompts


class PasskeyTask(GeneratedTask):
    """The questions are `samples` prompts at each of five depths, of the longest trained length and
    of two, four and eight times that."""

    kind = Passkeys
    unit = "prompts"
    results = PASSKEY
    draw = staticmethod(draw_lengths)
    template = """\
# {name}

{headline}

{table}

{questions} prompts, with the key at five depths. One of them and its answer:

> {prompt} **{given}**

All lengths and depths: python eval_retrieval.py --base_model {folder}
"""

    def plan(self, samples: int) -> tuple[PasskeyQuestions, list[Batch]]:
        batches, needles = [], self.source.needles
        for length in (times * self.source.max_length for times in TIMES):
            questions = PasskeyQuestions(
                length, length, samples, depths=5, needles=needles, plain=True
            )
            batches += questions.plan(self.tokenizer, BATCH_TOKENS)
        return questions, batches  # all are marked alike

    def describe(self) -> str:
        return f"prompts of up to {self.source.max_length} tokens, {len(self.train):,} of them"

    def check(self, model: TapeForCausalLM) -> None:
        purpose = f"measuring the accuracy up to {TIMES[-1]} times the trained length"
        check_length(model, max(batch.length for batch in self.batches), purpose)

    def summarize(self, answered: list[Answered]) -> dict[str, Any]:
        return {"accuracy": by_length(answered)}

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        shares = summary["accuracy"]
        question, given, _ = next(x for x in answered if x.question.cell[0] == min(shares))
        rows = [(length, f"{share:.1%}") for length, share in shares.items()]
        table = markdown_table([("tokens", "right answers"), *rows])
        return {"table": table, "prompt": question.prompt, "given": given.strip()}

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add, whole = parser.add_argument, integer(1)
        add("--context_size", type=whole, help="tokens available for prompt and answer")
        add("--max_tokens", type=whole, help="tokens of the longest prompts")
        add("--interval", type=whole, help="prompts have 1, 2, ... times this number of tokens")
        add("--num_tests", type=whole, default=20, help="prompts per length and depth")
        add("--depths", type=whole, default=11, help="number of depths from 0 to 1")
        add("--keys", type=whole, help="number of names with pass keys; one is asked for")
        add("--values", type=whole, help="pass keys per name; all are asked for")
        add(
            "--original",
            action="store_true",
            help="lengths, depths and scoring of the original code",
        )
        add("--batch_tokens", type=whole, default=BATCH_TOKENS, help="tokens per batch")

    @staticmethod
    def ask(
        given: argparse.Namespace,
        folder: Path,
        model: TapeForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
    ) -> Asked:
        trained = Passkeys.load(folder) if Passkeys.is_in(folder) else None
        questions = questions_for(given, trained)
        batches = questions.plan(tokenizer, given.batch_tokens)
        needed, new = max((batch.length, batch.new_tokens) for batch in batches)
        if given.context_size is not None and needed > given.context_size:
            raise ValueError(
                f"context_size={given.context_size} is shorter than the longest prompt and its "
                f"answer, {needed - new} + {new} tokens: raise it, or lower max_tokens"
            )
        check_length(model, needed, f"max_tokens={questions.max_tokens}")
        settings = asdict(questions)
        settings = {
            "trained": trained.max_length if trained else model.config.max_position_embeddings,
            **settings.pop("needles"),
            **settings,
            "wrong": given.wrong,
            "batch_tokens": given.batch_tokens,
        }
        name, needles = "passkey_original" if questions.original else "passkey", questions.needles
        if needles != (trained.needles if trained else ONE):
            name += f"_{needles.keys}x{needles.values}"
        return Asked(questions, batches, settings, name)


def questions_for(given: argparse.Namespace, trained: Passkeys | None) -> PasskeyQuestions:
    """Returns the questions: plain prompts for models trained on them, else the benchmark's."""
    needles = Needles(
        given.keys or (trained.keys if trained else 1),
        given.values or (trained.values if trained else 1),
    )
    max_tokens = given.max_tokens
    if max_tokens is None:
        if trained is None:
            raise ValueError("give --max_tokens, the length of the longest prompts")
        max_tokens = LENGTHS * trained.max_length
    return PasskeyQuestions(
        max_tokens,
        given.interval or (trained.max_length if trained else max(1, max_tokens // LENGTHS)),
        given.num_tests,
        given.depths,
        given.seed,
        needles,
        plain=trained is not None,
        original=given.original,
    )
