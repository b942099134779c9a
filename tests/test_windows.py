"""Which windows are run, and which of their tokens are scored: by hand."""

import re

import numpy as np
import pytest
from commands import ROOT
from conftest import refuses

from tape.evaluation.windows import CONVENTIONS, batches_of, spread, strides_of, windows_of


def test_windows_of_a_thousand_tokens():
    """As documented."""
    expected = {
        "sliding": [(0, 1, 512), (256, 512, 768), (512, 768, 1000)],
        "paper": [(0, 1, 512), (256, 257, 768)],
        "longlora": [(0, 1, 512)],
        "disjoint": [(0, 1, 512)],
    }
    for name in CONVENTIONS:
        windows = windows_of(name, 1000, 512, strides_of(name, [512])[512])
        assert windows == expected[name]
        cells = ", ".join(f"{w.first} to {w.stop - 1}" for w in windows)
        scored = sum(w.stop - w.first for w in windows)
        row = rf"^\| `{name}` \| .* \| {cells} \| {scored:,} \|$"
        assert re.search(row, (ROOT / "docs" / "perplexity.md").read_text(), re.MULTILINE)
    assert windows_of("sliding", 1000, 256, 100)[-2:] == [(700, 856, 956), (800, 956, 1000)]
    assert windows_of("disjoint", 1000, 256, 256) == [(0, 1, 256), (256, 257, 512), (512, 513, 768)]
    assert len(windows_of("paper", 1000, 256, 256)) == len(range(0, 1000 - 256, 256)) == 3
    assert windows_of("paper", 1000, 100, 300)[-1] == (600, 601, 700)  # not (900, 901, 1000)


@pytest.mark.parametrize(
    ("available", "longest", "stride", "tokens"),
    [(1000, 64, 16, 160), (1000, 64, 16, 10**9), (64, 64, 16, 100), (70, 64, 16, 100)],
)
def test_a_sample_of_windows_fits_and_scores_no_token_twice(available, longest, stride, tokens):
    windows, shorter = (spread(available, n, longest, stride, tokens) for n in (longest, 32))
    ends = [window.stop for window in windows]
    assert windows[0].start >= 0 and ends[-1] <= available and (np.diff(ends) >= stride).all()
    assert len(ends) >= 1 and len(ends) * stride <= max(tokens, stride)
    assert [w[1:] for w in windows] == [w[1:] for w in shorter]  # the same tokens
    assert {w.stop - w.first for w in windows} == {stride}


def test_windows_that_cannot_be():
    for lengths, stride in (([32, 16], 8), ([257, 512], 256)):
        assert strides_of("sliding", lengths) == dict.fromkeys(lengths, stride)
    assert strides_of("paper", [64, 512]) == {64: 64, 512: 64}  # no gaps
    refuses("63 tokens of text are fewer than one window of 64", spread, 63, 64, 64, 8, 100)
    refuses(r"stride=16 must lie in 1\.\.15", spread, 64, 16, 64, 16, 100)
    refuses(r"stride=16 must lie in 1\.\.15", strides_of, "sliding", [32, 16], 16)
    with pytest.raises(ValueError, match="stride=8 with convention 'disjoint': it can only be 16"):
        strides_of("disjoint", [8, 16], 8)
    for name, tokens in {"sliding": 15, "disjoint": 15, "paper": 16, "longlora": 24}.items():
        with pytest.raises(ValueError, match=f"{tokens} tokens of text have no window of 16 that"):
            windows_of(name, tokens, 16, 8)
        assert windows_of(name, tokens + 1, 16, 8)


def test_batches_hold_windows_of_one_size():
    windows = windows_of("sliding", 1000, 256, 100)
    batches = batches_of(windows, 256, 3 * 256)
    assert [w for batch in batches for w in batch.windows] == windows
    assert [len(batch.windows) for batch in batches] == [3, 3, 2, 1]  # the last one is cut
    assert [batch.cost for batch in batches] == [768, 768, 512, 200]
    assert {batch.length for batch in batches} == {256}
