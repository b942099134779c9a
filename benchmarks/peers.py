"""Other implementations of encodings: transformers' Llama, attention of torch and x-transformers.

They have the weights and the outputs of this package (tests/test_workloads.py). transformers has a
whole decoder; the others have attention layers, measured without a cache.
"""

from __future__ import annotations

import importlib.metadata

import torch
from torch import Tensor, nn
from transformers import Cache

from benchmarks.models import DEVICE, library_llama
from benchmarks.workloads import MIDDLE, AttentionLayer, Load, last_call
from tape import TapeForCausalLM

NAMES = ("nope", "rope", "alibi", "t5")
BLOCKS = {"torch": ("sdpa",), "x-transformers": ("eager", "sdpa")}  # layers, by backend
PEERS = {"transformers": ("rope",), "torch": ("nope",), "x-transformers": NAMES}


def check(peer: str, work: str, backend: str) -> None:
    """Raises a ValueError for work that a peer does not do or kernels that are not alike, an
    ImportError without the package."""
    if peer == "transformers" and backend == "flex_attention" and DEVICE.type == "cpu":
        raise ValueError("transformers compiles flex_attention itself, which is not done here")
    if peer in BLOCKS:
        if work not in ("forward", "training"):
            raise ValueError(f"{peer} is compared without a cache")
        if backend not in BLOCKS[peer]:
            raise ValueError(f"{peer} has no {backend} to choose")
        if version(peer) is None:
            raise ImportError(f"{peer} is not installed (EXTRAS=peers bash script/setup.sh)")


def version(peer: str) -> str | None:
    """Returns the installed version; None without the package."""
    try:
        return importlib.metadata.version(peer)
    except importlib.metadata.PackageNotFoundError:
        return None


class TorchLayer(nn.Module):
    """`torch.nn.MultiheadAttention`, which has no positions."""

    def __init__(self, attention: nn.Module, heads: int, length: int):
        super().__init__()
        hidden = attention.q_proj.in_features
        self.attention = nn.MultiheadAttention(hidden, heads, bias=False, batch_first=True)
        weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        self.attention.load_state_dict(
            {"in_proj_weight": torch.cat(weights), "out_proj.weight": attention.o_proj.weight}
        )
        # torch refuses is_causal without the mask.
        self.mask = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)

    def forward(self, x_BTC: Tensor, cache: None) -> tuple[Tensor]:
        causal = {"attn_mask": self.mask, "is_causal": True}
        return self.attention(x_BTC, x_BTC, x_BTC, need_weights=False, **causal)[:1]


class XTransformersLayer(nn.Module):
    """`x_transformers.Attention` with the encoding as in its decoder."""

    def __init__(self, model: TapeForCausalLM, backend: str):
        super().__init__()
        from x_transformers import x_transformers as library

        config, ours = model.config, model.model.layers[MIDDLE].self_attn
        name, heads = config.position["name"], config.num_attention_heads
        about = {"dim_head": config.head_dim, "heads": heads, "flash": backend == "sdpa"}
        self.attention = library.Attention(config.hidden_size, causal=True, **about)
        self.rotary = self.bias = None
        if name == "rope":
            self.rotary = library.RotaryEmbedding(config.head_dim)
        elif name == "alibi":
            self.bias = library.AlibiPositionalBias(heads)
        elif name == "t5":
            self.bias = library.RelativePositionBias(1.0, causal=True, heads=heads)
            table = model.model.position.layers[MIDDLE].table.weight
            self.bias.relative_attention_bias.load_state_dict({"weight": table})
        q, k = ours.q_proj.weight, ours.k_proj.weight
        if name == "rope":  # rotates neighbouring channels, where ours rotates f and f + F
            q, k = (x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) for x in (q, k))
        weights = {"to_q": q, "to_k": k, "to_v": ours.v_proj.weight, "to_out": ours.o_proj.weight}
        self.attention.load_state_dict({f"{key}.weight": w for key, w in weights.items()})

    def forward(self, x_BTC: Tensor, cache: None) -> tuple[Tensor]:
        angles = None if self.rotary is None else self.rotary.forward_from_seq_len(x_BTC.shape[1])
        return (self.attention(x_BTC, rotary_pos_emb=angles, rel_pos=self.bias),)


def attention_layer(peer: str, model: TapeForCausalLM, load: Load) -> AttentionLayer:
    """Returns a peer's attention with the weights of the middle layer of three.

    Raises:
        ValueError: for grouped queries, except with transformers.
    """
    config = model.config
    if peer == "transformers":
        library = load.ready(library_llama(model))
        _, settings, cache = last_call(library, load)
        x = settings.pop("hidden_states").requires_grad_()
        del settings["past_key_values"]
        attention = library.model.layers[MIDDLE].self_attn

        def call(x: Tensor, cache: Cache | None) -> tuple[Tensor]:
            return attention(hidden_states=x, past_key_values=cache, **settings)[:1]

        return AttentionLayer(call, (x,), attention.parameters(), cache)
    if config.num_key_value_heads != config.num_attention_heads:
        raise ValueError(f"{peer} is compared with a key/value head per query head")
    (x, *_), _, _ = last_call(model, load)
    if peer == "torch":
        heads = config.num_attention_heads
        module = TorchLayer(model.model.layers[MIDDLE].self_attn, heads, load.length)
    else:
        module = XTransformersLayer(model, config._attn_implementation)
    module = module.to(x.device, model.dtype).train(model.training)
    return AttentionLayer(module, (x.requires_grad_(),), module.parameters())
