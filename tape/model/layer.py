"""A decoder layer is two maps of the tokens X and their positional state E, X' = f(X, E) and
E' = g(X, E), which share the attention weights:

    a, attended E  =  attention(norm(X); queries and keys rotated by E, V and E averaged)
    m              =  mlp(norm(X + a))
    X'             =  X + a + m
    E'             =  g(E, attended E, m)

The encoding (`tape.positions`) defines E, what it does to queries, keys and scores, and g.
Parameter names are those of transformers' Llama.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from tape.attention.payload import Attended, Request, Values
from tape.model.cache import cached_extras, stored
from tape.model.configuration import TapeConfig
from tape.model.inputs import LayerInputs
from tape.model.options import AttentionSink, ScalableSoftmax, exclusive, warmed
from tape.positions.base import LayerPosition, WideLinear
from tape.positions.rotary import turned


class RMSNorm(LlamaRMSNorm):
    """transformers' RMSNorm, by torch's fused call where it rounds alike; float64 stays."""

    def forward(self, x: Tensor) -> Tensor:
        weight, eps = self.weight, self.variance_epsilon
        if x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64):
            return torch.rms_norm(x, weight.shape, weight, eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * wide.to(x.dtype)


def by_head(x_BTC: Tensor, D: int) -> Tensor:
    """Returns (B, heads, T, D)."""
    B, T, _ = x_BTC.shape
    if T == 1:  # in decoding one operation in place of three
        return x_BTC.view(B, -1, 1, D)
    return x_BTC.view(B, T, -1, D).transpose(1, 2)


class Attention(nn.Module):
    """Causal attention that averages the positional payload along with the values.

    Queries and keys may be normalised before the encoding prepares them (Qwen3), and queries scaled
    after it. A sink changes all averages; then exclusive attention and a gate (arXiv 2505.06708)
    those of the values.
    """

    def __init__(self, config: TapeConfig, copies: int):
        """The encoding makes `copies` query heads of each."""
        super().__init__()
        heads = copies * config.num_attention_heads
        self.head_dim, self.scaling = config.head_dim, config.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.query_temperature, self.qk_norm = config.query_temperature, config.qk_norm
        self.exclusive = config.exclusive_attention
        self.encoding_name = config.position["name"]
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        biased = config.attention_bias or config.qkv_bias
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=biased)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=biased)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=biased)
        self.o_proj = nn.Linear(copies * queries, config.hidden_size, bias=config.attention_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.sink = AttentionSink(heads) if config.attention_sink else None
        scalable, gated = config.scalable_softmax, config.gated_attention
        self.softmax = ScalableSoftmax(heads, scalable) if scalable else None
        self.output_gate = None
        if gated:
            self.output_gate = WideLinear(config.hidden_size, copies * queries, bias=False)

    def forward(
        self,
        x_BTC: Tensor,
        e: Tensor | None,
        context: Callable[[], LayerPosition],
        inputs: LayerInputs,
        cache: Cache | None,
    ) -> Attended:
        """Returns the output (B, T, C) as `values`, with the attended payload (B, H, T, P) and the
        weights. The `final` layer has no payload. `context` returns the encoding in this layer,
        which is no argument itself: accelerate would move a module, as it moves tensors.
        """
        encoding = context()
        tokens = inputs.tokens
        q = by_head(self.q_proj(x_BTC), self.head_dim)  # (B, H, T, D)
        k = by_head(self.k_proj(x_BTC), self.head_dim)  # (B, K, T, D)
        v = by_head(self.v_proj(x_BTC), self.head_dim)  # (B, K, T, D)
        if self.qk_norm:
            # Under autocast the norms are wider than the products.
            q, k = (norm(x).to(v.dtype) for norm, x in ((self.q_norm, q), (self.k_norm, k)))
        past, place = None, (cache, inputs.cache_layer_idx, self.encoding_name)
        if cache is not None and encoding.extras_width:
            past = cached_extras(*place, self.head_dim, encoding.extras_width)
        tokens = tokens._replace(x=x_BTC, e=e, past=past)
        q, k, extras, *e_of_values = encoding.prepare(q, k, tokens)
        if self.query_temperature is not None:
            q = warmed(q, tokens.positions.query, **self.query_temperature)
        sent = turned(v, *e_of_values) if e_of_values else v
        values = Values(sent, None if inputs.final else encoding.payload(e, v.dtype))
        if cache is not None:
            k, extras, values = stored(*place, k, extras, values)
        bias = encoding.bias(q, k, extras, tokens)
        if self.softmax is not None:
            q, bias = self.softmax(q, bias, inputs.visible)
        if bias is not None and bias.replaces_products:
            q, k = q[..., :0], k[..., :0]
        dropout = self.attention_dropout if self.training else 0.0
        needs_lse = encoding.needs_lse or self.sink is not None
        request = Request(q, k, values, inputs.mask, bias, self.scaling, dropout, needs_lse)
        *averages, lse = inputs.kernel(request)
        if encoding.needs_lse:  # returned weights change like the averages that they make
            averages = [None if x is None else encoding.finish(x, lse) for x in averages]
        if self.sink is not None:
            averages = [None if x is None else self.sink(x, lse) for x in averages]
        attended, attended_e, weights = averages
        if e_of_values:
            attended = turned(attended, *e_of_values, back=True)
        if self.exclusive:
            attended = exclusive(attended, v)
        attended = attended.transpose(1, 2).flatten(2)
        if self.output_gate is not None:
            attended = attended * self.output_gate(x_BTC).sigmoid().to(attended.dtype)
        return Attended(self.o_proj(attended), attended_e, weights)


class MLP(LlamaMLP):
    """The MLP of a Llama, which spares tokens that no prediction depends on."""

    def forward(self, x_BTC: Tensor, rows: Tensor | None = None) -> Tensor:
        """Returns the output (B, T, C), 0 at tokens that are not among `rows` (N,) of (B, T)."""
        if rows is None:
            return super().forward(x_BTC)
        flat = x_BTC.flatten(0, 1)
        out_NC = super().forward(flat.index_select(0, rows))
        return out_NC.new_zeros(flat.shape).index_copy(0, rows, out_NC).view(x_BTC.shape)


class DecoderLayer(GradientCheckpointingLayer):
    """One layer: x' = f(x, e), e' = g(x, e). The MLP does not read E, so g is called once, after
    it.

    Attributes:
        number: place among the layers; not named layer_idx, which peft writes in copies of layers.
        context: the encoding in this layer; its name is part of the keys of checkpoints.
    """

    def __init__(self, config: TapeConfig, number: int, context: LayerPosition):
        super().__init__()
        self.number = number
        self.self_attn = Attention(config, context.copies)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.context = context

    def forward(
        self, x_BTC: Tensor, e: Tensor | None, *, inputs: LayerInputs, past_key_values: Cache | None
    ) -> tuple[Tensor, Tensor | None]:
        """Computes x' and e'; the `final` layer returns e as it is."""
        normed = self.input_layernorm(x_BTC)
        attended = self.self_attn(normed, e, lambda: self.context, inputs, past_key_values)
        x_BTC = x_BTC + attended.values
        mlp_out = self.mlp(self.post_attention_layernorm(x_BTC), inputs.rows)
        if not inputs.final:
            e = self.context.next_state(e, attended.payload, mlp_out)
        return x_BTC + mlp_out, e
