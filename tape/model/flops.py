"""Multiply-adds of one forward pass in closed form, for every encoding.

They are for one sequence of N tokens under eager attention, which computes the full N x N matrix:
one multiply-add per summed entry of a matrix product. Shapes as in `tape.positions.base`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tape.model.configuration import TapeConfig
from tape.positions.fope import count_trained
from tape.positions.mixed import parts_of
from tape.positions.path import CHUNK
from tape.positions.wall import LEVELS


def multiply_adds(config: TapeConfig, length: int) -> dict[str, int]:
    """Returns multiply-adds by part, summed over layers and recurrences; the encoding's parts
    follow those of the decoder."""
    C, N = config.hidden_size, length
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    layers = config.num_hidden_layers * config.num_recurrences
    decoder = {
        "queries, keys, values, output": layers * N * C * (2 * H + 2 * K) * D,
        "scores and average of the values": layers * 2 * H * N**2 * D,
        "MLP": layers * N * 3 * C * config.intermediate_size,
        "logits": N * C * config.vocab_size,
    }
    if config.gated_attention:
        decoder["gates of attention"] = layers * N * C * H * D
    return decoder | of_encoding(config, length)


def of_encoding(config: TapeConfig, length: int, ends: bool = True) -> dict[str, int]:
    """Returns those that a decoder without positions (NoPE) does not need.

    Args:
        ends: whether the decoder's last layer has this encoding; others may follow in a mixture.
    """
    position, layers = config.position, config.num_hidden_layers * config.num_recurrences
    C, H, D, N = config.hidden_size, config.num_attention_heads, config.head_dim, length
    match position["name"]:
        case "fire":  # an MLP 1 -> hidden -> H for every pair of tokens
            return {"MLP of distances": layers * N**2 * position["hidden"] * (1 + H)}
        case "dape":  # the scores again, and an MLP 2 H -> width -> H for every pair
            pairs = layers * N**2
            return {"scores": pairs * H * D, "MLP of scores": pairs * 3 * H * position["width"]}
        case "relative":
            R, E = position["dimension"], position["extent"]
            return {"r": layers * N * C * H * R, "profiles": layers * N * H * R * E}
        case "cope":
            rows = layers * H * N * D * position["count"]
            return {"gates": layers * H * N**2 * D, "scores of positions": rows}
        case "fox":
            return {"gates": layers * N * C * H}
        case "selective":  # W1 x, then W2 and a tap for each token that the convolution reads
            rank, channels = position["rank"], config.num_key_value_heads * D // 2
            return {"phases": layers * N * rank * (C + channels * position["kernel"])}
        case "extended":  # the products of each piece, less those that they replace
            pieces = 3 if position["method"] == "dca" else 2
            return {"scores of further pieces": layers * (pieces - 1) * H * N**2 * D}
        case "pope":
            return {"second half of queries and keys": layers * H * N**2 * D}
        case "path":
            gate = {"gates": layers * N * C * H} if position["gate"] else {}
            return of_path(config, length) | gate
        case "rope_gain":
            return {"gain": layers * N * C * config.num_key_value_heads}
        case "grape_m":
            rows = 1 if position["shared"] else config.num_key_value_heads
            return {"angles": layers * N * C * rows} if position["contextual"] else {}
        case "grape_ap":
            P = position["width"]
            return {"p": layers * N * C * H * P, "steps": layers * H * N**2 * P}
        case "repo":
            width, K = position["width"], config.num_key_value_heads
            return {"places": placed(config) * N * width * (2 * C + K)}
        case "wall":
            return of_wall(config, length)
        case "carope":
            return {"frequencies": layers * N * C * config.num_key_value_heads}
        case "fope":  # once for all layers
            n = count_trained(config, position["length"])
            return {"mixtures of frequencies": 2 * N * config.num_key_value_heads * n**2}
        case "tape" | "tape_yarn":
            return of_tape(config, length, ends)
        case "mixed":
            found = Counter()
            for part, last in _parts(config):
                found.update(of_encoding(part, length, last))
            return dict(found)
    return {}


def of_path(config: TapeConfig, length: int) -> dict[str, int]:
    """Returns those of PaTH, less the products of queries and keys that its scores replace. The
    triangular solve per chunk, less than L^3 / 2, is not a matrix product and not counted."""
    layers, N = config.num_hidden_layers * config.num_recurrences, length
    C, H, K = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    D, L = config.head_dim, min(CHUNK, length)
    n, rank = -(-N // L), config.position["rank"]
    chunk = K * L * (4 * L * D + L**2 + D**2) + H * L * (3 * L * D + L**2)
    pairs = H * L**2 * D * n * (n - 1) // 2
    moves = H * L * D**2 * (n - 1) * (n - 2) // 2
    return {
        "w and beta": layers * N * (C * (rank + K) + rank * K * D * config.position["kernel"]),
        "scores, less those of q k": layers * (n * chunk + pairs + moves - H * N**2 * D),
    }


def of_wall(config: TapeConfig, length: int) -> dict[str, int]:
    """Returns those of Wall attention, less the products of queries and keys that its scores
    replace."""
    layers, N = config.num_hidden_layers * config.num_recurrences, length
    H, D, L = config.num_attention_heads, config.head_dim, 2 ** min(LEVELS, (N - 1).bit_length())
    n = -(-N // L)
    pairs = L * D * n * (L + 1) // 2 + L**2 * D * n * (n - 1) // 2
    gates = layers * N * config.hidden_size * H * (D + config.position["scalar"])
    return {"gates": gates, "scores, less those of q k": layers * H * (pairs - N**2 * D)}


def placed(config: TapeConfig) -> int:
    """Returns how often RePo's network is applied."""
    return (config.num_hidden_layers - config.position["start"]) * config.num_recurrences


def _parts(config: TapeConfig) -> Iterator[tuple[TapeConfig, bool]]:
    """Yields the parts of a mixture, and whether the last layer is one of them."""
    places, parts = parts_of(config, config.position["pattern"])
    for place, part in enumerate(parts):
        yield part, place == places[-1]


def updates_of(config: TapeConfig, ends: bool) -> int:
    """Returns how often TAPE's state is updated: in every layer but its last, of the last
    recurrence; there, too, if layers of other encodings follow, because it is made before them."""
    layers, recurrences = config.num_hidden_layers, config.num_recurrences
    return layers * recurrences - (ends or recurrences == 1)


def of_tape(config: TapeConfig, length: int, ends: bool = True) -> dict[str, int]:
    """Returns those of TAPE and its ablations.

    In the notation of `tape.positions.tape` the maps mix axis M of the state, in G sets, and leave
    axis N alone: a map I x M takes G I M N multiply-adds per token.
    """
    position, N = config.position, length
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    updates, width = updates_of(config, ends), position["width"]
    M, attended = (K, H) if position["tensorial"] else (D // 2, D // 2)
    sets = 1 if position["equivariant"] else 2
    if not (position["tensorial"] or position["equivariant"]):
        M = attended = H * D // 2
    alone = K * D // M  # G N: the state has K D numbers per token
    parts = {}
    if position["attention"]:
        parts["average of E"] = updates * H * N**2 * D
        parts["P a"] = updates * N * M * attended * alone
    if position["feed_forward"]:
        parts["W_x m"] = updates * N * config.hidden_size * width
        if position["tensorial"]:
            parts["M = W2 diag W1"] = updates * N * sets * width * M**2
            parts["M E1"] = updates * N * M**2 * alone
        else:
            parts["W1 E1 and W2"] = updates * N * 2 * width * M * alone
    return parts


def nonlinear(config: TapeConfig, length: int) -> int:
    """Returns the number of inputs of softmax, SiLU and ReLU."""
    layers = config.num_hidden_layers * config.num_recurrences
    softmax = layers * config.num_attention_heads * length**2
    silu = layers * length * config.intermediate_size
    return softmax + silu + gates(config, length)


def gates(config: TapeConfig, length: int, ends: bool = True) -> int:
    """Returns the number of inputs of SiLU and ReLU in the encoding."""
    layers, position = config.num_hidden_layers * config.num_recurrences, config.position
    if position["name"] == "fire":
        return layers * length**2 * position["hidden"]
    if position["name"] in ("tape", "tape_yarn") and position["feed_forward"]:
        return updates_of(config, ends) * length * position["width"]
    if position["name"] == "repo":
        return placed(config) * length * position["width"]
    if position["name"] == "mixed":
        return sum(gates(part, length, last) for part, last in _parts(config))
    return 0


def flops(config: TapeConfig, length: int) -> int:
    """Returns FLOPs by the rule of the paper's Table 3 (arXiv 2501.00712): two per multiply-add,
    one per input of a nonlinear function, none for elementwise sums and products."""
    return 2 * sum(multiply_adds(config, length).values()) + nonlinear(config, length)
