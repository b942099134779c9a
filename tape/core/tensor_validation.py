"""Refuses inputs by the values of tensors."""

from collections.abc import Callable

import torch
from torch import Tensor


def refuse_unless(holds: Tensor, message: str | Callable[[], str], now: bool) -> None:
    """Raises a ValueError unless all of `holds`; not checked in compiled graphs. Reading `holds` on
    a GPU synchronises: unless `now`, the device asserts it asynchronously.

    Args:
        message: made only if refused, if it is a function.
    """
    if torch.compiler.is_compiling():
        return
    if holds.is_cuda and not now:
        reason = message if isinstance(message, str) else "positions out of range"
        torch._assert_async(holds.all(), reason)
    elif not holds.all():
        raise ValueError(message if isinstance(message, str) else message())
