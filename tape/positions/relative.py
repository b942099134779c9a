"""Relative positions that the query reads: a learned profile over distances per query (Shaw et al.
2018, arXiv 1803.02155, in the form of Inkling, `transformers.models.inkling`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Tokens, WideLinear
from tape.positions.bias import DENSE_BACKENDS
from tape.positions.scores import ScoreBias, distances

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class ProfileBias(ScoreBias):
    """profile_h(i, i - j), zero from distance E on; profiles (B, H, T, E)."""

    def __init__(self, profiles: Tensor, tokens: Tokens):
        self.profiles, self.positions = profiles, tokens.positions

    def dense(self, dtype: torch.dtype) -> Tensor:
        B, H, T, E = self.profiles.shape
        distance = distances(self.positions)[:, None]
        index = distance.clamp(max=E - 1).expand(B, H, T, -1)
        return self.profiles.gather(-1, index).masked_fill(distance >= E, 0.0).to(dtype)


class ProfileLayer(LayerPosition):
    decays = ("reader",)

    def __init__(self, config: PretrainedConfig, dimension: int, extent: int):
        super().__init__()
        self.std = config.initializer_range
        self.reader = WideLinear(
            config.hidden_size, config.num_attention_heads * dimension, bias=False
        )
        self.profiles = nn.Parameter(torch.empty(dimension, extent))

    def reset_parameters(self) -> None:
        init.normal_(self.profiles, std=self.std)

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: None, tokens: Tokens
    ) -> ScoreBias:
        return ProfileBias(self(x_BTC), tokens)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Returns the profiles of the queries, (B, H, T, E)."""
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            r = self.reader(x_BTC.to(wide))
            r_BHTR = r.unflatten(-1, (-1, len(self.profiles))).transpose(1, 2)
            return r_BHTR @ self.profiles.to(wide)


class Relative(PositionEncoding):
    """Adds r_h(x_i) . P[:, i - j] to the scores for i - j < `extent`, with r_h linear.

    Arguments of the configuration:
        dimension: length of r.
        extent: number of distances with a profile; by default the training length.
    """

    backends = DENSE_BACKENDS
    per_head = True

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        dimension: int = 16,
        extent: int | None = None,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.config, self.dimension, self.extent = config, dimension, extent

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["extent"] is None:
            arguments["extent"] = config.max_position_embeddings
        for name in ("dimension", "extent"):
            if type(arguments[name]) is not int or not 0 < arguments[name] < 2**31:
                raise ValueError(
                    f"position relative: {name}={arguments[name]!r} must be an integer >= 1"
                )
        return super().configure(config, arguments)

    def layer(self, layer_idx: int) -> LayerPosition:
        return ProfileLayer(self.config, self.dimension, self.extent)
