"""Export as a plain Llama, for encodings that compute the same function."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from transformers import LlamaConfig

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions import PositionEncoding
from tape.positions.rotary import RoPE, RotaryLayer
from tape.positions.tape import TapeLayer

WHAT_PASSES = (
    "allowed: rope with any theta and scaling but partial and clipped, yarn, and tape with "
    "attention=false and feed_forward=false, each with the sampler 'index' or 'shift'; or "
    "--format tape"
)


def require_llama(model: TapeForCausalLM) -> None:
    """Raises a ValueError unless a Llama computes the same function from the same tensors."""
    position, name = model.model.position, model.config.position["name"]
    if lacking := _what_a_llama_lacks(model, position):
        raise ValueError(f"--format llama with position {name!r}: {lacking}; {WHAT_PASSES}")


def _what_a_llama_lacks(model: TapeForCausalLM, position: PositionEncoding) -> str | None:
    cls = type(position)
    if (recurrences := model.config.num_recurrences) > 1:
        return f"a Llama applies its layers once, not num_recurrences={recurrences} times"
    windows = [layer.context.window for layer in model.model.layers]
    if any(window is not None for window in [*windows, model.config.sliding_window]):
        return "a Llama attends to all tokens, not within a window"
    for option in ("qk_norm", "attention_sink", "query_temperature"):
        if getattr(model.config, option):
            return f"a Llama has no {option}"
    if not isinstance(position, RoPE):
        return f"a Llama rotates queries and keys, and has no {cls.__name__}"
    if any(isinstance(layer.context, TapeLayer) for layer in model.model.layers):
        return "a Llama's rotations are the same in every layer, without a state to update"
    rotates = all(type(layer.context) is RotaryLayer for layer in model.model.layers)
    if cls.state is not RoPE.state or not rotates:
        return f"a Llama rotates queries and keys, and has no more of {cls.__name__}"
    if cls.biases is not PositionEncoding.biases or cls.embed is not PositionEncoding.embed:
        return "a Llama adds nothing to scores or embeddings"
    rope = model.config.rope_parameters
    partial = rope["rope_type"] == "default" and rope.get("partial_rotary_factor") not in (None, 1)
    if partial or rope["rope_type"] == "clipped":
        return "a Llama knows neither partial nor clipped rotations"
    if position.sampler.draw is not None:
        return "a Llama counts its positions, and cannot draw them at random"
    return None


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
