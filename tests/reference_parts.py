"""Loops of references.py for single encodings: what layers read from tokens, states of rotations,
and products."""

import math

import torch
from torch import Tensor


def inside(config, layer: int) -> str:
    """The prefix of an encoding's weights, beside which FoX's may be."""
    gated = config.position.get("gate") or config.position.get("scalar")
    return f"model.layers.{layer}.context." + "inner." * bool(gated)


def convolved(weights, config, layer: int, read: list[Tensor]) -> Tensor:
    """The channels of the last of these tokens after the convolution over the last of them."""
    prefix = inside(config, layer) + "convolution."
    W1, W2, taps = (weights[prefix + name] for name in ("down.weight", "up.weight", "taps"))
    inputs = [W2 @ (W1 @ x) for x in read[::-1]]
    return sum(taps[:, n] * x for n, x in enumerate(inputs[: config.position["kernel"]]))


def selective_state(weights, config, layer: int, read: list[Tensor], _: int) -> Tensor:
    """(K, F, 2) of the last of these tokens: cosine and sine of the sum of its phases so far."""
    K, F = config.num_key_value_heads, config.head_dim // 2
    heads = [x.view(config.num_attention_heads, -1) for x in read]
    unit = [torch.cat([head / head.norm() for head in of_token]) for of_token in heads]
    total = sum(convolved(weights, config, layer, unit[: t + 1]) for t in range(len(unit)))
    tau = [config.position["theta"] ** (-2 * f / config.head_dim) for f in range(F)]
    phase = total.view(K, F) * torch.tensor(tau, dtype=total.dtype)
    return torch.stack((phase.cos(), phase.sin()), dim=-1)


def path_maps(weights, config, layer: int, read: list[Tensor]) -> tuple[Tensor, Tensor]:
    """w (K, D) and beta (K,) of the last of these tokens, for the maps of the tokens after j up to
    i. So are those of flash-linear-attention's naive form (pull request 746,
    fla/ops/path_attn/naive.py)."""
    prefix = inside(config, layer) + "gate."
    w = convolved(weights, config, layer, read).view(config.num_key_value_heads, -1)
    logit = weights[prefix + "weight"] @ read[-1] + weights[prefix + "bias"]
    return torch.stack([vector / vector.norm() for vector in w]), 2 * torch.sigmoid(logit)


def tape_update(weights, config, layer: int, e: Tensor, average: Tensor, m: Tensor) -> Tensor:
    """One token's state (K, F, 2) moved on; `average` (H, F, 2), `m` (C,)."""
    arguments = config.position
    prefix = f"model.layers.{layer}.context."

    def matrix(name: str, part: int) -> Tensor:
        weight = weights[prefix + name + ".weight"]
        return weight if arguments["equivariant"] else weight[part]

    def columns(state: Tensor, part: int) -> Tensor:
        """What the maps act on: per frequency the heads; or per head the frequencies; or all."""
        of_part = state[:, :, part]
        if arguments["tensorial"]:
            return of_part
        return of_part.T if arguments["equivariant"] else of_part.reshape(-1, 1)

    def assemble(moved: list[Tensor]) -> Tensor:
        if not arguments["tensorial"]:
            moved = [x.T if arguments["equivariant"] else x.reshape(e.shape[:2]) for x in moved]
        return torch.stack(moved, dim=-1)

    if arguments["attention"]:
        e = e + assemble([matrix("mix", part) @ columns(average, part) for part in (0, 1)])
    if arguments["feed_forward"]:
        gate = weights[prefix + "gate.weight"] @ m
        gate = (gate * torch.sigmoid(gate))[:, None]
        ups = [gate * (matrix("up", part) @ columns(e, part)) for part in (0, 1)]
        e = e + assemble([matrix("down", part) @ ups[part] for part in (0, 1)])
    return e if arguments["magnitudes"] else e / e.norm(dim=-1, keepdim=True)


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


def repo_state(weights, config, layer: int, read: list[Tensor], coordinate: int) -> Tensor:
    """(K, F, 2) of a token: RoPE's state at a place that a network reads from the token."""
    x = read[-1]
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


def offset_key(own: Tensor, before: Tensor) -> Tensor:
    """A key whose channels in the second half of the pairs (f, f + F) are those of another one."""
    F = len(own) // 2
    return torch.stack([before[c] if c % F >= F // 2 else own[c] for c in range(2 * F)])


def carope_state(weights, config, layer: int, read: list[Tensor], _: int) -> Tensor:
    """(K, F, 2): cosine and sine of the phases of the last of these tokens, phi_i = sum_t f(x_t)^i
    with f(x) = 1 / (softplus(x W + c) + 1)."""
    prefix = f"model.layers.{layer}.context.frequency."
    W, c = weights[prefix + "weight"], weights[prefix + "bias"]
    f = [1 / ((1 + (W @ x + c).exp()).log() + 1) for x in read]  # (K,) of each token
    powers = range(config.head_dim // 2)
    phase = torch.stack([sum(each**i for each in f) for i in powers], dim=-1)
    return torch.stack((phase.cos(), phase.sin()), dim=-1)


# Of the last token that is read: (K, F, 2).
STATES = {"selective": selective_state, "grape_m": grape_m_state, "repo": repo_state}
STATES["carope"] = carope_state


def fope_state(weights, config, rope: tuple[Tensor, float], coordinate: int) -> Tensor:
    """(K, F, 2): the real and imaginary parts of h_m(n) = e^(i w_m n) + sum_w a_w e^(i w n), with
    separate a for the two; h_m = 1 for w_m < 2 pi / length."""
    a, b = weights["model.position.cosine"], weights["model.position.sine"]
    w, magnitude = rope
    kept = [m for m in range(len(w)) if w[m] >= 2 * math.pi / config.position["length"]]
    still, found = torch.tensor([1.0, 0.0], dtype=a.dtype).expand(len(a), 2), []
    for m in range(len(w)):
        if m not in kept:
            found.append(still)
            continue
        real = sum((a[:, f, m] + (f == m)) * math.cos(w[f] * coordinate) for f in kept)
        imaginary = sum((b[:, f, m] + (f == m)) * math.sin(w[f] * coordinate) for f in kept)
        found.append(torch.stack((real, imaginary), dim=-1))
    return torch.stack(found, dim=1) * magnitude


def phase_score(config, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """TAPA's equation 12."""
    D, theta, alpha = len(q), config.position["share"], config.position["alpha"]
    A = round(theta * D)
    amplitude = sum(q[c] * k[c] for c in range(A)) / math.sqrt(A)
    phase = sum(q[c] * k[c] for c in range(A, D)) / math.sqrt(D - A)
    return amplitude * torch.cos(2 * math.pi * abs(distance) ** alpha * phase)


def stick_shares(logits: list[Tensor]) -> list[Tensor]:
    """Each token's share, from the nearest one back, of what the tokens after it left; the last
    token, the query's own, has none."""
    left, shares = torch.ones_like(logits[-1]), [torch.zeros_like(logits[-1])]
    for logit in logits[-2::-1]:
        beta = 1 / (1 + (-logit).exp())
        shares.append(beta * left)
        left = left * (1 - beta)
    return shares[::-1]
