"""Prompts with pass keys, also as training sequences: a description, garbage with lines with
values, and a question.

There are two wordings (words.yaml): the benchmark's, and one of a small vocabulary for small
models. Garbage is counted in units: characters in the benchmark's text, words in the plain one. The
depth of a line is the fraction of the garbage before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tape.core.validation import check_integer
from tape.data.tokenizer import END, PADDING
from tape.model.loss import IGNORED
from tape.tasks.generated import Block, Source, word_tokenizer

LOW, HIGH = 1, 50_000  # keys are in range(LOW, HIGH)
MAX_ESTIMATES = 3  # estimates of the amount of garbage for a number of tokens
MAX_CHANGE = 100  # units around the last estimate that are tried
WORDS = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))
NAMES, NOUNS, ADJECTIVES = (WORDS[kind] for kind in ("names", "nouns", "adjectives"))
FILLER, SENTENCE = WORDS["filler"], WORDS["sentence"]
TRAINING, EVALUATION, QUESTIONS = range(3)  # random streams of a seed
Count = Callable[[str], int]


class Text(NamedTuple):
    """A wording of prompts."""

    description: str
    lines: list[str]  # for one value, and for several
    questions: list[str]
    units_per_token: float  # approximately
    garbage: Callable[[int, np.random.Generator], str]  # of so many units
    join: Callable[[list[str]], str]  # description, garbage (or "") and lines in turn, question
    spelled: Callable[[str], str] = str  # spelling of a name

    def line(self, name: str | None, value: str, several: bool) -> str:
        """Returns the line with a value, the only one or one of `several`; None: without names."""
        return self.lines[several].format(of=self._of(name), value=value)

    def question(self, name: str | None, several: bool) -> str:
        return self.questions[several].format(of=self._of(name))

    def _of(self, name: str | None) -> str:
        return f" of {self.spelled(name)}" if name else ""


BENCHMARK = Text(
    **WORDS["benchmark"],
    garbage=lambda units, rng: (FILLER * (units // len(FILLER) + 1))[:units],
    join="\n".join,
    spelled=str.capitalize,
)


def sentences(units: int, rng: np.random.Generator) -> str:
    """Returns the first words of random sentences."""
    count = units // len(SENTENCE.split()) + 1
    drawn = rng.integers((len(NOUNS), len(ADJECTIVES)), size=(count, 2)).tolist()
    text = " ".join(SENTENCE.format(NOUNS[n], ADJECTIVES[a]) for n, a in drawn)
    return " ".join(text.split(" ")[:units])


PLAIN = Text(**WORDS["plain"], garbage=sentences, join=lambda parts: " ".join(filter(None, parts)))


@cache
def plain_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of plain prompts, one token per word and per digit. The space before a
    word or number belongs to its first token."""
    texts = [PLAIN.description, *map(SENTENCE.format, NOUNS, ADJECTIVES)]
    for name, several in product((None, *NAMES), (False, True)):
        texts += [PLAIN.line(name, "", several), PLAIN.question(name, several)]
    words = dict.fromkeys([*" ".join(texts).split(), ","])
    first = PLAIN.description.split()[0]
    tokens = [END, PADDING, *"0123456789", *(f" {digit}" for digit in "0123456789"), first]
    tokens += [f" {word}" for word in words]
    split = pre_tokenizers.Split(Regex(r" ?\d| ?[^\s\d]+"), "isolated")
    return word_tokenizer(tokens, split, decoders.Fuse())


def token_counter(tokenizer: PreTrainedTokenizerBase) -> Count:
    """Returns a function that counts the tokens of a text, with BOS and EOS if added."""
    return lambda text: len(tokenizer(text)["input_ids"])


def check_needles(keys: int, values: int) -> None:
    check_integer("keys", keys, most=len(NAMES))
    check_integer("values", values, most=(HIGH - LOW) // keys)


class Prompt(NamedTuple):
    text: str
    values: tuple[str, ...]  # the right answer

    @property
    def answer(self) -> str:
        """The complete answer, as it follows the text."""
        return " " + " , ".join(self.values)


class Draft:
    """A prompt with garbage of variable length. It hides `values` for each of `keys` names and asks
    for all values of one name, at least one of them at `depth`; a single key has no name."""

    def __init__(
        self, text: Text, depth: float, seed: tuple[int, ...], keys: int = 1, values: int = 1
    ):
        rng = np.random.default_rng(seed)
        self.text, self.seed = text, seed
        names = rng.permutation(NAMES)[:keys].tolist() if keys > 1 else [None]
        drawn = [str(n + LOW) for n in rng.choice(HIGH - LOW, keys * values, replace=False)]
        several = values > 1
        lines = [text.line(names[n // values], value, several) for n, value in enumerate(drawn)]
        depths = [depth, *rng.random(len(lines) - 1)]
        order = np.argsort(depths, kind="stable")
        self.depths = [depths[n] for n in order]
        self.lines = [lines[n] for n in order]
        self.values = tuple(drawn[n] for n in order if n < values)
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
        """Returns the prompt with exactly `tokens` tokens. The garbage is cut to about the right
        length, and its longest part varied by single units: one more unit may add a token, remove
        one, or neither."""
        units, rate = 0, self.text.units_per_token
        prompt = self.prompt(self.stretches(units))
        bare = found = count(prompt.text)
        if bare > tokens:
            what = f"no room for its description, pass keys and question, which take {bare}"
            raise ValueError(f"a prompt of {tokens} tokens has {what}: ask for longer prompts")
        for _ in range(MAX_ESTIMATES):
            if found == tokens:
                return prompt
            units = max(0, units + round((tokens - found) * rate))
            prompt = self.prompt(self.stretches(units))
            found = count(prompt.text)
            rate = units / (found - bare) if found > bare else rate
        stretches = self.stretches(units)
        longest = max(stretches)
        place = stretches.index(longest)
        for change in sorted(range(-min(longest, MAX_CHANGE), MAX_CHANGE + 1), key=abs):
            stretches[place] = longest + change
            prompt = self.prompt(stretches)
            if count(prompt.text) == tokens:
                return prompt
        raise ValueError(f"this tokenizer cannot make a prompt of exactly {tokens} tokens")


def original_prompt(tokens: int, seed: int) -> Prompt:
    """Returns a prompt of about `tokens` tokens as in LongLoRA's and TAPE's code, from the same
    random numbers: 3.75 characters of garbage per token, rounded down to 1,024, at any depth."""
    characters = int(3.75 * tokens // 1024 * 1024)
    if not characters:
        what = f"the original rule adds no garbage to prompts of {tokens} tokens"
        raise ValueError(f"{what}: its unit is 1,024 characters, i.e. at least 274 tokens")
    rng, text = np.random.RandomState(seed), BENCHMARK
    before = rng.randint(0, characters)
    key = str(rng.randint(LOW, HIGH))
    garbage = [text.garbage(units, rng) for units in (before, characters - before)]
    line, question = text.line(None, key, several=False), text.question(None, several=False)
    return Prompt(text.join([text.description, garbage[0], line, garbage[1], question]), (key,))


@dataclass(frozen=True)
class Passkeys(Source):
    """Training prompts of up to `max_length` tokens, uniform in length and in key depth, with
    `values` for each of `keys` names."""

    max_length: int = 128
    keys: int = 1
    values: int = 1

    FILE = "passkeys.json"
    CHUNK = 1
    tokenizer = staticmethod(plain_tokenizer)

    def __post_init__(self):
        check_integer("data.max_length", self.max_length)
        check_needles(self.keys, self.values)
        if self.max_length <= self.shortest:
            raise ValueError(
                f"data.max_length={self.max_length}: prompts with keys={self.keys} and "
                f"values={self.values} have up to {self.shortest} tokens without garbage; raise it"
            )

    @cached_property
    def shortest(self) -> int:
        """Maximum number of tokens of a prompt without garbage."""
        name, several = NAMES[0] if self.keys > 1 else None, self.values > 1
        lines = [PLAIN.line(name, str(HIGH - 1), several)] * (self.keys * self.values)
        parts = [PLAIN.description, *lines, PLAIN.question(name, several)]
        return token_counter(plain_tokenizer())(PLAIN.join(parts))

    @property
    def length(self) -> int:
        """Tokens of the longest prompt, its answer and EOS."""
        return self.max_length + self.values * (len(str(HIGH - 1)) + 1)

    @property
    def trained(self) -> tuple[int, None]:
        return self.max_length, None

    def chunk(self, number: int, count: int, seed: int, held_out: bool) -> Block:
        """Returns one prompt with its answer and EOS: (1, length) each. The loss covers the whole
        text, because some encodings learn far more slowly from answers alone."""
        key = (seed, EVALUATION if held_out else TRAINING, number)
        rng, tokenizer = np.random.default_rng((*key, 0)), plain_tokenizer()
        tokens = int(rng.integers(self.shortest, self.max_length, endpoint=True))
        draft = Draft(PLAIN, rng.random(), (*key, 1), self.keys, self.values)
        prompt = draft.fitted(tokens, token_counter(tokenizer))
        written = tokenizer(prompt.text + prompt.answer)["input_ids"]
        written.append(tokenizer.eos_token_id)
        ids = np.full((1, self.length), tokenizer.pad_token_id)
        labels = np.full_like(ids, IGNORED)
        ids[0, : len(written)] = labels[0, : len(written)] = written
        return ids, labels
