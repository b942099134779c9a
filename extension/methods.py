"""The rows of a table of context extension: methods, and the base that they adapted.

Runs that were given another length, another text or more steps are not compared but refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from extension.measured import COMPARABILITY_KEYS, Measure, Measured, read_runs
from tape.evaluation import compare as comparison
from tape.evaluation.compare import Row, Run
from tape.training.runs import differences

BASE = "not extended"
# What belongs to a method, or says where its base lies. All else is what it was given to work with.
METHOD_SETTINGS = (
    r"peft\..*|position\..*|trainer\.learning_rate|learning_rates\..*|base_model|tokenizer"
)


@dataclass(frozen=True)
class Method:
    """A row of the table: a method of extension, or the base, by what was measured of it."""

    label: str
    rows: dict[Measure, Row[Measured]]

    def values(self, measure: Measure, length: int) -> list[float]:
        """At a length, one for each seed."""
        runs = self.rows[measure].runs if measure in self.rows else []
        return [run.results.at[length] for run in runs]

    def order(self) -> tuple[bool, float]:
        """The base first, then by what there is of the longest: perplexity, else pass keys."""
        measure: Measure = "perplexity" if "perplexity" in self.rows else "passkey"
        longest = mean(run.results.at_longest for run in self.rows[measure].runs)
        return self.label != BASE, longest if measure == "perplexity" else -longest


def methods_of(folders: Iterable[Path], name: str) -> list[Method]:
    """The rows of the table, from runs of any measure.

    Raises:
        ValueError: for runs that were not measured, or cannot be compared.
    """
    runs: dict[Measure, list[Run[Measured]]] = {}
    for folder in folders:
        for measure, run in read_runs(folder, name).items():
            runs.setdefault(measure, []).append(run)
    methods: dict[str, Method] = {}
    for measure, found in runs.items():
        for row in rows_of(found, measure):
            methods.setdefault(row.label, Method(row.label, {})).rows[measure] = row
    return sorted(methods.values(), key=Method.order)


def rows_of(runs: list[Run[Measured]], measure: Measure) -> list[Row[Measured]]:
    """One row for all runs with the same settings but the seed.

    Raises:
        ValueError: if they were not asked the same, not given the same, or adapted another base.
    """
    check_given([run for run in runs if not is_base(run)], [run for run in runs if is_base(run)])
    rows = comparison.rows_of(runs, COMPARABILITY_KEYS[measure])
    return [replace(row, label=_label(row, rows)) for row in rows]


def is_base(run: Run[Measured]) -> bool:
    return "peft.name" not in run.settings


def check_given(adapted: list[Run[Measured]], bases: list[Run[Measured]]) -> None:
    """Raise a ValueError unless all started from one base and were given the same."""
    for run in adapted[1:]:
        if changes := differences(*(_given(of.settings) for of in (adapted[0], run))):
            raise ValueError(
                f"{adapted[0].folder} and {run.folder} were not given the same: "
                f"{'; '.join(changes)}; compare methods at one budget"
            )
    if len(bases) > 1:
        raise ValueError(f"{bases[0].folder} and {bases[1].folder} both adapt nothing: take one")
    for base in bases if adapted else []:
        weights = str(adapted[0].settings.get("base_weights"))
        if not weights.startswith(base.evaluated["model"]):
            raise ValueError(
                f"{adapted[0].folder} adapted other weights than those of {base.folder} that were "
                f"measured: give its own base"
            )


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not re.fullmatch(METHOD_SETTINGS, key)}


def _label(row: Row[Measured], rows: list[Row[Measured]]) -> str:
    """The method's name, and what tells it from other rows of that name."""
    if is_base(row.runs[0]):
        return BASE
    settings = row.runs[0].settings
    method, position = settings["peft.name"], settings["position.name"]
    peers = [other.runs[0].settings for other in rows]
    peers = [other for other in peers if other.get("peft.name") == method]
    alike = [other for other in peers if other["position.name"] == position]
    label = method if len(alike) == len(peers) else f"{method} position={position}"
    for key in sorted(set().union(*alike)):
        if any(other.get(key) != settings.get(key) for other in alike):
            label += f" {key}={settings.get(key)}"
    return label


def lengths_of(methods: list[Method], measure: Measure) -> list[int]:
    """Those at which this was measured; the same for all, or none of this was."""
    rows = [method.rows[measure] for method in methods if measure in method.rows]
    return list(rows[0].runs[0].results.at) if rows else []
