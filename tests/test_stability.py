"""What is inside a model, how it changes when a text is moved, and TAPE's state: interventions on
it are what they are said to be, and so are its phases."""

import math
from argparse import Namespace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import results
import torch
from conftest import make_model, random_tokens, refuses
from every_encoding import POSITIONS
from test_scrolls import make_base as make_folder

from tape.analysis import inside, visualize
from tape.analysis.inside import look_inside, models
from tape.analysis.stability import attention_change, dot_change, moved
from tape.analysis.state import INTERVENTIONS, intervene, losses_of, phase_by_distance
from tape.core.provenance import TRAINED
from tape.core.statistics import student
from tape.positions.rotary import RotaryLayer

LENGTH = 12
IDS = random_tokens(1, LENGTH)[0]


def test_every_layer_has_its_attention_weights():
    model = make_model("tape", dtype=torch.float64)
    found = look_inside(model, IDS).attention
    assert len(found) == model.config.num_hidden_layers
    for weights in found:
        torch.testing.assert_close(weights.sum(-1), torch.ones(4, LENGTH))
        assert weights.shape == (4, LENGTH, LENGTH) and not weights.triu(1).any()
    assert model.config._attn_implementation == "sdpa"  # as before


# A state that layers update passes by those of the other encodings.
MIXTURES = ("tape rope tape nope", "tape selective xpos tape", "pope fox rope alibi")


@torch.no_grad()
@pytest.mark.parametrize("name", [*POSITIONS, *MIXTURES])
def test_a_layer_has_the_state_that_it_reads(name):
    """One that changes what it returns."""
    mixed, changes = {"name": "mixed", "pattern": name.split()}, {}
    if name in ("mixed", *MIXTURES):
        changes = {"num_hidden_layers": 4, "num_recurrences": 2}
    model = make_model(mixed if name in MIXTURES else name, **changes)
    read = []

    def record(attention, given):
        x, e, *rest = given
        other = e if e is None else e + torch.linspace(0.1, 1, e[0].numel()).view_as(e[:1])
        outputs = [attention.forward(x, each, *rest)[0] for each in (e, other)]
        read.append(None if torch.equal(*outputs) else e[0, ..., :2, :].float())

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(record)
    states = look_inside(model, IDS).states
    assert [e is None for e in states] == [e is None for e in read]
    assert all(e is None or torch.equal(e, x) for e, x in zip(states, read, strict=True))


def test_a_state_of_another_layout_is_left_out():
    model = make_model("nope")
    model.model.position.state = lambda positions, dtype: torch.ones(1, 1, LENGTH, 4)
    assert look_inside(model, IDS).states == [None] * len(model.model.layers)


def test_changes_by_hand():
    before = torch.tensor([[[1.0, 0.0], [0.5, 1.5]]])  # rounded weights do not add up to 1
    after = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]]])
    # Rows of the two last tokens, without the first: (1, 0) and (0.5, 0.5).
    assert attention_change(before, after) == pytest.approx(100 * (0.0 + 0.5) / 2)
    e = torch.tensor([[[[2.0], [0.0]], [[0.0], [2.0]]]])  # dot products 4, 0, 0, 4
    other = torch.tensor([[[[9.0], [9.0]], [[2.0], [0.0]], [[1.0], [2.0]]]])  # 4, 2, 2, 5
    assert dot_change(e, other) == pytest.approx(100 * 3 / 32**0.5)
    assert math.isnan(dot_change(None, None))
    assert inside.dot_products(torch.cat((e, -e), 1))[0, 0].tolist() == [4, 0, -4, 0]


NOT_RELATIVE = ["tape_not_equivariant", "fire"]  # FIRE measures from where the query is


@pytest.mark.parametrize("position", ["rope", "xpos", "tape", "alibi", *NOT_RELATIVE])
def test_positions_that_begin_later_change_what_is_not_relative(position):
    model, changes = make_model(position, dtype=torch.float64), position in NOT_RELATIVE
    for by in (3, 40):
        attention, dots = zip(*moved(model, IDS, 0, "ids", by), strict=True)
        assert attention[-1] > 0.1 if changes else max(attention) < 1e-3
        if position in ("alibi", "fire"):
            assert all(map(math.isnan, dots))
        else:
            assert dots[-1] > 0.1 if changes else max(dots) < 1e-3


def test_bos_in_front_changes_attention_and_the_state_of_later_layers():
    found = moved(make_model("tape", dtype=torch.float64), IDS, 5, "bos", 3)
    # The first state is the rotation, and the rest of its softmax is as before.
    assert max(found[0]) < 1e-3 < min(found[1])


def test_drawn_positions_are_drawn_once():
    """For RandPE as long as the longer text: of 40 coordinates all are drawn, none is left out."""
    model = make_model({"name": "randpe", "length": 40}, dtype=torch.float64)
    assert max(dot for _, dot in moved(model, IDS, 0, "ids", 40 - LENGTH)) < 1e-3
    assert moved(model, IDS, 0, "ids", 9)[0][1] > 1


def make_run(folder, seed, **changes):
    return make_folder(results.make_run(folder, "rope", seed, **changes), "rope", seed=seed)


def test_the_table_of_two_models(tmp_path, analyse):
    models = [make_folder(tmp_path / name, name) for name in ("rope", "alibi")]
    text, out = analyse(
        "stability", models, "--length", "16", "--windows", "2", "--shifts", "3", "9"
    )
    assert text == (out / "stability.md").read_text() + f"\nalso in {out}\n"
    rows = pd.read_csv(out / "stability.csv")
    assert len(rows) == 2 * 2 * 2 * 2 * 3  # models, dtypes, moves, shifts, layers
    ids = rows[rows["move"] == "ids"].groupby(["model", "dtype"])["attention"].max()
    assert ids["rope", "float32"] < 0.01 < ids["rope", "bfloat16"]
    assert rows["dot"].isna().equals(rows["model"] == "alibi")
    assert "\n| rope | float32 | 3 BOS tokens in front | 1 |" in text
    assert "\n| TAPE (paper) |  | 3 BOS tokens in front |  | 9.08 | 11.24 | - |" in text


@pytest.fixture
def seeds(tmp_path):
    return [make_run(tmp_path / f"run_{seed}", seed) for seed in (0, 1)]


def test_no_two_rows_have_one_name(seeds, tmp_path):
    alone, other = (make_folder(tmp_path / name, "alibi") for name in ("rope", "other/rope"))

    def rows(*folders):
        return {each["model"]: each["row"] for each in models([*folders]).values()}

    assert rows(*seeds, alone) == {"run_0": "rope, seeds", "run_1": "rope, seeds", "rope": "rope"}
    longer = make_run(tmp_path / "longer", 1, length=9)
    same = dict.fromkeys(("run_0", "run_1"), "rope length=8")
    assert rows(*seeds, longer) == same | {"longer": "longer"}
    assert rows(alone, other) == {str(x): str(x) for x in (alone, other)}
    with pytest.raises(ValueError, match="are the same run, seed 0: give only one"):
        models([seeds[0], make_run(tmp_path / "copy", 0)])
    (seeds[0] / TRAINED).write_text("{}")
    refuses(r"trained\.json is damaged \(KeyError: 'seed'", models, seeds)


def test_what_a_model_refuses_names_it(tmp_path, analyse):
    model = make_folder(tmp_path / "model", {"name": "learned", "length": 20})
    with pytest.raises(SystemExit, match=rf"error: --model {model}: .*'learned' has 20"):
        analyse("visualize", [model], "--length", "30")
    assert not (tmp_path / "out").exists()


def test_windows_are_spread_over_a_text(tmp_path, text_file):
    tokens = np.fromfile(text_file, dtype="<u2").astype(np.int64)
    folder, decoder = make_folder(tmp_path / "rope", "rope"), make_model("rope", vocab_size=300)
    for asked, length, starts in ((3, 10, [0, 195, 390]), (1, 10, [0]), (8, 399, [0, 1])):
        given = Namespace(
            data=str(text_file),
            files=None,
            whole=False,
            token_dtype=None,
            split="validation",
            windows=asked,
        )
        name, found = inside.windows(given, folder, decoder, length)
        assert name == "text.bin"
        assert found.tolist() == [[*tokens[start : start + length]] for start in starts]
    refuses("windows of 500 tokens: the text has 400", inside.windows, given, folder, decoder, 500)


def test_numbers_by_hand():
    T = 16
    A = torch.ones(1, T, T).tril() / torch.arange(1, T + 1)[:, None]  # all tokens before alike
    far = [(i - 4) / (i + 1) for i in range(5, T)]  # keys more than 4 back: i - 4 of i + 1
    assert visualize.beyond_a_quarter(A) == pytest.approx(sum(far) / len(far))
    expected = np.mean([np.log(i + 1) for i in range(T)])
    assert visualize.entropy(A) == pytest.approx(expected, rel=1e-6)
    assert visualize.entropy(torch.eye(T)[None]) == 0
    found = [[*visualize.numbers([inside.Inside([x], [None])])] for x in (A, A / 8)]  # a sink
    assert found[0][0]["entropy"] == pytest.approx(expected, rel=1e-6) and found[0] == found[1]
    by = inside.by_distance(A)
    assert by[0] == pytest.approx(np.mean([1 / (i + 1) for i in range(8, T)]))
    assert by[12] == pytest.approx(np.mean([1 / (i + 1) for i in range(12, T)]))


@pytest.mark.usefixtures("undrawn")
def test_pictures_and_the_table(seeds, tmp_path, analyse):
    """Seeds of one run are one row."""
    models = [make_folder(tmp_path / name, name) for name in ("tape", "mixed")]
    given = ("--length", "16", "--windows", "2", "--heads", "1")
    text, out = analyse("visualize", [*models, *seeds], *given)
    names = product(("attention", "dot_products"), ("tape", "mixed", "rope"))
    assert {path.stem for path in out.glob("*.png")} == {"distance", *map("_".join, names)}
    rows = pd.read_csv(out / "attention.csv")
    assert rows["layer"].tolist() == [1, 2, 3] * 4
    assert rows["row"].tolist() == ["tape"] * 3 + ["mixed"] * 3 + ["rope"] * 6
    assert 0 < rows["beyond_a_quarter"][0] < 1 and rows["entropy"][0] > 0
    assert rows["magnitude"][0] == pytest.approx(1.0)
    assert rows[rows["magnitude"].isna()]["layer"].tolist() == [2]
    found = rows["entropy"][[7, 10]].tolist()  # of the second layer
    assert f" {np.mean(found):.3f} ± {student(found):.3f} | 1.000 ± 0.000 |" in text
    assert text.count("\n| ") == 9


TEXTS = random_tokens(2, 20)


def logits(model, ids=TEXTS):
    with torch.no_grad():
        return model(ids).logits


def changed(name):
    model = make_model("tape")
    intervene(model, name)
    return model


ZEROS = {"initial": "mix down", "without_attention": "mix", "without_feed_forward": "down"}


@pytest.mark.parametrize(("name", "zeros"), ZEROS.items())
def test_updates_that_are_left_out_equal_maps_of_zero(name, zeros):
    model = make_model("tape")
    before = logits(model)
    for parameter_name, parameter in model.named_parameters():
        if any(f".context.{part}." in parameter_name for part in zeros.split()):
            torch.nn.init.zeros_(parameter)
    torch.testing.assert_close(logits(changed(name)), expected := logits(model))
    assert (expected - before).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("phases", lambda e, first: e / e.abs()),
        ("magnitudes", lambda e, first: first * e.abs()),
        ("constant", lambda e, first: first * e.abs().mean((0, 2, 3), keepdim=True)),
        ("other_text", lambda e, first: e.flip(0)),
    ],
)
def test_queries_and_keys_are_rotated_by_the_changed_state(name, change, monkeypatch):
    """Without rotations, so that they do not change the state of later layers."""
    used = []

    def record(self, q, k, tokens):
        used.append(torch.complex(*tokens.e.unbind(-2)))
        return q, k, None

    monkeypatch.setattr(RotaryLayer, "prepare", record)
    logits(make_model("tape"))
    expected = [change(e, used[0]) if len(e) > 1 else e for e in used]
    used.clear()
    logits(changed(name))
    assert len(used) == len(expected) == 3
    for found, e in zip(used, expected, strict=True):
        torch.testing.assert_close(found, e)


def test_phases_by_distance():
    model, T = make_model("tape", num_hidden_layers=2), 9
    states = look_inside(model, random_tokens(1, T)[0]).states
    first, e = (torch.complex(*x.double().unbind(-2)) for x in states)
    found = phase_by_distance(states[1], states[0])
    for distance in range(T):
        queries = torch.arange(max(distance, T // 2), T)
        own, rope = (x[:, queries] * x[:, queries - distance].conj() for x in (e, first[:1]))
        expected = (own / rope).angle().abs().mean().item()
        assert found[distance].item() == pytest.approx(expected, abs=1e-6)


def test_models_without_an_update_and_unknown_names_are_refused():
    for position, name, message in (
        ("rope", "initial", "position 'rope': give a model with tape or tape_yarn"),
        ("tape", "phase", r"unknown intervention 'phase'.*phases"),
        ("mixed_tape", "magnitudes", "position 'mixed': give a model with tape"),
    ):
        refuses(message, intervene, make_model(position), name)
    with pytest.raises(ValueError, match="other_text: give batches of two texts or more"):
        logits(changed("other_text"), random_tokens(1, 8))
    padding = {"attention_mask": (torch.arange(20) > 2).long().expand(2, 20)}
    for ids, given in ((TEXTS[:, :1], {}), (TEXTS, padding)):
        with pytest.raises(ValueError, match="constant: give whole texts without padding"):
            changed("constant")(ids, **given)


def test_losses_are_those_of_the_second_half():
    model = make_model("tape")
    expected = -logits(model)[:, 9:-1].log_softmax(-1).gather(-1, TEXTS[:, 10:, None])[..., 0]
    torch.testing.assert_close(losses_of(model, TEXTS), expected)


def test_a_text_of_one_window_is_refused(tmp_path, analyse):
    models = [make_folder(tmp_path / "tape", "tape")]
    with pytest.raises(SystemExit, match="one such window, and no other text"):
        analyse("state", models, "--lengths", "400", "--windows", "8")


@pytest.mark.usefixtures("undrawn")
def test_tables_and_pictures(tmp_path, analyse):
    models = [make_folder(tmp_path / "tape", "tape")]
    text, out = analyse("state", models, "--lengths", "8", "16", "--windows", "3")
    frame = pd.read_csv(out / "state.csv")
    losses = frame[frame["measure"] == "loss"]
    assert len(losses) == 2 * (1 + len(INTERVENTIONS))
    assert all(losses["n"] == 3 * losses["length"] / 2)
    values = losses[losses["length"] == 16].set_index("change")["value"]
    less = values["initial"] - values["none"]
    assert f"| {values['none']:.4f} |" in text and f"| {less:.4f} |" in text
    names = {path.name for path in out.glob("*.png")}
    assert names == {"phase_tape.png", "attention_tape.png", "interventions_tape.png"}


def test_rows_have_files_of_their_own():
    rows = ["a_3", "a!", "a?"]
    assert inside.as_files(rows).keys() == {*rows}
    assert len({*inside.as_files(rows).values()}) == len(rows)
