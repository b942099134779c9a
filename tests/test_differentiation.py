"""Second derivatives: hand-written gradients have gradients."""

import pytest
import torch
from conftest import make_model, random_tokens

STEP = 1e-6


@pytest.mark.parametrize("skip_logits", [False, True])
@pytest.mark.parametrize("position", ["rope", "tape", "selective", "xpos", "fox", "mixed_tape"])
def test_a_hessian_vector_product_is_the_difference_of_gradients(position, skip_logits):
    kernel = "sdpa" if position == "fox" else "eager"  # torch's fused kernels refuse
    model, tokens = make_model(position, kernel=kernel, dtype=torch.float64), random_tokens(2, 12)
    check(model, lambda: model(tokens, labels=tokens, skip_logits=skip_logits).loss)


def test_blocks_of_a_cpu_have_second_derivatives():
    """TAPE's layers but the last have a payload; the last one's kernel is torch's own."""
    model = make_model("tape", kernel="sdpa", dtype=torch.float64)
    x, layer = torch.randn(2, 70, 32, dtype=torch.float64), []
    hook = model.model.layers[0].register_forward_hook(lambda _, inputs, out: layer.append(out))
    model.train()

    def loss():
        layer.clear()
        model(inputs_embeds=x)
        return sum(part.square().sum() for part in layer[0])

    check(model.model.layers[0].self_attn.q_proj, loss)
    hook.remove()


def check(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    along = [torch.randn_like(p) for p in parameters]

    def gradient(**given):
        return torch.autograd.grad(loss(), parameters, allow_unused=True, **given)

    def moved(step):
        with torch.no_grad():
            for p, v in zip(parameters, along, strict=True):
                p += step * v
        return gradient()

    slope = sum((g * v).sum() for g, v in zip(gradient(create_graph=True), along, strict=True))
    found = torch.autograd.grad(slope, parameters)
    above, below = moved(STEP), moved(-2 * STEP)
    expected = [(a - b) / (2 * STEP) for a, b in zip(above, below, strict=True)]
    found, expected = (torch.cat([x.flatten() for x in xs]) for xs in (found, expected))
    assert (found - expected).norm() < 1e-6 * expected.norm()
