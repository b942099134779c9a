"""Wording of passkey prompts: the benchmark's, and a small vocabulary for small models.

A prompt is a description, garbage with lines with values, and a question. Garbage is counted
in units: characters in the benchmark's text, words in the plain one.
"""

from __future__ import annotations

import numpy as np

NAMES = (
    "alice", "bob", "carol", "david", "emma", "frank", "grace", "henry", "iris", "jack", "kate",
    "leo", "mary", "nick", "olivia", "peter", "quinn", "rose", "sam", "tina", "umar", "vera",
    "will", "yara",
)  # fmt: skip


class Text:
    """
    Attributes:
        units_per_token: approximate number of garbage units per token.
    """

    description: str
    units_per_token: float

    def garbage(self, units: int, rng: np.random.Generator) -> str:
        raise NotImplementedError

    def line(self, name: str | None, value: str, several: bool) -> str:
        """Returns the line with a value, the only one or one of `several`; None: without names."""
        raise NotImplementedError

    def question(self, name: str | None, several: bool) -> str:
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
    units_per_token = 3.75

    def garbage(self, units, rng):
        return (self.filler * (units // len(self.filler) + 1))[:units]

    def line(self, name, value, several):
        of = f" of {name.capitalize()}" if name else ""
        if several:
            return f"One pass key{of} is {value}. Remember it. {value} is one pass key{of}."
        return f"The pass key{of} is {value}. Remember it. {value} is the pass key{of}."

    def question(self, name, several):
        of = f" of {name.capitalize()}" if name else ""
        if several:
            return f"What are the pass keys{of}? The pass keys{of} are"
        return f"What is the pass key{of}? The pass key{of} is"

    def join(self, parts):
        return "\n".join(parts)


class Plain(Text):
    """A small vocabulary of single-token words (`retrieval.tokenizer`); garbage is random
    sentences, so that only the line itself reveals a key's place."""

    description = "find the pass key ."
    nouns = (
        "bird", "boat", "book", "door", "fish", "hill", "house", "lake", "moon", "road", "rock",
        "sea", "sky", "star", "sun", "tree",
    )  # fmt: skip
    adjectives = (
        "bright", "calm", "cold", "dark", "deep", "far", "high", "long", "low", "new", "old", "red",
        "small", "still", "warm", "wide",
    )  # fmt: skip
    units_per_token = 1.0

    def garbage(self, units, rng):
        count = units // len(self.sentence("", "").split(" ")) + 1
        drawn = rng.integers((len(self.nouns), len(self.adjectives)), size=(count, 2)).tolist()
        sentences = [self.sentence(self.nouns[n], self.adjectives[a]) for n, a in drawn]
        return " ".join(" ".join(sentences).split(" ")[:units])

    @staticmethod
    def sentence(noun: str, adjective: str) -> str:
        return f"the {noun} is {adjective} ."

    def line(self, name, value, several):
        of = f" of {name}" if name else ""
        return f"{'one' if several else 'the'} pass key{of} is {value} ."

    def question(self, name, several):
        of = f" of {name}" if name else ""
        if several:
            return f"what are the pass keys{of} ? the pass keys{of} are"
        return f"what is the pass key{of} ? the pass key{of} is"

    def join(self, parts):
        return " ".join(filter(None, parts))


BENCHMARK, PLAIN = Benchmark(), Plain()
