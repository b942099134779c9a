"""Training on passkey retrieval: generated prompts, and accuracy up to 8 times their length."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

from transformers import TrainingArguments

from tape.evaluation.tables import markdown_table
from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM
from tape.settings.run import RunSettings
from tape.tasks.passkey.decoding import answers
from tape.tasks.passkey.passkey_plan import Question, Questions, plan
from tape.tasks.passkey.sequences import Passkeys, PromptSequences
from tape.tasks.passkey.texts import plain_tokenizer
from tape.training.generated import Answered, GeneratedTask

TIMES = (1, 2, 4, 8)  # multiples of the trained length at which accuracy is measured
BATCH_TOKENS = 16_384


class PasskeyTask(GeneratedTask):
    """The questions are `samples` prompts at each of five depths, of the longest trained length and
    of two, four and eight times that."""

    kind = Passkeys
    unit = "prompts"
    template = """\
# {name}

{headline}

{table}

{questions} prompts, with the key at five depths. One of them and its answer:

> {prompt} **{given}**

All lengths and depths: python eval_retrieval.py --base_model {folder}
"""

    def __init__(
        self,
        passkeys: Passkeys,
        settings: RunSettings,
        arguments: TrainingArguments,
        *,
        samples: int,
    ):
        tokenizer = plain_tokenizer()
        super().__init__(passkeys, PromptSequences, tokenizer, settings, arguments, samples)
        self.batches = []
        for length in (times * passkeys.max_length for times in TIMES):
            questions = Questions(
                length, length, samples, depths=5, needles=passkeys.needles, plain=True
            )
            self.batches += plan(questions, tokenizer, BATCH_TOKENS)

    def describe(self) -> str:
        return f"prompts of up to {self.source.max_length} tokens, {len(self.train):,} of them"

    def check(self, model: TapeForCausalLM) -> None:
        needed = max(batch.positions for batch in self.batches)
        purpose = f"measuring the accuracy up to {TIMES[-1]} times the trained length"
        check_length(model, needed, purpose)

    def answer(self, model: TapeForCausalLM) -> Iterable[Answered]:
        for batch in self.batches:
            given = answers(model, self.tokenizer, batch)
            for question, answer in zip(batch.questions, given, strict=True):
                yield Answered(question, answer.text, answer.right)

    def is_inside(self, question: Question) -> bool:
        return question.length <= self.source.max_length

    def summarize(self, answered: list[Answered]) -> dict[str, Any]:
        right: dict[int, list[bool]] = {}
        for question, _, is_right in answered:
            right.setdefault(question.length, []).append(is_right)
        return {"accuracy": {length: mean(right[length]) for length in sorted(right)}}

    def fill(self, summary: dict[str, Any], answered: list[Answered]) -> dict[str, str]:
        shares = summary["accuracy"]
        question, given, _ = next(x for x in answered if x.question.length == min(shares))
        rows = [(length, f"{share:.1%}") for length, share in shares.items()]
        table = markdown_table([("tokens", "right answers"), *rows])
        return {"table": table, "prompt": question.prompt.text, "given": given.strip()}
