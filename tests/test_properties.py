"""What TAPE is for: shifting all positions changes nothing. All weights are perturbed, for at zero
initialisation every statement here holds vacuously. And parameters of encodings: all of them are
initialised and learn, and those under weight decay are known by name."""

import pytest
import torch
from conftest import composed, make_config, make_model, random_tokens
from every_encoding import POSITIONS, all_positions, in_modes

from tape import TapeForCausalLM
from tape.positions.base import PositionModule
from tape.training.optimizer import decayed, encoding_parameters

DRAWN = ["randpe", "alibi_subset", "tape_subset"]  # other indices have other distances
REAL = ["rope_float", "sincos_float", "alibi_float"]  # for so many tokens, too, but evenly
# FIRE divides distances by the query's position, GRAPE-AP turns tokens by theirs, products of
# FoPE's mixtures depend on both, and groups and chunks begin at multiples of their size.
ABSOLUTE = ["sincos", "learned", "fire", "grape_ap", "fope", "extended", "extended_dca", *DRAWN]
ABSOLUTE.append("sincos_float")
EQUIVARIANT = ["tape", "tape_yarn", "tape_attention", "tape_feed_forward"]
BROKEN = ["tape_not_equivariant", "tape_not_tensorial", "tape_neither_form"]


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("shift", [1, 3, 1000])
def test_shift_invariant(position, shift):
    """The measure of the paper's Table 8: all token indices are moved by a number."""
    changes = {"max_position_embeddings": 1100} if position in (*DRAWN, *REAL) else {}
    model = make_model(position, dtype=torch.float64, **changes)
    tokens, index = random_tokens(2, 16), torch.arange(16)[None]
    logits, moved = (model(tokens, position_ids=index + by).logits for by in (0, shift))
    error = (moved - logits).abs().max() / logits.abs().max()
    assert (error < 1e-12) == (position not in ABSOLUTE + BROKEN)


def rotated(e, angles):
    """Every pair (cosine, sine) turned by one angle per frequency."""
    turned = torch.complex(*e.unbind(-2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.stack((turned.real, turned.imag), dim=-2)


@torch.no_grad()
@pytest.mark.parametrize("position", EQUIVARIANT + BROKEN)
def test_update_commutes_with_rotations(position):
    update = make_model(position, dtype=torch.float64).model.layers[0].context
    e, average = torch.randn(2, 2, 4, 5, 2, 4, dtype=torch.float64)
    m = torch.randn(2, 5, 32, dtype=torch.float64)

    def error(angles):
        before = update.next_state(rotated(e, angles), rotated(average, angles).flatten(-2), m)
        after = rotated(update.next_state(e, average.flatten(-2), m), angles)
        return (before - after).abs().max().item()

    one_angle = torch.full((4,), 0.7, dtype=torch.float64)
    own_angles = torch.tensor([0.7, -1.2, 2.0, 0.1], dtype=torch.float64)
    commutes = position in EQUIVARIANT
    assert (error(own_angles) < 1e-12) == commutes
    # Mixing the frequencies still commutes with one common rotation of all pairs.
    assert (error(one_angle) < 1e-12) == (commutes or position == "tape_not_tensorial")


@all_positions
def test_all_modules_of_an_encoding_are_initialised(position, monkeypatch):
    called, initialise = [], TapeForCausalLM._init_weights
    monkeypatch.setattr(
        TapeForCausalLM.__base__,
        "_init_weights",
        lambda self, module: called.append(module) or initialise(self, module),
    )
    model = TapeForCausalLM(make_config(position))
    own = [module for module in model.modules() if isinstance(module, PositionModule)]
    assert {*map(id, own)} <= {*map(id, called)}


def test_maps_start_with_zeros_or_as_xaviers():
    """P (4 x 4) and W1 (16 x 4) uniform in +-sqrt(6 / (inputs + outputs))."""
    for init, bounds in (("zero", (0, 0)), ("xavier", ((6 / 8) ** 0.5, (6 / 20) ** 0.5))):
        torch.manual_seed(0)
        model = TapeForCausalLM(make_config({"name": "tape", "init": init}))
        for layer in model.model.layers[:-1]:
            for map, bound in zip((layer.context.mix, layer.context.up), bounds, strict=True):
                assert map.weight.abs().max().item() <= bound
                assert map.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.3)
    assert composed("position=tape").position.init is None  # as in runs from before this argument


def test_state_stays_in_float32_under_bfloat16():
    model = make_model("tape", dtype=torch.bfloat16)
    kinds = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, __, out: kinds.append(out[1].dtype))
    with torch.no_grad():
        model(random_tokens(1, 5))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model.float()(random_tokens(1, 5))
    assert kinds == [torch.float32] * 6


LEARNED = [
    name
    for name in POSITIONS
    if encoding_parameters(TapeForCausalLM(make_config(name)))  # no parameters: nothing to learn
]


@pytest.mark.parametrize("position", LEARNED)
def test_every_parameter_still_learns_after_twenty_steps(position):
    torch.manual_seed(0)
    model = TapeForCausalLM(make_config(position)).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(21):
        tokens = random_tokens(4, 16, seed=step)
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        if step < 20:
            optimizer.step()
    own = encoding_parameters(model)
    for name, parameter in model.named_parameters():
        moved = (parameter != before[name]).float().mean()
        learns = (parameter.grad != 0).float().mean()
        # Rows of a table that no token reads stay as they are, and so do ReLUs that are never on.
        partly = ("table", "profiles", "hidden", "output")
        least = 0.9 if parameter in own and not any(part in name for part in partly) else 0
        assert moved > least, f"{name}: {moved:.0%} moved"
        assert learns > least, f"{name}: {learns:.0%} have a gradient"


def test_fires_constant_per_head_is_kept_in_checkpoints(tmp_path):
    """As in those from when it was a parameter."""
    model, tokens = make_model("fire"), random_tokens(2, 9)
    constants = {name: x for name, x in model.state_dict().items() if "output.bias" in name}
    assert len(constants) == 3 and not {*constants} & {*dict(model.named_parameters())}
    assert all(x.abs().max() > 0 for x in constants.values())
    model.save_pretrained(tmp_path)
    reloaded = TapeForCausalLM.from_pretrained(tmp_path).eval()
    assert all(torch.equal(reloaded.state_dict()[name], x) for name, x in constants.items())
    assert torch.equal(reloaded(tokens).logits, model(tokens).logits)


# Matrices that multiply tokens or their states; everything else of an encoding does not decay.
OF_TAPE, CONVOLUTION = "mix gate up down", "convolution.down convolution.up"
OF_PATH = f"{CONVOLUTION} gate"
DECAYED = {
    "relative": "reader",
    "fox": "gate",
    "selective": CONVOLUTION,
    "selective_values": CONVOLUTION,
    "carope": "frequency",
    "carope_values": "frequency",
    "path": OF_PATH,
    "mixed_read": OF_PATH,
    "path_gate": " ".join(f"inner.{name}" for name in OF_PATH.split()) + " forget.gate",
    "grape_m_contextual": "scale",
    "grape_ap": "probe",
    "rope_gain": "gain",
    "repo": "gate up down",
    "wall": "gate",
    "wall_scalar": "inner.gate forget.gate",
    "tape_attention": "mix",
    "tape_feed_forward": "gate up down",
}


@pytest.mark.parametrize("position", LEARNED)
def test_matrices_that_multiply_tokens_decay(position):
    model = make_model(position)
    own = {name for name, p in model.named_parameters() if p in encoding_parameters(model)}
    found = {name for name in decayed(model) if name in own}
    expected = DECAYED.get(position, OF_TAPE if "tape" in position.split("_") else "")
    names = {name.split("context.")[-1].removesuffix(".weight") for name in found}
    assert names == {*expected.split()}
    # Outside the encoding all matrices and tables do, and no vector.
    others = {name for name, p in model.named_parameters() if p.ndim > 1 and name not in own}
    assert {name for name in decayed(model) if name not in own} == others
