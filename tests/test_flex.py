"""Block sizes of FlexAttention, and the kernels that they make, compiled without a GPU."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import flex_blocks
from tape.attention import flex
from tape.evaluation.tables import markdown_table

WIDTHS = [(32, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256)]
A100, RTX = 166_912, 101_376  # bytes of shared memory of a block


@pytest.mark.parametrize(("queries", "values"), WIDTHS)
def test_block_sizes_fit_the_device(queries, values):
    for limit in (flex_blocks.LIMIT, A100, RTX):
        options = flex.kernel_options(queries, values, limit)
        if queries == values == 32:
            assert options == {}
            continue
        for kernel, rows in (("fwd", flex.FORWARD), ("bwd", flex.BACKWARD)):
            sizes = flex_blocks.of_tape(kernel, queries, values, limit)
            assert sizes.keys() == flex_blocks.of_inductor(kernel, queries, torch.bfloat16).keys()
            first = [sizes[name] for name in (*list(sizes)[:1], "num_stages", "num_warps")]
            shared = [row.shared for row in rows if [row.M, row.stages, row.warps] == first]
            assert min(shared) <= limit
            # A block of the mask is a whole number of blocks.
            assert all(flex_blocks.BLOCK % sizes[name] == 0 for name in sizes if "BLOCK" in name)
    assert flex.kernel_options(queries, values, 50_000) == {}
    assert flex.kernel_options(queries, 320, flex_blocks.LIMIT) == {}


def test_only_16_bit_training_and_prompts_on_a_gpu_get_block_sizes(monkeypatch):
    monkeypatch.setattr(flex, "_shared_memory", lambda index: flex_blocks.LIMIT)

    class Queries:
        """As much of a tensor on a GPU as is asked for."""

        device = torch.device("cuda", 0)

        def __init__(self, T, size, is_cuda=True):
            self.shape, self.is_cuda, self.element_size = (1, 4, T, 64), is_cuda, lambda: size

    values = torch.zeros(1, 4, 128, 128)
    assert flex._options(Queries(128, 2), values)["fwd_num_warps"] == 8
    for queries in (Queries(127, 2), Queries(128, 4), Queries(128, 2, is_cuda=False)):
        assert flex._options(queries, values) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["fwd", "bwd"])
@pytest.mark.parametrize(("queries", "values"), WIDTHS)
def test_kernels_fit_sm_90_and_do_not_spill(kernel, queries, values):
    pytest.importorskip("triton", reason="triton is not installed")
    dtype = torch.bfloat16
    blocks = flex_blocks.of_tape(kernel, queries, values)
    made = flex_blocks.compiled(
        *(kernel, queries, values, dtype), blocks or flex_blocks.of_inductor(kernel, queries, dtype)
    )
    assert made.spilled == 0 and made.shared <= flex_blocks.LIMIT
    rows = flex.FORWARD if kernel == "fwd" else flex.BACKWARD
    if (queries, values) in {(row.queries, row.values) for row in rows}:
        assert made.shared in {row.shared for row in rows}


def test_the_table_in_the_docs_is_that_of_its_rows():
    docs = Path(__file__).parents[1] / "docs"
    rows = pd.read_csv(docs / "results" / "flex_blocks" / "rows.csv", dtype=str)
    assert markdown_table(flex_blocks.shown(rows)) in (docs / "efficiency.md").read_text()
    for row in rows[rows["blocks of"] == "tape.attention.flex"].itertuples():
        blocks = flex_blocks.of_tape(row.kernel, int(row.queries), int(row.values))
        assert row.blocks == flex_blocks.sizes(row.kernel, blocks)
        assert [row.stages, row.warps] == [str(blocks[part]) for part in flex_blocks.PARTS]
