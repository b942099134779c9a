"""Decoders of transformers that this one computes: their configurations as ours, and back.

The names of the weights are the same. What the decoder cannot express is refused by the field that
stands in the way. Granite multiplies embeddings, scores, sublayers and logits by numbers; these go
into the weights when they are loaded (`fold`).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tape.positions.schedules import OF_A_LENGTH, ORIGINAL, kind_of

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite")
WRITTEN = FAMILIES[:-1]  # Granite's are written as a Llama, with folded weights
# Fields that all of them have.
SHARED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act")
SHARED += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
SHARED += ("rope_parameters", "tie_word_embeddings", "attention_dropout", "initializer_range")
SHARED += ("use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "dtype")
SHARED += ("transformers_version",)
BIASES = ("attention_bias", "mlp_bias")  # of some
FULL, SLIDING = "full_attention", "sliding_attention"  # layer_types
# What other families compute, by their model_type or its beginning: the field that says so, and it.
GEMMA = ("rms_norm_eps", "its norms multiply by 1 + w")
OTHERS = {
    "gemma3n": ("altup_num_inputs", "several streams of states"),
    "gemma": GEMMA,
    "vaultgemma": GEMMA,
    "gpt_neox": ("use_parallel_residual", "attention and an MLP without a gate, side by side"),
    "gptj": ("rotary_dim", "attention and MLP side by side"),
    "phi": ("hidden_act", "attention and MLP side by side, or fused weights"),
    "phi3": ("partial_rotary_factor", "fused weights (qkv_proj, gate_up_proj)"),
    "gpt2": ("n_positions", "learned positions, and an MLP without a gate"),
    "opt": ("do_layer_norm_before", "learned positions, and an MLP without a gate"),
    "bloom": ("layer_norm_epsilon", "LayerNorm, and an MLP without a gate"),
    "falcon": ("parallel_attn", "attention and MLP side by side"),
    "starcoder2": ("norm_epsilon", "LayerNorm, and an MLP without a gate"),
    "cohere": ("logit_scale", "attention and MLP side by side"),
    "olmo": ("rms_norm_eps", "norms after attention and MLP, or without weights"),
    "ministral3": ("rope_parameters.llama_4_scaling_beta", "queries that grow with the position"),
    "qwen3_5": ("layer_types", "linear attention"),
    "qwen3_next": ("layer_types", "linear attention"),
    "mamba": ("state_size", "a state-space model"),
    "deepseek_v": ("kv_lora_rank", "latent attention"),
    "gpt_oss": ("num_local_experts", "experts"),
}
# Fields of other configurations, by which the rest are refused.
TELLING = {
    "text_config": "text and other media",
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "kv_lora_rank": "latent attention",
    "parallel_attn": "attention and MLP side by side",
    "use_parallel_residual": "attention and MLP side by side",
    "linear_num_key_heads": "linear attention",
    "partial_rotary_factor": "a share of rotated channels",
    "layer_norm_eps": "LayerNorm",
    "is_encoder_decoder": "an encoder",
}


def read(saved: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Returns the fields of our configuration for the saved one of a family in `FAMILIES`, other
    than llama. Raises a ValueError for another one, and for what the decoder cannot express."""
    family = saved.get("model_type")
    if family not in FAMILIES:
        raise ValueError(refusal(saved, source))
    config = CONFIG_MAPPING[family](**{k: x for k, x in saved.items() if k != "model_type"})
    fields = {name: getattr(config, name) for name in SHARED}
    fields |= {name: getattr(config, name) for name in BIASES if hasattr(config, name)}
    for name in ("quantization_config", "transformers_version"):
        if name in saved:
            fields[name] = saved[name]
    if fields["transformers_version"] is None:  # it may have fields of other programs
        fields["transformers_version"] = "5"
    width = config.hidden_size // config.num_attention_heads
    fields["head_dim"] = getattr(config, "head_dim", None) or width
    fields |= {"qkv_bias": family == "qwen2", "qk_norm": family == "qwen3"}
    fields |= layout(rotated(config), windows(config, source))
    config.standardize_rope_params()  # the original length may stand beside the schedule
    rope = fields["rope_parameters"] = dict(config.rope_parameters)
    settle_rope(rope, config.max_position_embeddings)
    if family == "granite":
        fields["_multipliers"] = {
            "embedding": config.embedding_multiplier,
            "scores": config.attention_multiplier * fields["head_dim"] ** 0.5,
            "residual": config.residual_multiplier,
            "logits": 1 / config.logits_scaling,
        }
    return fields


def refusal(saved: Mapping[str, Any], source: str) -> str:
    """Returns the message for a family that is not read: the field that stands in the way."""
    family = str(saved.get("model_type"))
    names = [name for name in OTHERS if family.startswith(name)]
    found = OTHERS[max(names, key=len)] if names else None
    if found is None:
        found = next(((name, what) for name, what in TELLING.items() if saved.get(name)), None)
    allowed = ", ".join(map(repr, ("tape", *FAMILIES)))
    return (
        f"{source} is a checkpoint of model_type {family!r}"
        + (f", with {found[0]} ({found[1]}), which this decoder does not compute" if found else "")
        + f"; allowed: {allowed}"
    )


def settle_rope(rope: dict[str, Any], length: int) -> None:
    """Completes a schedule of frequencies as these models compute it: they ignore a share of
    rotated channels, and schedules refer to the length in the configuration."""
    if kind_of(rope) == "default":
        rope.pop("partial_rotary_factor", None)
    elif kind_of(rope) in (*OF_A_LENGTH, "llama3"):
        rope.setdefault(ORIGINAL, length)  # whatever length it is loaded with


def rotated(config: PreTrainedConfig) -> list[bool]:
    """Returns for each layer whether it has RoPE; the others have no positions."""
    if config.model_type != "smollm3":  # others ignore the field
        return [True] * config.num_hidden_layers
    return [bool(x) for x in config.no_rope_layers]


def windows(config: PreTrainedConfig, source: str) -> list[int | None]:
    """Returns the window of each layer, None for all tokens before."""
    window = None if config.model_type == "granite" else getattr(config, "sliding_window", None)
    if config.model_type in ("mistral", "granite"):  # they ignore layer_types
        return [window] * config.num_hidden_layers
    types = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
    if others := sorted({*types} - {FULL, SLIDING}):
        raise ValueError(
            f"{source}: layer_types has {others[0]!r}; allowed: {FULL!r} and {SLIDING!r}"
        )
    if SLIDING in types and not config.use_sliding_window:
        raise ValueError(
            f"{source}: layer_types has {SLIDING!r} with use_sliding_window=false, of which "
            "transformers' attention backends follow one or the other; correct config.json"
        )
    return [window if kind == SLIDING else None for kind in types]


def layout(rotated: list[bool], windows: list[int | None]) -> dict[str, Any]:
    """Returns `position` and `sliding_window`: RoPE, or the shortest mixture that repeats of RoPE
    and layers without positions, with their windows."""
    alike = len({*windows}) == 1
    pattern: list[Any] = [{"name": "rope" if has else "nope"} for has in rotated]
    if not alike:
        pattern = [entry | {"window": w} for entry, w in zip(pattern, windows, strict=True)]
    count = len(pattern)
    period = next(n for n in range(1, count + 1) if pattern == (pattern[:n] * count)[:count])
    position = {"name": "mixed", "pattern": pattern[:period]}
    plain = period == 1 and alike
    return {
        "position": pattern[0] if plain else position,
        "sliding_window": windows[0] if alike else None,
    }


def write(
    family: str,
    config: PreTrainedConfig,
    rope: dict[str, Any],
    rotated: list[bool],
    windows: list[int | None],
) -> PreTrainedConfig:
    """Returns the configuration of a family for ours, whose layers are `rotated` and have
    `windows`; `read` says what of it the family could not express."""
    fields = {name: getattr(config, name) for name in (*SHARED, *BIASES, "head_dim")}
    fields |= {"rope_parameters": dict(rope), "architectures": None}
    kinds = [FULL if window is None else SLIDING for window in windows]
    window = next((window for window in windows if window is not None), None)
    if family == "mistral":
        fields["sliding_window"] = window
    elif family != "llama":
        fields |= {"sliding_window": window, "use_sliding_window": window is not None}
        fields |= {"layer_types": kinds, "max_window_layers": len(windows)}
    if family == "smollm3":
        fields["no_rope_layers"] = [int(is_rotated) for is_rotated in rotated]
    cls = CONFIG_MAPPING[family]
    known = {*cls.__dataclass_fields__}
    written = cls(**{name: value for name, value in fields.items() if name in known})
    written.architectures = [cls.__name__.removesuffix("Config") + "ForCausalLM"]
    return written


@torch.no_grad()
def fold(model: nn.Module, multipliers: Mapping[str, float]) -> None:
    """Multiplies weights so that the plain decoder computes what Granite does with its multipliers.
    Tied embeddings stay tied: the last norm makes up for theirs.

    Raises:
        ValueError: if the dtype would round the products.
    """
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    last = multipliers["logits"] / (multipliers["embedding"] if tied else 1)
    factors = {
        "embed_tokens": multipliers["embedding"],
        "q_proj": multipliers["scores"],
        "o_proj": multipliers["residual"],
        "down_proj": multipliers["residual"],
        "norm": last,
    }
    for name, weight in model.named_parameters():
        factor = factors.get(name.split(".")[-2], 1)
        product = weight * factor
        if weight.element_size() < 4 and not torch.equal(
            product.double(), weight.double() * factor
        ):
            raise ValueError(
                f"Granite's multipliers {dict(multipliers)} cannot be part of {name} in "
                f"{weight.dtype} without rounding: load the model in float32"
            )
        weight.copy_(product)
