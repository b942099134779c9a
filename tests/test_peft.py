"""peft adapts the decoder: what its methods change is what the encoding computes with."""

import pytest
import torch
from conftest import in_pieces, make_model, random_tokens, refuses
from every_encoding import POSITIONS, in_modes
from peft import LoraConfig, PrefixTuningConfig, get_peft_model

BOTH = {"name": "mixed", "pattern": ["path", "tape", "selective"]}  # modules of equal names
ENCODINGS = POSITIONS | {"mixed_names": BOTH}
every_encoding = pytest.mark.parametrize("position", ENCODINGS.values(), ids=ENCODINGS)


def with_lora(model, **settings):
    settings = {"r": 2, "target_modules": "all-linear", "init_lora_weights": False} | settings
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens).logits


@every_encoding
def test_every_adapter_learns_and_merges(position):
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(2, 12)
    plain, adapted = logits_of(model, tokens), with_lora(model)
    linear = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)]
    linear = [name for name in linear if "lora_" not in name and name != "lm_head"]
    assert all(name.endswith(".base_layer") for name in linear)
    with torch.no_grad():
        pieces = in_pieces(adapted, tokens, [5, 1, 6])
    outputs = adapted(tokens, labels=tokens)
    outputs.loss.backward()
    for name, parameter in adapted.named_parameters():
        assert not parameter.requires_grad or parameter.grad.any(), name
    merged = logits_of(adapted.merge_and_unload(), tokens)
    for found in (merged, pieces):
        torch.testing.assert_close(found, outputs.logits.detach(), atol=1e-9, rtol=0)
    assert (merged - plain).abs().max() > 0.01
    start = with_lora(make_model(position), init_lora_weights="pissa")  # from the weights
    torch.testing.assert_close(logits_of(start, tokens), plain.float(), atol=1e-3, rtol=1e-3)


@in_modes
def test_adapters_of_a_model_in_bfloat16(position):
    adapted = with_lora(make_model(position, dtype=torch.bfloat16))
    adapted(random_tokens(2, 12), labels=random_tokens(2, 12)).loss.backward()
    for name, parameter in adapted.named_parameters():
        assert "lora_" not in name or parameter.grad.any(), name


@torch.no_grad()
@pytest.mark.parametrize("position", ["tape", "fox", "path"])
def test_prefixes_are_refused_by_encodings_that_keep_more_of_a_token(position):
    model, tokens = make_model(position, num_key_value_heads=4), random_tokens(2, 8)
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    refuses(f"position '{position}' with .* prefix tuning", tuned.eval(), tokens)
