"""Encodings of which others are special cases, and against other people's code."""

import math

import pytest
import torch
from conftest import in_pieces, make_cache, make_model, random_tokens
from x_transformers import x_transformers

from tape.positions import Positions, Tokens
from tape.positions.fox import ForgetBias
from tape.positions.grape_ap import PathIntegral
from tape.positions.wall import within

TIGHT = {"atol": 1e-10, "rtol": 1e-10}


def same_weights(position, other, **changes):
    """A model and one of another encoding, with the same weights but those of the encoding, and
    tokens."""
    ours, theirs = (make_model(name, dtype=torch.float64, **changes) for name in (position, other))
    shared = {name: x for name, x in ours.state_dict().items() if ".context." not in name}
    theirs.load_state_dict(shared, strict=False)
    return ours, theirs, random_tokens(2, 15)


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("contextual", [True, False])
def test_grape_m_starts_as_rope(shared, contextual):
    """The contextual form, if each token counts one."""
    position = {"name": "grape_m", "shared": shared, "contextual": contextual, "start": 1.0}
    ours, rope, tokens = same_weights(position, "rope", num_key_value_heads=2)
    for layer in ours.model.layers:
        layer.context.reset_parameters()
        if contextual:
            layer.context.scale.weight.zero_()
    expected = rope(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, atol=1e-4, rtol=0)
    pieces = in_pieces(ours, tokens, [7, 1, 7], make_cache(ours, "of_layers"))
    torch.testing.assert_close(pieces, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_contextual_grape_m_counts_in_float16_as_in_float32():
    """Angles beyond 65,504, at which float16 ends."""
    tokens, found = random_tokens(1, 60), []
    for dtype in (torch.float32, torch.float16):
        model = make_model({"name": "grape_m", "contextual": True}, dtype=dtype)
        for layer in model.model.layers:
            layer.context.scale.bias.fill_(2000.0)
            layer.context.log_ratio.fill_(-8.0)
        pieces = in_pieces(model, tokens, 20, make_cache(model, "of_layers"))
        found += [model(tokens).logits.double(), pieces.double()]
    errors = [((x - found[0]).norm() / found[0].norm()).item() for x in found[1:]]
    assert errors[0] < 1e-4 and max(errors[1:]) < 0.05


@torch.no_grad()
def test_grape_ap_without_probes_is_alibi_with_slopes_times_ln_2():
    ours, alibi, tokens = same_weights("grape_ap", "alibi")
    for layer in ours.model.layers:
        layer.context.probe.weight.zero_()
    alibi.model.position.slopes.mul_(math.log(2))
    torch.testing.assert_close(ours(tokens).logits, alibi(tokens).logits, atol=1e-6, rtol=0)


@torch.no_grad()
def test_grape_ap_of_products_that_depend_on_the_token_alone_is_fox():
    gates, slots = torch.randn(2, 4, 17, dtype=torch.float64), torch.arange(17)
    query = torch.tensor([1.0, 0.0]).double().expand(2, 4, 17, 2)
    key = torch.stack((gates, torch.randn_like(gates)), dim=-1)
    bias = PathIntegral(query, key, torch.ones(4), slots, None).dense(torch.float64)
    sums = torch.nn.functional.logsigmoid(gates).cumsum(-1)
    expected = ForgetBias(sums, sums).dense(torch.float64)
    torch.testing.assert_close(bias.tril(), expected.tril(), **TIGHT)


@torch.no_grad()
def test_grape_aps_sums_are_those_of_x_transformers():
    """Those are over the tokens from the key's to that before the query's."""
    q, k = torch.randn(2, 2, 4, 17, 8, dtype=torch.float64)
    theirs = x_transformers.PerRowDataDependentAlibi(32, heads=4, dim_head=8)
    theirs.to_forget_gates.register_forward_hook(lambda *_: (q, k.roll(-1, dims=2)))
    expected = theirs(torch.zeros(2, 17, 32))
    scaled = q * theirs.scale
    bias = PathIntegral(scaled, k, torch.ones(4), torch.arange(17), None).dense(torch.float64)
    torch.testing.assert_close(bias.tril(), expected.tril(), **TIGHT)


@torch.no_grad()
def test_repo_at_token_indices_is_rope():
    ours, rope, tokens = same_weights("repo", {"name": "rope", "theta": 50.0})
    different = ours(tokens).logits - rope(tokens).logits
    assert different.abs().max() > 1e-3
    for layer in ours.model.layers[1:]:
        layer.context.places = lambda x, _: torch.arange(x.shape[1], dtype=x.dtype)[None, None]
    torch.testing.assert_close(ours(tokens).logits, rope(tokens).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_wall_with_open_channels_and_a_scalar_gate_is_fox():
    ours, fox, tokens = same_weights("wall_scalar", "fox")
    for layer, other in zip(ours.model.layers, fox.model.layers, strict=True):
        layer.context.inner.gate.bias.fill_(1e4)
        other.context.load_state_dict(layer.context.forget.state_dict())
    expected = fox(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, **TIGHT)
    pieces = in_pieces(ours, tokens, [7, 1, 7], make_cache(ours, "of_layers"))
    torch.testing.assert_close(pieces, expected, **TIGHT)


@torch.no_grad()
def test_path_with_a_gate_is_path_without_decay_and_fox_without_maps():
    ours, path, tokens = same_weights("path_gate", {"name": "path", "rank": 3})
    _, fox, _ = same_weights("path_gate", "fox")
    for layer, other in zip(ours.model.layers, path.model.layers, strict=True):
        other.context.load_state_dict(layer.context.inner.state_dict())
    kept = [layer.context.forget.gate.bias.clone() for layer in ours.model.layers]
    for layer in ours.model.layers:
        layer.context.forget.gate.bias.fill_(1e4)
    torch.testing.assert_close(ours(tokens).logits, path(tokens).logits, **TIGHT)
    for layer, other, bias in zip(ours.model.layers, fox.model.layers, kept, strict=True):
        layer.context.forget.gate.bias.copy_(bias)
        layer.context.inner.gate.bias.fill_(-1e4)
        other.context.load_state_dict(layer.context.forget.state_dict())
    torch.testing.assert_close(ours(tokens).logits, fox(tokens).logits, **TIGHT)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("length", [2, 7, 64, 150])
def test_walls_chunks_equal_the_definition(length, scale):
    """Values and gradients; steps of hundreds would overflow in sums apart from each other."""
    options = {"dtype": torch.float64, "requires_grad": True}
    q, k, logits = (torch.randn(2, 3, length, 5, **options) for _ in range(3))
    steps = scale * torch.nn.functional.logsigmoid(logits)
    found = within(q, k, steps.exp())
    sums = steps.cumsum(-2)
    later = torch.ones(length, length).triu(1).bool()[..., None]
    between = (sums[..., :, None, :] - sums[..., None, :, :]).masked_fill(later, -torch.inf)
    expected = (q[..., :, None, :] * k[..., None, :, :] * between.exp()).sum(-1)
    torch.testing.assert_close(found.tril(), expected, **TIGHT)
    weights = torch.randn(length, length, dtype=torch.float64).tril()
    both = [
        torch.autograd.grad((x * weights).sum(), (q, k, logits), retain_graph=True)
        for x in (found, expected)
    ]
    torch.testing.assert_close(*both, **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["wall", "wall_scalar", "grape_ap", "grape_m_contextual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_over_two_thousand_tokens_gives_the_scores_of_the_whole_text(kind, dtype):
    """Of the last tokens, which come alone and in a chunk."""
    model, T = make_model(kind, dtype=dtype), 2000
    layer, position = model.model.layers[0].context, model.model.position
    x, (q, k) = torch.randn(1, T, 32).to(dtype), torch.randn(2, 1, 4, T, 8).to(dtype)

    def scores(parts):
        keys, past = torch.empty(1, 4, 0, 8, dtype=dtype), None
        for begin, end in parts:
            index = torch.arange(begin, end)
            where = Positions(index[None], torch.arange(end)[None])
            bias = position.biases(where, 1)[0]
            tokens, part = Tokens(where, bias, None, index), slice(begin, end)
            queries, new, extras = layer.prepare(
                x[:, part], q[:, :, part], k[:, :, part], None, tokens, past
            )
            keys = torch.cat((keys, new), 2)
            past = extras if past is None else torch.cat((past, extras), 2)
        found = layer.bias(x[:, part], queries, keys, past, tokens)
        wide = queries.float() @ keys.float().mT
        return wide if found is None else found.dense(torch.float32)

    whole = scores([(0, T)])[:, :, -40:]
    for parts in ([(0, T - 40), (T - 40, T)], [(0, 900), (900, T - 1), (T - 1, T)]):
        found = scores(parts)
        expected = whole[:, :, -found.shape[2] :]
        tail = torch.ones(found.shape[-2:]).tril(T - found.shape[2]).bool()
        assert found.isfinite().all()
        limit = 1e-5
        if kind == "grape_m_contextual":  # keys are rotated, and rounded then
            limit = 1e-4 if dtype == torch.float32 else 3e-3
        error = ((found - expected) * tail).norm() / (expected * tail).norm()
        assert error < limit, error


@torch.no_grad()
@pytest.mark.parametrize("position", ["wall", "path_gate", "extended"])
def test_scores_of_later_tokens_are_refused(position):
    model, tokens = make_model(position), random_tokens(2, 9)
    prefix = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    prefix[..., :4] = True
    with pytest.raises(ValueError, match=r"position (wall|path|extended) .* later tokens"):
        model(tokens, attention_mask=prefix)


WRONG = {
    "grape_m: start=0": {"name": "grape_m", "start": 0},
    "grape_m: theta=-1": {"name": "grape_m", "theta": -1},
    "grape_ap: width=3 must be even": {"name": "grape_ap", "width": 3},
    "repo: start=3 must be the number of a layer, 0 to 2": {"name": "repo", "start": 3},
    "repo: width=0": {"name": "repo", "width": 0},
    "repo: theta='x'": {"name": "repo", "theta": "x"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments_are_refused(message):
    with pytest.raises(ValueError, match=f"position {message}"):
        make_model(WRONG[message])


def test_frequencies_with_a_schedule_are_refused_without_theta():
    scaling = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    for name in ("grape_m", "repo"):
        with pytest.raises(ValueError, match=f"position {name} on frequencies with rope_type='lin"):
            make_model({"name": name}, rope_parameters=scaling)
        model = make_model({"name": name, "theta": 70.0}, rope_parameters=scaling)
        assert model.config.position["theta"] == 70.0
