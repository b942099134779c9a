"""Decoder configuration: Llama's, plus the positional encoding."""

from __future__ import annotations  # `strict` would refuse values by their types, in other words

import copy
import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from tape import encodings
from tape.core.validation import (
    check_flag,
    check_integer,
    check_no_gguf,
    is_number,
    look_up,
    suggestion,
)
from tape.model import families
from tape.positions.schedules import ORIGINAL, kind_of, rope_of

OPTIONAL = ("num_key_value_heads", "head_dim", "sliding_window")
COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_recurrences")
COUNTS += ("num_attention_heads", *OPTIONAL, "max_position_embeddings")

# Arguments of transformers' configurations that are no fields: of all of them, of how a model is
# loaded, of frequencies, and of earlier versions.
ARGUMENTS = {"model_type", "name_or_path", "auto_map", "num_labels", "output_attentions"}
ARGUMENTS |= {"attn_implementation", "cache_implementation", "experts_implementation"}
ARGUMENTS |= {"quantization_config", "per_layer_config"}
ARGUMENTS |= {"rope_scaling", "rope_theta", "partial_rotary_factor"}
ARGUMENTS |= {"original_max_position_embeddings"}
ARGUMENTS |= {"torch_dtype", "sep_token_id", "tie_encoder_decoder", "tie_last_hidden_states"}
# Fields that change no output: the training length is in the arguments and schedules it settles.
IDLE = {"max_position_embeddings", "initializer_range", "attention_dropout", "use_cache"}
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
NO_PADDING = -1  # in the first Llamas
IDLE |= {*SPECIAL, "pretraining_tp", "adaptation"}
IDLE |= {field.name for field in fields(PreTrainedConfig)}
# Arguments of `from_pretrained` that say where a checkpoint is.
PLACE = {"cache_dir", "force_download", "gguf_file", "local_files_only", "revision", "subfolder"}
PLACE |= {"token"}
log = logging.getLogger(__name__)


@strict
class TapeConfig(LlamaConfig):
    """`LlamaConfig` with a `position`: {"name": "alibi", ...arguments}, or a bare name.

    With `num_recurrences` = R > 1 the layers are applied R times, sharing all weights including
    the encoding's, and the embeddings are added to the input of every recurrence.

    `qkv_bias` gives queries, keys and values a bias (Qwen2); `attention_bias` also the output.

    With `sliding_window` = W a token attends to itself and the W - 1 tokens before it, in every
    layer whose encoding has no window of its own. Padding does not count.

    Options of attention, the same for every encoding (`tape.model.options`): `qk_norm` normalises
    queries and keys, `attention_sink` adds a learned term to the denominator of each head,
    `query_temperature` = {"scale": a, "length": n}, `scalable_softmax` = true or {"length": m},
    `exclusive_attention` takes the direction of a token's own value off its averages, and
    `gated_attention` multiplies each head's output by sigmoid(W x).

    `adaptation` records which base model was adapted, and how (`tape.model.adapters`).

    `max_position_embeddings` is the training length; longer inputs are not clamped. Frequencies of
    rotary encodings are in `rope_parameters`, as for a Llama. Unknown fields raise a ValueError. A
    saved configuration may have fields of other versions and programs, which do not resemble these;
    they have no effect.
    """

    model_type = "tape"

    position: dict[str, Any] | str = "tape"
    num_recurrences: int = 1
    sliding_window: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_sink: bool = False
    query_temperature: dict[str, Any] | None = None
    scalable_softmax: bool | dict[str, Any] = False
    exclusive_attention: bool = False
    gated_attention: bool = False
    adaptation: dict[str, Any] | None = None
    eos_token_id: int | list[int] | None = (
        None  # a Llama's default, 2, is a token of text elsewhere
    )

    def __post_init__(self, **kwargs):
        saved = self.transformers_version is not None
        if others := self._check_names(kwargs, others=saved):
            log.warning("no fields of TapeConfig, without effect: %s", ", ".join(sorted(others)))
        self._check_bounds()
        super().__post_init__(**kwargs)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        self.position = encodings.configure(self, self.position)
        name = self.position["name"]
        if self.query_temperature is not None and encodings.ENCODINGS[name].reads:
            raise ValueError(
                f"query_temperature with position {name!r}, whose positions do not count tokens; "
                "leave it out, or choose another position"
            )

    @classmethod
    def _check_names(cls, given: Iterable[str], others: bool) -> list[str]:
        """Returns unknown names, apart from private ones, if there may be `others`: of other
        versions and programs, and arguments of `from_pretrained`.

        Raises:
            ValueError: for an unknown name; with `others`, only if it resembles a known one.
        """
        known = {field.name for field in fields(cls)} | ARGUMENTS
        unknown = [name for name in given if name not in known and not name.startswith("_")]
        for name in unknown:
            if not others or get_close_matches(name, known, cutoff=0.8):
                raise ValueError(f"TapeConfig has no field {name!r}{suggestion(name, known)}")
        return unknown

    def _check_bounds(self) -> None:
        """Validates bounds that transformers does not check."""
        for name in COUNTS:
            if name not in OPTIONAL or getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        look_up("hidden_act", self.hidden_act, ACT2FN)
        flags = ("qkv_bias", "qk_norm", "attention_sink", "exclusive_attention", "gated_attention")
        for name in flags:
            check_flag(name, getattr(self, name))
        if (given := self.query_temperature) is not None:
            if not isinstance(given, dict) or given.keys() != {"scale", "length"}:
                raise ValueError(f"query_temperature={given!r} must have a scale and a length")
            check_integer("query_temperature.length", given["length"])
            if not is_number(scale := given["scale"]) or scale < 0:
                raise ValueError(f"query_temperature.scale={scale!r} must be a finite number >= 0")
        if not isinstance(given := self.scalable_softmax, bool):
            if not isinstance(given, dict) or given.keys() != {"length"}:
                raise ValueError(f"scalable_softmax={given!r} must be true, false or have a length")
            check_integer("scalable_softmax.length", given["length"], least=2)
        for name in SPECIAL:
            given = getattr(self, name)
            ids = given if isinstance(given, list) else [] if given is None else [given]
            least = NO_PADDING if name == "pad_token_id" else 0
            if not all(isinstance(x, int) and least <= x < self.vocab_size for x in ids):
                raise ValueError(
                    f"{name}={given} must be null or lie in {least}..{self.vocab_size - 1}, the "
                    f"vocabulary of vocab_size={self.vocab_size}; give the tokenizer's id"
                )

    def _validate_clipped_rope_parameters(self, rope_parameters, ignore_keys=None) -> None:
        """Checked by `RoPE.configure`; transformers warns of types that it has no function for."""

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None):
        """As in transformers, whose caches call it with decoder=True: they need a layer for each
        decoder layer and recurrence, which keeps all keys."""
        config = super().get_text_config(decoder=decoder, encoder=encoder)
        if decoder and (self.num_recurrences > 1 or self.sliding_window is not None):
            config = copy.copy(config)
            config.num_hidden_layers *= self.num_recurrences
            config.num_recurrences, config.sliding_window = 1, None
        return config

    @classmethod
    def of_checkpoint(cls, checkpoint: str, arguments: Mapping[str, Any]) -> TapeConfig | None:
        """Returns the configuration of the checkpoint that these arguments of `from_pretrained`
        lead to; None if it has none of ours or of a family that is read."""
        place = {name: arguments[name] for name in PLACE & arguments.keys()}
        try:
            return cls.from_pretrained(checkpoint, **place)
        except (OSError, ValueError):
            return None

    def is_that_of(self, other: TapeConfig) -> bool:
        """Returns whether another configuration computes the same function from the same
        weights."""
        names = {field.name for field in fields(self)} - IDLE
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        """As in transformers; a Llama is read as RoPE's, and so are the families that the decoder
        computes (`tape.model.families`); others are refused."""
        check_no_gguf(Path(pretrained_model_name_or_path, kwargs.get("gguf_file") or ""))
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if not config_dict:
            raise OSError(f"{pretrained_model_name_or_path} has no config.json, or an empty one")
        family = config_dict.get("model_type", cls.model_type)
        if family == "llama":
            # A Llama ignores other names, such as the window of a Mistral that it was made from.
            known = {field.name for field in fields(LlamaConfig)} - {"architectures"} | ARGUMENTS
            config_dict = {name: config_dict[name] for name in config_dict.keys() & known}
            config_dict |= {"model_type": cls.model_type, "position": "rope"}
            rope = rope_of(config_dict)
            if kind_of(rope) == "default":
                config_dict.pop("partial_rotary_factor", None)
            if ORIGINAL not in config_dict:
                trained = config_dict.get(COUNTS[-1], LlamaConfig.max_position_embeddings)
                families.settle_rope(rope, trained)
        elif family != cls.model_type:
            config_dict = families.read(config_dict, str(pretrained_model_name_or_path))
            config_dict["model_type"] = cls.model_type
        return config_dict, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        """As in transformers. `position` replaces the saved encoding; arguments of the same
        encoding replace only the saved arguments of the same name. Misspelt fields are refused."""
        cls._check_names(kwargs, others=True)
        config_dict = copy.deepcopy(config_dict)
        if (position := kwargs.pop("position", None)) is not None:
            new = encodings.override(config_dict.get("position"), position)
            encoding = encodings.ENCODINGS[new["name"]]
            config_dict["position"] = encoding.on_checkpoint(new, config_dict)
        # Derived fields are computed together with the fields they derive from.
        for name in {field.name for field in fields(cls)} & kwargs.keys() - {"dtype"}:
            config_dict[name] = kwargs.pop(name)
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As in transformers. `auto_map`, the code files of an exported model, is only saved by
        that exported code, which is copied along."""
        saved = super().to_dict()
        if self._auto_class is None:
            saved.pop("auto_map", None)
        return saved
