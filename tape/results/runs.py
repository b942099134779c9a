"""Runs and their evaluations as rows in long form.

results.csv has a row per run, measure and condition. Its columns: run, encoding, settings (a hash
of all settings but the seed), seed, evaluation, measure, one column per condition (empty where it
does not apply), value, n (the number of observations that the value is the mean of) and unit.
settings.json beside it holds how runs were trained and evaluated, and at which commits, on which
machines and with which versions of the libraries.
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tape.core.command import in_one_line
from tape.core.files import read_object, reading, write_text
from tape.core.metrics import metric_rows
from tape.core.provenance import TRAINED, origins
from tape.core.run_folder import influential, read_configuration
from tape.core.validation import check_name
from tape.evaluation import curves
from tape.evaluation.accuracy import Accuracy
from tape.evaluation.curves import Results, context_gain
from tape.evaluation.tables import write_rows
from tape.evaluation.task import tasks_by_name
from tape.evaluation.view import View
from tape.model.adapters import ADAPTER
from tape.model.checkpoint import WEIGHTS, fingerprint

RESULTS, SETTINGS = "results.csv", "settings.json"
CHANGES = ("intervention", "extend")  # of a model by the options of its evaluation
ABOUT = ("run", "encoding", "settings", "seed", "evaluation", "measure")
FOUND = ("value", "n", "unit")


def files() -> dict[str, str]:
    """Returns by evaluation the file that shows that it was made."""
    tasks = {task.evaluation: task.file for task in tasks_by_name().values() if task.evaluation}
    return {"perplexity": "perplexity.csv"} | tasks


def folders() -> list[str]:
    """Returns the usual names of evaluations in a run's folder."""
    return [*(task.folder for task in tasks_by_name().values() if task.folder), "compare", "extend"]


def results_of(evaluation: str) -> Accuracy | Results:
    """Returns what reads an evaluation and says how it is shown."""
    tasks = {task.evaluation: task for task in tasks_by_name().values()}
    return curves.RESULTS if evaluation == "perplexity" else tasks[evaluation].load().results


@dataclass(frozen=True)
class Run:
    """A run that was trained to its end and evaluated.

    Attributes:
        settings: flat; without the seed, nulls, and settings without influence on the weights.
        asked: by evaluation, the settings of that evaluation.
        rows: columns `evaluation`, `measure`, conditions and FOUND.
        origin: `tape.core.provenance.origins`; empty if unknown.
    """

    folder: Path
    seed: int
    settings: dict[str, Any]
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    origin: list[dict[str, Any]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return hashlib.sha256(_json(self.settings).encode()).hexdigest()[:12]

    @property
    def encoding(self) -> str:
        return self.settings["position.name"]

    def of(self, evaluation: str) -> pd.DataFrame:
        """The rows of one evaluation; losses and costs of the training belong to the perplexity."""
        parts = ("perplexity", "training") if evaluation == "perplexity" else (evaluation,)
        return self.rows[self.rows["evaluation"].isin(parts)]


def view_of(evaluation: str) -> View:
    return results_of(evaluation).view


def settings_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """Returns the seed of a run and its other settings; raises a ValueError if they are not those
    of a finished run."""
    settings = influential(read_configuration(folder, TRAINED))
    with reading(folder / TRAINED):
        seed = settings.pop("seed")
        if settings["trainer.seed"] == seed:
            del settings["trainer.seed"]
        check_name("position.name", settings["position.name"])
    return seed, settings


def check_weights(folder: Path, name: str, recorded: str) -> None:
    """Raises a ValueError if an evaluation is of other weights than those in the run's folder.
    Results can be kept without weights."""
    here = any((folder / weights).is_file() for weights in (WEIGHTS, ADAPTER))
    if here and (len(recorded) < 16 or not fingerprint(folder).startswith(recorded)):
        what = f"{folder / name} was evaluated with other weights than those in {folder}"
        raise ValueError(f"{what}: remove it and evaluate again")


def shared_name(runs: Sequence[Path]) -> str | None:
    """Returns the usual name of an evaluation that all runs have, if there is one. Raises a
    ValueError if there are several."""
    each = [{name for name in folders() if (run / name).is_dir()} for run in runs]
    found = set.intersection(*filter(None, each)) if any(each) else set()
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise ValueError(f"{runs[0]} and others have {names}: choose one with --name")
    return found.pop() if found else None


def is_evaluation(folder: Path) -> bool:
    """Whether a folder is one of the evaluations in that of a run."""
    return (folder.parent / TRAINED).is_file()


def names_of(folder: Path) -> tuple[str, ...]:
    """The name of a run, and that of its evaluation if that was given alone."""
    for depth, parent in enumerate(folder.parents, 1):
        if is_saved(parent):
            return folder.parts[-depth:]
    return folder.parts[-1 - is_evaluation(folder) :]


def read_run(folder: Path, name: str | None) -> Run:
    """Reads a run with its evaluation in the folder `name`. How the model was changed for
    the evaluation (`tape.analysis.state`, `tape.evaluation.extension`) is among its settings.
    Raises a ValueError or an OSError if it did not finish or was not evaluated since."""
    if name is None:
        names = ", ".join(folders())
        how = f"as with `tape perplexity --out {folder / 'compare' / 'perplexity.csv'}`"
        what = f"{folder} has none of {names}: evaluate it first, {how}"
        raise ValueError(f"{what}, or give an evaluation's folder")
    place = folder / name
    seed, settings = settings_of(folder)
    tables: dict[str, pd.DataFrame] = {}
    asked: dict[str, dict[str, Any]] = {}
    for kind, file in files().items():
        if (place / file).is_file():
            asked[kind], tables[kind] = results_of(kind).read(place)
            check_weights(folder, place.name, asked[kind]["model"])
            settings |= {name: asked[kind][name] for name in CHANGES if name in asked[kind]}
    if not asked:
        raise ValueError(not_evaluated(folder, name))
    if "perplexity" in asked:
        metrics = metric_rows(folder, settings["trainer.max_steps"])
        tables["training"] = pd.DataFrame([*metrics, *ngram_rows(folder)])
        if "peft.name" not in settings:  # bases and methods have other trained lengths
            gain = context_gain(tables["perplexity"], settings["length"])
            tables["perplexity"] = pd.concat([tables["perplexity"], pd.DataFrame(gain)])
    rows = [each.assign(evaluation=kind) for kind, each in tables.items()]
    rows = pd.concat(rows, ignore_index=True).astype({"value": float, "n": float})
    return Run(folder, seed, settings, asked, rows, origins(folder))


def not_evaluated(folder: Path, name: str) -> str:
    """Says what a run has in place of the evaluation in its folder `name`, and what to do."""
    known = [*files().values()]
    if others := [each for each in folders() if (folder / each).is_dir() and each != name]:
        return f"{folder} has no evaluation {name}, but {', '.join(others)}: choose with --name"
    if alone := [file for file in known if (folder / file).is_file()]:
        how = f"evaluate it with --out {folder / 'compare' / alone[0]}"
        what = f"{folder / alone[0]} may hold several measurements, and is not compared"
        return f"{folder} has no evaluation {name}; {what}: {how}"
    return f"{folder / name} has none of {', '.join(known)}: evaluate that run first"


def ngram_rows(folder: Path) -> list[dict[str, Any]]:
    """The losses of the n-gram models in the report of a run as rows; none without them."""
    path, rows = folder / "report" / "report.json", []
    report = read_object(path) if path.is_file() else {}
    with reading(path):
        for each in report.get("ngrams", {}).get("models", []):
            row = {"measure": f"{each['model']} loss", "value": math.log(each["perplexity"])}
            rows.append(row | {"n": report["scored_tokens"], "unit": "nats"})
    return rows


def is_saved(folder: Path) -> bool:
    return (folder / RESULTS).is_file() and (folder / SETTINGS).is_file()


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns the rows of runs as one table: columns ABOUT, conditions and FOUND."""
    tables = [
        run.rows.assign(run=name, encoding=run.encoding, settings=run.digest, seed=run.seed)
        for run, name in zip(runs, _names(runs), strict=True)
    ]
    table = pd.concat(tables, ignore_index=True)
    conditions = [column for column in table if column not in (*ABOUT, *FOUND)]
    return table[[*ABOUT, *conditions, *FOUND]]


def write_runs(folder: Path, runs: Sequence[Run]) -> None:
    """Writes the rows of runs and their settings."""
    table = table_of(runs)
    write_rows(folder / RESULTS, table, [*table.columns[len(ABOUT) : -len(FOUND)], "n"])
    items = [{(key, _json(value)) for key, value in run.settings.items()} for run in runs]
    common = {key: json.loads(value) for key, value in set.intersection(*items)}
    lines = []
    for run, name in zip(runs, _names(runs), strict=True):
        own = {key: value for key, value in run.settings.items() if key not in common}
        described = {"seed": run.seed, "settings": own, "asked": run.asked, "origin": run.origin}
        lines.append(f"  {json.dumps(name)}: {_json(described)}")
    each = ",\n".join(lines)
    text = f'{{\n "common": {_json(common)},\n "runs": {{\n{each}\n }}\n}}\n'
    write_text(folder / SETTINGS, text)


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names; as much of their paths as it takes to tell them apart."""
    depths = range(1, 1 + max(len(run.folder.parts) for run in runs))
    named = (["/".join(run.folder.parts[-depth:]) for run in runs] for depth in depths)
    return next(names for names in named if len({*names}) == len(runs))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def read_saved(folder: Path) -> list[Run]:
    """Reads what `write_runs` wrote; raises a ValueError if it is damaged."""
    content, path = read_object(folder / SETTINGS), folder / RESULTS
    with reading(folder / SETTINGS):
        runs = {}
        for name, x in content["runs"].items():
            runs[name] = Run(
                folder=folder / name,
                seed=x["seed"],
                settings=content["common"] | x["settings"],
                asked=dict(x["asked"]),
                origin=x.get("origin", []),
            )
    if not path.read_bytes().endswith(b"\n"):
        raise ValueError(f"{path} ends in the middle of a line: create it again")
    with reading(path):
        text = dict.fromkeys((*ABOUT, "unit"), str) | {"seed": int}
        table = pd.read_csv(path, dtype=text, keep_default_na=False, na_values=[""])
        groups = dict(iter(table.astype({"value": float, "n": float}).groupby("run")))
        if groups.keys() != runs.keys():
            raise ValueError(f"its runs are not those of {SETTINGS}")
        own = ["encoding", "settings", "seed"]
        for name, run in runs.items():
            about = groups[name][own].drop_duplicates().to_numpy().tolist()
            if about != [[run.encoding, run.digest, run.seed]]:
                raise ValueError(f"its rows of {name} are of other settings than {SETTINGS} has")
            runs[name] = replace(run, rows=groups[name].drop(columns=["run", *own]))
        return [*runs.values()]


def read_all(
    folders: Sequence[Path],
    name: str | None,
    read: Callable[[Path, str], Run] = read_run,
    failed: Sequence[Path] = (),
) -> tuple[list[Run], dict[Path, str]]:
    """Reads runs, and keeps the reason for each that cannot be read.

    Args:
        folders: folders of runs, of a single evaluation of a run, or of saved results.
        name: name of the evaluation's folder in that of the run; None: `shared_name`.
        read: reads a run from its folder and this name.
        failed: folders of failed runs, which are not read, because their results may be from an
            earlier run.

    Returns:
        The runs, and by folder the reason why a run could not be read.

    Raises:
        ValueError: if no run can be read.
    """
    if name is None:
        name = shared_name([x for x in folders if not is_saved(x) and not is_evaluation(x)])
    runs: list[Run] = []
    missing: dict[Path, str] = {}
    for folder in folders:
        try:
            if is_saved(folder):
                runs += read_saved(folder)
            elif is_evaluation(folder):
                runs.append(replace(read(folder.parent, folder.name), folder=folder))
            else:
                runs.append(read(folder, name))
        except (ValueError, OSError) as error:
            missing[folder] = in_one_line(error)
    missing |= dict.fromkeys(failed, "the run failed, and results of an earlier time do not count")
    if not runs:
        raise ValueError("; ".join(missing.values()) or "no runs were given")
    return runs, missing


def end(given: argparse.Namespace, text: str, more: str, missing: Mapping[Path, str]) -> None:
    """Prints the table of a command on runs, and what more is in --out; exits with status 1 if
    folders could not be read."""
    print(f"{text}\n\nalso in {given.out}, {more}")
    if missing:
        count = len(given.folders) + len(given.failed)
        sys.exit(f"error: {len(missing)} of {count} are not in the table")


def missing_note(missing: Mapping[Path, str]) -> str:
    """Returns a paragraph that names folders that could not be read; empty without any."""
    lines = (f"* {folder}: {why}" for folder, why in missing.items())
    return "\n\nNot in the table:\n\n" + "\n".join(lines) if missing else ""
