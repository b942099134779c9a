"""A model from the plain settings of a configuration file: a new one, or that of a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase

from tape.configuration import TapeConfig
from tape.evaluation.checkpoint import fingerprint
from tape.modeling import TapeForCausalLM
from tape.names import check_arguments
from tape.positions import PositionModule

KEEP = "keep"  # the position of a base model
# Fields that change the shape, the number or the sense of weights.
SIZES = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_recurrences"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps"),
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"),
}
log = logging.getLogger(__name__)


def build_model(
    shape: dict[str, Any], position: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> TapeForCausalLM:
    """A freshly initialised decoder whose vocabulary and special tokens are the tokenizer's.

    Args:
        shape: fields of `TapeConfig`; a `vocab_size` of None is the tokenizer's.

    Raises:
        ValueError: for a vocabulary smaller than the tokenizer's, or fields that do not exist.
    """
    if position.get("name") == KEEP or "hidden_size" not in shape:
        raise ValueError("position=keep and model=keep keep those of a base_model=...: give one")
    _check_fields(shape)
    vocab_size = shape.get("vocab_size") or len(tokenizer)
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer):,} tokens but model.vocab_size={vocab_size:,}; "
            f"raise it, set it to null to follow the tokenizer, or choose another tokenizer"
        )
    chosen = {
        "vocab_size": vocab_size,
        "position": position,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    try:
        config = TapeConfig(**shape | chosen)
    except StrictDataclassError as error:
        raise ValueError(f"model: {error.__cause__ or error}") from error
    return TapeForCausalLM(config)


def adapt_model(
    base: str,
    shape: dict[str, Any],
    position: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
) -> TapeForCausalLM:
    """The decoder of a checkpoint, ours or a Llama's, with another training length and perhaps
    another encoding. Weights that an encoding adds are new; all others are the checkpoint's.

    Args:
        base: a folder, or a name on the hub.
        shape: fields of `TapeConfig`; none of them may change the shape of a weight.
        position: {"name": "keep"} is the checkpoint's own; arguments beside it replace those.

    Raises:
        ValueError: if there is no such checkpoint, if it lacks weights, or for settings that do
            not fit it.
    """
    _check_fields(shape)
    try:
        before = TapeConfig.from_pretrained(base)
        if position["name"] == KEEP:
            position = position | {"name": before.position["name"]}
        changes = {name: value for name, value in shape.items() if value is not None}
        config = TapeConfig.from_pretrained(base, position=position, **changes)
        for name in changes.keys() & SIZES:
            if changes[name] != getattr(before, name):
                raise ValueError(
                    f"model.{name}={changes[name]}, but {base} has {getattr(before, name)}; "
                    f"take model=keep"
                )
        model, loading = TapeForCausalLM.from_pretrained(
            base,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
        )
    except (OSError, RuntimeError, StrictDataclassError) as error:
        raise ValueError(f"base_model={base} cannot be taken: {error}") from error
    for name, theirs, ours in sorted(loading["mismatched_keys"]):
        raise ValueError(
            f"{name} of base_model={base} has the shape {(*theirs,)}, "
            f"but {(*ours,)} by these settings"
        )
    added = _of_encoding(model) if config.position != before.position else set()
    if lost := sorted({*loading["missing_keys"]} - added):
        raise ValueError(f"base_model={base} has no {', '.join(lost[:3])} ({len(lost)} in all)")
    if unknown := sorted(key for key in loading["unexpected_keys"] if "inv_freq" not in key):
        log.info("weights of %s that are not taken: %s", base, ", ".join(unknown))
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer):,} tokens, base_model={base} "
            f"{config.vocab_size:,}; take its own tokenizer"
        )
    log.info(
        "base %s (%s), trained on %s tokens; now %s with %s",
        *(base, before.position["name"], f"{before.max_position_embeddings:,}"),
        *(config.position["name"], f"{config.max_position_embeddings:,}"),
    )
    return model


def identity(base: str) -> str:
    """What tells one base model from another: the hash of its weights, or its revision."""
    if Path(base).is_dir():
        return fingerprint(Path(base))
    return str(TapeConfig.from_pretrained(base)._commit_hash)


def _check_fields(shape: dict[str, Any]) -> None:
    """The library would keep a misspelt field silently."""
    accepted = {field.name for field in fields(TapeConfig)} | {"attn_implementation"}
    check_arguments("model", shape, accepted)


def _of_encoding(model: TapeForCausalLM) -> set[str]:
    """The names of the weights that are the encoding's own."""
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, PositionModule)
        for name, _ in module.named_parameters()
    }
