"""A small task in the format of SCROLLS, which it is not: questions about real text that is on
every machine, the functions of Python's own library.

What a function does is to be summarised (its docstring, which the document then lacks, is the
gold answer); what it is called is to be copied; and three questions with yes or no are to be
decided, equally often. Documents of the corpus's validation files make the validation.
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

VERSION = 1  # of what follows: other questions make other files
SUMMARY = "What does this function do?"
NAME = "What is this function called?"
DECISIONS: dict[str, set[type[ast.AST]]] = {
    "Does this function raise an exception?": {ast.Raise},
    "Does this function have a loop?": {ast.For, ast.AsyncFor, ast.While},
    "Does this function import a module?": {ast.Import, ast.ImportFrom},
}
PER_QUESTION: dict[Split, int] = {"train": 3000, "validation": 60}
LINES = range(4, 200)  # of a document


class Asked(NamedTuple):
    question: str
    document: str
    outputs: tuple[str, ...]  # gold answers, each as good as the others

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.question}\n\n{self.document}".encode()).hexdigest()[:16]


def write_sample(cache: Path) -> Path:
    """The folder with train.jsonl and validation.jsonl, written once."""
    corpus = LocalCorpus()
    folder = cache / "scrolls" / f"sample-{VERSION}-{corpus.fingerprint()[:16]}"
    if not folder.is_dir():
        seen: set[str] = set()  # documents; some functions are in several modules
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
        # Ids are hashes: their order is a shuffle that is the same on every machine.
        mine = sorted((one for one in found.values() if one.question == question), key=_by_id)
        if question in DECISIONS:  # equally often, or the more frequent one would do as an answer
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
    """All that can be asked about a module's functions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # not all of the corpus is Python of this version
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
    """The source of a function without its docstring."""
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        kept = (
            lines[node.lineno - 1 : docstring.lineno - 1]
            + lines[docstring.end_lineno : node.end_lineno]
        )
    return textwrap.dedent("\n".join(kept)).strip()
