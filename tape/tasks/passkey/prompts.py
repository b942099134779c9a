"""Passkey prompts with an exact number of tokens: lines with pass keys within garbage text.

The depth of a line is the fraction of the garbage before it: 0 right after the description, 1 right
before the question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from tape.tasks.passkey.texts import BENCHMARK, NAMES, Text
from tape.validation import check_integer

LOW, HIGH = 1, 50_000  # keys are in range(LOW, HIGH)
MAX_ESTIMATES = 3  # estimates of the amount of garbage for a number of tokens
MAX_CHANGE = 100  # units around the last estimate that are tried
Count = Callable[[str], int]


@dataclass(frozen=True)
class Needles:
    """Values hidden in a prompt: `values` for each of `keys` names. The question asks for all
    values of one name; a single key has no name.

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
    values: tuple[str, ...]  # the right answer

    @property
    def answer(self) -> str:
        """The complete answer, as it follows the text."""
        return " " + " , ".join(self.values)


def token_counter(tokenizer: PreTrainedTokenizerBase) -> Count:
    """Returns a function that counts the tokens of a text, including BOS and EOS if added."""
    return lambda text: len(tokenizer(text)["input_ids"])


class Draft:
    """A prompt with garbage of variable length.

    Args:
        depth: of a line with a value of the question; all other depths are random.
        seed: of numbers, names, depths and sentences.
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
        """Splits `units` of garbage into the parts before each line and after the last."""
        borders = [0, *(round(depth * units) for depth in self.depths), units]
        return [after - before for before, after in pairwise(borders)]

    def prompt(self, stretches: list[int]) -> Prompt:
        rng = np.random.default_rng((*self.seed, 1))
        parts = [self.text.description]
        for units, line in zip(stretches, [*self.lines, self.question], strict=True):
            parts += [self.text.garbage(units, rng), line]
        return Prompt(self.text.join(parts), self.values)

    def fitted(self, tokens: int, count: Count) -> Prompt:
        """Returns the prompt with exactly `tokens` tokens, as counted by `count`.

        The garbage is cut to about the right length, and its longest part varied by single units:
        one more unit may add a token, remove one, or neither.

        Raises:
            ValueError: if the prompt is longer without garbage, or no cut gives this number.
        """
        units, rate = 0, self.text.units_per_token
        prompt = self.prompt(self.stretches(units))
        bare = found = count(prompt.text)
        if bare > tokens:
            raise ValueError(
                f"a prompt of {tokens} tokens has no room for its description, pass keys and "
                f"question, which take {bare}: ask for longer prompts"
            )
        for _ in range(MAX_ESTIMATES):
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
        for change in sorted(range(-MAX_CHANGE, MAX_CHANGE + 1), key=abs):
            if stretches[longest] + change >= 0:
                yield [units + (change if n == longest else 0) for n, units in enumerate(stretches)]


def original_prompt(tokens: int, seed: int) -> Prompt:
    """Returns a prompt of about `tokens` tokens as in LongLoRA's and TAPE's code, from the same
    random numbers: 3.75 characters of garbage per token, rounded down to 1,024, at any depth.

    Raises:
        ValueError: if that leaves no garbage.
    """
    characters = int(3.75 * tokens // 1024 * 1024)
    if not characters:
        raise ValueError(
            f"the original rule adds no garbage to prompts of {tokens} tokens: its unit is 1,024 "
            "characters, i.e. at least 274 tokens"
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
