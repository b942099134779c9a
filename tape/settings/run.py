"""The settings of a run by their names (config/train.yaml)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class RunSettings:
    """Composed settings that `check_settings` has accepted. Groups that a `_target_` or the model
    configuration takes as they are stay dictionaries.

    Attributes:
        length: tokens of a training sequence.
        sequence_parallel: processes that share each sequence.
        base_model: folder or name on the hub of the model to begin with; None: a new one.
        peft: how base_model is adapted (`tape.model.adapters.Method`); None: all of it trains.
        frozen: storage of weights that do not train (`tape.model.frozen`).
        tokenizer: folder or name on the hub; None: one of `vocab_size` tokens is trained.
        eval_blocks: validation sequences during training; None: all.
        recorded: all settings as they were composed, for the record of the run, but for `evaluate`.
    """

    output_dir: str
    cache_dir: str
    seed: int
    length: int
    sequence_parallel: int
    base_model: str | None
    peft: dict[str, Any] | None
    frozen: str | None
    tokenizer: str | None
    vocab_size: int
    eval_blocks: int | None
    report: dict[str, Any]
    model: dict[str, Any]
    position: dict[str, Any]
    task: dict[str, Any]
    data: dict[str, Any]
    trainer: dict[str, Any]
    optimizer: dict[str, Any]
    recorded: dict[str, Any]

    @classmethod
    def of(cls, composed: dict[str, Any]) -> RunSettings:
        names = [field.name for field in fields(cls) if field.name != "recorded"]
        recorded = {name: value for name, value in composed.items() if name != "evaluate"}
        return cls(**{name: composed[name] for name in names}, recorded=recorded)
