"""From the settings of a sweep (config/sweep.yaml) to its runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tape.settings.composition import listed
from tape.settings.groups import CONFIG, options
from tape.settings.schema import SETTINGS as OF_A_RUN
from tape.settings.schema import Kind, integer, shown
from tape.sweep.checks import (
    OF_THE_SWEEP,
    SUBMITTED,
    check_comparison,
    check_evaluation,
    check_jobs,
    check_kinds,
    check_own,
    check_runs,
)
from tape.sweep.plan import Run, Sweep, fill


def words(value: Any) -> list[Any]:
    """The elements of a list; the words of a text."""
    found = value if isinstance(value, list) else str(value).split() if value is not None else []
    return [int(each) if re.fullmatch(r"0|[1-9]\d*", str(each)) else each for each in found]


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields `trainer.learning_rate` and its value for nested dictionaries."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def override(name: str, value: Any) -> str:
    """An override in Hydra's grammar."""
    text = value if isinstance(value, str) else shown(value)
    if not re.fullmatch(r"[\w./+:-]*", text):
        text = "'" + text.replace("'", r"\'") + "'"
    return f"{name}={text}"


def checked_values(name: str, values: Sequence[Any], kind: Kind | None = None) -> Sequence[Any]:
    """The values of an axis, or the seeds.

    Raises:
        ValueError: if there are none, or one is given twice, is of another kind, or is not an entry
            of its config group.
    """
    if not values:
        raise ValueError(f"{name}=[]: name one value or more")
    known = options(name.removeprefix("vary.")) - {"keep"}  # that of a base_model
    for n, value in enumerate(values):
        if kind is not None and not kind.admits(value):
            raise ValueError(f"{name}={shown(value)} must be {kind.words}")
        if isinstance(value, list | dict) or (known and value not in known):
            allowed = f"known: {listed(known)}" if known else "give numbers, text, true or false"
            raise ValueError(f"{name}={shown(value)} is no value of that setting; {allowed}")
        if value in values[:n]:
            raise ValueError(f"{name}={shown(value)}: duplicate value; name it once")
    return values


def runs_of(cfg: dict[str, Any], axes: dict[str, Sequence[Any]], seeds: Sequence[int]) -> list[Run]:
    """The runs of a group of settings; its base models first."""
    out, train = Path(cfg["out"]), fill(cfg["train"])
    measures = cfg["measures"] or {"find": "", "show": ""}
    evaluate = {"evaluate": (cfg["evaluate"],) if cfg["evaluate"] else (), **measures}
    evaluate["evaluation"] = tuple(map(str, words(cfg["evaluation"])))
    bases: dict[Path, Run] = {}
    runs = []
    for seed in seeds:
        base = None
        if cfg["base"]:
            name, *told = (
                str(word).replace("{seed}", str(seed))
                for word in (cfg["base"]["folder"], *cfg["base"]["settings"])
            )
            folder = Path(name)
            base = Run(folder.name, folder, out / f"{folder.name}.log", (*train, *told), **evaluate)
            base = bases.setdefault(folder, replace(base, length=cfg["base"]["length"]))
        for values in itertools.product(*axes.values()):
            values = dict(zip(axes, values, strict=True))
            # A group of settings has names of its own; other values say what they are of.
            named = (
                str(value) if options(axis) else f"{axis.rpartition('.')[2]}_{value}"
                for axis, value in values.items()
            )
            row = re.sub(r"[^\w.+-]", "-", "_".join(named))
            folder = Path(cfg["runs"].format(row=row, seed=seed))
            settings = {"name": folder.name, "output_dir": str(folder), **values, "seed": seed}
            if base:
                settings["base_model"] = str(base.folder)
            if cfg["recipe"]:
                settings = {"experiment": cfg["recipe"], **settings}
            command = (*train, *(override(*each) for each in settings.items()), *cfg["settings"])
            runs.append(
                Run(row, folder, out / f"{folder.name}.log", command, **evaluate, base=base)
            )
    return [*bases.values(), *runs]


def sweep_of(cfg: dict[str, Any], settings: Sequence[str]) -> Sweep:
    """The sweep of a composed configuration, and further settings of its runs.

    Raises:
        ValueError: for the first setting that is missing or out of bounds.
    """
    check_kinds(cfg)
    check_jobs(cfg["cluster"], cfg["submitit"])
    tables = cfg["tables"] or {}
    chosen = [*tables] if cfg["only"] is None else words(cfg["only"])
    if cfg["only"] is not None and not chosen:
        raise ValueError(f"only=[]: name one table or more; known: {', '.join(tables)}")
    if unknown := [name for name in chosen if name not in tables]:
        raise ValueError(f"only={unknown[0]}: no such table; known: {', '.join(tables) or 'none'}")
    tables = {name: tables[name] for name in chosen}
    axes = dict(leaves(cfg["vary"]))
    for name in OF_THE_SWEEP & {*axes}:
        raise ValueError(f"vary.{name} is set by the sweep; give name=... or seeds=...")
    for axis, values in axes.items():
        if values is None:  # the rows of the tables
            values = list(dict.fromkeys(row for rows in tables.values() for row in rows))
        axes[axis] = checked_values(f"vary.{axis}", words(values), OF_A_RUN.get(axis))
    seeds = checked_values("seeds", words(cfg["seeds"]), integer(0, 2**32 - 1))
    runs, labels = [], set()
    for name, changes in (cfg["groups"] or {"": {}}).items():
        if added := changes.keys() - cfg.keys():
            raise ValueError(f"groups.{name}.{min(added)}: there is no such setting of a sweep")
        group = cfg | changes
        check_kinds(group)
        group["settings"] = [*words(group["settings"]), *settings]
        check_own(group["settings"], axes)
        labels |= check_runs(runs_of(group, axes, seeds[:1]), axes, bool(cfg["compare"]))
        runs += runs_of(group, axes, seeds)
    runs.sort(key=lambda run: run.length is None)  # base models first
    if len({run.folder for run in runs}) < len(runs):
        raise ValueError(f"runs={cfg['runs']}: two runs have one folder; vary other settings")
    baseline, usual = cfg["baseline"], cfg["usual_baseline"]
    if baseline is None and any(run.row == usual for run in runs):
        baseline = usual
    sweep = Sweep(
        runs,
        Path(cfg["out"]),
        CONFIG,
        cfg["compare"] or "",
        tables,
        baseline,
        cfg["partial"],
        cfg["jobs"] or (len(runs) if cfg["cluster"] in SUBMITTED else 2),
        cfg["seconds"],
    )
    check_comparison(sweep, labels)
    check_evaluation(sweep)
    return sweep
