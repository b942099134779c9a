"""xPos: RoPE with exponential decay."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, Positions, Prepared, Tokens, without_autocast
from tape.positions.rotary import RoPE, RotaryLayer, apply_rotary


class XPos(RoPE):
    """RoPE with exponential decay (Sun et al. 2022, arXiv 2212.10554): queries are multiplied by
    zeta_f^((p - centre) / scale_base) and keys divided by it, zeta_f = (2f + 0.4 D) / (1.4 D).

    `centre` (by default half the training length) cancels in exact arithmetic. Positions so far
    from it that a cached key could overflow are refused: with the default `scale_base`, more than
    12,463 in float16, 139,370 in bfloat16 and 139,377 in float32; but not in compiled graphs.
    """

    HEADROOM = 32.0  # bound on the entries of a key before scaling
    positive = ("scale_base",)

    centre: float | None = None
    scale_base: float = 2048.0

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["centre"] is None:
            arguments["centre"] = config.max_position_embeddings / 2
        return super().configure(config, arguments)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        if is_compiling():
            return x_BTC
        device = x_BTC.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else x_BTC.dtype
        # Reading positions would synchronise a GPU: use a bound instead, at worst the number of
        # cache slots, which position_ids may exceed, or the range that positions are drawn from.
        extent = positions.extent or self.sampler.max_positions or positions.key.shape[-1]
        last = extent - 1
        nats = math.log(torch.finfo(dtype).max / self.HEADROOM)
        reach = nats * self.scale_base / math.log(1.4 / 0.4)  # zeta is smallest for f = 0
        if device == "cpu" and (positions.extent is None or last > self.centre + reach):
            last = int(positions.query.max())
        if max(self.centre, last - self.centre) > reach:
            lowest, highest = math.ceil(self.centre - reach), math.floor(self.centre + reach)
            raise ValueError(
                f"position xpos with position.centre={self.centre} in {dtype} at positions 0 to "
                f"{last}: allowed are {lowest:,} to {highest:,}, "
                "where its scale does not overflow; use a wider dtype, or move the centre"
            )
        return x_BTC

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor:
        """(B|1, 1, T, 3, F): cosine, sine and the scale of the queries."""
        turned = super().state(positions, dtype)
        with without_autocast(turned):
            power = (positions.query.to(dtype) - self.centre) / self.scale_base
            D, device = self.config.head_dim, power.device
            even = torch.arange(0, D, 2, dtype=dtype, device=device)
            log_zeta = ((even + 0.4 * D) / (1.4 * D)).log()
            scale = (power[..., None] * log_zeta).exp()
        return torch.cat((turned, scale[:, None, :, None]), dim=-2)

    def layer(self, layer_idx: int) -> LayerPosition:
        return XPosLayer()


class XPosLayer(RotaryLayer):
    """Rotates and scales queries, and keys inversely."""

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        turned, scale = tokens.e.split((2, 1), dim=-2)
        grown, shrunk = ((turned * s).to(q_BHTD.dtype) for s in (scale, 1 / scale))
        return apply_rotary(q_BHTD, grown), apply_rotary(k_BKTD, shrunk), None
