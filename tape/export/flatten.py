"""The package's modules that a model needs, as flat files beside its weights.

The library's loader of foreign code copies the files of one folder only, and only those named in
lines of the form `from .module import ...`. So `tape.positions.rotary` becomes positions_rotary.py,
its import statements are rewritten, and nothing else in it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import tape

PACKAGE = tape.__name__
ROOT = Path(tape.__file__).parent
NOTICE = "imports rewritten. MIT License, Copyright (c) 2026 The tape authors"


def flat_modules(*entries: str) -> dict[str, str]:
    """Sources by the names of their files: of these modules and of all of ours that they import.

    Raises:
        ValueError: for an import that has no counterpart between flat files.
    """
    files: dict[str, str] = {}
    waiting = list(entries)
    while waiting:
        module = waiting.pop()
        file = f"{flat_name(module)}.py"
        if file not in files:
            path = source_of(module)
            files[file], imported = rewrite(path.read_text(encoding="utf-8"), module)
            where = path.relative_to(ROOT.parent).as_posix()
            files[file] = f"# {where}, {NOTICE}\n{files[file]}"
            waiting += imported
    return dict(sorted(files.items()))


def flat_name(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").replace(".", "_")


def source_of(module: str) -> Path | None:
    """The file of one of the package's modules; None for any other name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def rewrite(source: str, module: str) -> tuple[str, list[str]]:
    """A module's source with the package's imports made flat, and the modules that these name."""
    text = source.encode()  # the columns of `ast` count bytes
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    imported: list[str] = []
    nodes = [node for node in ast.walk(ast.parse(source)) if _is_ours(node, module)]
    for node in sorted(nodes, key=lambda node: node.lineno, reverse=True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        statement, modules = _flat_import(node, text[start:end].decode())
        text = text[:start] + statement.encode() + text[end:]
        imported += modules
    return text.decode(), imported


def _is_ours(node: ast.AST, module: str) -> bool:
    if isinstance(node, ast.Import):
        foreign = all(alias.name.split(".")[0] != PACKAGE for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        foreign = not node.level and node.module.split(".")[0] != PACKAGE
    else:
        return False
    if not foreign and (isinstance(node, ast.Import) or node.level):
        raise ValueError(
            f"{module}, line {node.lineno}: '{ast.unparse(node)}' cannot be exported; "
            f"write 'from {PACKAGE}.module import name'"
        )
    return not foreign


def _flat_import(node: ast.ImportFrom, statement: str) -> tuple[str, list[str]]:
    """The statement between flat files, and the modules that it names."""
    modules = [alias for alias in node.names if source_of(f"{node.module}.{alias.name}")]
    names = [alias for alias in node.names if alias not in modules]
    if names and node.module == PACKAGE:
        raise ValueError(
            f"'{statement}' cannot be exported: name the module of {PACKAGE} that has it"
        )
    if not modules:
        head = f"from {node.module} import"
        return statement.replace(head, f"from .{flat_name(node.module)} import", 1), [node.module]
    lines, needed = [], [f"{node.module}.{alias.name}" for alias in modules]
    if names:
        listed = ", ".join(map(ast.unparse, names))
        lines.append(f"from .{flat_name(node.module)} import {listed}")
        needed.append(node.module)
    for alias in modules:
        flat = flat_name(f"{node.module}.{alias.name}")
        local = alias.asname or alias.name
        # The first line only tells the library's loader that there is such a file.
        lines.append(f"from .{flat} import __name__ as _{local}")
        lines.append(f"from . import {flat}" + ("" if flat == local else f" as {local}"))
    return ("\n" + " " * node.col_offset).join(lines), needed
