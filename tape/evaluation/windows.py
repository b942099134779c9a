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
    """Returns windows that start every `stride` tokens. The last one is cut at the end of the text.
    Each scores the tokens that no earlier window has scored, so every token but the first is scored
    once."""
    return [
        Window(start, start + length - stride if start else 1, min(start + length, tokens))
        for start in range(0, tokens - length + stride, stride)
    ]


def paper(tokens: int, length: int, stride: int) -> list[Window]:
    """Returns windows that start every `stride` tokens and end before the text does. Each scores
    all of its tokens but the first, so most tokens are scored length / stride times."""
    return [Window(start, start + 1, start + length) for start in range(0, tokens - length, stride)]


def longlora(tokens: int, length: int, stride: int) -> list[Window]:
    """Those of `paper` but the last. LongLoRA's mean of the means of windows is that of tokens."""
    return paper(tokens, length, stride)[:-1]


def disjoint(tokens: int, length: int, stride: int) -> list[Window]:
    """Blocks, `stride` = `length`, as in `paper`, but one may end with the text."""
    return paper(tokens + 1, length, stride)


def spread(tokens: int, length: int, stride: int, longest: int, scored: int) -> list[Window]:
    """Returns windows that score about `scored` tokens, spread evenly over the text.

    Each window scores its last `stride` tokens, and no token is scored twice. Windows of all
    lengths end at the same places, at which windows of the `longest` compared length fit. The same
    tokens are therefore scored at every length.

    Raises:
        ValueError: if the text has fewer than `longest` tokens, or if the stride is not below the
            length.
    """
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
    """Returns the stride, in tokens, for each window length.

    Args:
        stride: the number for all lengths; None for these defaults:
            disjoint: the length itself, the only possible stride.
            spread: half of the shortest length.
            sliding: STRIDE, or half of the shortest length if that length is at most STRIDE.
            paper, longlora: STRIDE, or the shortest length if that is less.

    Raises:
        ValueError: for a stride that the convention does not allow.
    """
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
    """Returns the windows of a text, in the order of their starts.

    Args:
        tokens: number of tokens of the text.
        length: tokens in a window.
        stride: from `strides_of`.
        longest: only for `spread`: the longest length that is compared; None: `length`.
        scored: only for `spread`: about how many tokens are scored; None: SCORED_TOKENS.

    Raises:
        ValueError: if the text is too short for a window.
    """
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
