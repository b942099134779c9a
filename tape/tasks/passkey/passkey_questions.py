"""Passkey questions: prompts of every length, with the key at every depth, and their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.evaluation.questions import MOST, Answer, Question, Questions, check_count
from tape.tasks.passkey.prompts import (
    Count,
    Draft,
    Needles,
    Prompt,
    original_prompt,
    token_counter,
)
from tape.tasks.passkey.texts import BENCHMARK, PLAIN, Text
from tape.validation import check_integer

Cell = tuple[int, float | None]
STREAM = 2  # of random numbers; training has others
SAMPLE = 100  # units of garbage in a prompt that tests the tokenizer
ONE = Needles()
ROOM = 4  # tokens of an answer besides its numbers: words before them, or EOS


@dataclass(frozen=True)
class PasskeyQuestions(Questions):
    """
    Args:
        max_tokens, interval: prompts have interval, 2 * interval, ... up to max_tokens tokens.
        num_tests: prompts of each length and depth.
        depths: number of depths from 0 to 1; a single one is the middle.
        plain: in plain words, not those of the benchmark.
        original: by the rule of the original code: prompts of about that many tokens, with the key
            at any depth. An answer is right if its tokens are those of the key.

    Raises:
        ValueError: for values that are not allowed, alone or together.
    """

    max_tokens: int
    interval: int
    num_tests: int = 20
    depths: int = 11
    seed: int = 0
    needles: Needles = ONE
    plain: bool = False
    original: bool = False

    def __post_init__(self):
        for name in ("max_tokens", "interval", "num_tests", "depths"):
            check_integer(name, getattr(self, name), most=MOST)
        check_integer("seed", self.seed, least=0)
        if self.interval > self.max_tokens:
            raise ValueError(
                f"interval={self.interval}, the shortest length, is more than "
                f"max_tokens={self.max_tokens}, the longest"
            )
        check_count(
            len(self.lengths) * self.depths * self.num_tests,
            f"num_tests={self.num_tests} at depths={self.depths} and {len(self.lengths):,} lengths",
        )
        if self.original and self.needles != ONE:
            raise ValueError(
                "the original rule supports only one key and one value: leave out --original"
            )
        if self.original and self.plain:
            raise ValueError(
                "this model was trained on plain prompts, but the original rule uses the wording "
                "of the benchmark: leave out --original"
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
        sample = Draft(self.text, self.needles, 0.5, (self.seed, STREAM))
        check_tokenizer(tokenizer, sample.prompt(sample.stretches(SAMPLE)).text)
        count = token_counter(tokenizer)
        lengths = tqdm(self.lengths, desc="prompts", leave=False, disable=None)
        drafts = [[*self._of_length(length, count)] for length in lengths]
        longest = max(count(prompt.answer) for group in drafts for _, prompt in group)
        room = longest + ROOM * self.needles.values

        def question(cell: Cell, prompt: Prompt) -> Question:
            tokens = count(prompt.text) if self.original else cell[0]
            return Question(cell, prompt.text, prompt, tokens, room)

        return [[question(*each) for each in group] for group in drafts]

    def _of_length(self, length: int, count: Count) -> Iterator[tuple[Cell, Prompt]]:
        """Yields the prompts of a length with (length, depth); by the original rule the depth is
        None: any."""
        if self.original:
            for n in range(self.num_tests):
                yield (length, None), original_prompt(length, self.seed + n)
            return
        depths = np.linspace(0, 1, self.depths).round(6) if self.depths > 1 else [0.5]
        for place, depth in enumerate(map(float, depths)):
            for n in range(self.num_tests):
                seed = (self.seed, STREAM, length, place, n)
                draft = Draft(self.text, self.needles, depth, seed)
                yield (length, depth), draft.fitted(length, count)

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
