"""From the settings of a sweep (config/sweep.yaml) to its runs and their comparison.

The receipt of a run, `.finished` next to its log, is why a finished run is not performed again.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from tqdm import tqdm

from tape.cli.settings.composition import (
    compose_run,
    instantiate,
    override,
    overrides_of,
    settings_of,
)
from tape.cli.settings.groups import options
from tape.core.config import CONFIG, PACKAGE
from tape.core.run_folder import begun, changes_of, nodes
from tape.core.validation import look_up
from tape.training import settings as schema
from tape.training.settings import RunSettings

CODE = [PACKAGE / part for part in ("attention", "encodings", "model", "positions")]
REGISTRY = PACKAGE / "encodings" / "__init__.py"
Sweep = Mapping[str, Any]  # its settings, completed by `sweep_of`
OF_THE_SWEEP = {"name", "output_dir", "seed"}  # settings of a run
OF_NO_FILE = re.compile(r"\b(name|_target_|output_dir|cache_dir)$")  # position=tape is no folder
OF_EVALUATIONS = {"model", "base_model", "out", "name", "task"}  # arguments
OF_CONVENTION = {"stride", "scored_tokens"}  # arguments that depend on --convention
OF_ROWS = re.compile(r"(position|peft|ablation)\b.*|trainer\.learning_rate|learning_rates\..*")


@dataclass(frozen=True)
class Run:
    """A training run and its evaluation.

    Attributes:
        row: the varied values, `rope` or `rope_learning_rate_0.001`; runs of a row differ by seed.
        folder, log: where it writes.
        commands: of `tape`: the one that trains it, and those that evaluate it.
        values: the texts among its settings, some of which name files.
        is_base: whether others start from it.
        rate: the learning rate.
        changes: its settings that differ from those of the run that its folder holds.
    """

    row: str
    folder: Path
    log: Path
    commands: tuple[tuple[str, ...], ...]
    values: frozenset[str] = frozenset()
    is_base: bool = False
    rate: float | None = None
    changes: tuple[str, ...] = ()

    @property
    def receipt(self) -> Path:
        return self.log.with_suffix(".finished")

    def request(self) -> dict[str, Any]:
        """Returns what determines the results of the run: its commands, Python (its library is the
        text of data=local), and the state of the settings', the model's and all files that it
        reads; not of the registry, which changes with each new encoding."""
        given = [word.partition("=") for _, *words in self.commands[1:] for word in words]
        paths = {*self.values, *(value or word for word, _, value in given)} - {""}
        for pattern in [path for path in paths if not Path(path).exists()]:
            paths.update(glob(pattern, recursive=True))
        read = [p for p in map(Path, sorted(paths)) if not p.is_relative_to(self.folder)]
        code = {}
        for path in (CONFIG, *CODE, *other_encodings()):
            code |= state_of(path)
        code.pop(str(REGISTRY), None)
        files = [state_of(path) for path in read]
        about = {"commands": self.commands, "python": sys.version}
        return about | {"code": code, "files": files}

    def record(self, request: dict[str, Any]) -> str:
        """Returns the text of its receipt: what was requested, and the files that resulted."""
        return json.dumps({"request": request, "files": state_of(self.folder)}) + "\n"

    def finished(self) -> bool:
        """Returns whether the receipt is that of the present state; a new file of the settings or
        the model does not count, because what was run did not read it."""
        try:
            found = json.loads(self.receipt.read_text())
            now = json.loads(self.record(self.request()))
            before, code = (each["request"].pop("code") for each in (found, now))
        except (OSError, ValueError, KeyError):
            return False
        return found == now and before.items() <= code.items()


def other_encodings() -> Iterator[Path]:
    """Yields the packages that add encodings by entry points."""
    for entry in entry_points(group="tape.encodings"):
        if spec := find_spec(entry.module.partition(".")[0]):
            yield from map(Path, spec.submodule_search_locations or [spec.origin])


def state_of(path: Path) -> dict[str, list[int]]:
    """Returns size in bytes and time of the last change in ns of a file, or of those in a folder;
    without checkpoints, bytecode and locks."""
    return {
        str(file): [file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted({path, *path.rglob("*")})
        if file.is_file()
        and not re.search(r"/(\.|__pycache__/|checkpoint-)", str(file.relative_to(path.parent)))
    }


def sweep_of(cfg: dict[str, Any], settings: Sequence[str]) -> list[Run]:
    """Returns the runs of a composed configuration, which is completed, with further settings for
    all of them. Raises a ValueError for settings that are out of bounds, or that a run refuses."""
    schema.check("name", cfg["name"], schema.FOLDER)
    schema.check("jobs", cfg["jobs"], schema.optional(schema.integer(1)))
    schema.check("seconds", cfg["seconds"], schema.optional(schema.POSITIVE))
    varied = ((axis, values) for axis, values in nodes(cfg["vary"]) if not isinstance(values, dict))
    axes = cfg["vary"] = {axis: distinct(words(values)) for axis, values in varied}
    seeds = distinct(words(cfg["seeds"]))
    for seed in seeds:
        schema.check("seeds", seed, schema.integer(0, 2**32 - 1))
    cfg["settings"] = [*map(str, words(cfg["settings"])), *settings]
    check_settings((f"{axis}=" for axis in axes), OF_THE_SWEEP)
    check_settings(cfg["settings"], {*OF_THE_SWEEP, *axes})
    more = cfg["evaluation"] = [*map(str, words(cfg["evaluation"]))]
    check_settings((word.removeprefix("--") for word in more), OF_EVALUATIONS)
    if not all((seeds, *axes.values())):
        raise ValueError("vary, seeds: name one value or more of each")
    runs = runs_of(cfg, axes, seeds)
    if len({run.folder for run in runs}) < len(runs):
        raise ValueError(f"runs={cfg['runs']}: two runs have one folder; vary other settings")
    if shlex.split(cfg["compare"] or "")[:1] == ["compare"]:
        check_evaluations(runs)
    rows = {run.row for run in runs}
    if cfg["baseline"]:
        if any(cfg["baseline"] in each and len(each) < len(rows) for each in axes.values()):
            what = f"baseline={cfg['baseline']}: several rows have it; choose one of"
            raise ValueError(f"{what} {', '.join(sorted(rows))}")
        known = rows | options("position") | options("peft")  # labels may say more than the row
        look_up("baseline", cfg["baseline"].split()[0], dict.fromkeys(known))
    elif cfg["usual_baseline"] in rows:
        cfg["baseline"] = cfg["usual_baseline"]
    return runs


def check_evaluations(runs: Sequence[Run]) -> None:
    """Raises a ValueError for runs that would be evaluated with different arguments, but for their
    own folders: they could not be compared."""
    asked: dict[str, Run] = {}
    for run in runs:
        commands = "; ".join(map(shlex.join, run.commands[1:]))
        asked.setdefault(commands.replace(str(run.folder), "RUN"), run)
    if len(asked) > 1:
        told = (f"{run.folder} by {commands or 'no command'}" for commands, run in asked.items())
        what = "runs that are evaluated differently cannot be compared"
        how = "after --, give evaluate.perplexity.lengths, or what differs, for all"
        raise ValueError(f"{what}: {', '.join(told)}; {how}")


def words(value: Any) -> list[Any]:
    """Returns the elements of a list, or the words of a text; those that are integers as such."""
    found = value if isinstance(value, list) else shlex.split(str(value))
    return [int(each) if re.fullmatch(r"0|[1-9]\d*", str(each)) else each for each in found]


def distinct(values: Iterable[Any]) -> list[Any]:
    """Returns values in their order, each once; they may be lists and mappings."""
    return [*{json.dumps(value): value for value in values}.values()]


def check_settings(settings: Iterable[str], own: set[str]) -> None:
    """Raises a ValueError for a setting of the runs that the sweep sets, or that would replace what
    it varies: position.name=rope would train rope in every row of vary.position."""
    own = own | ({"position"} if {"ablation", "peft"} & own else set())
    for setting in settings:
        name = re.split("[@=]", setting.lstrip("+~"))[0]
        if re.sub(r"\.(name|_target_)$", "", name) in own:
            raise ValueError(f"{setting} is set by the sweep; give name=, seeds= or vary.")


def runs_of(cfg: Sweep, axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> list[Run]:
    """Returns the runs, base models first. Each row is composed once; a ValueError is raised for
    rows with the same settings."""
    bases = {}
    for seed in seeds if cfg["base"] else ():
        command = [f"seed={seed}", *map(str, words(cfg["base"]))]
        bases[seed] = command, compose_run(command)[0]
    rows: dict[str, DictConfig] = {}
    alike: dict[str, str] = {}  # settings -> row
    texts: list[dict[str, Any]] = []  # whose files are there
    runs: list[Run] = []
    count = prod(map(len, axes.values()))
    bar = tqdm(total=count, desc="composing", unit="row", disable=None, leave=False)
    for seed, *chosen in product(seeds, *axes.values()):
        values = dict(zip(axes, chosen, strict=True))
        row = row_of(values)
        folder = f"{cfg['runs']}{row}_{seed}"
        own = {"name": Path(folder).name, "output_dir": folder, "seed": seed}
        base = {"base_model": bases[seed][1].output_dir} if bases else {}
        given = own | values | base
        recipe = [override("experiment", cfg["recipe"])] if cfg["recipe"] else []
        own_words = (word for each in given.items() for word in overrides_of(*each))
        command = [*recipe, *cfg["settings"], *own_words]
        if row not in rows:
            rows[row], settings = compose_run(command)
            bar.update()
            if settings["data"].get("files") and settings["data"] not in texts:
                instantiate(settings["data"])  # raises an OSError if they are not there
                texts.append(settings["data"])
            settings = {key: x for key, x in settings.items() if key not in OF_THE_SWEEP}
            settings["peft"] = {**(settings["peft"] or {}), "name": None}
            other = alike.setdefault(json.dumps(settings).replace(folder, ""), row)
            if other != row:
                raise ValueError(f"{other} and {row} are rows with the same settings; name one")
        rows[row].update(own | base)
        runs.append(run_of(cfg, command, rows[row], row))
    bar.close()
    first: dict[Path, Run] = {}
    for command, found in bases.values():
        with open_dict(found):
            found.evaluate = rows[row].evaluate  # as the runs are
        first.setdefault(Path(found.output_dir), run_of(cfg, command, found))
    return [*first.values(), *runs]


def row_of(values: Mapping[str, Any]) -> str:
    """Returns the name of a row, in which values that are no entries of a group have one."""
    parts = (
        told(value) if options(axis) else f"{axis.rpartition('.')[2]}_{told(value)}"
        for axis, value in values.items()
    )
    return re.sub(r"[^\w.+-]", "-", "_".join(parts), flags=re.ASCII)


def told(value: Any) -> str:
    """Formats a value in the name of a row: of a mapping the name, then the other entries."""
    if isinstance(value, list):
        return "+".join(map(told, value))
    if isinstance(value, dict):
        rest = (f"{key}_{told(each)}" for key, each in value.items() if key != "name")
        return "_".join([*([told(value["name"])] if "name" in value else []), *rest])
    return str(value)


def run_of(cfg: Sweep, command: Sequence[str], found: DictConfig, row: str | None = None) -> Run:
    """Returns the run of a command and what it composes: without a row, of a base model. Commands
    evaluate it (`evaluate` of its settings, where null leaves one out)."""
    settings = OmegaConf.to_container(found, resolve=True)
    folder = Path(settings["output_dir"])
    commands: list[tuple[str, ...]] = [("train", *command)]
    for name, given in (settings.pop("evaluate") or {}).items():
        if given is not None:
            commands.append((name, *arguments_of(given, cfg["evaluation"])))
    log = Path(cfg["out"], f"{folder.name}.log")
    read = (value for key, value in nodes(settings) if not OF_NO_FILE.search(key))
    each = (text for value in read for text in (value if isinstance(value, list) else [value]))
    values = frozenset(text for text in each if isinstance(text, str))
    rate = settings["trainer"]["learning_rate"]
    changes = ()
    if begun(folder):
        changes = tuple(changes_of(folder, RunSettings(**settings_of(found)).recorded))
    row, is_base = row or folder.name, row is None
    return Run(row, folder, log, tuple(commands), values, is_base, rate, changes)


def changes_note(runs: Sequence[Run]) -> str:
    """Says which folders hold runs with other settings, which `tape train` would refuse or, with
    other `trainer.max_steps`, continue under another schedule of learning rates; empty if none."""
    if not (changed := [run for run in runs if run.changes]):
        return ""
    first, *rest = changed
    more = f" and {len(rest)} more of {len(runs)} runs" if rest else ""
    what = f"{first.folder}{more} began with other settings (before -> now)"
    remedy = "choose another name=... (NAME of the scripts), or put the settings back"
    return f"{what}: {'; '.join(first.changes)}; {remedy}"


def rates_note(cfg: Sweep, runs: Sequence[Run]) -> str:
    """Says which rows have other learning rates than others although the sweep does not vary them,
    and how to give all one rate or choose rates anew; empty if there are none."""
    rates = {run.row: run.rate for run in runs if not run.is_base}
    if len({*rates.values()}) < 2 or any("learning_rate" in axis for axis in cfg["vary"]):
        return ""
    shown = ", ".join(f"{row} {rate:g}" for row, rate in rates.items())
    lowest = min(rate for rate in rates.values() if rate is not None)
    lines = [
        f"learning rates: {shown}",
        "They were chosen for the recipe's own text, length and model (config/rates). On others:",
        f"  one rate for all: -- trainer.learning_rate={lowest:g}",
    ]
    if rows := cfg["vary"].get("position"):
        recipe = [override("recipe", cfg["recipe"])] if cfg["recipe"] else []
        words = ["sweep=rates", f"name={cfg['name']}_rates", override("vary.position", rows)]
        words += [*recipe, "--", *cfg["settings"]]
        lines.append(f"  choose them: tape sweep {shlex.join(words)}")
        lines.append("  then tape rates and rates=..., as in docs/pretraining.md#learning-rates")
    return "\n".join(lines)


def contrasts_of(cfg: Sweep) -> list[str]:
    """Returns the predictions that the table of synthetic tasks tests: those that are given, or the
    usual ones whose task and encodings vary. `tape sampler=subset` is the label of tape_subset."""
    if cfg.get("contrasts") is not None:
        return shlex.split(cfg["contrasts"])
    tasks, varied = (cfg["vary"].get(axis, ()) for axis in ("data", "position"))
    usual = ((text, text.split(":")) for text in shlex.split(cfg.get("usual_contrasts") or ""))
    return [
        text
        for text, (task, *labels) in usual
        if task in tasks and all(re.sub(r" \w+=", "_", label) in varied for label in labels)
    ]


def arguments_of(given: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    """Returns the arguments of an evaluation: those of a run's settings, and `more`, which replace
    them. Another convention also replaces the arguments that depend on it."""
    replaced = {word[2:].partition("=")[0] for word in more if word.startswith("--")}
    if "convention" in replaced:
        replaced |= OF_CONVENTION
    arguments: list[str] = []
    for option, value in given.items():
        if option not in replaced:
            arguments += [f"--{option}", *map(str, value if isinstance(value, list) else [value])]
    return [*arguments, *more]


def comparison(cfg: Sweep, runs: Sequence[Run], failed: Sequence[Run] = ()) -> list[str]:
    """Returns the command that compares runs, if there is one. A baseline that is a row of the
    sweep stands for the first of its runs that did not fail, if any. Runs that failed are named in
    the comparison, but not read. What varies besides encodings, methods and their rates may differ
    between its rows."""
    if not cfg["compare"]:
        return []
    command, *flags = shlex.split(cfg["compare"])
    baseline = cfg["baseline"]
    if named := [run for run in runs if run.row == baseline]:
        baseline = next((run.folder for run in named if run not in failed), None)
    flags += [] if "--out" in flags else ["--out", cfg["out"]]
    flags += ["--baseline", str(baseline)] if baseline else []
    varied = [axis for axis in cfg["vary"] if not OF_ROWS.fullmatch(axis)]
    if command == "compare" and varied:
        flags += ["--across", *(f"{axis}.*" if options(axis) else axis for axis in varied)]
        flags += ["tokens.*"] if any(axis.startswith("data.") for axis in varied) else []
    if command == "suite" and (contrasts := contrasts_of(cfg)):
        flags += ["--contrasts", *contrasts]
    rows = dict.fromkeys(run.row for run in runs)
    told = [run for run in runs if run not in failed]
    folders = (str(run.folder) for row in rows for run in told if run.row == row)
    flags += ["--failed", *(str(run.folder) for run in failed)] if failed else []
    return [command, *folders, *flags]
