"""Questions of an evaluation: prompts of every length, with the key at every depth, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.tasks.passkey.prompts import Draft, Needles, Prompt, original_prompt, token_counter
from tape.tasks.passkey.texts import BENCHMARK, PLAIN
from tape.validation import check_integer

STREAM = 2  # of random numbers; training has others
SAMPLE = 100  # units of garbage in a prompt that tests the tokenizer
ONE = Needles()
MOST = 10**7  # prompts, and tokens of one
ROOM = 4  # tokens of an answer besides its numbers: words before them, or EOS


@dataclass(frozen=True)
class Questions:
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


class Question(NamedTuple):
    length: int  # requested tokens
    depth: float | None  # None: any
    prompt: Prompt
    tokens: int  # of the prompt; unequal to `length` only by the original rule


class Batch(NamedTuple):
    questions: list[Question]
    new_tokens: int  # room for the answer
    positions: int  # of the longest prompt of that length with its answer

    @property
    def cost(self) -> int:
        """Tokens to run, roughly proportional to time."""
        return sum(question.tokens + self.new_tokens for question in self.questions)


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


def of_length(
    length: int, questions: Questions, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Question]:
    """Yields the questions of a length, depth by depth."""
    count, text = token_counter(tokenizer), PLAIN if questions.plain else BENCHMARK
    if questions.original:
        for n in range(questions.num_tests):
            prompt = original_prompt(length, questions.seed + n)
            yield Question(length, None, prompt, count(prompt.text))
        return
    depths = np.linspace(0, 1, questions.depths).round(6) if questions.depths > 1 else [0.5]
    for place, depth in enumerate(map(float, depths)):
        for n in range(questions.num_tests):
            seed = (questions.seed, STREAM, length, place, n)
            prompt = Draft(text, questions.needles, depth, seed).fitted(length, count)
            yield Question(length, depth, prompt, length)


def plan(
    questions: Questions, tokenizer: PreTrainedTokenizerBase, batch_tokens: int
) -> list[Batch]:
    """Returns all questions in batches of about `batch_tokens` tokens and of one length, the
    costliest first: if memory is short, it shows at once.

    Raises:
        ValueError: if the shortest prompts have no room for their lines, or the tokenizer cannot be
            used.
    """
    check_integer("batch_tokens", batch_tokens)
    text = PLAIN if questions.plain else BENCHMARK
    sample = Draft(text, questions.needles, 0.5, (questions.seed, STREAM))
    check_tokenizer(tokenizer, sample.prompt(sample.stretches(SAMPLE)).text)
    lengths = tqdm(questions.lengths, desc="prompts", leave=False, disable=None)
    groups = [[*of_length(length, questions, tokenizer)] for length in lengths]
    count = token_counter(tokenizer)
    longest = max(count(question.prompt.answer) for group in groups for question in group)
    new_tokens = longest + ROOM * questions.needles.values
    batches = []
    for group in groups:
        group.sort(key=lambda question: question.tokens)  # stable; reduces padding
        positions = group[-1].tokens + new_tokens
        size = max(1, batch_tokens // positions)
        parts = (group[first : first + size] for first in range(0, len(group), size))
        batches += [Batch(part, new_tokens, positions) for part in parts]
    return sorted(batches, key=lambda batch: -batch.cost)
