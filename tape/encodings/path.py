"""PaTH: scores through products of maps of the text (Yang et al. 2025, arXiv 2505.16381)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.encodings.fox import ForgetLayer, Forgetting
from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear
from tape.positions.convolution import Convolution
from tape.positions.pairs import PairLayer
from tape.positions.scores import SCORE_BACKENDS

CHUNK = 64  # tokens whose maps are multiplied out in one triangular solve


class Chunks(NamedTuple):
    """A text in n chunks of L tokens; H_t = 1 - beta_t w_t w_t', padded by H_t = 1. With the maps
    of a chunk, H_i .. H_j = 1 - W' T W for the rows j .. i of W, where T = (1 + diag(beta)
    strictly_lower(W W'))^-1 diag(beta) is lower triangular (the UT transform)."""

    w: Tensor  # (B, K, 1, n, L, D)
    applied: Tensor  # T W, (B, K, 1, n, L, D)
    along: Tensor  # T strictly_lower(W K'), (B, K, 1, n, L, L)
    keys: Tensor  # H_last .. H_(j+1) k_j, (B, K, 1, n, L, D)
    whole: Tensor  # H_last .. H_first, (B, K, 1, n, D, D)

    @classmethod
    def of(cls, k: Tensor, w: Tensor, beta: Tensor) -> "Chunks":
        """Takes keys and w of (B, K, T, D), and beta (B, K, T, 1)."""
        k, w, beta = (in_chunks(x)[:, :, None] for x in (k, w, beta))
        eye = torch.eye(w.shape[-2], dtype=w.dtype, device=w.device)
        T = torch.linalg.solve_triangular(
            eye + beta * (w @ w.mT).tril(-1), beta * eye, upper=False, unitriangular=True
        )
        applied, along = T @ w, T @ (w @ k.mT).tril(-1)
        identity = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
        return cls(w, applied, along, k - along.mT @ w, identity - w.mT @ applied)


def in_chunks(x: Tensor) -> Tensor:
    """(.., T, D) -> (.., n, L, D), with zeros at the end."""
    L = min(CHUNK, x.shape[-2])
    x = x.contiguous()  # torch.compile takes padding by none for a contiguous copy
    return F.pad(x, (0, 0, 0, -x.shape[-2] % L)).unflatten(-2, (-1, L))


def within(q: Tensor, k: Tensor, text: Chunks, onward: bool) -> tuple[Tensor, Tensor | None]:
    """Returns q_i' H_i .. H_(j+1) k_j for queries (B, K, G, T, D) and keys of the same tokens; and
    `onward`, the queries times H_i .. H_first."""
    T = q.shape[3]
    q, k = in_chunks(q), in_chunks(k)[:, :, None]
    n, L = q.shape[3:5]
    qw = (q @ text.w.mT).tril()
    near, back = q @ k.mT - qw @ text.along, q - qw @ text.applied
    rows, columns = q[..., 0, :0, :], []  # queries after a chunk, times the maps back to its end
    for b in reversed(range(n)):
        column = torch.cat((near[..., b, :, :], rows @ text.keys[..., b, :, :].mT), dim=-2)
        columns.insert(0, F.pad(column, (0, 0, b * L, 0)))
        if b or onward:
            rows = torch.cat((back[..., b, :, :], rows @ text.whole[..., b, :, :]), dim=-2)
    return torch.cat(columns, dim=-1)[..., :T, :T], rows[..., :T, :] if onward else None


def before(rows: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Returns rows' H_last .. H_(j+1) k_j for all keys (B, K, S, D) of a text before the rows
    (B, K, G, T, D). Each chunk takes c W off the rows, for the c of a triangular system."""
    length = k.shape[2]
    k, w, beta = (in_chunks(x)[:, :, None] for x in (k, w, beta))
    maps = (w @ w.mT).tril(-1) * beta.mT
    every = []
    for b in reversed(range(w.shape[3])):
        along = rows @ w[..., b, :, :].mT * beta[..., b, :, :].mT
        c = torch.linalg.solve_triangular(
            maps[..., b, :, :], along, upper=False, left=False, unitriangular=True
        )
        every.insert(0, (rows, c))
        rows = rows - c @ w[..., b, :, :]
    rows, c = (torch.stack(x, dim=3) for x in zip(*every, strict=True))
    scores = rows @ k.mT - c @ (w @ k.mT).tril(-1)  # (B, K, G, n, T, L)
    return scores.transpose(3, 4).flatten(4)[..., :length]


class PathLayer(PairLayer):
    """q_i' H_i .. H_(j+1) k_j / sqrt(D), in place of q_i . k_j / sqrt(D). Keeps w and beta of each
    token, and the input of the convolution, W1 x."""

    replaces_products = True
    decays = ("gate",)

    def __init__(self, config: PretrainedConfig, rank: int, kernel: int):
        super().__init__()
        K, D = config.num_key_value_heads, config.head_dim
        self.convolution = Convolution(config.hidden_size, rank, K * D, kernel)
        self.gate = WideLinear(config.hidden_size, K)
        self.extras_width = D + 1 + rank

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        w, low = self.convolution(tokens.x, k_BKTD, tokens)
        w = F.normalize(w.unflatten(-1, (k_BKTD.shape[1], -1)), dim=-1).transpose(1, 2)
        beta = 2 * self.gate(tokens.x).sigmoid().mT[..., None]  # (B, K, T, 1)
        # Padding changes no score.
        kept = (part.to(k_BKTD.dtype) for part in (w, tokens.without_padding(beta), low))
        return q_BHTD, k_BKTD, torch.cat([*kept], dim=-1)

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> Tensor:
        (T, D), (K, S) = q_BHTD.shape[2:], k_BKSD.shape[1:3]
        q, k = q_BHTD.unflatten(1, (K, -1)) * D**-0.5, k_BKSD
        w, beta = extras[..., : D + 1].to(q.dtype).split((D, 1), dim=-1)
        if extras.element_size() < 4:  # rounding would let products grow
            w = F.normalize(w, dim=-1)
        if T == S:
            scores, _ = within(q, k, Chunks.of(k, w, beta), onward=False)
            return scores.flatten(1, 2)
        new = [x.index_select(2, tokens.slots) for x in (k, w, beta)]
        near, rows = within(q, new[0], Chunks.of(*new), onward=True)
        past = torch.arange(S, device=q.device)[:, None] < tokens.slots[0]
        far = before(rows, k, w, beta * past)
        return far.index_copy(-1, tokens.slots, near).flatten(1, 2)


class PaTH(PositionEncoding):
    """The score of a query i and a key j is q_i' H_i .. H_(j+1) k_j / sqrt(D), where H_t = 1 -
    beta_t w_t w_t'. Here w_t has length 1 and the direction of a causal convolution per channel of
    W2 W1 x, and beta_t is 2 sigmoid(u . x_t + b). Both belong to key/value heads. Re-derived from
    the paper's equations; the bias of `gate` is x-transformers' (tests/test_special_cases.py)."""

    backends = SCORE_BACKENDS
    causal = True
    positive = ("rank", "kernel")

    rank: int = 32  # of W2 W1
    kernel: int = 3  # tokens that the convolution reads
    gate: bool = False  # whether FoX's bias is added to the scores (PaTH-FoX)

    def layer(self, layer_idx: int) -> LayerPosition:
        layer = PathLayer(self.config, self.rank, self.kernel)
        return Forgetting(layer, ForgetLayer(self.config, 0.0)) if self.gate else layer
