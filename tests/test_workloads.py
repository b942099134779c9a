"""Timed work against the models."""

from dataclasses import replace

import pytest
import torch

from benchmarks.workloads import Load, attention_layer, llama_layer, rewind


def model_of(name, work="forward"):
    load = Load(work, "tiny", "sdpa", batch=2, length=12, new=3)
    return load.ready(load.decoder(name, layers=3)), load


@pytest.mark.parametrize("work", ["forward", "training"])
@pytest.mark.parametrize("name", ["rope", "alibi", "fire", "tape"])
def test_a_layer_by_itself_is_the_layer_in_its_decoder(name, work):
    model, load = model_of(name, work)
    (call, inputs, _), found = attention_layer(model, load), []
    decoding = model.model.layers[1]
    decoding.self_attn.register_forward_hook(lambda *_: found.append(_[-1]))
    with torch.no_grad():
        model(load.tokens(model), use_cache=False)
        outputs = call(*inputs)
    attended, attended_e, _ = found[0]
    torch.testing.assert_close(outputs[0], attended, atol=0, rtol=0)
    if name == "tape":  # after the MLP of the layer, whose output is random here
        _, e, mlp_out = inputs
        torch.testing.assert_close(outputs[1], decoding.context.next_state(e, attended_e, mlp_out))


def test_llamas_layer_computes_the_same():
    model, load = model_of("rope")
    for parameter in model.parameters():
        parameter.data *= 6.0  # so that attention is not flat
    layers = llama_layer(model, load), attention_layer(model, load)
    found, expected = (call(*inputs)[0] for call, inputs, _ in layers)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True])
def test_decoding_can_be_done_again(compiled):
    """The cache is as before, and so is what comes out."""
    model, load = model_of("tape", "decoding")
    cache = replace(load, compiled=compiled).cache(model.config)  # static, if compiled
    tokens = load.tokens(model)
    model(tokens, past_key_values=cache)
    first = model(tokens[:, :2], past_key_values=cache).logits
    rewind(cache.layers, 2)
    assert cache.get_seq_length() == load.length
    again = model(tokens[:, :2], past_key_values=cache).logits
    torch.testing.assert_close(again, first, atol=0, rtol=0)
