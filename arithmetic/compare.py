"""Compare encodings over seeds: a table and a picture of runs that were evaluated.

    python -m arithmetic.compare output/add_*_[0-9]

Runs that differ in their seed alone are one row, named by the encoding and by every other setting
that most rows have otherwise: nothing unequal is compared without a word.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import t

from arithmetic.grid import Grid, read_evaluated, read_grid
from arithmetic.heatmap import draw
from arithmetic.problems import Problems
from tape.evaluation.checkpoint import WEIGHTS, fingerprint
from tape.files import write_text
from tape.training.runs import TRAINED, differences, influential, read_configuration

# What makes the questions and the parts of the grid: it has to be the same for all.
ASKED = (
    *("max_length", "samples", "seed"),
    *(
        f"problems.{field.name}"
        for field in fields(Problems)
        if field.name not in ("spaces", "abacus_offset")
    ),
)
FOLLOWS = r"length|model\.max_position_embeddings|tokens\..*"  # from other settings
REGIONS = {"inside": "trained lengths", "outside": "beyond them", "all": "whole grid"}


@dataclass(frozen=True)
class Run:
    """A run that was evaluated: what it was trained with, and its grid."""

    folder: Path
    seed: int
    settings: dict[str, Any]  # flat, without the seed, what is null and what has no influence
    evaluated: dict[str, Any]
    grid: Grid


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[Run]

    @property
    def grid(self) -> Grid:
        """Of all seeds together."""
        first = self.runs[0].grid
        correct, total = (
            np.sum([getattr(run.grid, name) for run in self.runs], axis=0)
            for name in ("correct", "total")
        )
        return Grid(correct, total, first.trained)

    def shares(self, region: str) -> list[float]:
        """The accuracy of each seed; none if the grid has no cells there."""
        shares = [run.grid.summary()[region] for run in self.runs]
        return [share["accuracy"] for share in shares if share is not None]


def interval(values: list[float]) -> float:
    """Half the width of the 95 % interval of the mean, from two values or more (Student 1908)."""
    return float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def read_run(folder: Path, name: str) -> Run:
    """A run and its evaluation in the folder `name`.

    Raises:
        ValueError: if it was not trained to its end, or not evaluated since.
    """
    grid, evaluated = read_grid(folder / name), read_evaluated(folder / name)
    # Results that were put aside have no weights with them.
    if (folder / WEIGHTS).is_file() and fingerprint(folder) != evaluated["model"]:
        raise ValueError(
            f"{folder / name} was evaluated with other weights than those in {folder}: remove it "
            f"and evaluate again"
        )
    settings = influential(read_configuration(folder, TRAINED))
    seed = settings.pop("seed")
    if settings["trainer.seed"] == seed:
        del settings["trainer.seed"]
    return Run(folder, seed, settings, evaluated, grid)


def rows_of(runs: list[Run]) -> list[Row]:
    """One row for all runs with the same settings, the best beyond the trained lengths first.

    Raises:
        ValueError: if they were not asked the same questions, or one seed is there twice.
    """
    for run in runs[1:]:
        if changes := differences(
            *({key: of.evaluated[key] for key in ASKED} for of in (runs[0], run))
        ):
            raise ValueError(
                f"{runs[0].folder} and {run.folder} were not asked the same: {'; '.join(changes)}"
            )
    groups: list[list[Run]] = []
    for run in runs:
        group = next((group for group in groups if group[0].settings == run.settings), [])
        if not group:
            groups.append(group)
        for other in group:
            if other.seed == run.seed:
                raise ValueError(
                    f"{other.folder} and {run.folder} are the same run, seed {run.seed}: take one"
                )
        group.append(run)
    labels = labels_of([group[0].settings for group in groups])
    rows = [
        Row(label, sorted(group, key=lambda run: run.seed))
        for label, group in zip(labels, groups, strict=True)
    ]
    return sorted(rows, key=lambda row: -mean(row.shares("outside") or row.shares("all")))


def labels_of(groups: list[dict[str, Any]]) -> list[str]:
    """The encoding, and those settings of each group that not more than half of the groups share,
    but for what follows from others, and for arguments of other encodings."""
    keys = sorted(set().union(*groups))
    keys = [key for key in keys if key != "position.name" and not re.fullmatch(FOLLOWS, key)]
    labels = []
    for settings in groups:
        label = settings["position.name"]
        for key in keys:
            peers = [
                other.get(key)
                for other in groups
                if other["position.name"] == settings["position.name"]
                or not key.startswith("position.")
                or (key in other and key in settings)
            ]
            if 2 * peers.count(settings.get(key)) <= len(peers):
                label += f" {key}={settings.get(key)}"
        labels.append(label)
    return labels


def markdown(rows: list[Row]) -> str:
    """Mean and 95 % interval over seeds, in percent."""
    lines = [
        f"| encoding | seeds | {' | '.join(REGIONS.values())} |",
        "|---|---|" + "---|" * len(REGIONS),
    ]
    for row in rows:
        cells = [row.label, str(len(row.runs))]
        for region in REGIONS:
            shares = [100 * share for share in row.shares(region)]
            spread = f" ± {interval(shares):.1f}" if len(shares) > 1 else ""
            cells.append(f"{mean(shares):.1f}{spread}" if shares else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """A line per run and part of the grid: label, seed, region, accuracy, correct, total."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["encoding", "seed", "region", "accuracy", "correct", "total"])
    for row in rows:
        for run in row.runs:
            summary = run.grid.summary()
            for region in REGIONS:
                if share := summary[region]:
                    numbers = (share["accuracy"], share["correct"], share["total"])
                    writer.writerow([row.label, run.seed, region, *numbers])
    return text.getvalue()


def compare(folders: list[Path], name: str, out: Path) -> str:
    """Write table.md, runs.csv and the picture of the mean grids; the table is returned."""
    rows = rows_of([read_run(folder, name) for folder in folders])
    text = markdown(rows)
    write_text(out / "table.md", text + "\n")
    write_text(out / "runs.csv", table(rows))
    draw([(row.label, row.grid) for row in rows], out / "heatmaps")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m arithmetic.compare", description="Compare evaluated runs over seeds."
    )
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--name", default="grid", help="of the evaluation in them (default: grid)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("output/comparison"),
        help="folder of the results (default: output/comparison)",
    )
    arguments = parser.parse_args()
    try:
        print(compare(arguments.runs, arguments.name, arguments.out))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"\nalso in {arguments.out}, with a line per run and the grids side by side")


if __name__ == "__main__":
    main()
