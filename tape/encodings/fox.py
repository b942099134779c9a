"""FoX: decay that depends on the text (Lin et al. 2025, arXiv 2503.02130)."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import LayerPosition, PositionEncoding, Prepared, Tokens, WideLinear, widen
from tape.positions.scores import DENSE_BACKENDS, ScoreBias, ScoreMod, SumOfBiases, lookup
from tape.positions.sums import PARTS, join_sums, running_sums, split_sums

# Sums are counted in units of so many nats: float16 ends at 65,504, and a key's extras at 2^24 nats
# then, where sums in float32 are no finer than one. A power of two: other dtypes round alike.
UNIT = 256


class ForgetBias(ScoreBias):
    """c_i - c_j, given the sums of queries (B, H, T) and keys (B, H, S)."""

    separates = True

    def __init__(self, query: Tensor, key: Tensor):
        self.query, self.key = query, key

    def dense(self, dtype: torch.dtype) -> Tensor:
        return (self.query[..., :, None] - self.key[..., None, :]).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        return ForgetBias(self.query[..., queries], self.key[..., keys])

    def separated(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        first = self.query[..., :1]
        return (self.query - first).to(dtype), (first - self.key).to(dtype)

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        query, key = (lookup(c.to(dtype)) for c in (self.query, self.key))
        return lambda score, b, h, i, j: score + query(b, h, i) - key(b, h, j)


class ForgetLayer(LayerPosition):
    """Keeps c_t / `UNIT` for each token, split into `PARTS` numbers."""

    decays = ("gate",)

    def __init__(self, config: PretrainedConfig, start: float):
        super().__init__()
        self.start = start
        self.gate = WideLinear(config.hidden_size, config.num_attention_heads)
        self.extras_width = PARTS * config.num_attention_heads // config.num_key_value_heads

    def reset_parameters(self) -> None:
        init.constant_(self.gate.bias, self.start)

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        steps_BTH = F.logsigmoid(widen(self.gate, tokens.x)) / UNIT
        steps_BKTG = steps_BTH.unflatten(-1, (k_BKTD.shape[1], -1)).transpose(1, 2)  # G = H / K
        return q_BHTD, k_BKTD, split_sums(running_sums(steps_BKTG, tokens), k_BKTD.dtype)

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> ScoreBias:
        wide = torch.promote_types(extras.dtype, torch.float32)
        c_BHS = (UNIT * join_sums(extras, wide)).mT.flatten(1, 2)
        return ForgetBias(c_BHS[..., tokens.slots], c_BHS)


class Forgetting(LayerPosition):
    """Adds FoX's bias to the scores of another encoding. Keeps what both keep of each token: first
    the sums, which FoX reads there, and last what a convolution of the other one reads."""

    def __init__(self, inner: LayerPosition, forget: ForgetLayer):
        super().__init__()
        self.inner, self.forget = inner, forget
        self.widths = forget.extras_width, inner.extras_width
        self.extras_width = sum(self.widths)

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        *_, sums = self.forget.prepare(q_BHTD, k_BKTD, tokens)
        q_BHTD, k_BKTD, kept = self.inner.prepare(q_BHTD, k_BKTD, tokens)
        return q_BHTD, k_BKTD, torch.cat((sums, kept), dim=-1)

    def bias(self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor, tokens: Tokens) -> ScoreBias:
        sums, kept = extras.split(self.widths, dim=-1)
        return SumOfBiases(
            self.inner.bias(q_BHTD, k_BKSD, kept, tokens),
            self.forget.bias(q_BHTD, k_BKSD, sums, tokens),
        )


class FoX(PositionEncoding):
    """Adds c_i - c_j to the scores, the sum of ln sigmoid(w_h x_t + b_h) over t = j+1 .. i."""

    backends = DENSE_BACKENDS
    fused_bias = True
    causal = True

    start: float = 0.0  # b at first; sigmoid(b) is the share that a head keeps at a token

    def layer(self, layer_idx: int) -> LayerPosition:
        return ForgetLayer(self.config, self.start)
