"""Passkey retrieval: training on generated prompts, questions and accuracy by length and depth.

`accuracy` is the share of prompts answered with all values, `found` the share of values found, and
`tokens` the mean number of tokens of a prompt.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from tape.core.progress import track
from tape.data.blocks import tokenize
from tape.evaluation.accuracy import Accuracy, Measure
from tape.evaluation.questions import Answer, Question, Questions
from tape.evaluation.view import PERCENT, WHOLE, Asked, Column, HeatMap, Panel, View, select
from tape.tasks.generated import GeneratedTask
from tape.tasks.passkey import TASK
from tape.tasks.passkey.sequences import (
    BENCHMARK,
    PLAIN,
    QUESTIONS,
    Count,
    Draft,
    Passkeys,
    Prompt,
    check_needles,
    original_prompt,
    token_counter,
)

TIMES = (1, 2, 4, 8)  # multiples of the trained length: in validations and comparisons
LENGTHS = 8  # default number of lengths, for models trained on plain prompts multiples of theirs
SAMPLE = 100  # units of garbage in a prompt that tests the tokenizer
ROOM = 4  # tokens of an answer besides its numbers: words before them, or EOS

HEAT = HeatMap("depth", "length", labels=("depth of the key", "tokens of the prompt"))


def _columns(asked: list[Asked], rows: pd.DataFrame) -> list[Column]:
    """Accuracy up to the trained length and at multiples of it; at every length if runs were
    trained on different lengths, as bases and their extensions are; the effective length."""
    lengths = sorted({*rows["length"].dropna().astype(int)})
    trained = {each["trained"] for each in asked}

    def at(length: int, title: str, compared: str) -> Column:
        where = lambda rows: rows["length"] == length  # noqa: E731
        return Column(title, "accuracy", PERCENT, where, compared)

    if len(trained) > 1:
        shown = [at(n, f"keys {n:,}, %", f"{n:,}" if n == lengths[-1] else "") for n in lengths]
    else:
        (end,) = trained
        title = f"up to {end:,} tokens, %"
        within = Column(title, "accuracy", PERCENT, lambda rows: rows["length"] <= end)
        beyond = {n * end: f"{n * end:,} ({n}x)" for n in TIMES[1:] if n * end in lengths}
        shown = [within, *(at(length, f"{name}, %", name) for length, name in beyond.items())]
    return [*shown, Column("effective length", "accuracy", WHOLE, effective=True)]


CURVE = Panel(
    lambda rows: select(rows, "accuracy"), "length", (HEAT.labels[1], "accuracy"), share=True
)
KEYS = "max_tokens interval num_tests depths seed keys values plain original chat chat_room"
VIEW = View(
    keys=tuple(KEYS.split()),
    columns=_columns,
    best=lambda asked: lambda rows: rows["length"] > asked["trained"],
    panels=(CURVE,),
    heatmap=HEAT,
)
PASSKEY = Accuracy(
    file="passkey.csv",
    cell={"length": "length", "depth": "depth"},
    counts=("prompts", "right", "found", "tokens"),
    measures={
        "accuracy": Measure("right", "prompts"),
        "found": Measure("found", "prompts", times="values"),
        "tokens": Measure("tokens", "prompts", unit="tokens"),
    },
    view=VIEW,
    line="{length} tokens",
)


@dataclass(frozen=True)
class PasskeyQuestions(Questions):
    """Prompts of interval, 2 * interval, ... up to `max_tokens` tokens. The rule of the original
    code makes prompts of about that many tokens, with the key at any depth; an answer is right if
    its tokens are those of the key."""

    max_tokens: int
    interval: int
    num_tests: int = 20  # prompts of each length and depth
    depths: int = 11  # number of depths from 0 to 1; a single one is the middle
    seed: int = 0
    keys: int = 1  # of a `Draft`
    values: int = 1
    plain: bool = False  # in plain words, not those of the benchmark
    original: bool = False
    trained: int | None = None  # tokens of the longest prompts in training

    LIMIT = "max_tokens"

    def __post_init__(self):
        check_needles(self.keys, self.values)
        if self.interval > self.max_tokens:
            raise ValueError(f"interval={self.interval} exceeds max_tokens={self.max_tokens}")
        if self.original and (self.plain or (self.keys, self.values) != (1, 1)):
            raise ValueError(
                "the original rule has the wording of the benchmark, one key and one value, and "
                "this model or command has others: leave out --original"
            )

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> list[list[Question]]:
        """Returns the questions of each length. The depth of the original rule is None."""
        sample, count = self._draft(0.5), token_counter(tokenizer)
        check_tokenizer(tokenizer, sample.prompt(sample.stretches(SAMPLE)).text)
        lengths = range(self.interval, self.max_tokens + 1, self.interval)
        lengths = track(lengths, desc="prompts", leave=False)
        groups = [[*self._of_length(length, count)] for length in lengths]
        room = max(count(prompt.answer) for group in groups for _, prompt in group)
        room += ROOM * self.values
        return [
            [Question(cell, each.text, each, count(each.text), room) for cell, each in group]
            for group in groups
        ]

    def _draft(self, depth: float, *seed: int) -> Draft:
        text = PLAIN if self.plain else BENCHMARK
        return Draft(text, depth, (self.seed, QUESTIONS, *seed), self.keys, self.values)

    def _of_length(self, length: int, count: Count) -> Iterator[tuple[tuple, Prompt]]:
        if self.original:
            for n in range(self.num_tests):
                yield (length, None), original_prompt(length, self.seed + n)
            return
        depths = np.linspace(0, 1, self.depths).round(6).tolist() if self.depths > 1 else [0.5]
        for (place, depth), n in product(enumerate(depths), range(self.num_tests)):
            yield (length, depth), self._draft(depth, length, place, n).fitted(length, count)

    def mark(self, question, written, tokenizer):
        """Counts which of k requested values are among the first k numbers. A number counts if
        followed by anything, including EOS; otherwise it may be truncated. By the original rule,
        the first tokens have to be those of the key as it follows the prompt."""
        text = tokenizer.decode(written, clean_up_tokenization_spaces=False)
        values, answer = question.answer.values, question.answer.answer
        if self.original:
            whole = tokenizer(question.prompt + answer)["input_ids"]
            expected = whole[len(tokenizer(question.prompt)["input_ids"]) :]
            found = int(written[: len(expected)] == expected)
        else:
            numbers = re.findall(r"\d+(?=\D)", text)[: len(values)]
            found = len(set(values) & set(numbers))
        right = found == len(values)
        counts = (1, int(right), found, question.tokens)
        return Answer(right, counts, {"expected": answer.strip(), "given": text})


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raises a ValueError if the tokenizer cannot encode a prompt that is to be continued."""
    tokenize(tokenizer, [text])
    ids, unknown = tokenizer(text)["input_ids"], tokenizer.unk_token_id
    if unknown is not None and unknown in ids:
        raise ValueError(f"the model's tokenizer has {tokenizer.unk_token} for parts of a prompt")
    if ids[-1] == tokenizer.eos_token_id:
        what = "the model's tokenizer ends every text with EOS, but a prompt must be continued"
        raise ValueError(f"{what}: set add_eos_token to false in its tokenizer_config.json")


class PasskeyTask(GeneratedTask):
    """The questions are `samples` prompts at each of five depths, of the longest trained length and
    of two, four and eight times that."""

    kind = Passkeys
    record = TASK
    unit = "prompts"
    results = PASSKEY

    def questions(self, samples):
        of, lengths = self.source, [times * self.source.max_length for times in TIMES]
        return [
            PasskeyQuestions(n, n, samples, 5, 0, of.keys, of.values, plain=True) for n in lengths
        ]

    @staticmethod
    def asked(given, folder, model):
        """Asks plain prompts of models trained on them, others the benchmark's."""
        plain = (folder / Passkeys.FILE).is_file()
        if plain:
            source = Passkeys.load(folder)
            trained, usual = source.max_length, (source.keys, source.values)
        else:
            trained, usual = model.config.max_position_embeddings, (1, 1)
            if given.max_tokens is None:
                raise ValueError("give --max_tokens, the length of the longest prompts")
        longest = given.max_tokens or LENGTHS * trained
        interval = given.interval or (trained if plain else max(1, longest // LENGTHS))
        tests, depths, seed = given.num_tests, given.depths, given.seed
        keys, values = given.keys or usual[0], given.values or usual[1]
        questions = PasskeyQuestions(
            longest, interval, tests, depths, seed, keys, values, plain, given.original, trained
        )
        name = "passkey" + "_original" * given.original
        return questions, name if (keys, values) == usual else f"{name}_{keys}x{values}"
