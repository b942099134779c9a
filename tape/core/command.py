"""Shared by all command lines: checked numbers, and errors in one line."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from safetensors import SafetensorError

from tape.core.files import check_folder
from tape.core.validation import check_name, check_no_gguf, suggestion

EXPECTED = (ValueError, OSError, MemoryError, SafetensorError)
NO_MEMORY = "can't allocate memory"  # torch's error, on a CPU


def is_expected(error: Exception) -> bool:
    """Returns whether the user can fix an error. Torch, which has one of its own, may not be
    imported yet."""
    no_memory = type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error)
    return isinstance(error, EXPECTED) or (isinstance(error, RuntimeError) and no_memory)


@contextmanager
def ending_with_the_reader() -> Iterator[None]:
    """Ends the process without an error message if the reader of its output has ended, as `head`
    does."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed again at the end
        sys.exit(1)


@contextmanager
def expected_errors(continues: bool = False) -> Iterator[None]:
    """Exits with one line for an error that the user can fix (status 1), and for Ctrl-C (130).
    Also a decorator.

    Args:
        continues: whether rerunning the command resumes the work.
    """
    if hasattr(sys.stdout, "reconfigure"):  # file names may not be valid UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except Exception as error:
        if isinstance(error, BrokenPipeError) or not is_expected(error):
            raise  # the reader of a pipe has ended, or it is a bug
        sys.exit(f"error: {in_one_line(error)}")
    except KeyboardInterrupt:
        print("interrupted" + continues * ": the same command continues", file=sys.stderr)
        sys.exit(130)


def in_one_line(error: Exception) -> str:
    """Formats the message of an error without line breaks and errno."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of an option, unless it is None or False: then the help explains it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        unset = action.default is None or action.default is False
        return action.help if unset else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """ArgumentParser with one-line errors; --help shows the usage."""

    def __init__(self, command: str, description: str, **given: Any):
        super().__init__(f"tape {command}", description=description, **given)
        self.register("type", Path, path)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.removeprefix('argument ')}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = f"unknown {value!r}{suggestion(value, action.choices)}"
            raise argparse.ArgumentError(action, what)


def with_dashes(words: list[str]) -> list[str]:
    """Returns words with `--samples=10` for `samples=10`, which is no file."""
    return [f"--{x}" if re.match(r"\w+=", x) and not Path(x).exists() else x for x in words]


def integer(least: int, most: int = 10**12) -> Callable[[str], int]:
    """Returns a parser of integers from `least` to `most` for argparse."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be an integer >= {least}")
        if int(text) > most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most:,}")
        return int(text)

    return number


def folder_name(text: str) -> str:
    """Parses a folder name for argparse."""
    try:
        return check_name("name", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def path(text: str) -> Path:
    """Parses a path for argparse; refuses an empty one, which would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("'' must be a path")
    found = Path(text)
    return found if found.name.strip(".") else found.resolve()  # . and .. have names elsewhere


def model_folder(text: str) -> Path:
    """Parses the folder of a model for argparse; refuses one that does not exist, or has no weights
    but those of a GGUF file."""
    folder = path(text)
    try:
        check_no_gguf(folder)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from error
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{folder} is not a folder")
    return folder


def result_folder(text: str) -> Path:
    """Parses a folder for results for argparse; refuses the folder of a run or a model, and one
    where no files can be written."""
    folder = path(text)
    try:
        check_folder(folder)
    except OSError as error:
        raise argparse.ArgumentTypeError(in_one_line(error)) from error
    for name in ("run.json", "trained.json", "config.json"):
        if (folder / name).exists():
            what = f"{text} is the folder of a run or a model ({name}); give another one"
            raise argparse.ArgumentTypeError(what)
    return folder


class Distinct(argparse.Action):
    """Accepts several distinct values."""

    def __call__(self, parser: argparse.ArgumentParser, namespace, values, option=None) -> None:
        for value in values:
            if values.count(value) > 1:
                raise argparse.ArgumentError(self, f"duplicate value {value}")
        setattr(namespace, self.dest, values)


class Existing(argparse.Action):
    """Accepts folders of which one exists: the others are named with the results."""

    def __call__(self, parser: argparse.ArgumentParser, namespace, values, option=None) -> None:
        if values and not any(folder.is_dir() for folder in values):
            raise argparse.ArgumentError(self, f"no folder {', '.join(map(str, values))}")
        setattr(namespace, self.dest, values)


SEVERAL: dict[str, Any] = {"nargs": "+", "action": Distinct}  # of an argument


class Command(NamedTuple):
    """A command of `tape`.

    Attributes:
        group: what it is for, a heading of `tape --help`.
        arguments: parses the words after its name, which `main` is given; its docstring begins with
            a line for `tape --help`. None is returned if Hydra parses the words.
        module: whose `main` carries it out, and which may take seconds to import.
        resumes: whether the same command resumes the work that was interrupted.
    """

    group: str
    arguments: Callable[[list[str]], argparse.Namespace | None]
    module: str
    resumes: bool = False

    @property
    def about(self) -> str:
        return self.arguments.__doc__.partition("\n")[0].removesuffix(".")
