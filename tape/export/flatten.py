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
            source, imported = rewrite(path.read_text(encoding="utf-8"), module)
            where = path.relative_to(ROOT.parent).as_posix()
            files[file] = f"# {where}, {NOTICE}\n{source}"
            waiting += imported
    return dict(sorted(files.items()))


def flat_name(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").replace(".", "_")


def source_of(module: str) -> Path | None:
    """Returns the file of a module of this package; None for any other name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def _replaced(source: str, texts: dict[ast.AST, str]) -> str:
    """Replaces the texts of statements and expressions."""
    found = source.encode()  # `ast` counts columns in bytes
    starts = [0]
    for line in found.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in sorted(texts, key=lambda node: node.lineno, reverse=True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found = found[:start] + texts[node].encode() + found[end:]
    return found.decode()


def rewrite(source: str, module: str) -> tuple[str, list[str]]:
    """Returns a module's source with flattened imports of this package, and the imported
    modules."""
    texts: dict[ast.AST, str] = {}
    imported: list[str] = []
    for node in filter(_is_ours, ast.walk(ast.parse(source))):
        plain = isinstance(node, ast.ImportFrom) and not node.level
        modules = [x for x in node.names if plain and source_of(f"{node.module}.{x.name}")]
        names = [alias for alias in node.names if alias not in modules]
        if not plain or (names and node.module == PACKAGE):
            raise ValueError(
                f"{module}, line {node.lineno}: '{ast.unparse(node)}' cannot be exported; "
                f"write 'from {PACKAGE}.module import name'"
            )
        imported += [f"{node.module}.{alias.name}" for alias in modules]
        lines = []
        if names:
            imported.append(node.module)
            listed = ", ".join(map(ast.unparse, names))
            lines.append(f"from .{flat_name(node.module)} import {listed}")
            if not modules:  # keeps its line breaks
                head = f"from {node.module} import"
                flat = f"from .{flat_name(node.module)} import"
                lines = [ast.get_source_segment(source, node).replace(head, flat, 1)]
        for alias in modules:
            flat = flat_name(f"{node.module}.{alias.name}")
            local = alias.asname or alias.name
            # The first line only makes transformers' loader copy the file.
            lines.append(f"from .{flat} import __name__ as _{local}")
            lines.append(f"from . import {flat}" + ("" if flat == local else f" as {local}"))
        texts[node] = ("\n" + " " * node.col_offset).join(lines)
    return _replaced(source, texts), imported


def _is_ours(node: ast.AST) -> bool:
    """Whether it imports from this package."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == PACKAGE for alias in node.names)
    if not isinstance(node, ast.ImportFrom):
        return False
    return node.level > 0 or node.module.split(".")[0] == PACKAGE
