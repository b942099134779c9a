"""What every encoding of positions is made of: the interface, and nothing that computes.

Shape suffixes, here and everywhere in `tape`:
B batch, T new tokens, S all tokens (cached and new), H query heads, K key/value heads, D head
dimension, F = D / 2 frequencies, C hidden size, P width of the payload.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tape.positions import sampling

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FUSED = frozenset({"flex_attention", "flash_attention_2"})
ALL_BACKENDS = frozenset({"eager", "sdpa"}) | FUSED


class Positions(NamedTuple):
    """Where tokens are: coordinates that a sampler drew, never indices into masks or caches."""

    query: Tensor  # (B|1, T) the new tokens
    key: Tensor  # (B|1, S) the cached and the new tokens


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores under a mask that is boolean (True attends) or additive, and broadcasts to them."""
    if mask is None:
        return scores
    lowest = torch.finfo(scores.dtype).min
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, lowest)
    # A sum would be -inf for two minima, a row of which is NaN, and inf for an infinite score.
    return torch.where(mask > lowest / 2, scores + mask, lowest)


def lookup(x: Tensor) -> Callable[..., Tensor]:
    """(batch, *indices) -> x[batch, *indices]; a batch of one is for every sequence."""
    if x.shape[0] == 1:
        row = x[0]
        return lambda batch, *indices: row[indices]
    return lambda *indices: x[indices]


# (score, batch, head, query, key) -> score, all of them scalar tensors.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class ScoreBias:
    """A term b_h(i, j) that is added to the scaled scores of one layer.

    `dense` is the definition; fused kernels may take the same term in another form.
    """

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The term for every pair, (B|1, H, T, S), in `dtype`."""
        raise NotImplementedError

    def masked(self, mask: Tensor | None, dtype: torch.dtype, causal: bool = False) -> Tensor:
        """`dense` with a mask on top; `causal` stands for the mask of later keys."""
        term = self.dense(dtype)
        if causal:
            mask = torch.ones(term.shape[-2:], dtype=torch.bool, device=term.device).tril()
        return masked(term, mask)

    def score_mod(self, dtype: torch.dtype) -> ScoreMod:
        """The term for FlexAttention, computed in `dtype`: read from `dense`, unless overridden.

        A tensor that needs a gradient may be read once: compiled FlexAttention refuses more.
        """
        term = lookup(self.dense(dtype))
        return lambda score, b, h, i, j: score + term(b, h, i, j)

    def alibi_slopes(self) -> Tensor | None:
        """(H,) float32, if the term is -slope_h (i - j) with i and j counting the real tokens: all
        that FlashAttention can add. None for every other term."""
        return None


class PositionModule(nn.Module):
    """A module with parameters or buffers of its own that knows how to fill them.

    The model calls `reset_parameters` after construction, and after loading a checkpoint for what
    the file did not hold. It must only use `transformers.initialization`, which leaves loaded
    tensors alone.
    """

    def reset_parameters(self) -> None:
        raise NotImplementedError


class StateUpdate(nn.Module):
    """g of E' = g(X, E): how one decoder layer moves the positional state on, and its parameters.

    Attributes:
        attends: whether the layer's attention averages the state as it averages the values.
    """

    attends: bool = True

    def payload(self, e: Tensor, dtype: torch.dtype) -> Tensor:
        """The state as attention sees it, (B|1, K|1, T, P)."""
        raise NotImplementedError

    def forward(self, e: Tensor, attended: Tensor | None, mlp_out: Tensor) -> Tensor:
        """The state for the next layer, from the state `e`, its average over the attended tokens
        (B, H, T, P; None if not `attends`) and the MLP's output (B, T, C)."""
        raise NotImplementedError


class PositionEncoding(PositionModule):
    """How positions enter a decoder. Every method defaults to nothing: NoPE overrides none.

    The arguments of an encoding are the keyword-only parameters of its `__init__`: their names
    and defaults are what `TapeConfig(position={"name": ..., ...})` accepts and what is saved.

    Attributes:
        backends: attention implementations that can carry out this encoding.
        ordered: whether position_ids increase from token to token; else they may say anything.
        config_arguments: further arguments, which `configure` moves to fields of the configuration.
        per_head: whether it has or mixes numbers of single heads, which tensor parallelism would
            have to split.
    """

    backends: ClassVar[frozenset[str]] = ALL_BACKENDS
    ordered: ClassVar[bool] = True
    per_head: ClassVar[bool] = False
    config_arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: PretrainedConfig, *, sampler: str | dict[str, Any] = "index"):
        super().__init__()
        self.sampler = sampling.build(sampler)
        self._constants: dict[str, Tensor] = {}

    @property
    def max_positions(self) -> int | None:
        """The most tokens that there are positions for; None without an end."""
        return self.sampler.max_positions

    @classmethod
    def able_backends(cls, arguments: dict[str, Any]) -> frozenset[str]:
        """The attention implementations that can carry out this encoding with these arguments."""
        return cls.backends

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Names and defaults of the arguments, of this class and of those it extends."""
        found: dict[str, Any] = {}
        for owner in reversed(cls.__mro__):
            if issubclass(owner, PositionEncoding):
                found |= dict.fromkeys(vars(owner).get("config_arguments", ()))
                parameters = inspect.signature(owner.__init__).parameters.values()
                found |= {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return found

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        """Settle a full set of arguments when a configuration is made; return what it saves.

        Override it where a default follows from the configuration (it becomes a number here, so
        that a checkpoint says what it was trained with) or where a value belongs in a field of the
        configuration that other tools read.
        """
        if config.head_dim % 2:
            config.rope_parameters = None  # not used here, but the library would refuse them
        return arguments | {"sampler": sampling.configure(config, arguments["sampler"])}

    def register_constant(self, name: str, value_on_cpu: Tensor) -> None:
        """Register a buffer that follows the module's device but never its dtype, and that no
        checkpoint holds."""
        self._constants[name] = value_on_cpu
        self.register_buffer(name, value_on_cpu.clone(), persistent=False)

    def reset_parameters(self) -> None:
        for name, value in self._constants.items():
            setattr(self, name, value.to(getattr(self, name).device, copy=True))

    def _apply(self, fn, recurse: bool = True):
        # `.to(bfloat16)` would round the frequencies and slopes once and for all.
        super()._apply(fn, recurse)
        PositionEncoding.reset_parameters(self)
        return self

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """The token embeddings with whatever an absolute encoding adds to them."""
        return x_BTC

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor | None:
        """E of layer 0 for the new tokens, opaque to the decoder; `dtype` is at least float32."""
        return None

    def rotate(self, q_BHTD: Tensor, k_BKTD: Tensor, e: Tensor | None) -> tuple[Tensor, Tensor]:
        """Queries and keys of the new tokens, as the state turns them."""
        return q_BHTD, k_BKTD

    def biases(self, positions: Positions, num_layers: int) -> list[ScoreBias | None]:
        """The bias of every layer: one shared object, or one per layer where parameters are."""
        return [None] * num_layers

    def layer(self, layer_idx: int) -> StateUpdate | None:
        """A new update for this layer; None where the state stays as it is (g = identity)."""
        return None
