"""Changes to the state of a trained TAPE, which show what its parts are for.

Each changes a loaded model for good: the decoder of this package has none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tape.model import checkpoint
from tape.model.modeling import TapeForCausalLM
from tape.positions.tape import Tape, TapeLayer
from tape.validation import look_up


def magnitude(e: Tensor) -> Tensor:
    """Returns |e| (B|1, K|1, T, 1, F) of a state."""
    return e.norm(dim=-2, keepdim=True)


def updating(model: TapeForCausalLM) -> list[TapeLayer]:
    """Returns the encoding's part in each layer that updates the state of a TAPE.

    Raises:
        ValueError: if there is none, or for another encoding.
    """
    found = [x.context for x in model.model.layers if isinstance(x.context, TapeLayer)]
    if not (found and isinstance(model.model.position, Tape)):
        raise ValueError(
            f"position {model.config.position['name']!r}: give a model with tape or tape_yarn, "
            "whose layers update the state"
        )
    return found


def _leave_out(model: TapeForCausalLM, *parts: str) -> None:
    """Leaves out parts of the update: as with P = 0 (`attends`), or W2 = 0 (`feed_forward`)."""
    for layer in updating(model):
        for part in parts:
            setattr(layer, part, False)


def _rotate_by(model: TapeForCausalLM, change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Lets every layer rotate by a function of its state and the initial one."""
    position, first = model.model.position, []
    initial_state = position.state

    def state(*given: Any) -> Tensor:
        first[:] = [initial_state(*given)]
        return first[0]

    position.state = state
    for layer in (layer.context for layer in model.model.layers):
        rotate = layer.rotate
        layer.rotate = lambda q, k, e, rotate=rotate: rotate(q, k, change(e, first[0]))


def _other_text(model: TapeForCausalLM) -> None:
    """Rotates every row of a batch by the state of the row before it, which has the same positions
    and another text."""

    def refuse(module: nn.Module, given: tuple, named: dict[str, Any]) -> None:
        if len(given[0]) < 2:
            raise ValueError("intervention other_text: give batches of two texts or more")

    model.model.layers[0].register_forward_pre_hook(refuse, with_kwargs=True)
    _rotate_by(model, lambda e, first: e.roll(1, dims=0))


INTERVENTIONS: dict[str, Callable[[TapeForCausalLM], None]] = {
    # No layer updates the state: all rotate by that of RoPE.
    "initial": lambda model: _leave_out(model, "attends", "feed_forward"),
    "without_attention": lambda model: _leave_out(model, "attends"),
    "without_feed_forward": lambda model: _leave_out(model, "feed_forward"),
    # The state without its magnitude: e / |e|, with that of RoPE.
    "phases": lambda model: _rotate_by(
        model, lambda e, first: e / magnitude(e).clamp(min=1e-6) * magnitude(first)
    ),
    # RoPE's state with the magnitude of TAPE's.
    "magnitudes": lambda model: _rotate_by(
        model, lambda e, first: first * magnitude(e) / magnitude(first)
    ),
    "other_text": _other_text,
}


def intervene(model: TapeForCausalLM, name: str) -> None:
    """Applies an intervention to a model.

    Raises:
        ValueError: for an unknown one, or a model whose layers do not update the state.
    """
    apply = look_up("intervention", name, INTERVENTIONS)
    updating(model)
    apply(model)


def load(
    folder: Path, intervention: str | None = None
) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """Returns the model of a run, with a change of its state if one is named, and its tokenizer.

    Raises:
        ValueError: as `intervene`.
    """
    model, tokenizer = checkpoint.load(folder)
    if intervention is not None:
        intervene(model, intervention)
    return model, tokenizer
