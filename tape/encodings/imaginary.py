"""RoPE++: heads for the imaginary part of RoPE's products (Liu et al. 2025, arXiv 2512.07525)."""

import torch
from torch import Tensor

from tape.positions.base import LayerPosition, Prepared, Tokens
from tape.positions.rotary import RoPE, RotaryLayer


class ImaginaryLayer(RotaryLayer):
    """Follows each query head by the same queries times -i."""

    copies = 2

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        q_BHTD, k_BKTD, _ = super().prepare(q_BHTD, k_BKTD, tokens)
        real, imaginary = q_BHTD.chunk(2, dim=-1)
        turned = torch.cat((imaginary, -real), dim=-1)
        return torch.stack((q_BHTD, turned), dim=2).flatten(1, 2), k_BKTD, None


class Imaginary(RoPE):
    """RoPE with two heads for each query head, whose scores are the real and the imaginary part of
    the product of a query and the conjugate of a key. Both have the same keys and values, and the
    output projection has twice as many inputs. This is RoPE++ with equal cache; with half as many
    heads of queries, keys and values it is that with equal heads. For equal queries and keys, the
    first sums cos((i - j) w) over the frequencies w, and the second sin((i - j) w)."""

    def layer(self, layer_idx: int) -> LayerPosition:
        return ImaginaryLayer()
