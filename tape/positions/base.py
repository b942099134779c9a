"""Interface of positional encodings.

Shape suffixes, used throughout `tape`:
B batch, T new tokens, S all tokens (cached and new), L cached tokens, H query heads, K key/value
heads, G = H / K, D head dimension, F = D / 2 frequencies, C hidden size, P width of the payload, M
width of a key's extras.
"""

from contextlib import AbstractContextManager, nullcontext
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, get_args, get_origin

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig

from tape.positions import BACKENDS, sampling
from tape.positions.scores import ScoreBias

ALL_BACKENDS = frozenset(BACKENDS)


class Positions(NamedTuple):
    """Coordinates of tokens as drawn by a sampler; never indices into masks or caches."""

    query: Tensor  # (B|1, T) the new tokens
    key: Tensor  # (B|1, S) the cached and the new tokens
    extent: int | None = None  # if known without reading them: all are in 0..extent - 1

    def distances(self) -> Tensor:
        """Returns max(i - j, 0), (B|1, T, S), in the dtype of the coordinates."""
        return (self.query[..., :, None] - self.key[..., None, :]).clamp(min=0)

    def rows(self, queries: slice, keys: slice) -> "Positions":
        """Returns the coordinates of some queries and keys."""
        return self._replace(query=self.query[:, queries], key=self.key[:, keys])

    def count_slots(self) -> bool:
        """Returns whether the coordinates of all keys increase by one, as slots do, and the queries
        are the first of them; waits for a GPU."""
        T, key = self.query.shape[-1], self.key
        same = len(key) == len(self.query) == 1 and torch.equal(self.query, key[:, :T])
        return same and bool((key.diff(dim=-1) == 1).all())


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Returns a context in which operations keep the dtype of x. It is empty where autocast is off:
    torch's takes as long to enter as an operation on one token."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class WideLinear(nn.Linear):
    """Linear map in the dtype of its input, whatever that of its weights (`widen`). Unlike plain
    `nn.Linear`s it is not quantized with a base of 4 or 8 bits, which lacks its weights."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


def widen(linear: WideLinear, x: Tensor) -> Tensor:
    """Calls a linear map, or an adapter around it, in at least float32, under autocast too."""
    with without_autocast(x):
        return linear(x.to(torch.promote_types(x.dtype, torch.float32)))


class PositionModule(nn.Module):
    """A module that initialises its own parameters and buffers: the model calls `reset_parameters`,
    by default without effect, after construction, and after loading a checkpoint for tensors
    missing from the file. It must only use `transformers.initialization`, which skips loaded
    tensors.

    Attributes:
        decays: names of the parameters, or of modules that hold them, that are matrices which
            multiply tokens or their states. Only these are under weight decay: it would pull
            tables, phases and functions of the distance towards no position.
    """

    decays: ClassVar[tuple[str, ...]] = ()

    def __init__(self):
        super().__init__()
        self._constants: dict[str, Tensor] = {}

    def reset_parameters(self) -> None:
        pass

    def register_constant(self, name: str, value_on_cpu: Tensor) -> None:
        """Registers a non-persistent buffer that follows the device but keeps its dtype. Its value
        must be made with device="cpu": a model that is loaded is built on the meta device."""
        if value_on_cpu.device.type != "cpu" or value_on_cpu.element_size() == 2:
            raise ValueError(f"{name}: make this constant with device='cpu', and in float32")
        self._constants[name] = value_on_cpu
        self.register_buffer(name, value_on_cpu.clone(), persistent=False)

    def unregistered(self) -> list[str]:
        """Returns names of tensors, also of submodules, that are neither saved nor constants."""
        names = set()
        for module in self.modules():
            kept = {name for name, x in vars(module).items() if isinstance(x, Tensor)}
            kept |= module._non_persistent_buffers_set - getattr(module, "_constants", {}).keys()
            names |= kept
        return sorted(names)

    def reset_constants(self) -> None:
        """Gives constants their values, which a model that is loaded has not."""
        for name, value in self._constants.items():
            setattr(self, name, value.to(getattr(self, name).device, copy=True))

    def _apply(self, fn, recurse: bool = True):
        # `.to(bfloat16)` would round frequencies and slopes irreversibly.
        super()._apply(fn, recurse)
        self.reset_constants()
        return self


class Tokens(NamedTuple):
    """The tokens of one forward pass, for a layer's encoding."""

    positions: Positions
    bias: ScoreBias | None  # of this layer, as computed by `PositionEncoding.biases`
    real: Tensor | None  # (B|1, S) by slot, False at padding; None without padding
    slots: Tensor  # (T,) cache slots of the new tokens; 0 to T - 1 without a cache
    documents: Tensor | None = None  # (B, T) numbers of packed documents; only without a cache
    seen: Tensor | None = None  # (B|1, T, S) which tokens a query sees; None without a 4-D mask
    # Of this layer:
    x: Tensor | None = None  # (B, T, C) normalised input, from which queries and keys are projected
    e: Tensor | None = None  # positional state
    past: Tensor | None = None  # (B, K, L, M) extras of the cached keys; None without cached tokens

    def rows(self, queries: slice, keys: slice) -> "Tokens":
        """Returns some of the new tokens, as if they were called with the keys in a slice alone."""
        real, documents, seen, x, e = self.real, self.documents, self.seen, self.x, self.e
        return Tokens(
            self.positions.rows(queries, keys),
            None if self.bias is None else self.bias.rows(queries, keys),
            None if real is None else real[:, keys],
            self.slots[queries] - keys.start,
            None if documents is None else documents[:, queries],
            None if seen is None else seen[:, queries, keys],
            None if x is None else x[:, queries],
            None if e is None else e[:, :, queries],
        )

    def without_padding(self, x_BKTN: Tensor) -> Tensor:
        """Returns numbers of the new tokens, 0 at padding."""
        return x_BKTN if self.real is None else x_BKTN * self.real[:, None, self.slots, None]


# Queries, keys and the keys' extras (B, K, T, M), None if `extras_width` is 0; where values turn
# too, then the rotations of the tokens, (B|1, K|1, T, 2, F).
Prepared = tuple[Tensor, Tensor, Tensor | None] | tuple[Tensor, Tensor, Tensor, Tensor]


class LayerPosition(PositionModule):
    """The encoding in one decoder layer, which it is a part of. Every method defaults to no effect.

    A class with parameters of its own reads them in a `forward`, which its other methods call
    (`PositionEncoding`).

    Attributes:
        entry: which of the states (`PositionEncoding.states`) the layer reads and updates.
        extras_width: M, width of a key's extras: numbers that the encoding keeps for each token and
            key/value head. A cache stores them as the last channels of the keys, where they follow
            all its operations.
        window: a query attends to itself and the `window` - 1 tokens before it, as with
            transformers' `sliding_window`; None for `TapeConfig.sliding_window`. Padding does not
            count. A cache keeps the keys of all tokens.
        needs_lse: whether `finish` is called.
        copies: how many query heads `prepare` makes of each, next to each other.
    """

    entry: int = 0
    extras_width: int = 0
    window: int | None = None
    needs_lse: bool = False
    copies: int = 1

    def prepare(self, q_BHTD: Tensor, k_BKTD: Tensor, tokens: Tokens) -> Prepared:
        """Returns queries and keys of the new tokens as they enter the scores, and extras. With the
        rotations that may follow, values turn, too, and their averages turn back at the query."""
        return q_BHTD, k_BKTD, None

    def bias(
        self, q_BHTD: Tensor, k_BKSD: Tensor, extras: Tensor | None, tokens: Tokens
    ) -> ScoreBias | None:
        """Returns the bias of all scores; extras (B, K, S, M) are those of all keys."""
        return tokens.bias

    def payload(self, e: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Returns the part of the state that attention averages, (B|1, K|1, T, P), or None."""
        return None

    def finish(self, attended_BHTD: Tensor, lse_BHT: Tensor) -> Tensor:
        """Returns the averages over the attended tokens as they leave attention, given the log-
        sum-exp of the scores. Called if `needs_lse`, for values, payload and weights alike. A
        logit s more in the softmax, of a token without values, is attended * sigmoid(lse - s)."""
        return attended_BHTD

    def next_state(
        self, e: Tensor | None, attended_e: Tensor | None, mlp_out: Tensor
    ) -> Tensor | None:
        """Returns the state for the next layer, g of E' = g(X, E), given the payload's average over
        the attended tokens (B, H, T, P; None without a payload) and the MLP's output (B, T, C)."""
        return e


NUMBERS = {bool: "true or false", int: "an integer", float: "a number"}


class PositionEncoding(PositionModule):
    """A positional encoding. Every method but `read` defaults to no effect: NoPE overrides none.

    The decoder calls the encoding as a module (`forward`), and so does whatever else needs its
    parameters: accelerate loads those that it keeps off the device when their module is called.

    The arguments of an encoding are the annotated attributes of its class, apart from ClassVars:
    `TapeConfig(position={"name": ..., ...})` accepts and saves their names, and has their defaults.

    Attributes:
        backends: attention backends that support this encoding.
        fused_bias: whether FlexAttention computes its biases pair by pair, none of all pairs.
        ordered: whether position_ids must increase from token to token.
        real: whether positions may be any real numbers, as those of the sampler "float".
        causal: whether scores are defined for earlier tokens only, whatever a mask shows.
        config_arguments: further arguments, which `configure` moves to fields of the configuration.
        positive: numeric arguments that must be above zero.
        above: numbers that other arguments must exceed.
        updates: whether layers update its state.
        reads: whether it takes token indices from the token ids, by a method `read` (`Abacus`).
    """

    backends: ClassVar[frozenset[str]] = ALL_BACKENDS
    fused_bias: ClassVar[bool] = False
    ordered: ClassVar[bool] = True
    real: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    reads: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    config_arguments: ClassVar[tuple[str, ...]] = ()
    positive: ClassVar[tuple[str, ...]] = ()
    above: ClassVar[dict[str, int]] = {}

    sampler: str | dict[str, Any] = "index"

    def __init__(self, config: PretrainedConfig, **arguments: Any):
        super().__init__()
        self.config = config
        for name, value in arguments.items():
            setattr(self, name, value)
        self.sampler = sampling.build(sampling.configure(config, self.sampler))

    @property
    def max_positions(self) -> int | None:
        """The maximum number of tokens with positions; None if unlimited."""
        return self.sampler.max_positions

    @property
    def random(self) -> bool:
        """Whether in training tokens have other positions in each forward pass."""
        return self.sampler.random

    @classmethod
    def able_backends(cls, arguments: dict[str, Any]) -> frozenset[str]:
        """Returns the attention backends that support this encoding with these arguments."""
        return cls.backends

    @classmethod
    def _types(cls) -> dict[str, Any]:
        """Returns names and types of the arguments, inherited ones included."""
        found: dict[str, Any] = {}
        for owner in reversed(cls.__mro__):
            if issubclass(owner, PositionEncoding):
                found |= dict.fromkeys(vars(owner).get("config_arguments", ()))
                found |= get_annotations(owner, eval_str=True)
        return {name: kind for name, kind in found.items() if get_origin(kind) is not ClassVar}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Returns names and defaults of the arguments, inherited ones included."""
        return {name: getattr(cls, name, None) for name in cls._types()}

    @classmethod
    def check_numbers(cls, owner: str, given: dict[str, Any]) -> None:
        """Raises a ValueError for numbers of another type, or that are too small."""
        bounds = dict.fromkeys(cls.positive, 0) | cls.above
        for name, hint in cls._types().items():
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            kind, value = kinds[0], given.get(name)
            unset = name not in given or (value is None and NoneType in kinds)
            if kind not in NUMBERS or str in kinds or unset:
                continue
            fits = type(value) in ((int, float) if kind is float else (kind,))
            bound, least = bounds.get(name), ""
            if bound is not None:
                least = f" > {bound}" if kind is float else f" >= {bound + 1}"
            # The first bound excludes inf and NaN.
            if not fits or not abs(value) < 2.0**31 or (least and value <= bound):
                most = "" if kind is bool else ", below 2**31"
                raise ValueError(f"{owner}: {name}={value!r} must be {NUMBERS[kind]}{least}{most}")

    @classmethod
    def on_checkpoint(cls, arguments: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        """Completes arguments that refer to the length that a checkpoint was trained with, which
        may be loaded with another one, from its `saved` configuration."""
        return arguments

    @classmethod
    def for_tokenizer(cls, arguments: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
        """Completes arguments that depend on the tokenizer of a new model, by its tokens' ids."""
        return arguments

    @classmethod
    def configure(cls, config: PretrainedConfig, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments that a configuration saves. Override it for defaults that derive
        from the configuration, and for values that belong in a field that other tools read."""
        if config.head_dim % 2:
            config.rope_parameters = None  # unused here, and transformers would refuse them
        return arguments | {"sampler": sampling.configure(config, arguments["sampler"])}

    def forward(
        self, x_BTC: Tensor, positions: Positions
    ) -> tuple[Tensor, list[Tensor | None], list[ScoreBias | None]]:
        """Returns token embeddings (`embed`), the states that pass through the layers, several if
        layers have different ones (`LayerPosition.entry`), and biases of all layers (`biases`)."""
        states = [self.state(positions, torch.promote_types(x_BTC.dtype, torch.float32))]
        return self.embed(x_BTC, positions), states, self.biases(positions)

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """Returns token embeddings, with absolute encodings added."""
        return x_BTC

    def state(self, positions: Positions, dtype: torch.dtype) -> Tensor | None:
        """Returns E of layer 0 for the new tokens; `dtype` is at least float32."""
        return None

    def biases(self, positions: Positions) -> list[ScoreBias | None]:
        """Returns each layer's bias that depends on positions alone; it may be shared."""
        return [None] * self.config.num_hidden_layers

    def layer(self, layer_idx: int) -> LayerPosition:
        """Creates the part of the encoding that belongs to a decoder layer."""
        return LayerPosition()
