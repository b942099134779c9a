"""Wall attention: a decay for each channel of the products, which depends on the text (Averbuch and
Pai, Tilde Research), re-derived by hand from their eager reference in flash-linear-attention
(pull request 928, fla/ops/wall_attn/naive.py)."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.encodings.fox import ForgetLayer, Forgetting
from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear, widen
from tape.positions.pairs import PairLayer, for_queries
from tape.positions.scores import SCORE_BACKENDS

LEVELS = 6  # blocks of one token are joined in pairs so often, to chunks of 64 tokens


def within(q: Tensor, k: Tensor, decay: Tensor) -> Tensor:
    """Returns sum_n q_in k_jn times the decays of channel n at the tokens after j up to i, for
    queries, keys and decays in 0..1, all (.., T, D). Queries decay back to the start of their block
    and keys on to the end of theirs, and blocks meet in one product of matrices. All factors are at
    most 1: nothing overflows, and what becomes zero is zero in the scores, too."""
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
        if b:
            rows = torch.cat((q[..., b, :, :], rows * whole[..., b, :, :]), dim=-2)
    return torch.cat(columns, dim=-1)[..., :T, :T]


class WallLayer(PairLayer):
    """sum_n q_in k_jn exp(P_in - P_jn) / sqrt(D) in place of q_i . k_j / sqrt(D), for running sums
    P. Keeps the step of P of each token."""

    replaces_products = True
    decays = ("gate",)

    def __init__(self, config: PretrainedConfig, start: float):
        super().__init__()
        heads, self.start = config.num_attention_heads, start
        self.gate = WideLinear(config.hidden_size, heads * config.head_dim)
        self.extras_width = heads // config.num_key_value_heads * config.head_dim

    def reset_parameters(self) -> None:
        init.constant_(self.gate.bias, self.start)

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        steps_BTN = F.logsigmoid(widen(self.gate, tokens.x))
        steps_BKTM = steps_BTN.unflatten(-1, (k_BKTD.shape[1], -1)).transpose(1, 2)
        # Nothing decays at padding.
        return q_BHTD, k_BKTD, tokens.without_padding(steps_BKTM).to(k_BKTD.dtype)

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> Tensor:
        (T, D), S = q_BHTD.shape[2:], k_BKSD.shape[2]
        steps = extras.unflatten(-1, (-1, D)).transpose(2, 3).flatten(1, 2)  # (B, H, S, D)
        q, steps = q_BHTD * D**-0.5, steps.to(q_BHTD.dtype)
        k = for_queries(k_BKSD, q)
        new_k, new_steps = (x.index_select(2, tokens.slots) for x in (k, steps))
        near = within(q, new_k, new_steps.exp())
        if T == S:
            return near
        steps = steps * (torch.arange(S, device=q.device)[:, None] < tokens.slots[0])
        after = steps.flip(2).cumsum(2).flip(2) - steps  # of cached tokens after each of them
        far = (q * new_steps.cumsum(2).exp()) @ (k * after.exp()).mT
        return far.index_copy(-1, tokens.slots, near)


class Wall(PositionEncoding):
    """The score of a query i and a key j is sum_n q_in k_jn exp(P_in - P_jn) / sqrt(D), where P_i
    is the sum of ln sigmoid(W x_t + b) over t up to i, with D channels for each query head."""

    backends = SCORE_BACKENDS
    causal = True

    start: float = 8.0  # b at first; sigmoid(b) is the share that a channel keeps at a token
    scalar: bool = False  # whether FoX's bias is added, which starts alike

    def layer(self, layer_idx: int) -> LayerPosition:
        layer = WallLayer(self.config, self.start)
        return Forgetting(layer, ForgetLayer(self.config, self.start)) if self.scalar else layer
