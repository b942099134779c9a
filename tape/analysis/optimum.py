"""The lowest losses that a model can reach on bigrams in context (tape/data/bigrams.py).

python -m tape.analysis.optimum
"""

from __future__ import annotations

from math import exp

import numpy as np

from tape.command import Parser, expected_errors
from tape.data.bigrams import CONCENTRATION, SYMBOLS, BigramCorpus
from tape.evaluation.tables import markdown_table

LENGTHS = (64, 128, 256, 512)


def optimal_losses(symbols: np.ndarray) -> np.ndarray:
    """Returns the loss in nats of each symbol but the first of each chain, (count, length - 1),
    under the Bayesian prediction from those before it: (n_ij + a) / (n_i + 16 a) for symbol j after
    i, where n counts the chain's pairs so far and a is the concentration."""
    count, length = symbols.shape
    pairs, each = np.zeros((count, SYMBOLS, SYMBOLS)), np.arange(count)
    losses = np.empty((count, length - 1))
    for n in range(1, length):
        before, now = symbols[:, n - 1], symbols[:, n]
        seen = pairs[each, before].sum(-1)
        right = pairs[each, before, now] + CONCENTRATION
        losses[:, n - 1] = np.log((seen + SYMBOLS * CONCENTRATION) / right)
        pairs[each, before, now] += 1
    return losses


def table(losses: np.ndarray) -> str:
    """Returns losses (N, 511) by the length of the window that they are in, as markdown."""
    lines = [["window", "lowest loss, nats", "lowest perplexity", "in its last half, nats"]]
    for length in LENGTHS:
        loss, far = losses[:, : length - 1].mean(), losses[:, length // 2 - 1 : length - 1].mean()
        lines.append([str(length), f"{loss:.3f}", f"{exp(loss):.2f}", f"{far:.3f}"])
    return markdown_table(lines)


@expected_errors()
def main(given: list[str] | None = None) -> None:
    description = "Compute the lowest losses on the validation split of data=bigrams."
    Parser(prog="python -m tape.analysis.optimum", description=description).parse_args(given)
    (symbols,) = BigramCorpus().symbols("validation")
    print(table(optimal_losses(symbols)))


if __name__ == "__main__":
    main()
