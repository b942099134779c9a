"""Gradients of hand-written functions, with a graph of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def differentiable_gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], grads: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of a function by autograd, None for inputs that need none.

    A backward pass calls it while gradients are enabled, which they are if its result will be
    differentiated (`create_graph`), as for Hessian-vector products: the faster code of that pass
    has no graph, and `torch.autograd.grad` would drop its terms without a word.
    """
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(function(*inputs), wanted, grads, create_graph=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)
