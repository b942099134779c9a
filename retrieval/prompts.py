"""Prompts: lines with pass keys in them, deep in garbage, with exactly as many tokens as asked for.

The depth of a line is the share of the garbage that comes before it: 0 right after the description,
1 right before the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from retrieval.texts import BENCHMARK, NAMES, Text
from tape.names import check_integer

LOW, HIGH = 1, 50_000  # keys lie in range(LOW, HIGH)
ROUNDS = 3  # guesses at how much garbage gives a number of tokens
REACH = 100  # units around the last one that are tried then
Count = Callable[[str], int]


@dataclass(frozen=True)
class Needles:
    """What is hidden in a prompt: the values of `keys` names, `values` of each. One name is asked
    for, and all of its values; a single key has no name.

    Raises:
        ValueError: for numbers below 1, or more keys than there are names.
    """

    keys: int = 1
    values: int = 1

    def __post_init__(self):
        check_integer("keys", self.keys, most=len(NAMES))
        check_integer("values", self.values, most=(HIGH - LOW) // self.keys)


class Prompt(NamedTuple):
    text: str
    values: tuple[str, ...]  # what is right to answer

    @property
    def answer(self) -> str:
        """What follows the text if all of them are given."""
        return " " + " , ".join(self.values)


def token_counter(tokenizer: PreTrainedTokenizerBase) -> Count:
    """How many tokens a text is, with those that the tokenizer puts before and after any text."""
    return lambda text: len(tokenizer(text)["input_ids"])


class Draft:
    """A prompt but for its garbage, which can be of any length.

    Args:
        depth: of a line with a value that is asked for. The depths of all others are drawn.
        seed: of the numbers, names, depths and sentences that are drawn.
    """

    def __init__(self, text: Text, needles: Needles, depth: float, seed: tuple[int, ...]):
        rng = np.random.default_rng(seed)
        self.text, self.seed = text, seed
        names = rng.permutation(NAMES)[: needles.keys].tolist() if needles.keys > 1 else [None]
        drawn = rng.choice(HIGH - LOW, needles.keys * needles.values, replace=False) + LOW
        values = [str(value) for value in drawn]
        several = needles.values > 1
        lines = [
            text.line(names[n // needles.values], value, several) for n, value in enumerate(values)
        ]
        depths = [depth, *rng.random(len(lines) - 1)]
        order = np.argsort(depths, kind="stable")
        self.depths = [depths[n] for n in order]
        self.lines = [lines[n] for n in order]
        self.values = tuple(values[n] for n in order if n < needles.values)
        self.question = text.question(names[0], several)

    def stretches(self, units: int) -> list[int]:
        """How much of the garbage comes before each line and after the last."""
        borders = [0, *(round(depth * units) for depth in self.depths), units]
        return [after - before for before, after in pairwise(borders)]

    def prompt(self, stretches: list[int]) -> Prompt:
        rng = np.random.default_rng((*self.seed, 1))
        parts = [self.text.description]
        for units, line in zip(stretches, [*self.lines, self.question], strict=True):
            parts += [self.text.garbage(units, rng), line]
        return Prompt(self.text.join(parts), self.values)

    def fitted(self, tokens: int, count: Count) -> Prompt:
        """The prompt with exactly so many tokens, as `count` counts them.

        The garbage is cut to about the right length, and then its longest stretch by single units:
        with a unit more there is a token more, or less, or neither.

        Raises:
            ValueError: if there are more tokens without any garbage, or no cut gives so many.
        """
        units, rate = 0, self.text.units_per_token
        prompt = self.prompt(self.stretches(units))
        bare = found = count(prompt.text)
        if bare > tokens:
            raise ValueError(
                f"a prompt of {tokens} tokens has no room for its description, pass keys and "
                f"question, which are {bare}: ask for longer ones"
            )
        for _ in range(ROUNDS):
            if found == tokens:
                return prompt
            units = max(0, units + round((tokens - found) * rate))
            prompt = self.prompt(self.stretches(units))
            found = count(prompt.text)
            rate = units / (found - bare) if found > bare else rate
        for stretches in self._nearby(self.stretches(units)):
            prompt = self.prompt(stretches)
            if count(prompt.text) == tokens:
                return prompt
        raise ValueError(f"this tokenizer cannot make a prompt of exactly {tokens} tokens")

    @staticmethod
    def _nearby(stretches: list[int]) -> Iterator[list[int]]:
        longest = int(np.argmax(stretches))
        for change in sorted(range(-REACH, REACH + 1), key=abs):
            if stretches[longest] + change >= 0:
                yield [units + (change if n == longest else 0) for n, units in enumerate(stretches)]


def original_prompt(tokens: int, seed: int) -> Prompt:
    """A prompt of about so many tokens by the rule of LongLoRA's and TAPE's code, and from the same
    random numbers: 3.75 characters of garbage for each, rounded down to 1,024, at any depth.

    Raises:
        ValueError: if that is no garbage at all.
    """
    characters = int(3.75 * tokens // 1024 * 1024)
    if not characters:
        raise ValueError(
            f"the original rule has no garbage in prompts of {tokens} tokens: it counts 1,024 "
            f"characters, which are 274 tokens, at least"
        )
    rng = np.random.RandomState(seed)
    before = rng.randint(0, characters)
    key = str(rng.randint(LOW, HIGH))
    parts = [
        BENCHMARK.description,
        BENCHMARK.garbage(before, rng),
        BENCHMARK.line(None, key, several=False),
        BENCHMARK.garbage(characters - before, rng),
        BENCHMARK.question(None, several=False),
    ]
    return Prompt(BENCHMARK.join(parts), (key,))
