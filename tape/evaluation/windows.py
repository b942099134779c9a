"""Windows of a text, and the tokens that each of them scores.

A window is read at once, without a cache of the text before it. The conventions in use differ in
their windows and in the scored tokens, and so in their perplexities. Only ALIKE score the same
tokens at every length. Under the others shorter windows score other tokens, with less context, so a
perplexity that falls with the length says nothing about extrapolation.
"""

from itertools import groupby
from typing import NamedTuple

from tape.evaluation import BATCH_TOKENS

STRIDE = 256  # the paper's and LongLoRA's
SPREAD = "spread"
SCORED_TOKENS = 16_384  # by windows that are spread over a text
ALIKE = ("sliding", SPREAD)


class Window(NamedTuple):
    """Tokens start..stop - 1 of a text, of which first..stop - 1 are scored: each is predicted from
    those before it in the window."""

    start: int
    first: int
    stop: int

    @property
    def positions(self) -> range:
        """The number of tokens of the window before each scored token."""
        return range(self.first - self.start, self.stop - self.start)


def sliding(tokens: int, length: int, stride: int) -> list[Window]:
    """A window every `stride` tokens until one reaches the end of the text, where it is cut. Each
    scores the tokens that none before it had, so every token but the first is scored once."""
    return [
        Window(start, start + length - stride if start else 1, min(start + length, tokens))
        for start in range(0, tokens - length + stride, stride)
    ]


def paper(tokens: int, length: int, stride: int) -> list[Window]:
    """A window every `stride` tokens, but none that ends with the text, and every token of it but
    the first is scored: most of a text length / stride times."""
    return [Window(start, start + 1, start + length) for start in range(0, tokens - length, stride)]


def longlora(tokens: int, length: int, stride: int) -> list[Window]:
    """Those of `paper` but the last. LongLoRA's mean of the means of windows is that of tokens."""
    return paper(tokens, length, stride)[:-1]


def disjoint(tokens: int, length: int, stride: int) -> list[Window]:
    """Blocks, `stride` = `length`, as in `paper`, but one may end with the text."""
    return paper(tokens + 1, length, stride)


def spread(tokens: int, length: int, stride: int, longest: int, scored: int) -> list[Window]:
    """Windows that score about `scored` tokens, none of them twice, spread evenly over the text.
    Each scores its last `stride`, as most windows of `sliding` do. They end where windows of the
    `longest` compared length fit as well, so the same tokens are scored at every length."""
    check_stride(stride, length)
    first = max(longest, stride)
    if tokens < first:
        what = f"{tokens:,} tokens of text are fewer than one window of {longest:,}"
        raise ValueError(f"{what}; give more text, or smaller lengths")
    count = min(max(1, scored // stride), 1 + (tokens - first) // stride)
    # In integers: in floating point, some windows would end a token earlier.
    ends = [first + number * (tokens - first) // max(1, count - 1) for number in range(count)]
    return [Window(end - length, end - stride, end) for end in ends]


CONVENTIONS = {
    "sliding": sliding,
    "spread": spread,
    "paper": paper,
    "longlora": longlora,
    "disjoint": disjoint,
}


def strides_of(convention: str, lengths: list[int], stride: int | None = None) -> dict[int, int]:
    """Returns the stride by window length: as given, or the length for `disjoint`, half of the
    shortest length for `spread`. For the others STRIDE, but the shortest length if that is less (of
    `sliding` half of it, if it is not more), as no token may be left out. Raises a ValueError for a
    stride that the convention does not allow."""
    if convention == "disjoint":
        for length in lengths:
            if stride not in (None, length):
                raise ValueError(f"{stride=} with convention 'disjoint': it can only be {length}")
        return {length: length for length in lengths}
    shortest = min(lengths)
    if stride is None:
        own = shortest // 2 if convention in ALIKE else shortest
        stride = own if shortest <= STRIDE or convention == SPREAD else STRIDE
    if convention in ALIKE:
        check_stride(stride, shortest)
    return dict.fromkeys(lengths, stride)


def check_stride(stride: int, length: int) -> None:
    """Raises a ValueError if the stride leaves a scored token without context."""
    if not 0 < stride < length:
        raise ValueError(f"stride={stride} must lie in 1..{length - 1}, below the window's length")


def windows_of(
    convention: str,
    tokens: int,
    length: int,
    stride: int,
    longest: int | None = None,
    scored: int | None = None,
) -> list[Window]:
    """Returns the windows of a text of this many `tokens`, with `stride` from `strides_of`; raises
    a ValueError for a text that is too short. `spread` depends on the `longest` compared length (by
    default this one) and on how many tokens are to be `scored` (SCORED_TOKENS)."""
    sample = (longest or length, scored or SCORED_TOKENS) if convention == SPREAD else ()
    windows = []
    if tokens >= length:
        windows = CONVENTIONS[convention](tokens, length, stride, *sample)
    if not windows:
        what = f"{tokens:,} tokens of text have no window of {length:,} that convention"
        raise ValueError(f"{what} {convention!r} scores; give more text, or smaller lengths")
    return windows


class Batch(NamedTuple):
    """Windows of the same number of tokens that are run together."""

    length: int  # of the convention's windows; the last of a text may be shorter
    windows: list[Window]
    counted: int | None = None  # the last tokens of each, those of the length's mean; None: all

    @property
    def cost(self) -> int:
        """Tokens to run, roughly proportional to time."""
        return sum(window.stop - window.start for window in self.windows)


def batches_of(
    windows: list[Window], length: int, tokens: int = BATCH_TOKENS, counted: int | None = None
) -> list[Batch]:
    """Groups windows in their order, as many together as have `tokens` tokens."""
    most, batches = max(1, tokens // length), []
    for _, alike in groupby(windows, key=lambda window: window.stop - window.start):
        found = list(alike)
        parts = (found[i : i + most] for i in range(0, len(found), most))
        batches += [Batch(length, part, counted) for part in parts]
    return batches
