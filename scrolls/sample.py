"""A small task in SCROLLS format, not part of SCROLLS: questions about the functions of Python's
standard library, real text available on every machine.

Questions ask for a summary of a function (the gold answer is its docstring, which the document
lacks), for its name (to be copied), and for three yes/no decisions with balanced answers. The
validation documents are from the corpus's validation files.
"""

import ast
import hashlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from tape.core.files import new_folder
from tape.data import LocalCorpus
from tape.data.corpora import Split

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
Asked = tuple[str, str, tuple[str, ...]]  # question, document, equally good gold answers


def write_sample(cache: Path) -> Path:
    """Returns the folder with train.jsonl and validation.jsonl, written once."""
    corpus = LocalCorpus()
    folder = cache / "scrolls" / f"sample-{VERSION}-{corpus.fingerprint()[:16]}"
    if not folder.is_dir():
        seen: set[str] = set()  # documents; a function may be in several modules
        with new_folder(folder) as work:
            for split, most in PER_QUESTION.items():
                asked = [one for text in corpus.documents(split) for one in _asked(text)]
                asked = [one for one in asked if one[1] not in seen]
                seen.update(document for _, document, _ in asked)
                lines = [json.dumps(row) + "\n" for row in _rows(asked, most)]
                (work / f"{split}.jsonl").write_text("".join(lines))
    return folder


def _rows(asked: list[Asked], most: int) -> Iterator[dict[str, str]]:
    # Ids are hashes, so sorting by them is a shuffle that is the same on every machine.
    table = pd.DataFrame(asked, columns=["question", "document", "outputs"])
    table["input"] = table["question"] + "\n\n" + table["document"]
    table["id"] = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in table["input"]]
    table = table.drop_duplicates("id", keep="last").sort_values("id")
    chosen = []
    for question, rows in table.groupby("question"):
        if question in DECISIONS:  # balanced, so that guessing the frequent answer does not pay
            each = min(most // 2, rows["outputs"].value_counts().min())
            rows = rows.groupby("outputs").head(each)
        chosen.append(rows.head(most))
    for row in pd.concat(chosen).sort_values("id").itertuples():
        for number, output in enumerate(row.outputs):
            yield {"id": row.id, "pid": f"{row.id}_{number}", "input": row.input, "output": output}


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
                    yield SUMMARY, document, tuple(dict.fromkeys(golds))
            method = isinstance(owner, ast.ClassDef)
            names = (node.name, f"{owner.name}.{node.name}") if method else (node.name,)
            yield NAME, document, names
            parts = {type(part) for part in ast.walk(node)}
            for question, kinds in DECISIONS.items():
                yield question, document, ("Yes" if parts & kinds else "No",)


def _document(lines: list[str], node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Returns the source of a function without its docstring."""
    kept = lines[node.lineno - 1 : node.end_lineno]
    if ast.get_docstring(node) is not None:
        docstring = node.body[0]
        del kept[docstring.lineno - node.lineno : docstring.end_lineno - node.lineno + 1]
    return textwrap.dedent("\n".join(kept)).strip()
