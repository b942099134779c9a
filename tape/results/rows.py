"""Runs side by side: those that differ only in their seed form a row, named by what differs.

What runs are compared in is the encoding (position.*) or the method of adaptation (peft.*). In all
other settings they must be equal, unless these are named: nothing unequal is compared silently.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from tape.core.run_folder import differences
from tape.core.statistics import per_seed
from tape.encodings import ENCODINGS
from tape.evaluation.view import select
from tape.results.runs import CHANGES, Run, files, names_of, read_all, table_of, view_of

# Not in labels, unless nothing else tells two rows apart.
DERIVED_SETTINGS = r"length|model\.max_position_embeddings|tokens\..*"
RATE = "trainer.learning_rate"
RATES = rf"{re.escape(RATE)}|learning_rates(\..*)?"
NAMED = ("optimizer.encoding_factor", *CHANGES)  # in a label wherever given
OWN = "|".join(map(re.escape, NAMED))
ENCODING_SETTINGS = rf"position\..*|{RATES}|{OWN}|model\.max_position_embeddings"
METHOD_SETTINGS = rf"peft\..*|position\..*|{RATES}|base_model|tokenizer|{OWN}"
FREE = ("length", "eval_length", "seed")  # arguments of encodings that follow from the texts
METHOD, WEIGHTS = "peft.name", "base_weights"
BASE = "not extended"
Settings = dict[str, Any]
Patterns = Sequence[str]  # as those of file names
# Runs by their evaluation and the label of their row.
Groups = dict[str, dict[str, list[Run]]]


class DifferentSettings(ValueError):
    """Two runs were trained with different settings that a comparison does not vary."""

    def __init__(self, one: Path, other: Path, changes: Sequence[str]):
        self.what = f"{one} and {other} were trained with different settings: {'; '.join(changes)}"
        remedy = "compare runs with the same budget, or name settings that may differ with --across"
        super().__init__(f"{self.what}; {remedy} (tape compare)")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs side by side, by the evaluations that they have."""

    groups: Groups
    missing: dict[Path, str]  # folders that could not be read, and why
    labels: list[str]  # the best first by a row's first evaluation, after the base of methods
    rows: dict[str, pd.DataFrame]  # by evaluation, with the label as `row`, in the order of labels

    @property
    def runs(self) -> list[Run]:
        """The runs of all rows, each once."""
        rows = (groups.get(label, []) for label in self.labels for groups in self.groups.values())
        return list({id(run): run for row in rows for run in row}.values())

    def find(self, baseline: str) -> str:
        """Returns a label by itself or by the folder of one of its runs; raises a ValueError if
        there is none."""
        for groups in self.groups.values():
            for label, runs in groups.items():
                if baseline == label or Path(baseline) in [run.folder for run in runs]:
                    return label
        labels = ", ".join(self.labels)
        raise ValueError(f"--baseline {baseline!r} is not a row; choose one of {labels}")


def read(
    folders: Sequence[Path],
    name: str | None = None,
    across: Patterns = (),
    only: Patterns = ("*",),
    within: Patterns = (),
    failed: Sequence[Path] = (),
) -> Comparison:
    """Groups runs into rows; raises a ValueError if no run can be read, or they cannot be compared.

    Args:
        folders: of runs, or of results that were saved.
        name, failed: see `read_all`.
        across, within: see `groups_of`.
        only: patterns of the names of runs to take, or of evaluations given alone.
    """
    every, missing = read_all(folders, name, failed=failed)
    runs = [run for run in every if any(_matches(x, only) for x in names_of(run.folder))]
    if every and not runs:
        names = ", ".join("/".join(names_of(run.folder)) for run in every)
        raise ValueError(f"--only {' '.join(only)} matches none of the runs: {names}")
    groups = groups_of(runs, across, within)
    rows = {kind: _rows_of(kind, runs_by_label) for kind, runs_by_label in groups.items()}
    labels = _ranked(groups, rows)
    for kind, table in rows.items():
        rows[kind] = table.sort_values("row", key=lambda row: row.map(labels.index), kind="stable")
    return Comparison(groups, missing, labels, rows)


def load(folders: Sequence[str | Path], **chosen: Any) -> pd.DataFrame:
    """Returns the rows of runs or saved results in one table: row (the label), run, encoding,
    settings (their hash), seed, evaluation, measure, conditions, value, n and unit. `chosen` and
    errors are those of `read`; all runs must be readable."""
    comparison = read([Path(folder) for folder in folders], **chosen)
    if comparison.missing:
        raise ValueError("; ".join(comparison.missing.values()))
    return pd.concat(comparison.rows.values(), ignore_index=True)


def _rows_of(kind: str, groups: dict[str, list[Run]]) -> pd.DataFrame:
    rows = table_of([replace(run, rows=run.of(kind)) for runs in groups.values() for run in runs])
    labels = [label for label, runs in groups.items() for _ in runs]
    rows.insert(0, "row", rows["run"].map(dict(zip(rows["run"].unique(), labels, strict=True))))
    return rows


def _ranked(groups: Groups, rows: dict[str, pd.DataFrame]) -> list[str]:
    order: dict[str, tuple[bool, float]] = {}
    for kind, runs_by_label in groups.items():
        view, whole, best = view_of(kind), {}, {}
        table = select(rows[kind], view.measure)
        for label, runs in runs_by_label.items():
            whole[label] = measured = table[table["row"] == label]
            best[label] = measured[view.best(runs[0].asked[kind])(measured)]
        sign = 1 if view.measure == "loss" else -1
        ranking = best if any(map(len, best.values())) else whole
        for label, measured in ranking.items():
            value = sign * mean(per_seed(measured)) if len(measured) else math.inf
            order.setdefault(label, (label != BASE, math.inf if math.isnan(value) else value))
    return sorted(order, key=order.__getitem__)


def groups_of(runs: Sequence[Run], across: Patterns = (), within: Patterns = ()) -> Groups:
    """Groups runs into rows of the tables, one table for each kind of evaluation.

    Args:
        across: patterns of settings in which rows may differ, besides encoding or method, such as
            `model.*`.
        within: patterns of settings in which the runs of one row may differ, such as `base_*`.

    Returns:
        By evaluation and label, the runs of the row in the order of their seeds.

    Raises:
        ValueError: if runs differ in other settings or in those of an evaluation, or if a run is
            given twice.
    """
    groups: Groups = {}
    for kind in files():
        if not (evaluated := [run for run in runs if kind in run.asked]):
            continue
        keys = view_of(kind).keys
        first, *others = ({key: run.asked[kind].get(key) for key in keys} for run in evaluated)
        for run, other in zip(evaluated[1:], others, strict=True):
            if changes := differences(first, other):
                both = f"{evaluated[0].folder} and {run.folder} were evaluated with different"
                raise ValueError(f"{both} settings: {'; '.join(changes)}")
        check_given(evaluated, across, within)
        groups[kind] = rows = {}
        for label, row in grouped(evaluated, within):
            if label in rows:
                both = f"{rows[label][0].folder} and {row[0].folder} are both {label} and were"
                raise ValueError(f"{both} trained with different settings: give only one of them")
            rows[label] = row
    return groups


def check_alike(label: str, one: Run, other: Run, only: str = ".*") -> None:
    """Raises a ValueError if two runs of a row differ in settings of the form `only`, other than
    defaults of their encoding that older runs do not have."""

    def settings_of(run: Run) -> Settings:
        settings = usual_settings(run.encoding) | run.settings
        return {key: value for key, value in settings.items() if re.fullmatch(only, key)}

    if changes := differences(settings_of(one), settings_of(other)):
        both = f"{one.folder} and {other.folder} are both {label}, with other settings"
        raise ValueError(f"{both} ({'; '.join(changes)}): leave out the runs of one of them")


def usual_settings(encoding: str) -> Settings:
    """Returns the defaults of an encoding. Older runs of CARoPE have stored the `theta` of a new
    model, which counts as a default."""
    usual = ENCODINGS[encoding].defaults() if encoding in ENCODINGS else {}
    usual |= {"theta": 10_000.0} if encoding == "carope" else {}
    return {f"position.{name}": value for name, value in usual.items()}


def kind_of(runs: Iterable[Run]) -> str:
    """Returns what the runs are compared in."""
    return "method" if any(METHOD in run.settings for run in runs) else "encoding"


def _matches(key: str, patterns: Patterns) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _without(settings: Settings, patterns: Patterns) -> Settings:
    return {key: value for key, value in settings.items() if not _matches(key, patterns)}


def check_given(runs: Sequence[Run], across: Patterns = (), within: Patterns = ()) -> None:
    """Checks that runs can be compared: their settings are equal but for the encoding or the
    method.

    Methods must adapt the same base. If `within` includes the weights of the base, there may be one
    base for each seed. Runs of one seed must then be equal in the settings `within`.

    Raises:
        ValueError: if runs differ, or if a method adapted other weights than the evaluated base
            has.
    """
    methods = [run for run in runs if METHOD in run.settings]
    bases = [run for run in runs if METHOD not in run.settings] if methods else []
    free = METHOD_SETTINGS if methods else ENCODING_SETTINGS

    def fixed(run: Run, varied: Patterns) -> Settings:
        settings = _without(run.settings, (*across, *varied))
        return {key: value for key, value in settings.items() if not re.fullmatch(free, key)}

    for group in (methods or runs, bases):
        first_of_seed: dict[int, Run] = {}
        for run in group:
            peer = first_of_seed.setdefault(run.seed, run)
            for other, varied in ((group[0], within), (peer, ())):
                if changes := differences(fixed(other, varied), fixed(run, varied)):
                    raise DifferentSettings(other.folder, run.folder, changes)
    base_of_each_seed = _matches(WEIGHTS, within)
    for base in bases:
        weights = next(iter(base.asked.values()))["model"]
        for run in methods:
            is_its_base = run.seed == base.seed or not base_of_each_seed
            if is_its_base and not str(run.settings.get(WEIGHTS)).startswith(weights):
                other = f"{run.folder} was adapted from other weights than those evaluated"
                raise ValueError(f"{other} in {base.folder}: give its own base")


def by_settings(runs: Sequence[Run], within: Patterns) -> list[tuple[Settings, list[Run]]]:
    """Returns groups of runs with equal settings except those `within` and the seed, each group
    with these settings."""
    groups: list[tuple[Settings, list[Run]]] = []
    for run in runs:
        settings = _without(run.settings, within)
        group = next((group for others, group in groups if others == settings), None)
        if group is None:
            groups.append((settings, group := []))
        group.append(run)
    return groups


def grouped(runs: Sequence[Run], within: Patterns = ()) -> list[tuple[str, list[Run]]]:
    """Returns labels and runs with the same settings but those `within`, in the order of seeds;
    raises a ValueError if two runs of a label have one seed."""
    groups = by_settings(runs, within)
    for _, group in groups:
        group.sort(key=lambda run: run.seed)
        for other, run in pairwise(group):
            if other.seed == run.seed:
                both = f"{other.folder} and {run.folder}"
                raise ValueError(f"{both} are the same run, seed {run.seed}: give only one of them")
    labels = labels_of([settings for settings, _ in groups])
    return [(label, group) for label, (_, group) in zip(labels, groups, strict=True)]


def labels_of(groups: list[Settings]) -> list[str]:
    """Returns names of rows by their settings: methods if there are any, else encodings."""
    if not any(METHOD in settings for settings in groups):
        return _encoding_labels(groups)
    return [_method_label(settings, groups) for settings in groups]


def _method_label(settings: Settings, groups: list[Settings]) -> str:
    """Returns the method and the settings in which runs of it differ: `lora peft.lora.rank=8`."""
    if METHOD not in settings:
        return BASE
    method, position = settings[METHOD], settings["position.name"]
    peers = [other for other in groups if other.get(METHOD) == method]
    alike = [other for other in peers if other["position.name"] == position]
    label = method if len(alike) == len(peers) else f"{method} position={position}"
    keys = sorted(set().union(*alike).difference(NAMED))
    return label + _differing(settings, alike, keys) + _named(settings)


def _differing(settings: Settings, alike: list[Settings], keys: Iterable[str]) -> str:
    differing = (k for k in keys if any(other.get(k) != settings.get(k) for other in alike))
    return "".join(f" {key}={settings.get(key)}" for key in differing)


def _named(settings: Settings) -> str:
    short = {key.rpartition(".")[2]: settings.get(key) for key in NAMED}
    return "".join(f" {name}={value}" for name, value in short.items() if value is not None)


def _encoding_labels(groups: list[Settings]) -> list[str]:
    """Returns a name for each group: its encoding, and those of its settings that at most half of
    the groups share. Arguments of other encodings are never named. Learning rates, arguments of
    samplers and settings that follow from others are named only if two names would be equal;
    defaults of an encoding, only if its own groups differ in them. `position.width` is `width` if
    no other setting is called that; a sampler with arguments is `sampler=subset`."""
    kind = "position.sampler.name"
    groups = [{"position.sampler": x[kind]} | x if kind in x else x for x in groups]
    known = {"seed", "name"}.union(*groups)
    short = {key: key.removeprefix("position.") for key in sorted(set().union(*groups))}
    short = {key: key if name in known else name for key, name in short.items()}
    groups = [{short[key]: value for key, value in settings.items()} for settings in groups]
    unnamed = rf"position\.name|position\.sampler\..*|{RATES}|{OWN}|{DERIVED_SETTINGS}"
    named = {key: name for key, name in short.items() if not re.fullmatch(unnamed, key)}
    labels = []
    for settings in groups:
        label = encoding = settings["position.name"]
        usual = usual_settings(encoding)
        for key, name in named.items():
            value, is_argument = settings.get(name), key.startswith("position.")
            peers = groups
            if is_argument and (name not in settings or value == usual.get(key, ...)):
                peers = [other for other in groups if other["position.name"] == encoding]
            elif is_argument:  # also of other encodings that have an argument of this name
                peers = [x for x in groups if name in x or x["position.name"] == encoding]
            if 2 * sum(other.get(name) == value for other in peers) <= len(peers):
                label += f" {name}={value}"
        labels.append(label + _named(settings))
    pairs = [*zip(labels, groups, strict=True)]
    alike = {label: [other for name, other in pairs if name == label] for label in labels}
    return [label + _differing(settings, alike[label], short.values()) for label, settings in pairs]
