"""Builds models from plain settings: new ones, or from a checkpoint."""

import logging
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash

from tape.core.validation import check_arguments
from tape.data.tokenizer import vocabulary_size
from tape.encodings import ENCODINGS, canonical, single
from tape.model.adapters import ADAPTER, BFLOAT16
from tape.model.checkpoint import check_finite, fingerprint, with_weights
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions.schedules import YARN

KEEP = "keep"  # keeps the position of a base model
LENGTH = "max_position_embeddings"
# Fields that change the shape, the number or the meaning of weights.
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "head_dim", "hidden_act"}
SIZES |= {"num_hidden_layers", "num_recurrences", "num_attention_heads", "num_key_value_heads"}
SIZES |= {"rms_norm_eps", "tie_word_embeddings", "attention_bias", "qkv_bias"}
SIZES |= {"mlp_bias", "qk_norm", "attention_sink", "scalable_softmax", "gated_attention"}
OF_TOKENIZER = {"bos_token_id", "eos_token_id", "pad_token_id"}
FIELDS = {field.name for field in fields(TapeConfig)} | {"attn_implementation"}
log = logging.getLogger(__name__)


def new_config(shape: dict[str, Any], position: dict[str, Any]) -> TapeConfig:
    """Returns the configuration of a new decoder with these fields, except for the tokenizer's
    part. Raises a ValueError for wrong fields, and for more weights than fit into memory."""
    if position.get("name") == KEEP or "hidden_size" not in shape:
        raise ValueError("position=keep and model=keep need a base_model=...")
    check_arguments("model", shape, FIELDS)
    for name in OF_TOKENIZER & shape.keys():
        raise ValueError(f"model.{name}={shape[name]}: it is set by the tokenizer; leave it out")
    known = {name: value for name, value in shape.items() if name != "vocab_size"}
    if known.get("attn_implementation") is None:
        known.pop("attn_implementation", None)
    config = _settled("model", lambda: TapeConfig(**known, position=position))
    with torch.device("meta"):  # runs the constructor's checks without allocating memory
        parameters = TapeForCausalLM(config).num_parameters()
    check_memory(4 * parameters, "model", "of weights in float32", "use a smaller model")
    return config


def check_memory(needed: int, owner: str, what: str, remedy: str) -> None:
    """Raises a ValueError if `needed` bytes exceed this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        asked, there = (f"{size / 2**30:,.0f} GiB" for size in (needed, memory))
        raise ValueError(
            f"{owner}: {asked} {what} exceed the {there} of memory of this machine; {remedy}"
        )


def build_model(
    config: TapeConfig, shape: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> TapeForCausalLM:
    """Initialises a new decoder with the special tokens of the tokenizer and, unless `shape` gives
    a `vocab_size`, its vocabulary."""
    config.vocab_size = shape.get("vocab_size") or vocabulary_size(tokenizer)
    _check_vocabulary(tokenizer, config.vocab_size, "model.vocab_size=")
    for name in OF_TOKENIZER:
        setattr(config, name, getattr(tokenizer, name))
    position = config.position
    config.position = ENCODINGS[position["name"]].for_tokenizer(position, tokenizer.get_vocab())
    return TapeForCausalLM(config)


def adapted_config(base: str, shape: dict[str, Any], position: dict[str, Any]) -> TapeConfig:
    """Returns the configuration of the checkpoint `base` (a folder or a name on the hub) with other
    fields. The name "keep" in `position` keeps the checkpoint's encoding, of which other arguments
    are replaced; null arguments of YaRN extend its length to the new one. A checkpoint of a longer
    context keeps its length. Raises a ValueError if there is no such checkpoint, or for settings
    that do not fit its weights."""
    check_arguments("model", shape, FIELDS)
    owner, keeps = f"base_model={base}", position["name"] == KEEP
    if (Path(base) / ADAPTER).is_file():
        remedy = f"merge it into its base first: tape export {base} --out FOLDER"
        raise ValueError(f"{owner} is an adapter; {remedy}")
    before = _settled(owner, lambda: TapeConfig.from_pretrained(base))
    if getattr(before, "quantization_config", None) is not None:
        raise ValueError(f"{owner} holds quantized weights; use the original model")
    if keeps:
        kept = single(before.position) if before.position["name"] == "mixed" else before.position
        position = position | {"name": (kept or before.position)["name"]}
    changes = {name: value for name, value in shape.items() if value is not None}
    trained = changes.get(LENGTH)
    position = _extended(position, before, None if keeps else trained)
    if trained is not None and trained < before.max_position_embeddings:
        changes[LENGTH] = kept = before.max_position_embeddings
        log.info("%s reads %s tokens, and keeps that: it trains on %s", base, kept, trained)
    changes["adaptation"] = None  # the checkpoint's own is completed
    given = changes | {"position": position}
    config = _settled(owner, lambda: TapeConfig.from_pretrained(base, **given))
    differing = [
        f"model.{name}={value}, but {base} has {getattr(before, name)}"
        for name, value in changes.items()
        if name in SIZES and value != getattr(before, name)
    ]
    if differing:
        raise ValueError(f"{'; '.join(differing)}; leave these out, and give model=keep")
    return config


def adapt_model(
    base: str, config: TapeConfig, tokenizer: PreTrainedTokenizerBase, frozen: str | None = None
) -> TapeForCausalLM:
    """Loads a checkpoint into a configuration of `adapted_config`, with frozen weights stored as
    `frozen` (`tape.model.adapters.check_frozen`). Weights that an encoding adds are initialised. A
    ValueError is raised if others are missing, or for a tokenizer that does not fit."""
    _check_vocabulary(tokenizer, config.vocab_size, f"base_model={base} ")
    cls = ENCODINGS[config.position["name"]]
    config.position = cls.for_tokenizer(config.position, tokenizer.get_vocab())
    before = TapeConfig.from_pretrained(base).position
    changed = config.position != before
    # TAPE with another initial state keeps its layers.
    alike = cls.updates and ENCODINGS[before["name"]].updates
    replaces = not alike and names_of(before) != names_of(config.position)
    dtype = "auto" if frozen == BFLOAT16 else torch.float32  # trained weights are not rounded
    model, left = with_weights(base, config, new_encoding=changed, replaces=replaces, dtype=dtype)
    check_finite(f"base_model={base}", model)
    if left:
        log.info("weights of %s that are not used: %s", base, ", ".join(left))
    return model


def names_of(position: dict[str, Any]) -> list[str]:
    """Returns the names of an encoding and, of a mixture, of its entries."""
    return [position["name"], *(entry["name"] for entry in position.get("pattern", ()))]


def _settled(owner: str, make: Callable[[], TapeConfig]) -> TapeConfig:
    """Returns `make()`; raises a ValueError with the reason of transformers' error."""
    try:
        return make()
    except (ValueError, OSError, StrictDataclassError, TypeError, RecursionError) as error:
        reason = " ".join(str(error.__cause__ or error).split())
        is_field = owner == "model" and hasattr(TapeConfig, reason.partition("=")[0])
        raise ValueError(f"{owner}{'.' if is_field else ': '}{reason}") from error


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, size: int, owner: str) -> None:
    if (needed := vocabulary_size(tokenizer)) > size:
        raise ValueError(
            f"the tokenizer has ids up to {needed - 1:,}, too many for {owner}{size:,}; use the "
            "model's tokenizer or, for a new model, model.vocab_size=null, which follows the "
            "tokenizer"
        )


def identity(base: str) -> str:
    """Identifies a base model by a hash of its weights or by its revision."""
    if Path(base).is_dir():
        return fingerprint(Path(base))
    return str(extract_commit_hash(cached_file(base, "config.json"), None))


def _extended(position: dict[str, Any], before: TapeConfig, length: int | None) -> dict[str, Any]:
    """Fills null arguments of YaRN from the checkpoint's training length and the new one. A
    checkpoint with YaRN keeps its own, with a larger factor for a longer `length`; others are
    refused."""
    if "original_length" not in ENCODINGS[canonical(position)[0]].defaults():
        return position
    rope = before.rope_parameters or {}
    if rope.get("rope_type") != "yarn":
        original = position.get("original_length") or before.max_position_embeddings
        factor = position.get("factor") or max(1.0, (length or original) / original)
        return position | {"original_length": original, "factor": factor}
    own = {
        "factor": rope["factor"],
        "beta_fast": rope.get("beta_fast") or YARN["beta_fast"],
        "beta_slow": rope.get("beta_slow") or YARN["beta_slow"],
        "original_length": rope.get("original_max_position_embeddings"),
    }
    for name, kept in own.items():
        if position.get(name) not in (None, kept):
            raise ValueError(
                f"the base has YaRN with {name}={kept}, which position.{name}={position[name]} "
                f"would replace; give position.{name}=null"
            )
    position = {name: value for name, value in position.items() if name not in own}
    if (length or 0) > own["factor"] * own["original_length"]:
        position["factor"] = length / own["original_length"]
    return position
