"""Model card (README.md) of an exported model."""

from __future__ import annotations

import inspect
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from jinja2 import Environment, StrictUndefined
from transformers import PreTrainedTokenizerBase
from transformers import __version__ as VERSION

from tape.model.checkpoint import SHA256
from tape.model.modeling import TapeForCausalLM
from tape.positions import ENCODINGS
from tape.positions.tape import Tape

TEMPLATE = Path(__file__).with_name("card.md")


def base_of(recorded: dict[str, Any]) -> tuple[str | None, bool]:
    """Returns the name of a model's base, if it has one, and whether that was a local folder: the
    weights of these are recorded by a hash."""
    base, is_local = recorded.get("base_model"), len(recorded.get("base_weights") or "") == SHA256
    return Path(base).name if base and is_local else base, is_local


def own_text(tokenizer: PreTrainedTokenizerBase, text: str, most: int) -> str:
    """Returns a text that the tokenizer splits: `text`, or up to `most` tokens of a vocabulary that
    has none for unknown words."""
    try:
        tokenizer(text)
    except Exception:  # tokenizers raises no other class
        ids = [
            n for n in sorted(tokenizer.get_vocab().values()) if n not in tokenizer.all_special_ids
        ]
        return tokenizer.decode(ids[:most])
    return text


def model_card(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase | None,
    recorded: dict[str, Any],
    name: str,
    format: str,
) -> str:
    """Returns the card of a model exported under this name in this format.

    Args:
        recorded: the `base_model` and its `base_weights`, if the model has one.
    """
    encoding, arguments = model.config.position["name"], dict(model.config.position)
    if hasattr(model.model.position, "inv_freq"):
        arguments["rope_parameters"] = dict(model.config.rope_parameters)
    head = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    base, is_local = base_of(recorded)
    if base is not None:
        head["base_model"] = base
    try:
        package = metadata.version("tape")
    except metadata.PackageNotFoundError:
        package = "(from a checkout)"
    how = {"trim_blocks": True, "keep_trailing_newline": True, "undefined": StrictUndefined}
    return (
        Environment(**how)
        .from_string(TEMPLATE.read_text(encoding="utf-8"))
        .render(
            name=name,
            format=format,
            config=model.config,
            parameters=model.num_parameters(),
            example=None if tokenizer is None else own_text(tokenizer, "Once upon a time", 8),
            head=_yaml(head | {"tags": ["positional-encoding", encoding]}),
            local_base=is_local,
            is_tape=issubclass(ENCODINGS[encoding], Tape),
            definition=inspect.getdoc(ENCODINGS[encoding]).split("\n\n")[0],
            arguments=_yaml(arguments),
            versions=f"tape {package}, torch {torch.__version__}, transformers {VERSION}",
        )
    )


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
