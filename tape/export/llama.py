"""Export as a plain Llama, for encodings that compute the same function."""

import json
from dataclasses import fields
from pathlib import Path

from transformers import LlamaConfig

from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions.rotary import RotaryLayer

ALLOWED = (
    "allowed: rope with any theta and scaling but partial and clipped, yarn, and tape with "
    "attention=false and feed_forward=false, each without the sampler 'subset', a window, "
    "recurrences and options of attention; or --format tape"
)
# Options of attention that a Llama does not have.
OPTIONS = ("qk_norm", "attention_sink", "query_temperature", "scalable_softmax", "gated_attention")


def require_llama(model: TapeForCausalLM) -> None:
    """Raises a ValueError unless a Llama computes the same function from the same tensors."""
    config, rope = model.config, model.config.rope_parameters
    name, is_plain = config.position["name"], rope["rope_type"] == "default"
    same = (
        name in ("rope", "yarn", "tape", "tape_yarn")
        and all(type(layer.context) is RotaryLayer for layer in model.model.layers)
        and model.model.position.sampler.draw is None
        and config.num_recurrences == 1
        and config.sliding_window is None
        and not any(getattr(config, option) for option in OPTIONS)
        and rope["rope_type"] != "clipped"
        and not (is_plain and rope.get("partial_rotary_factor") not in (None, 1))
    )
    if not same:
        raise ValueError(
            f"--format llama with position {name!r}: a Llama computes another function; {ALLOWED}"
        )


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
