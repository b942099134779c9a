"""Timed work on models with random weights: training steps, prompts and decoding of a decoder,
passes of one attention layer in it, and steps of adapters; beside those of transformers' Llama."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.cache_utils import CacheLayerMixin, StaticLayer
from transformers.masking_utils import create_causal_mask
from transformers.models.llama import modeling_llama

from tape.analysis.cost import configuration
from tape.analysis.shapes import LLAMA, SHAPES, WITHOUT
from tape.encodings.tape import TapeLayer
from tape.export.family import llama_config
from tape.model.adapters import BFLOAT16, Method, adapt, cast_frozen
from tape.model.cache import GrowingCache, GrowingLayer
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MIDDLE = 1  # the measured layer of three: TAPE's state is updated before it and read after it
# Sequences of a training step and their length.
TOKENS = {
    "tiny": (4, 32),
    "small": (8, 256),
    "base": (1, 1024),
    "smollm2": (1, 2048),
    "llama2_7b": (1, 8192),
}


@dataclass(frozen=True)
class Load:
    """Work on random tokens."""

    work: str  # "forward", "training", "prefill" or "decoding"
    shape: str  # one of SHAPES
    backend: str  # of attention
    batch: int
    length: int  # tokens of each sequence; in decoding, of the filled cache
    new: int = 1  # tokens that are decoded
    dtype: torch.dtype = torch.float32  # of the weights; in training of autocast, weights float32
    compiled: bool = False
    checkpointing: bool = False  # whether training recomputes activations
    case: str = "train_step"  # the one of CASES that it belongs to

    def decoder(self, encoding: str, **changes: int) -> TapeForCausalLM:
        """Returns a seeded decoder on the device, for as many tokens as there will be, in float32;
        `changes` are of the shape. TAPE's own weights are perturbed: at zero it would be RoPE.
        Raises a ValueError if the attention backend does not support the encoding."""
        tokens = self.length + self.new * (self.work == "decoding")
        shape = SHAPES[self.shape] | {"length": tokens} | changes
        config = configuration(shape, {"name": encoding})
        config._attn_implementation = self.backend
        torch.manual_seed(0)
        with DEVICE:  # seven billion weights are drawn there in seconds
            model = TapeForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".context." in name:
                    parameter.add_(0.02 * torch.randn_like(parameter))
        return model.to(DEVICE)

    def autocast(self) -> torch.autocast:
        mixed = self.work == "training" and self.dtype != torch.float32
        return torch.autocast(DEVICE.type, dtype=self.dtype, enabled=mixed)

    def ready(self, model: nn.Module) -> nn.Module:
        """Returns the module in the mode and dtype of this work."""
        if self.work != "training":
            return model.eval().to(self.dtype)
        if self.checkpointing:
            model.activation_checkpointing_enable()
        return model.train()

    def compile(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the module, or compiles it for one shape in one graph."""
        if not self.compiled:
            return module
        # CUDA graphs, as transformers takes them for decoding into a static cache.
        graphs = DEVICE.type == "cuda" and self.work == "decoding"
        how = {"fullgraph": True, "dynamic": False, "mode": "reduce-overhead" if graphs else None}
        return torch.compile(module, **how)

    def cache(self, config: Any) -> Cache:
        """Returns an empty cache: static for compiled decoding, else that of `generate`."""
        if self.work == "decoding" and self.compiled:
            return StaticCache(config=config, max_cache_len=self.length + self.new)
        return GrowingCache() if isinstance(config, TapeConfig) else DynamicCache(config=config)

    def tokens(self, model: nn.Module) -> Tensor:
        """Returns ids of shape (batch, length) on the device."""
        generator, shape = torch.Generator().manual_seed(0), (self.batch, self.length)
        return torch.randint(model.config.vocab_size, shape, generator=generator).to(DEVICE)


def without_causal(config: LlamaConfig, **given: Any) -> Any:
    """transformers' masks, but none of a text without padding and cache."""
    causal = given["attention_mask"] is None and given["past_key_values"] is None
    if causal and config._attn_implementation == "sdpa":
        return None
    return create_causal_mask(config, **given)


def library_llama(model: TapeForCausalLM) -> LlamaForCausalLM:
    """Returns transformers' Llama with the weights and the backend of a decoder with RoPE. In a
    graph it would make a causal mask, which it leaves out elsewhere and which costs kernels their
    causal form; ours does not, and both get the same."""
    modeling_llama.create_causal_mask = without_causal
    config = llama_config(model.config)
    config._attn_implementation = model.config._attn_implementation
    with DEVICE:
        library = LlamaForCausalLM(config)
    library.load_state_dict(model.state_dict())
    return library.to(DEVICE)


def training_step(
    load: Load, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Callable[[], None]:
    """Returns a forward and backward pass with the loss, and a step of the optimizer if given."""
    call, tokens = load.compile(model), load.tokens(model)
    loss_alone = {} if type(model) is LlamaForCausalLM else {"skip_logits": True}

    def step() -> None:
        with load.autocast():
            loss = call(input_ids=tokens, labels=tokens, use_cache=False, **loss_alone).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


def of_decoder(load: Load, method: str) -> Callable[[], None]:
    """Returns the work of a whole decoder with an encoding, or of `llama`: transformers' Llama with
    the weights of `rope`."""
    llama = method == LLAMA
    model = load.ready(library_llama(load.decoder("rope")) if llama else load.decoder(method))
    if load.work == "training":
        return training_step(load, model)
    call, tokens, cache = load.compile(model), load.tokens(model), load.cache(model.config)

    @torch.no_grad()
    def prefill() -> None:
        call(tokens, past_key_values=load.cache(model.config), logits_to_keep=1)

    @torch.no_grad()
    def decoding() -> None:
        newest = tokens[:, :1]
        for _ in range(load.new):
            newest = call(newest, past_key_values=cache).logits.argmax(-1)
        rewind(cache.layers, load.new)

    if load.work == "prefill":
        return prefill
    with torch.no_grad():
        model(tokens, past_key_values=cache, logits_to_keep=1)
    return decoding


def of_adapter(load: Load, method: str, settings: dict[str, dict[str, Any]]) -> Callable[[], None]:
    """Returns a training step with AdamW on a base model adapted as the settings of peft=METHOD
    say; in a short dtype the frozen weights are bfloat16."""
    base = load.decoder("tape" if method.startswith("adape") else "rope")
    model = adapt(base, Method.of(settings[method]), "base", "")
    cast_frozen(load.ready(model), None if load.dtype == torch.float32 else BFLOAT16)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return training_step(load, model, torch.optim.AdamW(trained, 1e-5))


def rewind(layers: list[CacheLayerMixin], tokens: int) -> None:
    """Removes the newest tokens from layers of a cache."""
    for layer in layers:
        if isinstance(layer, StaticLayer):
            layer.cumulative_length.sub_(tokens)
        else:
            layer.crop(-tokens)
        if isinstance(layer, GrowingLayer):  # the next tokens overwrite them
            layer.buffers[0].content, layer.buffers[1].content = layer.keys, layer.values


# A call, its inputs, which require a gradient if they depend on weights, and its weights.
AttentionLayer = tuple[Callable[..., Any], tuple[Tensor | None, ...], list[nn.Parameter]]


def attention_layer(model: TapeForCausalLM, load: Load, update: bool = True) -> AttentionLayer:
    """Returns the attention of the middle layer of three, called as by its decoder, with its update
    of TAPE's state if `update`. Cosines and sines, ALiBi's matrix and masks are given, because all
    layers share them."""
    (x, e, _, inputs, _), _ = last_call(model, load)
    layer = model.model.layers[MIDDLE]
    attention, context = layer.self_attn, layer.context
    learned_state = isinstance(context, TapeLayer)
    mlp_out = torch.randn_like(x)
    for learned in (x, mlp_out, e) if learned_state else (x, mlp_out):
        learned.requires_grad_()

    def call(x: Tensor, e: Tensor | None, mlp_out: Tensor) -> tuple[Tensor | None, ...]:
        attended = attention(x, e, lambda: context, inputs, None)
        if update and learned_state:
            return attended.values, context.next_state(e, attended.payload, mlp_out)
        return attended.values, attended.payload

    modules = (attention, model.model.position, context)
    weights = [weight for module in modules for weight in module.parameters()]
    return call, (x, e, mlp_out), weights


@torch.no_grad()
def last_call(model: nn.Module, load: Load) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of the middle layer's attention in a forward pass."""
    calls = []
    attention = model.model.layers[MIDDLE].self_attn
    hook = attention.register_forward_pre_hook(
        lambda _, *given: calls.append(given), with_kwargs=True
    )
    with load.autocast():
        model.model(load.tokens(model), use_cache=False)
    hook.remove()
    return calls[-1]


def of_attention(load: Load, method: str) -> Callable[[], None]:
    """Returns the work of an attention layer with an encoding, with `tape` also without the update
    of its state; of `llama`: that of transformers with the weights of `rope`."""
    encoding = "rope" if method == LLAMA else method.removesuffix(WITHOUT)
    model = load.ready(load.decoder(encoding, layers=3))
    if method == LLAMA:
        layer, inputs, weights = llama_layer(model, load)
    else:
        layer, inputs, weights = attention_layer(model, load, not method.endswith(WITHOUT))
    call = load.compile(layer)
    learned = [x for x in (*inputs, *weights) if x is not None and x.requires_grad]

    def training() -> None:
        with load.autocast():
            outputs = [y for y in call(*inputs) if y is not None]
        torch.autograd.grad(outputs, learned, outputs, allow_unused=True)

    return training if load.work == "training" else torch.no_grad()(lambda: call(*inputs))


def llama_layer(model: TapeForCausalLM, load: Load) -> AttentionLayer:
    """Returns the attention of transformers' Llama with the weights of the middle layer."""
    llama = load.ready(library_llama(model))
    _, settings = last_call(llama, load)
    x, attention = settings.pop("hidden_states"), llama.model.layers[MIDDLE].self_attn

    def call(x: Tensor) -> tuple[Tensor]:
        return attention(hidden_states=x, **settings)[:1]

    return call, (x.requires_grad_(),), [*attention.parameters()]


CASES = {  # what sets up a method of a load, and the work of these
    "layer": (of_attention, ("forward", "training")),
    "train_step": (of_decoder, ("training",)),
    "decode": (of_decoder, ("prefill", "decoding")),
    "adapters": (of_adapter, ("training",)),
}
