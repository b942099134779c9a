"""A fault of the authors' code for arithmetic, in runs with task.original_fault=true.

Line 319 of cramming/architectures/attention.py (zhuconv/arithmetic, commit 55f877d) drops the
rotated queries and keys. Models with TAPE, whose state reaches attention in no other way, are NoPE
there. The fault is applied to a model that is trained or evaluated here; the decoder of this
package never has it, so that other commands read the saved model as one without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tape.analysis import intervene
from tape.model.modeling import TapeForCausalLM
from tape.positions.rotary import RotaryLayer
from tape.runs.folder import TRAINED, read_configuration

SETTING = "task.original_fault"


def check_fault(value: Any) -> None:
    """Raises a ValueError unless the setting is true or null."""
    if value is not None and value is not True:
        raise ValueError(f"{SETTING}={value!r} must be true or null")


def leave_unrotated(model: TapeForCausalLM) -> None:
    """Lets every layer attend with its queries and keys as they are.

    Raises:
        ValueError: for an encoding that does not rotate.
    """
    layers = [layer.context for layer in model.base_model.layers]
    if not all(isinstance(layer, RotaryLayer) for layer in layers):
        name = model.config.position["name"]
        raise ValueError(
            f"{SETTING}=true with position={name}: only encodings that rotate have this fault, "
            "such as tape and rope"
        )

    def prepare(x_BTC: Tensor, q_BHTD: Tensor, k_BKTD: Tensor, *_: Any) -> tuple[Any, ...]:
        return q_BHTD, k_BKTD, None

    for layer in layers:
        layer.prepare = prepare


def load(
    folder: Path, intervention: str | None = None
) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """Returns the model of a run, with the fault if it was trained with it, and its tokenizer.

    Args:
        intervention: a change of its state (`tape.analysis.intervene`).

    Raises:
        ValueError: for a model that does not use its state, or whose layers do not update it.
    """
    trained = folder / TRAINED
    faulty = trained.is_file() and read_configuration(folder, TRAINED).get(SETTING)
    if faulty and intervention is not None:
        raise ValueError(
            f"intervention={intervention} with {folder}, trained with {SETTING}=true: its "
            "attention ignores the state; give another model"
        )
    model, tokenizer = intervene.load(folder, intervention)
    if faulty:
        leave_unrotated(model)
    return model, tokenizer
