"""torch.compile in one graph: training equals eager, decoding compiles one graph and no more."""

import pytest
import torch
from conftest import in_pieces, left_padded, make_model, random_tokens
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from transformers import CompileConfig, StaticCache
from transformers.integrations.executorch import convert_and_export_with_cache

from tape.encodings import ENCODINGS
from tape.positions import sampling

# Each has code of its own that is compiled; arguments that only change numbers are left out.
COMPILED = [*ENCODINGS, "extended_dca", "mixed_tape", "path_gate", "rope_pose"]
COMPILED += ["tape_not_tensorial"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in COMPILED if name != "tape"]
OTHERS = ("alibi", "fire", "fox", "rope", "abacus", "randpe")  # the last keep or draw indices


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()


def loss_and_gradients(model, call, tokens):
    torch.manual_seed(3)  # the samplers draw in training
    model.zero_grad()
    loss = call(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


# Eager attention with grouped queries has gradients of other strides.
STRIDED = [(name, "aot_eager", 1e-6, "eager", 2) for name in ("rope", "pope", "grape_m", "tape")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "backend", "tolerance", "kernel", "key_heads"),
    [
        *((name, "aot_eager", 1e-6, "sdpa", 4) for name in COMPILED),
        *STRIDED,
        ("tape", "inductor", 1e-5, "sdpa", 4),
    ],
)
def test_training_in_one_graph(position, backend, tolerance, kernel, key_heads):
    changes = {"num_hidden_layers": 2, "num_key_value_heads": key_heads}
    model = make_model(position, kernel=kernel, **changes).train()
    tokens = random_tokens(2, 15)
    loss, gradients = loss_and_gradients(model, model, tokens)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        again, compiled_gradients = loss_and_gradients(model, compiled, tokens)
        torch.testing.assert_close(again, loss, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(
            compiled_gradients, gradients, atol=tolerance, rtol=100 * tolerance
        )
    assert counters["stats"]["unique_graphs"] == 1


def decoded(call, model, tokens, count):
    """Greedy tokens and their logits, into a static cache."""
    cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1] + count)
    found = []
    for _ in range(count):
        logits = call(tokens, past_key_values=cache).logits[:, -1:]
        tokens = logits.argmax(-1)
        found.append(logits)
    return torch.cat(found, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("position", ["tape", *SLOW])
def test_decoding_compiles_few_graphs(position):
    """One for the prompt, one for every token after it, one for a prompt of another length."""
    model, tokens = make_model(position, num_hidden_layers=2), random_tokens(2, 9)
    backend = CompileCounterWithBackend("eager")  # aot_eager: test_generates_alike_compiled
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for prompt, graphs in ((tokens, 2), (tokens[:, :7], 3)):
        expected = decoded(model, model, prompt, 16 - prompt.shape[1])  # caches of one size
        logits = decoded(compiled, model, prompt, 16 - prompt.shape[1])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        assert backend.frame_count == graphs


@torch.no_grad()
@pytest.mark.parametrize("position", ["tape", *(case for case in SLOW if case.values[0] in OTHERS)])
def test_generates_alike_compiled(position):
    model = make_model(position, num_hidden_layers=2)
    tokens, mask = random_tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    settings = {"attention_mask": mask, "pad_token_id": 0, "cache_implementation": "static"}
    compile_config = CompileConfig(backend="aot_eager", fullgraph=True, mode=None)
    compile_config._compile_all_devices = True  # it would leave a CPU out
    # A longer cache, and for random positions also another draw, is another graph.
    last = 2 if position == "randpe" else 1
    for count, length, compiled in ((20, 30, 1), (10, 30, 1), (10, 40, last)):
        with model.evaluation_length(length):
            plain = model.generate(tokens, max_new_tokens=count, disable_compile=True, **settings)
            again = model.generate(
                tokens, max_new_tokens=count, compile_config=compile_config, **settings
            )
        assert torch.equal(again, plain)
        assert counters["stats"]["unique_graphs"] == compiled


@torch.no_grad()
def test_gaps_in_a_cache_in_a_graph():
    model, tokens = make_model("alibi", num_hidden_layers=2), random_tokens(1, 7)
    indices = torch.tensor([[0, 1, 2, 3, 8, 9, 14]])
    full = model(tokens, position_ids=indices).logits
    cache = StaticCache(config=model.config, max_cache_len=9)
    model(tokens[:, :4], past_key_values=cache, position_ids=indices[:, :4])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    pieces = in_pieces(compiled, tokens[:, 4:], 1, cache, position_ids=indices[:, 4:])
    torch.testing.assert_close(pieces, full[:, 4:], atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def test_kept_token_indices_are_not_exported():
    """torch.export would freeze those of its example."""
    model = make_model("abacus")
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": 16}
    model.generation_config.use_cache = True
    with pytest.raises(Exception, match="token indices that a cache keeps cannot be exported"):
        convert_and_export_with_cache(
            model, example_input_ids=random_tokens(1, 1), example_cache_position=torch.tensor([0])
        )


@torch.no_grad()
@pytest.mark.parametrize("position", ["rope", "alibi", "tape", "fox", "selective", "grape_m"])
def test_an_exported_model_takes_batches_of_other_sizes(position):
    model, (tokens, mask) = make_model(position), left_padded()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    shapes = {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")}
    given = {"input_ids": tokens, "attention_mask": mask}
    exported = torch.export.export(
        model, (), given | {"use_cache": False}, dynamic_shapes=shapes | {"use_cache": None}
    ).module()
    for rows in (given, {name: x[:2, :9] for name, x in given.items()}):
        right = model(**rows, use_cache=False).logits
        torch.testing.assert_close(exported(**rows, use_cache=False).logits, right)


@torch.no_grad()
@pytest.mark.parametrize("position", ["randpe", "alibi_subset"])
def test_an_exported_model_draws_as_the_model_itself(position):
    """And leaves it as it was: tracing has tensors without values, which no cache may keep."""
    sampling._cached_subset.cache_clear()
    model, tokens = make_model(position), random_tokens(2, 9)
    exported = torch.export.export(model, (tokens,), {"use_cache": False}).module()
    right = model(tokens, use_cache=False).logits
    for _ in range(2):
        torch.testing.assert_close(exported(tokens, use_cache=False).logits, right)
    assert torch.isfinite(right).all()
