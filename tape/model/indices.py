"""Token indices from attention masks, position_ids, documents and caches.

slot         place in the mask and the cache, padding included
index        number of real tokens before a token: padding on either side changes nothing
position_ids indices that the caller gives; they may have gaps
count        index + 1, so that 0 means none: what is kept in a cache
coordinate   what the sampler makes of an index, and an encoding reads

From the first call with position_ids on, a cache keeps the counts of its tokens in an extra layer
after those of the decoder, where they follow every operation on the cache.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, StaticLayer

from tape.attention.masks import Batch
from tape.core.tensor_validation import refuse_unless
from tape.model.cache import cached_keys

HIDDEN = -1000  # added to a score, this or less leaves no weight in any dtype


def token_indices(
    batch: Batch, position_ids: Tensor | None, cache_layer_idx: int, ordered: bool, training: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns indices of the new tokens (B|1, T), indices of the keys in all slots (B|1, S), and
    the counts for the cache to keep (`keep_indices`), or None.

    `position_ids` are indices of the new tokens and override the count. A 4-D mask does not
    determine indices: without `position_ids` they are cache slots then.

    Raises:
        ValueError: for `ordered` position_ids that do not increase from one real token to the next,
            unless a 4-D mask says which tokens see each other.
    """
    (B, T), device = batch.x_BTC.shape[:2], batch.x_BTC.device
    attention_mask, cache = batch.mask, batch.cache
    past, kept_length, S = 0, 0, T
    if cache is not None:
        past, kept_length = cache.get_seq_length(), cache.get_seq_length(cache_layer_idx)
        S, _ = cache.get_mask_sizes(T, 0)
    padded = attention_mask is not None and attention_mask.ndim == 2
    static = isinstance(past, Tensor)
    new = torch.arange(T, device=device) + past if static else slice(past, past + T)
    counted = isinstance(kept_length, int) and kept_length == 0
    if counted and position_ids is None and not padded:
        return batch.slots[None], torch.arange(S, device=device)[None], None
    # A count is an index plus one; padding has the count of the token before it.
    if counted:
        counts = torch.arange(1, S + 1, device=device)[None]
        if padded:
            counts = F.pad(attention_mask, (0, S - attention_mask.shape[1])).cumsum(-1)
        if position_ids is None:
            key = (counts - 1).clamp(min=0)
            return key[:, new], key, None
    else:
        counts = cached_keys(cache, cache_layer_idx)[:, 0, :, 0]
    if static:
        last_count = counts[:, new[:1] - 1] * (past > 0)
    else:
        last_count = counts[:, :past][:, -1:].sum(-1, keepdim=True)  # 0 if there is none
    real = attention_mask[:, new] if padded else None
    if position_ids is None:
        steps = torch.arange(1, T + 1, device=device)[None] if real is None else real.cumsum(-1)
        found = last_count + steps
        query = (found - 1).clamp(min=0)
    else:
        query, found = position_ids, given_counts(position_ids, last_count, real, ordered)
        if ordered and (padded or attention_mask is None):
            refuse_unordered(found, last_count, real, now=T > 1 and not training)
    if cache is None:
        return query, (found - 1).clamp(min=0), None
    found = found.expand(B, T)
    if static or counted:  # one column per slot
        counts = counts.expand(B, S).clone()
        counts[:, new] = found
    else:
        counts = torch.cat((counts, found), dim=-1)
    return query, (counts - 1).clamp(min=0), counts if counted else found


def given_counts(ids: Tensor, last_count: Tensor, real: Tensor | None, ordered: bool) -> Tensor:
    """Returns the counts of new tokens with these indices, (B|1, T); padding has that of the real
    token before it, which has `last_count`, (B|1, 1), before the first."""
    found = ids.long() + 1
    if real is None:
        return found
    if ordered:
        return torch.maximum(found.where(real, 0), last_count).cummax(-1).values
    places = torch.arange(real.shape[1], device=real.device)
    before = torch.where(real, places, -1).cummax(-1).values
    filled = found.expand_as(before).gather(1, before.clamp(min=0))
    return torch.where(before < 0, last_count, filled)


def refuse_unordered(counts: Tensor, last_count: Tensor, real: Tensor | None, now: bool) -> None:
    """Raises a ValueError for counts that do not increase from one real token to the next."""
    first, _ = torch.broadcast_tensors(last_count, counts[:, :1])
    rises = counts.expand(len(first), -1).diff(dim=-1, prepend=first) > 0
    refuse_unless(
        rises if real is None else rises >= real,
        "position_ids must increase from token to token, also after cached tokens, or tokens see "
        "other documents; give one document per row, or an attention_mask of (B, 1, T, S) that "
        "separates documents; pad prompts of generate() on the left",
        now=now,
    )


def refuse_restarts(position_ids: Tensor) -> None:
    """Raises a ValueError for indices of an encoding that may repeat them, if they begin again with
    0 in a row without a mask: these are packed documents, as from DataCollatorWithFlattening."""
    begins = (position_ids == 0).cumsum(-1)
    refuse_unless(
        (begins < 2) | (position_ids[:, :1] != 0),
        "position_ids begin again with 0: packed documents would see each other; give document_ids",
        now=True,
    )


def last_index(cache: Cache | None, cache_layer_idx: int, slots: Tensor) -> Tensor:
    """Returns the kept index of the token before these slots, (B|1, 1); 0 without one."""
    kept_length = 0 if cache is None else cache.get_seq_length(cache_layer_idx)
    if isinstance(kept_length, int) and kept_length == 0:
        return slots.new_zeros(1, 1)
    counts = cached_keys(cache, cache_layer_idx)[:, 0, :, 0]
    last = counts.index_select(1, (slots[:1] - 1).clamp(min=0)) - 1
    return last.clamp(min=0) * (slots[0] > 0)


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


def keep_indices(cache: Cache, cache_layer_idx: int, counts: Tensor, T: int) -> None:
    """Writes counts, of the T new tokens or of all slots if the layer is new, to a cache layer."""
    # What is_exporting() returns; torch.compile before torch 2.13 takes that for True.
    if torch.compiler._is_exporting_flag:  # the graph would freeze those of its example
        raise ValueError("token indices that a cache keeps cannot be exported; give no cache")
    if cache.layer_class_to_replicate is None and cache_layer_idx == len(cache.layers):
        size = cache.get_max_length()
        cache.layers.append(StaticLayer(size) if cache.is_compileable else DynamicLayer())
    length = cache.get_seq_length()
    states = counts[:, None, :, None]
    cache.update(states, states[..., :0], cache_layer_idx)
    if cache.is_compileable and counts.shape[1] > T:
        cache.layers[cache_layer_idx].cumulative_length.fill_(length + T)


def real_tokens(mask: Tensor, slots: Tensor) -> Tensor:
    """Returns (B|1, S), False at padding. By a 4-D mask a new token (in `slots`) is real if it sees
    itself, and a cached one if a new token sees it."""
    if mask.ndim == 2:
        return mask
    seen = mask[:, 0]  # (B, T, S)
    itself = seen.gather(2, slots[None, :, None].expand(len(seen), -1, -1))[..., 0]
    return seen.any(1).index_copy(1, slots, itself)


def read_mask(
    mask: Tensor | None, x_BTC: Tensor, cache: Cache | None, training: bool = False
) -> Tensor | None:
    """Returns a mask as booleans: True at the real tokens of (B, S), and where a query sees a key
    in (B|1, 1, T, S). This decides for all encodings and backends what is hidden.

    Raises:
        ValueError: for masks that backends would misread, or that do not cover all tokens.
    """
    if mask is None:
        return None
    (B, T), now = x_BTC.shape[:2], x_BTC.shape[1] > 1 and not training
    S = T if cache is None else sum(cache.get_mask_sizes(T, 0))  # all of a static cache
    of_pairs = mask.ndim == 4 and mask.shape[1:] == (1, T, S)
    if mask.shape[0] not in (1, B) or not (mask.ndim == 2 or of_pairs):
        raise ValueError(
            f"attention_mask of shape {tuple(mask.shape)}: allowed: ({B}, {S}), 0 at padding, "
            f"or ({B}, 1, {T}, {S})"
        )
    if of_pairs:
        if mask.is_floating_point():
            refuse_unless(
                (mask == 0) | (mask <= HIDDEN),
                "a 4-D attention_mask of other numbers: allowed: 0 where a query sees a key and "
                f"{HIDDEN} or less where it does not; give these, or a boolean one",
                now=now,
            )
            mask = mask > HIDDEN
        if mask.dtype != torch.bool:
            raise ValueError(
                f"a 4-D attention_mask must be boolean (True attends) or additive, not {mask.dtype}"
            )
        return mask.to(x_BTC.device)
    past, width = 0 if cache is None else cache.get_seq_length(), mask.shape[1]

    def uncovered() -> str:
        return (
            f"attention_mask covers {width} tokens, but there are {int(past)} cached and {T} new "
            "ones; cover all"
        )

    static = isinstance(past, Tensor)
    if width > S or (not static and past + T > width):
        raise ValueError(uncovered())
    if static:
        refuse_unless(past + T <= width, uncovered, now)
    if mask.dtype != torch.bool:
        refuse_unless(
            mask == mask.bool(),
            "attention_mask of (B, S) must be 0 at padding and 1 at tokens; for anything else, "
            "such as several documents per row, give one of (B, 1, T, S)",
            now=now,
        )
    return mask.to(x_BTC.device, torch.bool).expand(B, -1)


def check_draw(draw: tuple[int, ...], cache: Cache) -> None:
    """Refuses cached keys rotated with another draw of positions than the current one."""
    if not torch.compiler.is_compiling() and int(cache.get_seq_length()) == 0:
        cache.tape_draw = draw
    if getattr(cache, "tape_draw", draw) != draw:
        raise ValueError(
            f"the cached tokens have positions drawn for eval_length={cache.tape_draw[1]}, the new "
            f"ones for {draw[1]}; wrap their calls in one `with model.evaluation_length(n):`"
        )
