"""What every encoding promises, whatever the way it is run: encodings x kernels x modes.

The reference of the plain forward pass is the loops of references.py; that of a mode is the plain
forward pass of the same float32 model on one sequence.
"""

import copy

import pytest
import references
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from conftest import (
    COUNTED,
    GROUPED,
    POSITIONS,
    REPRESENTED,
    VOCABULARY,
    all_positions,
    in_modes,
    make_model,
    random_tokens,
)
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from tape import TapeForCausalLM
from tape.attention.backends import KERNELS

LENGTH = 15
EXACT = {"atol": 1e-5, "rtol": 1e-5}


# eager differs from sdpa by what an encoding gives to attention: nothing but turned queries and
# keys, a bias, a learned bias, a payload. The other encodings are slow tests of it.
EAGER = ("rope", "alibi", "fire", "tape")
all_models = pytest.mark.parametrize(
    ("position", "kernel"),
    [
        pytest.param(name, kernel, marks=pytest.mark.slow)
        if name in REPRESENTED or (kernel == "eager" and name not in EAGER)
        else (name, kernel)
        for kernel in ("sdpa", "eager")
        for name in POSITIONS
    ],
)


@pytest.fixture
def model(position, kernel):
    return make_model(position, kernel=kernel)


def coordinates_of(model, length):
    """What the evaluation-time sampler gives to the first tokens."""
    index = torch.arange(length)[None]
    return model.model.position.sampler(index, index, False)[0][0].tolist()


def loops_of(model, length=11):
    """Tokens, their logits and loss, and the gradients of the weights, in float64."""
    tokens = random_tokens(1, length)
    weights = {k: v.detach().double().requires_grad_() for k, v in model.state_dict().items()}
    logits = references.decoder(
        weights, model.config, tokens[0].tolist(), coordinates_of(model, length)
    )
    loss = references.loss(logits, tokens[0].tolist())
    loss.backward()
    return tokens, logits, loss, {name: weight.grad for name, weight in weights.items()}


def check_against_loops(model, loops, tolerance):
    tokens, logits, loss, gradients = loops
    output = model(tokens, labels=tokens)
    assert output.loss.item() == pytest.approx(loss.item(), abs=1e-5)
    # The library's loss is in float32 whatever the logits are.
    torch.nn.functional.cross_entropy(output.logits[0, :-1], tokens[0, 1:]).backward()
    torch.testing.assert_close(output.logits[0], logits.to(output.logits), **tolerance)
    for name, parameter in model.named_parameters():
        expected = gradients[name].to(parameter.dtype)
        assert parameter.grad is not None, f"{name} has no gradient"
        if not name.endswith("hidden.bias"):  # FIRE's: a constant while the same units are active
            assert expected.abs().max() > 1e-9, f"the test of {name} is empty"
        torch.testing.assert_close(parameter.grad, expected, **tolerance, msg=name)


@all_positions
def test_equals_the_loops(position):
    """Both kernels, in float32 and float64: casting to float64 changes no weight."""
    loops = loops_of(make_model(position))
    for kernel in ("eager", "sdpa"):
        model = make_model(position, kernel=kernel)
        check_against_loops(model, loops, {"atol": 2e-5, "rtol": 1e-4})
        model = make_model(position, kernel=kernel, dtype=torch.float64)
        check_against_loops(model, loops, {"atol": 1e-9, "rtol": 1e-9})


@pytest.mark.parametrize("position", GROUPED)
def test_grouped_queries_equal_the_loops(position):
    model = make_model(position, num_key_value_heads=2, dtype=torch.float64)
    check_against_loops(model, loops_of(model), {"atol": 1e-9, "rtol": 1e-9})


@torch.no_grad()
@all_models
def test_batched(model):
    tokens = random_tokens(4, LENGTH)
    one_by_one = torch.cat([model(row[None]).logits for row in tokens])
    torch.testing.assert_close(model(tokens).logits, one_by_one, **EXACT)


@torch.no_grad()
@all_models
def test_causal_and_complete(model):
    """Every logit depends on every token up to its own and on none after it.

    That the first token reaches the last logit, without a cache and in a batch, also shows that
    coordinates were never taken for the borders of packed documents."""
    for batch in (1, 2):
        tokens = random_tokens(batch, LENGTH)
        before = model(tokens, use_cache=False).logits
        for changed in (0, LENGTH - 1):
            other = tokens.clone()
            other[:, changed] = (other[:, changed] + 1) % VOCABULARY
            difference = (model(other, use_cache=False).logits - before).abs().amax((0, 2))
            assert (difference[:changed] == 0).all()
            assert (difference[changed:] > 1e-6).all()


def make_cache(model, kind):
    if kind == "dynamic":
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=LENGTH + 5)


@torch.no_grad()
@all_models
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("chunks", [[9, 1, 1, 1, 1, 1, 1], [1, 4, 7, 3]])
def test_cached(model, kind, chunks):
    tokens = random_tokens(2, LENGTH)
    cache = make_cache(model, kind)
    pieces = [
        model(chunk, past_key_values=cache, use_cache=True).logits
        for chunk in tokens.split(chunks, dim=1)
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).logits, **EXACT)


def left_padded():
    tokens, pads = random_tokens(3, LENGTH), [0, 4, 9]
    mask = torch.ones_like(tokens)
    for row, count in enumerate(pads):
        mask[row, :count] = 0
    return tokens, mask, pads


@torch.no_grad()
@all_models
def test_left_padded(model):
    tokens, mask, pads = left_padded()
    logits = model(tokens, attention_mask=mask).logits
    assert logits.isfinite().all()
    for row, count in enumerate(pads):
        alone = model(tokens[row : row + 1, count:]).logits[0]
        torch.testing.assert_close(logits[row, count:], alone, **EXACT)


@torch.no_grad()
@all_models
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_left_padded_and_cached(model, kind):
    tokens, mask, pads = left_padded()
    cache, pieces, start = make_cache(model, kind), [], 0
    for stop in (11, 12, 14, 15):
        chunk, seen = tokens[:, start:stop], mask[:, :stop]
        pieces.append(model(chunk, attention_mask=seen, past_key_values=cache).logits)
        start = stop
    logits = torch.cat(pieces, dim=1)
    for row, count in enumerate(pads):
        alone = model(tokens[row : row + 1, count:]).logits[0]
        torch.testing.assert_close(logits[row, count:], alone, **EXACT)


@torch.no_grad()
@all_models
def test_right_padded(model):
    tokens, mask, pads = left_padded()
    logits = model(tokens, attention_mask=mask.flip(1)).logits
    for row, count in enumerate(pads):
        alone = model(tokens[row : row + 1, : LENGTH - count]).logits[0]
        torch.testing.assert_close(logits[row, : LENGTH - count], alone, **EXACT)


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_padding_between_cached_tokens_is_not_read(position, kind):
    """Where it changes sums over the text; on the left it shifts all of them alike."""
    model, tokens = make_model(position), random_tokens(2, 12)
    mask = torch.ones(2, 15, dtype=torch.long)
    mask[1, 4:7] = 0
    padded = torch.cat((tokens[:, :7], tokens[:, :3], tokens[:, 7:]), 1)
    cache = make_cache(model, kind)
    pieces = [
        model(padded[:, a:b], attention_mask=mask[:, :b], past_key_values=cache).logits
        for a, b in ((0, 7), (7, 8), (8, 15))
    ]
    real = mask[1].bool()
    alone = model(padded[1:, real]).logits[0]
    torch.testing.assert_close(torch.cat(pieces, 1)[1, real], alone, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", GROUPED)
@pytest.mark.parametrize("key_heads", [2, 1])
def test_grouped_queries(position, key_heads):
    model = make_model(position, num_key_value_heads=key_heads)
    tokens, mask, pads = left_padded()
    cache = make_cache(model, "dynamic")
    pieces = [
        model(tokens[:, :11], attention_mask=mask[:, :11], past_key_values=cache).logits,
        model(tokens[:, 11:], attention_mask=mask, past_key_values=cache).logits,
    ]
    for row, count in enumerate(pads):
        alone = model(tokens[row : row + 1, count:]).logits[0]
        torch.testing.assert_close(torch.cat(pieces, dim=1)[row, count:], alone, **EXACT)


@torch.no_grad()
@in_modes
def test_position_ids_are_indices(position):
    """Counting on from 3 is what three padding tokens in front do to the indices, and no mask
    follows from a gap."""
    model = make_model(position)
    tokens = random_tokens(2, 8)
    shifted = model(tokens, position_ids=torch.arange(3, 11)[None]).logits
    cache = make_cache(model, "dynamic")
    pieces = [
        model(tokens[:, :5], position_ids=torch.arange(3, 8)[None], past_key_values=cache).logits,
        model(tokens[:, 5:], position_ids=torch.arange(8, 11)[None], past_key_values=cache).logits,
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), shifted, **EXACT)
    gap = torch.tensor([[0, 1, 2, 7, 8, 9, 10, 11]])
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % VOCABULARY
    change = model(other, position_ids=gap, use_cache=False).logits[:, -1]
    assert ((change - model(tokens, position_ids=gap).logits[:, -1]).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_gaps_and_a_cache(position, kind):
    """Between the calls, and within one."""
    model, tokens = make_model(position), random_tokens(1, 8)
    indices = torch.tensor([[0, 1, 2, 5, 6, 9, 10, 11]])
    full = model(tokens, position_ids=indices).logits
    for chunks in ([3, 2, 3], [3, 1, 1, 1, 1, 1], [6, 2]):
        cache = make_cache(model, kind)
        pieces = [
            model(chunk, position_ids=where, past_key_values=cache).logits
            for chunk, where in zip(tokens.split(chunks, 1), indices.split(chunks, 1), strict=True)
        ]
        torch.testing.assert_close(torch.cat(pieces, dim=1), full, **EXACT)


@torch.no_grad()
@all_models
def test_masks_that_the_caller_made(model):
    tokens, mask, _ = left_padded()
    plain = model(tokens, use_cache=False).logits
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    torch.testing.assert_close(model(tokens, attention_mask=causal).logits, plain, **EXACT)
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    torch.testing.assert_close(model(tokens, attention_mask=additive).logits, plain, **EXACT)
    with pytest.raises(ValueError, match="must be boolean"):
        model(tokens, attention_mask=causal.long())
    cache = make_cache(model, "dynamic")
    model(tokens[:, :10], past_key_values=cache)
    with pytest.raises(ValueError, match="covers 5 tokens, but there are 10 cached and 5 new"):
        model(tokens[:, 10:], attention_mask=mask[:, 10:], past_key_values=cache)


def masks_with_gaps(T):
    """Causal 4-D masks that hide tokens: far ones, every other one, and those of two documents."""
    query, key = torch.arange(T)[:, None], torch.arange(T)
    causal = key <= query
    return {
        "band": causal & (query - key < 2),
        "strided": causal & ((query - key) % 2 == 0),
        "documents": causal & ((query < 6) == (key < 6)),
    }


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", masks_with_gaps(1))
def test_masks_with_gaps_and_a_cache(position, window, kind):
    model, tokens = make_model(position, sliding_window=window), random_tokens(2, 12)
    mask = masks_with_gaps(12)[kind][None, None].expand(2, -1, -1, -1)
    full = model(tokens, attention_mask=mask).logits
    for chunks in ([1] * 12, [5, 3, 4]):
        cache, ends, pieces = make_cache(model, "dynamic"), torch.tensor(chunks).cumsum(0), []
        for part, end in zip(tokens.split(chunks, 1), ends.tolist(), strict=True):
            seen = mask[:, :, end - part.shape[1] : end, :end]
            pieces.append(model(part, attention_mask=seen, past_key_values=cache).logits)
        torch.testing.assert_close(torch.cat(pieces, dim=1), full, **EXACT)


@torch.no_grad()
@in_modes
def test_documents_are_as_alone(position):
    model, tokens = make_model(position), random_tokens(2, 12)
    expected = torch.cat([model(part).logits for part in tokens.split(6, dim=1)], dim=1)
    documents = (torch.arange(12) >= 6).long().expand(2, -1)
    torch.testing.assert_close(model(tokens, document_ids=documents).logits, expected, **EXACT)
    if position in COUNTED:
        mask = masks_with_gaps(12)["documents"][None, None]
        index = torch.arange(6).repeat(2)[None]
        found = model(tokens, attention_mask=mask, position_ids=index, use_cache=False).logits
        torch.testing.assert_close(found, expected, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("position", ["path", "mixed_read"])
@pytest.mark.parametrize("training", [False, True])
def test_path_has_no_scores_of_later_tokens(position, training):
    model, tokens = make_model(position).train(training), random_tokens(2, 9)
    prefix = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    prefix[..., :4] = True
    with pytest.raises(ValueError, match=r"position path .* later tokens"):
        model(tokens, attention_mask=prefix)


@torch.no_grad()
@in_modes
def test_masks_of_other_shapes_are_refused(position):
    model, tokens = make_model(position), random_tokens(2, 9)
    for kind, most in (("dynamic", 9), ("static", LENGTH + 5)):
        cache = make_cache(model, kind)
        model(tokens[:, :4], past_key_values=cache)
        wide = torch.ones(2, most + 1, dtype=torch.long)
        wide[0, :most] = 0
        with pytest.raises(ValueError, match=rf"covers {most + 1} tokens"):
            model(tokens[:, 4:], attention_mask=wide, past_key_values=cache)
    with pytest.raises(ValueError, match="covers 10 tokens"):
        model(tokens, attention_mask=torch.ones(2, 10, dtype=torch.long))
    for shape in ((2, 1, 9, 10), (2, 1, 8, 9), (2, 4, 9, 9), (3, 1, 9, 9), (1, 1, 1, 9)):
        with pytest.raises(ValueError, match=r"shape .* allowed: .*\(2, 1, 9, 9\)"):
            model(tokens, attention_mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_dropout_drops_the_same_tokens_of_values_and_payload(kernel):
    from tape.attention.backends import KERNELS
    from tape.attention.payload import Values

    q, k, v = torch.randn(3, 1, 2, 40, 8)
    for dropout in (0.0, 0.5):
        values, payload, *_ = KERNELS[kernel](q, k, Values(v, v), None, None, 0.3, dropout)
        torch.testing.assert_close(values, payload)


@torch.no_grad()
@all_positions
def test_saved_and_reloaded(position, tmp_path):
    model, tokens = make_model(position), random_tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(reloaded) is TapeForCausalLM
    assert reloaded.config.position == model.config.position
    assert torch.equal(reloaded(tokens).logits, model(tokens).logits)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@all_models
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed(model, reentrant):
    tokens = random_tokens(2, LENGTH)
    model.train()  # the samplers draw: the same draw must serve both passes

    def gradients():
        torch.manual_seed(3)
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    checkpointed = gradients()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
        assert gradient.abs().max() > 0, name


def relative_error(logits, exact):
    return ((logits.double() - exact).norm() / exact.norm()).item()


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("mode", ["cast", "autocast"])
def test_bfloat16_is_as_close_as_rope_is(position, mode):
    """bfloat16 adds rounding to weights and activations, and none to positions: the error of an
    encoding at far positions stays within a small factor of RoPE's."""

    def error(name):
        changes = {"max_position_embeddings": 4096}
        model = make_model(name, **changes)
        tokens = random_tokens(1, 400)
        far = torch.arange(2000, 2400)[None]
        with model.evaluation_length(4096):
            exact = make_model(name, dtype=torch.float64, **changes)
            with exact.evaluation_length(4096):
                reference = exact(tokens, position_ids=far).logits
            if mode == "cast":
                return relative_error(model.bfloat16()(tokens, position_ids=far).logits, reference)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return relative_error(model(tokens, position_ids=far).logits, reference)

    assert error(position) < 4 * error("rope") < 0.2


@in_modes
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_queries_keys_and_values_have_one_dtype(position, kernel, monkeypatch):
    """Under autocast the products do, and what is done to them keeps it."""
    options = {"qk_norm": True, "query_temperature": {"scale": 2.0, "length": 6}}
    if position not in COUNTED:  # its positions do not count tokens
        del options["query_temperature"]
    model = make_model(position, kernel=kernel, **options).train()
    tokens, attend, found = random_tokens(2, 60), KERNELS[kernel], set()

    def record(q, k, values, *given, **named):
        found.add((q.dtype, k.dtype, *(x.dtype for x in values if x is not None)))
        return attend(q, k, values, *given, **named)

    monkeypatch.setitem(KERNELS, kernel, record)
    with torch.autocast("cpu", torch.bfloat16), model.evaluation_length(60):
        model(tokens, labels=tokens).loss.backward()
    assert {dtype for each in found for dtype in each} == {torch.bfloat16}


@in_modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_constants_are_not_rounded_by_loading(position, dtype, tmp_path):
    model = make_model(position)
    model.save_pretrained(tmp_path)
    loaded = TapeForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    stored = model.state_dict()
    expected = {name: x for name, x in model.named_buffers() if name not in stored}
    found = dict(loaded.named_buffers())
    for name, buffer in expected.items():
        torch.testing.assert_close(found[name], buffer, atol=0, rtol=0, msg=name)


@torch.no_grad()
@all_models
def test_bfloat16_decodes_with_a_cache(position, kernel):
    model = make_model(position, kernel=kernel, dtype=torch.bfloat16)
    tokens, mask, _ = left_padded()
    cache = make_cache(model, "dynamic")
    pieces = [
        model(tokens[:, :9], attention_mask=mask[:, :9], past_key_values=cache).logits,
        model(tokens[:, 9:], attention_mask=mask, past_key_values=cache).logits,
    ]
    full = model(tokens, attention_mask=mask).logits
    cached = torch.cat(pieces, dim=1)
    real = mask.bool()
    assert cached.isfinite().all()
    assert relative_error(cached[real], full[real].double()) < 0.05


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_fox_forgets_in_float16_as_in_float32(kernel):
    """Its sums pass what a number of float16 can hold."""
    tokens, found = random_tokens(1, 60), []
    for dtype in (torch.float32, torch.float16):
        model = make_model("fox", kernel=kernel, dtype=dtype)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.context.gate.bias[0] = -3000.0
        cache = make_cache(model, "dynamic")
        pieces = [model(x, past_key_values=cache).logits for x in tokens.split(20, dim=1)]
        logits = model(tokens, use_cache=False).logits
        logits.float().logsumexp(-1).sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        found += [logits.detach().double(), torch.cat(pieces, dim=1).detach().double()]
    assert relative_error(found[1], found[0]) < 1e-5
    assert max(relative_error(logits, found[0]) for logits in found[2:]) < 0.02


GENERATIONS = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 5},
}


@torch.no_grad()
@pytest.mark.parametrize("how", GENERATIONS)
@in_modes
def test_generates_alike_with_and_without_a_cache(position, how):
    model = make_model(position)
    tokens, mask, pads = left_padded()
    tokens[mask == 0] = 0

    def generate(**changes):
        torch.manual_seed(0)
        settings = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": 0}
        with model.evaluation_length(LENGTH + 6):
            return model.generate(**({"inputs": tokens} | settings | GENERATIONS[how] | changes))

    expected = generate(use_cache=False)
    assert expected.shape == (3, LENGTH + 6)
    assert torch.equal(generate(), expected)
    assert torch.equal(generate(cache_implementation="static"), expected)
    if how != "beams" and position in COUNTED:  # the others read the ids
        embedded = generate(inputs=None, inputs_embeds=model.model.embed_tokens(tokens))
        assert torch.equal(embedded, expected[:, LENGTH:])
    if how == "greedy":
        for row, count in enumerate(pads):
            prompt = {"inputs": tokens[row : row + 1, count:]}
            alone = generate(**prompt, attention_mask=mask[row : row + 1, count:])
            assert torch.equal(alone[0, LENGTH - count :], expected[row, LENGTH:])


@torch.no_grad()
@in_modes
@pytest.mark.parametrize("cache", ["static", None])
def test_generates_alike_from_a_prompt_in_chunks(position, cache):
    model = make_model(position)
    tokens, mask, _ = left_padded()
    settings = {"attention_mask": mask, "max_new_tokens": 4, "pad_token_id": 0}
    with model.evaluation_length(LENGTH + 4):
        expected = model.generate(tokens, **settings)
        settings |= {"cache_implementation": cache, "prefill_chunk_size": 4}
        assert torch.equal(model.generate(tokens, **settings), expected)


@torch.no_grad()
@in_modes
def test_candidates_from_the_prompt_change_nothing(position):
    """Prompt lookup: rejected candidates are cropped from the cache."""
    model = make_model(position)
    tokens = random_tokens(1, 5).repeat(1, 3)
    settings = {"max_new_tokens": 12, "pad_token_id": 0, "do_sample": False}
    with model.evaluation_length(LENGTH + 12 + 3):  # with candidates beyond the end
        expected = model.generate(tokens, use_cache=False, **settings)
        found = model.generate(tokens, prompt_lookup_num_tokens=3, **settings)
    assert torch.equal(found, expected)


@torch.no_grad()
@in_modes
def test_continuations_share_a_prefix(position):
    model, prefix = make_model(position), random_tokens(2, 6)
    cache = make_cache(model, "dynamic")
    with model.evaluation_length(LENGTH):
        model(prefix, past_key_values=cache)
        for seed in (2, 3):
            suffix = random_tokens(2, LENGTH - 6, seed)
            found = model(suffix, past_key_values=copy.deepcopy(cache)).logits
            expected = model(torch.cat((prefix, suffix), dim=1), use_cache=False).logits[:, 6:]
            torch.testing.assert_close(found, expected, **EXACT)


# accelerate keeps weights off the device, and loads a module's own when the module is called.


def everything(model, folder):
    return cpu_offload(model, execution_device="cpu")


def with_buffers(model, folder):
    return cpu_offload(model, execution_device="cpu", offload_buffers=True)


def on_disk(model, folder):
    return disk_offload(model, folder, execution_device="cpu")


def by_map(model, folder):
    places = {"model.embed_tokens": "cpu", "model.norm": "disk", "lm_head": "disk"}
    places |= {"model.position": "disk", "model.layers.0": "disk"}
    places |= {"model.layers.1": "cpu", "model.layers.2": "disk"}
    return dispatch_model(model, places, offload_dir=folder)


@in_modes
@pytest.mark.parametrize("offload", [everything, with_buffers, on_disk, by_map])
def test_an_offloaded_model_is_the_plain_one(position, offload, tmp_path):
    model, tokens = make_model(position), random_tokens(2, 8)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    settings |= {"output_logits": True, "return_dict_in_generate": True}

    def outputs():
        with torch.no_grad():
            whole = model(tokens, labels=tokens)
            text = model.generate(tokens, **settings)
        return whole.loss, whole.logits, text.sequences, *text.logits

    plain = outputs()
    model = offload(model, tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(outputs(), plain)
