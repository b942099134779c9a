"""Samplers: map token indices (0, 1, 2, ... over the real tokens) to coordinates.

Any encoding takes `sampler=`. All layers and all sequences of a batch share one draw per forward
pass, so relative distances are consistent.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PretrainedConfig

from tape.core.validation import check_arguments, check_integer, look_up

# Coordinates of queries and keys, and their extent: the number that all are below, None if it is
# not known without reading them.
Draw = tuple[Tensor, Tensor, int | None]
TRAINED = """\
a training input of {tokens} tokens needs as many distinct positions, more than length={most}; \
raise `length` or shorten the input"""
EVALUATED = """\
the input has {tokens} tokens but positions were drawn for eval_length={most}; raise it in the \
configuration, or temporarily with `with model.evaluation_length(n):`"""


class Argument(NamedTuple):
    """An integer in least..most; by default `value`, or `times` the training length."""

    value: int = 0
    times: int = 0
    least: int = 1
    most: int = 2**31 - 1


class IndexSampler:
    """Coordinates equal indices."""

    arguments: ClassVar[dict[str, Argument]] = {}
    consecutive: ClassVar[bool] = True  # neighbouring tokens are one apart
    random: ClassVar[bool] = False  # in training each forward pass has coordinates of its own
    real: ClassVar[bool] = False  # coordinates are real numbers, not integers
    counts: ClassVar[bool] = False  # needs the exact number of coordinates, not a bound, for a draw
    max_positions: int | None = None  # the maximum number of tokens with coordinates
    draw: tuple[int, ...] | None = None  # identifies the draw of an evaluation

    def __call__(self, query: Tensor, key: Tensor, training: bool, extent: int | None) -> Draw:
        """Returns the coordinates of queries (B|1, T) and keys (B|1, S) with these indices."""
        return query, key, extent

    def evaluation_length(self, length: int) -> AbstractContextManager[None]:
        """Evaluates inputs of up to `length` tokens; most samplers ignore it."""
        return nullcontext()


class FloatSampler(IndexSampler):
    """Real numbers in one range at all lengths: random float sampling (Shimizu et al. 2026, arXiv
    2602.14050), where `length` is 1.

    Training draws a number for each token, uniform in [0, length), and sorts them. Evaluation
    divides the range into `eval_length` equal parts, of which token i takes the middle of the i-th.
    In the paper this is the length of the input, but at least that of training: cached tokens would
    change their positions.
    """

    arguments: ClassVar = {"length": Argument(times=1), "eval_length": Argument(times=1)}
    consecutive, random, real, counts = False, True, True, True

    def __init__(self, length: int, eval_length: int):
        self.length, self.eval_length = length, eval_length

    @property
    def draw(self) -> tuple[int, ...]:
        return self.length, self.eval_length

    def check(self, eval_length: int) -> None:
        """Raises a ValueError for a number of tokens that cannot have coordinates."""

    def __call__(self, query: Tensor, key: Tensor, training: bool, extent: int | None) -> Draw:
        if not training:
            _needed(query, extent, self.eval_length, EVALUATED)
            part = self.length / self.eval_length
            return (query + 0.5).double() * part, (key + 0.5).double() * part, self.length
        tokens = _needed(query, extent, Argument().most, TRAINED)
        draw = torch.rand(tokens, dtype=torch.float64, device=query.device).sort().values
        return draw[query] * self.length, draw[key] * self.length, self.length

    @contextmanager
    def evaluation_length(self, length: int) -> Iterator[None]:
        before = self.eval_length
        self.check(max(before, length))
        self.eval_length = max(before, length)
        try:
            yield
        finally:
            self.eval_length = before


class ShiftSampler(IndexSampler):
    """Random origin in training: adds one integer, uniform in 0..maximum, to all coordinates, as in
    TAPE's recipe (arXiv 2501.00712)."""

    arguments: ClassVar = {"maximum": Argument(times=2, least=0)}
    random = True

    def __init__(self, maximum: int):
        self.maximum = maximum

    def __call__(self, query: Tensor, key: Tensor, training: bool, extent: int | None) -> Draw:
        if not training:
            return query, key, extent
        origin = torch.randint(self.maximum + 1, (), device=query.device)
        extent = None if extent is None else extent + self.maximum
        return query + origin, key + origin, extent


class SubsetSampler(FloatSampler):
    """Sorted random subsets of range(length) (Ruoss et al. 2023, arXiv 2305.16843).

    Training draws a subset of the input's length per forward pass. Evaluation uses one seeded draw
    of `eval_length` coordinates, and token i takes the i-th: it is deterministic, and longer inputs
    keep their prefix, so cached decoding equals the full forward pass.
    """

    arguments: ClassVar = {
        "length": Argument(times=4),
        "eval_length": Argument(times=1),
        "seed": Argument(least=-(2**63), most=2**63 - 1),
    }
    real, counts = False, False

    def __init__(self, length: int, eval_length: int, seed: int):
        super().__init__(length, eval_length)
        self.check(eval_length)
        self.max_positions, self.seed = length, seed

    @property
    def draw(self) -> tuple[int, ...]:
        return self.length, self.eval_length, self.seed

    def check(self, eval_length: int) -> None:
        if eval_length > self.length:
            raise ValueError(
                f"random subset positions: eval_length={eval_length} must lie in 1..{self.length}, "
                "the range that coordinates are drawn from; longer inputs need a model trained "
                f"with a `length` of at least {eval_length}"
            )

    def __call__(self, query: Tensor, key: Tensor, training: bool, extent: int | None) -> Draw:
        if training:
            tokens = _needed(query, extent, self.length, TRAINED)
            draw = torch.randperm(self.length, device=query.device)[:tokens].sort().values
        else:
            _needed(query, extent, self.eval_length, EVALUATED)
            draw = _seeded_subset(self.length, self.eval_length, self.seed, query.device)
        # Empty slots of a static cache are masked, so any coordinate is valid.
        return draw[query], draw[key.clamp(max=len(draw) - 1)], self.length


class PoSESampler(IndexSampler):
    """Positional skip-wise training (Zhu et al. 2023, arXiv 2309.10400) on T tokens for `length`.

    Training splits the tokens into `chunks` at random places. The first chunk begins at 0, and the
    i-th is moved by a skip u_i, uniform in u_(i-1)..length - T, so positions increase and stay
    below `length`. Evaluation uses the indices. In the paper every example has its own draw, and in
    the authors' code the text skips as well, and the first of two chunks has at most half of it.
    """

    arguments: ClassVar = {"length": Argument(times=4), "chunks": Argument(2, least=2)}
    consecutive, random, counts = False, True, True

    def __init__(self, length: int, chunks: int):
        self.length, self.chunks = length, chunks

    def __call__(self, query: Tensor, key: Tensor, training: bool, extent: int | None) -> Draw:
        if not training:
            return query, key, extent
        tokens = _needed(query, extent, self.length, TRAINED)
        later = self.chunks - 1
        starts = torch.randint(1, max(tokens, 2), (later,), device=query.device).sort().values
        skips = [torch.zeros_like(starts[0])]
        for share in torch.rand(later, dtype=torch.float64, device=query.device):
            choices = self.length - tokens - skips[-1] + 1
            skips.append(skips[-1] + (share * choices).long())
        skip = torch.stack(skips)
        query, key = (x + skip[torch.bucketize(x, starts, right=True)] for x in (query, key))
        return query, key, self.length


def _needed(query: Tensor, extent: int | None, most: int, refusal: str) -> int:
    """Returns how many coordinates the indices need, as far as it is known without waiting for a
    GPU in decoding; a draw is indexed with larger ones, which raises an error there. Raises a
    ValueError for more than `most`."""
    tokens = query.shape[-1]
    if not torch.compiler.is_compiling() and not (query.is_cuda and tokens == 1):
        tokens = extent if extent is not None and extent <= most else int(query.max()) + 1
    if tokens > most:
        raise ValueError(refusal.format(tokens=tokens, most=most))
    return tokens


@torch.compiler.assume_constant_result  # graphs contain the draw, not its generator
def _seeded_subset(length: int, size: int, seed: int, device: torch.device) -> Tensor:
    return _cached_subset(length, size, seed, device)


@lru_cache(maxsize=64)
def _cached_subset(length: int, size: int, seed: int, device: torch.device) -> Tensor:
    with _disable_current_modes():  # torch.export traces with fake tensors: kept, they would be nan
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(length, generator=generator)[:size].sort().values.to(device)


SAMPLERS: dict[str, type[IndexSampler]] = {
    "index": IndexSampler,
    "shift": ShiftSampler,
    "subset": SubsetSampler,
    "pose": PoSESampler,
    "float": FloatSampler,
}


def named(sampler: str | Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the name of a sampler, and the arguments that are given."""
    arguments = dict(sampler) if isinstance(sampler, Mapping) else {"name": sampler}
    return arguments.pop("name", None), arguments


def configure(config: PretrainedConfig, sampler: str | dict[str, Any]) -> dict[str, Any]:
    """Completes a sampler, given by name or as {"name": ..., arguments}, for a configuration."""
    name, arguments = named(sampler)
    cls = look_up("sampler", name, SAMPLERS)
    check_arguments(f"sampler '{name}'", arguments, cls.arguments)
    trained, settled = config.max_position_embeddings, {}
    for argument, (value, times, *bounds) in cls.arguments.items():
        if (given := arguments.get(argument)) is None:
            given = value + times * trained
        check_integer(f"sampler {name}: {argument}", given, *bounds)
        settled[argument] = given
    cls(**settled)  # refuses arguments that do not go together
    return {"name": name, **settled}


def build(sampler: dict[str, Any]) -> IndexSampler:
    """Builds the sampler of a completed configuration."""
    arguments = dict(sampler)
    return SAMPLERS[arguments.pop("name")](**arguments)
