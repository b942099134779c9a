"""Begins a run with a checkpoint of another run, from which only its schedule differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments, get_scheduler

from tape.files import write_text
from tape.runs.folder import (
    EARLIER,
    check_code,
    clear_unfinished,
    conflicts,
    read_configuration,
    step_of,
    unfinished,
    verify_checkpoint,
)
from tape.runs.metrics import MetricsFile, read_metrics

SCHEDULE = (r"trainer\.(lr_scheduler_type|warmup_steps)", r"trainer\.lr_scheduler_kwargs.*")


def branch(trunk: Path, folder: Path) -> Path:
    """Copies the checkpoint `trunk` of another run, and the metrics up to it, into the folder of a
    registered run, which continues from there. Returns the copy.

    Raises:
        ValueError: if this run, uninterrupted, would have had another checkpoint at this step:
            settings or earlier learning rates differ; or if `trunk` is no complete checkpoint.
    """
    if not trunk.name.removeprefix("checkpoint-").isdigit() or not trunk.is_dir():
        raise ValueError(f"trunk={trunk}: must be a checkpoint; give output/NAME/checkpoint-STEP")
    if found := verify_checkpoint(trunk):
        raise ValueError(f"trunk={trunk}: {found}; give another checkpoint")
    before, now = read_configuration(trunk.parent), read_configuration(folder)
    step, planned = step_of(trunk), now["trainer.max_steps"]
    if step >= planned:
        raise ValueError(
            f"trunk={trunk} with trainer.max_steps={planned}: must be more than {step}"
        )
    if changes := conflicts(before, now, SCHEDULE):
        raise ValueError(
            f"trunk={trunk} is of a run with other settings ({'; '.join(changes)}): only the "
            f"schedule and the number of steps may differ"
        )
    check_code(trunk.parent, before, now)
    rates = learning_rates(now, planned, step)
    plans = [*(before.get(EARLIER) or []), before["trainer.max_steps"]]
    if any(learning_rates(before, steps, step) != rates for steps in plans):
        raise ValueError(
            f"trunk={trunk}: the learning rates of both runs must be equal before step {step}; "
            "take schedule=wsd with the same trainer.warmup_steps, in steps, and a checkpoint "
            "before either decay (trainer.lr_scheduler_kwargs.num_decay_steps)"
        )
    clear_unfinished(folder)
    work = unfinished(folder) / trunk.name
    shutil.copytree(trunk, work)
    rows = [row for row in read_metrics(trunk.parent / MetricsFile.FILE) if row["step"] <= step]
    write_text(folder / MetricsFile.FILE, "".join(json.dumps(row) + "\n" for row in rows))
    copy = work.rename(folder / trunk.name)
    unfinished(folder).rmdir()
    return copy


def learning_rates(settings: dict[str, Any], planned: int, count: int) -> list[float]:
    """Returns the learning rates of the first `count` steps, as fractions of the highest.

    Args:
        settings: of the run, flat.
        planned: trainer.max_steps.
    """
    prefix = "trainer.lr_scheduler_kwargs."
    given = {key.removeprefix(prefix): settings[key] for key in settings if key.startswith(prefix)}
    kind, warmup = (settings[f"trainer.{key}"] for key in ("lr_scheduler_type", "warmup_steps"))
    # The library's rule for fractions, without the checks of other fields.
    warmup = TrainingArguments.get_warmup_steps(SimpleNamespace(warmup_steps=warmup), planned)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=settings["trainer.learning_rate"])
    schedule = get_scheduler(kind, optimizer, warmup, planned, given)
    if not isinstance(schedule, LambdaLR):
        raise ValueError(
            f"trunk=... with trainer.lr_scheduler_type={kind}: rates must follow from the step; "
            "take schedule=wsd"
        )
    return [schedule.lr_lambdas[0](n) for n in range(count)]
