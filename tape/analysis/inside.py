"""Attention weights and positional state of every layer of a decoder, and numbers of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tape.model.modeling import TapeForCausalLM
from tape.training.build import check_memory


@dataclass(frozen=True)
class Inside:
    """Internals of one sequence by layer (of every recurrence), in float32 on the CPU.

    Attributes:
        attention: weights (H, T, T) of every layer; rows are queries.
        states: cosines and sines (K|1, T, 2 F) at the input of every layer; None for a layer
            without a state, as some in a mixture of encodings.
    """

    attention: list[Tensor]
    states: list[Tensor | None]

    def dot_products(self) -> list[Tensor | None]:
        """Returns D of every layer, (K|1, T, T): Re(e_i conj(e_j)), summed over frequencies."""
        return [None if e is None else e @ e.mT for e in self.states]


def check_size(model: TapeForCausalLM, owner: str, length: int, texts: int = 1) -> None:
    """Raises a ValueError if the weights of texts of `length` tokens exceed this machine's memory.

    Args:
        owner: the settings that ask for them.
    """
    config = model.config
    maps = texts * config.num_hidden_layers * config.num_recurrences * config.num_attention_heads
    needed = 8 * maps * length**2  # the model's and the copies on the CPU
    what = f"of attention weights of {texts} texts"
    check_memory(needed, owner, what, "take shorter texts, or fewer of them")


@torch.no_grad()
def look_inside(model: TapeForCausalLM, ids: Tensor, first: int = 0) -> Inside:
    """Runs a model on tokens (T,) whose positions start at `first`. Encodings with random positions
    need a matching `model.evaluation_length`."""
    states: list[Tensor | None] = []

    def record(module: torch.nn.Module, arguments: tuple) -> None:
        e = arguments[1]
        states.append(None if e is None else e[0, ..., :2, :].flatten(-2).float().cpu())

    ids = ids.to(model.device)[None]
    positions = torch.arange(first, first + ids.shape[1], device=ids.device)[None]
    before = model.config._attn_implementation
    hooks = [layer.register_forward_pre_hook(record) for layer in model.model.layers]
    try:
        model.set_attn_implementation("eager")  # the only backend that returns weights
        weights = model.model(
            ids, position_ids=positions, use_cache=False, output_attentions=True
        ).attentions
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return Inside([layer[0].float().cpu() for layer in weights], states)


def beyond_a_quarter(A_HTT: Tensor) -> float:
    """Returns the share of attention on tokens farther back than a quarter of the text, averaged
    over heads and the queries that have such tokens."""
    T = A_HTT.shape[-1]
    far = A_HTT.tril(-(T // 4) - 1).sum(-1)
    return far[:, T // 4 + 1 :].mean().item()


def entropy(A_HTT: Tensor) -> float:
    """Returns the entropy of the weights of a query in nats, averaged over heads and queries."""
    return -torch.special.xlogy(A_HTT, A_HTT).sum(-1).mean().item()


def by_distance(A_HTT: Tensor) -> Tensor:
    """Returns the mean weight at each distance, (T,), over heads and the queries of the second
    half, which all have half of the text before them."""
    T = A_HTT.shape[-1]
    means = [A_HTT.diagonal(-d, 1, 2)[:, max(0, T // 2 - d) :].mean() for d in range(T)]
    return torch.stack(means)


def magnitudes(e_KTF: Tensor) -> Tensor:
    """Returns |e| of every head, token and frequency of a state (K|1, T, 2 F)."""
    return e_KTF.unflatten(-1, (2, -1)).norm(dim=-2)
