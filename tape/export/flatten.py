"""Flattens the modules that a model needs to files next to its weights.

transformers' loader of custom code copies files of one folder only, and only those named in lines
of the form `from .module import ...`. So `tape.positions.rotary` becomes positions_rotary.py, with
its import statements rewritten and nothing else changed.
"""

import ast
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import tape

PACKAGE = tape.__name__
ROOT = Path(tape.__file__).parent
NOTICE = "imports rewritten. MIT License, Copyright (c) 2026 The tape authors"


def flat_modules(*entries: str) -> dict[str, str]:
    """Returns sources by file name, of these modules and all modules that they import of this
    package or their own.

    Raises:
        ValueError: for an import that cannot be written between flat files.
    """
    files: dict[str, str] = {}
    waiting, packages = list(entries), {PACKAGE, *(name.partition(".")[0] for name in entries)}
    while waiting:
        module = waiting.pop()
        file = f"{flat_name(module)}.py"
        if file not in files:
            path = source_of(module)
            if path is None:
                raise ValueError(f"{module} has no source file, and cannot be exported")
            source, imported = rewrite(path.read_text(encoding="utf-8"), module, packages)
            of_this = path.is_relative_to(ROOT)
            about = f"{path.relative_to(ROOT.parent).as_posix()}, {NOTICE}" if of_this else module
            files[file] = f"# {about}\n{source}"
            waiting += imported
    return dict(sorted(files.items()))


def flat_name(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").replace(".", "_")


def source_of(module: str) -> Path | None:
    """Returns the file of a module; None for any other name."""
    package, *parts = module.split(".")
    if package != PACKAGE:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin)
        if not parts:
            return path
        path = path.parent.joinpath(*parts)
    else:
        path = ROOT.joinpath(*parts)
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def rewrite(
    source: str, module: str, packages: Iterable[str] = (PACKAGE,)
) -> tuple[str, list[str]]:
    """Returns a module's source with flattened imports of these packages, and the imported
    modules."""
    ours = re.compile(rf"(import|from) (({'|'.join(map(re.escape, packages))})\b|\.)")
    lines, imported = source.split("\n"), []
    found = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.Import | ast.ImportFrom)]
    for node in sorted(found, key=lambda node: node.lineno, reverse=True):
        if not ours.match(ast.unparse(node)):
            continue
        plain = isinstance(node, ast.ImportFrom) and not node.level
        modules = [x for x in node.names if plain and source_of(f"{node.module}.{x.name}")]
        names = [alias for alias in node.names if alias not in modules]
        if not plain or (names and node.module == PACKAGE):
            raise ValueError(
                f"{module}, line {node.lineno}: '{ast.unparse(node)}' cannot be exported; "
                f"write 'from {PACKAGE}.module import name'"
            )
        flat = []
        if names:
            imported.append(node.module)
            listed = ", ".join(map(ast.unparse, names))
            flat.append(f"from .{flat_name(node.module)} import {listed}")
        for alias in modules:
            imported.append(f"{node.module}.{alias.name}")
            file, local = flat_name(imported[-1]), alias.asname or alias.name
            # The first line only makes transformers' loader copy the file.
            flat.append(f"from .{file} import __name__ as _{local}")
            flat.append(f"from . import {file} as {local}")
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in flat]
    return "\n".join(lines), imported
