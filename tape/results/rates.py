"""Chooses the learning rate of each encoding or method: that of the lowest validation loss.

    python sweep.py sweep=rates
    python -m tape.results.rates output/rates_* --into config/rates/text.yaml

The seeds of these runs are for the choice only; a comparison takes others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pandas as pd
import yaml
from matplotlib.figure import Figure

from tape.command import Parser, expected_errors, result_folder
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table
from tape.files import reading, write_text
from tape.results.rows import METHOD, RATE, by_settings, check_given, kind_of, labels_of
from tape.results.runs import Run, end, is_saved, read_each, read_saved, settings_of, write_runs
from tape.runs.folder import TRAINED, read_configuration
from tape.runs.metrics import metric_rows

LOSS, BLOCKS = "validation loss", "eval_blocks"
HEAD = """\
# @package learning_rates
# Learning rate by encoding, as chosen by python -m tape.results.rates.
"""
NOTE = """\
Validation loss in nats per token at the end of training, mean over {} seed(s); -: not all of these
runs finished. The lowest is chosen. *: the lowest or highest rate that was tried, so a better one
may lie beyond it."""


@dataclass(frozen=True)
class Choice:
    """The losses of an encoding or method.

    Attributes:
        label: its name, and settings that tell it from others of that name.
        kind: "encoding" or "method" (of adaptation).
        name: of that encoding or method.
        tried: all learning rates, ascending.
        means: mean losses of the rates with a run of every seed, by rate.
        seeds: the number of seeds of all encodings.
    """

    label: str
    kind: str
    name: str
    tried: list[float]
    means: dict[float, float]
    seeds: int

    @property
    def rate(self) -> float | None:
        """The chosen rate; None if no rate has a run of every seed."""
        return min(self.means, key=self.means.__getitem__, default=None)

    @property
    def at_boundary(self) -> bool:
        return self.rate in (self.tried[0], self.tried[-1])


def read_finished(folder: Path) -> list[Run]:
    """Reads a run whose row is the validation loss at its last step, or saved results of such.

    Raises:
        ValueError, OSError: if it did not finish or was not evaluated at the end.
    """
    if is_saved(folder):
        return read_saved(folder)
    seed, settings = settings_of(folder)
    last = settings["trainer.max_steps"]
    blocks = read_configuration(folder, TRAINED).get(BLOCKS)
    if blocks is not None:  # of the validation
        settings[BLOCKS] = blocks
    rows = [row for row in metric_rows(folder) if (row["measure"], row.get("step")) == (LOSS, last)]
    if not rows:
        raise ValueError(
            f"{folder} has no validation loss at its last step, {last}: trainer.eval_steps must "
            "divide trainer.max_steps"
        )
    return [Run(folder, seed, settings, rows=pd.DataFrame(rows[:1]).assign(evaluation="training"))]


def read_all(folders: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Returns the runs in folders, of runs or saved results, and why others could not be read.

    Raises:
        ValueError: if none can be read.
    """
    runs, missing = read_each(folders, read_finished)
    if not runs:
        raise ValueError("; ".join(missing.values()))
    return runs, missing


def choices(runs: Sequence[Run]) -> list[Choice]:
    """Groups runs by encoding or method.

    Raises:
        ValueError: if runs differ in more than the encoding or method, the learning rate and the
            seed, or two do not differ at all.
    """
    check_given(runs)
    groups, seeds = by_settings(runs, [RATE]), {run.seed for run in runs}
    labels, found = labels_of([settings for settings, _ in groups]), []
    for label, (settings, group) in zip(labels, groups, strict=True):
        losses: dict[float, dict[int, float]] = {}
        for run in sorted(group, key=lambda run: run.settings[RATE]):
            by_seed = losses.setdefault(run.settings[RATE], {})
            if run.seed in by_seed:
                raise ValueError(
                    f"{run.folder} is given twice, or is as another run; give one of them"
                )
            by_seed[run.seed] = float(run.rows.set_index("measure")["value"][LOSS])
        means = {rate: mean(each.values()) for rate, each in losses.items() if {*each} == seeds}
        name = settings.get(METHOD, settings["position.name"])
        found.append(Choice(label, kind_of(runs), name, [*losses], means, len(seeds)))
    return found


def table(found: Sequence[Choice]) -> str:
    """Returns the losses by encoding and rate, and the chosen rates, as markdown."""
    rates = sorted({rate for each in found for rate in each.tried})
    lines = [[found[0].kind, *(f"{rate:g}" for rate in rates), "chosen"]]
    for each in found:
        cells = [f"{each.means[rate]:.4f}" if rate in each.means else "-" for rate in rates]
        chosen = "-" if each.rate is None else f"{each.rate:g}" + " *" * each.at_boundary
        lines.append([each.label, *cells, chosen])
    return f"{markdown_table(lines)}\n\n{NOTE.format(found[0].seeds)}"


def draw(found: Sequence[Choice]) -> Figure:
    """Returns losses against rates, a line per encoding. The chosen rate has a star; a hollow one
    lies at the boundary."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for n, each in enumerate(found):
        means, colour = each.means, f"C{n % 10}"
        style = "-" if n < 10 else "--"
        axes.plot([*means], [*means.values()], f"o{style}", color=colour, ms=3, label=each.label)
        if each.rate is not None:
            face = "none" if each.at_boundary else colour
            axes.plot(each.rate, means[each.rate], "*", ms=13, color=colour, mfc=face)
    axes.set_xscale("log", base=2)
    rates = sorted({rate for each in found for rate in each.tried})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation loss at the end, nats per token")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    return figure


def write_choice(found: Sequence[Choice], target: Path) -> None:
    """Writes the chosen rates to a YAML file by name, over those in it.

    Raises:
        ValueError: if two rows have the same name, or the file holds something else.
    """
    chosen = {each.name: each.rate for each in found if each.rate is not None}
    if len({each.name for each in found}) < len(found):
        labels = ", ".join(each.label for each in found)
        raise ValueError(f"{target} has one learning rate per name: {labels}; leave some out")
    with reading(target):
        before = yaml.safe_load(target.read_text()) if target.is_file() else {}
        rates = {**before, **chosen}
    write_text(target, HEAD + yaml.safe_dump(rates))


@expected_errors()
def main(given: list[str] | None = None) -> None:
    description = "Choose the learning rate of each encoding by validation loss."
    parser = Parser(prog="python -m tape.results.rates", description=description)
    add = parser.add_argument
    add("runs", type=Path, nargs="+", help="folders of runs, or of results of this command")
    add("--out", type=result_folder, default="output/rates", help="for the results")
    add("--into", type=Path, help="a file of config/rates to write the choice to as well")
    arguments = parser.parse_args(given)
    runs, missing = read_all(arguments.runs)
    found, out = choices(runs), arguments.out
    text = table(found)
    write_runs(out, runs)
    write_text(out / "table.md", text + "\n")
    write_figure(draw(found), out / "rates")
    for target in filter(None, (out / "rates.yaml", arguments.into)):
        write_choice(found, target)
    print(text)
    print(f"\nalso in {out}, with a picture, the rows of each run and the choice as rates.yaml")
    end(arguments.runs, missing)


if __name__ == "__main__":
    main()
