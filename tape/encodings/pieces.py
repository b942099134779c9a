"""Maps of distances between tokens to those that a model was trained on, piece by piece, and their
settings: the methods of `tape.encodings.extended`.

They are those of the papers, compared by hand with the authors' code: datamllab/LongLM,
bojone/rerope, HKUNLP/ChunkLlama and STRING. They differ from it in that queries are not multiplied
by max(1, log_L(i + 1)) (rerope), nor cosines and sines by 0.1 ln 2 + 1 (STRING); Self-Extend's
shift is W - floor(W / G), not W - W / G; and dca's largest distance is C + W - 1, not C + W.
"""

import math
from collections.abc import Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape.core.validation import check_integer, look_up


class Piece(NamedTuple):
    """Where queries (B|1, T) and keys (B|1, S) are rotated for some of the pairs: those whose
    marks, (B|1, T) and (B|1, S), differ by `least` to `most`; without marks all. Later pieces
    replace earlier ones."""

    query: Tensor
    key: Tensor
    marks: tuple[Tensor, Tensor] | None = None
    least: float = 0
    most: float = math.inf

    def pairs(self) -> Tensor:
        """Returns which pairs these are, (B|1, 1, T, S)."""
        query, key = self.marks
        difference = query[:, None, :, None] - key[:, None, None, :]
        found = difference >= self.least
        return found if self.most == math.inf else found & (difference <= self.most)

    def rows(self, queries: slice, keys: slice) -> "Piece":
        """Returns the piece for some queries and keys, with rotations (B|1, 1, T|S, ..)."""
        query, key = self.query[:, :, queries], self.key[:, :, keys]
        marks = self.marks and (self.marks[0][:, queries], self.marks[1][:, keys])
        return self._replace(query=query, key=key, marks=marks)


def spans(pieces: Sequence[Piece]) -> list[tuple[Piece, slice, bool]]:
    """Returns the pieces that have pairs, in their order, each with the keys from the first to the
    last that it may be needed for, and whether all pairs with these are its own."""
    S = pieces[0].key.shape[-2]
    left, found = torch.ones(S, dtype=torch.bool), []
    for piece in reversed(pieces):
        some = every = torch.ones(S, dtype=torch.bool)
        if piece.marks is not None:
            (low, high), key = piece.marks[0].aminmax(dim=1, keepdim=True), piece.marks[1]
            some = ((high - key >= piece.least) & (low - key <= piece.most)).any(0)
            every = ((low - key >= piece.least) & (high - key <= piece.most)).all(0)
        if len(needed := (some & left).nonzero()):
            keys = slice(int(needed[0]), int(needed[-1]) + 1)
            found.append((piece, keys, bool(every[keys].all())))
        left &= ~every
    return found[::-1]


def self_extend(i: Tensor, j: Tensor, *, window: int, group: int) -> list[Piece]:
    shift = window - window // group
    return [Piece(i, j), Piece(i // group + shift, j // group, (i, j), window)]


def rerope(i: Tensor, j: Tensor, *, window: int) -> list[Piece]:
    last = torch.full_like(i, window)
    return [Piece(i, j), Piece(last, torch.zeros_like(j), (i, j), window)]


def leaky_rerope(i: Tensor, j: Tensor, *, window: int, group: int) -> list[Piece]:
    query = i / group + window - window / group
    return [Piece(i, j), Piece(query, j / group, (i, j), window)]


def dca(i: Tensor, j: Tensor, *, window: int, chunk: int) -> list[Piece]:
    chunks = i // chunk, j // chunk
    last, i, j = torch.full_like(i, chunk + window - 1), i % chunk, j % chunk
    next_chunk = Piece((i + chunk).minimum(last), j, chunks, 1, 1)
    return [Piece(i, j), next_chunk, Piece(last, j, chunks, 2)]


def string(i: Tensor, j: Tensor, *, window: int, offset: int) -> list[Piece]:
    return [Piece(i, j), Piece(i - offset + window, j, (i, j), offset)]


# Their keyword-only parameters are the settings.
METHODS = {
    "self_extend": self_extend,
    "rerope": rerope,
    "leaky_rerope": leaky_rerope,
    "dca": dca,
    "string": string,
}
SETTINGS = ("window", "group", "chunk", "offset")
MOST_TIMES = 1_000_000  # the trained length


def settings_of(L: int, given: dict[str, Any]) -> dict[str, int]:
    """Returns the settings of a method at training length L, with defaults; refuses others."""
    method, factor = given["method"], given["factor"]
    _, _, *names = signature(look_up("method of position extended", method, METHODS)).parameters
    found, owner = {name: given[name] for name in SETTINGS}, f"position extended, method {method}"
    for name in SETTINGS:
        if found[name] is not None and name not in names:
            raise ValueError(f"{owner} takes no {name}; it takes {' and '.join(names)}")
    if factor is None:
        factor = 1 if method == "string" else 4
    elif not 1 <= factor <= MOST_TIMES:
        raise ValueError(f"{owner}: factor={factor!r} must be a number in 1..{MOST_TIMES:,}")
    elif found["group"] is not None or found["offset"] is not None:
        raise ValueError(f"{owner}: give factor or {names[1]}, which factor determines; not both")
    if method == "dca":
        found["chunk"] = max(1, 3 * L // 4) if found["chunk"] is None else found["chunk"]
        check_integer(f"{owner}: chunk", found["chunk"], most=L - 1)
    if found["window"] is None:
        usual = {"dca": L - (found["chunk"] or 0), "string": min(128, L // 16)}
        found["window"] = max(1, usual.get(method, L // 4))
    check_integer(f"{owner}: window", W := found["window"], most=L - (found["chunk"] or 1))
    if "group" in names:
        if found["group"] is None:
            found["group"] = math.ceil((factor * L - W) / (L - W))
            if method == "self_extend":  # the window may end within a group
                while found["group"] * (L - W + W // found["group"]) < factor * L:
                    found["group"] += 1
        check_integer(f"{owner}: group", found["group"], most=2**31 - 1)
    if method == "string":
        if factor * L > 2 * L - W:
            raise ValueError(
                f"{owner} with window={W} reaches {2 * L - W:,} tokens, fewer than factor={factor} "
                f"times {L:,}: give a smaller factor, or another method"
            )
        if found["offset"] is None:
            found["offset"] = max(math.ceil(L / 3), math.ceil(factor * L) - L + W)
        check_integer(f"{owner}: offset", found["offset"], least=W, most=L)
    return {name: found[name] for name in names}
