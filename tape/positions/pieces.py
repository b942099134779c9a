"""Maps of distances between tokens to those that a model was trained on, piece by piece, and their
settings: the methods of `tape.positions.extended`.

They are those of the papers, which were compared by hand with the authors' code:
datamllab/LongLM (self_extend_patch/Llama.py), bojone/rerope (rerope_patch.py,
leaky_rerope_patch.py), HKUNLP/ChunkLlama (chunkllama_attn_replace.py) and STRING
(string_for_llama.py). They differ from it in these places: queries are not multiplied by
max(1, log_L(i + 1)), as in both patches of bojone/rerope, nor cosines and sines by 0.1 ln 2 + 1, as
in STRING's; Self-Extend's shift is W - floor(W / G), not W - W / G; and dca's largest distance is
C + W - 1, not C + W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape.validation import check_integer, is_number, look_up


class Piece(NamedTuple):
    """Where queries (B|1, T) and keys (B|1, S) are rotated for some of the pairs (B|1, T, S);
    later pieces replace earlier ones. None: all pairs."""

    query: Tensor
    key: Tensor
    pairs: Tensor | None = None


def far(i: Tensor, j: Tensor, least: int) -> Tensor:
    """Returns which pairs are at a distance of `least` or more."""
    return i[..., :, None] - j[..., None, :] >= least


def self_extend(i: Tensor, j: Tensor, *, window: int, group: int) -> list[Piece]:
    shift = window - window // group
    return [Piece(i, j), Piece(i // group + shift, j // group, far(i, j, window))]


def rerope(i: Tensor, j: Tensor, *, window: int) -> list[Piece]:
    return [
        Piece(i, j),
        Piece(torch.full_like(i, window), torch.zeros_like(j), far(i, j, window)),
    ]


def leaky_rerope(i: Tensor, j: Tensor, *, window: int, group: int) -> list[Piece]:
    return [
        Piece(i, j),
        Piece(i / group + window - window / group, j / group, far(i, j, window)),
    ]


def dca(i: Tensor, j: Tensor, *, window: int, chunk: int) -> list[Piece]:
    chunks = (i // chunk)[..., :, None] - (j // chunk)[..., None, :]  # from key to query
    last, i, j = torch.full_like(i, chunk + window - 1), i % chunk, j % chunk
    return [
        Piece(i, j),
        Piece((i + chunk).minimum(last), j, chunks == 1),
        Piece(last, j, chunks > 1),
    ]


def string(i: Tensor, j: Tensor, *, window: int, offset: int) -> list[Piece]:
    return [Piece(i, j), Piece(i - offset + window, j, far(i, j, offset))]


# With the names of the settings.
METHODS: dict[str, tuple[Callable[..., list[Piece]], tuple[str, ...]]] = {
    "self_extend": (self_extend, ("window", "group")),
    "rerope": (rerope, ("window",)),
    "leaky_rerope": (leaky_rerope, ("window", "group")),
    "dca": (dca, ("window", "chunk")),
    "string": (string, ("window", "offset")),
}
SETTINGS = ("window", "group", "chunk", "offset")


def settings_of(L: int, given: dict[str, Any]) -> dict[str, int | None]:
    """Returns the settings of a method at training length L: those that are given, and defaults.

    Raises:
        ValueError: for settings of other methods, or out of bounds.
    """
    method, factor = given["method"], given["factor"]
    _, names = look_up("method of position extended", method, METHODS)
    owner = f"position extended with method={method}"
    for name in SETTINGS:
        if given[name] is not None and name not in names:
            raise ValueError(f"{owner} takes no {name}; it takes {' and '.join(names)}")
    determined = [name for name in ("group", "offset") if name in names]
    if factor is not None and not (is_number(factor) and factor >= 1):
        raise ValueError(f"{owner}: factor={factor!r} must be a number >= 1")
    if factor is not None and any(given[name] is not None for name in determined):
        raise ValueError(f"{owner}: give factor or {determined[0]}, which it determines")
    reach = math.ceil(L * (factor or (1 if method == "string" else 4)))
    found = {name: given[name] for name in SETTINGS}
    if method == "dca" and found["chunk"] is None:
        found["chunk"] = max(1, 3 * L // 4)
    if found["window"] is None:
        small = {"dca": L - (found["chunk"] or 0), "string": min(128, L // 16)}
        found["window"] = max(1, small.get(method, L // 4))
    most = {"window": L - 1, "group": None, "chunk": L - 1, "offset": L}
    check_integer(f"{owner}: window", found["window"], most=L - 1)
    W = found["window"]
    if "group" in names and found["group"] is None:
        found["group"] = max(1, math.ceil((reach - W) / (L - W)))
    if "offset" in names and found["offset"] is None:
        found["offset"] = max(math.ceil(L / 3), reach - L + W)
        if found["offset"] > L:
            raise ValueError(
                f"{owner}: factor={factor} needs distances beyond the trained length of {L}; "
                f"string reaches {2 * L - W} tokens: give a smaller factor or another method"
            )
    for name in names:
        check_integer(f"{owner}: {name}", found[name], most=most[name])
    if method == "dca" and found["chunk"] + W > L:
        raise ValueError(
            f"{owner}: chunk={found['chunk']} and window={W} must add up to {L} at most"
        )
    if method == "string" and found["offset"] < W:
        raise ValueError(f"{owner}: offset={found['offset']} must be at least window={W}")
    return found
