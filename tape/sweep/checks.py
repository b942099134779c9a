"""Checks of the settings of a sweep, and of those of its runs, before the first run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tape.settings.composition import check_added, composed, parsed, unknown
from tape.settings.groups import ABLATIONS, CONFIG, options
from tape.settings.schema import (
    FOLDER,
    SWITCH,
    TEXT,
    Kind,
    check_groups,
    check_settings,
    integer,
    number,
    optional,
    shown,
)
from tape.sweep.plan import PLACEHOLDER, Run, Sweep, fill

SUBMITTED = ("slurm", "local")
CLUSTERS = (None, "joblib", *SUBMITTED)  # joblib: LAUNCHER of script/compare.sh, as null
OF_THE_SWEEP = {"name", "output_dir", "seed"}  # settings of a run
WORDS = Kind("a list, or words in quotes", lambda x: isinstance(x, list | str | int))
MAPPING = Kind("a mapping", lambda x: isinstance(x, Mapping))


def _is_base(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"folder", "length", "settings"}
        and TEXT.admits(value["folder"])
        and integer(2).admits(value["length"])
        and isinstance(value["settings"], list)
    )


def _are_measures(value: Any) -> bool:
    try:
        return value.keys() == {"find", "show"} and re.sub(value["find"], value["show"], "") == ""
    except (AttributeError, LookupError, TypeError, re.error):
        return False


def _are_folders(value: Any) -> bool:
    try:
        parts = Path(value.format(row="row", seed=0)).parts
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    return parts[:1] == ("output",) and len(parts) > 1 and ".." not in parts


def _is_stride(value: Any) -> bool:
    multiple = isinstance(value, str) and re.fullmatch(r"\{length([*/][1-9]\d*)?\}", value)
    return bool(multiple) or integer(1).admits(value)


def command(*places: str) -> Kind:
    """Returns the kind of commands that have no other placeholders."""

    def admits(value: Any) -> bool:
        try:
            words = isinstance(value, str) and fill(value, **dict.fromkeys(places, 1))
        except (ValueError, ZeroDivisionError):  # an open quote; {length/0}
            return False
        return bool(words) and {found[1] for found in PLACEHOLDER.finditer(value)} <= {*places}

    known = f" but {', '.join(f'{{{place}}}' for place in places)}" if places else ""
    return Kind(f"a command with closed quotes and no placeholders{known}", admits)


KINDS = {
    "name": FOLDER,
    "out": TEXT,
    "runs": Kind("a folder in output/, in quotes, as 'output/e_{row}_{seed}'", _are_folders),
    "vary": MAPPING,
    "seeds": WORDS,
    "recipe": optional(TEXT),
    "settings": WORDS,
    "groups": optional(
        Kind(
            "a mapping of mappings",
            lambda x: MAPPING.admits(x) and all(map(MAPPING.admits, x.values())),
        )
    ),
    "base": optional(Kind("a mapping of folder, length and a list of settings", _is_base)),
    "train": command(),
    "evaluate": optional(command("run", "length", "evaluation")),
    "evaluation": optional(WORDS),
    "measures": optional(
        Kind("find, a regular expression, and show, which may use its groups", _are_measures)
    ),
    "compare": optional(command("runs", "out", "baseline")),
    "baseline": optional(TEXT),
    "usual_baseline": optional(TEXT),
    "tables": optional(
        Kind(
            "a mapping of lists",
            lambda x: MAPPING.admits(x) and all(isinstance(y, list) for y in x.values()),
        )
    ),
    "only": optional(WORDS),
    "jobs": optional(integer(1)),
    "seconds": optional(number("> 0", lambda x: x > 0)),
    "partial": SWITCH,
    "dry_run": SWITCH,
    "cluster": Kind("null, slurm or local", CLUSTERS.__contains__),
    "submitit": MAPPING,
    # of some files of config/sweep
    "batch": integer(1),
    "stride": Kind(
        "an integer >= 1, or a multiple of the length in quotes, as '{length*8}'", _is_stride
    ),
    "windows": Kind(
        "lengths, as '{length} {length*2} 4096'",
        lambda x: all(word.isdecimal() or _is_stride(word) for word in str(x).split() or " "),
    ),
    "grid": FOLDER,
}


def check_kinds(cfg: Mapping[str, Any]) -> None:
    """Raises a ValueError for the first setting of a sweep that is out of bounds."""
    for name, kind in KINDS.items():
        if name in cfg and not kind.admits(cfg[name]):
            raise ValueError(f"{name}={shown(cfg[name])} must be {kind.words}")


def check_own(settings: Iterable[Any], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises a ValueError for a setting of the runs that the sweep sets, or that would replace what
    it varies: position.name=rope would train rope in every row of vary.position."""
    own = {*OF_THE_SWEEP, *axes}
    for axis, values in axes.items():
        if options(axis):
            own |= {f"{axis}.name", f"{axis}._target_"}
        if axis in ("ablation", "peft"):  # these choose a position
            own |= {"position", "position.name"}
        if axis == "ablation":
            own |= {f"position.{key}" for value in values for key in ABLATIONS.rows[value]}
    for setting in map(str, settings):
        found = parsed([setting])
        if not found:
            raise ValueError(
                f"{setting or repr(setting)} is not a setting of train.py; give name=value after --"
            )
        name = found[0].key_or_group
        if name in own or any(axis.startswith(f"{name}.") for axis in axes if not options(name)):
            raise ValueError(
                f"{setting} is set by the sweep; give name=..., seeds=... and vary... (the "
                f"scripts: NAME, SEEDS and TYPES)"
            )


@cache
def compose_run(command: tuple[str, ...]) -> dict[str, Any] | None:
    """Returns the configuration of a run of train.py; None for another program.

    Raises:
        ValueError: for settings that train.py would refuse before it reads any data.
    """
    at = next((n for n, word in enumerate(command, 1) if Path(word).name == "train.py"), None)
    if at is None:
        return None
    words = [*command[at:]]
    try:
        check_added(words, "train", CONFIG)
        found = composed(words, "train")
        check_groups(OmegaConf.to_container(found))
        settings = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(unknown(words, "train") or str(error)) from error
    check_settings(settings)
    return settings


def check_runs(runs: Sequence[Run], axes: Iterable[str], compared: bool) -> set[str]:
    """Checks the settings of runs with one seed.

    Args:
        axes: the settings that vary.
        compared: whether their training losses will be.

    Returns:
        Names of their encodings and methods, with which the labels of a comparison begin.

    Raises:
        ValueError: for settings that train.py would refuse; for rows with the same settings.
    """
    names, rows = set(), {}
    for run in runs:
        if (settings := compose_run(run.train)) is None:
            continue
        steps, every = (settings["trainer"][key] for key in ("max_steps", "logging_steps"))
        if compared and every > steps:
            raise ValueError(
                f"trainer.logging_steps={every} is more than trainer.max_steps={steps}: no loss "
                f"would be logged for the comparison; give trainer.logging_steps={steps} or less"
            )
        names |= {(settings[group] or {}).get("name") for group in ("position", "peft")} - {None}
        given = {key: value for key, value in settings.items() if key not in OF_THE_SWEEP}
        for axis in {*axes} - {"position"}:
            if isinstance(given.get(axis), dict):
                given[axis] = {key: x for key, x in given[axis].items() if key != "name"}
        told = json.dumps(given, sort_keys=True).replace(str(run.folder), "")  # trainer.output_dir
        if (other := rows.setdefault(told, run.row)) != run.row:
            raise ValueError(
                f"{other} and {run.row} are rows with the same settings; name one of them"
            )
    return names


def check_comparison(sweep: Sweep, labels: Iterable[str]) -> None:
    """Checks that every table has rows, and the baseline among them.

    Args:
        labels: first words of labels of the comparison, which may be the baseline too.

    Raises:
        ValueError: for the first table or baseline that the comparison would refuse.
    """
    if not sweep.compare:
        return
    rows, baseline = dict.fromkeys(run.row for run in sweep.runs), sweep.baseline
    if baseline is not None:
        if "{baseline}" not in sweep.compare:
            raise ValueError(f"baseline={baseline}: this comparison has none; leave it out")
        known = {*rows, *labels, *(str(run.folder) for run in sweep.runs)}
        if not {baseline, baseline.split()[0]} & known:
            raise ValueError(
                f"baseline={baseline} is not a row of the sweep; choose one of {', '.join(rows)}"
            )
    for name, table in sweep.tables.items():
        if rows.keys().isdisjoint(table):
            raise ValueError(f"table {name} has no row of the sweep; choose tables with only=...")
        if baseline in rows and baseline not in table:
            raise ValueError(
                f"baseline={baseline} is not in table {name}; choose another baseline, or tables "
                "with only=..."
            )


def check_jobs(cluster: str | None, parameters: dict[str, Any]) -> None:
    """Raises a ValueError for parameters of jobs without such jobs, or that submitit refuses."""
    if parameters and cluster not in SUBMITTED:
        name, value = next(iter(parameters.items()))
        raise ValueError(
            f"submitit.{name}={shown(value)} is for jobs: give cluster=slurm or cluster=local too"
        )
    if parameters:
        from tape.sweep.cluster import check_parameters

        check_parameters(parameters)


def check_evaluation(sweep: Sweep) -> None:
    """Checks the further arguments of the evaluations where a run has yet to be performed.

    Raises:
        ValueError: for an argument that the command refuses, or that the sweep sets itself.
    """
    kinds = {
        (run.evaluate, run.evaluation): run
        for run in sweep.runs
        if run.evaluation and not run.finished(sweep.config)
    }
    for (templates, evaluation), run in kinds.items():
        given = f"evaluation={shlex.join(evaluation)}"
        for template in templates:
            pairs = re.findall(r"(--\w+|\b\w+(?==))[ =](\S+)", template)
            own = {
                name for name, value in pairs if "{run}" in value or name in ("--name", "--task")
            }
            for word in evaluation:
                name = word.partition("=")[0]
                short = name.startswith("--") and len(name) > 2  # --ou is --out for argparse
                if any(
                    each.startswith(name) if short else each.lstrip("-") == name for each in own
                ):
                    raise ValueError(f"{given}: {name} is set by the sweep")
        # Without a model, a command refuses wrong arguments first, and then the folder.
        with tempfile.TemporaryDirectory() as place:
            absent = Path(place) / "absent"
            for words in replace(run, folder=absent).evaluations(length=1024):
                status, errors = performed(words)
                if status and str(absent) not in errors:
                    refusal = (errors.strip().splitlines() or ["refused"])[-1]
                    raise ValueError(f"{given}: {refusal.removeprefix('error: ')}")


def performed(words: Sequence[str]) -> tuple[int, str]:
    """Performs a command; returns its exit status and what it wrote on stderr."""
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stderr
