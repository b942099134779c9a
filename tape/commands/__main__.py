"""The console command `tape`: every command of the project by a short name.

It imports nothing that takes time.
"""

import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from tape.command import expected_errors
from tape.validation import look_up

FOLDER = Path(__file__).parent
COMMANDS = tomllib.loads((FOLDER / "commands.toml").read_text("utf-8"))
TARGETS = {name: target for group in COMMANDS.values() for name, (target, _) in group.items()}


def usage() -> str:
    """Returns the help: a line per command, grouped by task."""
    lines = ["usage: tape COMMAND [arguments]; tape COMMAND --help shows the arguments"]
    for task, commands in COMMANDS.items():
        lines += ["", f"{task}:"]
        lines += [f"  {name:<17} {about} ({target})" for name, (target, about) in commands.items()]
    return "\n".join(lines)


def main() -> None:
    """Runs a command in this process: `main` of its module. If the reader of its output has ended,
    as `head` does, so does the command, without an error message."""
    name, *arguments = sys.argv[1:] or ["--help"]
    try:
        try:
            if name in ("-h", "--help"):
                print(usage())
            else:
                run(name, arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed again at the end
        sys.exit(1)


def run(name: str, arguments: list[str]) -> None:
    here, root = Path.cwd() / "tape" / "commands", FOLDER.parent.parent
    if here.is_dir() and not here.samefile(FOLDER):  # another checkout than the installed one
        os.execv(sys.executable, [sys.executable, "-m", "tape.commands", *sys.argv[1:]])
    sys.argv = [name, *arguments]
    sys.path[:0] = [str(Path.cwd()), str(root)]
    with expected_errors():  # refused, or helped, before torch is imported
        target = look_up("command", name, TARGETS)
        if target.startswith("benchmarks") and not (root / "benchmarks").is_dir():
            raise ValueError(f"{name} times a checkout of the repository; run it there")
        parsers = import_module(f"{target.partition('.')[0]}.parsers")
        if parse := getattr(parsers, name.replace("-", "_"), None):
            parse(arguments)
    import_module(target).main()


if __name__ == "__main__":
    main()
