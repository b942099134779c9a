"""Commands that Hydra configures, with errors of one line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape import command
from tape.settings.groups import CONFIG, described, groups_of, options
from tape.settings.schema import check_groups, check_settings, shown, trainer_fields
from tape.validation import suggestion

FIELD = re.compile(r"\+{0,2}trainer\.(\w+)[.=]")
EXPECTED = (TypeError, ImportError, RecursionError, HydraException, OmegaConfBaseException)


def is_expected(error: Exception) -> bool:
    """Returns whether an error is due to wrong settings, broken files or exhausted resources. Other
    errors are bugs and keep their traceback."""
    from_wandb = type(error).__module__.partition(".")[0] == "wandb"
    return command.is_expected(error) or isinstance(error, EXPECTED) or from_wandb


def call(main: Callable[[], None], name: str) -> None:
    """Calls what `hydra.main` made of a function. What Hydra or OmegaConf refuses ends the process
    with one line, where Hydra would print several, unless debug=true asks for all of it.

    Args:
        name: configuration file in CONFIG.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # raise, and do not print
    words = with_fields(sys.argv[1:], name)
    sys.argv[1:] = words
    try:
        if name != "train" and any(word == "-m" or word.startswith("--mu") for word in words):
            raise ValueError("--multirun is for train.py: repeat this command for each value")
        check_added(words, name)
        if {"-h", "--help"} & {*words}:
            print(help_of(words, name))
        else:
            main()
    except BrokenPipeError:
        raise  # the reader of a pipe has ended
    except Exception as error:
        if "debug=true" in words or not is_expected(error):
            raise
        if isinstance(error, OSError) and error.filename and name == "train":  # whose own end there
            error = f"hydra.run.dir, hydra.sweep.dir: no folder {error.filename} can be made"
        refuse(unknown(words, name) or error)


def refuse(error: object) -> NoReturn:
    """Exits with an error in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    sys.exit(f"error: {'; '.join(line.strip() for line in lines if line).replace(':; ', ': ')}")


def parsed(words: list[str]) -> list[Override]:
    """The overrides among the words of a command line."""
    parser, overrides = OverridesParser.create(), []
    for word in words:
        with suppress(HydraException):  # a flag, or an error that Hydra reports itself
            overrides.append(parser.parse_override(word))
    return overrides


def nodes(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of a configuration, such as `trainer.max_steps`, and their values."""
    for key, value in tree.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from nodes(value, f"{prefix}{key}.")


def _file(name: str) -> dict[str, Any]:
    """A configuration file as it is written."""
    return OmegaConf.to_container(OmegaConf.load(CONFIG / f"{name}.yaml"))


def check_added(words: list[str], name: str) -> None:
    """Raises a ValueError for a setting that is added (+) outside the groups of settings and the
    empty mappings of the configuration file, where nothing would read it."""
    tree = _file(name)
    known = {name for name, _ in nodes(tree)}
    groups = {"hydra", *groups_of(), *(key for key, value in tree.items() if value == {})}
    for each in parsed(words):
        setting = each.key_or_group
        outside = re.split(r"[./]", setting)[0] not in groups and setting not in known
        if outside and each.input_line.startswith("+"):
            raise ValueError(no_setting(each, known))


def help_of(words: list[str], name: str) -> str:
    """Returns all groups of settings, what the experiments are and the settings that a command
    composes. Hydra's own text takes seconds: it copies all entries for each of the groups."""
    groups = (f"{group}: {listed(options(group))}" for group in groups_of())
    about = (f"{each}: {what}" for each, what in sorted(described("experiment").items()))
    parts = {"groups": "\n".join(groups)}
    parts |= {"experiments": "\n".join(about)} if name == "train" else {}
    overrides = [each.input_line for each in parsed(words)]
    parts["settings"] = OmegaConf.to_yaml(composed(overrides, name))
    usage = "usage: group=entry chooses an entry of a group, setting=value changes a setting\n"
    text = "\n".join([usage, *(f"\n{title}:\n\n{part}" for title, part in parts.items())])
    of_runs = "settings of the runs follow --"
    return f"{text}\n{'--hydra-help lists the flags of Hydra' if name == 'train' else of_runs}"


def composed(words: list[str], name: str) -> DictConfig:
    """The configuration that a command composes of its file in CONFIG and overrides."""
    GlobalHydra.instance().clear()  # that of a running command
    with initialize_config_dir(version_base=None, config_dir=str(CONFIG)):
        return compose(name, with_fields(words, name))


def settings_of(cfg: DictConfig) -> dict[str, Any]:
    """The settings of a run as plain values.

    Raises:
        ValueError: for the first one that is missing or out of bounds.
    """
    check_groups(OmegaConf.to_container(cfg))
    settings = OmegaConf.to_container(cfg, resolve=True)
    check_settings(settings)
    return settings


def compose_run(words: list[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Returns the configuration of a run that overrides compose, and its plain values.

    Raises:
        ValueError: for settings that `tape train` would refuse before it reads any data.
    """
    try:
        check_added(words, "train")
        found = composed(words, "train")
        return found, settings_of(found)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(unknown(words, "train") or str(error)) from error


def override(name: str, value: Any) -> str:
    """An override in Hydra's grammar."""
    text = value if isinstance(value, str) else shown(value)
    if not re.fullmatch(r"[\w./+:-]*", text):
        text = "'" + text.replace("'", r"\'") + "'"
    return f"{name}={text}"


def with_fields(words: list[str], name: str) -> list[str]:
    """Prefixes fields of TrainingArguments with ++ in the overrides of train.py, so that fields
    that config/trainer leaves out are settings like the others."""
    if name != "train":
        return words
    return [
        f"++{word.lstrip('+')}" if (of := FIELD.match(word)) and of[1] in trainer_fields() else word
        for word in words
    ]


def unknown(words: list[str], name: str) -> str | None:
    """What is wrong with the first override that names no setting or no file of a group, or lacks
    quotes, if any."""
    for word in words:
        setting, _, value = word.partition("=")
        if "=" in value and not parsed([word]) and (quoted := parsed([f'{setting}="{value}"'])):
            plain, (line,) = word.replace("++", ""), (each.input_line for each in quoted)
            return f"{plain}: quote a value with =, as in '{line.replace('++', '')}'"
    overrides = parsed(words)
    entries = (entry for entry in _file(name)["defaults"] if isinstance(entry, dict))
    usable = {group for entry in entries for group in entry}
    lists = [each for each in overrides if isinstance(each.value(), list)]
    groups = {}
    for each in overrides:
        group = each.key_or_group
        for above in lists:
            if group.startswith(f"{above.key_or_group}."):
                pair = f"{each.input_line} beside {above.input_line}"
                return f"{pair.replace('++', '')}: give one of the two"
        if group in usable and (names := options(group)):
            choices = each.input_line.partition("=")[2].split(",")
            for choice in {*choices} - names:
                if choice == "null":
                    return f"{group}=null: leave {group} out, or choose one of {listed(names)}"
                return f"unknown {group} {choice!r}{suggestion(choice, names)}"
            groups[group] = choices[0]
    chosen = [f"{group}={choice}" for group, choice in groups.items()]
    known = {key for key, _ in nodes(OmegaConf.to_container(composed(chosen, name)))}
    if name == "train":
        known |= {f"trainer.{field}" for field in trainer_fields()}
    for each in overrides:
        setting = each.key_or_group
        there = setting in groups or setting in known or setting.startswith("hydra")
        if not (there or each.input_line.startswith("+")):
            of_runs = "; settings of the runs follow --" if name == "sweep" else ""
            return no_setting(each, known) + of_runs
    return None


def no_setting(override: Override, known: Iterable[str]) -> str:
    hint = suggestion(override.key_or_group, known).partition(" Known: ")[0]
    return f"{override.input_line}: there is no such setting{hint} --help lists all"


def listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
