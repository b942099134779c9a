"""From the settings of a sweep (config/sweep.yaml) to its runs and their comparison."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tape.settings import schema
from tape.settings.composition import check_added, composed, listed, parsed, unknown
from tape.settings.groups import ABLATIONS, options
from tape.settings.schema import Kind, optional, shown
from tape.sweep.receipt import Run

OF_THE_SWEEP = {"name", "output_dir", "seed"}  # settings of a run
OF_EVALUATIONS = {"model", "base_model", "out", "name", "task"}  # arguments
FOLDERS = re.compile(r"output/[^{}]*(\{(row|seed)\}[^{}]*)*")
MAPPING = Kind("a mapping", lambda x: isinstance(x, Mapping))
WORDS = Kind("a list, or words in quotes", lambda x: isinstance(x, list | str | int))
KINDS = {
    "name": schema.FOLDER,
    "runs": Kind(
        "a folder in output/, in quotes, as 'output/e_{row}_{seed}'",
        lambda x: isinstance(x, str) and FOLDERS.fullmatch(x) is not None and ".." not in x,
    ),
    **dict.fromkeys(("vary", "submitit"), MAPPING),
    **dict.fromkeys(("seeds", "settings", "evaluation"), WORDS),
    **dict.fromkeys(("out", "compare"), optional(schema.TEXT)),
    "base": optional(WORDS),
    "jobs": optional(schema.integer(1)),
    "seconds": optional(schema.number("> 0", lambda x: x > 0)),
    **dict.fromkeys(("partial", "dry_run"), schema.SWITCH),
    # joblib: LAUNCHER of script/compare.sh, as null
    "cluster": Kind("null, slurm or local", (None, "joblib", "slurm", "local").__contains__),
}


def words(value: Any) -> list[Any]:
    """The elements of a list; the words of a text."""
    found = value if isinstance(value, list) else shlex.split(str(value))
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


def checked_values(name: str, given: Any, kind: Kind | None = None) -> list[Any]:
    """The values of an axis, or the seeds.

    Raises:
        ValueError: if there are none, or one is given twice, is of another kind, or is not an entry
            of its config group.
    """
    if not (values := words(given)):
        raise ValueError(f"{name}=[]: name one value or more")
    known = options(name.removeprefix("vary.")) - {"keep"}  # that of a base_model
    allowed = f"known: {listed(known)}" if known else "give numbers, text, true or false"
    for n, value in enumerate(values):
        if kind is not None:
            schema.check(name, value, kind)
        if isinstance(value, list | dict) or (known and value not in known):
            raise ValueError(f"{name}={shown(value)} is no value of that setting; {allowed}")
        if value in values[:n]:
            raise ValueError(f"{name}={shown(value)}: duplicate value; name it once")
    return values


def check_own(settings: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises a ValueError for a setting of the runs that the sweep sets, or that would replace what
    it varies: position.name=rope would train rope in every row of vary.position."""
    own = {*OF_THE_SWEEP, *axes}
    own |= {f"{axis}.{key}" for axis in axes if options(axis) for key in ("name", "_target_")}
    if {"ablation", "peft"} & {*axes}:  # these choose a position
        own |= {"position", "position.name"}
    for value in axes.get("ablation", ()):
        own |= {f"position.{key}" for key in ABLATIONS.rows[value]}
    for setting in settings:
        if not (found := parsed([setting])):
            raise ValueError(f"{setting!r} is not a setting of a run; give name=value after --")
        name, value = found[0].key_or_group, found[0].value()
        varied = any(axis.startswith(f"{name}.") for axis in axes)
        if name in own or (varied and (isinstance(value, dict) or not options(name))):
            raise ValueError(f"{setting} is set by the sweep; give name=, seeds= or vary.")


def compose_run(settings: Sequence[str]) -> tuple[DictConfig, dict[str, Any]]:
    """Returns the configuration of a run as it is composed, and its plain values.

    Raises:
        ValueError: for settings that `tape train` would refuse before it reads any data.
    """
    try:
        check_added([*settings], "train")
        found = composed([*settings], "train")
        schema.check_groups(OmegaConf.to_container(found))
        values = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ValueError(unknown([*settings], "train") or str(error)) from error
    schema.check_settings(values)
    return found, values


def check_rows(rows: Mapping[str, dict[str, Any]], compared: bool) -> None:
    """Raises a ValueError for rows of the same settings, and for runs whose training loss would
    never be logged, though it is compared."""
    seen: dict[str, str] = {}
    for row, settings in rows.items():
        steps, every = (settings["trainer"][key] for key in ("max_steps", "logging_steps"))
        if compared and every > steps:
            raise ValueError(
                f"trainer.logging_steps={every} is more than trainer.max_steps={steps}: no loss "
                f"would be logged for the comparison; give trainer.logging_steps={steps} or less"
            )
        own = {key: value for key, value in settings.items() if key not in OF_THE_SWEEP}
        own["peft"] = {key: x for key, x in (own["peft"] or {}).items() if key != "name"}
        text = json.dumps(own, sort_keys=True).replace(settings["output_dir"], "")
        if (other := seen.setdefault(text, row)) != row:
            raise ValueError(f"{other} and {row} are rows with the same settings; name one of them")


def evaluations(found: DictConfig, more: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields the commands that evaluate a run (`evaluate` of its settings; null leaves one out),
    with `more` arguments."""
    asked = found.evaluate and OmegaConf.to_container(found.evaluate, resolve=True)
    for command, given in (asked or {}).items():
        arguments: list[str] = []
        for name, value in (given or {}).items():
            values = value if isinstance(value, list) else [value]
            arguments += [f"--{name}", *map(str, values)]
        if given is not None:
            yield (command, *arguments, *more)


def runs_of(
    cfg: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[Run]:
    """The runs in the order of their seeds, base models first. Each row is composed once."""
    more = [str(word) for word in words(cfg["evaluation"])]
    for name in (word.partition("=")[0] for word in more):
        if name.removeprefix("--") in OF_EVALUATIONS:
            raise ValueError(f"evaluation={shlex.join(more)}: {name} is set by the sweep")

    def run(command: Sequence[str], found: DictConfig, row: str | None = None) -> Run:
        folder = Path(found.output_dir)
        commands = (("train", *command), *evaluations(found, more))
        log = Path(cfg["out"]) / f"{folder.name}.log"
        return Run(row or folder.name, folder, log, commands, is_base=row is None)

    bases: dict[int, tuple[list[str], DictConfig]] = {}
    for seed in seeds if cfg["base"] else ():
        command = [str(word) for word in words(cfg["base"])]
        if not any(word.startswith("seed=") for word in command):
            command.append(f"seed={seed}")
        bases[seed] = (command, compose_run(command)[0])
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[int, list[Run]] = {seed: [] for seed in seeds}
    for chosen in itertools.product(*axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        # A group of settings has names of its own; other values say what they are of.
        row = "_".join(
            str(value) if options(axis) else f"{axis.rpartition('.')[2]}_{value}"
            for axis, value in values.items()
        )
        row = re.sub(r"[^\w.+-]", "-", row)
        for seed, begun in runs.items():
            folder = Path(cfg["runs"].format(row=row, seed=seed))
            given = {"experiment": cfg["recipe"]} if cfg["recipe"] else {}
            given |= {"name": folder.name, "output_dir": str(folder), **values, "seed": seed}
            given |= {"base_model": bases[seed][1].output_dir} if bases else {}
            command = [*(override(*each) for each in given.items()), *cfg["settings"]]
            if row not in rows:
                found, rows[row] = compose_run(command)
            found.update(name=folder.name, output_dir=str(folder), seed=seed)
            begun.append(run(command, found, row))
    check_rows(rows, bool(cfg["compare"]))
    first: dict[Path, Run] = {}
    for command, base in bases.values():
        with open_dict(base):
            base.evaluate = found.evaluate  # as the runs are
        first.setdefault(Path(base.output_dir), run(command, base))
    return [*first.values(), *itertools.chain(*runs.values())]


def sweep_of(cfg: dict[str, Any], settings: Sequence[str]) -> list[Run]:
    """The runs of a composed configuration, which is completed, with further settings for them.

    Raises:
        ValueError: for the first setting that is missing or out of bounds, and for settings that a
            run or the comparison would refuse.
    """
    for name, kind in KINDS.items():
        schema.check(name, cfg[name], kind)
    axes = dict(leaves(cfg["vary"]))
    for name in OF_THE_SWEEP & {*axes}:
        raise ValueError(f"vary.{name} is set by the sweep; give name=... or seeds=...")
    axes = {
        axis: checked_values(f"vary.{axis}", values, schema.SETTINGS.get(axis))
        for axis, values in axes.items()
    }
    seeds = checked_values("seeds", cfg["seeds"], schema.integer(0, 2**32 - 1))
    cfg["settings"] = [*map(str, words(cfg["settings"])), *settings]
    check_own(cfg["settings"], axes)
    runs = runs_of(cfg, axes, seeds)
    if len({run.folder for run in runs}) < len(runs):
        raise ValueError(f"runs={cfg['runs']}: two runs have one folder; vary other settings")
    rows, baseline = {run.row for run in runs}, cfg["baseline"]
    if baseline is None and cfg["usual_baseline"] in rows:
        cfg["baseline"] = cfg["usual_baseline"]
    elif baseline and baseline.split()[0] not in rows | options("position") | options("peft"):
        known = listed(rows)
        raise ValueError(f"baseline={baseline} is not a row of the sweep; choose one of {known}")
    if cfg["jobs"] is None:
        cfg["jobs"] = len(runs) if cfg["cluster"] in ("slurm", "local") else 2
    return runs


def comparison(
    cfg: Mapping[str, Any], runs: Sequence[Run], failed: Sequence[Run] = ()
) -> list[str]:
    """The command that compares runs, those of a row in succession; none if there is none.

    A baseline that is a row of the sweep stands for the first of its runs that did not fail; there
    is none if all failed.
    """
    command, *flags = shlex.split(cfg["compare"] or "") or [""]
    baseline = cfg["baseline"]
    if named := [run for run in runs if run.row == baseline]:
        baseline = next((run.folder for run in named if run not in failed), None)
    flags += [] if "--out" in flags else ["--out", cfg["out"]]
    flags += ["--baseline", str(baseline)] if baseline else []
    rows = dict.fromkeys(run.row for run in runs)
    folders = (str(run.folder) for row in rows for run in runs if run.row == row)
    return [command, *folders, *flags] if command else []
