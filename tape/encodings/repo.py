"""RePo: positions that a small network reads from the text (Li et al. 2025, arXiv 2512.14391).

Re-derived by hand from the paper and the authors' decoder (SakanaAI/repo, Olmo2Attention with
`swigluex_multihead`), whose input is not normalised: OLMo 2 normalises after attention. Their
gradual change from indices to positions in fine-tuning is not part of it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear, widen
from tape.positions.rotary import RotaryLayer, waves
from tape.positions.schedules import frequencies_of, plain_theta


class IndexedLayer(RotaryLayer):
    """RoPE."""

    def __init__(self, config: PretrainedConfig, theta: float):
        super().__init__()
        self.theta, self.frequencies = theta, config.head_dim // 2

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        place_BKT = self.places(tokens)
        e = waves(place_BKT[..., None] * frequencies_of(self.theta, self.frequencies, place_BKT))
        return super().prepare(q_BHTD, k_BKTD, tokens._replace(e=e))

    def places(self, tokens: Tokens) -> Tensor:
        """Returns the places of the tokens, (B|1, K|1, T), in at least float32."""
        wide = torch.promote_types(tokens.x.dtype, torch.float32)
        return tokens.positions.query[:, None].to(wide)


class PlacedLayer(IndexedLayer):
    """RoPE at the places W3 (SiLU(W1 x) * W2 x), one per token and key/value head."""

    decays = ("gate", "up", "down")

    def __init__(self, config: PretrainedConfig, theta: float, width: int):
        super().__init__(config, theta)
        self.gate = WideLinear(config.hidden_size, width, bias=False)
        self.up = WideLinear(config.hidden_size, width, bias=False)
        self.down = WideLinear(width, config.num_key_value_heads, bias=False)

    def places(self, tokens: Tokens) -> Tensor:
        gate = F.silu(widen(self.gate, tokens.x))
        return widen(self.down, gate * widen(self.up, tokens.x)).mT


class RePo(PositionEncoding):
    """Rotates pair f of queries and keys by z theta^(-2f/D), where z is the token index in the
    first layers, and W3 (SiLU(W1 x) * W2 x), one number for each key/value head, in those from
    `start` on. It may be negative, and neither grows with the text nor follows its order."""

    positive = ("theta", "width")

    theta: float | None = None  # base of the frequencies; by default that of the configuration
    # First layer whose positions are read from the text; by default after a third of the layers, as
    # in the authors' decoders (5 of 16, 10 of 32).
    start: int | None = None
    width: int | None = None  # rows of W1 and W2; by default an eighth of the hidden size

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        layers, start = config.num_hidden_layers, arguments["start"]
        start = layers // 3 if start is None else start
        width = arguments["width"] or max(1, config.hidden_size // 8)
        if not 0 <= start < layers:
            raise ValueError(
                f"position repo: start={start!r} must be the number of a layer, 0 to {layers - 1}"
            )
        theta = plain_theta(config, "position repo", arguments["theta"])
        found = {"theta": theta, "start": start, "width": width}
        return super().configure(config, arguments | found)

    def layer(self, layer_idx: int) -> LayerPosition:
        if layer_idx < self.start:
            return IndexedLayer(self.config, self.theta)
        return PlacedLayer(self.config, self.theta, self.width)
