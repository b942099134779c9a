"""The console command `tape`: every command of the project by a short name.

It imports nothing that takes time.
"""

import os
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path

from tape import __version__
from tape.cli.commands import all_commands
from tape.core.command import ending_with_the_reader, expected_errors
from tape.core.validation import look_up

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


def usage() -> str:
    """Returns the help: a line per command, grouped by task."""
    lines = ["usage: tape COMMAND [arguments]; tape COMMAND --help shows the arguments"]
    for group, commands in groupby(all_commands().items(), lambda item: item[1].group):
        lines += ["", f"{group}:"]
        lines += [f"  {name:<17} {each.about} ({each.module})" for name, each in commands]
    return "\n".join(lines)


def main(*words: str) -> None:
    """Runs a command in this process: by default that of the command line."""
    here = Path.cwd() / "tape" / "cli"
    if not words and here.is_dir() and not here.samefile(FOLDER):  # not the installed checkout
        os.execv(sys.executable, [sys.executable, "-m", __package__, *sys.argv[1:]])
    name, *arguments = words or sys.argv[1:] or ["--help"]
    sys.argv = [name, *arguments]
    sys.path[:0] = [str(Path.cwd()), str(ROOT)]
    with ending_with_the_reader():
        if name in ("-h", "--help"):
            print(usage())
        elif name == "--version":
            print("tape", __version__)
        else:
            run(name, arguments)


def run(name: str, words: list[str]) -> None:
    """Parses the words after a command's name, and calls `main` of its module."""
    commands = all_commands()
    with expected_errors(continues=name in commands and commands[name].resumes):
        command = look_up("command", name, commands)
        if name != "train" and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            what = f"tape {name} is one process, not several of torchrun or accelerate launch"
            raise ValueError(f"{what}: run it alone; evaluations share work with --shard i/n")
        # Refused, or helped, before torch is imported.
        arguments = command.arguments(words)
        if arguments is not None:
            return import_module(command.module).main(arguments)
    import_module(command.module).main()  # Hydra parses the words


if __name__ == "__main__":
    main()
