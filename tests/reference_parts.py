"""Parts of the specification (references.py) for encodings of 2024 and 2025, as loops from their
papers."""

import math

import torch
from torch import Tensor


def carope_state(weights, config, layer: int, read: list[Tensor]) -> Tensor:
    """(K, F, 2): cosine and sine of the phases of the last of these tokens, phi_i = sum_t f(x_t)^i
    with f(x) = 1 / (softplus(x W + c) + 1)."""
    prefix = f"model.layers.{layer}.context.frequency."
    W, c = weights[prefix + "weight"], weights[prefix + "bias"]
    heads = []
    for h in range(config.num_key_value_heads):
        phases = []
        for i in range(config.head_dim // 2):
            f = [1 / ((1 + (W[h] @ x + c[h]).exp()).log() + 1) for x in read]
            phases.append(sum(each**i for each in f))
        phase = torch.stack(phases)
        heads.append(torch.stack((phase.cos(), phase.sin()), dim=-1))
    return torch.stack(heads)


def fope_state(weights, config, rope: tuple[Tensor, float], coordinate: int) -> Tensor:
    """(K, F, 2): the real and imaginary parts of h_m(n) = e^(i w_m n) + sum_w a_w e^(i w n), with
    separate a for the two; h_m = 1 for w_m < 2 pi / length."""
    a, b = weights["model.position.cosine"], weights["model.position.sine"]
    w, magnitude = rope
    kept = [m for m in range(len(w)) if w[m] >= 2 * math.pi / config.position["length"]]
    heads = []
    for h in range(config.num_key_value_heads):
        found = []
        for m in range(len(w)):
            real, imaginary = torch.ones((), dtype=a.dtype), torch.zeros((), dtype=a.dtype)
            if m in kept:
                real, imaginary = math.cos(w[m] * coordinate), math.sin(w[m] * coordinate)
                for f in kept:
                    real = real + a[h, f, m] * math.cos(w[f] * coordinate)
                    imaginary = imaginary + b[h, f, m] * math.sin(w[f] * coordinate)
            found.append(torch.stack((real, imaginary)))
        heads.append(torch.stack(found) * magnitude)
    return torch.stack(heads)


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
