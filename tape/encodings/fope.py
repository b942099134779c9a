"""FoPE: rotations by mixtures of frequencies (Hua et al. 2024, arXiv 2412.17739)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import Positions
from tape.positions.rotary import RoPE
from tape.positions.schedules import inverse_frequencies


def count_trained(config: PretrainedConfig, length: int) -> int:
    """Returns how many of RoPE's frequencies turn at least once in `length` tokens."""
    with _disable_current_modes():  # fake tensors have no values
        return int((inverse_frequencies(config)[0] >= 2 * math.pi / length).sum())


class FoPE(RoPE):
    """Multiplies pair m of queries and keys, as a complex number, by sum_f (1[f = m] + a_fm)
    cos(p w_f) + i sum_f (1[f = m] + b_fm) sin(p w_f), where w are RoPE's frequencies from 2 pi /
    length on; pairs with lower ones do not turn. a and b belong to key/value heads, and all layers
    share them. Compared by hand with vLLM's form and the published code, where the sine of a pair
    that does not turn is 1, not 0; the latter divides a pair's coefficients by their sum."""

    positive = ("length", "gain")

    length: int | None = None  # by default the training length
    gain: float = 0.3  # a, b start normal, with a deviation of gain / sqrt(frequencies)

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        n = count_trained(config, self.length)
        self.register_constant("inv_freq", inverse_frequencies(config)[0][:n].clone())
        shape = (config.num_key_value_heads, n, n)
        self.cosine, self.sine = (nn.Parameter(torch.empty(shape)) for _ in range(2))

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = super().configure(config, arguments)
        length = arguments["length"] or config.max_position_embeddings
        if not count_trained(config, length):
            raise ValueError(
                f"position fope: length={length} is too short for any frequency to turn once; give "
                "a larger one"
            )
        return arguments | {"length": length}

    def reset_parameters(self) -> None:
        std = self.gain / math.sqrt(self.cosine.shape[-1])
        init.normal_(self.cosine, std=std)
        init.normal_(self.sine, std=std)

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        with torch.autocast(positions.query.device.type, enabled=False):
            phases = positions.query.to(dtype)[:, None, :, None] * self.inv_freq.to(dtype)
            cosine, sine = phases.cos(), phases.sin()  # (B|1, 1, T, n)
            cosine = cosine + cosine @ self.cosine.to(dtype)
            sine = sine + sine @ self.sine.to(dtype)
        still = self.config.head_dim // 2 - len(self.inv_freq)
        pairs = F.pad(cosine, (0, still), value=1), F.pad(sine, (0, still))
        return torch.stack(pairs, dim=-2) * self.magnitude  # (B|1, K, T, 2, F)
