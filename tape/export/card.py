"""Model card (README.md) of an exported model, generated from recorded facts only."""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from jinja2 import Environment, StrictUndefined, UndefinedError
from transformers import PreTrainedTokenizerBase

from tape.export.source import Source
from tape.model.checkpoint import SHA256
from tape.model.modeling import TapeForCausalLM
from tape.positions import ENCODINGS
from tape.positions.tape import Tape

TEMPLATE = Path(__file__).with_name("card.md")
# Settings that are left out: local paths and secrets.
PRIVATE = re.compile(r"(.*_)?(dir|debug|token|password|secret|key)")
FILES = ("files", "validation")  # fields of `data`: the user's own files
LOCAL_PATH = re.compile(r"(file:|/|~|\.\.?[/\\]|\\|[A-Za-z]:[/\\])")


def model_card(
    source: Source,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str,
    format: str,
) -> str:
    """Returns the card of a model exported under this name in this format.

    Raises:
        ValueError: if a record of its run is damaged.
    """
    config, encoding = model.config, model.config.position["name"]
    arguments = dict(config.position)
    if hasattr(model.model.position, "inv_freq"):
        arguments["rope_parameters"] = dict(config.rope_parameters)
    head = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    settings = source.settings()
    recorded = config.adaptation or settings or {}
    base, local = recorded.get("base_model"), len(recorded.get("base_weights") or "") == SHA256
    if base is not None:
        head["base_model"] = Path(base).name if local else base
    try:
        package = metadata.version("tape")
    except metadata.PackageNotFoundError:
        package = "(from a checkout)"
    versions = f"tape {package}, torch {torch.__version__}, transformers {transformers.__version__}"
    facts = {
        "head": _yaml(head | {"tags": ["positional-encoding", encoding]}),
        "local_base": local,
        "name": name,
        "encoding": encoding,
        "is_tape": issubclass(ENCODINGS[encoding], Tape),
        "definition": inspect.getdoc(ENCODINGS[encoding]).split("\n\n")[0],
        "config": config,
        "arguments": _yaml(arguments),
        "parameters": model.num_parameters(),
        "has_tokenizer": tokenizer is not None,
        "llama": format == "llama",
        "trust": "" if format == "llama" else ", trust_remote_code=True",
        "step": source.step,
        "settings": settings,
        "shown_settings": _yaml(shareable(settings)),
        "metrics": source.metrics(),
        "report": source.report(),
        "versions": versions,
    }
    environment = Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    try:
        return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(facts)
    except (UndefinedError, TypeError, ValueError) as error:
        raise ValueError(f"{source.run}: the records of the run are damaged ({error})") from error


def shareable(settings: Any, key: str = "") -> Any:
    """Removes local paths, secrets and the folders of files from a run's settings."""
    if isinstance(settings, dict):
        return {
            name: shareable(value, name)
            for name, value in settings.items()
            if not PRIVATE.fullmatch(name)
        }
    if isinstance(settings, list):
        return [shareable(value, key) for value in settings]
    if isinstance(settings, str) and (key in FILES or LOCAL_PATH.match(settings)):
        return re.split(r"[/\\]", settings.rstrip("/\\"))[-1]
    return settings


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
