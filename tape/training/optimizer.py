"""Muon for the hidden matrices, AdamW for all other parameters, as one optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import Trainer, TrainingArguments

from tape.model.adapters import Method
from tape.model.layer import DecoderLayer
from tape.positions.base import LayerPosition, PositionEncoding, PositionModule


def check_rates(
    rates: Mapping[str, float], arguments: TrainingArguments, method: Method | None
) -> None:
    """Raises a ValueError for settings in conflict with `rates` of some of the parameters."""
    if not rates:
        return
    given = ", ".join(f"optimizer.{name}={value}" for name, value in rates.items())
    if arguments.deepspeed:
        raise ValueError(f"{given} with DeepSpeed, which joins parameters: give launcher=ddp")
    if "adamw_torch" not in arguments.optim:
        raise ValueError(f"{given} with trainer.optim={arguments.optim}: give adamw_torch")
    if method and "matrix_learning_rate" in rates:
        reason = "which trains few or no hidden matrices: give optimizer=adamw"
        raise ValueError(f"optimizer=muon with peft={method.name}, {reason}")


def optimizer_of(
    model: nn.Module, arguments: TrainingArguments, rates: Mapping[str, float]
) -> Optimizer:
    """Returns the optimizer of a run with `rates`: a `matrix_learning_rate` of the hidden matrices,
    which Muon trains, and an `encoding_factor` of the learning rate of the encoding's parameters.
    Raises a ValueError for a factor if the encoding has no parameters of its own."""
    rate, factor = rates.get("matrix_learning_rate"), rates.get("encoding_factor")
    own, muon = None if factor is None else factor * arguments.learning_rate, rate is not None
    groups = parameter_groups(model, arguments.weight_decay, encoding_rate=own, muon=muon)
    kind, given = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    return kind(groups, **given) if rate is None else MuonWithAdamW(groups, rate, given)


def hidden_matrices(model: nn.Module) -> set[Tensor]:
    """Returns the parameters for Muon, the weights of the linear maps of attention and MLPs. Others
    are lookup tables and vectors, or small maps of the encoding, whose scale matters."""
    return {
        linear.weight
        for layer in model.modules()
        if isinstance(layer, DecoderLayer)
        for part in (layer.self_attn, layer.mlp)
        for linear in part.modules()
        if isinstance(linear, nn.Linear)
    }


def encoding_parameters(model: nn.Module) -> set[Tensor]:
    """Returns the encoding's own parameters: FIRE's function of distance, TAPE's maps."""
    return {
        parameter
        for module in model.modules()
        if isinstance(module, PositionEncoding | LayerPosition)
        for parameter in module.parameters()
    }


def decayed(model: nn.Module) -> list[str]:
    """Returns the names of the parameters with weight decay: matrices and tables, but of an
    encoding only the matrices that multiply tokens (`PositionModule.decays`)."""
    spared = encoding_parameters(model)
    for module in (each for each in model.modules() if isinstance(each, PositionModule)):
        for name, parameter in module.named_parameters():
            if name.split(".")[0] in module.decays:
                spared.discard(parameter)
    return [name for name, p in model.named_parameters() if p.ndim > 1 and p not in spared]


def parameter_groups(
    model: nn.Module, weight_decay: float, *, encoding_rate: float | None = None, muon: bool = False
) -> list[dict[str, Any]]:
    """Returns groups of the parameters that train: those that are decayed and others, the same of
    the encoding if it has an `encoding_rate`, and the hidden matrices for Muon."""
    own = set() if encoding_rate is None else encoding_parameters(model)
    hidden, with_decay = hidden_matrices(model) if muon else set(), decayed(model)
    groups = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    if encoding_rate is not None:
        if not own:
            raise ValueError("optimizer.encoding_factor: the encoding has no parameters of its own")
        groups += [{**group, "params": [], "lr": encoding_rate} for group in groups]
    if muon:
        groups.append({"params": [], "weight_decay": weight_decay})
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place = 2 * (parameter in own) + (name not in with_decay)
            groups[-1 if parameter in hidden else place]["params"].append(parameter)
    return groups


def orthogonalized(x_RC: Tensor) -> Tensor:
    """Brings the singular values of a matrix near 1, as five Newton-Schulz steps do: in bfloat16 on
    a GPU, otherwise in float32, which is several times as fast on a CPU."""
    wide = x_RC.bfloat16() if x_RC.is_cuda else x_RC.float()
    y = wide.mT if x_RC.shape[0] > x_RC.shape[1] else wide
    y = y / y.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = y @ y.mT
        polynomial = torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
        y = torch.addmm(y, polynomial, y, beta=3.4445)
    return (y.mT if x_RC.shape[0] > x_RC.shape[1] else y).to(x_RC.dtype)


class Muon(Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for matrices, with
    Nesterov's momentum. It computes what `torch.optim.Muon` does in bfloat16 on every device."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.1, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                mean = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
                update = orthogonalized(weight.grad.lerp(mean, momentum))
                rows, columns = weight.shape
                weight.mul_(1 - rate * group["weight_decay"])
                weight.add_(update, alpha=-rate * max(1, rows / columns) ** 0.5)


class MuonWithAdamW(Optimizer):
    """Muon and AdamW in one object with one state, for the groups of `parameter_groups`, of which
    Muon has the last. `rate` is Muon's, whose update has the spectral norm 1, times
    sqrt(max(1, rows / columns)); `adamw` holds further arguments of `torch.optim.AdamW`.
    """

    def __init__(self, groups: list[dict[str, Any]], rate: float, adamw: dict[str, Any]):
        *others, hidden = groups
        self.adamw = AdamW(others, **adamw)
        self.muon = Muon([hidden], rate)
        defaults = {"lr": self.adamw.defaults["lr"]}  # the polynomial schedule reads it
        super().__init__([*self.adamw.param_groups, *self.muon.param_groups], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        *others, hidden = self.param_groups
        # Loading a state replaces these objects.
        for part, groups in ((self.adamw, others), (self.muon, [hidden])):
            part.param_groups, part.state = groups, self.state
            part.step()
