"""A small task in SCROLLS format, not part of SCROLLS: questions about the functions of Python's
standard library, real text available on every machine.

Questions ask for a summary of a function (the gold answer is its docstring, which the document
lacks), for its name (to be copied), and for three yes/no decisions with balanced answers. The
validation documents are from the corpus's validation files.
"""

from __future__ import annotations

import ast
import hashlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tape.data import LocalCorpus
from tape.data.corpora import Split
from tape.files import new_folder

VERSION = 1  # of the questions below; part of the folder's name
SUMMARY = "What does this function do?"
NAME = "What is this function called?"
DECISIONS: dict[str, set[type[ast.AST]]] = {
    "Does this function raise an exception?": {ast.Raise},
    "Does this function have a loop?": {ast.For, ast.AsyncFor, ast.While},
    "Does this function import a module?": {ast.Import, ast.ImportFrom},
}
PER_QUESTION: dict[Split, int] = {"train": 3000, "validation": 60}
LINES = range(4, 200)  # allowed numbers of lines of a document


class Asked(NamedTuple):
    question: str
    document: str
    outputs: tuple[str, ...]  # equally good gold answers

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.question}\n\n{self.document}".encode()).hexdigest()[:16]


def write_sample(cache: Path) -> Path:
    """Returns the folder with train.jsonl and validation.jsonl, written once."""
    corpus = LocalCorpus()
    folder = cache / "scrolls" / f"sample-{VERSION}-{corpus.fingerprint()[:16]}"
    if not folder.is_dir():
        seen: set[str] = set()  # documents; a function may be in several modules
        with new_folder(folder) as work:
            for split, most in PER_QUESTION.items():
                asked = [one for text in corpus.documents(split) for one in _asked(text)]
                asked = [one for one in asked if one.document not in seen]
                seen.update(one.document for one in asked)
                lines = [json.dumps(row) + "\n" for row in _rows(asked, most)]
                (work / f"{split}.jsonl").write_text("".join(lines))
    return folder


def _rows(asked: list[Asked], most: int) -> Iterator[dict[str, str]]:
    found = {one.id: one for one in asked}
    chosen: list[Asked] = []
    for question in (SUMMARY, NAME, *DECISIONS):
        # Ids are hashes, so sorting by them is a shuffle that is the same on every machine.
        mine = sorted((one for one in found.values() if one.question == question), key=_by_id)
        if question in DECISIONS:  # balanced, so that guessing the frequent answer does not pay
            sides = [[one for one in mine if one.outputs == (side,)] for side in ("Yes", "No")]
            each = min(most // 2, *map(len, sides))
            mine = sides[0][:each] + sides[1][:each]
        chosen += mine[:most]
    for one in sorted(chosen, key=_by_id):
        for number, output in enumerate(one.outputs):
            text = f"{one.question}\n\n{one.document}"
            yield {"id": one.id, "pid": f"{one.id}_{number}", "input": text, "output": output}


def _by_id(one: Asked) -> str:
    return one.id


def _asked(text: str) -> Iterator[Asked]:
    """Yields all questions about the functions of a module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # some files are for other versions of Python
    lines = text.split("\n")
    for owner in ast.walk(tree):
        for node in ast.iter_child_nodes(owner):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            document = _document(lines, node)
            if document.count("\n") + 1 not in LINES:
                continue
            if summary := ast.get_docstring(node):
                first, _, _ = summary.partition("\n\n")
                golds = (first.split("\n")[0].strip(), " ".join(first.split()))
                if golds[0]:
                    yield Asked(SUMMARY, document, tuple(dict.fromkeys(golds)))
            names = [node.name]
            if isinstance(owner, ast.ClassDef):
                names.append(f"{owner.name}.{node.name}")
            yield Asked(NAME, document, tuple(names))
            parts = {type(part) for part in ast.walk(node)}
            for question, kinds in DECISIONS.items():
                yield Asked(question, document, ("Yes" if parts & kinds else "No",))


def _document(lines: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Returns the source of a function without its docstring."""
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        kept = (
            lines[node.lineno - 1 : docstring.lineno - 1]
            + lines[docstring.end_lineno : node.end_lineno]
        )
    return textwrap.dedent("\n".join(kept)).strip()
