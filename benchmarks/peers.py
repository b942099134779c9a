"""Other implementations of an attention layer: transformers' Llama, torch and x-transformers.

They have the weights and the outputs of this package (tests/test_workloads.py).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.workloads import (
    DEVICE,
    MIDDLE,
    WITHOUT,
    AttentionLayer,
    Load,
    attention_layer,
    last_call,
    library_llama,
    of_layer,
)
from tape import TapeForCausalLM

Layer = Callable[[Tensor], tuple[Tensor]]
PEERS = {
    "transformers": ("rope",),
    "torch": ("nope",),
    "x-transformers": ("nope", "rope", "alibi", "t5"),
}
BACKENDS = {"torch": ("sdpa",), "x-transformers": ("eager", "sdpa")}
METHODS = [f"{encoding}, {peer}" for peer, encodings in PEERS.items() for encoding in encodings]


def of_attention(load: Load, method: str) -> Callable[[], None]:
    """Returns the work of an attention layer.

    Args:
        method: an encoding; `tape` also without the update of its state; one of METHODS.

    Raises:
        ValueError: if there is no such work of a peer, or its kernels are others.
        ImportError: without the peer's package.
    """
    encoding, _, peer = method.removesuffix(WITHOUT).partition(", ")
    if peer == "transformers" and load.backend == "flex_attention" and DEVICE.type == "cpu":
        raise ValueError("transformers compiles flex_attention itself, which is not done here")
    if peer and load.backend not in BACKENDS.get(peer, (load.backend,)):
        raise ValueError(f"{peer} has no {load.backend} to choose")
    if peer and version(peer) is None:
        raise ImportError(f"{peer} is not installed (EXTRAS=peers bash script/setup.sh)")
    model = load.ready(load.decoder(encoding, layers=3))
    if peer:
        layer = peer_layer(peer, model, load)
    else:
        layer = attention_layer(model, load, update=not method.endswith(WITHOUT))
    return of_layer(layer, load)


def version(peer: str) -> str | None:
    """Returns the installed version; None without the package."""
    try:
        return importlib.metadata.version(peer)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_layer(model: TapeForCausalLM, load: Load) -> tuple[nn.Module, Layer]:
    """Returns `torch.nn.MultiheadAttention`, which has no positions."""
    ours, config = model.model.layers[MIDDLE].self_attn, model.config
    module = nn.MultiheadAttention(
        config.hidden_size, config.num_attention_heads, bias=False, batch_first=True
    )
    weights = [ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]
    module.load_state_dict(
        {"in_proj_weight": torch.cat(weights), "out_proj.weight": ours.o_proj.weight}
    )
    # torch refuses is_causal without the mask.
    mask = torch.ones(load.length, load.length, dtype=torch.bool, device=DEVICE).triu(1)
    causal = {"attn_mask": mask, "is_causal": True}
    return module, lambda x_BTC: module(x_BTC, x_BTC, x_BTC, need_weights=False, **causal)[:1]


def x_transformers_layer(model: TapeForCausalLM, load: Load) -> tuple[nn.Module, Layer]:
    """Returns `x_transformers.Attention` with the encoding as in its decoder."""
    from x_transformers import x_transformers as library

    config, ours = model.config, model.model.layers[MIDDLE].self_attn
    name, heads = config.position["name"], config.num_attention_heads
    about = {"dim_head": config.head_dim, "heads": heads, "flash": load.backend == "sdpa"}
    module = library.Attention(config.hidden_size, causal=True, **about)
    q, k = ours.q_proj.weight, ours.k_proj.weight
    rotary = bias = None
    if name == "rope":  # rotates neighbouring channels, where ours rotates f and f + F
        rotary = library.RotaryEmbedding(config.head_dim)
        q, k = (x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) for x in (q, k))
    elif name == "alibi":
        bias = library.AlibiPositionalBias(heads)
    elif name == "t5":
        bias = library.RelativePositionBias(1.0, causal=True, heads=heads)
        table = model.model.position.layers[MIDDLE].table.weight
        bias.relative_attention_bias.load_state_dict({"weight": table})
    weights = {"to_q": q, "to_k": k, "to_v": ours.v_proj.weight, "to_out": ours.o_proj.weight}
    module.load_state_dict({f"{key}.weight": w for key, w in weights.items()})

    def call(x_BTC: Tensor) -> tuple[Tensor]:
        angles = None if rotary is None else rotary.forward_from_seq_len(x_BTC.shape[1])
        return (module(x_BTC, rotary_pos_emb=angles, rel_pos=bias),)

    return nn.ModuleList([x for x in (module, rotary, bias) if x is not None]), call


def peer_layer(peer: str, model: TapeForCausalLM, load: Load) -> AttentionLayer:
    """Returns a peer's attention with the weights of the middle layer of three."""
    if peer == "transformers":
        library = load.ready(library_llama(model))
        _, settings = last_call(library, load)
        x = settings.pop("hidden_states").requires_grad_()
        module = library.model.layers[MIDDLE].self_attn
        return AttentionLayer(
            lambda x: module(hidden_states=x, **settings)[:1], (x,), module.parameters()
        )
    (x, *_), _ = last_call(model, load)
    module, call = (torch_layer if peer == "torch" else x_transformers_layer)(model, load)
    module.to(x.device, model.dtype).train(model.training)
    return AttentionLayer(call, (x.requires_grad_(),), module.parameters())
