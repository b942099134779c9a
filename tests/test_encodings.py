"""Encodings against transformers' models, and their numbers at extremes."""

import json
import re

import pytest
import torch
from commands import ROOT
from conftest import fields_of_llama, in_pieces, make_config, make_model, random_tokens, refuses
from every_encoding import CONTEXTUAL, LLAMA3
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from tape import TapeConfig, TapeForCausalLM
from tape.encodings import ENCODINGS
from tape.encodings.bias import LearnedBias, alibi_exponents, t5_bucket
from tape.positions.base import LayerPosition, PositionEncoding
from tape.positions.rotary import RoPE
from tape.positions.scores import DENSE_BACKENDS

LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "beta_fast": 4.0}
YARN |= {"beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}
LONGROPE = {"factor": 2.0, "original_max_position_embeddings": 8}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
FIXED = {"short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1.0, 1.0, 1.5, 2.0]}
# Fields of a Llama's config.json, also in the form before `rope_parameters`.
ROPES = {
    "theta": {"rope_theta": 500.0},
    "linear": {"rope_parameters": LINEAR},
    "linear, old": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 500.0}},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}},
    "yarn, in full": {"original_max_position_embeddings": 8, "rope_parameters": YARN},
    "yarn, old": {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}
    },
    "proportional": {
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_type": "proportional"},
    },
    "longrope": {"rope_parameters": LONGROPE | {"rope_type": "longrope"} | FIXED},
    "partial": {"rope_theta": 500.0, "partial_rotary_factor": 0.5},
    "partial, default": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "partial, old": {"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}},
}
# Fields that a Llama ignores, such as those of the Mistral that it was made from.
OF_OTHERS = {"window": {"sliding_window": 4}, "norm": {"qk_norm": True, "attention_sink": True}}
OF_OTHERS |= {"recurrences": {"num_recurrences": 2}}
SCALED = ("linear", "linear, old", "llama3", "proportional")
VARYING = {"dynamic": {"factor": 4.0}, "longrope": LONGROPE}

STARTS = {  # the encodings as which others start, on a checkpoint whose theta is not the default
    "carope": ("carope", "rope_theta"),  # all are one position further
    "grape_m": ("grape_m", "rope_theta"),
    "contextual grape_m": (CONTEXTUAL | {"start": 1.0}, "rope_theta"),  # if each token counts one
    "repo": ({"name": "repo", "start": 2}, "rope_theta"),  # in layers before the last
    "rope_gain": ("rope_gain", "rope_theta"),
    "tape": ("tape", "rope_theta"),
    "fox": ({"name": "fox", "start": 60.0}, "nope"),
    "wall": ({"name": "wall", "start": 60.0, "scalar": True}, "nope"),
    "bam": ("bam", "alibi"),  # the constant that it adds to distances changes no weight
}


@torch.no_grad()
@pytest.mark.parametrize("name", STARTS)
def test_starts_as_another_encoding(name, tmp_path):
    tokens, (position, other) = random_tokens(2, 23), STARTS[name]
    other = TapeForCausalLM(make_config(other, num_key_value_heads=2)).double().eval()
    if name == "repo":
        other.model.layers[2].self_attn.o_proj.weight.zero_()
    other.save_pretrained(tmp_path)
    ours = TapeForCausalLM.from_pretrained(tmp_path, position=position).double().eval()
    if name == "contextual grape_m":
        for layer in ours.model.layers:
            layer.context.scale.weight.zero_()
    # In float64 softplus of a bias that is float32 at first is 1 to seven digits.
    tolerance = 1e-4 if name == "contextual grape_m" else 1e-9
    found, expected = ours(tokens).logits, other(tokens).logits
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


def llama_folder(folder, rope):
    """The checkpoint of a Llama with such fields in its config.json."""
    torch.manual_seed(0)
    fields = fields_of_llama(make_config(num_key_value_heads=2))
    LlamaForCausalLM(LlamaConfig(**fields)).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    del saved["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(saved | rope))
    return folder


@torch.no_grad()
@pytest.mark.parametrize("kind", [*ROPES, *OF_OTHERS])
def test_a_llama_computes_as_in_the_library(tmp_path, kind):
    folder, tokens = llama_folder(tmp_path, (ROPES | OF_OTHERS)[kind]), random_tokens(2, 23)
    expected = LlamaForCausalLM.from_pretrained(folder).eval()(tokens).logits
    scaled = ("yarn", "tape_yarn", {"name": "tape_yarn", "magnitudes": False})
    scaled = scaled if kind.startswith("yarn") else ()
    for position in ("rope", "tape", {"name": "mixed", "pattern": ["rope", "tape"]}, *scaled):
        model = TapeForCausalLM.from_pretrained(folder, position=position).eval()
        torch.testing.assert_close(model(tokens).logits, expected, atol=1e-6, rtol=0)
    rope = TapeConfig.from_pretrained(folder, position="rope").rope_parameters
    for position in scaled:  # few frequencies may hide a difference
        assert TapeConfig.from_pretrained(folder, position=position).rope_parameters == rope


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        *((kind, "rope") for kind in VARYING),
        *((kind, "yarn") for kind in (*SCALED, *VARYING)),
        ("linear", "tape_yarn"),
        ("linear", {"name": "mixed", "pattern": ["yarn"]}),
    ],
)
def test_a_llama_whose_frequencies_an_encoding_cannot_have_is_refused(tmp_path, kind, position):
    rope = ROPES.get(kind)
    if kind in VARYING:
        rope = {"rope_parameters": {"rope_type": kind} | VARYING[kind]}
    message = r"position yarn on frequencies with rope_type='\w+'"
    if position == "rope":
        message = f"rope_type='{kind}': only schedules that are fixed"
        if kind == "longrope":
            message += ".* cached keys; its short_factor must be its long_factor$"
    with pytest.raises(ValueError, match=message):
        TapeForCausalLM.from_pretrained(llama_folder(tmp_path, rope), position=position)


def test_alibi_slopes_are_blooms():
    for heads in range(1, 33):
        # Bloom's bias for one more token is slope * position.
        theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
        torch.testing.assert_close(alibi_exponents(heads).exp2(), theirs, atol=0, rtol=1e-6)


def test_t5_buckets_are_the_librarys():
    distance = torch.arange(0, 4096)
    theirs = T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=32, max_distance=128
    )
    assert torch.equal(t5_bucket(distance, 32, 128), theirs)


def test_ntk_aware_scaling_is_another_theta():
    """theta s^(D/(D-2)): the lowest frequency is divided by s, the highest stays."""
    scaling = {"rope_type": "ntk", "factor": 4.0}
    plain, scaled = (make_model({"name": "rope", "scaling": x}).model for x in (None, scaling))
    ratio = plain.position.inv_freq / scaled.position.inv_freq
    torch.testing.assert_close(ratio[[0, -1]], torch.tensor([1.0, 4.0]))
    assert scaled.config.rope_parameters["rope_type"] == "default"
    again = TapeConfig(**scaled.config.to_dict())
    assert again.rope_parameters == scaled.config.rope_parameters


@torch.no_grad()
def test_xpos_is_as_precise_far_away_as_at_its_centre():
    tokens = random_tokens(2, 12)
    for dtype, centre, positions, tolerance in (
        (torch.float16, None, range(12_000, 12_012), 2e-3),
        (torch.float16, 12_000.0, range(0, 24_000, 2_000), 2e-3),
        (torch.bfloat16, None, range(139_000, 139_012), 16e-3),
    ):
        position = {"name": "xpos", "centre": centre}
        model, exact = (make_model(position, dtype=each) for each in (dtype, torch.double))
        where = torch.tensor([*positions])[None]
        expected = exact(tokens, position_ids=where).logits
        error = in_pieces(model, tokens, [9, 1, 1, 1], position_ids=where).double() - expected
        assert error.norm() / expected.norm() < tolerance, (dtype, centre)


@torch.no_grad()
def test_xpos_refuses_positions_that_its_scale_cannot_be_held_at():
    """From where the page says: one position before it is allowed."""
    page = (ROOT / "docs" / "encodings.md").read_text()
    found = re.findall(r"([\d,]+) (?:from the centre )?in (b?float\d+)", page.split("`xpos`")[1])
    reach = {dtype: int(distance.replace(",", "")) for distance, dtype in found[:3]}
    for name, distance in reach.items():
        model = make_model({"name": "xpos", "centre": 0.0}, dtype=getattr(torch, name))
        model(random_tokens(1, 1), position_ids=torch.tensor([[distance]]))
        where = torch.tensor([[distance + 1]])
        refuses("position xpos", model, random_tokens(1, 1), position_ids=where)
    for dtype, centre, first, allowed in (
        (torch.float16, None, 20_000, "12,471"),
        (torch.float16, 15_000.0, 0, "27,463"),
        (torch.bfloat16, None, 150_000, "139,378"),
        (torch.float32, None, 150_000, "139,385"),
    ):
        model = make_model({"name": "xpos", "centre": centre}, dtype=dtype)
        centre = 8.0 if centre is None else centre  # half of the trained length
        message = rf"centre={centre} in {dtype} at positions 0 to {first + 4}: .* to {allowed}"
        where = torch.arange(first, first + 5)[None]
        refuses(message, model, random_tokens(1, 5), position_ids=where)
        autocast = torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32)
        with pytest.raises(ValueError, match=message), autocast:
            model.float()(random_tokens(1, 5), position_ids=where)


SHIFT = {"name": "shift", "maximum": 9}
WRONG = {
    "abacus: digits=5 must be a list of token ids": {"digits": 5},
    "carope: theta=1 must be a number > 1": {"theta": 1},
    "cope: count=1 must be an integer >= 2": {"count": 1},
    "fire: threshold=inf must be a number > 0": {"threshold": float("inf")},
    "fope: length=3 is too short for any frequency": {"length": 3},
    "grape_ap: width=3 must be even": {"width": 3},
    "grape_m: start=0 must be a number > 0": {"start": 0},
    "grape_m: shared=1 must be true or false": {"shared": 1},
    "learned: length=4 must be >= the 64 that are drawn": {"length": 4, "sampler": "subset"},
    "learned: length=24 must be >= the 25": {"length": 24, "sampler": SHIFT},
    "path: kernel=True must be an integer >= 1": {"kernel": True},
    "relative: extent='x' must be an integer >= 1": {"extent": "x"},
    "repo: start=3 must be the number of a layer, 0 to 2": {"start": 3},
    "repo: theta='x' must be a number > 0": {"theta": "x"},
    "t5: num_buckets=7 must be even": {"num_buckets": 7},
    "t5: num_buckets=8.0 must be an integer": {"num_buckets": 8.0},
    "tapa: share=1 must leave both products": {"share": 1},
    "tape: init='xavir' must be 'zero' or 'xavier'": {"init": "xavir"},
    "tape: width='0H' must be an integer > 0, or a multiple": {"width": "0H"},
    "xpos: centre=nan must be a number": {"centre": float("nan")},
}
WRONG_POSITIONS = {
    "unknown position encoding 'alibii'; did you mean 'alibi'? Known: abacus": "alibii",
    "unknown position encoding None": {"theta": 1.0},
    "unknown sampler 'shft'; did you mean 'shift'": {"name": "rope", "sampler": "shft"},
    "takes no argument 'length'": {"name": "rope", "sampler": {"name": "shift", "length": 1}},
    "shift: maximum=3.7 must": {"name": "rope", "sampler": {"name": "shift", "maximum": 3.7}},
    "rope_theta='x' must be a number > 0": {"name": "rope", "theta": "x"},
    "yarn sets the scaling itself": {"name": "yarn", "scaling": {"rope_type": "linear"}},
}
WRONG_SCALINGS = {
    "scaling='linear' must be a mapping": "linear",
    "scaling={'factor': 8.0} needs a rope_type; known: clipped, ": {"factor": 8.0},
    "scaling takes no argument 'fctor'; did you mean 'factor'": {"rope_type": "yarn", "fctor": 8},
    "rope_type=['linear']: only schedules that": {"rope_type": ["linear"]},
    "rope_type='longrope' also needs long_factor": {"rope_type": "longrope", "factor": 4.0},
    "factor=-2 must be a number > 0": {"rope_type": "linear", "factor": -2},
    "factor=0.5 must be a number >= 1": {"rope_type": "ntk", "factor": 0.5},
    "partial_rotary_factor=1.5 must be": {"rope_type": "default", "partial_rotary_factor": 1.5},
    "=0.4 of head_dim=8 channels": {"rope_type": "default", "partial_rotary_factor": 0.4},
    "beta_slow=8 must be below beta_fast=4": YARN | {"beta_slow": 8, "beta_fast": 4},
    "must be a list of 4 numbers >= 1": LONGROPE
    | {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
}


class Careless(RoPE):
    """Keeps tensors as it should not, and does not call RoPE's `reset_parameters`."""

    keeps: str = "nothing"

    def __init__(self, config, **arguments):
        super().__init__(config, **arguments)
        self.gain = nn.Parameter(torch.empty(()))
        if self.keeps == "buffer":
            self.register_buffer("scale", torch.ones(2), persistent=False)
        elif self.keeps == "attribute":
            self.scale = torch.ones(2)

    def reset_parameters(self):
        nn.init.ones_(self.gain)


class SlopesLayer(LayerPosition):
    """A constant of each layer, and a buffer that is none unless `keeps` says so."""

    def __init__(self, keeps):
        super().__init__()
        self.register_constant("slopes", torch.full((4, 1, 1), 1 / 3, device="cpu"))
        if keeps == "inside":
            self.inner = torch.nn.Module()
            self.inner.scale = torch.ones(2)

    def bias(self, q_BHTD, k_BKSD, extras, tokens):
        return OfLayer(self, tokens.positions)


class OfLayer(LearnedBias):
    def dense(self, dtype):
        distances = self.positions.distances()[:, None]
        return (-self.layer.slopes * distances).to(dtype)


class Slopes(PositionEncoding):
    backends = DENSE_BACKENDS
    keeps: str = "nothing"

    def layer(self, layer_idx):
        return SlopesLayer(self.keeps)


def test_layers_have_constants(monkeypatch, tmp_path):
    """They are not saved, and the model that is loaded has them, unrounded."""
    monkeypatch.setitem(ENCODINGS, "alibi", Slopes)
    refuses("alibi: scale is neither saved", make_model, {"name": "alibi", "keeps": "inside"})
    model, tokens = make_model("alibi"), random_tokens(1, 9)
    assert not torch.equal(model(tokens).logits, make_model("nope")(tokens).logits)
    model.save_pretrained(tmp_path)
    assert not [name for name in model.state_dict() if "slopes" in name]
    again = TapeForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
    for layer in again.bfloat16().model.layers:
        assert torch.equal(layer.context.slopes, torch.full((4, 1, 1), 1 / 3))


def test_tensors_that_a_loaded_model_would_lack_are_refused(monkeypatch, tmp_path):
    """Apart from constants, which have their values in any case."""
    monkeypatch.setitem(ENCODINGS, "rope", Careless)
    for keeps in ("buffer", "attribute"):
        message = "position rope: scale is neither saved nor a constant"
        refuses(message, make_model, {"name": "rope", "keeps": keeps})
    model, tokens = make_model("rope"), random_tokens(1, 9)
    model.save_pretrained(tmp_path)
    again = TapeForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits)


def test_wrong_arguments_are_refused():
    for message, given in WRONG.items():
        with pytest.raises(ValueError, match=f"^position {re.escape(message)}"):
            make_model({"name": message.split(":")[0], **given})
    scalings = {message: {"name": "rope", "scaling": x} for message, x in WRONG_SCALINGS.items()}
    for message, position in (WRONG_POSITIONS | scalings).items():
        refuses(re.escape(message), make_model, position)
    for name in ("grape_m", "repo"):
        with pytest.raises(ValueError, match=f"position {name} on frequencies with rope_type='lin"):
            make_model({"name": name}, rope_parameters=LINEAR)
        model = make_model({"name": name, "theta": 70.0}, rope_parameters=LINEAR)
        assert model.config.position["theta"] == 70.0
