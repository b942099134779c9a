"""What the layers of one forward pass share, prepared before the first of them: kernels and masks
by window, token indices and documents, coordinates, and the cache.

The layers themselves (`tape.model.layer`) know none of it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache, DynamicCache, PreTrainedModel

from tape.attention import backends
from tape.attention.masks import Batch, visible_keys
from tape.core.tensor_validation import refuse_unless
from tape.model import indices
from tape.model.cache import GrowingCache, check_kind
from tape.positions.base import Positions, Tokens

# Arguments in which transformers' collators tell packed documents.
PACKED = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}


class Call(NamedTuple):
    """The arguments of a forward pass (`TapeModel.forward`)."""

    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    attention_mask: Tensor | None
    position_ids: Tensor | None
    past_key_values: Cache | None
    use_cache: bool | None
    output_attentions: bool | None = None
    document_ids: Tensor | None = None
    predicted_positions: Tensor | None = None
    packed: Mapping[str, Any] | None = None


class LayerInputs(NamedTuple):
    """What one layer gets besides X and E."""

    tokens: Tokens
    kernel: backends.Kernel
    mask: Tensor | BlockMask | None  # of the backend
    cache_layer_idx: int  # each recurrence has layers of its own in a cache
    final: bool  # no layer follows: there is no payload, and E is not updated
    visible: Tensor | None  # (B|1, T) keys that each query sees; only with scalable_softmax
    rows: Tensor | None  # (N,) the tokens, numbered in (B, T), that need the MLP; None: all


class Inputs(NamedTuple):
    """What all layers of a forward pass need, in the order in which they are applied."""

    x_BTC: Tensor  # embeddings, with absolute encodings added
    states: list[Tensor | None]  # E of layer 0: one, or one for each encoding of a mixture
    layers: list[LayerInputs]
    cache: Cache | None


def layer_inputs(model: PreTrainedModel, call: Call) -> Inputs:
    """Prepares a forward pass: embeds its tokens and finds what all layers need; refuses arguments
    that contradict each other, or that the backend or the encoding does not support."""
    position, config, steps = model.position, model.config, model.indices_layer
    windows = [layer.context.window for layer in model.layers]
    numbers, count = [layer.number for layer in model.layers], config.num_hidden_layers
    if numbers != [*range(count)] or count * config.num_recurrences != steps:
        raise ValueError(
            f"layers {str(numbers)[1:-1]}, with config.num_hidden_layers={count}, of a model made "
            f"for {steps}, recurrences included: layers cannot be added, removed or "
            "reordered (also not by peft's layer_replication); make a new model"
        )
    if call.packed:
        call = _with_documents(call, model.training)
    batch, index = _batch(model, call)
    if model.s2_group_size is not None and model.training and batch.cache is None:
        kernels = {None: backends.shifted(config, model.s2_group_size, batch)}
    else:
        kernels = {window: backends.kernel_and_mask(config, window, batch) for window in {*windows}}
    visible: dict[int | None, Tensor | None] = dict.fromkeys(windows)
    if config.scalable_softmax:
        visible = {w: visible_keys(w or config.sliding_window, batch, index) for w in visible}
    positions, cached_indices = _coordinates(model, batch, call, index)
    x_BTC, states, biases = position(batch.x_BTC, positions)
    if config._attn_implementation == "flash_attention_2":
        bias = next((bias for bias in biases if bias is not None), None)
        backends.check_flash(batch, call.position_ids, positions.key, bias)
    if cached_indices is not None:  # after all checks
        indices.keep_indices(batch.cache, model.indices_layer, cached_indices, x_BTC.shape[1])
    seen = batch.mask[:, 0] if batch.mask is not None and batch.mask.ndim == 4 else None
    layers, (rows, last_rows) = [], _needed(call, batch)
    for idx in range(steps):
        window, bias = windows[idx % count], biases[idx % count]
        tokens = Tokens(positions, bias, batch.real, batch.slots, batch.documents, seen)
        final = idx == steps - 1
        needed = last_rows if final else rows
        found = LayerInputs(tokens, *kernels[window], idx, final, visible[window], needed)
        layers.append(found)
    return Inputs(x_BTC, states, layers, batch.cache)


def _with_documents(call: Call, training: bool) -> Call:
    """Returns a call with document_ids in place of what transformers' collators give."""
    if unknown := sorted(call.packed.keys() - PACKED):
        raise TypeError(f"forward() got an unexpected keyword argument {unknown[0]!r}")
    ids, bounds = call.packed.get("seq_idx"), call.packed.get("cu_seq_lens_q")
    if bounds is not None:
        given = call.inputs_embeds if call.input_ids is None else call.input_ids
        slots = torch.arange(given.shape[:2].numel(), device=given.device)
        ids = torch.searchsorted(bounds.to(slots), slots, right=True).view(given.shape[:2])
    if ids is None:
        return call
    if call.document_ids is not None:
        raise ValueError("document_ids with cu_seq_lens_q or seq_idx: give one of them")
    if call.position_ids is not None:
        refuse_unless(
            call.position_ids == indices.number_documents(ids, None)[1],
            "position_ids with cu_seq_lens_q or seq_idx: allowed: a count from 0 in each document; "
            "give these, or none",
            now=not training,
        )
    return call._replace(position_ids=None, document_ids=ids)


def _batch(model: PreTrainedModel, call: Call) -> tuple[Batch, Tensor | None]:
    """Returns the tokens of a call, and their indices if it has documents."""
    if (call.input_ids is None) == (call.inputs_embeds is None):
        raise ValueError("give exactly one of input_ids and inputs_embeds")
    if call.output_attentions and (kind := model.config._attn_implementation) != "eager":
        raise ValueError(
            f"output_attentions=True with attn_implementation={kind!r}, which does not return "
            "attention weights; use 'eager'"
        )
    cache, use_cache = call.past_key_values, call.use_cache
    check_kind(cache)
    x_BTC = call.inputs_embeds
    if x_BTC is None:
        x_BTC = model.embed_tokens(call.input_ids)
    if call.document_ids is not None:
        _check_documents(call, x_BTC)
    elif use_cache is None:
        use_cache = model.config.use_cache and not model.training
    if use_cache and cache is None:
        # transformers' cache for compiled and exported models.
        cache = DynamicCache() if is_compiling() else GrowingCache()
    past = 0
    if cache is not None:
        _check_cache(model, cache)
        past = cache.get_seq_length()
    slots = torch.arange(x_BTC.shape[1], device=x_BTC.device) + past
    mask, real, documents, index = call.attention_mask, None, None, None
    if mask is not None:
        mask = indices.read_mask(mask, x_BTC, cache, model.training)
        real = indices.real_tokens(mask, slots)
        if mask.ndim == 4 and model.position.causal:
            places = torch.arange(mask.shape[-1], device=mask.device)
            refuse_unless(
                ~mask | (places <= slots[:, None]),
                f"position {model.config.position['name']} with a 4-D attention_mask in which a "
                "query sees later tokens: its scores are defined for earlier tokens only; give a "
                "causal mask",
                now=len(slots) > 1 and not model.training,
            )
    if call.document_ids is not None:
        documents, index = indices.number_documents(call.document_ids, real)
    return Batch(x_BTC, mask, cache, slots, real, documents), index


def _needed(call: Call, batch: Batch) -> tuple[Tensor | None, Tensor | None]:
    """Returns the tokens (N,), numbered in (B, T), on whose MLP predictions depend: all up to the
    last that predicts, and in the final layer those that predict. None for all tokens: those of a
    cache are read later, and a GPU would have to wait until they are counted."""
    labels, (B, T) = call.predicted_positions, batch.x_BTC.shape[:2]
    looks_ahead = batch.mask is not None and batch.mask.ndim == 4
    are_kept = looks_ahead or batch.cache is not None
    if labels is None or are_kept or not labels.is_cpu or is_compiling():
        return None, None
    # Column 0 takes the -1 of rows with fewer labels; the label in column n is predicted by n - 1.
    predict = labels.new_zeros(B, T + 1, dtype=torch.bool)
    predict = predict.scatter(1, labels.clamp(min=0), True)[:, 1:]
    before = predict.flip(1).cumsum(1).flip(1) > 0
    return before.flatten().nonzero()[:, 0], predict.flatten().nonzero()[:, 0]


def _check_documents(call: Call, x_BTC: Tensor) -> None:
    """Raises a ValueError for what cannot be combined with documents."""
    document_ids = call.document_ids
    if call.past_key_values is not None or call.use_cache:
        raise ValueError(
            "document_ids with a cache, which does not keep the documents of its tokens: call the "
            "model with use_cache=False, or give one document per row"
        )
    if call.position_ids is not None:
        raise ValueError(
            "document_ids with position_ids: token indices restart in every document; give one of "
            "the two"
        )
    if document_ids.shape != x_BTC.shape[:2] or document_ids.is_floating_point():
        raise ValueError(
            f"document_ids of shape {tuple(document_ids.shape)} and {document_ids.dtype}: allowed: "
            f"integers of shape {tuple(x_BTC.shape[:2])}, one per token"
        )


def _check_cache(model: PreTrainedModel, cache: Cache) -> None:
    """Raises a ValueError for a cache that does not keep what later tokens need."""
    if any(layer.is_sliding for layer in cache.layers):
        raise ValueError(
            "a cache with sliding layers, which drops tokens: here windows are masks; make the "
            "cache from the configuration of this model"
        )
    if model.training and model.gradient_checkpointing:
        raise ValueError(
            "a cache in training with gradient checkpointing, which leaves it empty: call "
            "model.eval(), or the model with use_cache=False"
        )
    if model.training and model.position.random and cache.get_seq_length() > 0:
        raise ValueError(
            f"cached tokens in training with position {model.config.position['name']!r}, whose "
            "positions are drawn anew in each forward pass: call model.eval(), or the model with "
            "use_cache=False"
        )


def _coordinates(
    model: PreTrainedModel, batch: Batch, call: Call, index: Tensor | None
) -> tuple[Positions, Tensor | None]:
    """Returns the coordinates of the tokens, one draw for all layers, and what the cache has to
    keep of their indices. `index` (B, T) is within documents; None without any."""
    position, ids, cached = model.position, call.position_ids, None
    if ids is not None:
        if ids.is_floating_point():
            raise ValueError(
                f"position_ids of {ids.dtype}: allowed: integers; to interpolate positions, give "
                'the encoding a scaling, as in position={"name": "rope", "scaling": ...}'
            )
        B, T = batch.x_BTC.shape[:2]
        if ids.shape not in ((1, T), (B, T)):
            allowed = " or ".join(f"({rows}, {T})" for rows in sorted({B, 1}, reverse=True))
            raise ValueError(
                f"position_ids of shape {tuple(ids.shape)}: allowed: {allowed}, one for each new "
                "token"
            )
        ids = ids.long()
    if ids is not None and ids.shape[1] > 1 and not position.ordered and batch.mask is None:
        indices.refuse_restarts(ids)
    if position.reads:
        last = indices.last_index(batch.cache, model.indices_layer, batch.slots)
        new = None if batch.real is None else batch.real[:, batch.slots]
        ids = index = position.read(call.input_ids, new, last, batch.documents)
    if batch.documents is not None:
        query = key = index
    elif ids is None and batch.mask is None and batch.cache is None:
        query = key = batch.slots[None]
    else:
        query, key, cached = indices.token_indices(
            batch, ids, model.indices_layer, ordered=position.ordered, training=model.training
        )
    sampler = position.sampler
    if sampler.draw is not None and batch.cache is not None:
        indices.check_draw(sampler.draw, batch.cache)
    extent = key.shape[-1] if ids is None and cached is None else None  # if they count
    if sampler.counts and (batch.mask is not None or batch.documents is not None):
        extent = None
    return Positions(*sampler(query, key, model.training, extent)), cached
