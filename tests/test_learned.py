"""Parameters of encodings: all of them learn, and those under weight decay are known by name."""

import pytest
import torch
from conftest import make_config, make_model, random_tokens
from every_encoding import POSITIONS

from tape import TapeForCausalLM
from tape.positions import Positions
from tape.positions.bias import KerpleLayer
from tape.training.optimizer import decayed, encoding_parameters

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


@pytest.mark.parametrize("position", LEARNED)
def test_every_parameter_has_a_gradient_beyond_rounding(position):
    """Softmax is blind to a constant per head: a parameter that is one drifts by rounding."""
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(4, 16)
    model(tokens, labels=tokens).logits.log_softmax(-1)[..., 0].mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 1e-12, name


def test_fires_constant_per_head_is_kept_in_checkpoints(tmp_path):
    """As in those from when it was a parameter, in their order of the keys' names."""
    model, tokens = make_model("fire"), random_tokens(2, 9)
    names = {
        name.split("layers.0.")[1] for name in model.state_dict() if "position.layers.0" in name
    }
    assert {"scale", "multiplier", "hidden.weight", "output.weight", "output.bias"} < names
    constants = {name: x for name, x in model.state_dict().items() if "output.bias" in name}
    assert len(constants) == 3 and not {*constants} & {name for name, _ in model.named_parameters()}
    assert all(x.abs().max() > 0 for x in constants.values())
    model.save_pretrained(tmp_path)
    reloaded = TapeForCausalLM.from_pretrained(tmp_path).eval()
    for name, x in constants.items():
        assert torch.equal(reloaded.state_dict()[name], x)
    assert torch.equal(reloaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", ["slope", "scale"])
def test_a_parameter_at_its_bound_comes_back(name):
    """However long the text calls for weaker biases: stronger ones are learned as fast as ever."""
    torch.manual_seed(0)
    layer, index = KerpleLayer(4), torch.arange(6)[None]
    layer.reset_parameters()
    optimizer = torch.optim.SGD([getattr(layer, name)], lr=1e-3)

    def train(sign, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (sign * layer(Positions(index, index)).sum()).backward()
            optimizer.step()
        return layer.bounded(getattr(layer, name).detach())

    assert (train(-1, 500) < 0.1).all()
    assert (train(-1, 500) >= layer.LOWEST).all()
    assert (train(1, 50) > 0.2).all()


# Matrices that multiply tokens or their states; everything else of an encoding does not decay.
DECAYED = {
    "relative": {"reader.weight"},
    "fox": {"gate.weight"},
    "selective": {"convolution.down.weight", "convolution.up.weight"},
    "carope": {"frequency.weight"},
    "path": {"convolution.down.weight", "convolution.up.weight", "gate.weight"},
    "path_gate": {
        "inner.convolution.down.weight",
        "inner.convolution.up.weight",
        "inner.gate.weight",
        "forget.gate.weight",
    },
    "grape_m_contextual": {"scale.weight"},
    "grape_ap": {"probe.weight"},
    "rope_gain": {"gain.weight"},
    "repo": {"gate.weight", "up.weight", "down.weight"},
    "wall": {"gate.weight"},
    "wall_scalar": {"inner.gate.weight", "forget.gate.weight"},
    "tape": {"mix.weight", "gate.weight", "up.weight", "down.weight"},
    "tape_attention": {"mix.weight"},
    "tape_feed_forward": {"gate.weight", "up.weight", "down.weight"},
}
OF_TAPE = """tape_shift tape_subset tape_yarn tape_not_equivariant mixed_tape tape_not_tensorial
    tape_phases tape_neither_form"""
DECAYED |= dict.fromkeys(OF_TAPE.split(), DECAYED["tape"])
DECAYED["mixed_read"] = DECAYED["path"]


@pytest.mark.parametrize("position", LEARNED)
def test_matrices_that_multiply_tokens_decay(position):
    model = make_model(position)
    own = {name for name, p in model.named_parameters() if p in encoding_parameters(model)}
    found = {name for name in decayed(model) if name in own}
    assert {name.split("context.")[-1] for name in found} == DECAYED.get(position, set())
    # Outside the encoding all matrices and tables do, and no vector.
    others = {name for name, p in model.named_parameters() if p.ndim > 1 and name not in own}
    assert {name for name in decayed(model) if name not in own} == others
