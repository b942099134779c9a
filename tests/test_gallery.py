"""Pictures of encodings: what they show, by hand."""

import pandas as pd
import pytest
import torch

from tape.analysis.gallery import CHANNELS, by_distance, main, scores
from tape.positions import ENCODINGS
from tape.positions.bias import alibi_slopes

LENGTH = 12


def line(name):
    return by_distance(scores(name, LENGTH))


def test_of_encodings_with_a_formula():
    """Queries and keys are ones: RoPE's score is the sum of 2 cos(d theta_f) over sqrt(D)."""
    distance = torch.arange(LENGTH, dtype=torch.float64)
    assert not line("nope").any()
    slopes = alibi_slopes(4).double()[:, None]
    torch.testing.assert_close(line("alibi"), -slopes * distance)
    frequencies = 10_000 ** (-2 * torch.arange(CHANNELS // 2, dtype=torch.float64) / CHANNELS)
    turned = 2 * (distance[:, None] * frequencies).cos().sum(-1) / CHANNELS**0.5
    expected = (turned - turned[0]).expand(4, -1)
    for name in ("rope", "tape"):  # which starts as RoPE
        torch.testing.assert_close(line(name), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "mixed"])
def test_every_encoding_has_a_picture(name):
    found, later = scores(name, LENGTH), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert torch.isneginf(found[:, later]).all() and found[:, ~later].isfinite().all()
    assert line(name).isfinite().all()


def test_files(tmp_path, capsys):
    main(["--encodings", "adape", "tape", "nope", "--length", "12", "--out", str(tmp_path)])
    rows = pd.read_csv(tmp_path / "scores.csv")
    assert list(rows["encoding"].unique()) == ["tape", "nope"]
    assert len(rows) == 2 * 4 * LENGTH and rows["score"].notna().all()
    for name in ("curves.png", "curves.svg", "maps.png", "maps.svg", "origin.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert f"2 encodings in {tmp_path}" in capsys.readouterr().out
