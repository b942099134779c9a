"""What would make a GPU wait for the CPU, counted on a CPU by what is dispatched."""

import pytest
import torch
from conftest import make_model, random_tokens
from every_encoding import in_modes
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tape.encodings import absolute
from tape.model import indices, inputs

aten = torch.ops.aten
READS = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.is_nonzero,
    aten.equal,
    aten.unique_consecutive,
    aten._unique2,
    aten.unique_dim,
    aten.bincount,
    aten.repeat_interleave,
}


class Syncs(TorchDispatchMode):
    """Collects calls whose result is read by the CPU, or has a size that depends on values."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.patch = pytest.MonkeyPatch()

    def __enter__(self):
        for name in ("tolist", "cpu", "numpy"):  # no dispatcher sees them on a CPU
            self.patch.setattr(torch.Tensor, name, self.noted(name, getattr(torch.Tensor, name)))
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        return super().__exit__(*error)

    def noted(self, name, call):
        return lambda *given, **named: self.found.append(name) or call(*given, **named)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        masks = packet in (aten.index, aten.index_put, aten.index_put_) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if packet in READS or masks:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def asserted(monkeypatch):
    """As on a GPU, which asserts by itself what need not be known now."""

    def refuse_unless(holds, message, now):
        assert not now or holds.all()

    for module in (indices, inputs, absolute):
        monkeypatch.setattr(module, "refuse_unless", refuse_unless)


@in_modes
def test_training_without_padding_reads_nothing(position):
    model = make_model(position, num_hidden_layers=2).train()
    tokens = random_tokens(2, 15)
    with Syncs() as syncs:
        model(tokens, labels=tokens, num_items_in_batch=torch.tensor(28)).loss.backward()
    assert syncs.found == []


@in_modes
@torch.no_grad()
def test_a_decoded_token_reads_nothing(position):
    model = make_model(position, num_hidden_layers=2)
    tokens, cache = random_tokens(2, 9), DynamicCache(config=model.config)
    model(tokens[:, :7], past_key_values=cache)
    with Syncs() as syncs:
        for n in (7, 8):
            model(tokens[:, [n]], past_key_values=cache)
    assert syncs.found == []


def per_token(model, tokens, **settings):
    """Reads for each of eight more tokens of `generate`."""
    counts = []
    for count in (2, 10):
        with Syncs() as syncs:
            model.generate(
                tokens, max_new_tokens=count, pad_token_id=0, do_sample=False, **settings
            )
        counts.append(len(syncs.found))
    return (counts[1] - counts[0]) / 8


def test_generation_reads_no_more_than_the_librarys_llama():
    tokens, mask = random_tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    peer = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, eos_token_id=None, **shape)).eval()
    most = per_token(peer, tokens, attention_mask=mask)
    for position in ("rope", "alibi", "fire", "tape", "fox", "learned"):
        model = make_model(position, num_hidden_layers=2, max_position_embeddings=32)
        with model.evaluation_length(32):
            assert per_token(model, tokens, attention_mask=mask) <= most, position
