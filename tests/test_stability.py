"""What is inside a model, and how it changes when a text is moved."""

import argparse
import csv
import json
import math
import shutil
import sys

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import POSITIONS, make_model, random_tokens
from matplotlib.colors import Normalize
from test_scrolls import byte_tokenizer

from tape.analysis import inside, stability, visualize
from tape.analysis.inside import look_inside
from tape.analysis.stability import attention_change, changes, dot_change, moved
from tape.analysis.texts import models, tabulate
from tape.evaluation.figures import write_figure
from tape.positions import Positions
from tape.runs.folder import TRAINED
from tape.statistics import student

EQUIVARIANT = ("rope", "xpos", "yarn", "tape", "tape_yarn")
RELATIVE = ("nope", "alibi", "t5")
LENGTH = 12


def ids(length=LENGTH):
    return random_tokens(1, length)[0]


@pytest.mark.parametrize("position", ["tape", "rope", "alibi", "nope"])
def test_weights_and_states_are_those_that_the_layers_use(position):
    model = make_model(position, dtype=torch.float64)
    found = look_inside(model, ids())
    assert len(found.attention) == model.config.num_hidden_layers
    for weights in found.attention:
        assert weights.shape == (4, LENGTH, LENGTH) and weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, LENGTH))
        assert not weights.triu(1).any()
    assert model.config._attn_implementation == "sdpa"  # as before
    if position in ("tape", "rope"):
        place = torch.arange(LENGTH)[None]
        e = model.model.position.state(Positions(place, place), torch.float64)[0, 0]  # (T, 2, F)
        expected = torch.einsum("ipf,jpf->ij", e, e)
        torch.testing.assert_close(found.dot_products()[0][0], expected.float())
    else:
        assert found.states == [None] * 3


# A state that layers update passes by those of the other encodings.
MIXTURES = {
    name: {"name": "mixed", "pattern": names.split()}
    for name, names in {
        "by": "tape rope tape nope",
        "selective": "tape selective xpos tape",
        "pope": "pope fox rope alibi",
    }.items()
}


@torch.no_grad()
@pytest.mark.parametrize("name", [*POSITIONS, *MIXTURES])
def test_a_layer_has_the_state_that_it_reads(name):
    """One that changes what it returns."""
    changes = {"num_hidden_layers": 4, "num_recurrences": 2} if "mixed" in (name, *MIXTURES) else {}
    model = make_model(MIXTURES.get(name, name), **changes)
    read = []

    def record(attention, given):
        x, e, *rest = given
        other = e if e is None else e + torch.linspace(0.1, 1, e[0].numel()).view_as(e[:1])
        outputs = [attention.forward(x, each, *rest)[0] for each in (e, other)]
        read.append(None if torch.equal(*outputs) else e[0, ..., :2, :].flatten(-2).float())

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(record)
    states = look_inside(model, ids()).states
    assert [e is None for e in states] == [e is None for e in read]
    for e, expected in zip(states, read, strict=True):
        assert e is None or torch.equal(e, expected)


def test_changes_by_hand():
    before = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    after = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]]])
    # Rows of the two last tokens, without the first: (1, 0) and (0.5, 0.5).
    assert attention_change(before, after) == pytest.approx(100 * (0.0 + 0.5) / 2)
    dots = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    moved_dots = torch.tensor([[[9.0, 9, 9], [9, 3, 1], [9, 0, 4]]])
    assert dot_change(dots, moved_dots) == pytest.approx(100 / 5)
    same = look_inside(make_model("tape"), ids())
    for attention, dot in changes(same, same):
        assert attention < 1e-4 and dot == 0


@pytest.mark.parametrize("position", [*EQUIVARIANT, *RELATIVE])
def test_positions_that_begin_later_change_nothing_but_rounding(position):
    model = make_model(position, dtype=torch.float64)
    for by in (3, 40):
        attention, dots = zip(*moved(model, ids(), 0, "ids", by), strict=True)
        assert max(attention) < 1e-3
        assert math.isnan(dots[0]) if position in RELATIVE else max(dots) < 1e-3


@pytest.mark.parametrize(
    # Without the tensorial form TAPE's maps mix frequencies, which a shift turns unequally; FIRE
    # measures distances by how far into the text the query is.
    "position",
    ["tape_not_equivariant", "tape_not_tensorial", "tape_neither_form", "sincos", "fire"],
)
def test_without_equivariance_they_do(position):
    model = make_model(position, dtype=torch.float64)
    attention, dot = moved(model, ids(), 0, "ids", 3)[-1]
    assert attention > 0.1 and (math.isnan(dot) or dot > 0.1)


def test_bos_in_front_changes_attention_and_the_state_of_later_layers():
    found = moved(make_model("tape", dtype=torch.float64), ids(), 5, "bos", 3)
    # The first state is the rotation, and the rest of its softmax is as before.
    assert max(found[0]) < 1e-3 < min(found[1])


def test_rounded_weights_that_do_not_change_have_not_changed():
    """They do not add up to 1 in bfloat16, before as after."""
    model = make_model("nope", dtype=torch.bfloat16)
    assert look_inside(model, ids()).attention[0].sum(-1).sub(1).abs().max() > 1e-4
    assert [attention for attention, _ in moved(model, ids(), 0, "ids", 3)] == [0, 0, 0]


def test_drawn_positions_are_drawn_once():
    """For RandPE as long as the longer text: of 40 coordinates all are drawn, none is left out."""
    model = make_model({"name": "randpe", "length": 40}, dtype=torch.float64)
    assert max(dot for _, dot in moved(model, ids(), 0, "ids", 40 - LENGTH)) < 1e-3
    assert moved(model, ids(), 0, "ids", 9)[0][1] > 1


# ---- commands


def make_folder(folder, position, **changes):
    tokenizer = byte_tokenizer()
    make_model(position, vocab_size=len(tokenizer), **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_run(folder, position, seed, length=8):
    """As train.py leaves it; what the encoding is of is in the settings."""
    make_folder(folder, position, seed=seed)
    settings = {"seed": seed, "length": length, "trainer": {"seed": seed}}
    settings["position"] = {"name": position}
    (folder / TRAINED).write_text(json.dumps(settings))
    return folder


def options(command, models, text_file, out, *given):
    folders = [str(model) for model in models]
    where = ["--model", *folders, "--data", str(text_file), "--out", str(out)]
    text, whole = command.run(command.parse([*where, *given]))
    assert whole == ("Not in the tables:" not in text)
    return text


def rows_in(path):
    return list(csv.DictReader(path.open(newline="")))


SHORT = {
    stability: ("--length", "16", "--windows", "1", "--shifts", "9"),
    visualize: ("--length", "30", "--windows", "1"),
}
each_command = pytest.mark.parametrize("command", SHORT)


def test_the_table_of_two_models(tmp_path, text_file):
    models = [make_folder(tmp_path / name, name) for name in ("rope", "alibi")]
    out = tmp_path / "out"
    given = ("--length", "16", "--windows", "2", "--shifts", "3", "9")
    text = options(stability, models, text_file, out, *given)
    assert (out / "stability.md").read_text() == text + "\n"
    rows = rows_in(out / "stability.csv")
    assert len(rows) == 2 * 2 * 2 * 2 * 3  # models, dtypes, moves, shifts, layers
    exact = [r for r in rows if r["dtype"] == "float32" and r["move"] == "ids"]
    assert max(float(row["attention"]) for row in exact) < 0.01
    assert {row["dot"] == "" for row in rows if row["model"] == "alibi"} == {True}
    rounded = [r for r in rows if r["dtype"] == "bfloat16" and r["model"] == "rope"]
    assert max(float(row["attention"]) for row in rounded) > 0.01
    lines = text.splitlines()
    assert lines[0] == (
        "| Attention weights, x 1e-2 | dtype | move | seeds | layer 1 | layer 2 | layer 3 |"
    )
    assert any(line.startswith("| rope | float32 | 3 BOS tokens in front | 1 |") for line in lines)
    assert "| TAPE (paper) |  | 3 BOS tokens in front |  | 9.08 | 11.24 | - |" in lines
    assert stability.DEFINITIONS in text


def cell(values, digits):
    return f"{np.mean(values):.{digits}f} ± {student(values):.{digits}f}"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_seeds_of_one_run_are_one_row(tmp_path, text_file):
    models = [make_run(tmp_path / f"{n}_{s}", n, s) for n in ("tape", "rope") for s in (0, 1, 2)]
    models.append(make_run(tmp_path / "alone", "alibi", 0))
    out = tmp_path / "out"

    text = options(stability, models, text_file, out, *SHORT[stability])
    rows = rows_in(out / "stability.csv")
    names = {(name, f"{name}_{seed}") for name in ("tape", "rope") for seed in range(3)}
    assert {(row["row"], row["model"]) for row in rows} == names | {("alone", "alone")}
    kept = [r for r in rows if (r["row"], r["dtype"], r["move"]) == ("tape", "float32", "bos")]
    cells = [
        cell([float(row["attention"]) for row in kept if row["layer"] == layer], 2)
        for layer in ("2", "3")
    ]
    line = "| tape | float32 | 9 BOS tokens in front | 3 |"
    line = next(found for found in text.splitlines() if found.startswith(line))
    assert line.endswith(f" | {' | '.join(cells)} |")

    text = options(visualize, models, text_file, out, *SHORT[visualize])
    rows = rows_in(out / "attention.csv")
    found = [float(row["entropy"]) for row in rows if (row["row"], row["layer"]) == ("rope", "2")]
    assert f" {cell(found, 3)} | 1.000 ± 0.000 |" in text and "| rope | 2 | 3 |" in text
    names = {path.stem for path in out.glob("attention_*.png")}
    assert names == {f"attention_{row}" for row in ("tape", "rope", "alone")}

    copy = shutil.copytree(models[0], tmp_path / "copy")
    same = r"tape_0 and .*copy are the same run, seed 0: give only one"
    with pytest.raises(ValueError, match=same):
        options(visualize, [models[0], copy], text_file, out, *SHORT[visualize])


def names_and_rows(*folders):
    return [(model.name, model.row) for model in models(list(folders))]


def test_no_two_rows_have_one_name(tmp_path):
    seeds = [make_run(tmp_path / f"run_{seed}", "rope", seed) for seed in (0, 1)]
    alone = make_folder(tmp_path / "rope", "alibi")
    assert names_and_rows(*seeds) == [("run_0", "rope"), ("run_1", "rope")]
    assert names_and_rows(*seeds, alone)[::2] == [("run_0", "rope, seeds"), ("rope", "rope")]
    longer = [make_run(tmp_path / f"longer_{seed}", "rope", seed, length=9) for seed in (0, 1)]
    rows = dict(names_and_rows(*seeds, *longer))
    assert rows["run_0"] == "rope length=8" and rows["longer_1"] == "rope length=9"
    other = make_folder(tmp_path / "other" / "rope", "alibi")
    assert names_and_rows(alone, other) == [(x, x) for x in ("rope", "other/rope")]
    with pytest.raises(ValueError, match="duplicate folder; give each once"):
        models([alone, tmp_path / "other" / ".." / "rope"])
    (seeds[0] / TRAINED).write_text("{}")
    lacking = r"trained.json has no seed, trainer.seed, position.name, length"
    with pytest.raises(ValueError, match=lacking):
        models(seeds)


@pytest.mark.usefixtures("undrawn")
@each_command
def test_what_one_model_refuses_does_not_stop_the_others(
    command, tmp_path, text_file, monkeypatch, capsys
):
    short = make_folder(tmp_path / "a" / "final", {"name": "learned", "length": 20})
    rope = make_folder(tmp_path / "b" / "final", "rope")
    given = ["--model", str(short), str(rope), "--data", str(text_file), *SHORT[command]]
    monkeypatch.setattr(sys, "argv", ["analysis", *given, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        command.main()
    text = capsys.readouterr().out
    assert ended.value.code == 1 and "| b/final |" in text and "| a/final |" not in text
    assert f"Not in the tables:\n\n* {short}: " in text
    assert "positions, but the model's 'learned' has 20" in text


def test_a_model_that_fails_midway_has_no_rows(tmp_path):
    folders = [make_folder(tmp_path / name, "rope") for name in ("a", "b")]

    def measure(model):
        yield {"model": model.folder.name}
        if model.folder.name == "b":
            raise ValueError("out of windows")

    given = argparse.Namespace(model=folders, out=tmp_path / "out")
    text, whole = tabulate(given, "table", measure, lambda rows: f"{len(rows)} row")
    assert text.startswith("1 row\n\nNot in the tables:") and not whole
    assert (tmp_path / "out" / "table.csv").read_text().split() == ["model", "a"]


@pytest.mark.usefixtures("undrawn")
def test_a_text_is_long_enough_for_a_window(tmp_path, text_file):
    model = make_folder(tmp_path / "rope", "rope")
    given = ("--length", "399", "--windows", "8")  # of 400 tokens
    options(visualize, [model], text_file, tmp_path / "out", *given)
    assert {row["texts"] for row in rows_in(tmp_path / "out" / "attention.csv")} == {"2"}
    with pytest.raises(ValueError, match="windows of 500 tokens: the text has 400"):
        options(stability, [model], text_file, tmp_path / "o", "--length", "500")
    assert not (tmp_path / "o").exists()


# ---- pictures


def test_numbers_by_hand():
    T = 16
    A = torch.ones(1, T, T).tril() / torch.arange(1, T + 1)[:, None]  # all tokens before alike
    far = [(i - 4) / (i + 1) for i in range(5, T)]  # keys more than 4 back: i - 4 of i + 1
    assert inside.beyond_a_quarter(A) == pytest.approx(sum(far) / len(far))
    expected = np.mean([np.log(i + 1) for i in range(T)])
    assert inside.entropy(A) == pytest.approx(expected, rel=1e-6)
    assert inside.entropy(torch.eye(T)[None]) == 0
    by = inside.by_distance(A)
    assert by[0] == pytest.approx(np.mean([1 / (i + 1) for i in range(8, T)]))
    assert by[12] == pytest.approx(np.mean([1 / (i + 1) for i in range(12, T)]))
    state = torch.tensor([[[3.0, 1.0, 4.0, 0.0]]])  # two frequencies: 3 + 4 i, 1
    assert inside.magnitudes(state).tolist() == [[[5.0, 1.0]]]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("second", "stateless"), [("rope", []), ("alibi", ["1", "2", "3"]), ("mixed", ["2"])]
)
def test_pictures_of_two_models(second, stateless, tmp_path, text_file):
    models = [make_folder(tmp_path / name, name) for name in ("tape", second)]
    out = tmp_path / "out"
    given = ("--length", "16", "--windows", "2", "--heads", "1")
    text = options(visualize, models, text_file, out, *given)
    drawn = {path.stem for path in out.glob("*.png")}
    dots = {"dot_products_tape"} | ({f"dot_products_{second}"} if len(stateless) < 3 else set())
    assert drawn == {"attention_tape", f"attention_{second}", "distance"} | dots
    rows = rows_in(out / "attention.csv")
    assert [row["layer"] for row in rows] == ["1", "2", "3"] * 2
    assert 0 < float(rows[0]["beyond_a_quarter"]) < 1 and float(rows[0]["entropy"]) > 0
    assert float(rows[0]["magnitude"]) == pytest.approx(1.0)
    assert [row["layer"] for row in rows if row["magnitude"] == ""] == stateless
    assert text.count("\n| ") == 6


@pytest.mark.parametrize("name", ["tape", "the name of a run that is wider than its only column"])
def test_pictures_hold_all_of_their_labels(name, tmp_path):
    maps, norm = {1: np.zeros((1, 256, 256))}, Normalize(-1, 1)
    write_figure(visualize.grid(name, maps, 4, visualize.DOTS, norm, "RdBu_r"), tmp_path / "maps")
    picture = matplotlib.image.imread(tmp_path / "maps.png")[..., :3]
    border = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
    assert min(side.min() for side in border) > 0.98
