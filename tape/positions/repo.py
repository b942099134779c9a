"""RePo: positions that a small network reads from the text (Li et al. 2025, arXiv 2512.14391).

Re-derived by hand from the paper and from the authors' decoder (SakanaAI/repo, Olmo2Attention with
`swigluex_multihead`). The input of the network is normalised here; theirs is not, because OLMo 2
normalises after attention. Their gradual change from indices to positions in fine-tuning is not
part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tape.positions.base import LayerPosition, PositionEncoding, Tokens, WideLinear
from tape.positions.rotary import RotaryLayer
from tape.positions.schedules import frequencies_of, plain_theta, state_at

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class IndexedLayer(RotaryLayer):
    """RoPE."""

    def __init__(self, theta: float):
        super().__init__()
        self.theta = theta

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: None,
    ) -> tuple[Tensor, Tensor, None]:
        place_BKT = self.places(x_BTC, tokens)
        with torch.autocast(x_BTC.device.type, enabled=False):
            frequencies = frequencies_of(self.theta, q_BHTD.shape[-1] // 2, place_BKT)
            e = state_at(place_BKT, frequencies)
        return *self.rotate(q_BHTD, k_BKTD, e), None

    def places(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        """Returns the places of the tokens, (B|1, K|1, T), in at least float32."""
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        return tokens.positions.query[:, None].to(wide)


class PlacedLayer(IndexedLayer):
    """RoPE at the places W3 (SiLU(W1 x) * W2 x), one per token and key/value head."""

    decays = ("gate", "up", "down")

    def __init__(self, config: PretrainedConfig, theta: float, width: int):
        super().__init__(theta)
        self.gate = WideLinear(config.hidden_size, width, bias=False)
        self.up = WideLinear(config.hidden_size, width, bias=False)
        self.down = WideLinear(width, config.num_key_value_heads, bias=False)

    def places(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        wide = torch.promote_types(x_BTC.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            x_BTC = x_BTC.to(wide)
            return self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC)).mT


class RePo(PositionEncoding):
    """Rotates pair f of queries and keys by z theta^(-2f/D), where z is the token index in the
    first layers, and W3 (SiLU(W1 x) * W2 x), one number for each key/value head, in those from
    `start` on. It may be negative, and neither grows with the text nor follows its order.

    Arguments of the configuration:
        theta: base of the frequencies; by default that of the configuration.
        start: the first layer whose positions are read from the text; by default after a third of
            the layers, as in the authors' decoders (5 of 16, 10 of 32).
        width: rows of W1 and W2; by default an eighth of the hidden size.
    """

    shards = per_head = True

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        theta: float | None = None,
        start: int | None = None,
        width: int | None = None,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.config, self.theta, self.start, self.width = config, theta, start, width

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        layers, start, width = config.num_hidden_layers, arguments["start"], arguments["width"]
        start = layers // 3 if start is None else start
        width = max(1, config.hidden_size // 8) if width is None else width
        if type(start) is not int or not 0 <= start < layers:
            raise ValueError(
                f"position repo: start={start!r} must be the number of a layer, 0 to {layers - 1}"
            )
        if type(width) is not int or not 0 < width < 2**31:
            raise ValueError(f"position repo: width={width!r} must be an integer >= 1")
        theta = plain_theta(config, "position repo", arguments["theta"])
        return super().configure(
            config, arguments | {"theta": theta, "start": start, "width": width}
        )

    def layer(self, layer_idx: int) -> LayerPosition:
        if layer_idx < self.start:
            return IndexedLayer(self.theta)
        return PlacedLayer(self.config, self.theta, self.width)
