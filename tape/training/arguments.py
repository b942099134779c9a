"""The TrainingArguments of a run, and values derived from them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import ParallelismConfig
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations

from tape.model.adapters import without_deprecations
from tape.settings.schema import RunSettings

ORDER = "the training order is fixed and counted in steps; leave it at its default"
ONE_SIZE = "all steps must have one batch size; set trainer.per_device_train_batch_size"
EVEN = "processes must have as many batches as each other; leave it true"
RESUMES = "a run resumes from the last complete checkpoint in its folder; leave it null"
WHOLE = "a run cannot be resumed without its optimizer state; give false"
LAST = "a run ends with its last weights; trainer.save_total_limit=null keeps all checkpoints"
NO_LOGITS = "a run computes its loss without logits, which smoothing needs; give 0"
SHARING = "not supported; for processes that share sequences give sequence_parallel=..."
# Field of TrainingArguments -> the value that a run has, and why.
FIXED = {
    "num_train_epochs": (3, "give trainer.max_steps"),
    "ignore_data_skip": (False, ORDER),
    "train_sampling_strategy": ("sequential", ORDER),
    "dataloader_drop_last": (False, ORDER),
    "auto_find_batch_size": (False, ONE_SIZE),
    "accelerator_config.split_batches": (False, ONE_SIZE),
    "accelerator_config.even_batches": (True, EVEN),
    "resume_from_checkpoint": (None, RESUMES),
    "save_only_model": (False, WHOLE),
    "load_best_model_at_end": (False, LAST),
    "label_smoothing_factor": (0, NO_LOGITS),
    "parallelism_config": (None, SHARING),
    "push_to_hub": (False, "upload an export instead, see docs/export.md"),
}


def training_arguments(
    settings: RunSettings, instantiate: Callable[[dict[str, Any]], Any]
) -> TrainingArguments:
    """Returns the arguments of a run's Trainer, by default for a GPU where there is one.

    Raises:
        ValueError: for settings of `trainer` that transformers or runs here refuse, and for
            processes that cannot share sequences.
    """
    given = settings.trainer
    if given.get("deepspeed") and find_spec("deepspeed") is None:
        raise ValueError(
            f"trainer.deepspeed={given['deepspeed']}: DeepSpeed is not installed; run "
            "EXTRAS=deepspeed bash script/setup.sh"
        )
    try:
        with without_deprecations():
            arguments = instantiate({"use_cpu": not torch.accelerator.is_available()} | given)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"trainer: {error}") from error
    if Path(arguments.output_dir) != Path(settings.output_dir):
        raise ValueError(
            f"trainer.output_dir={arguments.output_dir} and output_dir={settings.output_dir}: set "
            "only the latter"
        )
    check_training(arguments)
    share_sequences(arguments, settings.sequence_parallel, settings.length)
    return arguments


def check_training(arguments: TrainingArguments) -> None:
    """Raises a ValueError for settings that transformers allows but runs here do not support."""
    started, seen = int(os.environ.get("WORLD_SIZE", 1)), arguments.world_size
    if started != seen:
        raise ValueError(
            f"{seen} of {started} processes (WORLD_SIZE) would train, each on its own: all must "
            "form one group; on a CPU give +trainer.use_cpu=true, for one process unset WORLD_SIZE"
        )
    if (gpus := arguments.n_gpu) > 1:
        raise ValueError(
            f"one process sees {gpus} GPUs: start one per GPU with NGPUS={gpus} bash "
            f"script/train.sh, or select one with CUDA_VISIBLE_DEVICES=0"
        )
    for field, (allowed, reason) in FIXED.items():
        value = operator.attrgetter(field)(arguments)
        if value != allowed:
            raise ValueError(f"trainer.{field}={getattr(value, 'value', value)}: {reason}")
    if arguments.save_strategy == "best":
        raise ValueError("trainer.save_strategy=best: a run resumes from its last checkpoint")
    if arguments.fp16 and arguments.device.type == "cpu":
        raise ValueError("trainer.fp16=True: float16 needs a GPU; use trainer.bf16=true")
    steps, decay = arguments.max_steps, (arguments.lr_scheduler_kwargs or {}).get("num_decay_steps")
    most = steps - arguments.get_warmup_steps(steps)
    if decay is not None and not (type(decay) is int and 0 <= decay <= most):
        raise ValueError(
            f"trainer.lr_scheduler_kwargs.num_decay_steps={decay!r} must be an integer >= 0 and at "
            f"most {most}, the steps of trainer.max_steps={steps} after warm-up"
        )
    for name in arguments.report_to:
        if name not in get_available_reporting_integrations():
            raise ValueError(
                f"trainer.report_to={name}: not known, or not installed and set up; install it, or "
                "give none"
            )


def share_sequences(arguments: TrainingArguments, size: int, length: int) -> None:
    """Has `size` processes share each sequence (`tape.model.sequence_parallel`), in groups of
    successive ones.

    Raises:
        ValueError: for a launcher, a number of processes or a length that does not allow it.
    """
    if size == 1:
        return
    trying, processes = f"sequence_parallel={size}", arguments.world_size
    if arguments.fsdp_plugin_args is None:
        raise ValueError(f"{trying} without sharded weights: give launcher=fsdp2")
    if arguments.accelerator_config.dispatch_batches:
        raise ValueError(f"{trying} with trainer.accelerator_config.dispatch_batches=true: omit it")
    if processes % size:
        raise ValueError(
            f"{trying} with {processes} process{'es' * (processes > 1)}: start a multiple of "
            f"{size}, as in NGPUS={size} bash script/train.sh"
        )
    if length % size:
        raise ValueError(f"{trying} with length={length}: the length must be a multiple of {size}")
    arguments.parallelism_config = ParallelismConfig(cp_size=size, dp_shard_size=processes // size)


def sharing(arguments: TrainingArguments) -> int:
    """Returns how many processes share each sequence."""
    groups = arguments.parallelism_config
    return 1 if groups is None else groups.cp_size


def sequences_per_step(arguments: TrainingArguments) -> int:
    groups = arguments.world_size // sharing(arguments)
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * groups


def training_order(arguments: TrainingArguments) -> tuple[int, int]:
    """Returns the number of sequences of a run and the seed of their order."""
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    return arguments.max_steps * sequences_per_step(arguments), seed
