"""Carries out the plan of a run, from its text to the report."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments, set_seed

from tape.core import provenance
from tape.core.metrics import MetricsFile, read_metrics
from tape.core.run_folder import last_complete, locked, register_run, step_of
from tape.data import StreamedBlocks
from tape.model.adapters import adapt, cast_frozen, describe
from tape.model.checkpoint import check_length, load_model, restore
from tape.model.modeling import TapeForCausalLM
from tape.training.arguments import sequences_per_step, warn_of_bfloat16
from tape.training.build import (
    LENGTH,
    adapt_model,
    build_model,
    identity,
)
from tape.training.callbacks import Stopped, ToCriterion, last_step, reached
from tape.training.plan import RunPlan
from tape.training.settings import RunSettings
from tape.training.task import Task
from tape.training.text import ContinuedStream, follow_stream
from tape.training.trainer import LanguageModelTrainer

log = logging.getLogger(__name__)


def run(plan: RunPlan) -> str:
    """Trains a model or resumes training, and returns the text of its report.

    Raises:
        ValueError: for a text, a tokenizer or a base model that does not fit the plan.
        OSError: for files that cannot be read or written.
        NonFiniteLoss: if the loss is not finite.
        Stopped: if the run was told to stop and has saved.
    """
    settings, arguments, method, config = plan.settings, plan.arguments, plan.method, plan.config
    folder, main = Path(settings.output_dir), arguments.process_index == 0
    if not main:
        logging.getLogger().setLevel(logging.WARNING)
    warn_of_bfloat16(arguments, settings.frozen)
    transformers.logging.disable_progress_bar()
    set_seed(settings.seed)

    with locked(folder) if main else nullcontext():
        with arguments.main_process_first():  # the other processes then read its cached results
            task = plan.prepare()
        if base := settings.base_model:
            model = adapt_model(base, config, task.tokenizer, settings.frozen)
        else:
            model = build_model(config, settings.model, task.tokenizer)
        if model.base_model.position.ordered:
            check_length(model, settings.length, f"length={settings.length}")
        task.check(model)
        record = record_of(settings, arguments, task, model)
        record, checkpoint, finished = begin_or_resume(folder, record, arguments, task.criterion)
        kernel, size = model.config._attn_implementation, f"{model.num_parameters():,} parameters"
        encoding = model.config.position["name"]
        log.info("position %s, attention %s, %s, %s", encoding, kernel, size, task.describe())
        if method:
            trained, weights = settings.model.get(LENGTH), record["base_weights"]
            model = adapt(model, method, base, weights, settings.frozen, trained)
            cast_frozen(model, settings.frozen)
            log.info(describe(model))
        trainer = trainer_of(settings, arguments, task, model, checkpoint)
        if finished:
            log.info("finished at step %s: nothing to train", step_of(checkpoint))
            restore(model, checkpoint)
        else:
            if checkpoint is not None:
                log.info("continuing from %s", checkpoint)
            if arguments.process_index:  # each draws positions and dropout of its own
                torch.manual_seed(settings.seed + arguments.process_index)
            trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
            if trainer.guard.stopped:
                raise Stopped(f"stopped after step {trainer.state.global_step}, which is saved")
        trainer.save_final(record)
        if not main:
            return ""
        del trainer, model  # the report uses the saved model
        saved = load_model(folder, attn_implementation=kernel)
        report = task.report(folder, saved.to(arguments.device))
    print(report)
    log.info("model, tokenizer and report are in %s", folder)
    return report


def record_of(
    settings: RunSettings, arguments: TrainingArguments, task: Task, model: TapeForCausalLM
) -> dict[str, Any]:
    """Returns all settings of the run, and what else must not change when it resumes."""
    record = settings.recorded | {"tokens": task.fingerprints}
    record["sequences_per_step"] = sequences_per_step(arguments)
    if base := settings.base_model:
        record |= {"position": model.config.position, "base_weights": identity(base)}
    return record | {"code": provenance.fingerprint(model)}


def trainer_of(
    settings: RunSettings,
    arguments: TrainingArguments,
    task: Task,
    model: torch.nn.Module,
    checkpoint: Path | None,
) -> LanguageModelTrainer:
    if streamed := isinstance(task.train, StreamedBlocks):
        follow_stream(task.train, arguments, checkpoint)
    trainer = LanguageModelTrainer(
        model=model,
        args=arguments,
        length=settings.length,
        measure=task.measure,
        rates=settings.optimizer,
        train_dataset=task.train,
        eval_dataset=task.evaluation,
        data_collator=task.collate,
        processing_class=task.tokenizer,
    )
    if task.criterion is not None:
        trainer.add_callback(ToCriterion(task.criterion))
    if streamed and checkpoint is not None:
        trainer.add_callback(ContinuedStream(trainer, checkpoint))
    return trainer


def begin_or_resume(
    folder: Path, settings: dict[str, Any], arguments: TrainingArguments, criterion: float | None
) -> tuple[dict[str, Any], Path | None, bool]:
    """Registers the run in its folder. Returns its recorded settings, the checkpoint that all
    processes resume from (or None), and whether that completes the run."""
    checkpoint = None
    if arguments.process_index == 0:
        checkpoint = last_complete(folder)
        if checkpoint is not None and step_of(checkpoint) > arguments.max_steps:
            beyond = f"{checkpoint} is beyond trainer.max_steps={arguments.max_steps}"
            raise ValueError(f"{beyond}; raise it, or give the shorter run another name=...")
        settings = register_run(folder, settings)
        provenance.record(folder)
    checkpoint = broadcast_object_list([checkpoint])[0]
    if checkpoint is None:
        return settings, None, False
    rows = read_metrics(folder / MetricsFile.FILE)
    end = reached((row for row in rows if row["step"] <= step_of(checkpoint)), criterion)
    return settings, checkpoint, step_of(checkpoint) == last_step(end, arguments.max_steps)
