"""The decoder: layers (`tape.layer`) around one positional encoding (`tape.positions`). It contains
no code for specific encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from tape import attention, indices, positions
from tape.cache import GrowingCache
from tape.configuration import TapeConfig
from tape.documents import check_documents, number_documents
from tape.generation import TapeGenerationMixin
from tape.layer import Attention, DecoderLayer, RMSNorm
from tape.loss import Head
from tape.positions import PositionModule, Positions, Tokens
from tape.s2 import check_layers, padding
from tape.ulysses import Shard, check_tensor_parallelism


class TapePreTrainedModel(PreTrainedModel):
    config_class = TapeConfig
    config: TapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _can_compile_fullgraph = True
    _can_record_outputs = {
        "hidden_states": OutputRecorder(DecoderLayer, index=0),
        "attentions": OutputRecorder(Attention, index=2),
    }

    def __init__(self, config: TapeConfig):
        # Configure again: the caller may have changed the position since construction.
        config.position = positions.configure(config, config.position)
        super().__init__(config)

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of the weights: the library saves it and loads all weights in it, which
        must not round any."""
        dtypes = (p.dtype for p in self.parameters() if p.is_floating_point())
        return reduce(torch.promote_types, dtypes)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True  # otherwise the library searches this file for its own attention registry

    def _check_and_adjust_attn_implementation(self, attn_implementation, *args, **kwargs):
        if attn_implementation is not None:
            attention.require(attn_implementation, self.config)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    @classmethod
    def maybe_distribute_model(cls, model, distributed_config, mesh_manager):
        """As in the library, but refuses tensor parallelism for encodings with per-head numbers."""
        if distributed_config is not None and distributed_config.tp_size > 1:
            check_tensor_parallelism(model.base_model, distributed_config.tp_size)
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionModule):
            module.reset_parameters()

    @contextmanager
    def evaluation_length(self, length: int) -> Iterator[None]:
        """Evaluates inputs of up to `length` tokens inside this context, prompt and generated
        tokens together.

        Only encodings with random positions (RandPE) use it: they draw positions for `length`
        tokens rather than for the batch, so results do not depend on the batch. They raise a
        ValueError for a length beyond their training range.
        """
        with self.base_model.position.sampler.evaluation_length(length):
            yield

    def set_shifted_attention(self, group: int | None) -> None:
        """Trains with shifted sparse attention (LongLoRA's S2, `tape.s2`) in groups of `group`
        tokens; None for full attention. Evaluation and cached calls always use full attention.

        The setting belongs to a training run; checkpoints do not store it.

        Raises:
            ValueError: for an odd number, or for a configuration that S2 does not support.
        """
        if group is not None:
            check_layers(self.base_model, group)
            attention.shifted(self.config._attn_implementation, self.config, group)
        self.base_model.group = group


class TapeModel(TapePreTrainedModel):
    """The decoder without a language-modelling head."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        # No padding_idx: its row would not train, and the padding token may be a real one.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = positions.build(config)
        self.layers = nn.ModuleList(
            DecoderLayer(config, self.position.layer(layer_idx))
            for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.group: int | None = None  # set by `set_shifted_attention`
        self.shard: Shard | None = None  # set by `tape.ulysses.shard_sequence`
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        document_ids: Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """
        Args:
            input_ids: (B, T) the new tokens; or `inputs_embeds`, (B, T, C).
            attention_mask: (B, S), 0 at padding on either side and 1 at tokens, or (B, 1, T, S):
                True or 0 where a query sees a key, False or -1000 and less where it does not.
            position_ids: (B|1, T) indices of the new tokens, by default a count of the real ones.
                They must increase (`tape.indices`) unless the encoding is not `ordered`.
            past_key_values: any of the library's caches.
            use_cache: create a cache if none is given; by default as configured, never in training.
            output_hidden_states, output_attentions: also return them for every layer of every
                recurrence.
            document_ids: (B, T) integers, equal within a document and different in the next.
                Tokens attend within their document, and token indices restart in each, as if it
                were a row by itself. All documents share one draw of positions. Without a cache.

        Raises:
            ValueError: unless exactly one of `input_ids` and `inputs_embeds` is given; for
                attention weights of a backend without them; for inconsistent masks, indices and
                caches (`tape.indices`); for documents with a cache or position_ids.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if output_attentions and self.config._attn_implementation != "eager":
            raise ValueError(
                "output_attentions=True with "
                f"attn_implementation={self.config._attn_implementation!r}, which does not return "
                "attention weights; use 'eager'"
            )
        x_BTC = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if document_ids is not None:
            check_documents(document_ids, x_BTC, position_ids, past_key_values, use_cache)
        elif use_cache is None:
            use_cache = self.config.use_cache and not self.training and self.shard is None
        if use_cache and past_key_values is None:
            # The library's cache for compiled and exported models.
            past_key_values = DynamicCache() if is_compiling() else GrowingCache()

        attention_mask = indices.read_mask(attention_mask, x_BTC, past_key_values, self.training)
        indices_layer = len(self.layers) * self.config.num_recurrences  # in the cache
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        slots = torch.arange(x_BTC.shape[1], device=x_BTC.device) + past
        real = indices.real_tokens(attention_mask, slots)
        documents, index = number_documents(document_ids, real)
        if self.group is not None and self.training and past_key_values is None:
            kernel = attention.shifted(self.config._attn_implementation, self.config, self.group)
            kernels = {None: (kernel, padding(attention_mask, documents))}
        else:
            kernels = attention.of_windows(
                *(self.config, {layer.window for layer in self.layers}, x_BTC, attention_mask),
                *(past_key_values, real, slots, documents),
            )
        if self.position.reads:
            last = indices.last_index(past_key_values, indices_layer, slots)
            new = None if real is None else real[:, slots]
            position_ids = index = self.position.read(input_ids, new, last, documents)
        if documents is not None:
            query, key, kept = index, index, None
        else:
            query, key, kept = indices.token_indices(
                *(x_BTC, attention_mask, position_ids, past_key_values, indices_layer),
                ordered=self.position.ordered,
                training=self.training,
            )
        sampler = self.position.sampler
        indices.check_draw(sampler.draw, past_key_values)
        extent = key.shape[-1] if position_ids is None and kept is None else None  # if they count
        where = Positions(*sampler(query, key, self.training, extent))  # one draw for all layers
        here = where  # of the tokens that this process has
        if self.shard is not None:
            x_BTC, where, here, real, slots = self.shard.own(x_BTC, where, real, slots)
            kernels = self.shard.kernels(kernels, past_key_values, output_attentions)
        x_BTC = self.position.embed(x_BTC, here)
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        e = self.position.state(here, wide)
        states = self.position.states(here, wide, len(self.layers))
        biases = self.position.biases(where, len(self.layers))
        if self.config._attn_implementation == "flash_attention_2":
            bias = next((bias for bias in biases if bias is not None), None)
            attention.check_flash(attention_mask, position_ids, key, past_key_values, bias)
        if kept is not None:  # after all checks
            indices.keep_indices(past_key_values, indices_layer, kept, x_BTC.shape[1])
        own = zip(biases, states, strict=True)
        before = None if self.shard is None else self.shard.sum_before
        tokens = [Tokens(here, bias, real, slots, state, documents, before) for bias, state in own]
        layers = [*zip(self.layers, tokens, strict=True)] * self.config.num_recurrences
        embedding = x_BTC
        for idx, (layer, seen) in enumerate(layers):
            if idx and idx % len(self.layers) == 0:  # the next recurrence
                x_BTC = x_BTC + embedding
            kernel, mask = kernels[layer.window]
            # x and e are positional: reentrant checkpointing drops gradients of keyword arguments.
            x_BTC, e = layer(
                x_BTC,
                e,
                tokens=seen,
                mask=mask,
                kernel=kernel,
                past_key_values=past_key_values,
                cache_layer_idx=idx,
                final=idx == len(layers) - 1,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(x_BTC), past_key_values=past_key_values
        )


class TapeForCausalLM(TapePreTrainedModel, TapeGenerationMixin):
    """The decoder with a language-modelling head.

    `from_pretrained` also loads Llama checkpoints, with `position=` for the encoding: new
    parameters are initialised, and a TAPE model made from a Llama starts with the Llama's logits.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    accepts_loss_kwargs = True  # Trainer passes num_items_in_batch: exact gradient accumulation

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.model = TapeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = Head(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        document_ids: Tensor | None = None,
        label_positions: Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        """Takes the arguments of `TapeModel`, and:

        Args:
            labels: (B, T) token ids, shifted inside; -100 is ignored. With document_ids, the label
                of a document's first token is predicted from the last one of the document before.
            logits_to_keep: number of last tokens, or their indices, to compute logits for; 0: all.
            num_items_in_batch: divisor of the summed loss; the number of labels by default.
            label_positions: of the labels to predict (`tape.loss`), to compute no others.

        In training with labels only the loss is returned, without logits: the head is applied to
        chunks of tokens.
        """
        optional = {
            "output_hidden_states": output_hidden_states,
            "output_attentions": output_attentions,
            "document_ids": document_ids,
        }
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **{name: choice for name, choice in optional.items() if choice is not None},
        )
        x_BTC, loss, logits = outputs.last_hidden_state, None, None
        # Compute logits if the head was replaced (by an adapter or a resized vocabulary) or if its
        # weight is sharded over devices. A head that FSDP2 wraps gathers its weight when called.
        head, fused = self.lm_head, labels is not None and self.training
        fused = fused and isinstance(head, Head)
        if labels is not None and self.model.shard is not None:
            labels, num_items_in_batch = self.model.shard.labels(labels, num_items_in_batch)
            x_BTC, label_positions = F.pad(x_BTC, (0, 0, 0, 1)), None
        if fused and (isinstance(head, FSDPModule) or not isinstance(head.weight, DTensor)):
            loss = head(x_BTC, labels, num_items_in_batch, label_positions)
        else:
            keep = logits_to_keep
            kept = slice(-keep, None) if isinstance(keep, int) else keep
            logits = head(x_BTC[:, kept])
            if labels is not None:
                loss = self.loss_function(
                    logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch
                )
                logits = logits[:, : outputs.last_hidden_state.shape[1]]
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
