"""BAM: a generalised Gaussian prior over distances (Bianchessi et al. 2025, arXiv 2505.22842)."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions.base import PositionModule, Positions
from tape.positions.bias import LearnedBiasEncoding, alibi_slopes
from tape.positions.scores import distances


class PriorLayer(PositionModule):
    LOWEST = 1e-5  # added to distances: negative powers of it are finite

    def __init__(self, num_heads: int):
        super().__init__()
        self.shape = nn.Parameter(torch.empty(num_heads))
        self.scale = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        init.ones_(self.shape)
        init.copy_(self.scale, alibi_slopes(len(self.scale)))

    def forward(self, positions: Positions) -> Tensor:
        dtype = torch.promote_types(self.scale.dtype, torch.float32)
        shape, scale = (x.to(dtype)[:, None, None] for x in (self.shape, self.scale))
        distance = (scale * distances(positions).to(dtype)[:, None]).abs()
        return -((distance + self.LOWEST) ** shape)


class BAM(LearnedBiasEncoding):
    """-(|a_h (i - j)| + 1e-5)^b_h with a_h and b_h learned per head and layer: the logarithm of a
    generalised Gaussian. It starts as ALiBi: b = 1, and a are ALiBi's slopes. A head with b < 0
    attends to far tokens rather than near ones. Compared by hand with the authors' code
    (ArthurSBianchessi/BAM), where by default a does not train; the paper trains a and b."""

    def make_layer(self) -> nn.Module:
        return PriorLayer(self.config.num_attention_heads)
