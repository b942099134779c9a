"""What every encoding promises, whatever the way it is run: encodings x kernels x modes.

The reference of the plain forward pass is the loops of references.py; that of a mode is the plain
forward pass of the same model on one sequence.
"""

from copy import deepcopy

import pytest
import references
import torch
import torch.nn.functional as F
from accelerate import cpu_offload, dispatch_model
from cases import GENERATIONS, Case, check
from conftest import (
    VOCABULARY,
    all_options,
    gradients,
    in_pieces,
    left_padded,
    make_cache,
    make_model,
    random_tokens,
    refuses,
)
from every_encoding import COUNTED, GROUPED, POSITIONS, all_positions, in_modes, represented
from transformers import AutoModelForCausalLM
from transformers.quantizers.quantizers_utils import should_convert_module

from tape import TapeForCausalLM
from tape.attention.backends import KERNELS
from tape.encodings import path

LENGTH = 15
EXACT = {"atol": 1e-5, "rtol": 1e-5}
EXACT_IN_FLOAT64 = {"atol": 1e-9, "rtol": 1e-9}


# eager differs from sdpa by what an encoding gives to attention: nothing but turned queries and
# keys, a bias, a learned bias, a payload.
all_models = pytest.mark.parametrize(
    ("kernel", "position"),
    [
        *(("eager", name) for name in ("rope", "alibi", "fire", "tape")),
        *represented(POSITIONS, "sdpa"),
    ],
)


def loops_of(model, length=11):
    """Tokens, their logits and loss, and the gradients of the weights, in float64."""
    tokens = random_tokens(1, length)
    weights = {k: v.detach().double().requires_grad_() for k, v in model.state_dict().items()}
    index = torch.arange(length)[None]
    coordinates = model.model.position.sampler(index, index, False, None)[0][0].tolist()
    logits = references.decoder(weights, model.config, tokens[0].tolist(), coordinates)
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
        assert gradients[name] is not None, f"the definition (references.py) does not use {name}"
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
        check_against_loops(model, loops, EXACT_IN_FLOAT64)


@all_positions
def test_equals_the_loops_with_all_options(position):
    """Windows, sinks, norms and temperatures of queries, grouped queries and recurrences."""
    loops = loops_of(make_model(position, **all_options(position)), 8)
    for kernel in ("eager", "sdpa"):
        model = make_model(position, kernel=kernel, dtype=torch.float64, **all_options(position))
        check_against_loops(model, loops, EXACT_IN_FLOAT64)


@pytest.mark.parametrize("position", ["alibi", "grape_ap", {"name": "xpos", "scale_base": 2.0}])
def test_constants_of_a_float64_model_are_not_rounded(position):
    """The last slope of nine heads, 2^-0.5, and powers of zeta are not exact in float32."""
    shape = {"num_attention_heads": 9, "hidden_size": 72, "dtype": torch.float64}
    loops = loops_of(make_model(position, **shape), 7)
    for kernel in ("eager", "sdpa"):
        check_against_loops(make_model(position, kernel=kernel, **shape), loops, EXACT_IN_FLOAT64)


@all_positions
def test_second_derivatives_are_slopes_of_gradients(position):
    """In three layers, which share the state, and with grouped queries."""
    changes = {"num_key_value_heads": 2 if position in GROUPED else 4}
    model = make_model(position, kernel="eager", dtype=torch.float64, **changes)
    parameters, tokens = [*model.parameters()], random_tokens(1, 7)
    weights = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)

    def gradients(**how):
        total = (model(tokens, use_cache=False).logits * weights).sin().sum()
        return torch.autograd.grad(total, parameters, materialize_grads=True, **how)

    plain, graphed = gradients(), gradients(create_graph=True)
    torch.testing.assert_close(graphed, plain, **EXACT_IN_FLOAT64)
    step, direction = 1e-6, [torch.randn_like(p) / p.numel() ** 0.5 for p in parameters]
    slope = sum((g * d).sum() for g, d in zip(graphed, direction, strict=True))
    second = torch.autograd.grad(slope, parameters, materialize_grads=True)
    sides = []
    for steps in (1, -2):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=steps * step)
        sides.append(gradients())
    names = [name for name, _ in model.named_parameters()]
    for name, found, above, below in zip(names, second, *sides, strict=True):
        expected = (above - below) / (2 * step)
        assert (found - expected).norm() < 1e-6 * (1 + expected.norm()), name


LEFT = ("a" * 15, "." * 4 + "a" * 11, "." * 9 + "a" * 6)
RIGHT = tuple(text[::-1] for text in LEFT)
BETWEEN = ("a" * 15, "aaaa...aaaaaaaa")  # on the left padding shifts all sums over a text alike
MODES = {
    "left": {"rows": LEFT},
    "right": {"rows": RIGHT},
    "between": {"rows": BETWEEN, "calls": (7, 1, 7), "cache": "of_layers"},
    "between-static": {"rows": BETWEEN, "calls": (7, 1, 7), "cache": "static"},
    "pieces": {"rows": LEFT, "calls": (1, 4, 7, 1, 2), "cache": "of_layers"},
    "pieces-static": {"rows": LEFT, "calls": (9, 1, 1, 4), "cache": "static"},
    "gaps": {"rows": ("a" * 8,), "calls": (3, 2, 3), "cache": "of_layers", "given": ("gaps",)},
    "gaps-static": {"rows": ("a" * 8,), "calls": (6, 2), "cache": "static", "given": ("gaps",)},
    "documents": {"rows": ("aaaabcccccc", "a" * 11, "aabbbbbbbbb")},
    "documents-padded": {"rows": (".aaa.a.bcc..ccc.", "." + "a" * 14 + ".", ".aabb.b..bbbbbb.")},
    "documents-4-D": {"rows": ("aaaaaabbbbbb", "aaabbbbccccc"), "given": ("4-D",)},
    "documents-additive": {"rows": ("aaaaaabbbbbb", "aaabbbbccccc"), "given": ("additive",)},
    **{how: {"rows": LEFT, "generate": how} for how in GENERATIONS},
}


# Modes in which every option of the decoder is on.
WITH_OPTIONS = ("right", "between", "pieces-static", "documents-padded", "documents-additive")
WITH_OPTIONS += ("beams", "static-chunks")


@all_models
@pytest.mark.parametrize("mode", MODES)
def test_as_alone(position, kernel, mode):
    """Padded, from caches, in documents, in text that is generated."""
    changes = {"num_hidden_layers": 3, "num_key_value_heads": 2 if position in GROUPED else 4}
    if mode in WITH_OPTIONS:
        changes = all_options(position)
    of_counted = ("documents-4-D", "documents-additive", "embeddings")  # others read the ids
    if position in COUNTED or mode not in of_counted:
        check(Case(position, kernel=kernel, changes=changes, **MODES[mode]))


@pytest.mark.parametrize("chunk", [1, 4])
def test_path_in_chunks(chunk, monkeypatch):
    """In texts that end within a chunk and with one, and behind what is cached, with free slots."""
    monkeypatch.setattr(path, "CHUNK", chunk)
    model = make_model("path", dtype=torch.float64)
    for length in (11, 12):
        check_against_loops(model, loops_of(model, length), EXACT_IN_FLOAT64)
        model.zero_grad()
    for mode in ("pieces", "pieces-static"):
        check(Case("path", **MODES[mode]))


@torch.no_grad()
@in_modes
def test_masks_with_gaps(position):
    """Masks that hide tokens, far ones or every other one, with and without a cache, and no mask
    that would follow from gaps between indices."""
    model, tokens = make_model(position), random_tokens(2, 12)
    query, key = torch.arange(12)[:, None], torch.arange(12)
    causal = key <= query
    for kept in (query - key < 2, query - key < 6, (query - key) % 2 == 0):
        mask = (causal & kept)[None, None].expand(2, -1, -1, -1)
        full = model(tokens, attention_mask=mask).logits
        for sizes in ([1] * 12, [5, 3, 4]):
            pieces = in_pieces(model, tokens, sizes, make_cache(model, "of_layers"), mask)
            torch.testing.assert_close(pieces, full, **EXACT)
    where = {"position_ids": torch.tensor([[3, 4, 5, 8, 9, 12, 13, 14]]), "use_cache": False}
    tokens, before = tokens[:1, :8], model(tokens[:1, :8], **where).logits
    tokens[:, 0] = (tokens[:, 0] + 1) % VOCABULARY
    assert (model(tokens, **where).logits - before)[:, -1].abs().max() > 1e-6


@torch.no_grad()
@pytest.mark.parametrize(
    "position",
    ["path", "path_gate", "wall", "extended", "stick_breaking", "mixed_read", "fox", "grape_ap"],
)
@pytest.mark.parametrize("training", [False, True])
def test_scores_that_are_not_defined_for_later_tokens_are_refused(position, training):
    model, tokens = make_model(position).train(training), random_tokens(2, 9)
    prefix = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    prefix[..., 3, 4] = True
    refuses(r"position \w+ .* later tokens", model, tokens, attention_mask=prefix)


@torch.no_grad()
def test_masks_of_other_shapes_are_refused():
    model, tokens = make_model("rope"), random_tokens(2, 9)
    for kind, most in (("of_layers", 9), ("static", 20)):
        cache = make_cache(model, kind)
        model(tokens[:, :4], past_key_values=cache)
        wide = torch.ones(2, most + 1, dtype=torch.long)
        wide[0, :most] = 0
        with pytest.raises(ValueError, match=rf"covers {most + 1} tokens"):
            model(tokens[:, 4:], attention_mask=wide, past_key_values=cache)
        with pytest.raises(ValueError, match="covers 5 tokens, but there are 4 cached and 5 new"):
            model(tokens[:, 4:], attention_mask=wide[:, -5:], past_key_values=cache)
    refuses("covers 10 tokens", model, tokens, attention_mask=torch.ones(2, 10, dtype=torch.long))
    for shape in ((2, 1, 9, 10), (2, 1, 8, 9), (2, 4, 9, 9), (3, 1, 9, 9), (9,), (2, 9, 9), (3, 9)):
        with pytest.raises(ValueError, match=r"shape .* allowed: \((B, S|2, 9)\).* or \("):
            model(tokens, attention_mask=torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match="must be boolean"):
        model(tokens, attention_mask=torch.ones(1, 1, 9, 9, dtype=torch.long))
    row = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
    one, both = (model(tokens, attention_mask=mask).logits for mask in (row, row.expand(2, -1)))
    assert torch.equal(one, both)


@torch.no_grad()
@all_positions
def test_saved_and_reloaded(position, tmp_path):
    model, tokens = make_model(position, **all_options(position)), random_tokens(2, LENGTH)
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(reloaded) is TapeForCausalLM
    for name in ("position", *all_options(position)):
        assert getattr(reloaded.config, name) == getattr(model.config, name)
    assert torch.equal(reloaded(tokens).logits, model(tokens).logits)


@all_positions
def test_quantizing_a_base_leaves_the_maps_that_it_lacks(position):
    """bitsandbytes, as transformers calls it, replaces linear maps of exactly this type."""

    def replaced(model):
        modules = model.named_modules()
        named = [name for name, module in modules if type(module) is torch.nn.Linear]
        return [name for name in named if should_convert_module(name, ["lm_head"])]

    changes = all_options(position)
    base = make_model("nope", num_hidden_layers=changes["num_hidden_layers"])
    assert replaced(make_model(position, **changes)) == replaced(base)


class IntegerLinear(torch.nn.Module):
    """A linear map with weights of 8 bits, as bitsandbytes puts them in place of others."""

    def __init__(self, linear):
        super().__init__()
        self.scale, self.bias = linear.weight.abs().max() / 127, linear.bias
        weight = (linear.weight / self.scale).round().to(torch.int8)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        linear.weight.copy_(weight * self.scale)

    def forward(self, x):
        return F.linear(x, (self.weight * self.scale).to(x.dtype), self.bias)


@torch.no_grad()
@in_modes
def test_with_weights_of_integers(position):
    model, tokens = make_model(position), random_tokens(2, LENGTH)
    other = deepcopy(model)
    for name, linear in other.named_modules():
        if isinstance(linear, torch.nn.Linear):
            other.set_submodule(name, IntegerLinear(model.get_submodule(name)))
    pieces = in_pieces(other, tokens, [9, 1, 5], make_cache(other, "growing"))
    torch.testing.assert_close(pieces, model(tokens).logits, **EXACT)


@torch.no_grad()
@in_modes
def test_quantized_dynamically(position):
    model, tokens = make_model(position), random_tokens(2, LENGTH)
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    expected = model(tokens).logits
    assert (quantized(tokens).logits - expected).norm() < 0.1 * expected.norm()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
@all_models
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed(position, kernel, reentrant):
    changes = {"num_key_value_heads": 2 if position in GROUPED else 4}
    changes = all_options(position) if reentrant else changes
    model = make_model(position, kernel=kernel, dtype=torch.float64, **changes).train()
    tokens, found = random_tokens(2, LENGTH), []
    for checkpointed in (False, True):  # the samplers draw: the same draw must serve both passes
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(3)
        found.append(gradients(model, tokens))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    assert found[0].keys() == dict(model.named_parameters()).keys()
    assert all(gradient.abs().max() > 0 for gradient in found[0].values())


@in_modes
@pytest.mark.parametrize("trained", ["", "v_proj"], ids=["all", "values"])
def test_gradients_through_padding_are_slopes(position, trained):
    """The label of a row's first token is predicted from the padding before it, which sees nothing.
    torch takes other kernels if no score has a gradient."""
    model = make_model(position, dtype=torch.float64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    tokens, mask = left_padded()
    inputs = {"labels": tokens.masked_fill(mask == 0, -100), "attention_mask": mask}
    weight, losses = model.model.layers[0].self_attn.v_proj.weight, []
    model(tokens, **inputs).loss.backward()
    slope, step = weight.grad.norm(), 1e-6
    for steps in (1, -2):
        weight.data += steps * step * weight.grad / slope
        losses.append(model(tokens, **inputs).loss)
    assert torch.isclose((losses[0] - losses[1]) / (2 * step), slope, rtol=1e-4)


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
    model = make_model(position, kernel=kernel, **all_options(position)).train()
    tokens, attend, found = random_tokens(2, 60), KERNELS[kernel], set()

    def record(request):
        shown = (request.q, request.k, *request.values)
        found.update(x.dtype for x in shown if x is not None)
        return attend(request)

    monkeypatch.setitem(KERNELS, kernel, record)
    with torch.autocast("cpu", torch.bfloat16), model.evaluation_length(60):
        model(tokens, labels=tokens).loss.backward()
    assert found == {torch.bfloat16}


@in_modes
def test_constants_are_not_rounded_by_loading(position, tmp_path):
    model = make_model(position)
    model.save_pretrained(tmp_path)
    loaded = TapeForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    found, stored = dict(loaded.named_buffers()), model.state_dict()
    for name, buffer in model.named_buffers():
        assert name in stored or torch.equal(found[name], buffer), name


@torch.no_grad()
@all_models
def test_bfloat16_decodes_with_a_cache(position, kernel):
    model = make_model(position, kernel=kernel, dtype=torch.bfloat16)
    tokens, mask = left_padded()
    cached = in_pieces(model, tokens, [9, 6], make_cache(model, "of_layers"), mask)
    full, real = model(tokens, attention_mask=mask).logits, mask.bool()
    assert cached.isfinite().all()
    assert relative_error(cached[real], full[real].double()) < 0.05


BY_MAP = {"model.embed_tokens": "cpu", "model.norm": "disk", "lm_head": "disk"}
BY_MAP |= {"model.position": "disk", "model.layers.0": "disk"}
BY_MAP |= {"model.layers.1": "cpu", "model.layers.2": "disk"}
# accelerate keeps weights off the device, and loads a module's own when the module is called.
OFFLOADS = {
    "with buffers": lambda model, _: cpu_offload(model, "cpu", offload_buffers=True),
    "by map": lambda model, folder: dispatch_model(model, BY_MAP, offload_dir=folder),
}


@in_modes
@pytest.mark.parametrize("offload", OFFLOADS)
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
    model = OFFLOADS[offload](model, tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(outputs(), plain)
