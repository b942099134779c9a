"""The console command `tape`: every command of the project by a short name.

It imports nothing that takes time.
"""

import os
import sys
import tomllib
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

from tape import __version__
from tape.core.command import ending_with_the_reader, expected_errors
from tape.core.validation import look_up

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
COMMANDS = tomllib.loads((FOLDER / "commands.toml").read_text("utf-8"))
TARGETS = {name: target for group in COMMANDS.values() for name, (target, _) in group.items()}
RESUMED = {"perplexity", "evaluate", "lm-eval", "scrolls-generate", "speed"}  # if run once more


def usage() -> str:
    """Returns the help: a line per command, grouped by task."""
    lines = ["usage: tape COMMAND [arguments]; tape COMMAND --help shows the arguments"]
    for task, commands in COMMANDS.items():
        lines += ["", f"{task}:"]
        lines += [f"  {name:<17} {about} ({target})" for name, (target, about) in commands.items()]
    return "\n".join(lines)


def main(*words: str) -> None:
    """Runs a command in this process: by default that of the command line."""
    here = Path.cwd() / "tape" / "cli"
    if not words and here.is_dir() and not here.samefile(FOLDER):  # not the installed checkout
        os.execv(sys.executable, [sys.executable, "-m", "tape.cli", *sys.argv[1:]])
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
    with expected_errors(continues=name in RESUMED):
        target = look_up("command", name, TARGETS)
        if target.startswith("benchmarks") and not (ROOT / "benchmarks").is_dir():
            raise ValueError(f"{name} times a checkout of the repository; run it there")
        if name != "train" and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            what = f"tape {name} is one process, not several of torchrun or accelerate launch"
            raise ValueError(f"{what}: run it alone; evaluations share work with --shard i/n")
        # Refused, or helped, before torch is imported.
        parsers = import_module(f"{target.partition('.')[0]}.parsers")
        if parse := getattr(parsers, name.replace("-", "_") + "_" * iskeyword(name), None):
            arguments = parse(words)
            return import_module(target).main(arguments)
    import_module(target).main()  # Hydra parses the words


if __name__ == "__main__":
    main()
