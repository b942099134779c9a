"""What encodings that read the text keep of each token: precision, and text in chunks."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from conftest import in_pieces, make_cache, make_model, random_tokens, refuses
from transformers import QuantizedCache

from tape.encodings.wall import within
from tape.positions.base import Positions, Tokens

TIGHT = {"atol": 1e-10, "rtol": 1e-10}
# The greatest error of keys or scores, in float32 and bfloat16; of rotated keys, rounded phases.
KEPT = {"wall": (1e-5, 1e-5), "wall_scalar": (1e-5, 1e-5), "grape_ap": (1e-5, 1e-5)}
KEPT |= {"fox": (1e-5, 1e-5), "grape_m_contextual": (1e-4, 3e-3)}
KEPT |= {"selective": (1e-4, 1e-2), "carope": (1e-4, 1e-2)}


@torch.no_grad()
@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_over_two_thousand_tokens_gives_the_scores_of_the_whole_text(kind, dtype):
    """Of the last tokens, which come in a chunk, alone, and one by one."""
    model, T = make_model(kind, dtype=dtype), 2000
    layer, position = model.model.layers[0].context, model.model.position
    x, (q, k) = torch.randn(1, T, 32).to(dtype), torch.randn(2, 1, 4, T, 8).to(dtype)

    def scores(bounds):
        keys, past = torch.empty(1, 4, 0, 8, dtype=dtype), None
        for begin, end in pairwise(bounds):
            index, part = torch.arange(begin, end), slice(begin, end)
            where = Positions(index[None], torch.arange(end)[None])
            bias = position.biases(where)[0]
            tokens = Tokens(where, bias, None, index, x=x[:, part], past=past)
            queries, new, extras = layer.prepare(q[:, :, part], k[:, :, part], tokens)
            assert extras.dtype == dtype
            keys = torch.cat((keys, new), 2)
            past = extras if past is None else torch.cat((past, extras), 2)
        found = layer.bias(queries, keys, past, tokens)
        wide = queries.float() @ keys.float().mT
        return wide if found is None else found.dense(torch.float32)

    whole = scores([0, T])[:, :, -40:]
    for bounds in ([0, T - 40, T], [0, 900, T - 1, T], [0, *range(T - 40, T + 1)]):
        found = scores(bounds)
        expected = whole[:, :, -found.shape[2] :]
        tail = torch.ones(found.shape[-2:]).tril(T - found.shape[2]).bool()
        assert found.isfinite().all()
        error = ((found - expected) * tail).norm() / (expected * tail).norm()
        assert error < KEPT[kind][dtype == torch.bfloat16], error


@torch.no_grad()
@pytest.mark.parametrize("position", ["fox", "grape_m_contextual"])
def test_sums_beyond_what_float16_can_hold(position):
    tokens, found = random_tokens(1, 60), []
    for dtype in (torch.float32, torch.float16):
        model = make_model(position, dtype=dtype)
        for layer in model.model.layers:
            if position == "fox":
                layer.context.gate.bias[0] = -3000.0
            else:  # angles beyond 65,504
                layer.context.scale.bias.fill_(2000.0)
                layer.context.log_ratio.fill_(-8.0)
        found.append(model(tokens, use_cache=False).logits.double())
        found.append(in_pieces(model, tokens, 20, make_cache(model, "of_layers")).double())
    errors = [((x - found[0]).norm() / found[0].norm()).item() for x in found[1:]]
    assert errors[0] < 1e-4 and max(errors[1:]) < 0.05


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("length", [2, 7, 64, 150])
def test_walls_chunks_equal_the_definition(length, scale):
    """Values and gradients; steps of hundreds would overflow in sums apart from each other."""
    options = {"dtype": torch.float64, "requires_grad": True}
    q, k, logits = (torch.randn(2, 3, length, 5, **options) for _ in range(3))
    steps = scale * F.logsigmoid(logits)
    found = within(q, k, steps.exp()).tril()
    sums = steps.cumsum(-2)
    later = torch.ones(length, length).triu(1).bool()[..., None]
    between = (sums[..., :, None, :] - sums[..., None, :, :]).masked_fill(later, -torch.inf)
    expected = (q[..., :, None, :] * k[..., None, :, :] * between.exp()).sum(-1)
    torch.testing.assert_close(found, expected, **TIGHT)
    weights = torch.randn(length, length, dtype=torch.float64)
    both = [
        torch.autograd.grad((x * weights).sum(), (q, k, logits), retain_graph=True)
        for x in (found, expected)
    ]
    torch.testing.assert_close(*both, **TIGHT)


@pytest.mark.parametrize("position", ["fox", "selective", "carope", "path"])
def test_a_cache_that_rounds_is_refused(position):
    model = make_model(position)
    cache, message = QuantizedCache("fp8", model.config), f"position '{position}' with a cache that"
    # At the first token: groups of numbers need not divide what the encoding keeps.
    refuses(f"{message} rounds", model, random_tokens(2, 6), past_key_values=cache)
