"""A comparison of runs: its rows by their labels, the best first, and all of them as one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from tape.evaluation.view import Asked, select
from tape.results.rows import BASE, Groups, groups_of
from tape.results.runs import Run, names_of, parts_of, read_all, table_of, view_of
from tape.statistics import per_seed


@dataclass(frozen=True, eq=False)
class Comparison:
    """
    Attributes:
        groups: runs by their evaluation and the label of their row.
        missing: folders that could not be read, and why.
    """

    groups: Groups
    missing: dict[Path, str]

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows, each once."""
        runs = [
            run
            for label in self.labels
            for groups in self.groups.values()
            for run in groups.get(label, [])
        ]
        return list({id(run): run for run in runs}.values())

    @cached_property
    def labels(self) -> list[str]:
        """The labels of all rows, the best first, after the base of methods. A row's first
        evaluation counts."""
        order: dict[str, tuple[bool, float]] = {}
        for kind, groups in self.groups.items():
            view = view_of(kind)
            rows = {
                label: select(_rows_of(kind, {label: runs}), view.measure)
                for label, runs in groups.items()
            }
            best = {
                label: rows[label][view.best(runs[0].asked[kind])(rows[label])]
                for label, runs in groups.items()
            }
            sign = 1 if view.measure == "loss" else -1
            for label, each in (best if any(map(len, best.values())) else rows).items():
                value = sign * mean(per_seed(each)) if len(each) else math.inf
                order.setdefault(label, (label != BASE, value))
        return sorted(order, key=order.__getitem__)

    def asked(self, kind: str) -> list[Asked]:
        """The settings of an evaluation of all runs."""
        return [run.asked[kind] for runs in self.groups[kind].values() for run in runs]

    @cached_property
    def rows(self) -> dict[str, pd.DataFrame]:
        """The rows of each evaluation, in long form, with the label as `row`."""
        rank = self.labels.index
        return {
            kind: _rows_of(kind, {label: groups[label] for label in sorted(groups, key=rank)})
            for kind, groups in self.groups.items()
        }

    def find(self, name: str) -> str | None:
        """Returns a label by itself or by the folder of one of its runs; None if there is none."""
        for groups in self.groups.values():
            for label, runs in groups.items():
                if name == label or Path(name) in [run.folder for run in runs]:
                    return label
        return None


def _rows_of(kind: str, groups: dict[str, list[Run]]) -> pd.DataFrame:
    rows = table_of([run for runs in groups.values() for run in runs])
    labels = [label for label, runs in groups.items() for _ in runs]
    rows.insert(0, "row", rows["run"].map(dict(zip(rows["run"].unique(), labels, strict=True))))
    return rows[rows["evaluation"].isin(parts_of(kind))]


def read(
    folders: Sequence[Path],
    name: str | None = None,
    across: Sequence[str] = (),
    only: Sequence[str] = ("*",),
    within: Sequence[str] = (),
) -> Comparison:
    """Groups runs into rows.

    Args:
        folders: of runs, or of results that were saved.
        name: see `read_all`.
        across, within: see `groups_of`.
        only: patterns of the names of runs to take, or of evaluations given alone.

    Raises:
        ValueError: if no run can be read, or runs cannot be compared.
    """
    found, missing = read_all(folders, name)
    runs = [
        run
        for run in found
        if any(fnmatchcase(name, each) for name in names_of(run.folder) for each in only)
    ]
    if found and not runs:
        names = ", ".join("/".join(names_of(run.folder)) for run in found)
        raise ValueError(f"--only {' '.join(only)} matches none of the runs: {names}")
    return Comparison(groups_of(runs, across, within), missing)


def load(folders: Sequence[str | Path], **chosen: Any) -> pd.DataFrame:
    """Returns the rows of runs or saved results in one table: row (the label), run, encoding,
    settings (their hash), seed, evaluation, measure, conditions, value, n and unit.

    Args:
        chosen: `name`, `across`, `only` and `within` of `read`.

    Raises:
        ValueError: if a run cannot be read, or runs cannot be compared.
    """
    found = read([Path(folder) for folder in folders], **chosen)
    if found.missing:
        raise ValueError("; ".join(found.missing.values()))
    return pd.concat(found.rows.values(), ignore_index=True)
