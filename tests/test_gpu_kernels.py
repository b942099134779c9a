"""What fused kernels of a GPU are given: torch's, whose calls run on a CPU too, and block sizes of
FlexAttention."""

from unittest import mock

import pytest
import torch
from conftest import FLEX, make_config, make_model
from torch.nn.attention import SDPBackend

from tape.attention import backends as attention
from tape.attention import flex, gpu
from tape.attention.payload import Request, Values
from tape.encodings import ENCODINGS
from tape.encodings.bias import SlopeBias
from tape.positions.base import Positions

EXACT = {"atol": 1e-10, "rtol": 1e-10}
H, T, D = 4, 9, 16


def tensors(K, P=D, heads=None, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = (2, H, T, D), (2, K, T, D), (2, K, T, D), (1, heads or K, T, P)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def masks():
    causal = torch.ones(T, T, dtype=torch.bool).tril().expand(2, 1, T, T).clone()
    causal[1, :, :, 0] = False
    causal[1, :, 0, 0] = True
    return {"causal": None, "boolean": causal, "additive": torch.randn(2, H, T, T).double()}


@pytest.mark.parametrize("kind", ["causal", "boolean", "additive"])
@pytest.mark.parametrize(("K", "P"), [(4, None), (2, None), (1, 8), (2, 8), (2, 16), (4, 120)])
def test_equals_eager(kind, K, P):
    """Averages and gradients, in one call and (120 channels) in two."""
    q, k, v, payload = tensors(K, P or 1, heads=1 if P == 8 else None)
    payload = None if P is None else payload
    mask = masks()[kind]
    request = Request(q, k, Values(v, payload), mask, None, 0.3, 0.0)
    found = gpu.attend(request, is_causal=mask is None)
    shown = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask
    expected = attention.eager(request._replace(mask=shown))[:2]
    inputs = [x for x in (q, k, v, payload) if x is not None]
    gradients = []
    for averages in (found, expected):
        total = sum(x.sin().sum() for x in averages if x is not None)
        gradients.append(torch.autograd.grad(total, inputs))
    torch.testing.assert_close(found[0], expected[0], **EXACT)
    torch.testing.assert_close(found[1], expected[1], **EXACT)
    torch.testing.assert_close(*gradients, **EXACT)


@pytest.mark.parametrize("kind", ["causal", "boolean"])
def test_long_inputs_with_biases_go_by_blocks(kind, monkeypatch):
    q, k, v, _ = tensors(K=2)
    mask, slots = masks()[kind], torch.arange(T)[None]
    bias = SlopeBias(torch.tensor([-1.0, -2.0, -3.0, -4.0]), Positions(slots, slots), True)
    request = Request(q, k, Values(v), mask, bias, 0.3, 0.0)
    assert gpu.attend_by_blocks(request) is None  # all pairs of few tokens
    monkeypatch.setattr(gpu, "LONG", T - 1)
    for other in ({"bias": None}, {"dropout": 0.1}, {"mask": masks()["additive"]}):
        assert gpu.attend_by_blocks(request._replace(**other)) is None
    found = gpu.attend_by_blocks(request)
    shown = torch.ones(T, T, dtype=torch.bool).tril() if mask is None else mask
    expected = attention.eager(request._replace(mask=shown))
    torch.testing.assert_close(found.values, expected.values, **EXACT)
    gradients = (torch.autograd.grad(x.values.sin().sum(), [q, k, v]) for x in (found, expected))
    torch.testing.assert_close(*gradients, **EXACT)


def test_the_backend_of_a_run_that_names_none():
    """FlexAttention for long inputs with biases that it computes pair by pair, on a GPU."""
    cuda, cpu, long = torch.device("cuda"), torch.device("cpu"), gpu.LONG + 1

    def chosen(name, device=cuda, length=long, **changes):
        config = make_config(name, **{"hidden_size": 64, "num_attention_heads": 4} | changes)
        return attention.preferred(config, device, length)

    flexed = {name for name in ENCODINGS if chosen(name) == "flex_attention"}
    assert flexed == {"alibi", "t5", "kerple", "bam", "fox"} and flexed <= set(FLEX)
    assert {chosen(name) for name in ENCODINGS} == {"flex_attention", "sdpa"}
    assert chosen("fox", cpu) == chosen("fox", length=gpu.LONG) == "sdpa"
    assert chosen("fox", attention_dropout=0.1) == chosen("fox", hidden_size=32) == "sdpa"


@pytest.mark.parametrize("name", ["t5", "kerple", "bam"])
def test_flex_reads_biases_of_the_distance_from_a_table(name):
    """Also where positions have gaps."""
    layer = make_model(name).model.position.layers[0]
    for key in (torch.arange(T)[None], torch.tensor([[0, 1, 5, 6, 30, 31, 32, 40, 200]])):
        bias = make_model(name).model.position.bias(layer, Positions(key, key))
        mod, zero = bias.score_mod(torch.float32), torch.tensor(0.0)
        index = torch.arange(T)
        found = [[[mod(zero, 0, h, i, j) for j in index[: i + 1]] for i in index] for h in range(4)]
        dense = bias.dense(torch.float32)[0]
        for h in range(4):
            for i in range(T):
                torch.testing.assert_close(torch.stack(found[h][i]), dense[h, i, : i + 1])


def calls(q, k, v, payload, mask, dropout=0.0):
    """What each call of torch's function gets: allowed kernels, widths of the values, heads."""

    def attend(q, k, values, *given, **named):
        assert 0 not in values.stride()[:2] or values.shape[1] == 1
        assert k.stride(-2) % 8 == values.stride(-2) % 8 == 0  # or no kernel takes them
        return q.new_zeros(*q.shape[:3], values.shape[-1])

    fused = mock.patch.object(gpu.F, "scaled_dot_product_attention", side_effect=attend)
    with mock.patch.object(gpu, "sdpa_kernel") as allowed, fused as attends:
        request = Request(q, k, Values(v, payload), mask, None, 1.0, dropout)
        gpu.attend(request, is_causal=mask is None)
    found = []
    for names, given in zip(allowed.call_args_list, attends.call_args_list, strict=True):
        (_, k, values, *_), grouped = given.args, given.kwargs["enable_gqa"]
        found.append([{*names.args[0]}, values.shape[-1], k.shape[1], grouped])
    return found


def test_what_each_call_of_a_fused_kernel_is_given():
    """cuDNN gets no mask and flash no unequal widths. Wide payloads have a call of their own, but
    with dropout. Grouped queries go where they are supported."""
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    rest = {SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}
    q, k, v, payload = tensors(H)
    mask = masks()["boolean"]
    assert calls(q, k, v, None, None) == [[{cudnn, flash} | rest, D, H, False]]
    assert calls(q, k, v, payload, None) == [[{cudnn} | rest, 2 * D, H, False]]
    assert calls(q, k, v, payload, mask) == [[rest, 2 * D, H, False]]
    joined = torch.cat((k, k[..., :3]), dim=-1).split((D, 3), dim=-1)[0]  # as a cache holds them
    assert calls(q, joined, joined, None, None) == [[{cudnn, flash} | rest, D, H, False]]
    wide = tensors(H, P=120, heads=1)
    assert [call[1] for call in calls(*wide, None)] == [D, 120]
    assert [call[1] for call in calls(*wide, None, dropout=0.1)] == [136]
    for dtype, given, expected in (
        (torch.bfloat16, None, [2, True]),
        (torch.float32, None, [4, False]),
        (torch.bfloat16, mask, [4, False]),
    ):
        q, k, v, payload = tensors(2, dtype=dtype)
        ((*_, heads, grouped),) = calls(q, k, v, None, given)
        assert [heads, grouped] == expected
        ((*_, heads, grouped),) = calls(q, k, v, payload, given)
        assert [heads, grouped] == [4, False]


H100, A100, RTX = 232_448, 166_912, 101_376  # bytes of shared memory of a block


@pytest.mark.parametrize(("queries", "values"), [(32, 64), (64, 128), (128, 128), (128, 256)])
def test_block_sizes_fit_the_device(queries, values):
    for limit in (H100, A100, RTX):
        options = flex.kernel_options(queries, values, limit)
        for kernel, rows, first in (("fwd", flex.FORWARD, "M"), ("bwd", flex.BACKWARD, "M1")):
            names = (f"BLOCK_{first}", "num_stages", "num_warps")
            chosen = [options[f"{kernel}_{name}"] for name in names]
            shared = [row.shared for row in rows if [row.M, row.stages, row.warps] == chosen]
            assert min(shared) <= limit
        # A block of the mask is a whole number of blocks.
        assert all(128 % size == 0 for name, size in options.items() if "BLOCK" in name)
    assert flex.kernel_options(queries, values, 50_000) == {}
    if queries == 64:  # 163,840 bytes and those of the bias do not fit
        assert flex.kernel_options(64, 64, H100, bias=True)["fwd_BLOCK_N"] == 64
    assert flex.kernel_options(queries, 320, H100) == flex.kernel_options(32, 32, H100) == {}
