"""Flattens the modules that a model needs to files next to its weights.

transformers' loader of custom code copies files of one folder only, and only those named in lines
of the form `from .module import ...`. So `tape.positions.rotary` becomes positions_rotary.py, with
its import statements rewritten and nothing else changed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import tape

PACKAGE = tape.__name__
ROOT = Path(tape.__file__).parent
NOTICE = "imports rewritten. MIT License, Copyright (c) 2026 The tape authors"


def flat_modules(*entries: str) -> dict[str, str]:
    """Returns sources by file name, of these modules and all modules of this package they import.

    Raises:
        ValueError: for an import that cannot be written between flat files.
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
    """Returns the file of a module of this package; None for any other name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def rewrite(source: str, module: str) -> tuple[str, list[str]]:
    """Returns a module's source with flattened imports of this package, and the imported
    modules."""
    text = source.encode()  # `ast` counts columns in bytes
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
    """Returns the flattened import statement and the modules that it imports."""
    modules = [alias for alias in node.names if source_of(f"{node.module}.{alias.name}")]
    names = [alias for alias in node.names if alias not in modules]
    if names and node.module == PACKAGE:
        raise ValueError(
            f"'{statement}' cannot be exported: import from the {PACKAGE} module that defines it"
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
        # The first line only makes transformers' loader copy the file.
        lines.append(f"from .{flat} import __name__ as _{local}")
        lines.append(f"from . import {flat}" + ("" if flat == local else f" as {local}"))
    return ("\n" + " " * node.col_offset).join(lines), needed
