"""What an evaluation asks: prompts of every length, with the key at every depth, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from retrieval.prompts import Draft, Needles, Prompt, original_prompt, token_counter
from retrieval.texts import BENCHMARK, PLAIN
from tape.names import check_integer

STREAM = 2  # of random numbers; training has others
SAMPLE = 100  # units of garbage in a prompt that tries the tokenizer
ONE = Needles()
MOST = 10**7  # prompts, and tokens of one
ROOM = 4  # tokens of an answer besides its numbers: words before them, or the mark of their end


@dataclass(frozen=True)
class Questions:
    """
    Args:
        max_tokens, interval: prompts have interval, 2 * interval, ... up to max_tokens tokens.
        num_tests: prompts of each length and depth.
        depths: from 0 to 1, equally far apart; one is the middle.
        needles: what is hidden in each prompt.
        plain: in plain words, not those of the benchmark.
        original: by the rule of the original code: about so many tokens, any depth. An answer is
            right if its tokens are those of the key.

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
        asked = len(self.lengths) * self.depths * self.num_tests
        if asked > MOST:
            raise ValueError(
                f"num_tests={self.num_tests} at depths={self.depths} and {len(self.lengths):,} "
                f"lengths are {asked:,} prompts; at most {MOST:,} are allowed"
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
    def places(self) -> list[float]:
        """The depths."""
        return np.linspace(0, 1, self.depths).round(6).tolist() if self.depths > 1 else [0.5]


class Question(NamedTuple):
    length: int  # tokens asked for
    depth: float | None  # None: any
    prompt: Prompt
    tokens: int  # that it has: another number only by the original rule


class Batch(NamedTuple):
    """Questions that are answered together."""

    questions: list[Question]
    new_tokens: int  # room for the answer
    positions: int  # of the longest prompt of that length with its answer

    @property
    def cost(self) -> int:
        """Tokens to run: what time is about proportional to."""
        return sum(question.tokens + self.new_tokens for question in self.questions)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raise a ValueError if a prompt could not be read or continued."""
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


def asked(questions: Questions, tokenizer: PreTrainedTokenizerBase) -> Iterator[Question]:
    """Every question, in the order of lengths and depths.

    Raises:
        ValueError: if the shortest prompts have no room for what they hide, or for a tokenizer
            that cannot be used.
    """
    count = token_counter(tokenizer)
    text = PLAIN if questions.plain else BENCHMARK
    sample = Draft(text, questions.needles, 0.5, (questions.seed, STREAM))
    check_tokenizer(tokenizer, sample.prompt(sample.stretches(SAMPLE)).text)
    for length in tqdm(questions.lengths, desc="prompts", leave=False, disable=None):
        if questions.original:
            for n in range(questions.num_tests):
                prompt = original_prompt(length, questions.seed + n)
                yield Question(length, None, prompt, count(prompt.text))
            continue
        for place, depth in enumerate(questions.places):
            for n in range(questions.num_tests):
                seed = (questions.seed, STREAM, length, place, n)
                prompt = Draft(text, questions.needles, depth, seed).fitted(length, count)
                yield Question(length, depth, prompt, length)


def plan(
    questions: Questions, tokenizer: PreTrainedTokenizerBase, batch_tokens: int
) -> list[Batch]:
    """All questions in batches of about `batch_tokens` tokens and of one length, the costliest
    first: if memory is short, it shows at once."""
    check_integer("batch_tokens", batch_tokens)
    by_length: dict[int, list[Question]] = {}
    for question in asked(questions, tokenizer):
        by_length.setdefault(question.length, []).append(question)
    count = token_counter(tokenizer)
    every = [question for group in by_length.values() for question in group]
    room = ROOM * questions.needles.values
    new_tokens = max(count(question.prompt.answer) for question in every) + room
    batches = []
    for group in by_length.values():
        group.sort(key=lambda question: question.tokens)  # stable: little to be padded
        longest = group[-1].tokens + new_tokens
        size = max(1, batch_tokens // longest)
        batches += [
            Batch(group[first : first + size], new_tokens, longest)
            for first in range(0, len(group), size)
        ]
    return sorted(batches, key=lambda batch: -batch.cost)
