"""Timed work: forward passes, training steps, prompts and decoding, of a whole decoder or of one
attention layer in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer

from benchmarks.models import DEVICE, random_tokens
from tape import TapeConfig, TapeForCausalLM
from tape.model.cache import GrowingCache, GrowingLayer
from tape.positions.tape import TapeLayer

WORK = ("forward", "training", "prefill", "decoding")
MIDDLE = 1  # the measured layer of three: TAPE's state is updated before it and read after it


@dataclass(frozen=True)
class Load:
    """One of WORK, on random tokens.

    Attributes:
        length: tokens of each sequence; in decoding, of the filled cache.
        new: tokens that a whole decoder decodes.
        dtype: of the weights; in training of autocast, with weights in float32.
    """

    work: str
    batch: int
    length: int
    new: int
    dtype: torch.dtype
    compiled: bool

    def autocast(self) -> torch.autocast:
        mixed = self.work == "training" and self.dtype != torch.float32
        return torch.autocast(DEVICE.type, dtype=self.dtype, enabled=mixed)

    def ready(self, model: nn.Module) -> nn.Module:
        """Returns the module in the mode and dtype of this work."""
        if self.work == "training":
            return model.train()
        return model.eval().to(self.dtype)

    def compile(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the module, or compiles it for one shape in one graph."""
        if not self.compiled:
            return module
        # CUDA graphs, as transformers takes them for decoding into a static cache.
        graphs = DEVICE.type == "cuda" and self.work == "decoding"
        how = {"fullgraph": True, "dynamic": False, "mode": "reduce-overhead" if graphs else None}
        return torch.compile(module, **how)

    def cache(self, config: Any) -> Cache | None:
        """Returns an empty cache: static for compiled decoding, else that of `generate`."""
        if self.work in ("forward", "training"):
            return None
        if self.work == "decoding" and self.compiled:
            return StaticCache(config=config, max_cache_len=self.length + self.new)
        return GrowingCache() if isinstance(config, TapeConfig) else DynamicCache(config=config)


class AttentionLayer(NamedTuple):
    """call(*inputs, cache) returns a tuple of outputs. Inputs that depend on weights require a
    gradient."""

    call: Callable[..., tuple[Tensor | None, ...]]
    inputs: tuple[Tensor | None, ...]
    weights: Iterable[nn.Parameter]
    cache: Cache | None = None


def attention_layer(model: TapeForCausalLM, load: Load, update: bool = True) -> AttentionLayer:
    """Returns the attention of the middle layer of three, called as by its decoder, with its update
    of TAPE's state if `update`. Cosines and sines, ALiBi's matrix and masks are given, because all
    layers share them."""
    (x, e, _, inputs, _), _, cache = last_call(model, load)
    layer = model.model.layers[MIDDLE]
    attention, context = layer.self_attn, layer.context
    learned_state = isinstance(context, TapeLayer)
    mlp_out = torch.randn_like(x)
    for learned in (x, mlp_out, e) if learned_state else (x, mlp_out):
        learned.requires_grad_()

    def call(x: Tensor, e: Tensor | None, mlp_out: Tensor, cache: Cache | None):
        attended, attended_e, _ = attention(x, e, lambda: context, inputs, cache)
        if update and learned_state:
            return attended, context.next_state(e, attended_e, mlp_out)
        return attended, attended_e

    modules = (attention, model.model.position, context)
    weights = [weight for module in modules for weight in module.parameters()]
    return AttentionLayer(call, (x, e, mlp_out), weights, cache)


@torch.no_grad()
def last_call(model: nn.Module, load: Load) -> tuple[tuple[Any, ...], dict[str, Any], Cache | None]:
    """Returns the arguments of the middle layer's attention in a forward pass, in decoding for the
    first token after the prompt, and the cache."""
    calls = []
    attention = model.model.layers[MIDDLE].self_attn
    hook = attention.register_forward_pre_hook(
        lambda _, arguments, named: calls.append((arguments, named)), with_kwargs=True
    )
    tokens, cache = random_tokens(model, load.batch, load.length), load.cache(model.config)
    with load.autocast():
        model.model(tokens, past_key_values=cache, use_cache=cache is not None)
        if load.work == "decoding":
            model.model(tokens[:, :1], past_key_values=cache)
            rewind(cache.layers, 1)
    hook.remove()
    return *calls[-1], cache


def rewind(layers: list[CacheLayerMixin], tokens: int) -> None:
    """Removes the newest tokens from layers of a cache."""
    for layer in layers:
        if isinstance(layer, StaticLayer):
            layer.cumulative_length.sub_(tokens)
        else:
            layer.crop(-tokens)
        if isinstance(layer, GrowingLayer):  # the next tokens overwrite them
            layer.buffers[0].content, layer.buffers[1].content = layer.keys, layer.values


def of_layer(layer: AttentionLayer, load: Load, config: Any) -> Callable[[], None]:
    """Returns the work of an attention layer; decoding is one token."""
    _, inputs, weights, cache = layer
    call, learned = load.compile(layer.call), [x for x in (*inputs, *weights) if x is not None]
    grads: list[Tensor] = []

    def training() -> None:
        with load.autocast():
            outputs = [y for y in call(*inputs, None) if y is not None]
        if not grads:
            grads.extend(torch.randn_like(y) for y in outputs)
        torch.autograd.backward(outputs, grads)
        for x in learned:
            x.grad = None

    @torch.no_grad()
    def inference() -> None:
        if load.work == "decoding":
            call(*inputs, cache)
            rewind(cache.layers[MIDDLE : MIDDLE + 1], 1)
        else:
            call(*inputs, load.cache(config))

    return training if load.work == "training" else inference


def of_model(model: nn.Module, load: Load) -> Callable[[], None]:
    """Returns the work of a whole decoder, of this package or of transformers."""
    call, tokens = load.compile(model), random_tokens(model, load.batch, load.length)
    cache = load.cache(model.config) if load.work == "decoding" else None
    if cache is not None:
        with torch.no_grad():
            model(tokens, past_key_values=cache, logits_to_keep=1)

    loss_alone = {"skip_logits": True} if isinstance(model, TapeForCausalLM) else {}

    def training() -> None:
        with load.autocast():
            loss = call(tokens, labels=tokens, use_cache=False, **loss_alone).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def inference() -> None:
        if load.work == "forward":
            call(tokens, use_cache=False)
        elif load.work == "prefill":
            call(tokens, past_key_values=load.cache(model.config), logits_to_keep=1)
        else:
            newest = tokens[:, :1]
            for _ in range(load.new):
                newest = call(newest, past_key_values=cache).logits.argmax(-1)
            rewind(cache.layers, load.new)

    return training if load.work == "training" else inference
