"""TAPE and its baselines: Llama decoders with pluggable positional encodings.

The names below are imported when they are first asked for, because torch and transformers take
seconds: `tape --help` and the refusal of a wrong setting do not wait for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tape.model import TapeConfig, TapeForCausalLM, TapeModel, TapePreTrainedModel

__version__ = "0.2.0"  # the only place; pyproject.toml reads it
__all__ = ["TapeConfig", "TapeForCausalLM", "TapeModel", "TapePreTrainedModel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tape import model

    return getattr(model, name)
