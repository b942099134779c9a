"""transformers' `generate` for the decoder: what it does not support, masks and caches."""

import copy
from collections.abc import Callable
from functools import wraps

import torch.nn.functional as F
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation import GenerationMode, MaxLengthCriteria
from transformers.masking_utils import create_masks_for_generate

from tape.model.cache import GrowingCache, check_kind
from tape.model.configuration import TapeConfig
from tape.model.indices import keep_indices, read_mask

# Settings without effect unless another setting asks for them.
OF_SAMPLING = ("temperature", "top_p", "min_p", "top_h", "typical_p", "top_k")
OF_SAMPLING += ("epsilon_cutoff", "eta_cutoff")
OF_ANOTHER: dict[tuple[str, ...], Callable[[GenerationConfig], bool]] = {
    OF_SAMPLING: lambda settings: settings.do_sample is True,
    ("early_stopping", "length_penalty"): lambda settings: (settings.num_beams or 1) > 1,
    ("cache_implementation", "cache_config"): lambda settings: settings.use_cache is not False,
    GenerationConfig.extra_output_flags: lambda settings: settings.return_dict_in_generate is True,
    ("pad_token_id",): lambda settings: (settings.pad_token_id or 0) >= 0,
}
# Ways of generation in which a call has all tokens so far or the newest.
ONE_BY_ONE = {GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE}


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns all tokens that end an answer of a model: of its tokenizer, first, its configuration
    and its settings for generation. Chat models have several."""
    owners = (tokenizer, model.config, model.generation_config)
    ends: list[int] = []
    for found in (owner.eos_token_id for owner in owners):
        ends += found if isinstance(found, list) else [] if found is None else [found]
    return [*dict.fromkeys(ends)]


def savable(settings: GenerationConfig) -> GenerationConfig:
    """Returns settings without those that transformers refuses to save: settings of sampling, beams
    and outputs that have no effect because another one does not ask for it, such as a temperature
    without `do_sample`. A loaded model has them: `generate(do_sample=True)` asks for it.

    Raises:
        ValueError: for settings that contradict each other in another way.
    """
    settings = copy.deepcopy(settings)
    for names, asked in OF_ANOTHER.items():
        if asked(settings):
            continue
        for name in names:
            if getattr(settings, name, None) is not None:
                setattr(settings, name, None)
    try:
        settings.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"generation_config.json: {reason}; correct it, or remove it") from error
    return settings


class TapeGenerationMixin(GenerationMixin):
    """As in transformers, but for the methods below."""

    def init_continuous_batching(self, *args, **kwargs):
        """Refused, and with it `generate_batch`, its context manager and the "paged" cache."""
        raise ValueError(
            "continuous batching packs sequences, which this decoder's positions do not support; "
            "use generate() with a padded batch"
        )

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # transformers reads its signature
    def prepare_inputs_for_generation(self, *args, tokenizer=None, **kwargs):
        """As in transformers, which hands the tokenizer of `stop_strings` on to the model."""
        return super().prepare_inputs_for_generation(*args, **kwargs)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, config: TapeConfig, **arguments):
        """As in transformers, without windows, which the decoder adds. FlexAttention's mask is no
        tensor: the decoder builds it from the padding mask."""
        if config._attn_implementation == "flex_attention":
            return attention_mask
        # Checked before the values are hidden in the mask that is built from them.
        mask = read_mask(attention_mask, arguments["inputs_embeds"], arguments["past_key_values"])
        whole = config.get_text_config(decoder=True)
        return create_masks_for_generate(attention_mask=mask, config=whole, **arguments)

    def _get_stopping_criteria(self, *args, **kwargs):
        """As in transformers, without its warning beyond `max_position_embeddings`, the trained
        length: the decoder reads longer texts."""
        criteria = super()._get_stopping_criteria(*args, **kwargs)
        for criterion in criteria:
            if isinstance(criterion, MaxLengthCriteria):
                criterion.max_position_embeddings = None
        return criteria

    def _get_static_cache_init_shape(self) -> None:
        """None: a cache takes its shape from its first values, which may be wider than the keys."""

    def _prepare_position_ids_for_generation(self, inputs_tensor, model_kwargs) -> None:
        """None: the decoder counts the tokens of a mask itself (`tape.model.indices`)."""

    def _prepare_cache_for_generation(
        self, generation_config, model_kwargs, generation_mode, *args, **kwargs
    ):
        """As in transformers, with a growable cache as the default, and without a mask that hides
        nothing. For a static cache transformers makes 4-D masks, in which tokens cannot be
        counted."""
        given = model_kwargs.get("past_key_values")
        check_kind(given)
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, *args, **kwargs
        )
        assisted = generation_mode is GenerationMode.ASSISTED_GENERATION
        if assisted and given is not None and (count := int(given.get_seq_length())):
            raise ValueError(
                "assisted decoding (assistant_model, prompt_lookup_num_tokens) with "
                f"past_key_values of {count} tokens, which transformers would give to the model "
                "again; give no cache"
            )
        if (early := generation_config.assistant_early_exit) is not None:
            raise ValueError(
                f"assistant_early_exit={early}: the decoder cannot leave layers out; give an "
                "assistant_model or prompt_lookup_num_tokens"
            )
        cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
        made = type(cache) is DynamicCache and given is None
        if made and generation_config.cache_implementation is None:
            model_kwargs["past_key_values"] = GrowingCache()
            plain = mask is not None and mask.ndim == 2 and bool((mask == 1).all())
            if plain and generation_mode in ONE_BY_ONE:
                model_kwargs["attention_mask"] = None
        static = cache is not None and cache.is_compileable
        if static and mask is not None and model_kwargs.get("position_ids") is None:
            counts, layer = mask.long().cumsum(-1), self.model.indices_layer
            model_kwargs["position_ids"] = (counts - 1).clamp(min=0)
            if int(cache.get_seq_length()) and not int(cache.get_seq_length(layer)):
                # A call of the model has filled the cache, and counted by its mask.
                room = cache.get_max_length() - counts.shape[1]
                keep_indices(cache, layer, F.pad(counts, (0, room)), 0)
