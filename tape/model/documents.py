"""Documents packed one after the other in a row."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache


def check_documents(
    document_ids: Tensor,
    x_BTC: Tensor,
    position_ids: Tensor | None,
    cache: Cache | None,
    use_cache: bool | None,
) -> None:
    """Raises a ValueError for what cannot be combined with documents."""
    if cache is not None or use_cache:
        raise ValueError(
            "document_ids with a cache, which does not keep the documents of its tokens: call the "
            "model with use_cache=False, or give one document per row"
        )
    if position_ids is not None:
        raise ValueError(
            "document_ids with position_ids: token indices restart in every document; give one of "
            "the two"
        )
    if document_ids.shape != x_BTC.shape[:2] or document_ids.is_floating_point():
        raise ValueError(
            f"document_ids of shape {tuple(document_ids.shape)} and {document_ids.dtype}: allowed: "
            f"integers of shape {tuple(x_BTC.shape[:2])}, one per token"
        )


def number_documents(document_ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the number of each token's document, and its index in it: the count of real tokens
    before it. A document is a run of tokens with equal ids; padding, of any id, belongs to the
    token before it. All (B, T); `real` is (B|1, T), False at padding, or None.
    """
    steps = torch.ones_like(document_ids, dtype=torch.long)
    if real is not None:
        steps = real.expand_as(document_ids).long()
        places = torch.arange(steps.shape[1], device=steps.device)
        latest = torch.where(steps > 0, places, 0).cummax(-1).values
        document_ids = document_ids.gather(1, latest)
    begins = F.pad(document_ids.diff(dim=-1) != 0, (1, 0))
    count = steps.cumsum(-1)
    before = (count - steps).where(begins, 0).cummax(-1).values  # real tokens of other documents
    return begins.cumsum(-1), (count - before - 1).clamp(min=0)
