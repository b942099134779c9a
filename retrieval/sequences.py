"""Generated passkey prompts as training sequences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from retrieval.prompts import HIGH, Draft, Needles, token_counter
from retrieval.texts import NAMES, PLAIN
from retrieval.tokenizer import plain_tokenizer
from tape.names import check_integer
from tape.settings import load, save

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

    @property
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


class PromptSequences(Dataset):
    """`total` prompts with answers and EOS, padded to one length.

    Sequence i is a function of i and the seed, independent of batches, processes and interruptions.
    `evaluation` sequences differ from training sequences for all seeds.

    Raises:
        ValueError: for total below 1, or a negative seed.
    """

    def __init__(
        self,
        passkeys: Passkeys,
        tokenizer: PreTrainedTokenizerBase,
        total: int,
        seed: int,
        evaluation: bool = False,
    ):
        check_integer("total", total)
        check_integer("seed", seed, least=0)
        self.passkeys, self.tokenizer, self.total, self.seed = passkeys, tokenizer, total, seed
        self.stream = EVALUATION if evaluation else TRAINING
        self._lengths = passkeys.shortest, passkeys.max_length
        self._count = token_counter(tokenizer)

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """Returns input_ids and labels (-100 on padding): (length,) each. The loss covers the whole
        text, because some encodings learn far more slowly from answers alone. Padding comes last,
        where causal attention does not look, so no mask is needed."""
        if not 0 <= i < self.total:
            raise IndexError(f"prompt {i} of {self.total}")
        seed = (self.seed, self.stream, i)
        rng = np.random.default_rng((*seed, 0))
        tokens = int(rng.integers(*self._lengths, endpoint=True))
        draft = Draft(PLAIN, self.passkeys.needles, rng.random(), (*seed, 1))
        prompt = draft.fitted(tokens, self._count)
        written = self.tokenizer(prompt.text + prompt.answer)["input_ids"]
        written.append(self.tokenizer.eos_token_id)
        rows = {
            "input_ids": np.full(self.passkeys.length, self.tokenizer.pad_token_id),
            "labels": np.full(self.passkeys.length, -100),
        }
        for row in rows.values():
            row[: len(written)] = written
        return {name: torch.from_numpy(row) for name, row in rows.items()}
