"""Generated passkey prompts as training sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tape.tasks.generated import NO_LABEL, Source
from tape.tasks.passkey.prompts import (
    HIGH,
    NAMES,
    PLAIN,
    Draft,
    check_needles,
    plain_tokenizer,
    token_counter,
)
from tape.validation import check_integer

TRAINING, EVALUATION, QUESTIONS = range(3)  # random streams of a seed


@dataclass(frozen=True)
class Passkeys(Source):
    """Training prompts of up to `max_length` tokens, uniform in length and in key depth, with
    `values` for each of `keys` names.

    Raises:
        ValueError: for values that are not allowed, or if there is no room for garbage.
    """

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
        return token_counter(self._tokenizer)(PLAIN.join(parts))

    @property
    def length(self) -> int:
        """Tokens of the longest prompt, its answer and EOS."""
        digits = len(str(HIGH - 1))
        return self.max_length + self.values * digits + self.values - 1 + 1

    @property
    def trained(self) -> tuple[int, None]:
        return self.max_length, None

    def chunk(
        self, number: int, count: int, seed: int, held_out: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns one prompt with its answer and EOS: (1, length) each. The loss covers the whole
        text, because some encodings learn far more slowly from answers alone."""
        key = (seed, EVALUATION if held_out else TRAINING, number)
        rng, tokenizer = np.random.default_rng((*key, 0)), self._tokenizer
        tokens = int(rng.integers(self.shortest, self.max_length, endpoint=True))
        draft = Draft(PLAIN, rng.random(), (*key, 1), self.keys, self.values)
        prompt = draft.fitted(tokens, token_counter(tokenizer))
        written = tokenizer(prompt.text + prompt.answer)["input_ids"]
        written.append(tokenizer.eos_token_id)
        ids = np.full((1, self.length), tokenizer.pad_token_id)
        labels = np.full_like(ids, NO_LABEL)
        ids[0, : len(written)] = labels[0, : len(written)] = written
        return ids, labels

    @cached_property
    def _tokenizer(self):
        return plain_tokenizer()
