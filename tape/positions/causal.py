"""Encodings whose scores are defined for earlier tokens only."""

from __future__ import annotations

import torch

from tape.positions.base import Tokens
from tape.tensor_validation import refuse_unless


def refuse_later_tokens(name: str, tokens: Tokens, training: bool) -> None:
    """Raises a ValueError for a 4-D mask in which a query sees a later token."""
    if tokens.seen is None:
        return
    places = torch.arange(tokens.seen.shape[-1], device=tokens.slots.device)
    refuse_unless(
        ~tokens.seen | (places <= tokens.slots[:, None]),
        f"position {name} with a 4-D attention_mask in which a query sees later tokens: its "
        "scores are defined for earlier tokens only; give a causal mask",
        now=len(tokens.slots) > 1 and not training,
    )
