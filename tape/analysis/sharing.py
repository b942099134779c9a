"""Memory and communication when processes share texts (`tape.model.sequence_parallel`), in closed
form.

    python -m tape.analysis.sharing

For training at Llama-2-7B's shape with checkpointed layers, in bfloat16 under autocast; weights and
optimizer states are sharded over all processes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tape.analysis.cost import LLAMA, configuration
from tape.command import Distinct, Parser, expected_errors, integer
from tape.evaluation.tables import markdown_table
from tape.model.configuration import TapeConfig

STATES = 16  # bytes per parameter: weights, gradients and AdamW's two moments in float32
LENGTHS = [8192, 32768, 131072]
GROUPS = [(8, 8), (64, 32)]  # of 64 GPUs, 32 share a text: as many as there are heads


@dataclass(frozen=True)
class Sharing:
    """Bytes per process and step, of one text per group.

    Attributes:
        states: weights, gradients and moments.
        saved: what checkpointed layers keep: their inputs, hidden states and positional state.
        exchanged: sent to other processes of the group, forward, recomputed and backward.
    """

    states: int
    saved: int
    exchanged: int


def parameters(config: TapeConfig) -> int:
    """Of the matrices, without those of the encoding."""
    C, D = config.hidden_size, config.head_dim
    attention = 2 * C * D * (config.num_attention_heads + config.num_key_value_heads)
    layer = attention + 3 * C * config.intermediate_size
    return config.num_hidden_layers * layer + 2 * config.vocab_size * C


def sharing(
    config: TapeConfig, length: int, group: int, processes: int, itemsize: int = 2
) -> Sharing:
    """Returns the bytes of a decoder with RoPE or TAPE.

    Args:
        length: tokens of a text.
        group: processes that share it.
        processes: of all groups.
        itemsize: bytes of a number that is exchanged. Autocast leaves 4 for those between layers.
    """
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    tape = config.position["name"] == "tape"
    tokens, layers = length // group, config.num_hidden_layers * config.num_recurrences
    # Heads share the state of the first layer; those after it have an updated one each.
    state = D * 4 * (1 + (layers - 1) * (K if tape else 0))
    saved = tokens * (layers * config.hidden_size * 4 + state)
    channels = layers * 2 * (H + K) * D  # queries, keys and values, and the averages
    if tape:  # the payload and its average, but for the last layer
        channels += (layers - 1) * (H + K) * D
    # Forward, recomputed and backward; the first state has no gradient.
    exchanged = tokens * (3 * channels - K * D * tape) * itemsize * (group - 1) // group
    return Sharing(STATES * parameters(config) // processes, saved, exchanged)


def table(lengths: list[int]) -> list[list[str]]:
    head = ["GPUs", "GPUs per text", "tokens of a text", "per GPU", "states, GiB"]
    head += [f"{what}, GiB: {name}" for what in ("saved", "sent") for name in ("rope", "tape")]
    rows = [head]
    for (processes, group), length in itertools.product(GROUPS, lengths):
        shape = LLAMA | {"length": length}
        models = (configuration(shape, {"name": name}) for name in ("rope", "tape"))
        both = [sharing(config, length, group, processes) for config in models]
        sizes = [both[0].states, *(each.saved for each in both), *(x.exchanged for x in both)]
        cells = [f"{processes}", f"{group}", f"{length:,}", f"{length // group:,}"]
        rows.append([*cells, *(f"{size / 2**30:.1f}" for size in sizes)])
    return rows


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(prog="python -m tape.analysis.sharing", description=__doc__.splitlines()[0])
    text = "tokens of a text"
    parser.add_argument(
        "--lengths", nargs="+", type=integer(32), default=LENGTHS, action=Distinct, help=text
    )
    print(markdown_table(table(parser.parse_args(given).lengths)))


if __name__ == "__main__":
    main()
