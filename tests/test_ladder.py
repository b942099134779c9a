"""Losses at several sizes and gains in compute, from runs and from made-up losses."""

import json

import numpy as np
import pandas as pd
import pytest
from commands import tape
from conftest import make_model, refuses
from pages import RESULTS, said

from tape.analysis import ladder
from tape.analysis.cost import fake_model, operations
from tape.model.checkpoint import fingerprint
from tape.results import load

SIZES = {10**5: 1e12, 4 * 10**5: 1.6e13, 16 * 10**5: 2.6e14}  # tokens: FLOPs


def made_up(gain, size, flops, names=("rope", "mine"), lengths=(256, 1024), documents=12):
    """Losses of RoPE on a curve, and of an encoding that needs 1 / gain of its compute; beyond the
    trained length, RoPE's rise with the size."""
    random, rows = np.random.RandomState(size), []
    of_documents = np.random.RandomState(0).normal(0, 0.3, documents)
    for name in names:
        for seed in range(3):
            for length in lengths:
                reached = flops * (gain if name != "rope" else 1)
                loss = 2 + 30 * reached**-0.1 + random.normal(0, 1e-3)
                if length > 256:
                    loss = 3 + size / 1e7
                about = (size, name, seed, flops, length)
                rows += [(*about, n, 128, loss + x) for n, x in enumerate(of_documents)]
    return rows


@pytest.fixture
def committed(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "COMMITTED", tmp_path / "committed.csv")
    monkeypatch.setattr(ladder, "step_times", lambda: pd.Series({"rope": 1.0, "mine": 2.0}))
    return tmp_path / "committed.csv"


def write(path, gain=1.5, sizes=SIZES):
    rows = [row for size, flops in sizes.items() for row in made_up(gain, size, flops)]
    pd.DataFrame(rows, columns=ladder.COLUMNS).to_csv(path, index=False)


def cells_of(text, encoding):
    """The cells of an encoding in each of the tables."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {encoding} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("gain", [0.7, 1.5])
def test_gains_are_those_of_the_curve(gain, committed, tmp_path):
    write(committed, gain)
    text = ladder.run([], tmp_path / "out")
    rows, reference = cells_of(text, "mine"), cells_of(text, "rope")
    assert len(rows) == len(reference) == 3
    for row, beside in zip(rows, reference, strict=True):
        value, low, high = (float(x.strip("()")) for x in row[4].replace(" to ", " ").split(" "))
        assert low <= value <= high and value == pytest.approx(gain, rel=0.06)
        in_time = float(row[6].split(" ")[0])  # the same compute in twice the time
        assert in_time == pytest.approx(value / 2, abs=0.006)
        assert row[1] == "3" and row[5] == "-"  # RoPE's losses at 1,024 do not fall
        assert beside[4:] == ["-", "-", "-"]
    assert (text.index("| mine |") < text.index("| rope |")) == (gain > 1)  # the best first
    assert (tmp_path / "out" / "ladder.png").exists()
    key = ["size", "encoding", "seed", "length", "document"]
    expected = pd.read_csv(committed).sort_values(key)["nll"].to_numpy()
    assert (pd.read_csv(tmp_path / "out" / "losses.csv")["nll"].to_numpy() == expected).all()


def test_without_three_sizes_there_are_losses_only(committed, tmp_path):
    write(committed, sizes={10**5: 1e12})
    text = ladder.run([], tmp_path / "out")
    assert cells_of(text, "mine")[0][4:] == ["-", "-", "-"] and "Rank correlation" not in text
    assert (tmp_path / "out" / "ladder.png").exists()
    committed.unlink()
    refuses(
        "committed.csv is missing: name runs of `tape sweep sweep=ladder`", ladder.run, [], tmp_path
    )


def test_the_rank_correlation_of_two_sizes(committed, tmp_path):
    rows = []
    for size, order in ((100, [1, 2, 3, 4]), (400, [1, 2, 4, 3])):
        for name, loss in zip(("rope", "a", "b", "c"), order, strict=True):
            rows += [(size, name, 0, 1e9, 256, n, 9, loss) for n in range(5)]
    pd.DataFrame(rows, columns=ladder.COLUMNS).to_csv(committed, index=False)
    text = ladder.run([], tmp_path / "out")
    told = "Rank correlation of losses (4 encodings, 100 and 400 tokens): 0.80 (0.80 to 0.80)"
    assert told in text


def test_a_run_has_the_compute_of_its_steps(tmp_path, committed):
    """Three forward passes for each training token; runs replace committed ones."""
    folder = tmp_path / "run"
    model = make_model("rope")
    model.save_pretrained(folder)
    settings = {"position": {"name": "rope"}, "length": 16, "seed": 4, "sequences_per_step": 6}
    settings["trainer"] = {"max_steps": 7, "seed": 4}
    (folder / "run.json").write_text(json.dumps({}))
    (folder / "trained.json").write_text(json.dumps(settings))
    refuses("has no losses by document: tape perplexity --model", ladder.read_run, folder)
    (folder / "compare").mkdir()
    rows = {"model_hash": fingerprint(folder)[:16], "length": 16, "document": [0, 3]}
    rows |= dict.fromkeys(ladder.EVALUATED, "")
    rows = pd.DataFrame(rows | {"tokens": [5, 8], "nll": [2.0, 3.0]})
    rows.to_csv(folder / "compare" / "perplexity_by_document.csv", index=False)
    found = ladder.read_run(folder)
    tokens = 7 * 6 * 16
    _, forward = operations(fake_model(model.config, "eager"), 16)
    assert {*found["size"]} == {tokens} and {*found["flops"]} == {3 * forward / 16 * tokens}
    assert found[["seed", "document", "n", "nll"]].to_numpy().tolist() == [
        [4, 0, 5, 2.0],
        [4, 3, 8, 3.0],
    ]
    found[[*ladder.COLUMNS]].assign(nll=9.0).to_csv(committed, index=False)
    tape("ladder", str(folder), "--out", str(tmp_path / "out"))
    assert pd.read_csv(tmp_path / "out" / "losses.csv")["nll"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "are the same run, seed 4: give only one of them"),
        ({"position": {"name": "rope", "theta": 1e6}}, "are both rope, 672 tokens, with other"),
        (
            {"position": {"name": "nope"}, "vocab_size": 9},
            "trained with different settings: v",
        ),
        ({"convention": "paper"}, "were evaluated with different settings: convention: spread ->"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, committed, change, message):
    """They would be one run, or rows of one table."""
    settings = {"position": {"name": "rope"}, "length": 16, "seed": 5, "sequences_per_step": 6}
    settings["trainer"] = {"max_steps": 7, "seed": 0}
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, own in zip(folders, ({"seed": 4}, change), strict=True):
        make_model("rope").save_pretrained(folder)
        own = {"convention": "spread"} | own
        asked = dict.fromkeys(ladder.EVALUATED, "") | {"convention": own.pop("convention")}
        (folder / "trained.json").write_text(json.dumps(settings | own))
        (folder / "compare").mkdir()
        rows = {"model_hash": fingerprint(folder)[:16], "length": 16, "document": [0]}
        rows = pd.DataFrame(rows | asked | {"tokens": 5, "nll": 2.0})
        rows.to_csv(folder / "compare" / "perplexity_by_document.csv", index=False)
    refuses(message, ladder.run, folders, tmp_path / "out")


def test_committed_losses_by_document_are_those_of_the_runs_and_the_page():
    """Means over the tokens of all documents equal the losses of whole runs."""
    key = ["encoding", "seed", "length"]
    documents = pd.read_csv(ladder.COMMITTED).assign(nll=lambda rows: rows["nll"] * rows["n"])
    sums = documents.groupby(key)[["nll", "n"]].sum()
    assert set(sums["n"]) == {32_768} and len(sums) == 9 * 3 * 3
    rows = load([RESULTS / "ladder_1"])
    rows = rows[(rows["measure"] == "loss") & rows["first"].isna() & rows["length"].notna()]
    runs = rows.astype({"length": int}).set_index(key)["value"].sort_index()
    losses = (sums["nll"] / sums["n"]).sort_index()
    pd.testing.assert_series_equal(losses, runs, check_names=False, rtol=1e-6)
    means = losses.groupby(["encoding", "length"]).mean().unstack()
    change = (means[1024] - means[256]).drop("nope")
    assert change[["rope", "tape", "pope"]].min() > 0.1 and f"{change['fire']:.2f}" == "0.03"
    assert change[["alibi", "fox", "kerple", "t5"]].max() < 0.01
    text = (
        "RoPE, TAPE and PoPE lose at least 0.1 nats. The five lose at most 0.01, except FIRE, which"
    )
    assert f"{text} loses 0.03" in said("english")
