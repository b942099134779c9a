"""`tape new-encoding NAME`: the files of a new encoding, which trains at once and is tested."""

import argparse
import keyword
import re
from pathlib import Path

import yaml

from tape.cli.settings.groups import options
from tape.core.files import check_folder, write_text

ROOT = Path(__file__).parents[2]
REGISTRY, BASE = "tape/encodings/__init__.py", "tape/positions/base.py"
LOOPS = "tests/references.py"
LLAMA = "llama"  # among the methods of `tape speed`, that of transformers
TEMPLATES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def check(name: str) -> None:
    """Raises a ValueError unless `name` can be that of a new encoding."""
    if not (ROOT / LOOPS).is_file():
        raise ValueError("new-encoding writes to a checkout of the repository; run it there")
    python = keyword.iskeyword(name) or keyword.iskeyword(class_of(name))
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", name) or python:
        letters = "lower-case letters, digits and _, with a letter first"
        what = f"1 to 30 {letters}, and no word of Python"
        raise ValueError(f"name '{name}' must be {what}; choose another name")
    used = (ROOT / REGISTRY).read_text() + (ROOT / BASE).read_text()
    folders = ("tape/encodings/{}.py", "tape/positions/{}.py", "config/position/{}.yaml")
    files = (ROOT / file.format(name) for file in folders)
    if yaml.safe_load(name) != name or name == LLAMA:
        raise ValueError(f"name '{name}' is a word of YAML or of tape speed; choose another name")
    taken = name in options("position") or any(map(Path.exists, files))
    if taken or re.search(rf'"{name}"|\b{class_of(name)}\b', used):
        raise ValueError(f"name '{name}' exists; choose another name")


def registered(text: str, name: str) -> str:
    """Adds an import, in the order of the modules, and the last line of `ENCODINGS`."""
    imports = re.finditer(r"^from (tape\.\S+) import ", text, re.MULTILINE)
    after = next(found for found in imports if found[1] > f"tape.encodings.{name}").start()
    text = f"{text[:after]}from tape.encodings.{name} import {class_of(name)}\n{text[after:]}"
    end = text.index("\n}\n", text.index("\nENCODINGS: "))
    return f'{text[:end]}\n    "{name}": {class_of(name)},{text[end:]}'


def create(name: str) -> None:
    """Writes the files of an encoding that changes nothing yet."""
    check(name)
    loops = (ROOT / LOOPS).read_text()
    end = loops.index("\n    return zero\n", loops.index("\ndef read_term("))
    loop = "\n" + TEMPLATES["loop"].replace("NAME", name)
    files = {
        f"tape/encodings/{name}.py": TEMPLATES["module"].replace("CLASS", class_of(name)),
        f"config/position/{name}.yaml": TEMPLATES["settings"].replace("NAME", name),
        REGISTRY: registered((ROOT / REGISTRY).read_text(), name),
        LOOPS: loops[:end] + loop.rstrip() + loops[end:],
    }
    for file in files:
        check_folder((ROOT / file).parent)
    for file, text in files.items():
        write_text(ROOT / file, text)


def main(arguments: argparse.Namespace) -> None:
    create(name := arguments.name)
    print(f"tape/encodings/{name}.py: its formula\nconfig/position/{name}.yaml: its arguments")
    print(f"{REGISTRY}: its name, registered\n{LOOPS}: its definition, to be written as a loop")
    print(f"test it: bash script/test.sh tests/test_contract.py -k {name}")
