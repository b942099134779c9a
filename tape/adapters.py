"""Adapting a trained model: which of its weights train, and what is saved of them.

Without LoRA the weights that do not train are frozen, and a checkpoint is the whole model. With it
the model is wrapped by the peft library, and a checkpoint is an adapter: what was trained, and
beside it the configuration of the decoder that it belongs to, which names the base.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open

from tape.modeling import TapeForCausalLM
from tape.names import check_arguments, check_integer
from tape.positions import PositionModule, StateUpdate

ADAPTER = "adapter_model.safetensors"
# Trained as a whole besides LoRA or the encoding, in the recipe of LongLoRA and of TAPE's paper.
EXTRA = ("embed_tokens", "norm", "input_layernorm", "post_attention_layernorm")
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LoRA:
    """Low-rank updates of linear maps (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank B A."""

    rank: int
    alpha: float
    dropout: float
    targets: list[str]

    def __post_init__(self):
        check_integer("peft.lora.rank", self.rank)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"peft.lora.dropout={self.dropout!r} must lie in [0, 1)")
        if not self.targets or (unknown := sorted({*self.targets} - {*LINEAR})):
            raise ValueError(
                f"peft.lora.targets={self.targets}: {'none' if not self.targets else unknown[0]}; "
                f"allowed: {', '.join(LINEAR)}"
            )


@dataclass(frozen=True)
class Method:
    """How a base model is adapted. The weights of the encoding, if it has any, train with every
    method.

    Attributes:
        name: of its file in config/peft. It is recorded; nothing follows from it.
        everything: all weights train.
        lora: low-rank updates train; None for none.
        extra: embeddings and norms train.
        groups: train with shifted sparse attention (`tape.s2`), so many groups to a training
            length; None for full attention.
    """

    name: str
    everything: bool
    lora: LoRA | None
    extra: bool
    groups: int | None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Method:
        """
        Raises:
            ValueError: for settings that are unknown, missing or in conflict.
        """
        settings = dict(settings)
        lora = settings.pop("lora", None)
        if lora is not None:
            _check_fields("peft.lora", lora, LoRA)
        _check_fields("peft", settings | {"lora": lora}, cls)
        return cls(**settings, lora=None if lora is None else LoRA(**lora))

    def __post_init__(self):
        if self.everything and self.lora is not None:
            raise ValueError(
                "peft.everything=true with peft.lora: what trains as a whole needs no low-rank "
                "updates; set peft.lora=null"
            )
        if self.groups is not None:
            check_integer("peft.groups", self.groups)


def _check_fields(owner: str, given: dict[str, Any], cls: type) -> None:
    names = [field.name for field in fields(cls)]
    check_arguments(owner, given, names)
    if missing := [name for name in names if name not in given]:
        raise ValueError(f"{owner} lacks {', '.join(missing)}")


def adapt(
    model: TapeForCausalLM, method: Method, base: str, base_weights: str
) -> TapeForCausalLM | PeftModel:
    """Let those weights train that the method says, and keep in the configuration what was said of
    the method and the base.

    Args:
        base: the folder or name that the model was loaded from.
        base_weights: the hash or revision of it.

    Raises:
        ValueError: if nothing would train, or for groups that do not fit the training length.
    """
    if method.groups is not None:
        length = model.config.max_position_embeddings
        if length % (2 * method.groups):
            raise ValueError(
                f"peft.groups={method.groups}: {length} tokens do not make so many groups with "
                f"halves; take a length that is a multiple of {2 * method.groups}"
            )
        model.set_shifted_attention(length // method.groups)
    model.config.adaptation = {
        "base_model": base,
        "base_weights": base_weights,
        "method": asdict(method),
    }
    whole = {*EXTRA} if method.extra else set()
    for name in weights_of_encoding(model):
        whole.add("context" if ".context." in name else "position")
    if method.lora is not None:
        return _with_lora(model, method.lora, sorted(whole), base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(method.everything or not whole.isdisjoint(name.split(".")))
    if not trainable(model):
        raise ValueError(
            f"peft={method.name}: nothing would train; position "
            f"{model.config.position['name']!r} has no weights, and there is neither peft.lora nor "
            f"peft.extra"
        )
    return model


def weights_of_encoding(model: TapeForCausalLM) -> set[str]:
    """The names of the weights that are the encoding's own."""
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, PositionModule | StateUpdate)
        for name, _ in module.named_parameters()
    }


def _with_lora(model: TapeForCausalLM, lora: LoRA, whole: list[str], base: str) -> PeftModel:
    config = LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        modules_to_save=whole,
        # Embeddings that are the head as well train as one.
        ensure_weight_tying=model.config.tie_word_embeddings and "embed_tokens" in whole,
    )
    with _without_warnings():
        return get_peft_model(model, config)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Without those that are the two libraries' own affair."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.* deprecated", FutureWarning)
        yield


def trainable(model: torch.nn.Module) -> dict[str, int]:
    """How many weights train, by module; the layers of a model together."""
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            name = re.sub(
                r"^base_model\.model\.|\.(default|modules_to_save|weight)(?=\.|$)", "", name
            )
            counts[re.sub(r"\.\d+\.", ".*.", name)] += parameter.numel()
    return dict(counts)


def describe(model: torch.nn.Module) -> str:
    """`trainable`, a line for each."""
    counts = trainable(model)
    lines = [f"{sum(counts.values()):,} weights train:"]
    return "\n".join(lines + [f"  {name}  {count:,}" for name, count in counts.items()])


def complete(model: PeftModel, folder: Path) -> None:
    """Put the decoder's configuration beside an adapter that the library saved. Its model card
    goes: it has blanks to fill in, and the place of the base on this machine."""
    model.config.dtype = torch.float32  # of what was trained: the base is loaded so, too
    model.config.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def merged(model: TapeForCausalLM, folder: Path) -> TapeForCausalLM:
    """The base with the adapter in a folder added to its weights: a plain model.

    Raises:
        ValueError: if the adapter is not one of this model.
    """
    with _without_warnings():
        adapted = PeftModel.from_pretrained(model, folder)
    with safe_open(folder / ADAPTER, framework="pt") as file:
        found = {*file.keys()}
    wanted = {*get_peft_model_state_dict(adapted)}
    if found != wanted:
        example = min(found ^ wanted)
        raise ValueError(
            f"{folder}: the adapter is not the one of the decoder in its config.json; "
            f"{'it lacks' if example in wanted else 'there is no'} {example}"
        )
    return adapted.merge_and_unload().requires_grad_(True)
