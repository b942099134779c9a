"""Passkey retrieval: training on generated prompts, and questions of every length and depth."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.command import integer
from tape.evaluation.questions import MOST, Answer, Question, Questions, check_count
from tape.model.modeling import TapeForCausalLM
from tape.tasks.generated import Answered, GeneratedTask, by_length, table_by_length
from tape.tasks.passkey.prompts import (
    BENCHMARK,
    PLAIN,
    Count,
    Draft,
    Prompt,
    Text,
    check_needles,
    original_prompt,
    token_counter,
)
from tape.tasks.passkey.results import PASSKEY, draw_lengths
from tape.tasks.passkey.sequences import QUESTIONS, Passkeys
from tape.validation import check_integer

TIMES = (1, 2, 4, 8)  # multiples of the trained length at which accuracy is measured
LENGTHS = 8  # default number of lengths, for models trained on plain prompts multiples of theirs
SAMPLE = 100  # units of garbage in a prompt that tests the tokenizer
ROOM = 4  # tokens of an answer besides its numbers: words before them, or EOS


@dataclass(frozen=True)
class PasskeyQuestions(Questions):
    """
    Args:
        max_tokens, interval: prompts have interval, 2 * interval, ... up to max_tokens tokens.
        num_tests: prompts of each length and depth.
        depths: number of depths from 0 to 1; a single one is the middle.
        keys, values: of a `Draft`.
        plain: in plain words, not those of the benchmark.
        original: by the rule of the original code: prompts of about that many tokens, with the key
            at any depth. An answer is right if its tokens are those of the key.
        trained: the longest prompts in training.

    Raises:
        ValueError: for values that are not allowed, alone or together.
    """

    max_tokens: int
    interval: int
    num_tests: int = 20
    depths: int = 11
    seed: int = 0
    keys: int = 1
    values: int = 1
    plain: bool = False
    original: bool = False
    trained: int | None = None

    LIMIT = "max_tokens"

    def __post_init__(self):
        for name in ("max_tokens", "interval", "num_tests", "depths"):
            check_integer(name, getattr(self, name), most=MOST)
        check_integer("seed", self.seed, least=0)
        check_needles(self.keys, self.values)
        if self.interval > self.max_tokens:
            raise ValueError(
                f"interval={self.interval}, the shortest length, is more than "
                f"max_tokens={self.max_tokens}, the longest"
            )
        check_count(
            len(self.lengths) * self.depths * self.num_tests,
            f"num_tests={self.num_tests} at depths={self.depths} and {len(self.lengths):,} lengths",
        )
        if self.original and (self.plain or (self.keys, self.values) != (1, 1)):
            raise ValueError(
                "the original rule has the wording of the benchmark, one key and one value, and "
                "this model or command has others: leave out --original"
            )

    @property
    def lengths(self) -> range:
        return range(self.interval, self.max_tokens + 1, self.interval)

    @property
    def text(self) -> Text:
        return PLAIN if self.plain else BENCHMARK

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> list[list[Question]]:
        """Returns the questions of each length, depth by depth.

        Raises:
            ValueError: if the shortest prompts have no room for their lines, or the tokenizer
                cannot be used.
        """
        sample, count = self._draft(0.5), token_counter(tokenizer)
        check_tokenizer(tokenizer, sample.prompt(sample.stretches(SAMPLE)).text)
        lengths = tqdm(self.lengths, desc="prompts", leave=False, disable=None)
        groups = [[*self._of_length(length, count)] for length in lengths]
        room = max(count(prompt.answer) for group in groups for _, prompt in group)
        room += ROOM * self.values

        def question(cell: tuple[int, float | None], prompt: Prompt) -> Question:
            tokens = count(prompt.text) if self.original else cell[0]
            return Question(cell, prompt.text, prompt, tokens, room)

        return [[question(*each) for each in group] for group in groups]

    def _draft(self, depth: float, *seed: int) -> Draft:
        return Draft(self.text, depth, (self.seed, QUESTIONS, *seed), self.keys, self.values)

    def _of_length(
        self, length: int, count: Count
    ) -> Iterator[tuple[tuple[int, float | None], Prompt]]:
        """Yields the prompts of a length with (length, depth); by the original rule the depth is
        None: any."""
        if self.original:
            for n in range(self.num_tests):
                yield (length, None), original_prompt(length, self.seed + n)
            return
        depths = np.linspace(0, 1, self.depths).round(6) if self.depths > 1 else [0.5]
        for place, depth in enumerate(map(float, depths)):
            for n in range(self.num_tests):
                yield (length, depth), self._draft(depth, length, place, n).fitted(length, count)

    def mark(
        self, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Answer:
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
        return Answer(text, right, counts, {"expected": answer.strip(), "given": text})


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raises a ValueError if the tokenizer cannot encode a prompt that is to be continued."""
    try:
        ids = tokenizer(text)["input_ids"]
    except Exception as error:  # the library has no type of its own for it
        raise ValueError(f"the model's tokenizer cannot write a prompt: {error}") from error
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise ValueError(
            f"the model's tokenizer cannot write a prompt: parts of it are {tokenizer.unk_token}"
        )
    if ids[-1] == tokenizer.eos_token_id:
        raise ValueError(
            "the model's tokenizer ends every text with EOS, but a prompt must be continued: set "
            "add_eos_token to false in its tokenizer_config.json"
        )


class PasskeyTask(GeneratedTask):
    """The questions are `samples` prompts at each of five depths, of the longest trained length and
    of two, four and eight times that."""

    kind = Passkeys
    name = "passkey"
    unit = "prompts"
    results = PASSKEY
    draw = staticmethod(draw_lengths)

    def questions(self, samples: int) -> list[PasskeyQuestions]:
        keys, values = self.source.keys, self.source.values
        return [
            PasskeyQuestions(length, length, samples, 5, 0, keys, values, plain=True)
            for length in (times * self.source.max_length for times in TIMES)
        ]

    def describe(self) -> str:
        return f"prompts of up to {self.source.max_length} tokens, {len(self.train):,} of them"

    def summarize(self, answered: Answered) -> dict[str, Any]:
        return {"accuracy": by_length(answered)}

    def told(self, summary: dict[str, Any], answered: Answered) -> str:
        question, answer = next(x for x in answered if x[0].cell[0] == min(summary["accuracy"]))
        return (
            f"{table_by_length(answered, 'tokens')}\n\n"
            f"{len(answered)} prompts, with the key at five depths. One of them and its answer:\n\n"
            f"> {question.prompt} **{answer.text.strip()}**"
        )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add, whole = parser.add_argument, integer(1)
        add("--max_tokens", type=whole, help="tokens of the longest prompts")
        add("--interval", type=whole, help="prompts have 1, 2, ... times this number of tokens")
        add("--num_tests", type=whole, default=20, help="prompts per length and depth")
        add("--depths", type=whole, default=11, help="number of depths from 0 to 1")
        add("--keys", type=whole, help="number of names with pass keys; one is asked for")
        add("--values", type=whole, help="pass keys per name; all are asked for")
        about = "lengths, depths and scoring of the original code"
        add("--original", action="store_true", help=about)

    @staticmethod
    def asked(
        given: argparse.Namespace, folder: Path, model: TapeForCausalLM
    ) -> tuple[PasskeyQuestions, str]:
        """Asks plain prompts of models trained on them, others the benchmark's."""
        source = Passkeys.load(folder) if Passkeys.is_in(folder) else None
        longest = given.max_tokens or (source and LENGTHS * source.max_length)
        if longest is None:
            raise ValueError("give --max_tokens, the length of the longest prompts")
        usual = (source.keys, source.values) if source else (1, 1)
        questions = PasskeyQuestions(
            longest,
            given.interval or (source.max_length if source else max(1, longest // LENGTHS)),
            given.num_tests,
            given.depths,
            given.seed,
            given.keys or usual[0],
            given.values or usual[1],
            plain=source is not None,
            original=given.original,
            trained=source.max_length if source else model.config.max_position_embeddings,
        )
        name, asked = "passkey" + "_original" * given.original, (questions.keys, questions.values)
        return questions, name if asked == usual else f"{name}_{asked[0]}x{asked[1]}"
