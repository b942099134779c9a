"""Decoders with random weights, to be measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from tape import TapeConfig, TapeForCausalLM
from tape.analysis.measuring import DEVICE
from tape.export.llama import llama_config


def decoder(config: TapeConfig, attention: str) -> TapeForCausalLM:
    """A seeded decoder on the device, in float32. TAPE's own weights are perturbed: at zero it
    would be RoPE.

    Raises:
        ValueError: if this attention implementation cannot carry out the encoding.
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


def library_llama(model: TapeForCausalLM) -> LlamaForCausalLM:
    """The library's Llama with the weights, and the attention implementation, of one with RoPE."""
    config = llama_config(model.config)
    config._attn_implementation = model.config._attn_implementation
    with DEVICE:
        library = LlamaForCausalLM(config)
    library.load_state_dict(model.state_dict())
    return library.to(DEVICE)


def random_tokens(model: nn.Module, batch: int, length: int) -> Tensor:
    """(batch, length) on the device"""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator).to(DEVICE)
