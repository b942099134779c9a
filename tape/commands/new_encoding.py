"""`tape new-encoding NAME`: the files of a new encoding, which trains at once and is tested."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from tape import parsers
from tape.command import expected_errors
from tape.files import write_text

ROOT = Path(__file__).parents[2]
REGISTRY, LOOPS = "tape/positions/__init__.py", "tests/references.py"

MODULE = '''"""CLASS: what it computes (authors and year, arXiv number)."""

from __future__ import annotations

from torch import Tensor

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens


class CLASSLayer(LayerPosition):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        return self.scale * q_BHTD, k_BKTD, None


class CLASS(PositionEncoding):
    """The formula."""

    scale: float = 1.0  # what it is

    def layer(self, layer_idx: int) -> LayerPosition:
        return CLASSLayer(self.scale)
'''
YAML = """# What it computes (authors and year).
name: NAME
scale: 1.0 # what it is
"""
LOOP = """
    if arguments["name"] == "NAME":
        raise NotImplementedError("NAME: write its definition as a loop")
"""


def class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def check(name: str) -> None:
    """Raises ValueError unless `name` can be that of a new encoding."""
    python = keyword.iskeyword(name) or keyword.iskeyword(class_of(name))
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,29}", name) or python:
        raise ValueError(
            f"name '{name}' must be 1 to 30 lower-case letters, digits and _, with a letter first, "
            "and no word of Python; choose another name"
        )
    from tape import positions  # imports torch
    from tape.positions import ALIASES, ENCODINGS, base

    files = (f"tape/positions/{name}.py", f"config/position/{name}.yaml")
    taken = [file for file in files if (ROOT / file).exists()]
    taken += [f"the encoding {name}"] * (name in ENCODINGS or name in ALIASES)
    taken += [f"the class {class_of(name)}"] * (class_of(name) in vars(positions) | vars(base))
    if taken:
        raise ValueError(f"name '{name}': {taken[0]} exists; choose another name")


def registered(text: str, name: str) -> str:
    """Adds an import, in the order of the modules, and the last line of `ENCODINGS`."""
    imports = re.finditer(r"^from (tape\.\S+) import ", text, re.MULTILINE)
    after = next(found for found in imports if found[1] > f"tape.positions.{name}").start()
    text = f"{text[:after]}from tape.positions.{name} import {class_of(name)}\n{text[after:]}"
    end = text.index("\n}\n", text.index("\nENCODINGS: "))
    return f'{text[:end]}\n    "{name}": {class_of(name)},{text[end:]}'


def with_loop(text: str, name: str) -> str:
    """Adds a case to `read_term`, before its default."""
    end = text.index("\n    return zero\n", text.index("\ndef read_term("))
    return text[:end] + LOOP.replace("NAME", name).rstrip() + text[end:]


def create(name: str) -> list[str]:
    """Writes the files of an encoding that changes nothing yet; returns their names."""
    if not (ROOT / LOOPS).is_file():
        raise ValueError("new-encoding writes to a checkout of the repository; run it there")
    check(name)
    files = {
        f"tape/positions/{name}.py": MODULE.replace("CLASS", class_of(name)),
        f"config/position/{name}.yaml": YAML.replace("NAME", name),
        REGISTRY: registered((ROOT / REGISTRY).read_text(), name),
        LOOPS: with_loop((ROOT / LOOPS).read_text(), name),
    }
    for file, text in files.items():
        write_text(ROOT / file, text)
    return [*files]


@expected_errors()
def main(given: list[str] | None = None) -> None:
    name = parsers.new_encoding(given).name
    module, settings, registry, loops = create(name)
    print(f"{module}: its formula\n{settings}: its arguments\n{registry}: its name, registered")
    print(f"{loops}: its definition, to be written as a loop")
    print(f"test it: python -m pytest tests/test_contract.py -k {name}")


if __name__ == "__main__":
    main()
