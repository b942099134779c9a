"""Interventions on TAPE's state are what they are said to be, and so are its phases."""

import pandas as pd
import pytest
import torch
from conftest import make_model, random_tokens, refuses
from test_stability import make_folder

from tape.analysis.inside import look_inside
from tape.analysis.state import INTERVENTIONS, intervene, losses_of, phase_by_distance
from tape.positions.rotary import RotaryLayer

IDS = random_tokens(2, 20)


def logits(model, ids=IDS):
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


def test_losses_are_those_of_the_second_half():
    model = make_model("tape")
    expected = -logits(model)[:, 9:-1].log_softmax(-1).gather(-1, IDS[:, 10:, None])[..., 0]
    torch.testing.assert_close(losses_of(model, IDS), expected)


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
