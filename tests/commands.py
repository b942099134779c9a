"""Commands of this project, run in this process as a shell would run them."""

import contextlib
import io
import logging
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest import mock

import torch
from hydra._internal.hydra import Hydra

from tape.cli.__main__ import run

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.strip().splitlines()


def run_command(*words: str, folder: Path, succeeds: bool = False) -> Outcome:
    """Runs `python words...` with `folder` as the current one: a file of `folder` or of this
    project and its arguments, or the `main` of a module, as `-m MODULE ...`. A traceback is on
    stderr, with status 1; with `succeeds`, the status must be 0."""
    words = [str(word) for word in words]
    module, arguments = (words[1], words[2:]) if words[0] == "-m" else (None, words[1:])
    if module and (ROOT / module.replace(".", "/") / "__main__.py").is_file():
        module += ".__main__"
    file = (folder if (folder / words[0]).is_file() else ROOT) / words[0]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        unchanged_logging(),
        contextlib.chdir(folder),
        mock.patch.dict(os.environ),
        mock.patch.object(sys, "argv", [module or str(file), *arguments]),
        mock.patch.object(sys, "path", sys.path[:]),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        # Hydra would compose once more, for the `hydra.mode` that no configuration here sets.
        mock.patch.object(Hydra, "get_mode", return_value=None),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        status = 0
        try:
            if module:
                import_module(module).main()
            else:
                sys.path.insert(0, str(file.parent))
                runpy.run_path(str(file), run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            status = 1
            traceback.print_exc()
    outcome = Outcome(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert status == 0 or not succeeds, outcome.err
    return outcome


def tape(name: str, *words: str | Path) -> None:
    """Runs a command in this process. What it prints goes on, and an error is a SystemExit."""
    run(name, [str(word) for word in words])


@contextlib.contextmanager
def unchanged_logging() -> Iterator[None]:
    """Restores the root logger, which Hydra gives a level and a handler of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
