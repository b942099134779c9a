"""From the settings of a sweep (config/sweep.yaml) to its runs and their comparison.

The receipt of a run, `.finished` next to its log, is why a finished run is not performed again.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from tape.settings import schema
from tape.settings.composition import compose_run, listed, override, parsed
from tape.settings.groups import ABLATIONS, CONFIG, options
from tape.settings.schema import Kind, optional, shown

OF_THE_SWEEP = {"name", "output_dir", "seed"}  # settings of a run
OF_EVALUATIONS = {"model", "base_model", "out", "name", "task"}  # arguments
FOLDERS = re.compile(r"output/(?!.*\.\.)[^{}]*")
WORDS = Kind("a list, or words in quotes", lambda x: isinstance(x, list | str | int))
KINDS = {
    "name": schema.FOLDER,
    "runs": Kind(
        "the beginning of paths in output/, without braces",
        lambda x: isinstance(x, str) and FOLDERS.fullmatch(x) is not None,
    ),
    "vary": Kind("a mapping", lambda x: isinstance(x, Mapping)),
    **dict.fromkeys(("seeds", "settings", "evaluation"), WORDS),
    "base": optional(WORDS),
    "compare": optional(schema.TEXT),
    "jobs": optional(schema.integer(1)),
    "seconds": optional(schema.integer(1)),
    "cluster": Kind("null, slurm or local", (None, "slurm", "local").__contains__),
}


@dataclass(frozen=True)
class Run:
    """A training run and its evaluation.

    Attributes:
        row: the varied values, `rope` or `rope_learning_rate_0.001`; runs of a row differ by seed.
        folder, log: where it writes.
        commands: of `tape`: the one that trains it, and those that evaluate it.
        is_base: whether others start from it.
    """

    row: str
    folder: Path
    log: Path
    commands: tuple[tuple[str, ...], ...]
    is_base: bool = False

    @property
    def name(self) -> str:
        return str(self.folder).removeprefix("output/")

    @property
    def receipt(self) -> Path:
        return self.log.with_suffix(".finished")

    def request(self) -> dict[str, Any]:
        """Returns what determines the results of the run: its commands, Python (its library is the
        text of data=local), and the state of the settings' and of all files that it reads."""
        given = [word.partition("=") for _, *words in self.commands for word in words]
        # position=tape is not the folder tape.
        read = [(value if by else name, name) for name, by, value in given]
        values = [value for value, name in read if value not in options(name)]
        paths = {path.strip("[]' ") for value in values for path in value.split(",")} - {""}
        outside = [p for p in map(Path, sorted(paths)) if not p.is_relative_to(self.folder)]
        return {
            "commands": self.commands,
            "python": sys.version,
            "config": state_of(CONFIG),
            "read": [state_of(path) for path in outside],
        }

    def record(self, request: dict[str, Any]) -> str:
        """Returns the text of its receipt: what was requested, and the files that resulted."""
        return json.dumps({"request": request, "files": state_of(self.folder)}) + "\n"

    def finished(self) -> bool:
        """Returns whether the request and the files of the run are those of its receipt."""
        found = self.receipt.read_text(errors="replace") if self.receipt.is_file() else ""
        return found == self.record(self.request())


def state_of(path: Path) -> dict[str, list[int]]:
    """Returns size in bytes and time of the last change in ns of a file, or of the files in a
    folder, by path; without checkpoints, bytecode and locks."""
    return {
        str(file): [file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted({path, *path.rglob("*")})
        if file.is_file()
        and not re.search(r"/(\.|__pycache__/|checkpoint-)", str(file.relative_to(path.parent)))
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


def values_of(name: str, given: Any) -> list[Any]:
    """The values of an axis, or the seeds, each once.

    Raises:
        ValueError: if there are none, or one is no value of that setting.
    """
    if not (values := words(given)):
        raise ValueError(f"{name}=[]: name one value or more")
    known = options(name.removeprefix("vary.")) - {"keep"}  # that of a base_model
    allowed = f"known: {listed(known)}" if known else "give numbers, text, true or false"
    for value in values:
        if isinstance(value, list | dict) or (known and value not in known):
            raise ValueError(f"{name}={shown(value)} is no value of that setting; {allowed}")
    return [*dict.fromkeys(values)]


def check_own(settings: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises a ValueError for a setting of the runs that the sweep sets, or that would replace what
    it varies: position.name=rope would train rope in every row of vary.position."""
    own = {*OF_THE_SWEEP, *axes} | ({"position"} if {"ablation", "peft"} & {*axes} else set())
    own |= {f"{name}.{key}" for name in own for key in ("name", "_target_")}
    own |= {f"position.{key}" for row in axes.get("ablation", ()) for key in ABLATIONS.rows[row]}
    for setting in settings:
        if not (found := parsed([setting])):
            raise ValueError(f"{setting!r} is not a setting of a run; give name=value after --")
        name, is_tree = found[0].key_or_group, isinstance(found[0].value(), dict)
        if name in own or (is_tree and any(axis.startswith(f"{name}.") for axis in axes)):
            raise ValueError(f"{setting} is set by the sweep; give name=, seeds= or vary.")


def evaluations(found: DictConfig, more: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields the commands that evaluate a run (`evaluate` of its settings; null leaves one out),
    with `more` arguments."""
    asked = found.evaluate and OmegaConf.to_container(found.evaluate, resolve=True)
    for command, given in (asked or {}).items():
        arguments: list[str] = []
        for name, value in (given or {}).items():
            arguments += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        if given is not None:
            yield (command, *arguments, *more)


def runs_of(
    cfg: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[Run]:
    """The runs in the order of their seeds, base models first. Each row is composed once.

    Raises:
        ValueError: for settings that a run would refuse, and for rows with the same settings.
    """
    more = [str(word) for word in words(cfg["evaluation"])]
    for name in (word.partition("=")[0] for word in more):
        if name.removeprefix("--") in OF_EVALUATIONS:
            raise ValueError(f"evaluation={shlex.join(more)}: {name} is set by the sweep")

    def run(command: Sequence[str], found: DictConfig, row: str | None = None) -> Run:
        folder = Path(found.output_dir)
        commands = (("train", *command), *evaluations(found, more))
        log = Path(cfg["out"], f"{folder.name}.log")
        return Run(row or folder.name, folder, log, commands, is_base=row is None)

    bases: dict[int, tuple[list[str], DictConfig]] = {}
    for seed in seeds if cfg["base"] else ():
        command = [str(word) for word in words(cfg["base"])]
        if not any(word.startswith("seed=") for word in command):
            command.append(f"seed={seed}")
        bases[seed] = (command, compose_run(command)[0])
    rows: dict[str, DictConfig] = {}
    seen: dict[str, str] = {}
    runs: list[Run] = []
    for seed, *chosen in product(seeds, *axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        # A group of settings has names of its own; other values say what they are of.
        row = "_".join(
            str(value) if options(axis) else f"{axis.rpartition('.')[2]}_{value}"
            for axis, value in values.items()
        )
        row = re.sub(r"[^\w.+-]", "-", row)
        folder = f"{cfg['runs']}{row}_{seed}"
        own = {"name": Path(folder).name, "output_dir": folder, "seed": seed}
        given = {"experiment": cfg["recipe"]} if cfg["recipe"] else {}
        given |= {"name": own["name"], "output_dir": folder, **values, "seed": seed}
        given |= {"base_model": bases[seed][1].output_dir} if bases else {}
        command = [*(override(*each) for each in given.items()), *cfg["settings"]]
        if row not in rows:
            rows[row], settings = compose_run(command)
            settings = {key: x for key, x in settings.items() if key not in OF_THE_SWEEP}
            settings["peft"] = {**(settings["peft"] or {}), "name": None}
            other = seen.setdefault(json.dumps(settings).replace(folder, ""), row)
            if other != row:
                raise ValueError(f"{other} and {row} are rows with the same settings; name one")
        rows[row].update(own)
        runs.append(run(command, rows[row], row))
    first: dict[Path, Run] = {}
    for command, base in bases.values():
        with open_dict(base):
            base.evaluate = rows[row].evaluate  # as the runs are
        first.setdefault(Path(base.output_dir), run(command, base))
    return [*first.values(), *runs]


def sweep_of(cfg: dict[str, Any], settings: Sequence[str]) -> list[Run]:
    """The runs of a composed configuration, which is completed, with further settings for them.

    Raises:
        ValueError: for the first setting that is out of bounds, or that a run would refuse.
    """
    for name, kind in KINDS.items():
        schema.check(name, cfg[name], kind)
    axes = dict(leaves(cfg["vary"]))
    for name in OF_THE_SWEEP & {*axes}:
        raise ValueError(f"vary.{name} is set by the sweep; give name=... or seeds=...")
    axes = {axis: values_of(f"vary.{axis}", values) for axis, values in axes.items()}
    for seed in (seeds := values_of("seeds", cfg["seeds"])):
        schema.check("seeds", seed, schema.integer(0, 2**32 - 1))
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
    return runs


def comparison(
    cfg: Mapping[str, Any], runs: Sequence[Run], failed: Sequence[Run] = ()
) -> list[str]:
    """The command that compares runs, if there is one. A baseline that is a row of the sweep stands
    for the first of its runs that did not fail, if any."""
    command, *flags = shlex.split(cfg["compare"] or "") or [""]
    baseline = cfg["baseline"]
    if named := [run for run in runs if run.row == baseline]:
        baseline = next((run.folder for run in named if run not in failed), None)
    flags += [] if "--out" in flags else ["--out", cfg["out"]]
    flags += ["--baseline", str(baseline)] if baseline else []
    rows = list(dict.fromkeys(run.row for run in runs))
    folders = (str(run.folder) for run in sorted(runs, key=lambda run: rows.index(run.row)))
    return [command, *folders, *flags] if command else []
