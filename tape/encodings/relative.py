"""Relative positions that the query reads: a learned profile over distances per query (Shaw et al.
2018, arXiv 1803.02155, in the form of Inkling, `transformers.models.inkling`)."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import (
    LayerPosition,
    PositionEncoding,
    Positions,
    Tokens,
    WideLinear,
    widen,
    without_autocast,
)
from tape.positions.scores import DENSE_BACKENDS, ScoreBias


class ProfileBias(ScoreBias):
    """r_h(i) . P[:, i - j], zero from distance E on; r (B, H, T, d), profiles P (d, E)."""

    def __init__(self, r: Tensor, profiles: Tensor, positions: Positions):
        self.r, self.profiles, self.positions = r, profiles, positions

    def dense(self, dtype: torch.dtype) -> Tensor:
        with without_autocast(self.r):
            by_distance = self.r @ self.profiles.to(self.r.dtype)  # (B, H, T, E)
        E, distance = by_distance.shape[-1], self.positions.distances()[:, None]
        index = distance.clamp(max=E - 1).expand(*by_distance.shape[:3], -1)
        return by_distance.gather(-1, index).masked_fill(distance >= E, 0.0).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        positions = self.positions.rows(queries, keys)
        return ProfileBias(self.r[:, :, queries], self.profiles, positions)


class ProfileLayer(LayerPosition):
    decays = ("reader",)

    def __init__(self, config: PretrainedConfig, dimension: int, extent: int):
        super().__init__()
        self.std = config.initializer_range
        channels = config.num_attention_heads * dimension
        self.reader = WideLinear(config.hidden_size, channels, bias=False)
        self.profiles = nn.Parameter(torch.empty(dimension, extent))

    def reset_parameters(self) -> None:
        init.normal_(self.profiles, std=self.std)

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: None, tokens: Tokens) -> ScoreBias:
        return ProfileBias(*self(tokens.x), tokens.positions)

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """Returns r of the queries, (B, H, T, d), and the profiles, which an offloaded model has at
        hand only here."""
        r = widen(self.reader, x_BTC).unflatten(-1, (-1, len(self.profiles)))
        return r.transpose(1, 2), self.profiles


class Relative(PositionEncoding):
    """Adds r_h(x_i) . P[:, i - j] to the scores for i - j < `extent`, with r_h linear."""

    backends = DENSE_BACKENDS
    positive = ("dimension", "extent")

    dimension: int = 16  # of r
    extent: int | None = None  # distances with a profile; by default the training length

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        extent = arguments["extent"] or config.max_position_embeddings
        return super().configure(config, arguments | {"extent": extent})

    def layer(self, layer_idx: int) -> LayerPosition:
        return ProfileLayer(self.config, self.dimension, self.extent)
