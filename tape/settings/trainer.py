"""The fields of transformers' TrainingArguments and their types, read from its source: importing it
would import torch, which takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def trainer_fields() -> dict[str, frozenset[str]]:
    """Returns the names of the types that each field admits, such as int, str or dict."""
    source = Path(find_spec("transformers").origin).with_name("training_args.py")
    body = next(
        node.body
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
    )
    types = {
        line.target.id: frozenset(_types(line.annotation))
        for line in body
        if isinstance(line, ast.AnnAssign)
    }
    return {name: found for name, found in types.items() if not name.startswith("_")}


def _types(annotation: ast.expr) -> set[str]:
    """The types of a union; a subscripted one without its subscript."""
    if isinstance(annotation, ast.BinOp):
        return _types(annotation.left) | _types(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _types(annotation.value)
    return {ast.unparse(annotation)}


def check_trainer(settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for the first setting that is not a field of TrainingArguments, or whose
    value has another type: text for a number or a truth value, or a number for text."""
    for name, value in settings.items():
        if name == "_target_":
            continue
        types = trainer_fields().get(name)
        if types is None:
            close = get_close_matches(name, trainer_fields(), n=1)
            hint = f"; did you mean trainer.{close[0]}?" if close else ""
            raise ValueError(f"trainer.{name}: TrainingArguments has no such field{hint}")
        if isinstance(value, str) and types & {"int", "float"} and "str" not in types:
            raise ValueError(f"trainer.{name}={value!r} must be a number")
        if "bool" in types and not types & {"str", "dict"} and not isinstance(value, bool | None):
            raise ValueError(f"trainer.{name}={value!r} must be true or false")
        if type(value) in (int, float) and not types & {"int", "float", "bool"}:
            raise ValueError(f"trainer.{name}={value!r} must be text, a list or a mapping")
