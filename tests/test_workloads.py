"""Timed work against the models, peers against this package, arithmetic against torch's counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import peers
from benchmarks.models import decoder, random_tokens
from benchmarks.speed import Case, Method
from benchmarks.workloads import WORK, Load, attention_layer, last_call, of_layer, of_model
from tape.model import flops as formulas

SHAPE = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": None, "mlp": 48, "vocabulary": 61}


def load_of(work, length=12, batch=2, new=3):
    return Load(work, batch, length, new, torch.float32, compiled=False)


def model_of(name, work="forward", backend="sdpa"):
    load = load_of(work)
    config = Case("layer", backend, load, SHAPE).config(name)
    return load.ready(decoder(config, backend)), load


@pytest.mark.parametrize("work", ["forward", "training"])
@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "fire", "t5", "tape"])
def test_a_layer_by_itself_is_the_layer_in_its_decoder(name, work):
    model, load = model_of(name, work)
    layer, found = attention_layer(model, load), []
    decoding = model.model.layers[1]
    decoding.self_attn.register_forward_hook(lambda *_: found.append(_[-1]))
    with torch.no_grad():
        model(random_tokens(model, load.batch, load.length), use_cache=False)
        outputs = layer.call(*layer.inputs, None)
    attended, attended_e, _ = found[0]
    torch.testing.assert_close(outputs[0], attended, atol=0, rtol=0)
    if name == "tape":  # after the MLP of the layer, whose output is random here
        e, mlp_out = layer.inputs[1:]
        torch.testing.assert_close(outputs[1], decoding.context.next_state(e, attended_e, mlp_out))


@pytest.mark.parametrize(
    ("peer", "name"), [(peer, name) for peer, names in peers.PEERS.items() for name in names]
)
def test_peers_compute_the_same(peer, name):
    if peers.version(peer) is None:
        pytest.skip(f"{peer} is not installed")
    model, load = model_of(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6.0  # so that attention is not flat
    layer = peers.attention_layer(peer, model, load)
    ours = attention_layer(model, load)
    with torch.no_grad():
        expected = ours.call(*ours.inputs, None)[0]
        found = layer.call(*layer.inputs, None)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_decoding_can_be_done_again(backend):
    """The cache is as before, and so is what comes out."""
    model, load = model_of("tape", "decoding", backend)
    layer = attention_layer(model, load)
    once = of_layer(layer, load, model.config)
    before = [x.clone() for x in (layer.cache.layers[1].keys, layer.cache.layers[1].values)]
    for _ in range(2):
        once()
        after = layer.cache.layers[1]
        for x, y in zip(before, (after.keys, after.values), strict=True):
            assert torch.equal(x, y)
    (arguments, _, cache) = last_call(model, load)
    assert arguments[0].shape[1] == 1 and cache.get_seq_length() == load.length


@pytest.mark.parametrize("name", ["rope", "fire", "tape"])
def test_arithmetic_is_what_torch_counts(name):
    """Under eager attention, which computes all pairs; products with T = 1 too."""
    for work in WORK:
        model, load = model_of(name, work, "eager")
        once = of_model(model, load)
        once()
        with FlopCounterMode(display=False) as counter:
            once()
        macs = Case("model", "eager", load, SHAPE).multiply_adds(Method(name), causal=False)
        counted = counter.get_total_flops() // 2
        if work == "training":  # gradients of inputs are not needed everywhere
            assert 0.8 * macs < counted <= macs
        else:
            assert counted == macs


@pytest.mark.parametrize("name", ["rope", "fire", "tape"])
def test_arithmetic_of_a_layer_is_what_torch_counts(name):
    model, load = model_of(name, "forward", "eager")
    for update in (True, False) if name == "tape" else (True,):
        layer = attention_layer(model, load, update)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer.call(*layer.inputs, None)
        case = Case("layer", "eager", load, SHAPE)
        method = Method(name, update=update)
        macs = case.multiply_adds(method, causal=False)
        assert macs == counter.get_total_flops() // 2
        assert macs > case.multiply_adds(method, causal=True)


def test_the_papers_layer():
    load = Load("forward", 1, 1024, 1, torch.float32, False)
    case = Case("layer", "sdpa", load, SHAPE | {"hidden": 768, "heads": 12})
    config = case.config("tape")
    own = 4 * 768**2 * 1024 + 2 * 768 * 1024**2
    update = sum(formulas.of_tape(config, 1024).values()) // (config.num_hidden_layers - 1)
    assert case.multiply_adds(Method("tape"), causal=False) == own + update


def test_unlike_kernels_are_not_compared():
    about = (load_of("forward"), SHAPE, ["rope"], ["transformers"])
    with pytest.raises(ValueError, match="transformers compiles flex_attention itself"):
        Case("layer", "flex_attention", *about).prepare("rope, transformers")
