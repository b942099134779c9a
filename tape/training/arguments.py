"""The TrainingArguments of a run, and values derived from them."""

from __future__ import annotations

import copy
import inspect
import operator
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION, GreedyLR
from transformers.trainer_utils import SchedulerType

from tape.model.adapters import without_deprecations
from tape.settings.schema import RunSettings

ORDER = "the training order is fixed and counted in steps; leave it at its default"
ONE_SIZE = "all steps must have one batch size; set trainer.per_device_train_batch_size"
EVEN = "processes must have as many batches as each other; leave it true"
RESUMES = "a run resumes from the last complete checkpoint in its folder; leave it null"
WHOLE = "a run cannot be resumed without its optimizer state; give false"
LAST = "a run ends with its last weights; trainer.save_total_limit=null keeps all checkpoints"
NO_LOGITS = "a run computes its loss without logits, which smoothing needs; give 0"
SHARING = "processes share no sequences and no heads; leave it out"
LOSSES = "a validation computes losses, no predictions; leave it out"
PRECISION = "a validation has the precision of training; give trainer.bf16 or leave it out"
BATCHES = "the task makes the batches with their labels; leave it out"
CACHE = "training needs no cache, and a saved model has one; leave it out"
KERNELS = "the decoder has its own kernels; leave it out"
SIGNALS = "a run always saves on SIGTERM; leave it out"
UPLOAD = "upload an export instead, see docs/export.md"
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
    "push_to_hub": (False, UPLOAD),
    "hub_model_id": (None, UPLOAD),
    "hub_token": (None, UPLOAD),
    "hub_strategy": ("every_save", UPLOAD),
    "hub_private_repo": (None, UPLOAD),
    "hub_always_push": (False, UPLOAD),
    "hub_revision": (None, UPLOAD),
    "prediction_loss_only": (False, LOSSES),
    "batch_eval_metrics": (False, LOSSES),
    "include_for_metrics": ([], LOSSES),
    "eval_do_concat_batches": (True, LOSSES),
    "eval_use_gather_object": (False, LOSSES),
    "eval_accumulation_steps": (None, LOSSES),
    "fp16_full_eval": (False, PRECISION),
    "bf16_full_eval": (False, PRECISION),
    "label_names": (None, BATCHES),
    "remove_unused_columns": (False, BATCHES),
    "length_column_name": ("length", ORDER),
    "use_cache": (False, CACHE),
    "use_liger_kernel": (False, KERNELS),
    "liger_kernel_config": (None, KERNELS),
    "enable_jit_checkpoint": (False, SIGNALS),
}
# Whatever their value, which a run does not read.
UNREAD = ("do_train", "do_eval", "do_predict")
# Schedules that read a metric, and what takes their arguments.
OF_METRICS = {SchedulerType.REDUCE_ON_PLATEAU: ReduceLROnPlateau, SchedulerType.GREEDY: GreedyLR}
OF_RUNS = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
LOW_RANK = ("galore", "apollo")  # optimizers of chosen modules
OPTIM_ARGS = re.compile(r"\s*\w+\s*=[^=,]+(,\s*\w+\s*=[^=,]+)*")


def training_arguments(
    settings: RunSettings, instantiate: Callable[[dict[str, Any]], Any]
) -> TrainingArguments:
    """Returns the arguments of a run's Trainer, by default for a GPU where there is one.

    Raises:
        ValueError: for settings of `trainer` that transformers or runs here refuse.
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
    for name in ("output_dir", "seed"):
        of_trainer, of_run = getattr(arguments, name), getattr(settings, name)
        same = Path(of_trainer) == Path(of_run) if name == "output_dir" else of_trainer == of_run
        if not same:
            raise ValueError(
                f"trainer.{name}={of_trainer} and {name}={of_run}: set only the latter"
            )
    for name in UNREAD:
        if name in given:
            raise ValueError(
                f"trainer.{name}: a run trains, and validates by trainer.eval_strategy; leave it "
                "out"
            )
    check_training(arguments)
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
    if arguments.gradient_checkpointing_kwargs and not arguments.gradient_checkpointing:
        raise ValueError(
            "trainer.gradient_checkpointing_kwargs has no effect without "
            "trainer.gradient_checkpointing=true"
        )
    check_schedule(arguments)
    check_optimizer(arguments)
    for name in arguments.report_to:
        if name not in get_available_reporting_integrations():
            raise ValueError(
                f"trainer.report_to={name}: not known, or not installed and set up; install it, or "
                "give none"
            )


def check_schedule(arguments: TrainingArguments) -> None:
    """Raises a ValueError for arguments that the schedule of the learning rate does not take."""
    kind, given = arguments.lr_scheduler_type, arguments.lr_scheduler_kwargs or {}
    schedule = f"trainer.lr_scheduler_type={kind.value}"
    if not isinstance(given, dict):
        raise ValueError(f"trainer.lr_scheduler_kwargs={given!r} must be a mapping")
    function = OF_METRICS.get(kind, TYPE_TO_SCHEDULER_FUNCTION[kind])
    taken = [name for name in inspect.signature(function).parameters if name not in OF_RUNS]
    for name in given.keys() - {*taken}:
        raise ValueError(
            f"trainer.lr_scheduler_kwargs.{name}: {schedule} takes {', '.join(taken) or 'none'}"
        )
    for name in ("metric_for_best_model", "greater_is_better"):
        value = getattr(arguments, name)
        if kind not in OF_METRICS and value is not None:
            raise ValueError(f"trainer.{name}={value}: {schedule} reads no metric; leave it out")
    steps, decay = arguments.max_steps, given.get("num_decay_steps")
    most = steps - arguments.get_warmup_steps(steps)
    if decay is not None and not (type(decay) is int and 0 <= decay <= most):
        raise ValueError(
            f"trainer.lr_scheduler_kwargs.num_decay_steps={decay!r} must be an integer >= 0 and at "
            f"most {most}, the steps of trainer.max_steps={steps} after warm-up"
        )


def check_optimizer(arguments: TrainingArguments) -> None:
    """Raises a ValueError for arguments that the optimizer does not read."""
    modules, given = arguments.optim_target_modules, arguments.optim_args
    optimizer = f"trainer.optim={arguments.optim.value}"
    if any(name in arguments.optim for name in LOW_RANK):
        return
    if modules is not None:
        raise ValueError(
            f"trainer.optim_target_modules={modules}: {optimizer} has no target modules; leave it "
            "out"
        )
    if given is None:
        return
    if not (isinstance(given, str) and OPTIM_ARGS.fullmatch(given)):
        raise ValueError(
            f"trainer.optim_args={given!r} must be text such as 'momentum=0.9,nesterov=true'"
        )

    def made(parts: list[str]) -> dict[str, Any]:
        other = copy.copy(arguments)
        other.optim_args = ",".join(parts)
        return Trainer.get_optimizer_cls_and_kwargs(other)[1]

    parts = given.split(",")
    try:
        for part in parts:
            if made(parts) == made([each for each in parts if each != part]):
                name = part.partition("=")[0].strip()
                raise ValueError(f"{name} has no effect with {optimizer}")
    except (ValueError, ImportError) as error:
        raise ValueError(f"trainer.optim_args={given}: {error}") from error


def sequences_per_step(arguments: TrainingArguments) -> int:
    sequences = arguments.train_batch_size * arguments.gradient_accumulation_steps
    return sequences * arguments.world_size


def training_order(arguments: TrainingArguments) -> tuple[int, int]:
    """Returns the number of sequences of a run and the seed of their order."""
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    return arguments.max_steps * sequences_per_step(arguments), seed
