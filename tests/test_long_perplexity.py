"""LongPPL: key tokens and their losses against loops over single tokens."""

import json
import math

import numpy as np
import pytest
import test_perplexity
import torch
from test_perplexity import make_run, write_ids

from tape.evaluation import long_perplexity, perplexity, scoring
from tape.evaluation.tables import read_table
from tape.model.checkpoint import load_model

LENGTH, SHORT, TOKENS = 16, 4, 62
ids = test_perplexity.ids


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for n, name in enumerate(("evaluator", "model")):
        make_run(folder / name, "rope", seed=n)
    write_ids(folder / "text.bin", ids(TOKENS))
    return folder


def loop(folder, length):
    """Loss of each token with the context of a window that begins every length / 2 tokens."""
    model, found = load_model(folder), [math.nan] * TOKENS
    for token in range(1, TOKENS):
        start = max(0, token // (length // 2) - 1) * (length // 2)
        window = torch.tensor([ids(TOKENS)[start : token + 1]])
        with torch.no_grad():
            logs = model(window[:, :-1]).logits[0, -1].log_softmax(-1)
        found[token] = -logs[window[0, -1]].item()
    return np.array(found)


@pytest.fixture
def easy(monkeypatch):
    """Bounds that models without training meet."""
    monkeypatch.setattr(long_perplexity, "GAIN", 0.01)
    monkeypatch.setattr(long_perplexity, "MOST", 10.0)


def main(folders, model, *given):
    text = str(folders / "text.bin")
    perplexity.main(["--model", str(folders / model), "--data", text, *map(str, given)])


def test_keys_and_losses_are_those_of_a_loop(folders, tmp_path, easy, capsys):
    keys = tmp_path / "keys.json"
    chosen = [*("--lengths", LENGTH, "--short", SHORT), "--choose", keys]
    main(folders, "evaluator", *chosen)
    long, short = (loop(folders / "evaluator", length) for length in (LENGTH, SHORT))
    expected = [n for n in range(LENGTH // 2, TOKENS) if short[n] - long[n] > 0.01 and long[n] < 10]
    found = json.loads(keys.read_text())
    assert found["keys"] == expected and 5 < len(expected) < TOKENS - 10
    assert found["scored"] == TOKENS - LENGTH // 2
    assert f"{len(expected)} of {found['scored']} tokens are key" in capsys.readouterr().out

    main(folders, "model", "--keys", keys, "--out", tmp_path / "table.csv")
    nll = loop(folders / "model", LENGTH)[expected].mean()
    (row,) = read_table(tmp_path / "table.csv", long_perplexity.COLUMNS)
    assert float(row["nll"]) == pytest.approx(nll, abs=1e-5)
    assert float(row["long_perplexity"]) == pytest.approx(math.exp(nll), rel=1e-5)
    assert (row["evaluator"], row["keys"]) == ("evaluator", str(len(expected)))
    assert "| model | evaluator | 16 | 4 |" in capsys.readouterr().out
    # Of other key tokens, in the same folder: those of other windows.
    found["keys"] = [n for n in range(LENGTH // 2, TOKENS) if n not in expected][:3]
    keys.write_text(json.dumps(found))
    main(folders, "model", "--keys", keys, "--out", tmp_path / "table.csv")
    nll = loop(folders / "model", LENGTH)[found["keys"]].mean()
    rows = read_table(tmp_path / "table.csv", long_perplexity.COLUMNS)
    assert pytest.approx(nll, abs=1e-5) in [float(row["nll"]) for row in rows]


def test_the_same_command_continues(folders, tmp_path, easy, monkeypatch):
    given = ["--choose", tmp_path / "keys.json", "--lengths", LENGTH, "--short", SHORT]
    given += ["--batch_tokens", 16]
    asked, losses = [], scoring.losses

    def some(model, tokens, batch):
        asked.append(batch)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return losses(model, tokens, batch)

    monkeypatch.setattr(scoring, "losses", some)
    with pytest.raises(SystemExit):
        main(folders, "evaluator", *given)
    assert not (tmp_path / "keys.json").exists()
    main(folders, "evaluator", *given)
    first = json.loads((tmp_path / "keys.json").read_text())
    whole = len(asked) - 1
    monkeypatch.setattr(scoring, "losses", losses)
    other = tmp_path / "other.json"
    main(folders, "evaluator", *given[:1], other, *given[2:])
    assert json.loads(other.read_text()) == first
    windows = [(batch.length, *batch.windows) for n, batch in enumerate(asked) if n != 3]
    assert len({*windows}) == whole


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--choose k.json --lengths 16 --short 9", "--short 9 must be in 2..8, half"),
        ("--choose k.json --lengths 16 --short 4", "has no key token among 54: it does"),
        ("--keys other.json", "chosen on another text or with another tokenizer than text.bin"),
        ("--keys mixed.json", "keys must be ascending tokens"),
        ("--keys empty.json", r"empty.json is damaged \(KeyError: 'keys'\)"),
        ("--keys nothing.json", "nothing.json cannot be used"),
    ],
)
def test_what_cannot_be_measured_is_refused(folders, tmp_path, given, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = {"keys": [9, 12], "length": 16, "data_hash": "0" * 16}
    for name, content in {"other": other, "mixed": other | {"keys": [3, 2]}, "empty": {}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=message):
        main(folders, "evaluator", *given.split())
    assert not (tmp_path / "k.json").exists()
