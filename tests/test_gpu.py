"""Kernels as a GPU runs them, in bfloat16, against eager attention in float64 on the same weights.

The measure is the norm of the error over that of the reference, of the logits or of one
parameter's gradient; bfloat16 carries 8 bits, and eager attention in it is the yardstick."""

import pytest
import torch
from conftest import FLASH, FLEX, in_pieces, make_model, random_tokens
from every_encoding import POSITIONS
from transformers import StaticCache
from transformers.utils import is_flash_attn_2_available

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LENGTH = 150  # no multiple of a kernel's block of 128
SHAPE = {"hidden_size": 128, "num_key_value_heads": 4, "max_position_embeddings": LENGTH}
PEAKED = ("selective", "grape_m_contextual")  # in bfloat16, eager attention is off by its size
OF_NARROW_HEADS = "rope_longrope"  # has factors for a width of 8


@pytest.fixture(autouse=True)
def _graphs_of_one_test():
    """A process may compile flex_attention a limited number of times."""
    yield
    torch.compiler.reset()


needs_flash = pytest.mark.skipif(
    not is_flash_attn_2_available(), reason="the flash-attn package is missing"
)
every_kernel = pytest.mark.parametrize(
    ("kernel", "position"),
    [("sdpa", name) for name in POSITIONS if name != OF_NARROW_HEADS]
    + [("flex_attention", name) for name in FLEX if name != OF_NARROW_HEADS]
    + [pytest.param("flash_attention_2", name, marks=needs_flash) for name in FLASH],
)


def padded():
    tokens, mask = random_tokens(2, LENGTH).cuda(), torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :37] = 0
    return tokens, mask.cuda()


def make_gpu_model(position, kernel, dtype, **changes):
    """With attention less peaked than that of the tiny models, which would amplify rounding."""
    model = make_model(position, kernel="eager", **(SHAPE | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".context." not in name and ".position." not in name and "norm" not in name:
                parameter *= 0.5
            elif position in PEAKED and ".context." in name:
                parameter *= 0.25
    model = model.to(dtype).cuda()
    model.set_attn_implementation(kernel)
    return model


def results(position, kernel, dtype, padding=True, **changes):
    """Logits at real tokens and all gradients, in float64."""
    model = make_gpu_model(position, kernel, dtype, **changes)
    tokens, mask = padded()
    mask = mask if padding else torch.ones_like(mask)
    seen = mask.roll(1, 1).bool() & mask.bool()  # not the first: padding would predict it
    given = {"attention_mask": mask} if padding else {}
    output = model(tokens, labels=tokens.where(seen, -100), **given)
    output.loss.backward()
    found = {name: p.grad.double() for name, p in model.named_parameters()}
    return found | {"logits": output.logits.detach()[mask.bool()].double()}


def errors(found, exact):
    """Relative to a hundredth of the largest gradient where there is next to none: a constant on
    all scores, FIRE's last one, changes nothing."""
    least = max(x.norm() for name, x in exact.items() if name != "logits" or len(exact) == 1) / 100
    return {
        name: ((found[name] - x).norm() / x.norm().clamp(min=least)).item()
        for name, x in exact.items()
    }


@every_kernel
@pytest.mark.parametrize("padding", [True, False])  # causal kernels need no mask without it
@pytest.mark.parametrize("heads", [4, 2])
def test_bfloat16_is_as_close_as_eager_is(kernel, position, padding, heads):
    """Logits and every gradient: at most three times the largest error of eager in bfloat16. A
    wrong gradient is off by its size."""
    if heads == 2 and not POSITIONS[position].get("tensorial", True):
        pytest.skip("needs a key/value head per query head")
    assert_as_close_as_eager(kernel, position, num_key_value_heads=heads, padding=padding)


def assert_as_close_as_eager(kernel, position, **changes):
    exact = results(position, "eager", torch.float64, **changes)
    yardstick = max(errors(results(position, "eager", torch.bfloat16, **changes), exact).values())
    for name, error in errors(results(position, kernel, torch.bfloat16, **changes), exact).items():
        assert error <= 3 * yardstick < 1, name


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("kernel", "position"),
    [("sdpa", name) for name in ("rope", "tape", "alibi", "fire", "t5", "fox")]
    + [("flex_attention", name) for name in ("tape", "alibi", "fire", "fox")],
)
def test_wider_heads(kernel, position, padding, width):
    """Block sizes and kernels depend on their width, and on that of values and state."""
    assert_as_close_as_eager(kernel, position, hidden_size=4 * width, padding=padding)


@torch.no_grad()
@every_kernel
def test_decodes_with_a_cache(kernel, position):
    """Tokens one by one behind a prompt, left-padded: 0.05 relative to the same kernel at once."""
    model = make_gpu_model(position, kernel, torch.bfloat16)
    tokens, mask = padded()
    full = model(tokens, attention_mask=mask).logits
    static = StaticCache(config=model.config, max_cache_len=LENGTH + 9)
    for cache in (None, static) if kernel != "flash_attention_2" else (None,):
        pieces = in_pieces(model, tokens, [140] + [1] * (LENGTH - 140), cache, mask)
        found = {"logits": pieces[mask.bool()].double()}
        assert errors(found, {"logits": full[mask.bool()].double()})["logits"] < 0.05
