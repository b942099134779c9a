"""The decoder: layers (`tape.model.layer`) around one positional encoding (`tape.positions`). It
contains no code for specific encodings.
"""

from contextlib import AbstractContextManager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from tape import encodings
from tape.attention import backends
from tape.attention.shifted_sparse import check_groups
from tape.model.configuration import TapeConfig
from tape.model.families import fold
from tape.model.generation import TapeGenerationMixin, savable
from tape.model.inputs import Call, layer_inputs
from tape.model.layer import Attention, DecoderLayer, RMSNorm
from tape.model.loss import Head, next_token_loss
from tape.positions.base import PositionModule


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
        config.position = encodings.configure(config, config.position)
        super().__init__(config)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """As in transformers, with Granite's multipliers in the weights. A model does not keep the
        name of a checkpoint of another function, such as a Llama that it replaces the encoding of:
        by its name other programs load TRL's reference model, or the base of peft's adapters."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        if pretrained_model_name_or_path is not None:
            saved = cls.config_class.of_checkpoint(model.name_or_path, kwargs)
            if multipliers := getattr(saved, "_multipliers", None):
                fold(model, multipliers)
                vars(model.config).pop("_multipliers", None)
            if saved is None or multipliers or not model.config.is_that_of(saved):
                for each in (model.config, model, model.base_model):
                    each.name_or_path = ""
        head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
        two = head is not None and head.weight is not embeddings.weight
        if two and not head.weight.is_meta:
            model.config.tie_word_embeddings = (
                False  # a checkpoint may say so and have two matrices
            )
        if model.can_generate():
            settings = model.generation_config
            savable(settings)  # or a run would fail at its end
            if (settings.pad_token_id or 0) < 0:  # as the first Llamas say that they have none
                settings.pad_token_id = None
        return loaded

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of the weights, in which transformers loads them all, none rounded."""
        dtypes = (p.dtype for p in self.parameters() if p.is_floating_point())
        return reduce(torch.promote_types, dtypes)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True  # otherwise transformers searches this file for its own attention registry

    def _check_and_adjust_attn_implementation(self, attn_implementation, *args, **kwargs):
        if attn_implementation is not None:
            backends.require(attn_implementation, self.config)
        return super()._check_and_adjust_attn_implementation(attn_implementation, *args, **kwargs)

    @classmethod
    def maybe_distribute_model(cls, model, distributed_config, mesh_manager):
        """As in transformers, without tensor parallelism: its plan leaves per-head numbers out."""
        if distributed_config is not None and distributed_config.tp_size > 1:
            raise ValueError("tensor parallelism (tp_size > 1): layers cannot be split; omit it")
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """As in transformers, which would skip modules of exported code without tensors of their
        own; the initialisers of this package skip loaded tensors themselves."""
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PositionModule):
            module.reset_parameters()
            module.reset_constants()

    def evaluation_length(self, length: int) -> AbstractContextManager[None]:
        """Evaluates inputs of up to `length` tokens, generated ones included, inside this context:
        encodings with random positions (RandPE) draw for `length` tokens, so that results do not
        depend on the batch.

        Raises:
            ValueError: for a length beyond their training range.
        """
        return self.base_model.position.sampler.evaluation_length(length)

    def set_shifted_attention(self, group: int | None) -> None:
        """Trains with shifted sparse attention (LongLoRA's S2, `tape.attention.shifted_sparse`) in
        groups of `group` tokens; None for full attention. Evaluation and cached calls always use
        full attention, and checkpoints do not store the setting.

        Raises:
            ValueError: for an odd number, or for a configuration that S2 does not support.
        """
        if group is not None:
            check_groups(self.base_model, group)
        self.base_model.s2_group_size = group


class TapeModel(TapePreTrainedModel):
    """The decoder without a language-modelling head."""

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        # No padding_idx: its row would not train, and the padding token may be a real one.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = encodings.build(config)
        self.layers = nn.ModuleList(
            DecoderLayer(config, n, encodings.build_layer(self.position, n))
            for n in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        # The layer of a cache that keeps token indices, after those of all recurrences.
        self.indices_layer = config.num_hidden_layers * config.num_recurrences
        self.s2_group_size: int | None = None  # set by `set_shifted_attention`
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
        predicted_positions: Tensor | None = None,
        **packed: Any,
    ) -> BaseModelOutputWithPast:
        """
        Args:
            input_ids: (B, T) the new tokens; or `inputs_embeds`, (B, T, C).
            attention_mask: (B, S), 0 at padding on either side and 1 at tokens, or (B, 1, T, S):
                True or 0 where a query sees a key, False or -1000 and less where it does not.
            position_ids: (B|1, T) indices of the new tokens, by default a count of the real ones.
                They must increase (`tape.model.indices`) unless the encoding is not `ordered`.
                Abacus finds its own.
            past_key_values: any cache of transformers.
            use_cache: create a cache if none is given; by default as configured, but not in
                training.
            output_hidden_states, output_attentions: return them of all layers and recurrences.
            document_ids: (B, T) integers, equal within a document and different in the next. Tokens
                attend within their document, and token indices restart in each. Without a cache.
            predicted_positions: of labels (`tape.model.loss`): a CPU then spares tokens that no
                prediction depends on the MLPs, so that their states are not complete.
            packed: cu_seq_lens_q, seq_idx and others, as transformers' collators and TRL give them
                for packed documents: `document_ids` follow from them.

        Raises:
            ValueError: for contradictory arguments, and for what the backend does not support.
        """
        call = Call(
            input_ids,
            inputs_embeds,
            attention_mask,
            position_ids,
            past_key_values,
            use_cache,
            output_attentions,
            document_ids,
            predicted_positions,
            packed,
        )
        inputs = layer_inputs(self, call)
        x_BTC, states = inputs.x_BTC, inputs.states
        layers = [*self.layers]
        for idx, own in enumerate(inputs.layers):
            layer = layers[idx % len(layers)]
            if idx and layer is layers[0]:  # the next recurrence
                x_BTC = x_BTC + inputs.x_BTC
            n = layer.context.entry
            # x and e are no keyword arguments: reentrant checkpointing drops gradients of these.
            x_BTC, states[n] = layer(x_BTC, states[n], inputs=own, past_key_values=inputs.cache)
        return BaseModelOutputWithPast(self.norm(x_BTC), past_key_values=inputs.cache)


class TapeForCausalLM(TapePreTrainedModel, TapeGenerationMixin):
    """The decoder with a language-modelling head.

    `from_pretrained` also loads checkpoints of Llama and related families (`tape.model.families`),
    with `position=` for the encoding: new parameters are initialised, and a TAPE model made from
    one of them starts with its logits.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True  # Trainer passes num_items_in_batch: exact gradient accumulation

    def __init__(self, config: TapeConfig):
        super().__init__(config)
        self.model = TapeModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = Head(config.hidden_size, config.vocab_size)
        self.post_init()

    def save_pretrained(self, *args, **kwargs) -> None:
        """As in transformers, with the settings for generation that it saves."""
        own, self.generation_config = self.generation_config, savable(self.generation_config)
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.generation_config = own

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
        predicted_positions: Tensor | None = None,
        skip_logits: bool = False,
        **packed: Any,
    ) -> CausalLMOutputWithPast:
        """Takes the arguments of `TapeModel`, and:

        Args:
            labels: (B, T) token ids, shifted inside; -100 is ignored. Set it also for a document's
                first token, which is predicted from the document before, and for the first token
                after padding, as in a Llama.
            logits_to_keep: number of last tokens, or their indices, to compute logits for; 0: all.
            num_items_in_batch: divisor of the summed loss; the number of labels by default.
            skip_logits: return the loss alone; the logits of all tokens are never in memory.
            predicted_positions: of the labels to predict (`tape.model.loss`), to compute no others;
                only with skip_logits.

        Raises:
            ValueError: also for labels with logits_to_keep, and for skip_logits without labels.
        """
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("labels with logits_to_keep: the loss needs all logits; omit one")
        if skip_logits and labels is None:
            raise ValueError("skip_logits=True without labels: nothing is left; give labels")
        # A head that was replaced (by an adapter or a resized vocabulary) computes logits.
        fused = skip_logits and isinstance(self.lm_head, Head)
        shown = {"hidden_states": output_hidden_states, "attentions": output_attentions}
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            document_ids=document_ids,
            predicted_positions=predicted_positions if fused else None,
            # The configuration decides about what is not given.
            **{f"output_{name}": value for name, value in shown.items() if value is not None},
            **packed,
        )
        x_BTC, loss, logits, head = outputs.last_hidden_state, None, None, self.lm_head
        if fused:
            loss = head(x_BTC, labels, num_items_in_batch, predicted_positions)
        else:
            keep = logits_to_keep
            logits = head(x_BTC[:, slice(-keep, None) if isinstance(keep, int) else keep])
            if labels is not None:
                loss = next_token_loss(logits, labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=None if skip_logits else logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# transformers' Trainer shifts the labels of these models when it smooths them.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[TapeConfig.model_type] = TapeForCausalLM.__name__
