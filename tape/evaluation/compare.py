"""Runs of several encodings and seeds in one table.

Runs that differ in their seed alone are one row, named by the encoding and by every other setting
that most rows have otherwise: nothing unequal is compared without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Generic, TypeVar

from tape.adapters import ADAPTER
from tape.evaluation.checkpoint import WEIGHTS, fingerprint
from tape.evaluation.intervals import student
from tape.evaluation.tables import markdown_table
from tape.files import reading
from tape.names import check_name
from tape.training.runs import TRAINED, differences, influential, read_configuration

DERIVED_SETTINGS = r"length|model\.max_position_embeddings|tokens\..*"  # from other settings
Results = TypeVar("Results")
Measure = Callable[[Results], float | None]  # a share; None where nothing was asked


def settings_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """The seed of a run that was trained to its end, and what else it was trained with: flat,
    without what is null and what has no influence.

    Raises:
        ValueError: if it was not.
    """
    settings = influential(read_configuration(folder, TRAINED))
    kinds = {"seed": int, "trainer.seed": int, "position.name": str, "length": int}
    if wrong := [key for key in kinds if not isinstance(settings.get(key), kinds[key])]:
        raise ValueError(f"{folder / TRAINED} has no {', '.join(wrong)}: train again")
    with reading(folder / TRAINED):
        check_name("position.name", settings["position.name"])
    seed = settings.pop("seed")
    if settings["trainer.seed"] == seed:
        del settings["trainer.seed"]
    return seed, settings


@dataclass(frozen=True)
class Run(Generic[Results]):
    """A run that was evaluated: what it was trained with, what it was asked, what came out."""

    folder: Path
    seed: int
    settings: dict[str, Any]  # see settings_of
    evaluated: dict[str, Any]
    results: Results

    @classmethod
    def read(cls, folder: Path, name: str, evaluated: dict[str, Any], results: Results) -> Run:
        """The run in a folder, with what its evaluation in the folder `name` there found.

        Raises:
            ValueError: if it was not trained to its end, or not evaluated since.
        """
        check_weights(folder, name, evaluated)
        return cls(folder, *settings_of(folder), evaluated, results)


def check_weights(folder: Path, name: str, evaluated: dict[str, Any]) -> None:
    """Raise a ValueError if what is in the folder `name` of a run was evaluated with other weights
    than those of the run. Results that were put aside have no weights with them."""
    here = any((folder / weights).is_file() for weights in (WEIGHTS, ADAPTER))
    recorded = evaluated["model"]  # tables have it cut short
    if here and (len(recorded) < 16 or not fingerprint(folder).startswith(recorded)):
        raise ValueError(
            f"{folder / name} was evaluated with other weights than those in {folder}: remove it "
            f"and evaluate again"
        )


@dataclass(frozen=True)
class Row(Generic[Results]):
    """Runs that differ in their seed alone."""

    label: str
    runs: list[Run[Results]]

    def shares(self, measure: Measure[Results]) -> list[float]:
        """That of each seed; none where nothing was asked."""
        found = [measure(run.results) for run in self.runs]
        return [share for share in found if share is not None]


def rows_of(runs: list[Run[Results]], asked: Iterable[str]) -> list[Row[Results]]:
    """One row for all runs with the same settings, in the order of the runs.

    Args:
        asked: the settings of an evaluation that have to be the same for all.

    Raises:
        ValueError: if they are not, or a seed occurs twice.
    """
    for run in runs[1:]:
        if changes := differences(
            *({key: of.evaluated.get(key) for key in asked} for of in (runs[0], run))
        ):
            raise ValueError(
                f"{runs[0].folder} and {run.folder} were not asked the same: {'; '.join(changes)}"
            )
    groups: list[list[Run[Results]]] = []
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
    labels = row_labels([group[0].settings for group in groups])
    return [
        Row(label, sorted(group, key=lambda run: run.seed))
        for label, group in zip(labels, groups, strict=True)
    ]


def row_labels(groups: list[dict[str, Any]]) -> list[str]:
    """The encoding, and those settings of each group that not more than half of the groups share,
    but for arguments of other encodings, and for what follows from other settings unless nothing
    else tells two groups apart. `position.width` is `width`, if nothing else is."""
    known = {"seed", "name"}.union(*groups)
    short = {key: key.removeprefix("position.") for key in sorted(set().union(*groups))}
    short = {key: key if name in known else name for key, name in short.items()}
    keys = [
        key for key in short if key != "position.name" and not re.fullmatch(DERIVED_SETTINGS, key)
    ]
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
                label += f" {short[key]}={settings.get(key)}"
        labels.append(label)
    apart = []
    for label, settings in zip(labels, groups, strict=True):
        alike = [groups[n] for n, same in enumerate(labels) if same == label]
        for key, name in short.items():
            if any(other.get(key) != settings.get(key) for other in alike):
                label += f" {name}={settings.get(key)}"
        apart.append(label)
    return apart


def markdown(rows: list[Row[Results]], columns: dict[str, Measure[Results]]) -> str:
    """Mean and 95 % interval over seeds, in percent."""
    lines = [["encoding", "seeds", *columns]]
    for row in rows:
        cells = [row.label, str(len(row.runs))]
        for measure in columns.values():
            cells.append(over_seeds([100 * share for share in row.shares(measure)], 1))
        lines.append(cells)
    return markdown_table(lines)


def over_seeds(values: list[float], digits: int) -> str:
    """The mean of a value for each seed, and its 95 % interval; "-" of none."""
    if not values:
        return "-"
    spread = f" ± {student(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):z.{digits}f}{spread}"
