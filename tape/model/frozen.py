"""Storage of a base model's frozen weights: float32 (null), bfloat16 or quantized. Trainable
weights are float32."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from tape.model.adapters import BFLOAT16, Method
from tape.validation import look_up

QUANTIZED = {
    "int8": {"load_in_8bit": True},  # LLM.int8(), Dettmers et al. 2022, arXiv 2208.07339
    "nf4": {  # QLoRA, Dettmers et al. 2023, arXiv 2305.14314
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.bfloat16,
    },
}
NAMES = {name: name for name in (BFLOAT16, *QUANTIZED)}


def check_frozen(frozen: str | None, method: Method | None, bf16: bool) -> None:
    """Raises a ValueError unless a run can store its frozen weights this way.

    Args:
        method: how the base is adapted; None if all weights train or there is no base.
        bf16: whether the run computes in bfloat16.
    """
    if frozen is None:
        return
    look_up("frozen", frozen, NAMES)
    if method is None:
        raise ValueError(f"frozen={frozen}: all weights are trained; set peft=..., or frozen=null")
    if not bf16:
        raise ValueError(
            f"frozen={frozen}, next to weights in float32, needs trainer.bf16=true; or use "
            "frozen=null"
        )
    if frozen not in QUANTIZED:
        return
    if method.lora is None:
        raise ValueError(
            f"frozen={frozen} with peft={method.name}: a quantized base is adapted by LoRA only, "
            f"because its checkpoints leave the base out; use frozen=bfloat16"
        )
    if not torch.cuda.is_available() or find_spec("bitsandbytes") is None:
        missing = "CUDA device" if not torch.cuda.is_available() else "package bitsandbytes"
        raise ValueError(f"frozen={frozen}: there is no {missing}; use frozen=bfloat16")


def loading(frozen: str | None) -> dict[str, Any]:
    """Returns arguments of `from_pretrained` that load trainable weights without rounding them."""
    if frozen in QUANTIZED:
        # The encoding's weights train. Patterns match from the start of a module's name.
        skipped = ["lm_head", r".*\.position", r".*\.context"]
        config = BitsAndBytesConfig(llm_int8_skip_modules=skipped, **QUANTIZED[frozen])
        return {
            "dtype": torch.float32,
            "quantization_config": config,
            "device_map": {"": torch.cuda.current_device()},
        }
    return {"dtype": "auto" if frozen == BFLOAT16 else torch.float32}


def cast_frozen(model: nn.Module, frozen: str | None) -> None:
    """Casts trainable weights to float32 and frozen ones to bfloat16 if `frozen` says so."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
        elif frozen == BFLOAT16:
            parameter.data = parameter.data.bfloat16()
