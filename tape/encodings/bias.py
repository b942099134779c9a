"""Encodings that add a bias to the scores: ALiBi, Kerple, BAM, T5's buckets, FIRE.

All are causal: for keys j after the query i, which the mask removes, the distance i - j counts as
zero.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import PretrainedConfig
from transformers import initialization as init

from tape.positions.base import (
    PositionEncoding,
    PositionModule,
    Positions,
    WideLinear,
    without_autocast,
)
from tape.positions.sampling import SAMPLERS
from tape.positions.scores import DENSE_BACKENDS, ScoreBias, ScoreMod, lookup


def alibi_exponents(num_heads: int) -> Tensor:
    """Returns the binary logarithms of the slopes, (H,) float32, which holds them exactly. Slopes
    are 2^(-8(h+1)/n) for a power of two n; otherwise those of the largest power of two k < n,
    followed by every other slope of 2k."""
    k = 2 ** math.floor(math.log2(num_heads))
    exponents = [-8 * (h + 1) / k for h in range(k)]
    exponents += [-8 * (2 * i + 1) / (2 * k) for i in range(num_heads - k)]
    return torch.tensor(exponents, dtype=torch.float32, device="cpu")


class SlopeBias(ScoreBias):
    """-2^a_h (i - j) for exponents a (H,), without parameters: all layers share one object and its
    dense form."""

    separates = True

    def __init__(self, exponents: Tensor, positions: Positions, consecutive: bool):
        self.exponents, self.positions, self.consecutive = exponents, positions, consecutive
        self._dense: Tensor | None = None
        self._masked: tuple[Tensor | None, bool, Tensor] | None = None

    def slopes(self, dtype: torch.dtype) -> Tensor:
        """Returns the slopes (H,) in `dtype`, but in at least float32."""
        return self.exponents.to(torch.promote_types(dtype, torch.float32)).exp2()

    def dense(self, dtype: torch.dtype) -> Tensor:
        slopes = self.slopes(dtype)
        if self._dense is None or self._dense.dtype != slopes.dtype:
            distance = self.positions.distances().to(slopes.dtype)
            self._dense = -slopes[:, None, None] * distance[:, None]
        return self._dense.to(dtype)

    def masked(self, mask: Tensor | None, dtype: torch.dtype, causal: bool = False) -> Tensor:
        kept = self._masked
        if kept is None or kept[0] is not mask or kept[1] != causal or kept[2].dtype != dtype:
            self._masked = mask, causal, super().masked(mask, dtype, causal)
        return self._masked[2]

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        slopes = self.slopes(dtype)
        query, key = lookup(self.positions.query), lookup(self.positions.key)

        def subtract(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (query(b, i) - key(b, j)).clamp(min=0)
            return score - slopes[h] * distance.to(slopes.dtype)

        return subtract

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        return SlopeBias(self.exponents, self.positions.rows(queries, keys), self.consecutive)

    def separated(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        slopes, (query, key, _) = self.slopes(dtype)[:, None], self.positions
        first = query[:, None, :1]
        row, column = (
            slopes * x.to(slopes.dtype) for x in (first - query[:, None], key[:, None] - first)
        )
        return row.to(dtype), column.to(dtype)

    def alibi_slopes(self) -> Tensor | None:
        return self.slopes(torch.float32) if self.consecutive else None


class ALiBi(PositionEncoding):
    """Attention with linear biases (Press et al. 2021, arXiv 2108.12409)."""

    fused_bias = real = True

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.register_constant("exponents", alibi_exponents(config.num_attention_heads))

    @classmethod
    def able_backends(cls, arguments: dict[str, Any]) -> frozenset[str]:
        sampler = SAMPLERS[arguments["sampler"]["name"]]
        return cls.backends if sampler.consecutive else DENSE_BACKENDS

    def biases(self, positions: Positions) -> list[ScoreBias | None]:
        bias = SlopeBias(self.exponents, positions, self.sampler.consecutive)
        return [bias] * self.config.num_hidden_layers


class LearnedBias(ScoreBias):
    """Bias computed from the parameters of one layer at each use, never stored."""

    def __init__(self, layer: nn.Module, positions: Positions):
        self.layer, self.positions = layer, positions

    def dense(self, dtype: torch.dtype) -> Tensor:
        with without_autocast(self.positions.query):  # bfloat16 cannot represent positions
            return self.layer(self.positions).to(dtype)

    def rows(self, queries: slice, keys: slice) -> ScoreBias:
        return type(self)(self.layer, self.positions.rows(queries, keys))


class DistanceBias(LearnedBias):
    """One that is a function of the distance. FlexAttention reads it from a table by distance: the
    gradients of all pairs, computed by pair, would be added to a few addresses of a GPU's memory
    one after the other."""

    def farthest(self) -> int | None:
        """Returns a distance, the bias at which is that of all greater ones, or None where finding
        it would break a graph."""
        extent = self.positions.extent
        if extent is None and not is_compiling():
            extent = int(self.positions.query.max()) + 1
        return None if extent is None else extent - 1

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        farthest = self.farthest()
        if farthest is None:
            return super().score_mod(dtype)
        every = torch.arange(farthest + 1, device=self.positions.query.device)[None]
        with without_autocast(every):
            term = self.layer(Positions(every, torch.zeros_like(every[:, :1])))[0, ..., 0].to(dtype)
        query, key = lookup(self.positions.query), lookup(self.positions.key)

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (query(b, i) - key(b, j)).clamp(min=0, max=farthest)
            return score + term[h, distance]

        return add

    def by_distance(self, distances: Tensor, dtype: torch.dtype) -> Tensor | None:
        if not self.positions.count_slots():
            return None
        with without_autocast(distances):
            term = self.layer(Positions(distances[None], distances.new_zeros(1, 1)))
        return term[0, ..., 0].to(dtype)


class LearnedBiasEncoding(PositionEncoding):
    """Encoding with one module Positions -> (B|1, H, T, S) per layer. FlexAttention reads FIRE's
    dense form: computing its MLP would read each weight several times."""

    backends = DENSE_BACKENDS
    bias: ClassVar[type[LearnedBias]] = LearnedBias

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.layers = nn.ModuleList(self.make_layer() for _ in range(config.num_hidden_layers))

    def make_layer(self) -> nn.Module:
        """Makes the module of a decoder layer."""
        raise NotImplementedError

    def biases(self, positions: Positions) -> list[ScoreBias | None]:
        return [self.bias(layer, positions) for layer in self.layers]


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """T5's causal buckets: exact below num_buckets / 2, logarithmic up to `max_distance`."""
    exact = num_buckets // 2
    ratio = (distance.clamp(min=exact).float() / exact).log() / math.log(max_distance / exact)
    large = exact + (ratio * (num_buckets - exact)).to(torch.long)
    return torch.where(distance < exact, distance, large.clamp(max=num_buckets - 1))


class T5Layer(nn.Module):
    def __init__(self, num_heads: int, num_buckets: int, max_distance: int):
        super().__init__()
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(self, positions: Positions) -> Tensor:
        bucket = t5_bucket(positions.distances(), self.num_buckets, self.max_distance)
        return self.table(bucket).movedim(-1, 1)


class TableBias(DistanceBias):
    """T5's bias."""

    def farthest(self) -> int:
        return max(self.layer.max_distance, self.positions.key.shape[-1])


class T5Bias(LearnedBiasEncoding):
    """Learned bias per head and distance bucket, one table per layer (Raffel et al. 2020, section
    2.1, arXiv 1910.10683, which shares one table among all layers)."""

    bias = TableBias
    fused_bias = True

    num_buckets: int = 32
    max_distance: int = 128

    def make_layer(self) -> nn.Module:
        return T5Layer(self.config.num_attention_heads, self.num_buckets, self.max_distance)

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        buckets, farthest = arguments["num_buckets"], arguments["max_distance"]
        if buckets < 2 or buckets % 2 or farthest <= buckets // 2:
            raise ValueError(
                f"position t5: num_buckets={buckets} must be even and max_distance={farthest} "
                "above half of it"
            )
        return super().configure(config, arguments)


class FIRELayer(PositionModule):
    def __init__(self, num_heads: int, hidden: int, threshold: float):
        super().__init__()
        self.threshold = threshold
        self.hidden = WideLinear(1, hidden)
        # Softmax is blind to a constant per head, which would drift by rounding: it stays as it
        # starts. Checkpoints have it, as a weight of the listing.
        self.output = WideLinear(hidden, num_heads, bias=False)
        del self.output.bias
        self.output.register_buffer("bias", torch.empty(num_heads))
        # Vectors of length one: FSDP cannot shard scalars.
        self.scale = nn.Parameter(torch.empty(1))
        self.multiplier = nn.Parameter(torch.empty(1))

    def reset_parameters(self) -> None:
        # As in the authors' listing: with a standard deviation of 0.02 FIRE would start as NoPE.
        for linear in (self.hidden, self.output):
            bound = 1 / math.sqrt(linear.in_features)
            init.uniform_(linear.weight, -bound, bound)
            init.uniform_(linear.bias, -bound, bound)
        init.constant_(self.scale, 0.1)
        init.constant_(self.multiplier, 1.0)

    def forward(self, positions: Positions) -> Tensor:
        dtype = torch.promote_types(self.scale.dtype, torch.float32)

        def psi(x: Tensor) -> Tensor:
            return torch.log1p(self.scale.to(dtype).abs() * x)

        threshold = (self.multiplier.to(dtype) * self.threshold).abs()
        query = positions.query.to(dtype)[..., None]  # (B|1, T, 1)
        x = psi(positions.distances().to(dtype)) / (psi(torch.maximum(threshold, query)) + 1e-6)
        return self.output(self.hidden(x[..., None]).relu()).movedim(-1, 1)


class FIRE(LearnedBiasEncoding):
    """MLP(psi(i - j) / psi(max(|multiplier * threshold|, i))) with psi(x) = ln(|c x| + 1), an MLP
    1 -> hidden -> H with ReLU; c and multiplier are learned (Li et al. 2023, arXiv 2310.04418)."""

    real = True
    positive = ("hidden", "threshold")

    hidden: int = 32
    threshold: float = 512.0

    def make_layer(self) -> nn.Module:
        return FIRELayer(self.config.num_attention_heads, self.hidden, self.threshold)


class KerpleLayer(PositionModule):
    LOWEST = 0.01  # of both parameters

    def __init__(self, num_heads: int):
        super().__init__()
        self.slope = nn.Parameter(torch.empty(num_heads))
        self.scale = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        init.uniform_(self.slope, 0.0, 2.0)
        init.uniform_(self.scale, 0.0, 1.0)

    def forward(self, positions: Positions) -> Tensor:
        dtype = torch.promote_types(self.slope.dtype, torch.float32)
        p, a = (self.bounded(x.to(dtype))[:, None, None] for x in (self.slope, self.scale))
        return -p * (a * positions.distances().to(dtype)[:, None]).log1p()

    def bounded(self, x: Tensor) -> Tensor:
        """Mirrors x at `LOWEST`, where a clamp would end its gradient."""
        return torch.where(x < self.LOWEST, 2 * self.LOWEST - x, x)


class Kerple(LearnedBiasEncoding):
    """-p_h ln(1 + a_h (i - j)) with p_h, a_h >= 0.01 learned per head and layer, the logarithmic
    kernel of Chi et al. 2022 (arXiv 2205.09921)."""

    bias = DistanceBias
    fused_bias = True

    def make_layer(self) -> nn.Module:
        return KerpleLayer(self.config.num_attention_heads)


class PriorLayer(PositionModule):
    LOWEST = 1e-5  # added to distances: negative powers of it are finite

    def __init__(self, num_heads: int):
        super().__init__()
        self.shape = nn.Parameter(torch.empty(num_heads))
        self.scale = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        init.ones_(self.shape)
        init.copy_(self.scale, alibi_exponents(len(self.scale)).exp2())

    def forward(self, positions: Positions) -> Tensor:
        dtype = torch.promote_types(self.scale.dtype, torch.float32)
        shape, scale = (x.to(dtype)[:, None, None] for x in (self.shape, self.scale))
        distance = (scale * positions.distances().to(dtype)[:, None]).abs()
        return -((distance + self.LOWEST) ** shape)


class BAM(LearnedBiasEncoding):
    """-(|a_h (i - j)| + 1e-5)^b_h with a_h and b_h learned per head and layer: the logarithm of a
    generalised Gaussian (Bianchessi et al. 2025, arXiv 2505.22842). It starts as ALiBi: b = 1, and
    a are ALiBi's slopes. A head with b < 0 attends to far tokens rather than near ones. Compared by
    hand with the authors' code (ArthurSBianchessi/BAM): its bias is this one in 0186ff1, where a
    does not train, and -exp(a_h) (|i - j| + 1e-5)^b_h with a, b learned in 9891050 and later. The
    paper trains a and b."""

    bias = DistanceBias
    fused_bias = True

    def make_layer(self) -> nn.Module:
        return PriorLayer(self.config.num_attention_heads)
