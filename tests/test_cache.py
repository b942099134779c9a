"""The growing cache holds what transformers' dynamic one holds, whatever is done to both."""

import copy
from unittest import mock

import pytest
import torch
from conftest import CACHE_EDITS, make_model, random_tokens, refuses
from every_encoding import in_modes
from test_scrolls import byte_tokenizer
from transformers import DynamicCache, MistralConfig, StaticCache

from tape.model.cache import GrowingCache

pytestmark = pytest.mark.usefixtures("without_gradients")


def tokens(count, seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, count, width, generator=generator) for width in (4, 6)]


def both():
    return GrowingCache(), DynamicCache()


def extend(caches, count, seed, **options):
    """Append the same to two layers of each cache; what comes back is equal."""
    for layer in range(2):
        ours, theirs = (c.update(*tokens(count, seed + layer, **options), layer) for c in caches)
        for x, y in zip(ours, theirs, strict=True):
            assert torch.equal(x, y)
    assert caches[0].get_seq_length() == caches[1].get_seq_length()
    assert caches[0].get_mask_sizes(1, 0) == caches[1].get_mask_sizes(1, 0)


def test_a_token_is_written_behind_the_others():
    caches = both()
    extend(caches, 200, 0)
    memory = caches[0].layers[0].values.data_ptr()
    for seed in range(60):
        extend(caches, 1, seed)
        assert caches[0].layers[0].values.data_ptr() == memory
    for seed in range(60):
        extend(caches, 7, seed)
    for layer in caches[0].layers:
        for room, x in zip(layer.buffers, (layer.keys, layer.values), strict=True):
            assert x.shape[-2] < room.memory.shape[-2] <= x.shape[-2] * 9 / 8 + 64


CHANGES = CACHE_EDITS | {"reset": lambda cache: cache.reset()}
ROWS = {"select": 1, "repeat": 4}  # of two, after the change


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_cache_goes_on_like_the_librarys(change):
    """In every mode of gradients; what was there before the change stays as it was."""
    caches = both()
    extend(caches, 9, 0)
    held = [(layer.keys, layer.values) for layer in caches[0].layers]
    before = copy.deepcopy(held)
    for cache in caches:
        CHANGES[change](cache)
    for seed, mode in enumerate((torch.inference_mode, torch.no_grad, torch.enable_grad)):
        with mode():
            extend(caches, 2, seed, batch=ROWS.get(change, 2))
    if change != "reset":  # it zeroes what is there, as in transformers
        for pair, kept in zip(held, before, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(pair, kept, strict=True))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_go_their_own_ways(copied):
    caches, forks = both(), both()
    extend(caches, 5, 0)
    for fork, cache in zip(forks, caches, strict=True):
        fork.layers = [copied(layer) for layer in cache.layers]
    for seed in range(3):  # what a cache returns is that of the library's, which concatenates
        extend(caches, 1, seed)
        extend(forks, 1, seed + 10)


def test_the_decoder_makes_one():
    """But not in a graph: one that is exported could not give it back."""
    model, prompt = make_model("tape"), random_tokens(2, 6)
    assert type(model(prompt, use_cache=True).past_key_values) is GrowingCache
    settings = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    for given, kind in ((None, GrowingCache), (DynamicCache(), DynamicCache)):
        found = model.generate(prompt, **settings, past_key_values=given).past_key_values
        assert type(found) is kind
        # The state is stored as more heads, or as more channels.
        stacked = found.layers[0].values.shape[1] == 2 * model.config.num_key_value_heads
        assert stacked == (kind is GrowingCache)
    with mock.patch("tape.model.inputs.is_compiling", lambda: True):
        assert type(model(prompt, use_cache=True).past_key_values) is DynamicCache


def test_replicas_of_a_model_give_one():
    """torch's DataParallel makes it of the layers of theirs."""
    model, prompt = make_model("tape"), random_tokens(2, 6)
    parts = [model(row[None, :5], use_cache=True).past_key_values for row in prompt]
    layers = ([*zip(*layer, strict=True)] for layer in zip(*parts, strict=True))
    layers = [map(torch.cat, each[:2]) for each in layers]  # keys and values, without a window
    found = model(prompt[:, 5:], past_key_values=type(parts[0])(layers)).logits
    torch.testing.assert_close(found, model(prompt).logits[:, 5:])


def test_generation_stops_at_a_string():
    """transformers hands the tokenizer of `stop_strings` on to the model."""
    tokenizer = byte_tokenizer()
    model, prompt = make_model("rope", vocab_size=len(tokenizer)), random_tokens(1, 5)
    settings = {"max_new_tokens": 8, "do_sample": False}
    found = model.generate(prompt, **settings)[0, 5:].tolist()
    settings |= {"stop_strings": [tokenizer.decode(found[2])], "tokenizer": tokenizer}
    stopped = model.generate(prompt, **settings)[0, 5:].tolist()
    assert stopped == found[: found.index(found[2]) + 1]


def test_continuous_batching_is_refused():
    model = make_model("tape")
    with pytest.raises(ValueError, match=r"continuous batching .* generate\(\) with"):
        model.generate_batch([[1, 2, 3]], max_new_tokens=2)
    with pytest.raises(ValueError, match=r"continuous batching .* generate\(\) with"):
        model.generate(torch.tensor([[1, 2, 3]]), cache_implementation="paged")


@in_modes
def test_generation_behind_a_padded_call(position):
    """The call counts tokens by its mask; for a static cache transformers hides it in a 4-D one."""
    model, ids = make_model(position, dtype=torch.float64), random_tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    cache = StaticCache(model.config, max_cache_len=16)
    model(ids[:, :7], attention_mask=mask[:, :7], past_key_values=cache)
    how = {"attention_mask": mask, "max_new_tokens": 2, "do_sample": False, "output_logits": True}
    given = model.generate(ids, past_key_values=cache, return_dict_in_generate=True, **how)
    for row, start in enumerate((0, 4)):
        alone = model(given.sequences[row : row + 1, start:-1], use_cache=False).logits[0, -2:]
        found = torch.stack([logits[row] for logits in given.logits])
        torch.testing.assert_close(found, alone.float(), rtol=1e-5, atol=1e-5)


def test_assisted_decoding_behind_cached_tokens_is_refused():
    """transformers gives all tokens to the model again, behind those of the cache."""
    model, prompt = make_model("alibi"), random_tokens(1, 5)
    settings, cache = {"do_sample": False, "max_new_tokens": 6}, GrowingCache()
    turn = model.generate(prompt, past_key_values=cache, **settings)
    for assisted in ({"assistant_model": make_model("rope")}, {"prompt_lookup_num_tokens": 2}):
        new = model.generate(prompt, past_key_values=GrowingCache(), **settings, **assisted)
        assert torch.equal(new, turn)
        with pytest.raises(ValueError, match=r"of 10 tokens, .* give no cache"):
            model.generate(turn, past_key_values=cache, **settings, **assisted)


def test_assistance_by_some_of_the_layers_is_refused():
    """transformers would leave their number in the configuration."""
    model, prompt = make_model("rope"), random_tokens(1, 5)
    with pytest.raises(ValueError, match=r"assistant_early_exit=1: .* give an assistant_model"):
        model.generate(prompt, assistant_early_exit=1)
    model(prompt)


def test_a_cache_that_drops_tokens_is_refused():
    """transformers makes one for a configuration of another model with a window."""
    model, tokens = make_model("rope", sliding_window=3), random_tokens(1, 9)
    mistral = MistralConfig(num_hidden_layers=3, sliding_window=3)
    for cache in (DynamicCache(config=mistral), StaticCache(config=mistral, max_cache_len=12)):
        refuses("a cache with sliding layers", model, tokens, past_key_values=cache)


@torch.no_grad()
def test_tuples_of_keys_and_values_are_refused_with_a_remedy():
    model, tokens = make_model("tape"), random_tokens(1, 9)
    kept = model(tokens[:, :6], past_key_values=DynamicCache(config=model.config)).past_key_values
    pairs = tuple((layer.keys, layer.values) for layer in kept.layers)
    message = r"past_key_values=tuple: must be a cache .*DynamicCache\(pairs, config=model.config\)"
    refuses(message, model, tokens[:, 6:], past_key_values=pairs)
    refuses(message, model.generate, tokens, past_key_values=pairs, max_new_tokens=2)
    cache = DynamicCache(pairs, config=model.config)
    found = model(tokens[:, 6:], past_key_values=cache).logits
    torch.testing.assert_close(found, model(tokens).logits[:, 6:])


def test_cached_keys_that_may_not_have_arrived_are_not_read():
    model, tokens = make_model("fox"), random_tokens(1, 9)
    cache = model(tokens[:, :5], past_key_values=DynamicCache()).past_key_values
    cache.offloading = True
    refuses("an offloaded cache with", model, tokens[:, 5:], past_key_values=cache)


def test_a_cache_that_checkpointing_leaves_empty_is_refused():
    model, tokens = make_model("rope").train(), random_tokens(1, 9)
    model.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="a cache in training with gradient checkpointing"):
        model(tokens, past_key_values=GrowingCache())
    model.eval()(tokens, past_key_values=GrowingCache())


ABACUS = {"name": "abacus", "digits": [1, 2], "length": 64, "offset": 5}
MIXTURE = {"name": "mixed", "pattern": ["rope", "nope"], "sampler": "shift"}


@pytest.mark.parametrize("position", ["tape_shift", "alibi_subset", "randpe", ABACUS, MIXTURE])
def test_a_cache_of_another_draw_is_refused(position):
    """In training each call draws: the cached tokens would have other positions than the new."""
    model, tokens = make_model(position).train(), random_tokens(1, 9)
    cache = model(tokens[:, :5], past_key_values=GrowingCache()).past_key_values
    refuses(r"cached tokens in training .* drawn anew", model, tokens[:, 5:], past_key_values=cache)
    model.eval()(tokens[:, 5:], past_key_values=cache)
