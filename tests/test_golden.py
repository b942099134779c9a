"""Scores and averages whose values follow from the formulas by hand."""

import math

import torch
from conftest import make_config

from tape.encodings import build, build_layer
from tape.model.options import exclusive
from tape.positions.base import Positions, Tokens
from tape.positions.rotary import turned, waves


def tokens_of(encoding, T, **given):
    """Tokens 0 to T - 1 of an encoding, in float64."""
    index = torch.arange(T)[None]
    positions = Positions(index, index, T)
    e = encoding.state(positions, torch.float64)
    bias = encoding.biases(positions)[0]
    return Tokens(positions, bias, None, torch.arange(T), **{"e": e, **given})


def test_partial_key_offset():
    """D = 4: channels 0 and 2 turn by one radian per token, 1 and 3 are those of the token before.
    With q = (1, 2, 0, 1) and k_t = (1, t + 1, 0, 10 (t + 1)), whose still channels give 12 (t + 1),
    the product of i and j is cos(i - j) plus 12 times the number of the token before j from 1."""
    config = make_config("pko", hidden_size=4, num_attention_heads=1)
    encoding = build(config)
    layer = build_layer(encoding, 0)
    count = torch.arange(1, 5, dtype=torch.float64)
    zero, one = torch.zeros_like(count), torch.ones_like(count)
    q = torch.stack((one, 2 * one, zero, one), dim=-1)[None, None]
    k = torch.stack((one, count, zero, 10 * count), dim=-1)[None, None]
    for documents, before in (None, (1, 1, 2, 3)), (torch.tensor([[0, 0, 1, 1]]), (1, 1, 3, 3)):
        found, keys, _ = layer.prepare(q, k, tokens_of(encoding, 4, documents=documents))
        expected = [[math.cos(i - j) + 12 * before[j] for j in range(4)] for i in range(4)]
        products = (found @ keys.mT)[0, 0]
        torch.testing.assert_close(products, torch.tensor(expected, dtype=torch.float64))


def test_scale_invariant():
    """Products over sqrt(D) of 1 and, for the second key, 3; tau = 1. At a distance of 3, a^2 is
    1 + 2 ln 4 = 1 + 4 ln 2, at 1 it is 1 + 2 ln 2."""
    position = {"name": "scale_invariant", "tau": 1.0}
    encoding = build(make_config(position, hidden_size=4, num_attention_heads=1))
    layer = build_layer(encoding, 0)
    q = torch.tensor([2.0, 0, 0, 0], dtype=torch.float64).expand(1, 1, 4, 4)
    k = torch.tensor([1.0, 3, 1, 1], dtype=torch.float64)[None, None, :, None].expand(1, 1, 4, 4)
    found = layer.bias(q, k, None, tokens_of(encoding, 4)).dense(torch.float64)[0, 0]
    two, three = 2 * math.log(2), 2 * math.log(3)
    last = [math.sqrt(1 + 2 * two) - 2 * two, 3 * math.sqrt(1 + three) - three]
    last += [math.sqrt(1 + two) - two, 1]
    torch.testing.assert_close(found[3], torch.tensor(last, dtype=torch.float64))
    torch.testing.assert_close(found.diagonal(), torch.tensor([1.0, 3, 1, 1]).double())


def test_imaginary():
    """(1 + 2i) times the conjugate of 3 + 4i is 11 + 2i, which one token turns by one radian."""
    encoding = build(make_config("imaginary", hidden_size=2, num_attention_heads=1))
    q, k = (torch.tensor(x).double().expand(1, 1, 2, 2) for x in ((1, 2), (3, 4)))
    q, k, _ = build_layer(encoding, 0).prepare(q, k, tokens_of(encoding, 2))
    cosine, sine = math.cos(1), math.sin(1)
    real, imaginary = (q[0] @ k[0].mT)[:, 1]
    torch.testing.assert_close(real, torch.tensor([11 * cosine - 2 * sine, 11]).double())
    torch.testing.assert_close(imaginary, torch.tensor([11 * sine + 2 * cosine, 2]).double())


def test_values_that_turn():
    """Turned by 0.3 and 0.9 radians and averaged with weights of 1/4 and 3/4, values of 1 and 2i
    are, at a query that is turned by 0.9, e^(-0.6 i) / 4 + 3/2 i."""
    phases = torch.tensor([0.3, 0.9], dtype=torch.float64)[None, None, :, None]
    values = torch.tensor([[1.0, 0], [0, 2]], dtype=torch.float64)[None, None]
    sent = turned(values, waves(phases))
    average = (sent * torch.tensor([0.25, 0.75])[:, None]).sum(2, keepdim=True)
    found = turned(average, waves(phases[:, :, 1:]), back=True).flatten()
    expected = math.cos(0.6) / 4, 1.5 - math.sin(0.6) / 4
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_exclusive_attention():
    """Of (3, 4) the part along (1, 1) is (3.5, 3.5), of (5, 0) along (0, 2) none, and of (2, 1)
    along a value of zeros none; one key/value head has two query heads."""
    average = torch.tensor([[[3.0, 4], [5, 0], [2, 1]], [[2, 2], [1, 1], [0, 1]]])[None]
    values = torch.tensor([[[1.0, 1], [0, 2], [0, 0]]])[None]
    expected = torch.tensor([[[-0.5, 0.5], [5, 0], [2, 1]], [[0, 0], [1, 0], [0, 1]]])[None]
    torch.testing.assert_close(exclusive(average, values), expected)
