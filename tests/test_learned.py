"""Parameters of encodings: all of them learn, and those under weight decay are known by name."""

import pytest
import torch
from conftest import make_config, make_model, random_tokens
from every_encoding import POSITIONS

from tape import TapeForCausalLM
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
    "carope": "frequency",
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
