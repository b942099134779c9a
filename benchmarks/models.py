"""Models with random weights to be measured: this package's decoder and transformers' Llama."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import modeling_llama

from tape import TapeConfig, TapeForCausalLM
from tape.analysis.cost import LLAMA, SHAPE, configuration
from tape.export.llama import llama_config
from tape.positions import ENCODINGS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
METHODS = [*ENCODINGS, "llama"]
BASE = {name: value for name, value in SHAPE.items() if name != "length"}  # the paper's model
SMALL = BASE | {"layers": 4, "hidden": 256, "heads": 4, "mlp": 1024, "vocabulary": 4096}
SHAPES = {
    "small": SMALL,
    "small_32k": SMALL | {"vocabulary": 32000},
    "base": BASE,
    "llama2_7b": {name: LLAMA[name] for name in BASE},
}
# Sequences and their length in a training step.
TOKENS = {"small": (8, 256), "small_32k": (1, 1024), "base": (1, 1024), "llama2_7b": (1, 8192)}


def decoder(config: TapeConfig, attention: str) -> TapeForCausalLM:
    """Returns a seeded decoder on the device, in float32. TAPE's own weights are perturbed: at zero
    it would be RoPE.

    Raises:
        ValueError: if this attention backend does not support the encoding.
    """
    config._attn_implementation = attention
    torch.manual_seed(0)
    with DEVICE:  # seven billion weights are drawn there in seconds
        model = TapeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".context." in name:
                parameter.add_(0.02 * torch.randn_like(parameter))
    return model.to(DEVICE)


def without_causal(config: LlamaConfig, **given: Any) -> Any:
    """transformers' masks, but none of a text without padding and cache."""
    causal = given["attention_mask"] is None and given["past_key_values"] is None
    if causal and config._attn_implementation == "sdpa":
        return None
    return create_causal_mask(config, **given)


def library_llama(model: TapeForCausalLM) -> LlamaForCausalLM:
    """Returns transformers' Llama with the weights and the backend of a decoder with RoPE.

    In a graph transformers would make a causal mask, which it leaves out elsewhere and which costs
    kernels their causal form; ours does not, and both get the same.
    """
    modeling_llama.create_causal_mask = without_causal
    config = llama_config(model.config)
    config._attn_implementation = model.config._attn_implementation
    with DEVICE:
        library = LlamaForCausalLM(config)
    library.load_state_dict(model.state_dict())
    return library.to(DEVICE)


def build(method: str, shape: str, attention: str, length: int) -> nn.Module:
    """Returns a model of SHAPES for sequences of `length` tokens.

    Args:
        method: an encoding, or `llama`: transformers' Llama with the weights of `rope`.
    """
    position = {"name": "rope" if method == "llama" else method}
    model = decoder(configuration(SHAPES[shape] | {"length": length}, position), attention)
    return library_llama(model) if method == "llama" else model


def random_tokens(model: nn.Module, batch: int, length: int) -> Tensor:
    """Returns ids of shape (batch, length) on the device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator).to(DEVICE)
