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
from jinja2 import Environment, StrictUndefined
from transformers import PreTrainedTokenizerBase

from tape.export.source import REPORT, Source
from tape.files import reading
from tape.model.checkpoint import SHA256
from tape.model.modeling import TapeForCausalLM
from tape.positions import ENCODINGS
from tape.positions.tape import Tape
from tape.runs.folder import CONFIGURATION
from tape.runs.metrics import MetricsFile

TEMPLATE = Path(__file__).with_name("card.md")
# Settings that are left out: local paths and secrets.
PRIVATE = re.compile(r"(.*_)?(dir|debug|token|password|secret|key)")
FILES = ("files", "validation")  # fields of `data`: the user's own files
LOCAL_PATH = re.compile(r"(file:|/|~|\.\.?[/\\]|\\|[A-Za-z]:[/\\])")
LOSSES = {
    "loss": "training loss (nats per token, mean since the previous log entry)",
    "eval_loss": "validation loss (nats per token)",
}


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
    settings, seen = source.settings(), None
    recorded = config.adaptation or settings or {}
    base, local = recorded.get("base_model"), len(recorded.get("base_weights") or "") == SHA256
    if base is not None:
        head["base_model"] = Path(base).name if local else base
    versions = {
        "tape": package_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if settings is not None:
        with reading(source.run / CONFIGURATION):
            seen = _seen(source.step, settings["sequences_per_step"], settings["length"])
    environment = Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    facts = {
        "head": _yaml(head | {"tags": ["positional-encoding", encoding]}),
        "local_base": local,
        "name": name,
        "encoding": encoding,
        "is_tape": issubclass(ENCODINGS[encoding], Tape),
        "definition": inspect.getdoc(ENCODINGS[encoding]).split("\n\n")[0],
        "config": config,
        "arguments": _yaml(arguments),
        "parameters": f"{model.num_parameters():,}",
        "has_tokenizer": tokenizer is not None,
        "llama": format == "llama",
        "trust": "" if format == "llama" else ", trust_remote_code=True",
        "seen": seen,
        "settings": None if settings is None else _yaml(shareable(settings)),
        "losses": _losses(source),
        "report": source.report(),
        "versions": ", ".join(f"{package} {version}" for package, version in versions.items()),
    }
    if source.run is None:
        return template.render(facts)
    with reading(source.run / REPORT):
        return template.render(facts)


def _seen(step: int | None, sequences: int, length: int) -> str:
    """Describes the steps and tokens seen up to these weights."""
    per_step = f"{sequences} sequences of {length} tokens per step"
    if step is None:
        return f"An unknown number of steps; {per_step}"
    return f"{step:,} steps; {per_step}, {step * sequences * length:,} tokens"


def _losses(source: Source) -> list[str]:
    """Describes the last losses up to these weights."""
    lines = []
    for key, meaning in LOSSES.items():
        if rows := [row for row in source.metrics() if key in row]:
            with reading(source.run / MetricsFile.FILE):
                lines.append(f"{meaning} at step {rows[-1]['step']:,}: {rows[-1][key]:.4f}")
    return lines


def package_version() -> str:
    try:
        return metadata.version("tape")
    except metadata.PackageNotFoundError:
        return "(from a checkout)"


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
