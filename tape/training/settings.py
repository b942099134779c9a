"""Types and bounds of all settings of a run, checked before slow imports.

Settings of `data` are checked by the corpus, arguments of `position` and fields of `model` by
`tape.TapeConfig`, which is also called from Python.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from tape.core.validation import is_number

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,199}")


class Kind(NamedTuple):
    """Allowed values of a setting: in words that follow "must be", and as a predicate."""

    words: str
    admits: Callable[[Any], bool]


class RunSettings(SimpleNamespace):
    """Settings of a run that `check_settings` has accepted, by their names; config/train.yaml says
    what each one is. Groups such as `model` and `trainer` are dictionaries."""

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{name}={value!r}: settings of a run do not change")

    @property
    def recorded(self) -> dict[str, Any]:
        """All settings as they were composed, for the record of the run, but for `evaluate`."""
        return {name: value for name, value in vars(self).items() if name != "evaluate"}


def integer(least: int, most: int | None = None) -> Kind:
    words = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
    return Kind(words, lambda x: type(x) is int and least <= x and (most is None or x <= most))


def number(words: str, admits: Callable[[float], bool]) -> Kind:
    """Returns the kind of finite numbers that `admits` accepts."""
    return Kind(f"a number {words}", lambda x: is_number(x) and admits(x))


def optional(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or null", lambda x: x is None or kind.admits(x))


TEXT = Kind("text", lambda x: isinstance(x, str) and x.strip() != "")
SWITCH = Kind("true or false", lambda x: isinstance(x, bool))
COMMANDS = Kind(
    "a mapping of commands to arguments",
    lambda x: isinstance(x, Mapping) and all(isinstance(y, Mapping | None) for y in x.values()),
)
NOT_NEGATIVE = number(">= 0", lambda x: x >= 0)
POSITIVE = number("> 0", lambda x: x > 0)
BELOW_ONE = number("in [0, 1)", lambda x: 0 <= x < 1)
# Intervals of logging, evaluation and saving: steps, or fractions of trainer.max_steps.
INTERVAL = Kind(
    "an integer >= 1, or a number in (0, 1)",
    lambda x: is_number(x) and ((x >= 1 and float(x).is_integer()) or 0 < x < 1),
)
FOLDER = Kind(
    "one folder of up to 200 letters, digits and ._-+=, beginning with a letter, digit or _",
    lambda x: isinstance(x, str) and NAME.fullmatch(x) is not None,
)
SETTINGS = {
    "name": FOLDER,
    "output_dir": TEXT,
    "cache_dir": TEXT,
    "seed": integer(0, 2**32 - 1),
    "accept_new_code": SWITCH,
    "debug": SWITCH,
    "length": integer(2, 2**31 - 1),
    "base_model": optional(TEXT),
    "frozen": optional(TEXT),
    "tokenizer": optional(TEXT),
    "vocab_size": integer(258, 2**31 - 1),  # every byte and two special tokens
    "eval_blocks": optional(integer(1, 2**31 - 1)),
    "report.tokens": integer(1),
    "evaluate": optional(COMMANDS),
    "task.samples": integer(1),
    "optimizer.matrix_learning_rate": NOT_NEGATIVE,
    "optimizer.encoding_factor": NOT_NEGATIVE,
    "trainer.max_steps": integer(1, 2**31 - 1),
    "trainer.per_device_train_batch_size": integer(1),
    "trainer.per_device_eval_batch_size": integer(1),
    "trainer.gradient_accumulation_steps": integer(1),
    "trainer.learning_rate": NOT_NEGATIVE,
    "trainer.warmup_steps": NOT_NEGATIVE,
    "trainer.weight_decay": NOT_NEGATIVE,
    "trainer.adam_beta1": BELOW_ONE,
    "trainer.adam_beta2": BELOW_ONE,
    "trainer.adam_epsilon": NOT_NEGATIVE,
    "trainer.max_grad_norm": NOT_NEGATIVE,
    "trainer.logging_steps": INTERVAL,
    "trainer.eval_steps": optional(INTERVAL),
    "trainer.save_steps": INTERVAL,
    "trainer.save_total_limit": optional(integer(1)),
    "trainer.dataloader_num_workers": integer(0),
    "rates_of": Kind("copy or counting", lambda x: x in ("copy", "counting")),
    "longest": integer(2, 2**31 - 1),
}
OF_SOME_EXPERIMENTS = ("rates_of", "longest")


def shown(value: Any) -> str:
    """Formats a value as in YAML."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def check(name: str, value: Any, kind: Kind) -> None:
    """Raises a ValueError for a value that a setting does not admit."""
    if not kind.admits(value):
        raise ValueError(f"{name}={shown(value)} must be {kind.words}")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for the first of the composed and resolved settings of a run that is
    missing, unknown or out of bounds."""
    for group in ("position", "model", "data"):
        if not isinstance(settings.get(group), Mapping):
            raise ValueError(f"{group} is missing: give {group}=NAME; --help lists the names")
    for name, kind in SETTINGS.items():
        *above, last = name.split(".")
        owner: Any = settings
        for part in above:
            owner = owner.get(part)
            if not isinstance(owner, Mapping):
                raise ValueError(f"{part}={shown(owner)} must hold settings such as {name}")
        if last in owner:
            check(name, owner[last], kind)
        elif name == "trainer.max_steps" or not (above or name in OF_SOME_EXPERIMENTS):
            raise ValueError(f"{name} is missing: it must be {kind.words}")
    for name in settings["optimizer"].keys() - {"matrix_learning_rate", "encoding_factor"}:
        raise ValueError(f"optimizer.{name}: there is no such setting")
    check_trainer(settings["trainer"])
    warmup, steps = (settings["trainer"].get(key, 0) for key in ("warmup_steps", "max_steps"))
    if warmup > steps:
        what = f"trainer.warmup_steps={warmup} is more than trainer.max_steps={steps}"
        raise ValueError(f"{what}: give fewer, or a fraction such as trainer.warmup_steps=0.05")


@cache
def trainer_fields() -> dict[str, frozenset[str]]:
    """Returns the fields of TrainingArguments and the names of the types that each admits, such as
    int, str or dict. They are read from its source: importing it takes seconds."""
    source = Path(find_spec("transformers").origin).with_name("training_args.py")
    classes = (x for x in ast.parse(source.read_text("utf-8")).body if isinstance(x, ast.ClassDef))
    body = next(each.body for each in classes if each.name == "TrainingArguments")
    return {
        line.target.id: frozenset(
            re.findall(r"\w+", re.sub(r"\[.*?\]", "", ast.unparse(line.annotation)))
        )
        for line in body
        if isinstance(line, ast.AnnAssign) and not line.target.id.startswith("_")
    }


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for the first field of TrainingArguments whose value has another type:
    text for a number or a truth value, or a number for text. The class itself checks no types."""
    for name in settings.keys() & trainer_fields().keys():
        value, types = settings[name], trainer_fields()[name]
        numeric, allowed = types & {"int", "float"}, None
        if isinstance(value, str) and numeric and "str" not in types:
            allowed = "a number"
        elif "bool" in types and not types & {"str", "dict"} and not isinstance(value, bool | None):
            allowed = "true or false"
        elif type(value) in (int, float) and not numeric and "bool" not in types:
            allowed = "text, a list or a mapping"
        if allowed:
            raise ValueError(f"trainer.{name}={value!r} must be {allowed}")
