"""Muon for the hidden matrices, AdamW for all other parameters, as one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import TrainingArguments

from tape.adapters import Method
from tape.layer import DecoderLayer


def check_muon(rate: float | None, arguments: TrainingArguments, method: Method | None) -> None:
    """Raises a ValueError for settings that are in conflict with a `rate` of Muon."""
    conflicts = {
        "trainer.deepspeed": (arguments.deepspeed, "which flattens matrices; take launcher=ddp"),
        "peft": (method and method.name, "which trains few or no hidden matrices"),
        "trainer.optim": (
            arguments.optim if "adamw_torch" not in arguments.optim else None,
            "but all other parameters are AdamW's; take trainer.optim=adamw_torch",
        ),
    }
    for name, (value, reason) in conflicts.items():
        if rate is not None and value:
            raise ValueError(
                f"optimizer=muon with {name}={value}, {reason}; or take optimizer=adamw"
            )


def hidden_matrices(model: nn.Module) -> set[Tensor]:
    """Returns the parameters for Muon: the weights of the linear maps of attention and MLPs in all
    decoder layers. Not embeddings, head, norms, biases, or parameters of the encoding: these are
    lookup tables and vectors, or small maps whose scale matters."""
    return {
        linear.weight
        for layer in model.modules()
        if isinstance(layer, DecoderLayer)
        for part in (layer.self_attn, layer.mlp)
        for linear in part.modules()
        if isinstance(linear, nn.Linear)
    }


def parameter_groups(
    model: nn.Module, decayed: Collection[str], weight_decay: float
) -> list[dict[str, Any]]:
    """Returns three groups with their weight decay: AdamW's parameters whose names are in
    `decayed`, AdamW's other parameters, and Muon's, which are all decayed."""
    hidden = hidden_matrices(model)
    groups = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0, weight_decay)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place = 2 if parameter in hidden else 0 if name in decayed else 1
            groups[place]["params"].append(parameter)
    return groups


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) and AdamW in one object
    with one state.

    Args:
        groups: of `parameter_groups`, the last for Muon. A learning rate that is logged is that of
            the first group.
        rate: learning rate of Muon; its update has the spectral norm 1, times
            sqrt(max(1, rows / columns)).
        adamw: further arguments of `torch.optim.AdamW`.
    """

    def __init__(self, groups: list[dict[str, Any]], rate: float, adamw: dict[str, Any]):
        *others, hidden = groups
        self.adamw = AdamW(others, **adamw)
        self.muon = Muon([hidden], lr=rate)
        defaults = {"lr": self.adamw.defaults["lr"]}  # the polynomial schedule reads it
        super().__init__([*self.adamw.param_groups, *self.muon.param_groups], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        *others, hidden = self.param_groups
        # Loading a state replaces these objects.
        for part, groups in ((self.adamw, others), (self.muon, [hidden])):
            part.param_groups, part.state = groups, self.state
            part.step()
        return loss
