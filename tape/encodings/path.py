"""PaTH: scores through products of maps of the text (Yang et al. 2025, arXiv 2505.16381)."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from tape.encodings.fox import ForgetLayer, Forgetting
from tape.positions.base import (
    LayerPosition,
    PositionEncoding,
    Prepared,
    Tokens,
    WideLinear,
    without_autocast,
)
from tape.positions.convolution import Convolution
from tape.positions.pairs import PairBias, PairLayer
from tape.positions.scores import SCORE_BACKENDS, ScoreBias

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
        L = min(CHUNK, k.shape[2])
        k, w, beta = (in_chunks(x, L)[:, :, None] for x in (k, w, beta))
        eye = torch.eye(w.shape[-2], dtype=w.dtype, device=w.device)
        T = torch.linalg.solve_triangular(
            eye + beta * (w @ w.mT).tril(-1), beta * eye, upper=False, unitriangular=True
        )
        applied, along = T @ w, T @ (w @ k.mT).tril(-1)
        identity = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
        return cls(w, applied, along, k - along.mT @ w, identity - w.mT @ applied)


def in_chunks(x: Tensor, L: int) -> Tensor:
    """(.., T, D) -> (.., n, L, D), with zeros at the end."""
    x = x.contiguous()  # torch.compile takes padding by none for a contiguous copy
    return F.pad(x, (0, 0, 0, -x.shape[-2] % L)).unflatten(-2, (-1, L))


def within(
    q: Tensor, k: Tensor, text: Chunks, onward: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Returns q_i' H_i .. H_(j+1) k_j (B, K, G, T, S) for queries (B, K, G, T, D), which are the
    last of a text and begin with a chunk, and its keys (B, K, S, D); and `onward`, the queries
    times H_i .. H_first."""
    T, S, L = q.shape[3], k.shape[2], text.w.shape[-2]
    q, k = in_chunks(q, L), in_chunks(k, L)[:, :, None]
    n = k.shape[3]
    own = n - q.shape[3]  # the first chunk of the queries
    w, applied, along = (x[:, :, :, own:] for x in (text.w, text.applied, text.along))
    qw = (q @ w.mT).tril()
    near, back = q @ k[:, :, :, own:].mT - qw @ along, q - qw @ applied
    rows, columns = q[..., 0, :0, :], []  # queries after a chunk, times the maps back to its end
    for b in reversed(range(n)):
        column = rows @ text.keys[..., b, :, :].mT
        if b or onward:
            rows = rows @ text.whole[..., b, :, :]
        if b >= own:
            column = torch.cat((near[..., b - own, :, :], column), dim=-2)
            rows = torch.cat((back[..., b - own, :, :], rows), dim=-2)
        columns.insert(0, F.pad(column, (0, 0, max(0, b - own) * L, 0)))
    return torch.cat(columns, dim=-1)[..., :T, :S], rows[..., :T, :] if onward else None


def before(rows: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Returns rows' H_last .. H_(j+1) k_j for all keys (B, K, S, D) of a text before the rows
    (B, K, G, T, D). Each chunk takes c W off the rows, for the c of a triangular system."""
    length = k.shape[2]
    k, w, beta = (in_chunks(x, min(CHUNK, length))[:, :, None] for x in (k, w, beta))
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


class PathScores(PairBias):
    """Scores of a text that is read at once, whose maps are multiplied out once for all blocks of
    queries.

    Attributes:
        text: the chunks.
        first: the slot of the first key.
    """

    def __init__(self, *given: Any, text: Chunks, first: int = 0):
        super().__init__(*given)
        self.text, self.first = text, first

    def dense(self, dtype: torch.dtype) -> Tensor:
        with torch.autocast(self.q.device.type, enabled=False):
            q, k = (x.to(self.text.w.dtype) for x in (self.q, self.k))
            scores, _ = within(self.layer.scaled(q, k), k, self.text)
        return scores.flatten(1, 2)[..., self.first % CHUNK :].to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        if queries.start % CHUNK or keys.stop != queries.stop:
            whole = PairBias(self.layer, self.q, self.k, self.extras, self.tokens)
            return whole.rows(queries, keys)
        begun = keys.start // CHUNK
        chunks = slice(begun, -(-keys.stop // CHUNK))
        text = Chunks(*(x[:, :, :, chunks] for x in self.text))
        k = self.k[:, :, begun * CHUNK : keys.stop]
        q, tokens = self.q[:, :, queries], self.tokens.rows(queries, keys)
        return type(self)(self.layer, q, k, None, tokens, text=text, first=keys.start)


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

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> ScoreBias:
        if q_BHTD.shape[2] != k_BKSD.shape[2]:
            return PairBias(self, q_BHTD, k_BKSD, extras, tokens)
        with without_autocast(q_BHTD):
            k = k_BKSD.to(torch.promote_types(k_BKSD.dtype, torch.float32))
            text = Chunks.of(k, *self.maps(k, extras))
        return PathScores(self, q_BHTD, k_BKSD, extras, tokens, text=text)

    def maps(self, k_BKSD: Tensor, extras: Tensor) -> tuple[Tensor, Tensor]:
        """Returns w (B, K, S, D) and beta (B, K, S, 1) in the dtype of the keys."""
        D = k_BKSD.shape[-1]
        w, beta = extras[..., : D + 1].to(k_BKSD.dtype).split((D, 1), dim=-1)
        if extras.element_size() < 4:  # rounding would let products grow
            w = F.normalize(w, dim=-1)
        return w, beta

    def scaled(self, q_BHTD: Tensor, k_BKSD: Tensor) -> Tensor:
        """Returns the queries of each key, (B, K, G, T, D), by 1 / sqrt(D)."""
        return q_BHTD.unflatten(1, (k_BKSD.shape[1], -1)) * q_BHTD.shape[-1] ** -0.5

    def forward(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> Tensor:
        """Of new tokens after cached ones."""
        q, k, S = self.scaled(q_BHTD, k_BKSD), k_BKSD, k_BKSD.shape[2]
        w, beta = self.maps(k, extras)
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
