"""peft adapts the decoder: what its methods change is what the encoding computes with."""

from functools import partial

import pytest
import torch
from conftest import in_pieces, make_model, random_tokens
from every_encoding import COUNTED, GROUPED, POSITIONS, in_modes
from peft import (
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)

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


def assert_learns_and_merges(adapted, tokens):
    """All that trains has a gradient, and the merged model computes the same; its logits."""
    outputs = adapted(tokens, labels=tokens)
    outputs.loss.backward()
    for name, parameter in adapted.named_parameters():
        assert not parameter.requires_grad or parameter.grad.any(), name
    merged = logits_of(adapted.merge_and_unload(), tokens)
    torch.testing.assert_close(merged, outputs.logits.detach(), atol=1e-9, rtol=0)
    return merged


@every_encoding
def test_every_adapter_learns_and_merges(position):
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(2, 12)
    plain, adapted = logits_of(model, tokens), with_lora(model)
    linear = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)]
    linear = [name for name in linear if "lora_" not in name and name != "lm_head"]
    assert all(name.endswith(".base_layer") for name in linear)
    with torch.no_grad():
        pieces = in_pieces(adapted, tokens, [5, 1, 6])
    found = assert_learns_and_merges(adapted, tokens)
    torch.testing.assert_close(pieces, found, atol=1e-9, rtol=0)
    assert (found - plain).abs().max() > 0.01
    start = with_lora(make_model(position), init_lora_weights="pissa")  # from the weights
    torch.testing.assert_close(logits_of(start, tokens), plain.float(), atol=1e-3, rtol=1e-3)


OF_A_TABLE = partial(LoraConfig, target_modules=["table"])


@pytest.mark.parametrize(
    ("position", "kind"),
    [("tape", LoHaConfig), ("relative", LoKrConfig), ("t5", OF_A_TABLE)]
    + [(name, partial(LoraConfig, use_dora=True)) for name in ("fire", "dape", "mixed_read")],
)
def test_other_adapters_learn_and_merge(position, kind):
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(2, 12)
    everywhere = {} if kind is OF_A_TABLE else {"target_modules": "all-linear"}
    adapted = get_peft_model(model, kind(r=2, **everywhere)).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    assert_learns_and_merges(adapted, tokens)


@in_modes
def test_adapters_of_a_model_in_bfloat16(position):
    adapted = with_lora(make_model(position, dtype=torch.bfloat16))
    adapted(random_tokens(2, 12), labels=random_tokens(2, 12)).loss.backward()
    for name, parameter in adapted.named_parameters():
        assert "lora_" not in name or parameter.grad.any(), name


def with_prefix(position, length):
    heads = {"num_key_value_heads": 2 if position in GROUPED else 4}
    model = make_model(position, dtype=torch.float64, **heads)
    torch.manual_seed(1)
    config = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=length)
    return model, get_peft_model(model, config).eval()


def after_prefix(model, tokens, prefix):
    """Logits after tokens whose prepared keys and values are those of a prefix, without a cache."""
    count = prefix.get_seq_length()
    for layer, own in zip(model.model.layers, prefix.layers, strict=True):

        def prepare(*inputs, layer=layer, keys=own.keys):
            q, k, extras = type(layer.context).prepare(layer.context, *inputs)
            return q, torch.cat((keys, k[:, :, count:]), dim=2), extras

        def values(module, inputs, v, values=own.values):
            return torch.cat((values.transpose(1, 2).flatten(2), v[:, count:]), dim=1)

        layer.context.prepare = prepare
        layer.self_attn.v_proj.register_forward_hook(values)
    first = tokens.new_ones(len(tokens), count)  # no digits
    return logits_of(model, torch.cat((first, tokens), dim=1))[:, count:]


@in_modes
def test_prefixes_are_tokens_before_the_text(position):
    (model, tuned), tokens = with_prefix(position, length=3), random_tokens(2, 8)
    with torch.no_grad():
        layers = model(tokens, use_cache=True).past_key_values.layers[: len(model.model.layers)]
    D = model.config.head_dim
    if any(x.shape[-1] != D for layer in layers for x in (layer.keys, layer.values)):
        name = model.config.position["name"]
        with pytest.raises(ValueError, match=f"position '{name}' with .* prefix tuning"):
            tuned(tokens)
        return
    found = logits_of(tuned, tokens)
    text = tuned.generate(input_ids=tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        prefix = tuned.get_prompt(batch_size=2)
        expected = after_prefix(model, text, prefix)
    torch.testing.assert_close(found, expected[:, :8], atol=1e-6, rtol=0)
    assert torch.equal(text[:, 8:], expected[:, 7:-1].argmax(-1))


@pytest.mark.parametrize("position", COUNTED)
def test_prompts_take_the_place_of_a_refused_prefix(position):
    model, tokens = make_model(position, dtype=torch.float64), random_tokens(2, 8)
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    tuned = get_peft_model(model, config).eval()
    with torch.no_grad():
        prompt = tuned.get_prompt(batch_size=2)
        embedded = torch.cat((prompt, model.get_input_embeddings()(tokens)), dim=1)
        expected = model(inputs_embeds=embedded).logits
    torch.testing.assert_close(logits_of(tuned, tokens), expected, atol=1e-9, rtol=0)
    text = tuned.generate(input_ids=tokens, max_new_tokens=1, do_sample=False, pad_token_id=0)
    assert torch.equal(text[:, -1], expected[:, -1].argmax(-1))
