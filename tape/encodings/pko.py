"""Partial key offset: half of a key's channels are those of the token before
(KellerJordan/modded-nanogpt, pull request 169)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.positions.base import LayerPosition, Prepared, Tokens
from tape.positions.convolution import last_tokens
from tape.positions.rotary import RoPE, RotaryLayer
from tape.positions.schedules import inverse_frequencies


class OffsetLayer(RotaryLayer):
    """Keeps the channels of a token's own key that do not turn."""

    def __init__(self, config: PretrainedConfig):
        super().__init__()
        self.turned = (config.head_dim // 2 + 1) // 2  # pairs
        self.extras_width = config.head_dim - 2 * self.turned

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        first, second = k_BKTD.chunk(2, dim=-1)
        still = torch.cat((first[..., self.turned :], second[..., self.turned :]), dim=-1)
        before = last_tokens(still, tokens.past, tokens, 2, own=True)[1].chunk(2, dim=-1)
        turned = first[..., : self.turned], second[..., : self.turned]
        keys = torch.cat((turned[0], before[0], turned[1], before[1]), dim=-1)
        return *super().prepare(q_BHTD, keys, tokens)[:2], still


class PartialKeyOffset(RoPE):
    """RoPE that turns the first half of the pairs, by every second one of RoPE's frequencies. The
    other half does not turn, and there the key of a token is that of the token before it, after the
    norm of queries and keys; that of a document's first token is its own. One layer can then look
    for what followed a token (induction). The authors' frequencies have another base, and their
    training has the offset in every fourth layer or so, those without a window; they found the
    lowest loss with it in all, as here."""

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        frequencies, _ = inverse_frequencies(config)
        still = len(frequencies) // 2
        self.register_constant("inv_freq", F.pad(frequencies[::2], (0, still)))

    def layer(self, layer_idx: int) -> LayerPosition:
        return OffsetLayer(self.config)
