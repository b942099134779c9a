"""The notebook of the documents runs from top to bottom."""

import json

import matplotlib.pyplot as plt
from commands import ROOT

from tape.positions import ENCODINGS


def test_the_notebook_runs(monkeypatch, capsys):
    monkeypatch.setitem(ENCODINGS, "near", None)  # and removed again
    names = {}
    for cell in json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("steps=300", "steps=10")
            exec(compile(code, "notebook.ipynb", "exec"), names)
    plt.close("all")
    assert names["near"].config.position["extent"] == 4
    assert capsys.readouterr().out.startswith("torch.Size([10240, 64])")
