"""Wall attention: a decay for each channel of the products, which depends on the text (Averbuch and
Pai, Tilde Research, in flash-linear-attention, fla/layers/wall_attn.py).

Re-derived by hand from the eager reference there (fla/ops/wall_attn/naive.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Tokens, WideLinear
from tape.positions.causal import refuse_later_tokens
from tape.positions.fox import ForgetLayer, Forgetting
from tape.positions.scores import ScoreBias

if TYPE_CHECKING:
    from transformers import PretrainedConfig

LEVELS = 6  # blocks of one token are joined in pairs so often, to chunks of 64 tokens


def within(q: Tensor, k: Tensor, decay: Tensor) -> Tensor:
    """Returns sum_n q_in k_jn times the decays of channel n at the tokens after j up to i, for
    tokens with queries, keys and decays in 0..1, all (.., T, D).

    Queries decay back to the start of their block and keys on to the end of theirs, and blocks meet
    in one product of matrices. All factors are at most 1: nothing overflows, and what becomes zero
    is zero in the scores, too.
    """
    levels = min(LEVELS, (q.shape[-2] - 1).bit_length())
    T, L = q.shape[-2], 2**levels
    q, k = (F.pad(x, (0, 0, 0, -T % L))[..., None, :] for x in (q, k))  # (.., m, 1, D)
    whole = F.pad(decay, (0, 0, 0, -T % L), value=1.0)[..., None, :]  # of each block
    scores, q = q @ k.mT, q * whole  # (.., m, size, size) of each block
    for level in range(levels):
        (q1, q2), (k1, k2), (whole1, whole2), (near1, near2) = (
            x.unflatten(-3, (-1, 2)).unbind(-3) for x in (q, k, whole, scores)
        )
        below = torch.cat((q2 @ k1.mT, near2), dim=-1)
        scores = torch.cat((F.pad(near1, (0, 2**level)), below), dim=-2)
        q, k = torch.cat((q1, q2 * whole1), dim=-2), torch.cat((k1 * whole2, k2), dim=-2)
        whole = whole1 * whole2
    rows, columns = q[..., 0, :0, :], []  # rows: queries after a chunk, decayed back to its end
    for b in reversed(range(scores.shape[-3])):
        column = torch.cat((scores[..., b, :, :], rows @ k[..., b, :, :].mT), dim=-2)
        columns.insert(0, F.pad(column, (0, 0, b * L, 0)))
        rows = torch.cat((q[..., b, :, :], rows * whole[..., b, :, :]), dim=-2)
    return torch.cat(columns, dim=-1)[..., :T, :T]


class WallScores(ScoreBias):
    """sum_n q_in k_jn exp(P_in - P_jn) / sqrt(D) in place of q_i . k_j / sqrt(D), given the steps
    of the running sums P of all tokens, (B, H, S, D)."""

    replaces_products = True

    def __init__(self, q_BHTD: Tensor, k_BKSD: Tensor, steps_BHSD: Tensor, slots: Tensor):
        self.q, self.k, self.steps, self.slots = q_BHTD, k_BKSD, steps_BHSD, slots

    def dense(self, dtype: torch.dtype) -> Tensor:
        (H, T, D), (K, S) = self.q.shape[1:], self.k.shape[1:3]
        wide = torch.promote_types(dtype, torch.float32)
        with torch.autocast(self.q.device.type, enabled=False):
            q, steps = self.q.to(wide) * D**-0.5, self.steps.to(wide)
            k = self.k.to(wide).repeat_interleave(H // K, dim=1)
            new_k, new_steps = (x.index_select(2, self.slots) for x in (k, steps))
            near = within(q, new_k, new_steps.exp())
            if T == S:
                return near.to(dtype)
            steps = steps * (torch.arange(S, device=q.device)[:, None] < self.slots[0])
            after = steps.flip(2).cumsum(2).flip(2) - steps  # of cached tokens after each of them
            far = (q * new_steps.cumsum(2).exp()) @ (k * after.exp()).mT
            return far.index_copy(-1, self.slots, near).to(dtype)

    def across(self, to_heads: Callable[[Tensor], Tensor], first: int, count: int) -> ScoreBias:
        q, k, steps = (to_heads(x) for x in (self.q, self.k, self.steps))
        return WallScores(q, k, steps, torch.arange(q.shape[2], device=q.device))


class WallLayer(LayerPosition):
    """Keeps the step of P of each token."""

    decays = ("gate",)

    def __init__(self, config: PretrainedConfig, start: float):
        super().__init__()
        heads, self.start = config.num_attention_heads, start
        self.gate = WideLinear(config.hidden_size, heads * config.head_dim)
        self.extras_width = heads // config.num_key_value_heads * config.head_dim

    def reset_parameters(self) -> None:
        init.constant_(self.gate.bias, self.start)

    def prepare(
        self,
        x_BTC: Tensor,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        e: None,
        tokens: Tokens,
        past_BKLM: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        refuse_later_tokens("wall", tokens, self.training)
        wide = torch.promote_types(self.gate.weight.dtype, torch.float32)
        with torch.autocast(x_BTC.device.type, enabled=False):
            steps_BTN = F.logsigmoid(self.gate(x_BTC.to(wide)))
        if tokens.real is not None:  # nothing decays at padding
            steps_BTN = steps_BTN * tokens.real[:, tokens.slots, None]
        kept = steps_BTN.unflatten(-1, (k_BKTD.shape[1], -1)).transpose(1, 2).to(k_BKTD.dtype)
        return q_BHTD, k_BKTD, kept

    def bias(
        self, x_BTC: Tensor, q_BHTD: Tensor, k_BKSD: Tensor, extras_BKSM: Tensor, tokens: Tokens
    ) -> ScoreBias:
        steps = extras_BKSM.unflatten(-1, (-1, q_BHTD.shape[-1])).transpose(2, 3).flatten(1, 2)
        return WallScores(q_BHTD, k_BKSD, steps, tokens.slots)


class Wall(PositionEncoding):
    """The score of a query i and a key j is sum_n q_in k_jn exp(P_in - P_jn) / sqrt(D), where P_i
    is the sum of ln sigmoid(W x_t + b) over t up to i, a vector of D channels for each query head.

    Arguments of the configuration:
        start: b at first; sigmoid(b) is the share that a channel keeps from token to token.
        scalar: whether FoX's bias is added, which starts alike.
    """

    backends = frozenset({"eager", "sdpa"})
    shards = per_head = True

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        start: float = 8.0,
        scalar: bool = False,
        **arguments: Any,
    ):
        super().__init__(config, **arguments)
        self.config, self.start, self.scalar = config, start, scalar

    def layer(self, layer_idx: int) -> LayerPosition:
        layer = WallLayer(self.config, self.start)
        return Forgetting(layer, ForgetLayer(self.config, self.start)) if self.scalar else layer
