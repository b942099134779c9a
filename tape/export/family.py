"""Export as a model of transformers: a Llama, or one of the families that are read as ours."""

import json
from dataclasses import fields
from pathlib import Path

from transformers import LlamaConfig, PreTrainedConfig

from tape.encodings.absolute import NoPE
from tape.encodings.mixed import Mixed
from tape.model import families
from tape.model.configuration import IDLE, TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.positions.rotary import RotaryLayer

ROTARY = ("rope", "yarn", "tape", "tape_yarn")  # the latter two, if no layer updates the state
ALLOWED = (
    "allowed: rope with any theta and scaling but partial and clipped, yarn, and tape with "
    "attention=false and feed_forward=false, each without the sampler 'subset', recurrences, and "
    "what the family lacks of windows, biases, layers without positions and options of attention; "
    "or --format tape"
)


def family_config(model: TapeForCausalLM, family: str) -> PreTrainedConfig:
    """Returns the configuration with which a family of transformers computes the model's function
    from the same tensors; raises a ValueError if there is none."""
    config, position = model.config, model.model.position
    name, contexts = config.position["name"], [layer.context for layer in model.model.layers]
    parts = [position] * len(contexts)
    if isinstance(position, Mixed):
        parts = [position.entries[place] for place in position.places]
    rotated = [type(context) is RotaryLayer for context in contexts]
    ropes = [part.config.rope_parameters for part, has in zip(parts, rotated, strict=True) if has]
    same = (
        all(has or type(part) is NoPE for part, has in zip(parts, rotated, strict=True))
        and {part.config.position["name"] for part in parts} <= {"nope", *ROTARY}
        and position.sampler.draw is None
        and ropes
        and all(rope == ropes[0] and rope["rope_type"] != "clipped" for rope in ropes)
    )
    differing = ["position"]
    if same:
        windows = [context.window or config.sliding_window for context in contexts]
        found = families.write(family, config, ropes[0], rotated, windows)
        theirs = TapeConfig(**families.read(found.to_dict(), family))
        own = {field.name: getattr(config, field.name) for field in fields(TapeConfig)}
        own |= families.layout(rotated, windows) | {"rope_parameters": dict(ropes[0])}
        ours, names = TapeConfig(**own), {field.name for field in fields(TapeConfig)} - IDLE
        differing = sorted(x for x in names if getattr(theirs, x) != getattr(ours, x))
    if differing:
        raise ValueError(
            f"--format {family} with position {name!r}: a {family.capitalize()} computes another "
            f"function ({', '.join(differing)}); {ALLOWED}"
        )
    return found


def llama_config(config: TapeConfig) -> LlamaConfig:
    """Converts our configuration to a Llama's."""
    return LlamaConfig(**{field.name: getattr(config, field.name) for field in fields(LlamaConfig)})


def write_config(model: TapeForCausalLM, folder: Path, family: str) -> None:
    """Overwrites config.json with a family's; the names of tensors are the same already."""
    config = family_config(model, family)
    config.save_pretrained(folder)
    # Programs that predate `rope_parameters` read these two, with defaults if absent.
    rope = dict(config.rope_parameters)
    saved = json.loads((folder / "config.json").read_text())
    saved["rope_theta"] = rope.pop("rope_theta")
    saved["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
