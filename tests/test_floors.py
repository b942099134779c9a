"""Rooms of the project and the floor of each: a room imports only from rooms below it."""

import ast

from commands import ROOT

FLOORS = """
tape.core
tape.positions
tape.encodings
tape.attention
tape.model
tape.data
tape.imports
tape.parsers
tape.evaluation
tape.training
tape.export tape.results
tape.analysis
tape.tasks
arithmetic scrolls tape.cli
""".strip()
TOP = ("tape", "arithmetic", "scrolls")
FLOOR = {room: n for n, rooms in enumerate(FLOORS.split("\n")) for room in rooms.split()}


def room_of(module):
    first, *rest = module.split(".")
    return ".".join([first, *rest[:1]]) if first == "tape" else first


def imports_of(path):
    """The modules of this project that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "tape":
            names = {alias.name for alias in node.names} - {"__version__"}
            yield from (f"tape.{name}" for name in names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_rooms_import_from_floors_below():
    wrong = set()
    for path in (path for top in TOP for path in (ROOT / top).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        room = room_of(module)
        if room == "tape.__init__":
            continue
        for name in imports_of(path):
            other = room_of(name)
            if other in FLOOR and other != room and FLOOR[other] >= FLOOR[room]:
                wrong.add((module, name))
            assert other in {*FLOOR, "tape"} or other.split(".")[0] not in TOP, name
    assert not wrong


def test_the_decoder_does_not_know_hydra():
    for path in (ROOT / "tape").rglob("*.py"):
        if "cli" in path.relative_to(ROOT).parts:
            continue
        assert not {name.split(".")[0] for name in imports_of(path)} & {"hydra", "omegaconf"}, path
