"""Export as a plain Llama, for encodings that compute the same function."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from transformers import LlamaConfig

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions import PositionEncoding
from tape.positions.rotary import RoPE, RotaryLayer
from tape.positions.tape import TapeLayer

ALLOWED = (
    "allowed: rope with any theta and scaling but partial and clipped, yarn, and tape with "
    "attention=false and feed_forward=false, each with the sampler 'index' or 'shift'; or "
    "--format tape"
)
# Options of attention that a Llama does not have.
OPTIONS = ("qk_norm", "attention_sink", "query_temperature", "scalable_softmax", "gated_attention")


def require_llama(model: TapeForCausalLM) -> None:
    """Raises a ValueError unless a Llama computes the same function from the same tensors."""
    if lacking := next(_what_a_llama_lacks(model), None):
        name = model.config.position["name"]
        raise ValueError(f"--format llama with position {name!r}: a Llama {lacking}; {ALLOWED}")


def _what_a_llama_lacks(model: TapeForCausalLM) -> Iterator[str]:
    config, position, layers = model.config, model.model.position, model.model.layers
    cls, contexts = type(position), [layer.context for layer in layers]
    if config.num_recurrences > 1:
        yield f"applies its layers once, not num_recurrences={config.num_recurrences} times"
    if any(window is not None for window in (config.sliding_window, *(x.window for x in contexts))):
        yield "attends to all tokens, not within a window"
    for option in OPTIONS:
        if getattr(config, option):
            yield f"has no {option}"
    if not isinstance(position, RoPE):
        yield f"rotates queries and keys, and has no {cls.__name__}"
    if any(isinstance(context, TapeLayer) for context in contexts):
        yield "has rotations that are the same in every layer, without a state to update"
    if cls.state is not RoPE.state or any(type(context) is not RotaryLayer for context in contexts):
        yield f"rotates queries and keys, and has no more of {cls.__name__}"
    if cls.biases is not PositionEncoding.biases or cls.embed is not PositionEncoding.embed:
        yield "adds nothing to scores or embeddings"
    rope = config.rope_parameters
    partial = rope["rope_type"] == "default" and rope.get("partial_rotary_factor") not in (None, 1)
    if partial or rope["rope_type"] == "clipped":
        yield "knows neither partial nor clipped rotations"
    if position.sampler.draw is not None:
        yield "counts its positions, and cannot draw them at random"


def llama_config(config: TapeConfig) -> LlamaConfig:
    """Converts our configuration to a Llama's."""
    return LlamaConfig(**{field.name: getattr(config, field.name) for field in fields(LlamaConfig)})


def write_llama_config(model: TapeForCausalLM, folder: Path) -> None:
    """Overwrites config.json with a Llama's; tensor names are a Llama's already."""
    config = llama_config(model.config)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    # Programs that predate `rope_parameters` read these two, with defaults if absent.
    rope = dict(config.rope_parameters)
    saved = json.loads((folder / "config.json").read_text())
    saved["rope_theta"] = rope.pop("rope_theta")
    saved["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
