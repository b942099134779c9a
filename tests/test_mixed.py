"""Mixtures of encodings by layer."""

import pytest
import torch
from conftest import composed, fields_of_llama, make_config, make_model, random_tokens, refuses
from every_encoding import mixture
from omegaconf import OmegaConf
from transformers import SmolLM3Config, SmolLM3ForCausalLM


@torch.no_grad()
def test_equals_smollm3():
    """Three layers with RoPE, one without: transformers' model of the same weights."""
    tied = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    ours = make_model({"name": "mixed"}, num_hidden_layers=5, **tied)
    fields = fields_of_llama(ours.config, "rope_parameters", "tie_word_embeddings")
    config = SmolLM3Config(**fields)
    assert config.no_rope_layers == [1, 1, 1, 0, 1]
    theirs = SmolLM3ForCausalLM(config).eval()
    theirs.load_state_dict(ours.state_dict())
    tokens = random_tokens(2, 20)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-6, rtol=1e-5)
    asked = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    assert torch.equal(ours.generate(tokens, **asked), theirs.generate(tokens, **asked))


def test_a_pattern_repeats_and_equal_entries_are_one():
    pattern = ("t5", {"name": "rope", "theta": 100.0}, "rope", "t5", "rope")
    model = make_model(mixture(*pattern), num_hidden_layers=7).model
    assert model.position.places == [0, 1, 2, 0, 2, 0, 1]
    low, high = model.position.entries[1:]
    assert low.inv_freq[1] == pytest.approx(100**-0.25) and high.inv_freq[1] == 10_000**-0.25
    tables = [name for name, _ in model.named_parameters() if name.startswith("position.")]
    assert len(tables) == 3  # T5 has one per layer of its own
    near = {"name": "rope", "window": 4}  # the window belongs to the layers, not to the encoding
    model = make_model(mixture(near, "rope"), num_hidden_layers=4, sliding_window=9).model
    assert [layer.context.window for layer in model.layers] == [4, None, 4, None]
    assert len(model.position.entries) == 1


def test_an_encoding_counts_its_own_layers_and_an_entrys_window_is_the_layers():
    repo, near = {"name": "repo", "start": 1}, {"name": "extended", "window": 3, "group": 5}
    model = make_model(mixture(repo, near), num_hidden_layers=4).model
    read = [hasattr(layer.context, "gate") for layer in model.layers[::2]]
    assert read == [False, True]  # of layers 0 and 2
    extended = model.position.entries[1]
    assert (extended.window, extended.group) == (4, 5)  # by default W = L / 4
    assert [layer.context.window for layer in model.layers] == [None, 3] * 2


@pytest.mark.parametrize(
    ("preset", "theta", "windows"),
    [
        ("rnope", [1e4, 1e4, 1e4, None], [None] * 4),
        ("swan", [None, 1e4, 1e4, 1e4], [None, 512, 512, 512]),
        ("gemma", [1e4] * 5 + [1e6], [512] * 5 + [None]),
    ],
)
def test_presets_are_those_of_their_papers(preset, theta, windows):
    settings = OmegaConf.to_container(composed(f"position={preset}"), resolve=True)["position"]
    n = len(windows)
    model = make_model(settings, num_hidden_layers=2 * n).model
    assert [layer.context.window for layer in model.layers] == windows * 2
    entries = [model.position.entries[place] for place in model.position.places]
    bases = [
        entry.config.rope_parameters["rope_theta"] if hasattr(entry, "inv_freq") else None
        for entry in entries
    ]
    assert bases == theta * 2


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (mixture("rope", "nop"), "unknown position encoding 'nop'; did you mean 'nope'"),
        (mixture({"name": "rope", "tehta": 1.0}), "did you mean 'theta'"),
        (mixture(), r"pattern=\[\] must be a list of encodings, such as \[rope, rope"),
        ({"name": "mixed", "pattern": "rope"}, "pattern='rope' must be a list of encodings"),
        (mixture("rope", mixture("nope")), "mixed: mixed applies to all layers"),
        (mixture({"name": "rope", "window": 0}), "window of rope=0 must be an integer >= 1"),
        (mixture("abacus"), "abacus applies to all layers"),
        (mixture("rope", "randpe"), "randpe with a sampler of its own: all layers have one"),
        (mixture({"name": "rope", "sampler": "shift"}), "give position.sampler of the mixture"),
        (mixture("tape", "tape_yarn"), r"whose state layers update; give one of them"),
        (mixture("tape", {"name": "tape", "theta": 9.0}), "give one of them"),
    ],
)
def test_what_cannot_be_mixed_is_refused(position, message):
    refuses(message, make_config, position)


def test_backends_are_those_of_all_entries():
    with pytest.raises(ValueError, match=r"with position 'mixed'.*allowed here: eager, sdpa"):
        make_model(mixture("rope", "path"), kernel="flex_attention")
    assert make_model(mixture("rope", "fire"), kernel="flex_attention").config.position
