"""Model card (README.md) of an exported model, generated from recorded facts only."""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from typing import Any

import torch
import transformers
import yaml
from transformers import PreTrainedTokenizerBase

from tape.export.source import Source
from tape.files import reading
from tape.modeling import TapeForCausalLM
from tape.positions import ENCODINGS
from tape.positions.tape import Tape
from tape.training.progress import MetricsFile
from tape.training.runs import CONFIGURATION

# Settings that are left out: local paths and secrets.
PRIVATE = re.compile(r"(.*_)?(dir|debug|token|password|secret|key)")
FILES = ("files", "validation")  # fields of `data`: the user's own files
LOCAL_PATH = re.compile(r"(file:|/|~|\.\.?[/\\]|\\|[A-Za-z]:[/\\])")

CITATION = """\
```bibtex
@inproceedings{zhu2025rethinking,
  title = {Rethinking Addressing in Language Models via Contextualized Equivariant Positional
           Encoding},
  author = {Zhu, Jiajun and Wang, Peihao and Cai, Ruisi and Lee, Jason D. and Li, Pan and
            Wang, Zhangyang},
  booktitle = {Proceedings of the 42nd International Conference on Machine Learning},
  year = {2025},
  eprint = {2501.00712},
  archivePrefix = {arXiv},
}
```"""


def model_card(
    source: Source,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str,
    format: str,
) -> str:
    """Returns the card of a model exported under this name in this format."""
    encoding = model.config.position["name"]
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["positional-encoding", encoding],
    }
    summary = (
        f"A decoder with {model.num_parameters():,} parameters whose positional encoding is "
        f"`{encoding}`"
    )
    sections = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}# license: not stated; add your own\n---",
        f"# {name}",
        summary + (", written as a plain Llama." if format == "llama" else "."),
        _loading(name, format, tokenizer is not None),
        _encoding(model),
        _training(source),
        _results(source),
        _versions(source, model, format),
        _citation(encoding),
    ]
    return "\n\n".join(sections) + "\n"


def _loading(name: str, format: str, has_tokenizer: bool) -> str:
    trust = "" if format == "llama" else ", trust_remote_code=True"
    code = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'model = AutoModelForCausalLM.from_pretrained("{name}"{trust})',
    ]
    if has_tokenizer:
        code += [
            f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})',
            'inputs = tokenizer("Once upon a time", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))",
        ]
    else:
        code[0] = "from transformers import AutoModelForCausalLM"
    text = "## Loading\n\n```python\n" + "\n".join(code) + "\n```"
    if not has_tokenizer:
        text += "\n\nNo tokenizer was saved with the model."
    if format == "llama":
        return text
    return text + (
        "\n\n`trust_remote_code=True` runs the Python files of this folder: read them first. They "
        "are modules of the `tape` package, for torch and transformers. After `import "
        "tape`, the installed package's code is used, with the argument and without it. "
        "`type(model).__module__` says which code it is: `tape.modeling`, or a name under "
        "`transformers_modules`."
    )


def _encoding(model: TapeForCausalLM) -> str:
    config = model.config
    cls = ENCODINGS[config.position["name"]]
    definition = inspect.getdoc(cls).split("\n\n")[0]
    arguments = dict(config.position)
    if hasattr(model.model.position, "inv_freq"):
        arguments["rope_parameters"] = dict(config.rope_parameters)
    shape = {
        "layers": config.num_hidden_layers,
        "hidden size": config.hidden_size,
        "heads": config.num_attention_heads,
        "key/value heads": config.num_key_value_heads,
        "vocabulary": config.vocab_size,
        "trained with sequences of": f"{config.max_position_embeddings:,} tokens",
    }
    shown = ", ".join(f"{key} {value}" for key, value in shape.items())
    return f"## Model\n\n{definition}\n\n{_yaml(arguments)}\n\n{shown[0].upper()}{shown[1:]}."


def _training(source: Source) -> str:
    settings = source.settings()
    if settings is None:
        return "## Training\n\nNot recorded: the model was not exported from a run's folder."
    with reading(source.run / CONFIGURATION):
        tokens = _training_tokens(source, settings)
    step = "an unknown number of" if source.step is None else f"{source.step:,}"
    return (
        f"## Training\n\n{step[0].upper()}{step[1:]} steps; {tokens}. The run's settings, without "
        f"local paths:\n\n{_yaml(shareable(settings))}"
    )


def _training_tokens(source: Source, settings: dict[str, Any]) -> str:
    """Describes the number of tokens seen up to these weights."""
    sequences, length = settings["sequences_per_step"], settings["length"]
    step = f"{sequences} sequences of {length} tokens per step"
    return step if source.step is None else f"{step}, {source.step * sequences * length:,} tokens"


def _results(source: Source) -> str:
    losses = []
    for key, meaning in (
        ("loss", "training loss (nats per token, mean since the previous log entry)"),
        ("eval_loss", "validation loss (nats per token)"),
    ):
        rows = [row for row in source.metrics() if key in row]
        if rows:
            with reading(source.run / MetricsFile.FILE):
                losses.append(f"* {meaning} at step {rows[-1]['step']:,}: {rows[-1][key]:.4f}\n")
    head = "## Results\n\n" + "".join(losses) + ("\n" if losses else "")
    report = source.report()
    if report is None:
        return head + "There is no report for these weights, so perplexity is missing."
    if "perplexity" not in report:  # a task with a measure of its own
        shares = {key: value for key, value in report.items() if isinstance(value, float)}
        return head + "\n".join(f"* {key}: {value:.4g}" for key, value in shares.items())
    with reading(source.run / "report" / "report.json"):
        rows = [
            f"| {row['length']} ({row['times']}x) | {row['perplexity']:.2f} | "
            f"{row['bits_per_byte']:.4f} |"
            for row in report["perplexity"]
        ]
        about = (
            f"Measured by `train.py` at the end of the run, with attention {report['attention']}, "
            f"on {report['scored_tokens']:,} tokens of its validation text, the same for every "
            f"window length: the last half training length of each window is scored. Perplexity is "
            "exp of the mean nats per token; bits per byte are nats per token over ln 2, times "
            "tokens per byte (UTF-8) of the whole validation text. One run, one seed."
        )
    table = ["| window (tokens) | validation perplexity | bits per byte |", "|---|---|---|", *rows]
    return head + "\n".join([*table, "", about])


def _versions(source: Source, model: TapeForCausalLM, format: str) -> str:
    saved = {"transformers": model.config.transformers_version}
    now = {
        "tape": package_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    listed = ", ".join(f"{key} {value}" for key, value in now.items())
    check = (
        "equal, bit by bit, in the saved dtype"
        if format == "tape"
        else "equal up to rounding, in float32"
    )
    return (
        f"## Versions\n\nSaved with transformers {saved['transformers']}; exported with {listed}. "
        f"The export was loaded in a process without the package, and its logits on random tokens "
        f"were those of the model: {check}."
    )


def _citation(encoding: str) -> str:
    if issubclass(ENCODINGS[encoding], Tape):
        return f"## Citation\n\n{CITATION}"
    return "## Citation\n\nThe source of the encoding is named under Model."


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
    return f"```yaml\n{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}```"
