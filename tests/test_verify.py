"""A certificate says that a checkpoint computes what it does in transformers, and otherwise where
it begins to differ."""

import pytest
import torch
from commands import run_command
from conftest import make_model, refuses
from test_families import KINDS, PLAIN, ROPES, folder_of
from transformers import AutoConfig

from tape.analysis import verify as certificate
from tape.analysis.verify import verify
from tape.model.checkpoint import load_model

COMMAND = ("-m", "tape.cli", "verify")


@pytest.mark.parametrize("name", [*PLAIN, "qwen3, windows", "smollm3, windows"])
def test_a_family_is_certified(tmp_path, name):
    folder = folder_of(tmp_path, KINDS[name], max_position_embeddings=40)
    for tokens, counts in ((1024, [40, 60]), (16, [16, 16])):
        found = verify(folder, tokens)
        assert found.equal and [each.tokens for each in found.comparisons] == counts
        assert [each.length for each in found.comparisons] == [40, 60]
        assert all(each.difference <= 1e-4 * each.largest for each in found.comparisons)
        assert torch.equal(*found.frequencies)
    config = AutoConfig.from_pretrained(folder)
    assert found.compared.lower() == f"{KINDS[name].family}forcausallm"
    expected = [n for n, has in enumerate(getattr(config, "no_rope_layers", ())) if not has]
    assert found.without_positions == expected
    if name == "smollm3, windows":
        assert found.windows == [None, 4, None, None]


def test_the_table_says_what_takes_effect(tmp_path):
    rope = {"rope_type": "yarn", "rope_theta": 500.0, **ROPES["yarn"]}
    folder_of(tmp_path / "a", KINDS["mistral"], rope_parameters=rope)
    outcome = run_command(*COMMAND, "a", folder=tmp_path, succeeds=True)
    assert "MistralForCausalLM of transformers, in float32" in outcome.out
    assert "here and in transformers: 1.139 and 1.139" in outcome.out  # 0.1 ln 4 + 1
    assert "all layers: 5" in outcome.out and outcome.out.endswith("\n\nequal\n")
    outcome = run_command(*COMMAND, "a", "--tokens", "16", "--dtype", "bfloat16", folder=tmp_path)
    assert outcome.status == 0, outcome.out + outcome.err


def turned(model):
    position = model.model.position
    position.register_constant("inv_freq", position.inv_freq * 1.01)


def biased(model):
    model.model.layers[2].mlp.down_proj.weight *= 1.1


def scaled(model):
    model.model.layers[1].self_attn.q_proj.weight *= 1.1


def averaged(model):
    model.model.layers[1].self_attn.o_proj.weight *= 1.1


CHANGES = {
    turned: (0, "rotation of queries"),
    biased: (2, "MLP"),
    scaled: (1, "queries"),  # which have a bias
    averaged: (1, "attention"),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_difference_is_found_where_it_begins(tmp_path, monkeypatch, change):
    def changed(*given):
        model = load_model(*given)
        with torch.no_grad():
            change(model)
        return model

    folder_of(tmp_path / "a", KINDS["qwen2"])
    monkeypatch.setattr(certificate, "load_model", changed)
    outcome = run_command(*COMMAND, "a", folder=tmp_path)
    layer, part = CHANGES[change]
    assert outcome.status == 1 and outcome.out.endswith("\n\nDIFFERENT\n")
    assert outcome.out.count(f"layer {layer}: {part}") == 2, outcome.out


def test_our_models_are_compared_with_the_class_that_has_their_function(tmp_path):
    pattern = [{"name": "rope"}, {"name": "nope"}]
    for name, position, changes, library in (
        ("rope", "rope", {}, "LlamaForCausalLM"),
        ("yarn", "yarn", {}, "LlamaForCausalLM"),
        ("window", "rope", {"sliding_window": 5}, "MistralForCausalLM"),
        ("norms", "rope", {"qk_norm": True}, "Qwen3ForCausalLM"),
        ("mixed", {"name": "mixed", "pattern": pattern}, {}, "SmolLM3ForCausalLM"),
    ):
        make_model(position, **changes).save_pretrained(tmp_path / name)
        found = verify(tmp_path / name)
        assert found.equal and found.compared == library, name
    make_model("alibi").save_pretrained(tmp_path / "alibi")
    refuses(r"position 'alibi': no class of transformers computes it", verify, tmp_path / "alibi")
