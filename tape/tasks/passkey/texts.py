"""Wording of passkey prompts: the benchmark's, and a small vocabulary for small models.

A prompt is a description, garbage with lines with values, and a question. Garbage is counted
in units: characters in the benchmark's text, words in the plain one.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.data.tokenizer import END, PADDING

NAMES = (
    "alice", "bob", "carol", "david", "emma", "frank", "grace", "henry", "iris", "jack", "kate",
    "leo", "mary", "nick", "olivia", "peter", "quinn", "rose", "sam", "tina", "umar", "vera",
    "will", "yara",
)  # fmt: skip


class Text:
    """
    Attributes:
        lines, questions: for one value, and for several.
        spelled: spelling of a name.
        units_per_token: approximate number of garbage units per token.
    """

    description: str
    lines: tuple[str, str]
    questions: tuple[str, str]
    spelled = staticmethod(str)
    units_per_token: float

    def line(self, name: str | None, value: str, several: bool) -> str:
        """Returns the line with a value, the only one or one of `several`; None: without names."""
        return self.lines[several].format(of=self._of(name), value=value)

    def question(self, name: str | None, several: bool) -> str:
        return self.questions[several].format(of=self._of(name))

    def _of(self, name: str | None) -> str:
        return f" of {self.spelled(name)}" if name else ""

    def garbage(self, units: int, rng: np.random.Generator) -> str:
        raise NotImplementedError

    def join(self, parts: list[str]) -> str:
        """Joins description, garbage and lines in turn, and question; garbage may be empty."""
        raise NotImplementedError


class Benchmark(Text):
    """Wording of Landmark Attention (Mohtashami and Jaggi 2023, arXiv 2305.16300), also used by
    LongLoRA and the TAPE paper, which have one key without a name; the wording for several is ours.
    """

    description = (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "them. I will quiz you about the important information there."
    )
    filler = (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    )
    lines = (
        "The pass key{of} is {value}. Remember it. {value} is the pass key{of}.",
        "One pass key{of} is {value}. Remember it. {value} is one pass key{of}.",
    )
    questions = (
        "What is the pass key{of}? The pass key{of} is",
        "What are the pass keys{of}? The pass keys{of} are",
    )
    spelled = staticmethod(str.capitalize)
    units_per_token = 3.75

    def garbage(self, units, rng):
        return (self.filler * (units // len(self.filler) + 1))[:units]

    def join(self, parts):
        return "\n".join(parts)


class Plain(Text):
    """A small vocabulary of single-token words; garbage is random sentences, so that only the line
    itself reveals a key's place."""

    description = "find the pass key ."
    sentence = "the {} is {} ."
    nouns = (
        "bird", "boat", "book", "door", "fish", "hill", "house", "lake", "moon", "road", "rock",
        "sea", "sky", "star", "sun", "tree",
    )  # fmt: skip
    adjectives = (
        "bright", "calm", "cold", "dark", "deep", "far", "high", "long", "low", "new", "old", "red",
        "small", "still", "warm", "wide",
    )  # fmt: skip
    lines = ("the pass key{of} is {value} .", "one pass key{of} is {value} .")
    questions = (
        "what is the pass key{of} ? the pass key{of} is",
        "what are the pass keys{of} ? the pass keys{of} are",
    )
    units_per_token = 1.0

    def garbage(self, units, rng):
        count = units // len(self.sentence.split()) + 1
        drawn = rng.integers((len(self.nouns), len(self.adjectives)), size=(count, 2)).tolist()
        sentences = [self.sentence.format(self.nouns[n], self.adjectives[a]) for n, a in drawn]
        return " ".join(" ".join(sentences).split(" ")[:units])

    def join(self, parts):
        return " ".join(filter(None, parts))

    def words(self) -> list[str]:
        """Returns all distinct words of prompts and answers."""
        texts = [self.description, *map(self.sentence.format, self.nouns, self.adjectives)]
        for name in (None, *NAMES):
            for several in (False, True):
                texts += [self.line(name, "", several), self.question(name, several)]
        return list(dict.fromkeys(" ".join([*texts, ","]).split()))


BENCHMARK, PLAIN = Benchmark(), Plain()


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of plain prompts, one token per word and per digit; it refuses anything
    else. The space before a word or number belongs to its first token."""
    first = PLAIN.description.split()[0]
    tokens = [END, PADDING, *"0123456789", *(f" {digit}" for digit in "0123456789"), first]
    tokens += [f" {word}" for word in PLAIN.words()]
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\d| ?[^\s\d]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )
