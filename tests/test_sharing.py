"""Memory and communication of processes that share texts: formulas against counts."""

from pathlib import Path

import pytest
import torch
from conftest import make_model, random_tokens

from tape.analysis.sharing import LENGTHS, parameters, sharing, table
from tape.evaluation.tables import markdown_table
from tape.model.sequence_parallel import shard_sequence

SIZE, LENGTH = 2, 12


@pytest.fixture
def sent(monkeypatch):
    """A group of two, of which the other sends back what it gets; bytes that leave this process."""
    counted = []

    def all_to_all_single(found, x, group):
        counted.append(x.numel() * x.element_size() * (SIZE - 1) // SIZE)
        found.copy_(x)

    for name, function in {
        "get_world_size": lambda group: SIZE,
        "get_rank": lambda group: 0,
        "broadcast": lambda x, group, group_src: None,
        "all_to_all_single": all_to_all_single,
    }.items():
        monkeypatch.setattr(f"tape.model.sequence_parallel.dist.{name}", function)
    return counted


@pytest.mark.parametrize("position", ["rope", "tape"])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("autocast", [False, True])
def test_formulas_are_what_is_saved_and_sent(position, heads, autocast, sent):
    shape = {"num_key_value_heads": heads}
    if position == "tape":
        position = {"name": "tape", "width": 8}
    model = make_model(position, **shape).train()
    shard_sequence(model.model, object())
    model.activation_checkpointing_enable({"use_reentrant": False})
    saved = {}

    def keep(layer, inputs):
        for x in inputs:
            if isinstance(x, torch.Tensor):
                saved[x.data_ptr()] = x.numel() * x.element_size()

    hooks = [layer.register_forward_pre_hook(keep) for layer in model.model.layers]
    tokens = random_tokens(1, LENGTH)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(tokens, labels=tokens).loss
    for hook in hooks:
        hook.remove()
    loss.backward()
    expected = sharing(model.config, LENGTH, SIZE, 8, itemsize=2 if autocast else 4)
    assert sum(saved.values()) == expected.saved and sum(sent) == expected.exchanged
    matrices = sum(
        p.numel() for name, p in model.named_parameters() if p.ndim > 1 and ".context." not in name
    )
    assert parameters(model.config) == matrices and expected.states == 16 * matrices // 8


def test_the_table_in_the_docs_is_that_of_the_formulas():
    page = Path(__file__).parents[1] / "docs" / "clusters.md"
    assert markdown_table(table(LENGTHS)) in page.read_text()
