"""Positions of digits in their number: Abacus and position coupling."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.encodings.absolute import Learned
from tape.positions.sampling import named


class Abacus(Learned):
    """Adds row p of a learned table to the embedding of a token, where p counts the digits of its
    number up to it, from 1, and is 0 for other tokens. In training, one number per sequence,
    uniform in 0..offset, is added to the places of its digits. position_ids are not used (McLeish
    et al. 2024, arXiv 2405.17399)."""

    reads = True
    name = "abacus"

    # Ids of the tokens that are digits; by default a run takes "0" to "9" from its tokenizer, and
    # without a run there are none.
    digits: Sequence[int] = ()
    offset: int = 0  # the most that places are moved by in training

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        digits = torch.tensor([*self.digits], dtype=torch.long, device="cpu")
        self.register_constant("digit_ids", digits)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if (sampler := named(arguments["sampler"])[0]) != "index":
            raise ValueError(
                f"position {cls.name}: sampler={sampler!r} would move the rows of all tokens; set "
                "position.offset instead"
            )
        arguments = super().configure(config, arguments)
        digits, offset = arguments["digits"], arguments["offset"]
        ids = range(config.vocab_size)
        listed = digits is None or isinstance(digits, list | tuple)
        if not listed or not all(type(x) is int and x in ids for x in digits or ()):
            raise ValueError(
                f"position {cls.name}: digits={digits!r} must be a list of token ids below "
                f"vocab_size={config.vocab_size}"
            )
        arguments["digits"] = [*(digits or ())]
        if not 0 <= offset < arguments["length"]:
            raise ValueError(
                f"position {cls.name}: offset={offset} must be an integer >= 0 and below length="
                f"{arguments['length']}"
            )
        return arguments

    @classmethod
    def for_tokenizer(cls, arguments: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
        if arguments["digits"]:
            return arguments
        digits = [ids[digit] for digit in "0123456789" if digit in ids]
        if not digits:
            raise ValueError(
                f"position {cls.name}: the tokenizer has no token for a digit; give position.digits"
            )
        return arguments | {"digits": digits}

    @property
    def random(self) -> bool:
        return self.offset > 0

    @property
    def max_positions(self) -> None:
        """None: the table limits the digits of a number, not the tokens."""

    def read(
        self, input_ids: Tensor | None, real: Tensor | None, last: Tensor, documents: Tensor | None
    ) -> Tensor:
        """Returns the token indices of the new tokens, (B, T), at padding that of the token before.

        Args:
            input_ids: (B, T), None for a model called with embeddings.
            real: (B|1, T) False at padding, or None.
            last: (B|1, 1) index of the last cached token, 0 without one.
            documents: (B, T) number of each token's document, or None.
        """
        if input_ids is None:
            raise ValueError(
                f"position {self.name} reads token ids: inputs_embeds have none; give input_ids"
            )
        digit = torch.isin(input_ids, self.digit_ids)
        ends = ~digit
        if real is not None:
            digit, ends = digit & real, ends & real
        counted = digit.cumsum(-1)
        # Digits counted before the number; negative in a number that began in the cache.
        starts = counted.where(ends, -last)
        if documents is not None:  # a number does not go on in the next document
            begins = F.pad(documents.diff(dim=-1) > 0, (1, 0))
            starts = torch.where(begins, counted - digit.long(), starts)
        before = torch.maximum(starts, -last).cummax(-1).values
        places = counted - before
        if self.training and self.offset:
            moved = torch.randint(self.offset + 1, (len(input_ids), 1), device=input_ids.device)
            places = places + moved * self.moves(places, before)
        return places

    def moves(self, places: Tensor, before: Tensor) -> Tensor:
        """Returns which tokens the offset moves: digits, but for numbers begun in the cache."""
        return (places > 0) & (before >= 0)


class Coupling(Abacus):
    """Adds row p of a learned table to the embedding of a token. Digits of equal weight have one
    id: p is 1 for units, 2 for tens, and so on, if numbers are written units first. The tokens
    around numbers, such as + and =, have the id before that of units, 0. In training, one number
    per sequence, uniform in 0..offset, is added to the ids of all tokens, where Abacus leaves those
    around numbers at 0. position_ids are not used (Cho et al. 2024, arXiv 2405.20671).

    The paper's ids fall with the weight; these rise, which is another order of the table's rows.
    Its operands may be written in the plain order, whose ids depend on digits that follow, which a
    decoder that writes numbers cannot know. The ids were compared by hand with the authors' code
    (HanseulJo/position-coupling)."""

    name = "coupling"

    def moves(self, places: Tensor, before: Tensor) -> Tensor:
        return torch.ones_like(places)
