"""The TrainingArguments of a run, and values derived from them."""

import logging
import os
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import torch
from torch.optim import SGD
from transformers import TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_utils import SchedulerType

from tape.model.adapters import without_deprecations
from tape.training.settings import RunSettings

# Fields of TrainingArguments that keep their default, by pattern, and why.
FIXED = {
    "num_train_epochs": "give trainer.max_steps",
    "ignore_data_skip|train_sampling_strategy|dataloader_drop_last|length_column_name": (
        "the training order is fixed and counted in steps"
    ),
    r"auto_find_batch_size|accelerator_config\..*": "all steps and processes have one batch size",
    "resume_from_checkpoint": "a run resumes from the last complete checkpoint in its folder",
    "save_only_model": "a run cannot be resumed without its optimizer state",
    "push_to_hub|hub_.*": "upload an export instead, see docs/export.md",
    "load_best_model_at_end|label_smoothing_factor|parallelism_config|prediction_loss_only|"
    "batch_eval_metrics|include_for_metrics|(fp16|bf16)_full_eval|label_names|use_cache|"
    "eval_(do_concat_batches|use_gather_object|accumulation_steps)|remove_unused_columns|"
    "use_liger_kernel|liger_kernel_config|enable_jit_checkpoint|optim_args|optim_target_modules|"
    "metric_for_best_model|greater_is_better": "runs do without it",
}
# Defaults of runs that are not those of transformers.
DEFAULTS = {"train_sampling_strategy": "sequential", "remove_unused_columns": False}
log = logging.getLogger(__name__)
OF_METRICS = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)


def training_arguments(
    settings: RunSettings, instantiate: Callable[[dict[str, Any]], Any]
) -> TrainingArguments:
    """Returns the arguments of a run's Trainer, by default for a GPU where there is one that has
    float64, as Apple's have not. Raises a ValueError for settings of `trainer` that transformers or
    runs here refuse."""
    given = settings.trainer
    try:
        with without_deprecations():
            arguments = instantiate({"use_cpu": not torch.cuda.is_available()} | given)
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise ValueError(f"trainer: {error}") from error
    for name in ("output_dir", "seed"):
        if given.get(name) != getattr(settings, name):
            raise ValueError(f"trainer.{name}={given.get(name)}: set {name}=... instead")
    for name in {"do_train", "do_eval", "do_predict"} & given.keys():
        raise ValueError(f"trainer.{name}: a run validates by trainer.eval_strategy; leave it out")
    check_training(arguments)
    return arguments


def check_training(arguments: TrainingArguments) -> None:
    """Raises a ValueError for settings that transformers allows but runs here do not support."""
    if arguments.fp16 and arguments.device.type == "cpu":  # transformers would train in float32
        raise ValueError("trainer.fp16=True: float16 needs a GPU; use trainer.bf16=true")
    precision = next((kind for kind in ("fp16", "bf16") if getattr(arguments, kind)), "no")
    if (asked := arguments.mixed_precision) != precision:  # by ACCELERATE_MIXED_PRECISION
        raise ValueError(
            f"the launcher asks for mixed precision {asked!r}, the settings for {precision!r}: "
            f"give accelerate launch --mixed_precision {precision}, or trainer.bf16=true"
        )
    if arguments.save_strategy == "best":
        raise ValueError("trainer.save_strategy=best: a run resumes from its last checkpoint")
    able = get_available_reporting_integrations()
    if missing := [name for name in arguments.report_to if name not in able]:
        named = ", ".join(able) or "none"
        raise ValueError(f"trainer.report_to={missing}: not installed; installed: {named}")
    started, seen = int(os.environ.get("WORLD_SIZE", 1)), arguments.world_size
    if started != seen:
        raise ValueError(
            f"{seen} of {started} processes (WORLD_SIZE) would train, each on its own: all must "
            "form one group; on a CPU give +trainer.use_cpu=true, for one process unset WORLD_SIZE"
        )
    if (gpus := arguments.n_gpu) > 1:
        remedy = f"start one per GPU with NGPUS={gpus} bash script/train.sh, or select one with "
        raise ValueError(f"one process sees {gpus} GPUs: {remedy}CUDA_VISIBLE_DEVICES=0")
    _check_schedule(arguments)
    for owner, prefix in ((arguments, ""), (arguments.accelerator_config, "accelerator_config.")):
        for field in fields(owner):
            made = field.default_factory is not MISSING
            usual = field.default_factory() if made else DEFAULTS.get(field.name, field.default)
            name, value = prefix + field.name, getattr(owner, field.name)
            reasons = (reason for names, reason in FIXED.items() if re.fullmatch(names, name))
            if value != usual and (reason := next(reasons, None)):
                value = getattr(value, "value", value)
                raise ValueError(f"trainer.{name}={value}: {reason}; leave it at its default")
    if arguments.gradient_checkpointing_kwargs and not arguments.gradient_checkpointing:
        name = "trainer.gradient_checkpointing"
        raise ValueError(f"{name}_kwargs has no effect without {name}=true")


def warn_of_bfloat16(arguments: TrainingArguments, frozen: str | None) -> None:
    """Logs a warning if a run is in bfloat16 on a CPU that emulates it: a product of matrices takes
    two to four times the time of float32."""
    emulated = arguments.device.type == "cpu" and not torch.cpu._is_avx512_bf16_supported()
    asked = {"trainer.bf16=false": arguments.bf16, "frozen=null": frozen is not None}
    if emulated and (remedies := " ".join(name for name, is_set in asked.items() if is_set)):
        what = "this processor has no instructions for bfloat16, which is slower than float32 here"
        log.warning("%s: give %s", what, remedies)


def _check_schedule(arguments: TrainingArguments) -> None:
    kind, given = arguments.lr_scheduler_type, arguments.lr_scheduler_kwargs or {}
    schedule = f"trainer.lr_scheduler_type={kind.value}"
    if kind in OF_METRICS:
        raise ValueError(f"{schedule} reads a metric: the rate must follow from the step")
    warmup = arguments.get_warmup_steps(arguments.max_steps)
    most = arguments.max_steps - warmup
    if (decay := given.get("num_decay_steps", 0)) > most:
        name = "trainer.lr_scheduler_kwargs.num_decay_steps"
        raise ValueError(f"{name}={decay} must be at most {most}, the steps after warm-up")
    try:
        optimizer = SGD([torch.zeros(1)], lr=arguments.learning_rate)
        steps = arguments.max_steps
        get_scheduler(kind, optimizer, warmup, steps, scheduler_specific_kwargs=given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{schedule}, trainer.lr_scheduler_kwargs={given}: {error}") from error


def sequences_per_step(arguments: TrainingArguments) -> int:
    sequences = arguments.train_batch_size * arguments.gradient_accumulation_steps
    return sequences * arguments.world_size


def training_order(arguments: TrainingArguments) -> tuple[int, int]:
    """Returns the number of sequences of a run and the seed of their order."""
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    return arguments.max_steps * sequences_per_step(arguments), seed
