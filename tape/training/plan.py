"""The plan of a run: all that its settings determine, checked before any text is read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import TrainingArguments

from tape.attention.backends import preferred
from tape.model.adapters import Method, check_frozen
from tape.model.configuration import TapeConfig
from tape.training.arguments import training_arguments
from tape.training.build import adapted_config, new_config
from tape.training.optimizer import check_rates
from tape.training.settings import RunSettings
from tape.training.task import Task


@dataclass(frozen=True)
class RunPlan:
    """What `tape.training.run.run` carries out.

    Attributes:
        settings: as they were composed, with types and bounds checked.
        arguments: of the Trainer.
        method: how the base model is adapted; None if all of the model trains.
        config: of the run's model, but for what its tokenizer adds.
        prepare: reads the text, or makes the source of sequences, and returns the task; it may take
            hours.
    """

    settings: RunSettings
    arguments: TrainingArguments
    method: Method | None
    config: TapeConfig
    prepare: Callable[[], Task]


def plan_of(settings: RunSettings, make: Callable[[dict[str, Any]], Any]) -> RunPlan:
    """Returns the plan of a run. `make` creates the object named by a dictionary's `_target_`.

    Raises:
        ValueError, TypeError: for settings that are wrong or in conflict.
    """
    arguments = training_arguments(settings, make)
    method, config = configuration_of(settings, arguments)
    prepare = partial(task_of, settings, arguments, make)
    return RunPlan(settings, arguments, method, config, prepare)


def task_of(
    settings: RunSettings, arguments: TrainingArguments, make: Callable[[dict[str, Any]], Any]
) -> Task:
    return make(settings.task)(make(settings.data), settings, arguments)


def configuration_of(
    settings: RunSettings, arguments: TrainingArguments
) -> tuple[Method | None, TapeConfig]:
    """Returns how the base model is adapted (None if all of the model trains), and the
    configuration of the run's model."""
    method = Method.of(settings.peft) if settings.peft else None
    check_frozen(settings.frozen, method, arguments.bf16)
    check_rates(settings.optimizer, arguments, method)
    kernel = settings.model.get("attn_implementation")
    if kernel == "flex_attention" and arguments.device.type == "cpu":
        what = f"model.attn_implementation={kernel}: on a CPU it has no backward pass"
        raise ValueError(f"{what}; use sdpa or eager")
    if method and not settings.base_model:
        raise ValueError(f"peft={method.name} adapts a trained model: give base_model=...")
    if settings.base_model:
        config = adapted_config(settings.base_model, settings.model, settings.position)
    else:
        config = new_config(settings.model, settings.position)
    if kernel is None:
        config._attn_implementation = preferred(config, arguments.device, settings.length)
    return method, config
