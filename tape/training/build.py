"""A model from the plain settings of a configuration file."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tape.configuration import TapeConfig
from tape.modeling import TapeForCausalLM
from tape.names import check_arguments


def check_training(arguments: TrainingArguments) -> None:
    """Raise a ValueError for what the library allows but a run here cannot honour."""
    if arguments.max_steps < 1:
        raise ValueError(
            f"trainer.max_steps={arguments.max_steps}: runs are counted in steps; give a number > 0"
        )
    if arguments.load_best_model_at_end:
        raise ValueError(
            "trainer.load_best_model_at_end=true: a run ends with its last weights; every "
            "checkpoint of trainer.save_total_limit=null stays to be chosen from"
        )
    if arguments.auto_find_batch_size or arguments.accelerator_config.split_batches:
        raise ValueError(
            "trainer.auto_find_batch_size and accelerator_config.split_batches change how many "
            "sequences a step takes, by which a run is counted; set "
            "trainer.per_device_train_batch_size instead"
        )
    if arguments.n_gpu > 1:
        raise ValueError(
            f"one process with {arguments.n_gpu} GPUs: start one per GPU with NGPUS="
            f"{arguments.n_gpu} bash script/train.sh, or show it one with CUDA_VISIBLE_DEVICES=0"
        )


def sequences_per_step(arguments: TrainingArguments) -> int:
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size


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
