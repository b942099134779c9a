"""Model card (README.md) of an exported model."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from tape.core.provenance import versions
from tape.encodings import ENCODINGS
from tape.encodings.tape import Tape
from tape.model.checkpoint import SHA256
from tape.model.modeling import TapeForCausalLM

TEMPLATE = Path(__file__).with_name("card.md")


def base_of(recorded: dict[str, Any]) -> tuple[str | None, bool]:
    """Returns the name of a model's base, if it has one, and whether that was a local folder: the
    weights of these are recorded by a hash."""
    base, is_local = recorded.get("base_model"), len(recorded.get("base_weights") or "") == SHA256
    return Path(base).name if base and is_local else base, is_local


def model_card(
    model: TapeForCausalLM, has_tokenizer: bool, recorded: dict[str, Any], name: str, format: str
) -> str:
    """Returns the card of a model exported under this name in this format.

    Args:
        recorded: the `base_model` and its `base_weights`, if the model has one, and the types in
            which imported weights were `stored`.
    """
    encoding, arguments = model.config.position["name"], dict(model.config.position)
    if hasattr(model.model.position, "inv_freq"):
        arguments["rope_parameters"] = dict(model.config.rope_parameters)
    adaptation = model.config.adaptation or {}
    head = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    base, is_local = base_of(recorded)
    if base is not None:
        head["base_model"] = base
    how = {"trim_blocks": True, "keep_trailing_newline": True, "undefined": StrictUndefined}
    dump = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True)
    template = Environment(**how).from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        name=name,
        format=format,
        config=model.config,
        parameters=model.num_parameters(),
        has_tokenizer=has_tokenizer,
        head=dump(head | {"tags": ["positional-encoding", encoding]}),
        base=base,
        local_base=is_local,
        method=adaptation.get("method"),
        stored=recorded.get("stored"),
        is_tape=issubclass(ENCODINGS[encoding], Tape),
        definition=inspect.getdoc(ENCODINGS[encoding]).split("\n\n")[0],
        arguments=dump(arguments),
        versions=", ".join(f"{package} {version}" for package, version in versions().items()),
    )
