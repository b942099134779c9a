"""A comparison as a table: markdown, LaTeX, and csv with a line per run."""

from __future__ import annotations

import re

from pretraining.rows import Compared, difference
from pretraining.trained import Trained
from tape.evaluation.compare import Row, over_seeds
from tape.evaluation.tables import csv_table, markdown_table


def cells(found: Compared, baseline: str) -> list[list[str]]:
    """The head, then a line per row."""
    other = found.row(baseline)
    shortest, longest = found.lengths[0], found.lengths[-1]
    compared = dict.fromkeys((shortest, longest)) if other else {}
    head = ["encoding", "seeds", *(f"perplexity {length:,}" for length in found.lengths)]
    head += [f"loss - {other.label}, {length:,}" for length in compared]
    lines = [[*head, "tokens/s", "memory, GiB"]]
    for row in found.rows:
        line = [row.label, str(len(row.runs))]
        for length in found.lengths:
            line.append(over_seeds([run.results.perplexities.at[length] for run in row.runs], 2))
        line += [_difference(row, other, length) for length in compared]
        line.append(over_seeds([run.results.speed for run in row.runs], 0))
        line.append(over_seeds([run.results.memory for run in row.runs], 2))
        lines.append(line)
    return lines


def _difference(row: Row[Trained], baseline: Row[Trained], length: int) -> str:
    found = difference(row, baseline, length)
    if found is None:
        return "-"
    return f"{found.mean:+.4f} ± {found.half_width:.4f} (p {found.p:.2g})"


NOTE = """\
Mean and 95 % interval (Student) over seeds. Differences of the loss (nats per token) are of runs
with the same seed, p that of the paired t-test; tokens/s and memory are those of the training."""


def markdown(found: Compared, baseline: str) -> str:
    parts = [markdown_table(cells(found, baseline)), NOTE]
    if found.row(baseline) is None:
        parts.append(f"Without differences: none of the rows is {baseline}.")
    if found.missing:
        parts.append("Not in the table:")
        parts.append("\n".join(f"* {folder}: {why}" for folder, why in found.missing.items()))
    return "\n\n".join(parts)


def latex(found: Compared, baseline: str) -> str:
    """A tabular with the rules of booktabs."""
    head, *lines = cells(found, baseline)
    body = [" & ".join(map(_escaped, line)) + r" \\" for line in lines]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            " & ".join(map(_escaped, head)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _escaped(text: str) -> str:
    text = re.sub(r"([&%$#_{}])", r"\\\1", text)
    return text.replace("±", r"$\pm$").replace("~", r"\textasciitilde{}")


def lines_of(found: Compared) -> str:
    """csv: a line per run and length."""
    head = ["encoding", "seed", "length", "loss", "perplexity"]
    lines = [[*head, "tokens_per_second", "peak_memory_gib"]]
    for row in found.rows:
        for run in row.runs:
            results = run.results
            spent = (results.speed, results.memory)
            for length, loss in results.perplexities.losses.items():
                perplexity = results.perplexities.at[length]
                lines.append([row.label, run.seed, length, loss, perplexity, *spent])
    return csv_table(lines)
