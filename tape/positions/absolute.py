"""No encoding at all, and the sinusoids that are added to the token embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tape.positions.base import PositionEncoding, Positions

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class NoPE(PositionEncoding):
    """Nothing: causal attention alone tells positions apart (Haviv et al. 2022; Kazemnejad et al.
    2023, arXiv 2305.19466)."""


class SinCos(PositionEncoding):
    """Channel 2i of the embedding gets sin(p / base^(2i/C)), channel 2i+1 the cosine (Vaswani et
    al. 2017, section 3.5)."""

    def __init__(self, config: PretrainedConfig, *, base: float = 10_000.0, **arguments: Any):
        super().__init__(config, **arguments)
        if config.hidden_size % 2:
            raise ValueError(
                f"sincos needs pairs of channels: hidden_size={config.hidden_size} must be even"
            )
        self.base = base

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        C = x_BTC.shape[-1]
        with torch.autocast(x_BTC.device.type, enabled=False):
            dtype = torch.promote_types(x_BTC.dtype, torch.float32)
            exponent = torch.arange(0, C, 2, device=x_BTC.device, dtype=dtype) / C
            phases = positions.query.to(dtype)[..., None] / self.base**exponent  # (B|1, T, C/2)
            waves = torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)
        return x_BTC + waves.to(x_BTC.dtype)
