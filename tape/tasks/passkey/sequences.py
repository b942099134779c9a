"""Generated passkey prompts as training sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tape.saved_settings import load, save
from tape.tasks.passkey.prompts import HIGH, Draft, Needles, token_counter
from tape.tasks.passkey.texts import NAMES, PLAIN, plain_tokenizer
from tape.training.generated import GeneratedSequences
from tape.validation import check_integer

FILE = "passkeys.json"
TRAINING, EVALUATION = range(2)  # random streams of a seed


@dataclass(frozen=True)
class Passkeys:
    """Training prompts of up to `max_length` tokens, uniform in length and in key depth. `keys` and
    `values` are those of `Needles`.

    Raises:
        ValueError: for values that are not allowed, or if there is no room for garbage.
    """

    max_length: int = 128
    keys: int = 1
    values: int = 1

    def __post_init__(self):
        check_integer("data.max_length", self.max_length)
        if self.max_length <= self.shortest:  # also validates the needles
            raise ValueError(
                f"data.max_length={self.max_length}: prompts with keys={self.keys} and "
                f"values={self.values} have up to {self.shortest} tokens without garbage; raise it"
            )

    @property
    def needles(self) -> Needles:
        return Needles(self.keys, self.values)

    @cached_property
    def shortest(self) -> int:
        """Maximum number of tokens of a prompt without garbage."""
        name, several = NAMES[0] if self.needles.keys > 1 else None, self.values > 1
        line = PLAIN.line(name, str(HIGH - 1), several)
        lines = [line] * (self.keys * self.values)
        parts = [PLAIN.description, *lines, PLAIN.question(name, several)]
        return token_counter(plain_tokenizer())(PLAIN.join(parts))

    @property
    def length(self) -> int:
        """Tokens of a training sequence: the longest prompt, its answer and EOS."""
        digits = len(str(HIGH - 1))
        return self.max_length + self.values * digits + self.values - 1 + 1

    def save(self, folder: Path) -> None:
        """Writes passkeys.json to the folder of the model trained on them."""
        save(self, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Passkeys | None:
        """Reads settings written by `save`; None if the model was not trained on passkeys.

        Raises:
            ValueError: if the file holds something else.
        """
        path = folder / FILE
        return load(cls, path) if path.is_file() else None


class PromptSequences(GeneratedSequences):
    """Prompts with answers and EOS, padded to one length."""

    def sequence(self, i: int) -> dict[str, Tensor]:
        """Returns input_ids and labels (-100 on padding): (length,) each. The loss covers the whole
        text, because some encodings learn far more slowly from answers alone. Padding comes last,
        where causal attention does not look, so no mask is needed."""
        seed = (self.seed, EVALUATION if self.held_out else TRAINING, i)
        rng = np.random.default_rng((*seed, 0))
        tokens = int(rng.integers(self.source.shortest, self.source.max_length, endpoint=True))
        draft = Draft(PLAIN, self.source.needles, rng.random(), (*seed, 1))
        prompt = draft.fitted(tokens, token_counter(self.tokenizer))
        written = self.tokenizer(prompt.text + prompt.answer)["input_ids"]
        written.append(self.tokenizer.eos_token_id)
        rows = {
            "input_ids": np.full(self.source.length, self.tokenizer.pad_token_id),
            "labels": np.full(self.source.length, -100),
        }
        for row in rows.values():
            row[: len(written)] = written
        return {name: torch.from_numpy(row) for name, row in rows.items()}
