"""Block sizes of FlexAttention."""

import pytest
import torch

from tape.attention import flex

WIDTHS = [(32, 32), (32, 64), (64, 64), (64, 128), (128, 128), (128, 256)]
H100, A100, RTX = 232_448, 166_912, 101_376  # bytes of shared memory of a block


@pytest.mark.parametrize(("queries", "values"), WIDTHS)
def test_block_sizes_fit_the_device(queries, values):
    for limit in (H100, A100, RTX):
        options = flex.kernel_options(queries, values, limit)
        if queries == values == 32:
            assert options == {}
            continue
        for kernel, rows, first in (
            ("fwd", flex.FORWARD, "BLOCK_M"),
            ("bwd", flex.BACKWARD, "BLOCK_M1"),
        ):
            names = (first, "num_stages", "num_warps")
            chosen = [options[f"{kernel}_{name}"] for name in names]
            shared = [row.shared for row in rows if [row.M, row.stages, row.warps] == chosen]
            assert min(shared) <= limit
        # A block of the mask is a whole number of blocks.
        assert all(128 % size == 0 for name, size in options.items() if "BLOCK" in name)
    assert flex.kernel_options(queries, values, 50_000) == {}
    assert flex.kernel_options(queries, 320, H100) == {}


def test_only_16_bit_training_and_prompts_on_a_gpu_get_block_sizes(monkeypatch):
    monkeypatch.setattr(flex, "_shared_memory", lambda index: H100)

    class Queries:
        """As much of a tensor on a GPU as is asked for."""

        device = torch.device("cuda", 0)

        def __init__(self, T, size, is_cuda=True):
            self.shape, self.is_cuda, self.element_size = (1, 4, T, 64), is_cuda, lambda: size

    values = torch.zeros(1, 4, 128, 128)
    assert flex._options(Queries(128, 2), values)["fwd_num_warps"] == 8
    for queries in (Queries(127, 2), Queries(128, 4), Queries(128, 2, is_cuda=False)):
        assert flex._options(queries, values) == {}
