"""What encodings that read the text keep of each token: precision, and PaTH in chunks."""

import pytest
import torch
from conftest import make_model, random_tokens
from transformers import QuantizedCache

from tape.positions import Positions, Tokens, path
from tape.positions.fox import UNIT
from tape.positions.sums import join_sums


@torch.no_grad()
@pytest.mark.parametrize("position", ["fox", "selective", "carope"])
def test_in_bfloat16_a_cache_keeps_what_the_whole_text_gives(position):
    """Over 2,000 tokens, of which the last 64 come one by one: FoX's sums are the same in float32,
    Selective RoPE's keys the same up to the rounding of a phase in float32."""
    model = make_model(position, dtype=torch.bfloat16)
    layer, T = model.model.layers[0].context, 2000
    x, (q, k) = torch.randn(1, T, 32).bfloat16(), torch.randn(2, 1, 4, T, 8).bfloat16()

    def prepared(begin, end, past):
        index = torch.arange(begin, end)
        where = Positions(index[None], torch.arange(end)[None])
        tokens = Tokens(where, None, None, index)
        part = slice(begin, end)
        _, turned, extras = layer.prepare(
            x[:, part], q[:, :, part], k[:, :, part], None, tokens, past
        )
        return turned, extras

    expected, whole = prepared(0, T, None)
    found, past = prepared(0, T - 64, None)
    for begin in range(T - 64, T):
        turned, extras = prepared(begin, begin + 1, past)
        found, past = torch.cat((found, turned), 2), torch.cat((past, extras), 2)
    assert expected.isfinite().all() and expected.dtype == past.dtype == torch.bfloat16
    if position == "fox":
        sums, exact = (join_sums(parts, torch.float32) for parts in (past, whole))
        torch.testing.assert_close(sums, exact, atol=0, rtol=1e-6)
        assert UNIT * exact.min() < -256  # where neighbours in bfloat16 are 2 apart
    else:
        assert (past != whole).float().mean() < 0.2
        assert (found - expected).norm() / expected.norm() < 1e-3


def householder_loops(q, k, w, beta):
    """q_i' H_i .. H_(j+1) k_j / sqrt(D) for j <= i and one head, from the definition."""
    T, D = k.shape
    rows = []
    for i in range(T):
        row = []
        for j in range(i + 1):
            moved = k[j]
            for t in range(j + 1, i + 1):
                moved = moved - beta[t] * (w[t] @ moved) * w[t]
            row.append(q[i] @ moved / D**0.5)
        rows.append(torch.nn.functional.pad(torch.stack(row), (0, T - i - 1)))
    return torch.stack(rows)


@pytest.mark.parametrize(("chunk", "length"), [(4, 11), (4, 12), (64, 7), (1, 5)])
def test_path_in_chunks_equals_its_definition(chunk, length, monkeypatch):
    """Scores and gradients at once, and scores of the last tokens behind those in a cache: of the
    text's length, and with free slots."""
    monkeypatch.setattr(path, "CHUNK", chunk)
    D, options = 5, {"dtype": torch.float64, "requires_grad": True}
    q, k, w = (torch.randn(1, heads, length, D, **options) for heads in (2, 1, 1))
    beta = (2 * torch.rand(1, 1, length, 1, dtype=torch.float64)).requires_grad_()

    def scores(begin, S):
        maps = torch.cat((w, beta), -1)[:, :, :S]
        slots = torch.arange(begin, length)
        made = path.PathScores(q[:, :, begin:], k[:, :, :S], maps, slots).dense(q.dtype)
        return made[..., :length].tril(begin)

    unit = w[0, 0] / w[0, 0].norm(dim=-1, keepdim=True)
    of_heads = [householder_loops(q[0, h], k[0, 0], unit, beta[0, 0]) for h in (0, 1)]
    expected = torch.stack(of_heads)[None]
    weights = torch.randn_like(expected)
    inputs = (q, k, w, beta)
    tight = {"atol": 1e-12, "rtol": 1e-9}
    torch.testing.assert_close(scores(0, length), expected, **tight)
    both = [torch.autograd.grad((x * weights).sum(), inputs) for x in (scores(0, length), expected)]
    torch.testing.assert_close(*both, **tight)
    for new in (1, 4):
        torch.testing.assert_close(scores(length - new, length), expected[:, :, -new:], **tight)
    k, w, beta = (torch.nn.functional.pad(x, (0, 0, 0, 3)) for x in (k, w, beta))
    torch.testing.assert_close(scores(length - 2, length + 3), expected[:, :, -2:], **tight)


@pytest.mark.parametrize("position", ["fox", "selective", "carope", "path"])
def test_a_cache_that_rounds_is_refused(position):
    model = make_model(position)
    settings = {"past_key_values": QuantizedCache("fp8", model.config), "max_new_tokens": 3}
    message = rf"position '{position}' with a cache that rounds or drops"
    with pytest.raises(ValueError, match=message):
        model.generate(random_tokens(2, 6), pad_token_id=0, **settings)
