"""A model from the plain settings of a configuration file: a new one, or that of a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash

from tape.adapters import ADAPTER
from tape.configuration import TapeConfig
from tape.evaluation.checkpoint import fingerprint, with_weights
from tape.frozen import loading
from tape.modeling import TapeForCausalLM
from tape.names import check_arguments

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
    frozen: str | None = None,
) -> TapeForCausalLM:
    """The decoder of a checkpoint, ours or a Llama's, with another training length and perhaps
    another encoding. Weights that an encoding adds are new; all others are the checkpoint's.

    Args:
        base: a folder, or a name on the hub.
        shape: fields of `TapeConfig`; none of them may change the shape of a weight.
        position: {"name": "keep"} is the checkpoint's own; arguments beside it replace those. Null
            arguments of YaRN extend the checkpoint's length to the new one.
        frozen: how weights that do not train are going to be held (`tape.frozen`).

    Raises:
        ValueError: if there is no such checkpoint, if it lacks weights, or for settings that do
            not fit it.
    """
    _check_fields(shape)
    if (Path(base) / ADAPTER).is_file():
        raise ValueError(
            f"base_model={base} is an adapter; merge it into its base first: "
            f"python -m tape.export {base} --out FOLDER"
        )
    try:
        before = TapeConfig.from_pretrained(base)
        if position["name"] == KEEP:
            position = position | {"name": before.position["name"]}
        changes = {name: value for name, value in shape.items() if value is not None}
        position = _extended(position, before, changes.get("max_position_embeddings"))
        changes["adaptation"] = None  # that of the checkpoint has come to its end
        config = TapeConfig.from_pretrained(base, position=position, **changes)
        for name in changes.keys() & SIZES:
            if changes[name] != getattr(before, name):
                raise ValueError(
                    f"model.{name}={changes[name]}, but {base} has {getattr(before, name)}; "
                    f"take model=keep"
                )
        changed = config.position != before.position
        model, left = with_weights(base, config, new_encoding=changed, **loading(frozen))
    except (OSError, RuntimeError, StrictDataclassError) as error:
        raise ValueError(f"base_model={base} cannot be taken: {error}") from error
    if left := [key for key in left if "inv_freq" not in key]:
        log.info("weights of %s that are not taken: %s", base, ", ".join(left))
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
    where = cached_file(base, "config.json")
    return str(extract_commit_hash(where, None))


def _check_fields(shape: dict[str, Any]) -> None:
    """The library would keep a misspelt field silently."""
    accepted = {field.name for field in fields(TapeConfig)} | {"attn_implementation"}
    check_arguments("model", shape, accepted)


def _extended(position: dict[str, Any], before: TapeConfig, length: int | None) -> dict[str, Any]:
    """Null arguments of YaRN, as they follow from the length that a checkpoint was trained with and
    the new one; what a checkpoint with YaRN has is its own."""
    if "factor" not in position or (before.rope_parameters or {}).get("rope_type") == "yarn":
        return position
    original = position.get("original_length") or before.max_position_embeddings
    factor = position["factor"] or max(1.0, (length or original) / original)
    return position | {"original_length": original, "factor": factor}
