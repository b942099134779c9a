"""What is inside a model, and how it changes when a text is moved."""

import argparse
import csv
import json
import math
import shutil
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from conftest import POSITIONS, make_model, random_tokens
from matplotlib.colors import Normalize
from test_scrolls import byte_tokenizer

from tape.analysis import faults, stability, visualize
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
    inside = look_inside(model, ids())
    assert len(inside.attention) == model.config.num_hidden_layers
    for weights in inside.attention:
        assert weights.shape == (4, LENGTH, LENGTH) and weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, LENGTH))
        assert not weights.triu(1).any()
    assert inside.has_states == (position not in ("alibi", "nope"))
    assert model.config._attn_implementation == "sdpa"  # as before
    if inside.has_states:
        place = torch.arange(LENGTH)[None]
        e = model.model.position.state(Positions(place, place), torch.float64)[0, 0]  # (T, 2, F)
        expected = torch.einsum("ipf,jpf->ij", e, e)
        torch.testing.assert_close(inside.dot_products()[0][0], expected.float())


def mixture(*names):
    return {"name": "mixed", "pattern": list(names)}


# A state that layers update passes by those of the other encodings.
MIXTURES = {name: each for name, each in POSITIONS.items() if each["name"] == "mixed"} | {
    "by": mixture("tape", "rope", "tape", "nope"),
    "selective": mixture("tape", "selective", "xpos", "tape"),
    "pope": mixture("pope", "fox", "rope", "alibi"),
}


def check_states(model):
    """A layer has the state that it reads: one that changes what it returns."""
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


@torch.no_grad()
@pytest.mark.parametrize("position", [name for name in POSITIONS if name not in MIXTURES])
def test_a_layer_has_the_state_that_it_reads(position):
    check_states(make_model(position))


@torch.no_grad()
@pytest.mark.parametrize("name", MIXTURES)
def test_a_layer_of_a_mixture_has_the_state_that_it_reads(name):
    model = make_model(MIXTURES[name], num_hidden_layers=4, num_recurrences=2)
    check_states(model)


def test_changes_by_hand():
    before = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    after = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]]])
    # Rows of the two last tokens, without the first: (1, 0) and (0.5, 0.5).
    assert attention_change(before, after) == pytest.approx(100 * (0.0 + 0.5) / 2)
    assert attention_change(before, before) == 0
    dots = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    moved_dots = torch.tensor([[[9.0, 9, 9], [9, 3, 1], [9, 0, 4]]])
    assert dot_change(dots, moved_dots) == pytest.approx(100 / 5)


@pytest.mark.parametrize("position", [*EQUIVARIANT, *RELATIVE])
def test_positions_that_begin_later_change_nothing_but_rounding(position):
    model = make_model(position, dtype=torch.float64)
    for by in (3, 40):
        found = moved(model, ids(), 0, "ids", by)
        assert max(change.attention for change in found) < 1e-3
        assert math.isnan(found[0].dot) == (position in RELATIVE)
        if position not in RELATIVE:
            assert max(change.dot for change in found) < 1e-3


@pytest.mark.parametrize(
    # Without the tensorial form TAPE's maps mix frequencies, which a shift turns unequally; FIRE
    # measures distances by how far into the text the query is.
    "position",
    ["tape_not_equivariant", "tape_not_tensorial", "tape_neither_form", "sincos", "fire"],
)
def test_without_equivariance_they_do(position):
    found = moved(make_model(position, dtype=torch.float64), ids(), 0, "ids", 3)
    assert found[-1].attention > 0.1
    assert math.isnan(found[-1].dot) or found[-1].dot > 0.1


def test_bos_in_front_changes_attention_and_the_state_of_later_layers():
    model = make_model("tape", dtype=torch.float64)
    found = moved(model, ids(), 5, "bos", 3)
    assert found[0].dot < 1e-3 < found[1].dot  # the first state is the rotation
    assert found[0].attention < 1e-3 < found[1].attention  # the rest of a softmax is as before


def test_rounded_weights_that_do_not_change_have_not_changed():
    """They do not add up to 1 in bfloat16, before as after."""
    model = make_model("nope", dtype=torch.bfloat16)
    assert look_inside(model, ids()).attention[0].sum(-1).sub(1).abs().max() > 1e-4
    assert [change.attention for change in moved(model, ids(), 0, "ids", 3)] == [0, 0, 0]


def test_drawn_positions_are_drawn_once():
    """For RandPE as long as the longer text: of 40 coordinates all are drawn, none is left out."""
    model = make_model({"name": "randpe", "length": 40}, dtype=torch.float64)
    found = moved(model, ids(), 0, "ids", 40 - LENGTH)
    assert max(change.dot for change in found) < 1e-3
    assert moved(model, ids(), 0, "ids", 9)[0].dot > 1


def test_a_model_without_change_has_none():
    inside = look_inside(make_model("tape"), ids())
    for attention, dot in changes(inside, inside):
        assert attention < 1e-4 and dot == 0


def make_folder(folder, position, **changes):
    tokenizer = byte_tokenizer()
    make_model(position, vocab_size=len(tokenizer), **changes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def options(command, models, text_file, out, *given):
    folders = [str(model) for model in models]
    where = ["--model", *folders, "--data", str(text_file), "--out", str(out)]
    text, whole = command.run(command.parse([*where, *given]))
    assert whole == ("Not in the tables:" not in text)
    return text


def test_the_table_of_two_models(tmp_path, text_file):
    models = [make_folder(tmp_path / name, name) for name in ("rope", "alibi")]
    out = tmp_path / "out"
    given = ("--length", "16", "--windows", "2", "--shifts", "3", "9")
    text = options(stability, models, text_file, out, *given)
    assert (out / "stability.md").read_text() == text + "\n"
    rows = list(csv.DictReader((out / "stability.csv").open(newline="")))
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


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", [stability, faults, visualize])
def test_models_of_one_name_stay_apart(command, tmp_path, text_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = [
        make_folder(Path(run, "final"), name)
        for run, name in zip("ab", ("rope", "tape"), strict=True)
    ]
    own = {stability: ["--length", "16", "--shifts", "3"], faults: ["--lengths", "8"]}
    given = own.get(command, ["--length", "16"])
    text = options(command, models, text_file, tmp_path / "out", *given, "--windows", "1")
    assert "| a/final |" in text and "| b/final |" in text and "| final |" not in text


def make_run(folder, position, seed, length=8):
    """As train.py leaves it; what the encoding is of is in the settings."""
    make_folder(folder, position, seed=seed)
    settings = {"seed": seed, "length": length, "trainer": {"seed": seed}}
    settings["position"] = {"name": position}
    (folder / TRAINED).write_text(json.dumps(settings))
    return folder


def cell(values, digits):
    return f"{np.mean(values):.{digits}f} ± {student(values):.{digits}f}"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_seeds_of_one_run_are_one_row(tmp_path, text_file):
    models = [make_run(tmp_path / f"{n}_{s}", n, s) for n in ("tape", "rope") for s in (0, 1, 2)]
    models.append(make_run(tmp_path / "alone", "alibi", 0))
    out = tmp_path / "out"
    window = ["--windows", "1"]

    text = options(stability, models, text_file, out, "--length", "16", "--shifts", "3", *window)
    rows = list(csv.DictReader((out / "stability.csv").open(newline="")))
    assert {(row["row"], row["model"]) for row in rows} == {
        *((name, f"{name}_{seed}") for name in ("tape", "rope") for seed in range(3)),
        ("alone", "alone"),
    }
    kept = [r for r in rows if (r["row"], r["dtype"], r["move"]) == ("tape", "float32", "bos")]
    cells = [
        cell([float(row["attention"]) for row in kept if row["layer"] == str(layer)], 2)
        for layer in (2, 3)
    ]
    line = "| tape | float32 | 3 BOS tokens in front | 3 |"
    line = next(found for found in text.splitlines() if found.startswith(line))
    assert line.endswith(f" | {' | '.join(cells)} |")
    assert any(
        line.startswith("| alone | float32 | position ids from 3 | 1 |")
        for line in text.splitlines()
    )

    text = options(faults, models, text_file, out, "--lengths", "8", *window)
    rows = list(csv.DictReader((out / "faults.csv").open(newline="")))
    nll = {(row["model"], row["fault"]): float(row["nll"]) for row in rows}
    fault = "positions in bfloat16 from 2,000"
    perplexity = cell(np.exp([nll[f"tape_{n}", fault] for n in range(3)]), 2)
    more = cell([nll[f"tape_{n}", fault] - nll[f"tape_{n}", "none"] for n in range(3)], 4)
    for cells in (perplexity, more):
        assert f"| tape | {fault} | 3 | {cells} |" in text.splitlines()

    text = options(visualize, models, text_file, out, "--length", "16", *window)
    rows = list(csv.DictReader((out / "attention.csv").open(newline="")))
    found = [float(row["entropy"]) for row in rows if (row["row"], row["layer"]) == ("rope", "2")]
    assert any(
        line.startswith("| rope | 2 | 3 |") and f" {cell(found, 3)} | 1.000 ± 0.000 |" in line
        for line in text.splitlines()
    )
    names = {path.stem for path in out.glob("attention_*.png")}
    assert names == {f"attention_{row}" for row in ("tape", "rope", "alone")}

    copy = shutil.copytree(models[0], tmp_path / "copy")
    with pytest.raises(
        ValueError, match=r"tape_0 and .*copy are the same run, seed 0: give only one"
    ):
        options(visualize, [models[0], copy], text_file, out, "--length", "16", *window)


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
    assert {name for name, _ in names_and_rows(alone, other)} == {"rope", "other/rope"}
    with pytest.raises(ValueError, match="duplicate folder; give each once"):
        models([alone, tmp_path / "other" / ".." / "rope"])
    (seeds[0] / TRAINED).write_text("{}")
    with pytest.raises(
        ValueError, match=r"trained.json has no seed, trainer.seed, position.name, length"
    ):
        models(seeds)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", [stability, faults, visualize])
def test_what_one_model_refuses_does_not_stop_the_others(
    command, tmp_path, text_file, monkeypatch, capsys
):
    short = make_folder(tmp_path / "short", {"name": "learned", "length": 20})
    rope = make_folder(tmp_path / "rope", "rope")
    own = {stability: ["--length", "16", "--shifts", "9"], faults: ["--lengths", "30"]}
    given = ["--model", str(short), str(rope), "--data", str(text_file), "--windows", "1"]
    given += [*own.get(command, ["--length", "30"]), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["analysis", *given])
    with pytest.raises(SystemExit) as ended:
        command.main()
    text = capsys.readouterr().out
    assert ended.value.code == 1 and "| rope |" in text and "| short |" not in text
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
def test_a_short_text_has_fewer_windows(tmp_path, text_file):
    model = make_folder(tmp_path / "rope", "rope")
    given = ("--length", "399", "--windows", "8")  # of 400 tokens
    options(visualize, [model], text_file, tmp_path / "out", *given)
    rows = list(csv.DictReader((tmp_path / "out" / "attention.csv").open(newline="")))
    assert {row["texts"] for row in rows} == {"2"}


def test_what_cannot_be_moved_is_refused(tmp_path, text_file):
    learned = make_folder(tmp_path / "m", {"name": "learned", "length": 20})
    with pytest.raises(ValueError, match="--length 16 shifted by 9 needs 25 positions"):
        options(stability, [learned], text_file, tmp_path / "o", "--length", "16", "--shifts", "9")
    rope = make_folder(tmp_path / "r", "rope")
    with pytest.raises(ValueError, match="windows of 500 tokens: the text has 400"):
        options(stability, [rope], text_file, tmp_path / "o", "--length", "500")
    assert not (tmp_path / "o").exists()


def uniform(T):
    """Every query attends to all tokens before it alike."""
    return torch.ones(1, T, T).tril() / torch.arange(1, T + 1)[:, None]


def test_numbers_by_hand():
    T = 16
    A = uniform(T)
    far = [(i - 4) / (i + 1) for i in range(5, T)]  # keys more than 4 back: i - 4 of i + 1
    assert visualize.beyond_a_quarter(A) == pytest.approx(sum(far) / len(far))
    expected = np.mean([np.log(i + 1) for i in range(T)])
    assert visualize.entropy(A) == pytest.approx(expected, rel=1e-6)
    assert visualize.entropy(torch.eye(T)[None]) == 0
    by = visualize.by_distance(A)
    assert by[0] == pytest.approx(np.mean([1 / (i + 1) for i in range(8, T)]))
    assert by[12] == pytest.approx(np.mean([1 / (i + 1) for i in range(12, T)]))
    nearest = torch.eye(T).roll(1, 0)[None]
    nearest[0, 0] = 0
    assert visualize.beyond_a_quarter(nearest) == 0 and visualize.by_distance(nearest)[1] == 1
    state = torch.tensor([[[3.0, 1.0, 4.0, 0.0]]])  # two frequencies: 3 + 4 i, 1
    assert visualize.magnitudes(state).tolist() == [[[5.0, 1.0]]]


def test_a_difference_is_map_by_map():
    one, other = {3: np.ones((1, 2, 2))}, {3: np.arange(12.0).reshape(3, 2, 2)}
    found = visualize.differences(one, other)[3]
    assert found.shape == (3, 2, 2) and found[2, 1, 1] == 10.0


@pytest.mark.slow
@pytest.mark.parametrize("second", ["rope", "alibi", "mixed"])
def test_pictures_of_two_models(second, tmp_path, text_file):
    models = [make_folder(tmp_path / name, name) for name in ("tape", second)]
    out = tmp_path / "out"
    given = ("--length", "16", "--windows", "2", "--heads", "1")
    text = options(visualize, models, text_file, out, *given)
    drawn = {path.stem for path in out.glob("*.png")}
    assert drawn == {path.stem for path in out.glob("*.svg")}
    always = {"attention_tape", f"attention_{second}", "attention_difference", "distance"}
    states = {"dot_products_tape", "magnitude"}
    of_second = {  # the mixture's second layer has no state, and none to compare
        "rope": {"dot_products_rope", "dot_products_difference"},
        "mixed": {"dot_products_mixed"},
    }
    assert drawn == always | states | of_second.get(second, set())
    rows = list(csv.DictReader((out / "attention.csv").open(newline="")))
    assert [row["layer"] for row in rows] == ["1", "2", "3"] * 2
    assert 0 < float(rows[0]["beyond_a_quarter"]) < 1 and float(rows[0]["entropy"]) > 0
    assert float(rows[0]["magnitude"]) == pytest.approx(1.0)
    without = {"rope": [], "alibi": ["1", "2", "3"], "mixed": ["2"]}[second]
    assert [row["layer"] for row in rows if row["magnitude"] == ""] == without
    assert text.count("\n| ") == 6


@pytest.mark.usefixtures("undrawn")
def test_models_of_other_shapes_have_no_difference(tmp_path, text_file):
    out = tmp_path / "out"
    rope = make_folder(tmp_path / "rope", "rope")
    wide = make_folder(tmp_path / "wide", "rope", num_attention_heads=8, num_key_value_heads=8)
    folder = tmp_path / "difference"
    shutil.copytree(rope, folder)
    for second, drawn in (
        (folder, {"rope", "difference", "difference_2"}),
        (wide, {"rope", "wide"}),
    ):
        options(visualize, [rope, second], text_file, out, "--length", "16", "--windows", "1")
        assert {path.stem for path in out.glob("attention_*.png")} == {
            f"attention_{n}" for n in drawn
        }


@pytest.mark.usefixtures("undrawn")
def test_a_text_of_ones_own(tmp_path):
    model = make_folder(tmp_path / "m", "tape")
    given = ["--model", str(model), "--out", str(tmp_path / "o"), "--text"]
    assert "| m | 1 |" in visualize.run(visualize.parse([*given, "def f(x): return x"]))[0]
    with pytest.raises(ValueError, match="the text has 2 tokens; give 8 or more"):
        visualize.run(visualize.parse([*given, "zz"]))


@pytest.mark.parametrize("name", ["tape", "the name of a run that is wider than its only column"])
@pytest.mark.parametrize("layers", [1, 2])
def test_pictures_hold_all_of_their_labels(name, layers, tmp_path):
    maps = {layer + 1: np.zeros((1, 256, 256)) for layer in range(layers)}
    norm = Normalize(-1, 1)
    write_figure(visualize.grid(name, maps, 4, visualize.DOTS, norm, "RdBu_r"), tmp_path / "maps")
    picture = matplotlib.image.imread(tmp_path / "maps.png")[..., :3]
    border = [picture[0], picture[-1], picture[:, 0], picture[:, -1]]
    assert min(side.min() for side in border) > 0.98
