"""Commands that Hydra configures, with errors of one line."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import hydra.utils
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape.cli.settings.groups import entries_with, groups_of, options
from tape.core import command
from tape.core.config import CONFIG
from tape.core.run_folder import nodes
from tape.core.validation import suggestion
from tape.imports.named import NAMED  # models that are imported into the cache
from tape.training.settings import check_settings, shown, trainer_fields

FIELD = re.compile(r"\+{0,2}trainer\.(\w+)[.=]")
EXPECTED = (TypeError, ImportError, RecursionError, HydraException, OmegaConfBaseException)


def is_expected(error: Exception) -> bool:
    """Returns whether an error is due to wrong settings, broken files or exhausted resources. Other
    errors are bugs and keep their traceback."""
    from_wandb = type(error).__module__.partition(".")[0] == "wandb"
    return command.is_expected(error) or isinstance(error, EXPECTED) or from_wandb


def call(main: Callable[[], None], name: str) -> None:
    """Calls what `hydra.main` made of a function with the file `name` in CONFIG. What Hydra or
    OmegaConf refuses ends the process with one line, where Hydra would print several, unless
    debug=true asks for all of it."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # raise, and do not print
    words = sys.argv[1:] = with_fields(sys.argv[1:], name)
    try:
        check_added(words, name)
        check_rates_are_read(words, name)
        with command.ending_with_the_reader():
            if {"-h", "--help"} & {*words}:
                print(help_of(words, name))
            else:
                main()
    except Exception as error:
        if "debug=true" in words or isinstance(error, BrokenPipeError) or not is_expected(error):
            raise  # the reader of a pipe has ended, or it is a bug
        refuse(explained(error, name))


def refuse(error: object) -> NoReturn:
    """Exits with an error in one line."""
    error = command.in_one_line(error) if getattr(error, "filename", None) else error
    lines = str(error).splitlines() or [type(error).__name__]
    sys.exit(f"error: {'; '.join(line.strip() for line in lines if line).replace(':; ', ': ')}")


def explained(error: Exception, name: str) -> object:
    """Returns what is wrong in the terms of this project, where Hydra has others."""
    if isinstance(error, OverrideParseException):
        return unquoted(error.override.removeprefix("++"))
    if absent := re.search(r"Could not find '(\w+)/([^']+)'", str(error)):
        group, entry = absent.groups()
        return f"{group}={entry}: there is no such entry{suggestion(entry, options(group))}"
    if not (refused := re.match(r"Could not override '(\S+)'", str(error))):
        return error
    known = {key for key, _ in nodes(OmegaConf.to_container(composed([], name)))}
    if name == "train":
        known |= {f"trainer.{field}" for field in trainer_fields()}
    group, _, setting = refused[1].partition(".")
    if name == "train" and group == "data" and (having := entries_with(group, setting)):
        entries = " or ".join(f"data={entry}" for entry in having)
        return f"{refused[1]}: this corpus has no such setting; it is one of {entries}"
    hint = suggestion(refused[1], known - {refused[1]}).partition(" Known: ")[0]
    more = "; settings of the runs follow --" if name == "sweep" else ""
    if name == "train" and refused[1].startswith("position."):
        more = f"; +{refused[1]}=... gives an argument of the encoding that its file does not list"
    if name == "train" and refused[1].startswith("evaluate."):
        more = f"; a sweep's evaluation='--{refused[1].rpartition('.')[2]} ...' adds an argument"
    return f"{refused[1]}: there is no such setting{hint} --help lists all{more}"


def quoted(text: str) -> str:
    """Returns a text in quotes of Hydra's grammar, unless it needs none."""
    plain = re.fullmatch(r"[\w./+:-]*", text, re.ASCII) or text[:1] in ('"', "'")
    return text if plain else '"' + text.replace('"', r"\"") + '"'


def unquoted(word: str) -> str:
    """Says how to write a setting that Hydra's grammar does not read."""
    name, is_setting, value = word.partition("=")
    if not is_setting:
        return f"{word}: a setting is given as name=value; --help lists all"
    inner = quoted(value)
    if value[:1] in ("[", "{"):  # its texts
        parts = r"[^][{},:]+" if value[0] == "{" else r"[^][{},]+"
        inner = re.sub(parts, lambda part: quoted(part[0].strip()), value)
    how = f"{name}={inner}".replace("'", "\\'")
    what = "a text with other characters than letters a to z, digits and ._/:+-"
    return f"{word}: {what} needs quotes of its own inside those of the shell: '{how}'"


def parsed(words: list[str]) -> list[Override]:
    """Returns the overrides among the words of a command line."""
    parser, overrides = OverridesParser.create(), []
    for word in words:
        with suppress(HydraException):  # a flag, or an error that Hydra reports itself
            overrides.append(parser.parse_override(word))
    return overrides


def unswept(overrides: Iterable[Override]) -> list[str]:
    """Returns the overrides of one value: not seed=0,1, which makes several runs."""
    return [each.input_line for each in overrides if not each.is_sweep_override()]


def check_added(words: list[str], name: str) -> None:
    """Raises a ValueError for a setting that is added (+) outside the groups of settings and the
    empty mappings of the configuration file, where nothing would read it."""
    tree = OmegaConf.to_container(OmegaConf.load(CONFIG / f"{name}.yaml"))
    known = dict(nodes(tree))
    open_to_all = {"hydra", *groups_of(), *(key for key, value in tree.items() if value == {})}
    for each in parsed(words):
        setting = each.key_or_group
        is_read = setting in known or re.split(r"[./]", setting)[0] in open_to_all
        if each.input_line.startswith("+") and not is_read:
            raise ValueError(f"{each.input_line}: there is no such setting; --help lists all")


def check_rates_are_read(words: list[str], name: str) -> None:
    """Raises a ValueError for learning rates by encoding (rates=text) that a run would not read."""
    given = {each.key_or_group: each for each in parsed(words)}
    if name != "train" or "rates" not in given or "trainer.learning_rate" in given:
        return
    found = OmegaConf.to_container(composed(unswept(given.values()), name))
    rate, refused = found["trainer"]["learning_rate"], given["rates"].input_line
    if "learning_rates" in found and "learning_rates" not in str(rate):
        what = f"{refused}: this experiment has one learning rate for all encodings, {rate}"
        raise ValueError(f"{what}; omit it, or give trainer.learning_rate")


def help_of(words: list[str], name: str) -> str:
    """Returns all groups of settings and the settings that a command composes. Hydra's own text
    takes seconds: it copies all entries for each of the groups."""
    groups = (f"{group}: {', '.join(sorted(options(group)))}" for group in groups_of())
    settings = OmegaConf.to_yaml(composed(unswept(parsed(words)), name))
    usage = "usage: group=entry chooses an entry of a group, setting=value changes a setting"
    more = "--hydra-help lists the flags of Hydra"
    more = more if name == "train" else "settings of the runs follow --"
    return "\n".join([usage, "\ngroups:\n", *groups, f"\nsettings:\n\n{settings}\n{more}"])


def composed(words: list[str], name: str) -> DictConfig:
    """Returns the configuration that a command composes of its file in CONFIG and overrides."""
    GlobalHydra.instance().clear()  # that of a running command
    with initialize_config_dir(version_base=None, config_dir=str(CONFIG)):
        return compose(name, with_fields(words, name))


def settings_of(cfg: DictConfig) -> dict[str, Any]:
    """Returns the settings of a run as plain values, or raises a ValueError for the first one that
    is missing or out of bounds. A model with a short name is a folder in the cache, where the run
    imports it."""
    settings = OmegaConf.to_container(cfg, resolve=True)
    check_settings(settings)
    for setting in ("base_model", "tokenizer"):
        if (name := settings[setting]) in NAMED and not Path(name).exists():
            settings[setting] = str(Path(settings["cache_dir"], "models", name))
    return settings


def compose_run(words: list[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Returns the configuration of a run that overrides compose, and its plain values, or raises a
    ValueError for settings that `tape train` would refuse before it reads any data."""
    try:
        check_added(words, "train")
        check_rates_are_read(words, "train")
        found = composed(words, "train")
        return found, settings_of(found)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explained(error, "train")) from error


def override(name: str, value: Any) -> str:
    """Returns an override in Hydra's grammar."""
    return f"{name}={grammar(value)}"


def grammar(value: Any) -> str:
    """Returns a value in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(grammar, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{grammar(each)}' for key, each in value.items())}}}"
    text = value if isinstance(value, str) else shown(value)
    if re.fullmatch(r"[\w./+:-]*", text, re.ASCII):
        return text
    return "'" + text.replace("'", r"\'") + "'"


def overrides_of(name: str, value: Any) -> list[str]:
    """Returns the overrides that give a setting a value, which may be an entry of a group with
    other arguments: position={name: rope, theta: 1e6}."""
    if not (isinstance(value, dict) and options(name)):
        return [override(name, value)]
    if not isinstance(entry := value.get("name"), str):
        raise ValueError(f"{name}={value}: give the entry of the group as its name, {{name:rope}}")
    more = {key: each for key, each in value.items() if key != "name"}
    return [override(name, entry), *(override(f"++{name}.{key}", x) for key, x in more.items())]


def with_fields(words: list[str], name: str) -> list[str]:
    """Prefixes fields of TrainingArguments with ++ in the overrides of train.py, so that fields
    that config/trainer leaves out are settings like the others."""
    if name != "train":
        return words
    return [
        f"++{word.lstrip('+')}" if (of := FIELD.match(word)) and of[1] in trainer_fields() else word
        for word in words
    ]


def instantiate(settings: dict[str, Any]) -> Any:
    """Returns what a `_target_` makes of its settings, or raises its own error and not Hydra's."""
    try:
        return hydra.utils.instantiate(settings, _convert_="all")
    except InstantiationException as error:
        raise error.__cause__ or error from None
