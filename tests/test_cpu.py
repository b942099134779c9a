"""Kernels with gradients of their own, against plain operations in float64."""

import pytest
import torch
from torch.autograd import gradcheck

from tape.attention.cpu import BLOCK, attend
from tape.attention.payload import Values
from tape.positions.rotary import apply_rotary


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def plain_attention(q, k, values, scaling):
    scores = scaling * q @ k.mT
    after = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(after, -torch.inf).softmax(-1) @ values


@pytest.mark.parametrize("length", [2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 37])
@pytest.mark.parametrize(("width", "constant"), [(8, False), (48, True)])
def test_blocks_of_queries_equal_attention_at_once(length, width, constant):
    q, k, v = (random(2, 3, length, width, seed=n) for n in range(3))
    payload = random(2, 3, length, 6, seed=3).detach().requires_grad_(not constant)
    # As the decoder has them: heads next to tokens in memory.
    v = v.transpose(1, 2).contiguous().transpose(1, 2)
    inputs = [x for x in (q, k, v, payload) if x.requires_grad]
    found = torch.cat(attend(q, k, Values(v, payload), None, 0.3), dim=-1)
    expected = plain_attention(q, k, torch.cat((v, payload), dim=-1), 0.3)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    weights = random(*found.shape, seed=4).detach()
    both = [torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected)]
    torch.testing.assert_close(*both, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("state", [(1, 1, 5, 2, 3), (2, 1, 5, 2, 3), (2, 4, 5, 2, 3)])
@pytest.mark.parametrize("learned", [True, False])
def test_turning_has_the_gradients_of_its_formula(state, learned):
    x, e = random(2, 4, 5, 6), random(*state, seed=1).detach().requires_grad_(learned)
    as_complex = torch.complex(*x.chunk(2, -1)) * torch.complex(*e.unbind(-2))
    expected = torch.cat((as_complex.real, as_complex.imag), dim=-1)
    torch.testing.assert_close(apply_rotary(x, e), expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(
        apply_rotary(x.detach(), e.detach()), expected.detach(), atol=1e-14, rtol=0
    )
    assert gradcheck(apply_rotary, (x, e))
