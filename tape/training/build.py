"""A model from the plain settings of a configuration file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase

from tape.configuration import TapeConfig
from tape.modeling import TapeForCausalLM
from tape.names import check_arguments


def build_model(
    shape: dict[str, Any], position: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> TapeForCausalLM:
    """A freshly initialised decoder whose vocabulary and special tokens are the tokenizer's.

    Args:
        shape: fields of `TapeConfig`; a `vocab_size` of None is the tokenizer's.

    Raises:
        ValueError: for a vocabulary smaller than the tokenizer's, or fields that do not exist.
    """
    accepted = {field.name for field in fields(TapeConfig)} | {"attn_implementation"}
    check_arguments("model", shape, accepted)  # the library would keep a misspelt field silently
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
