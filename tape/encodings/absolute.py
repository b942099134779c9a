"""No encoding, and encodings added to the token embeddings: sinusoidal and learned."""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.core.tensor_validation import refuse_unless
from tape.positions.base import PositionEncoding, Positions, without_autocast


class NoPE(PositionEncoding):
    """No encoding: causal attention alone distinguishes positions (Haviv et al. 2022; Kazemnejad et
    al. 2023, arXiv 2305.19466)."""

    real = True


class SinCos(PositionEncoding):
    """Adds sin(p / base^(2i/C)) to channel 2i of the embedding and the cosine to channel 2i+1
    (Vaswani et al. 2017, section 3.5)."""

    real = True
    positive = ("base",)

    base: float = 10_000.0

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        if config.hidden_size % 2:
            raise ValueError(
                f"sincos needs pairs of channels: hidden_size={config.hidden_size} must be even"
            )

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        C = x_BTC.shape[-1]
        with without_autocast(x_BTC):
            dtype = torch.promote_types(x_BTC.dtype, torch.float32)
            exponent = torch.arange(0, C, 2, device=x_BTC.device, dtype=dtype) / C
            phases = positions.query.to(dtype)[..., None] / self.base**exponent  # (B|1, T, C/2)
            waves = torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)
        return x_BTC + waves.to(x_BTC.dtype)


class Learned(PositionEncoding):
    """Adds row p of a learned table to the embedding (Gehring et al. 2017; Radford et al. 2019).
    Positions beyond its `length`, by default the training length, are refused. position_ids are
    arbitrary rows, e.g. a digit's place within its number (Abacus, McLeish et al. 2024)."""

    ordered = False
    positive = ("length",)

    length: int | None = None  # by default the training length

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.table = nn.Parameter(torch.empty(self.length, config.hidden_size))

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = super().configure(config, arguments)
        trained, sampler = config.max_position_embeddings, arguments["sampler"]
        length = arguments["length"] or trained
        shifted = trained + sampler["maximum"] if "maximum" in sampler else 0
        if length < (drawn := sampler.get("length", shifted)):
            raise ValueError(
                f"position learned: length={length} must be >= the {drawn} that are drawn from"
            )
        return arguments | {"length": length}

    @property
    def max_positions(self) -> int:
        return len(self.table) if self.sampler.max_positions is None else self.sampler.max_positions

    def reset_parameters(self) -> None:
        init.normal_(self.table, std=self.config.initializer_range)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        query, length = positions.query, len(self.table)

        def refusal() -> str:
            lowest, highest = torch.stack(query.aminmax()).tolist()
            return (
                f"position {lowest if lowest < 0 else highest} is beyond the learned table of "
                f"length={length}; shorten the input, or train with a larger position.length"
            )

        known = positions.extent is not None and positions.extent <= length
        if not (known or isinstance(query, FakeTensor)):
            now = query.shape[-1] > 1 and not self.training
            refuse_unless((query >= 0) & (query < length), refusal, now)
        return x_BTC + self.table[query].to(x_BTC.dtype)
