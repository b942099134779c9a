"""Commands that Hydra configures, with errors of one line."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

CONFIG = Path(__file__).parent


EXPECTED = (
    *(ValueError, TypeError, OSError, ImportError, RecursionError, MemoryError),
    *(HydraException, OmegaConfBaseException),
)


def is_expected(error: Exception) -> bool:
    """Returns whether an error is due to wrong settings, broken files or exhausted resources. Other
    errors are bugs and keep their traceback."""
    package = type(error).__module__.partition(".")[0]
    memory = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, EXPECTED) or memory or package in ("safetensors_rust", "wandb")


def call(main: Callable[[], None], name: str, folder: Path = CONFIG) -> None:
    """Calls a function decorated by `hydra.main`. Errors of Hydra and OmegaConf end the process
    with one line instead of several.

    Args:
        name: configuration file in `folder`.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # raise instead of printing
    try:
        main()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        refuse(unknown(sys.argv[1:], name, folder) or error)


def refuse(error: object) -> NoReturn:
    """Exits with an error in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    sys.exit(f"error: {'; '.join(line.strip() for line in lines if line)}")


def unknown(words: list[str], name: str, folder: Path = CONFIG) -> str | None:
    """Describes the first override with an unknown setting or group file, if any."""
    parser, overrides = OverridesParser.create(), []
    for word in words:
        with suppress(HydraException):  # a flag, or an error that Hydra reports itself
            overrides.append(parser.parse_override(word))
    defaults = OmegaConf.load(folder / f"{name}.yaml").get("defaults", [])
    needed = {group for each in defaults if each != "_self_" for group in each if each[group]}
    groups = {}
    for override in overrides:
        group = override.key_or_group
        if files := {path.stem for path in (folder / group).glob("*.yaml")}:
            choices = [*override.input_line.partition("=")[2].split(",")]
            for choice in {*choices} - files - ({"null"} if group not in needed else set()):
                return f"unknown {group} {choice!r}{hint(choice, files)} Known: {listed(files)}"
            groups[group] = choices[0]
    with initialize_config_dir(version_base=None, config_dir=str(folder)):
        composed = compose(name, [f"{group}={choice}" for group, choice in groups.items()])
    known = {*_names(OmegaConf.to_container(composed))}
    for override in overrides:
        setting = override.key_or_group
        added = override.is_add() or override.is_force_add()
        if not (added or setting in groups or setting in known or setting.startswith("hydra")):
            line = override.input_line
            return f"{line}: there is no such setting{hint(setting, known)} --help lists all"
    return None


def _names(tree: Any, prefix: str = "") -> Iterator[str]:
    """Yields the settings of a composed configuration, such as `trainer.max_steps`."""
    for key, value in tree.items():
        yield prefix + str(key)
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")


def hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
