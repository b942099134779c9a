"""The specification: a decoder written with loops, straight from the definitions of the encodings.

It shares nothing with `tape` but the names of the weights, handles one sequence at a time, and is
differentiable, so that gradients can be compared as well.
"""

import math

import reference_parts as parts
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ORIGINAL = "original_max_position_embeddings"


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()


def frequencies(config) -> tuple[list[float], float]:
    """Radians per position, from transformers' own rotary module if it has the schedule."""
    rope, D = config.rope_parameters, config.head_dim
    if config.position["name"] == "pko":  # RoPE of heads of half as many channels, and 0
        turned = [rope["rope_theta"] ** (-2 * f / (D // 2)) for f in range(D // 4)]
        return torch.tensor(turned + [0.0] * (D // 4)).double(), 1.0
    if rope["rope_type"] == "clipped":
        found = [rope["rope_theta"] ** (-2 * f / D) for f in range(D // 2)]
        slow = [f for f in range(D // 2) if 2 * math.pi / found[f] > rope[ORIGINAL]]
        for place, f in enumerate(slow):
            angle = math.pi * (place / (len(slow) - 1) if len(slow) > 1 else 1)
            found[f] *= 0.5 + 0.5 * math.cos(angle)
        return torch.tensor(found).double(), 1.0
    if rope["rope_type"] == "default" and "partial_rotary_factor" in rope:
        width = int(D * rope["partial_rotary_factor"])
        found = [rope["rope_theta"] ** (-2 * f / width) for f in range(width // 2)]
        return torch.tensor(found + [0.0] * (D // 2 - len(found))).double(), 1.0
    names = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
    llama = LlamaConfig(
        **{name: getattr(config, name) for name in names}, rope_parameters=config.rope_parameters
    )
    rotary = LlamaRotaryEmbedding(llama)
    return rotary.inv_freq.double(), rotary.attention_scaling


def press_slopes(heads: int) -> list[float]:
    """ALiBi's slopes in the words of Press et al.: start and ratio for powers of two, and for the
    rest every other slope of twice the closest power."""

    def of_power(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**h for h in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_power(closest) + press_slopes(2 * closest)[0::2][: heads - closest]


def bucket(distance: int, buckets: int, maximum: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    large = math.floor(math.log(distance / exact) / math.log(maximum / exact) * (buckets - exact))
    return min(exact + large, buckets - 1)


def at_least(x: Tensor, lowest: float) -> Tensor:
    """x, mirrored at the lowest value."""
    return torch.where(x < lowest, 2 * lowest - x, x)


def score_term(weights, config, layer: int, h: int, i: int, j: int) -> Tensor | float:
    """b_h(i, j) for coordinates j <= i."""
    arguments = config.position
    prefix = f"model.position.layers.{layer}."
    if arguments["name"] == "alibi":
        return -press_slopes(config.num_attention_heads)[h] * (i - j)
    if arguments["name"] == "t5":
        row = bucket(i - j, arguments["num_buckets"], arguments["max_distance"])
        return weights[prefix + "table.weight"][row, h]
    if arguments["name"] == "fire":
        c = weights[prefix + "scale"]
        reach = (weights[prefix + "multiplier"] * arguments["threshold"]).abs()

        def psi(x):
            return ((c * x).abs() + 1).log()

        x = psi(i - j) / (psi(torch.maximum(reach, torch.full_like(reach, i))) + 1e-6)
        hidden = weights[prefix + "hidden.weight"] @ x + weights[prefix + "hidden.bias"]
        output = weights[prefix + "output.weight"] @ hidden.relu()
        return (output + weights[prefix + "output.bias"])[h]
    if arguments["name"] == "bam":
        shape, scale = (weights[prefix + name][h] for name in ("shape", "scale"))
        return -(((j - i) * scale).abs() + 1e-5).pow(shape)
    if arguments["name"] in ("kerple", "dape"):
        p, a = (at_least(weights[prefix + name], 0.01)[h] for name in ("slope", "scale"))
        return -p * torch.log(1 + a * (i - j))
    return 0.0


def read_term(weights, config, layer: int, h: int, i: int, j: int, x, q, k, scores) -> Tensor:
    """The term of head h that depends on the text, for slots j <= i. FoX's sums the same logarithms
    of gates as flash-linear-attention's naive form (fla/ops/forgetting_attn/naive.py at 012a873).

    Args:
        x: normalised inputs of the layer, by token.
        q, k: queries and keys of this head, by token.
        scores: (H,) of this pair, before any term.
    """
    arguments, D = config.position, config.head_dim
    prefix = f"model.layers.{layer}.context."
    zero = torch.zeros((), dtype=scores.dtype)
    if arguments["name"] == "fox":
        w, b = weights[prefix + "gate.weight"][h], weights[prefix + "gate.bias"][h]
        return sum((torch.sigmoid(w @ x[t] + b).log() for t in range(j + 1, i + 1)), zero)
    if "inner" in parts.inside(config, layer):
        w, b = (weights[prefix + f"forget.gate.{part}"][h] for part in ("weight", "bias"))
        return sum((torch.sigmoid(w @ x[t] + b).log() for t in range(j + 1, i + 1)), zero)
    if arguments["name"] == "grape_ap":
        slope = press_slopes(config.num_attention_heads)[h]
        own, steps = parts.grape_probe(weights, config, layer, h, x[i]), zero
        for t in range(j + 1, i + 1):
            probe = parts.grape_probe(weights, config, layer, h, x[t])
            turn = torch.tensor([[math.cos(t), math.sin(t)]] * (len(probe) // 2), dtype=own.dtype)
            steps = steps + torch.sigmoid(own @ rotate(probe, turn) / len(probe)).log()
        return slope * steps
    if arguments["name"] == "relative" and i - j < arguments["extent"]:
        R = arguments["dimension"]
        r = weights[prefix + "reader.weight"][h * R : (h + 1) * R] @ x[i]
        return r @ weights[prefix + "profiles"][:, i - j]
    if arguments["name"] == "cope":
        table = weights[prefix + "table"]
        place = sum(torch.sigmoid(q[i] @ k[t] / math.sqrt(D)) for t in range(j, i + 1))
        place = place.clamp(max=arguments["count"] - 1)
        low, high = (int(bound(place.detach())) for bound in (torch.floor, torch.ceil))
        row = table[:, low] + (place - low) * (table[:, high] - table[:, low])
        return q[i] @ row / math.sqrt(D)
    if arguments["name"] == "dape":
        terms = [score_term(weights, config, layer, g, i, j) for g in range(len(scores))]
        hidden = weights[prefix + "mlp.0.weight"] @ torch.cat((scores, torch.stack(terms)))
        hidden = hidden + weights[prefix + "mlp.0.bias"]
        hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
        return weights[prefix + "mlp.1.weight"][h] @ hidden
    return zero


def polar(x: Tensor, coordinate: int, shift: Tensor | float, base: float) -> Tensor:
    """Channels of size ln(1 + e^x) and a phase, as complex numbers."""
    D = len(x)
    phase = torch.tensor([coordinate * base ** (-c / D) for c in range(D)], dtype=x.dtype) + shift
    return (1 + x.exp()).log() * torch.complex(phase.cos(), phase.sin())


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Pairs (x_f, x_{f+F}) times e, (F, 2), as complex numbers."""
    F = len(x) // 2
    pairs = torch.complex(x[:F], x[F:]) * torch.complex(e[:, 0], e[:, 1])
    return torch.cat((pairs.real, pairs.imag))


def first_state(config, coordinate: int) -> Tensor:
    """(K, F, 2): the cosine and the sine of every phase, the same for every head."""
    inverse, magnitude = frequencies(config)
    phase = coordinate * inverse
    e = torch.stack((phase.cos(), phase.sin()), dim=-1) * magnitude
    return e.expand(config.num_key_value_heads, *e.shape)


def mixed_layers(config) -> list:
    """The configuration of a model whose encoding is that of each layer."""
    found = []
    for layer in range(config.num_hidden_layers):
        entry = config.position["pattern"][layer % len(config.position["pattern"])]
        window = entry.get("window", config.sliding_window)
        entry = {name: value for name, value in entry.items() if name != "window"}
        own = config.to_dict() | {"position": entry, "sliding_window": window}
        found.append(type(config)(**own))
    return found


def decoder(weights: dict[str, Tensor], config, tokens: list[int], coordinates=None) -> Tensor:
    """Logits (T, V) of one sequence, in the precision of the weights (use float64)."""
    name = config.position["name"]
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, T = config.hidden_size, len(tokens)
    p = list(range(T)) if coordinates is None else list(coordinates)
    x = [weights["model.embed_tokens.weight"][token] for token in tokens]
    if name == "sincos":
        for t in range(T):
            angles = [p[t] / 10_000 ** (2 * (c // 2) / C) for c in range(C)]
            wave = [math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)]
            x[t] = x[t] + torch.tensor(wave, dtype=x[t].dtype)
    if name == "learned":
        x = [x[t] + weights["model.position.table"][p[t]] for t in range(T)]
    if name in ("abacus", "coupling"):
        place = 0
        for t, token in enumerate(tokens):
            place = place + 1 if token in config.position["digits"] else 0
            x[t] = x[t] + weights["model.position.table"][place]
    layers = [config] * config.num_hidden_layers
    if name == "mixed":
        layers = mixed_layers(config)
    first = [[first_state(own, p[t]) for t in range(T)] for own in layers]
    updated = [n for n, own in enumerate(layers) if own.position["name"].startswith("tape")]
    moved = first[updated[0]] if updated else None
    embedding, depth = x, config.num_hidden_layers * config.num_recurrences
    for step in range(depth):
        layer = step % config.num_hidden_layers
        if step and layer == 0:
            x = [x[t] + embedding[t] for t in range(T)]
        at, config, e = f"model.layers.{layer}.", layers[layer], [*first[layer]]
        name = config.position["name"]
        rotary = ("rope", "yarn", "xpos", "randpe", "tape", "tape_yarn", "fope", "rope_gain", "pko")
        rotary += ("scale_invariant", "imaginary")
        heads = 2 * H if name == "imaginary" else H
        rotary = name in rotary or name in parts.STATES
        if layer in updated:
            e = moved

        def linear(name, value, at=at):
            return weights[at + name + ".weight"] @ value

        def norm(name, value, at=at, epsilon=config.rms_norm_eps):
            return rms_norm(value, weights[at + name + ".weight"], epsilon)

        q, k, v, read, maps, own, sent = [], [], [], [], [], [], []
        for t in range(T):
            y = norm("input_layernorm", x[t])
            read.append(y)
            q.append(list(linear("self_attn.q_proj", y).view(H, D)))
            k.append(list(linear("self_attn.k_proj", y).view(K, D)))
            v.append(list(linear("self_attn.v_proj", y).view(K, D)))
            if config.qk_norm:
                q[t] = [norm("self_attn.q_norm", head) for head in q[t]]
                k[t] = [norm("self_attn.k_norm", head) for head in k[t]]
            own.append(k[t])
            if name == "pko":
                k[t] = [
                    parts.offset_key(*heads) for heads in zip(k[t], own[t and t - 1], strict=True)
                ]
            if name in parts.STATES:
                e[t] = parts.STATES[name](weights, config, layer, read, p[t])
            sent.append(v[t])
            if config.position.get("values"):  # to the frame of the key
                sent[t] = [rotate(*both) for both in zip(v[t], e[t], strict=True)]
            if name == "rope_gain":
                e[t] = e[t] * parts.gain_of(weights, layer, y)[:, None, None]
            if name == "fope":
                e[t] = parts.fope_state(weights, config, frequencies(config), p[t])
            if name == "path":
                maps.append(parts.path_maps(weights, config, layer, read))
            if name == "wall":  # what channels keep; as fla/ops/wall_attn/naive.py
                gate = parts.inside(config, layer) + "gate."
                logits = weights[gate + "weight"] @ y + weights[gate + "bias"]
                maps.append(torch.sigmoid(logits).view(H, D))
            if rotary:
                q[t] = [rotate(q[t][h], e[t][h * K // H]) for h in range(H)]
                k[t] = [rotate(k[t][g], e[t][g]) for g in range(K)]
            if name == "imaginary":  # and the query turned by -pi / 2
                back = torch.tensor([[0.0, -1.0]] * (D // 2), dtype=x[t].dtype)
                q[t] = [each for head in q[t] for each in (head, rotate(head, back))]
            if name == "xpos":
                zeta = [(2 * f + 0.4 * D) / (1.4 * D) for f in range(D // 2)] * 2
                power = (p[t] - config.position["centre"]) / config.position["scale_base"]
                grow = torch.tensor([z**power for z in zeta], dtype=x[t].dtype)
                q[t] = [head * grow for head in q[t]]
                k[t] = [head / grow for head in k[t]]
            if name == "pope":
                base = config.position["base"]
                shift = weights[at + "context.shift"]
                q[t] = [polar(q[t][h], p[t], 0.0, base) for h in range(H)]
                k[t] = [polar(k[t][g], p[t], shift[g, 0], base) for g in range(K)]
            if config.query_temperature is not None:
                scale, length = (config.query_temperature[key] for key in ("scale", "length"))
                q[t] = [(1 + scale * math.log(1 + (p[t] + 1) // length)) * head for head in q[t]]
        contextual = layer in updated and any(
            later % len(layers) in updated for later in range(step + 1, depth)
        )
        next_x, next_e = [], []

        def products(i, j, q=q, k=k, maps=maps, name=name, config=config):
            pairs = [(head, k[j][h * K // len(q[i])]) for h, head in enumerate(q[i])]
            if name == "extended":
                inverse, magnitude = frequencies(config)
                phase = parts.trained_distance(config.position, p[i], p[j]) * inverse
                turn = torch.stack((phase.cos(), phase.sin()), dim=-1) * magnitude**2
                pairs = [(rotate(a, turn), b) for a, b in pairs]
            if name == "path":  # the maps of the tokens after j, up to i
                for t in range(j + 1, i + 1):
                    w, beta = (x[[h * K // H for h in range(H)]] for x in maps[t])
                    pairs = [(a, b - beta[h] * (w[h] @ b) * w[h]) for h, (a, b) in enumerate(pairs)]
            if name == "wall":
                for t in range(j + 1, i + 1):
                    pairs = [(a, b * maps[t][h]) for h, (a, b) in enumerate(pairs)]
            if name == "tapa":
                return torch.stack([parts.phase_score(config, a, b, p[i] - p[j]) for a, b in pairs])
            found = torch.stack([(a * b.conj()).sum().real / math.sqrt(D) for a, b in pairs])
            if name == "scale_invariant":
                square = 2 * math.log((p[i] - p[j]) / config.position["tau"] + 1) + 1
                found = math.sqrt(square) * found + 1 - square
            return found

        for i in range(T):
            outputs, averages = [], []
            seen = range(max(0, i + 1 - (config.sliding_window or T)), i + 1)
            scores_of = [products(i, j) for j in seen]
            for h in range(heads):
                g = h * K // heads
                of_head = [q[t][h] for t in range(T)], [k[t][g] for t in range(T)]
                scores = [
                    both[h]
                    + score_term(weights, config, layer, h, p[i], p[j])
                    + read_term(weights, config, layer, h, i, j, read, *of_head, both)
                    for j, both in zip(seen, scores_of, strict=True)
                ]
                if config.scalable_softmax is True:
                    s = weights[at + "self_attn.softmax.s"][h]
                    scores = [s * math.log(len(seen)) * score for score in scores]
                elif config.scalable_softmax:  # Qwen's: 1 up to the length
                    length = config.scalable_softmax["length"]
                    factor = math.log(len(seen), length) if len(seen) > length else 1
                    scores = [factor * score for score in scores]
                if config.attention_sink:  # belongs to no token: zip leaves it out
                    scores.append(weights[at + "self_attn.sink.s"][h])
                alpha = torch.softmax(torch.stack([s.reshape(()) for s in scores]), dim=0)
                if name == "stick_breaking":
                    alpha = parts.stick_shares(scores)
                shares = [*zip(alpha, seen, strict=False)]
                mean, value = sum(share * sent[j][g] for share, j in shares), v[i][g]
                if config.position.get("values"):  # and back at the query
                    mean = rotate(mean, e[i][g] * torch.tensor([1, -1]))
                if config.exclusive_attention:
                    mean = mean - (mean @ value) / (value @ value) * value
                outputs.append(mean)
                averages.append(sum(share * e[j][g] for share, j in shares))
            output = torch.cat(outputs)
            if config.gated_attention:
                output = output / (1 + (-linear("self_attn.output_gate", read[i])).exp())
            y = x[i] + linear("self_attn.o_proj", output)
            z = norm("post_attention_layernorm", y)
            gate = linear("mlp.gate_proj", z)
            m = linear("mlp.down_proj", gate * torch.sigmoid(gate) * linear("mlp.up_proj", z))
            next_x.append(y + m)
            if contextual:
                e_i = parts.tape_update(weights, config, layer, e[i], torch.stack(averages), m)
                next_e.append(e_i)
        x, moved = next_x, next_e if contextual else moved
    final = weights["model.norm.weight"]
    x = [rms_norm(value, final, config.rms_norm_eps) for value in x]
    return torch.stack([weights["lm_head.weight"] @ value for value in x])


def loss(logits: Tensor, tokens: list[int]) -> Tensor:
    """Mean negative log-likelihood of the next tokens."""
    picked = [torch.log_softmax(logits[t], 0)[tokens[t + 1]] for t in range(len(tokens) - 1)]
    return -torch.stack(picked).mean()
