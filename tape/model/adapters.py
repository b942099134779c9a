"""Fine-tuning methods: which weights of a trained model train, and what a checkpoint saves.

Without LoRA the other weights are frozen and a checkpoint holds the whole model. With LoRA the peft
library wraps the model, and a checkpoint is an adapter: the trained weights and the decoder's
configuration, which names the base model.
"""

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

from tape.core.validation import (
    check_arguments,
    check_flag,
    check_integer,
    is_number,
    look_up,
)
from tape.model.modeling import TapeForCausalLM
from tape.positions.base import PositionModule

ADAPTER = "adapter_model.safetensors"
BFLOAT16 = "bfloat16"  # storage of frozen weights
# Trained in full next to LoRA or the encoding, as in LongLoRA and the TAPE paper.
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
        if not is_number(self.alpha) or self.alpha <= 0:
            raise ValueError(f"peft.lora.alpha={self.alpha!r} must be a finite number > 0")
        if not is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ValueError(f"peft.lora.dropout={self.dropout!r} must lie in [0, 1)")
        targets = self.targets if isinstance(self.targets, list) else []
        if not targets or any(name not in LINEAR for name in targets):
            allowed = ", ".join(LINEAR)
            raise ValueError(f"peft.lora.targets={self.targets!r} must be a list from {allowed}")


@dataclass(frozen=True)
class Method:
    """How a base model is adapted. The encoding's own weights train with every method.

    Attributes:
        name: file name in config/peft; recorded, has no effect.
        everything: train all weights.
        lora: low-rank updates; None for none.
        extra: train embeddings and norms.
        groups: number of groups per training length for shifted sparse attention
            (`tape.attention.shifted_sparse`); None for full attention.
    """

    name: str
    everything: bool
    lora: LoRA | None
    extra: bool
    groups: int | None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Method":
        """Builds a method; refuses settings that are unknown, missing or in conflict."""
        settings = {"lora": None} | settings
        if settings["lora"] is not None:
            settings["lora"] = _of_settings("peft.lora", settings["lora"], LoRA)
        return _of_settings("peft", settings, cls)

    def __post_init__(self):
        check_flag("peft.everything", self.everything)
        check_flag("peft.extra", self.extra)
        if self.everything and self.lora is not None:
            raise ValueError(
                "peft.everything=true with peft.lora: fully trained weights need no low-rank "
                "updates; set peft.lora=null"
            )
        if self.groups is not None:
            check_integer("peft.groups", self.groups)


def _of_settings(owner: str, given: Any, cls: type) -> Any:
    check_arguments(owner, given, (field.name for field in fields(cls)))
    return cls(**given)


def adapt(
    model: TapeForCausalLM,
    method: Method,
    base: str,
    base_weights: str,
    frozen: str | None = None,
    length: int | None = None,
) -> TapeForCausalLM | PeftModel:
    """Enables the method's trainable parameters and records in the configuration: the method, the
    folder or hub name of the base, its hash or revision, and the storage of frozen weights. Groups
    divide sequences of `length` tokens, by default all that the model reads.

    Raises:
        ValueError: if nothing would train, or for groups that do not fit the training length.
    """
    if method.groups is not None:
        length = length or model.config.max_position_embeddings
        if length % (2 * method.groups):
            raise ValueError(
                f"peft.groups={method.groups}: length={length} must be a multiple of "
                f"{2 * method.groups}, so that groups can be shifted by half"
            )
        model.set_shifted_attention(length // method.groups)
    adaptation = {"base_model": base, "base_weights": base_weights, "method": asdict(method)}
    model.config.adaptation = adaptation | ({"frozen": frozen} if frozen else {})
    whole = {*EXTRA} if method.extra else set()
    for name in weights_of_encoding(model):
        whole.add("context" if ".context." in name else "position")
    if method.lora is not None:
        return _with_lora(model, method.lora, whole)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(method.everything or not whole.isdisjoint(name.split(".")))
    if not trainable(model):
        name = model.config.position["name"]
        raise ValueError(
            f"peft={method.name}: nothing would be trained: position {name!r} has no weights, and "
            "neither peft.lora nor peft.extra is set"
        )
    return model


def _with_lora(model: TapeForCausalLM, lora: LoRA, whole: set[str]) -> PeftModel:
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        # peft takes names that end so: the norms of queries and keys do not train.
        modules_to_save=sorted("model.norm" if name == "norm" else name for name in whole),
        # Tied embeddings train as one matrix.
        ensure_weight_tying=model.config.tie_word_embeddings and "embed_tokens" in whole,
    )
    with without_deprecations():
        return get_peft_model(model, config)


def check_frozen(frozen: str | None, method: Method | None, bf16: bool) -> None:
    """Refuses a storage of frozen weights, None or "bfloat16", that a run cannot have."""
    if frozen is None:
        return
    look_up("frozen", frozen, {BFLOAT16: BFLOAT16})
    if method is None:
        raise ValueError(f"frozen={frozen}: all weights are trained; set peft=..., or frozen=null")
    if not bf16:
        raise ValueError(
            f"frozen={frozen}, next to weights in float32, needs trainer.bf16=true; or use "
            "frozen=null"
        )


def cast_frozen(model: torch.nn.Module, frozen: str | None) -> None:
    """Casts trainable weights to float32, and frozen ones to bfloat16 if `frozen` says so."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
        elif frozen == BFLOAT16:
            parameter.data = parameter.data.bfloat16()


def weights_of_encoding(model: TapeForCausalLM) -> set[str]:
    """Returns the names of the encoding's own weights, those that do not train included."""
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, PositionModule)
        for name in module.state_dict()
    }


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Silences transformers' warnings about a name that peft uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing.* deprecated", FutureWarning)
        yield


def trainable(model: torch.nn.Module) -> dict[str, int]:
    """Returns the number of trainable weights by module, summed over layers."""
    wrapping = r"^base_model\.model\.|\.(default|modules_to_save|weight)(?=\.|$)"
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            counts[re.sub(r"\.\d+\.", ".*.", re.sub(wrapping, "", name))] += parameter.numel()
    return dict(counts)


def describe(model: torch.nn.Module) -> str:
    """Formats `trainable`, one line per module."""
    counts = trainable(model)
    lines = (f"  {name}  {count:,}" for name, count in counts.items())
    return "\n".join([f"{sum(counts.values()):,} weights train:", *lines])


def save_configuration(model: PeftModel, folder: Path) -> None:
    """Adds the decoder's configuration to a saved adapter, without peft's card (local paths)."""
    model.config.dtype = torch.float32  # dtype of the trained weights; the base is loaded in it too
    model.config.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def merged(model: TapeForCausalLM, folder: Path) -> TapeForCausalLM:
    """Returns the base model with the adapter of a folder, which must be of it, merged."""
    with without_deprecations():
        adapted = PeftModel.from_pretrained(model, folder)
    with safe_open(folder / ADAPTER, framework="pt") as file:
        different = file.keys() ^ get_peft_model_state_dict(adapted).keys()
    if different:
        raise ValueError(
            f"{folder}: the adapter does not match the decoder in its config.json, which alone has "
            f"or lacks {min(different)}"
        )
    return adapted.merge_and_unload().requires_grad_(True)
