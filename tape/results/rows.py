"""Runs that differ only in their seed form a row; rows are named by the settings that differ.

What runs are compared in is the encoding (position.*) or the method of adaptation (peft.*). In all
other settings they must be equal, unless these are named: nothing unequal is compared silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from tape.results.runs import EVALUATIONS, INTERVENTION, Run, view_of
from tape.runs.folder import differences

# Not in labels, unless nothing else tells two rows apart.
DERIVED_SETTINGS = r"length|model\.max_position_embeddings|tokens\..*"
RATE = "trainer.learning_rate"
RATES = rf"{re.escape(RATE)}|learning_rates(\..*)?"
NAMED = ("optimizer.encoding_factor", INTERVENTION)  # in a label wherever given
OWN = "|".join(map(re.escape, NAMED))
ENCODING_SETTINGS = rf"position\..*|{RATES}|{OWN}|model\.max_position_embeddings"
METHOD_SETTINGS = rf"peft\..*|position\..*|{RATES}|base_model|tokenizer|{OWN}"
METHOD, WEIGHTS = "peft.name", "base_weights"
BASE = "not extended"


# Runs by their evaluation and the label of their row.
Groups = dict[str, dict[str, list[Run]]]


def groups_of(
    runs: Sequence[Run], across: Sequence[str] = (), within: Sequence[str] = ()
) -> Groups:
    """Groups runs into rows, in the order of the runs. Evaluations may have runs of their own.

    Args:
        across: patterns of further settings that may differ, such as `model.*`.
        within: patterns of settings that may differ in a row, from seed to seed, such as `base_*`.

    Raises:
        ValueError: if runs were asked or given something else, or one occurs twice.
    """
    groups: Groups = {}
    for kind in EVALUATIONS:
        if not (asked := [run for run in runs if kind in run.asked]):
            continue
        _check_asked(asked, kind)
        check_given(asked, across, within)
        groups[kind] = {}
        for label, group in grouped(asked, within):
            if label in groups[kind]:
                raise ValueError(
                    f"{groups[kind][label][0].folder} and {group[0].folder} are both {label} and "
                    "were trained with different settings: give only one of them"
                )
            groups[kind][label] = group
    return groups


def is_method(run: Run) -> bool:
    return METHOD in run.settings


def kind_of(runs: Iterable[Run]) -> str:
    """What the runs are compared in."""
    return "method" if any(map(is_method, runs)) else "encoding"


def _check_asked(runs: list[Run], kind: str) -> None:
    keys = view_of(kind).keys
    for run in runs[1:]:
        if changes := differences(
            *({key: of.asked[kind].get(key) for key in keys} for of in (runs[0], run))
        ):
            raise ValueError(
                f"{runs[0].folder} and {run.folder} were evaluated with different settings: "
                f"{'; '.join(changes)}"
            )


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(key, each) for each in patterns)


def check_given(
    runs: Sequence[Run], across: Sequence[str] = (), within: Sequence[str] = ()
) -> None:
    """Raises a ValueError unless runs had one budget, and methods adapted one base, or one per seed
    if their weights may differ within a row: runs of one seed are equal in what is `within`."""
    methods = [run for run in runs if is_method(run)]
    bases = [run for run in runs if not is_method(run)] if methods else []
    free = METHOD_SETTINGS if methods else ENCODING_SETTINGS

    def given(run: Run, varied: Sequence[str]) -> dict[str, Any]:
        return {
            key: value
            for key, value in run.settings.items()
            if not re.fullmatch(free, key) and not _matches(key, (*across, *varied))
        }

    several = _matches(WEIGHTS, within)
    if len(bases) > 1 and not several:
        raise ValueError(
            f"{bases[0].folder} and {bases[1].folder} are both models without adaptation: give "
            "only one of them"
        )
    for group in (methods or runs, bases):
        peers: dict[int, Run] = {}
        for run in group:
            for other, varied in ((group[0], within), (peers.setdefault(run.seed, run), ())):
                if changes := differences(given(other, varied), given(run, varied)):
                    raise ValueError(
                        f"{other.folder} and {run.folder} were trained with different settings: "
                        f"{'; '.join(changes)}; compare runs with the same budget, or name "
                        "settings that may differ with --across"
                    )
    for base in bases:
        weights = next(iter(base.asked.values()))["model"]
        for run in methods:
            own = run.seed == base.seed or not several
            if own and not str(run.settings.get(WEIGHTS)).startswith(weights):
                raise ValueError(
                    f"{run.folder} was adapted from other weights than those evaluated in "
                    f"{base.folder}: give its own base"
                )


def by_settings(
    runs: Sequence[Run], within: Sequence[str] = ()
) -> list[tuple[dict[str, Any], list[Run]]]:
    """Returns settings, and the runs that have these but for those `within` and the seed."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    for run in runs:
        told = {key: value for key, value in run.settings.items() if not _matches(key, within)}
        group = next((group for settings, group in groups if settings == told), None)
        if group is None:
            groups.append((told, group := []))
        group.append(run)
    return groups


def grouped(runs: Sequence[Run], within: Sequence[str] = ()) -> list[tuple[str, list[Run]]]:
    """Returns labels and runs with the same settings but those `within`, in the order of seeds.

    Raises:
        ValueError: if two runs of a label have one seed.
    """
    groups = by_settings(runs, within)
    for _, group in groups:
        group.sort(key=lambda run: run.seed)
        for other, run in pairwise(group):
            if other.seed == run.seed:
                raise ValueError(
                    f"{other.folder} and {run.folder} are the same run, seed {run.seed}: give only "
                    "one of them"
                )
    labels = labels_of([settings for settings, _ in groups])
    return [(label, group) for label, (_, group) in zip(labels, groups, strict=True)]


def labels_of(groups: list[dict[str, Any]]) -> list[str]:
    """Returns names of rows by their settings: methods if there are any, else encodings."""
    return (method_labels if any(METHOD in each for each in groups) else row_labels)(groups)


def method_labels(groups: list[dict[str, Any]]) -> list[str]:
    """The method, then settings that tell it from others of that name: `lora peft.lora.rank=8`. A
    run without a method is the base."""
    labels = []
    for settings in groups:
        if METHOD not in settings:
            labels.append(BASE)
            continue
        method, position = settings[METHOD], settings["position.name"]
        peers = [other for other in groups if other.get(METHOD) == method]
        alike = [other for other in peers if other["position.name"] == position]
        label = method if len(alike) == len(peers) else f"{method} position={position}"
        keys = sorted(set().union(*alike).difference(NAMED))
        labels.append(label + _differing(settings, alike, keys) + _named(settings))
    return labels


def _differing(settings: dict[str, Any], alike: list[dict[str, Any]], keys: Iterable[str]) -> str:
    """Returns the settings that are not equal in all groups."""
    differing = (key for key in keys if any(o.get(key) != settings.get(key) for o in alike))
    return "".join(f" {key}={settings.get(key)}" for key in differing)


def _named(settings: dict[str, Any]) -> str:
    given = {key.rpartition(".")[2]: settings.get(key) for key in NAMED}
    return "".join(f" {key}={value}" for key, value in given.items() if value is not None)


def row_labels(groups: list[dict[str, Any]]) -> list[str]:
    """The encoding, and those settings of each group that not more than half of the groups share,
    but for arguments of other encodings, and for learning rates, arguments of samplers and what
    follows from other settings unless nothing else tells two groups apart. `position.width` is
    `width`, if nothing else is; a sampler with arguments is `sampler=subset`."""
    sampler = "position.sampler"
    groups = [
        {**({sampler: each[f"{sampler}.name"]} if f"{sampler}.name" in each else {}), **each}
        for each in groups
    ]
    known = {"seed", "name"}.union(*groups)
    short = {key: key.removeprefix("position.") for key in sorted(set().union(*groups))}
    short = {key: key if name in known else name for key, name in short.items()}
    groups = [{short[key]: value for key, value in each.items()} for each in groups]
    unnamed = rf"position\.name|position\.sampler\..*|{RATES}|{OWN}|{DERIVED_SETTINGS}"
    named = {key: name for key, name in short.items() if not re.fullmatch(unnamed, key)}
    labels = []
    for settings in groups:
        label = settings["position.name"]
        for key, name in named.items():
            peers = [
                other.get(name)
                for other in groups
                if other["position.name"] == settings["position.name"]
                or not key.startswith("position.")
                or (name in other and name in settings)
            ]
            if 2 * peers.count(settings.get(name)) <= len(peers):
                label += f" {name}={settings.get(name)}"
        labels.append(label + _named(settings))
    apart = []
    for label, settings in zip(labels, groups, strict=True):
        alike = [groups[n] for n, same in enumerate(labels) if same == label]
        apart.append(label + _differing(settings, alike, short.values()))
    return apart
