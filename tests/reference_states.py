"""Loops of references.py for what layers read from a token: probes, states of rotations, and mapped
distances."""

import torch
from torch import Tensor


def grape_probe(weights, config, layer: int, h: int, x: Tensor) -> Tensor:
    """p of a token and head: a projection, normalised to a mean square of 1."""
    width = config.position["width"]
    matrix = weights[f"model.layers.{layer}.context.probe.weight"]
    probe = matrix[h * width : (h + 1) * width] @ x
    return probe / (probe.pow(2).mean() + config.rms_norm_eps).sqrt()


def state_at(config, places: Tensor, ratios: Tensor | float = 1.0) -> Tensor:
    """(K, F, 2): cosine and sine of RoPE's phases at a place for each head, times `ratios`."""
    F, theta = config.head_dim // 2, config.position["theta"]
    powers = torch.tensor([theta ** (-f / F) for f in range(F)], dtype=places.dtype)
    phase = places[:, None] * powers * ratios
    phase = phase.expand(config.num_key_value_heads, F)
    return torch.stack((phase.cos(), phase.sin()), dim=-1)


def grape_m_state(weights, config, layer: int, read: list[Tensor], coordinate: int) -> Tensor:
    """(K, F, 2) of the last of these tokens, whose angle grows with each token before it."""
    prefix = f"model.layers.{layer}.context."
    place = torch.full((1,), coordinate, dtype=read[-1].dtype)
    if config.position["contextual"]:
        W, b = weights[prefix + "scale.weight"], weights[prefix + "scale.bias"]
        place = sum(((1 + (W @ x + b).exp()).log() for x in read[:-1]), torch.zeros_like(b))
    return state_at(config, place, weights[prefix + "log_ratio"].exp())


def gain_of(weights, layer: int, x: Tensor) -> Tensor:
    """(K,): what multiplies a token's queries and keys."""
    return 2 * torch.sigmoid(weights[f"model.layers.{layer}.context.gain.weight"] @ x)


def repo_state(weights, config, layer: int, x: Tensor, coordinate: int) -> Tensor:
    """(K, F, 2) of a token: RoPE's state at a place that a network reads from the token."""
    if layer < config.position["start"]:
        return state_at(config, torch.full((1,), coordinate, dtype=x.dtype))
    W1, W2, W3 = (
        weights[f"model.layers.{layer}.context.{name}.weight"] for name in ("gate", "up", "down")
    )
    gate = W1 @ x
    return state_at(config, W3 @ (gate * torch.sigmoid(gate) * (W2 @ x)))


def trained_distance(arguments: dict, i: int, j: int) -> float:
    """The distance of a query i and a key j <= i that each method of `extended` takes."""
    W, G, C, S = (arguments.get(name) for name in ("window", "group", "chunk", "offset"))
    match arguments["method"]:
        case "self_extend":
            return i - j if i - j < W else i // G - j // G + W - W // G
        case "rerope":
            return min(i - j, W)
        case "leaky_rerope":
            return i - j if i - j < W else W + (i - j - W) / G
        case "dca" if i // C == j // C:
            return i - j
        case "dca" if i // C == j // C + 1:
            return min(i % C + C, C + W - 1) - j % C
        case "dca":
            return C + W - 1 - j % C
        case "string":
            return i - j if i - j < S else i - j - S + W
