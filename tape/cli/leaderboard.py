"""The leaderboard: every encoding of the registry by every measure whose rows are committed.

`tape leaderboard` writes docs/leaderboard.md from the rows in docs/results. Runs of submissions
(docs/results/submissions) replace those of the same encoding and seed. Folders of other runs are
given like those of `tape compare`: an encoding that has committed runs, too, is then in two lines,
as a seed gives other weights on another machine. A column is an entry of COLUMNS.
"""

import argparse
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from tape.analysis.cost import configuration, fake_model
from tape.analysis.shapes import SHAPE as PAPER
from tape.cli.settings.composition import compose_run, override
from tape.core import provenance
from tape.core.files import reading, write_text
from tape.core.provenance import SOURCE
from tape.encodings import ENCODINGS
from tape.evaluation.accuracy import ratio
from tape.evaluation.figures import side_by_side, write_figure
from tape.evaluation.scoring import exp
from tape.evaluation.tables import markdown_table
from tape.evaluation.view import select
from tape.results.rows import (
    FREE,
    NAMED,
    DifferentSettings,
    check_alike,
    groups_of,
    usual_settings,
)
from tape.results.runs import Run, end, missing_note, read_all, read_saved
from tape.tasks.synthetic.problems import TASKS
from tape.tasks.synthetic.synthetic_task import FOLDER, learned, longest_solved

DOCS = SOURCE / "docs"
RESULTS = DOCS / "results"
PAGE = Path(__file__).with_name("leaderboard.md")
# Of the front page; rows are sorted by the first column, and those in its picture have it.
FRONT = ("text 4x", "pass keys", "addition", "flip_flop (16)")
FEWEST = 3  # runs of a value that is marked
YOURS = " (yours)"  # after the name of an encoding that has committed runs as well
MARKS = {"best": "**{}**", "near": "<u>{}</u>", "": "{}"}
ROUNDS, MODELS = "rounds", "models"  # what a source has, if not an evaluation of runs


class Source(NamedTuple):
    """Where rows come from."""

    evaluation: str  # of runs; ROUNDS of `tape speed`; MODELS without data
    rows: Sequence[str]  # patterns of folder/run in docs/results
    command: str  # makes them for another encoding
    asked: Mapping[str, Any] = {}  # settings of the evaluation

    def takes(self, run: Run) -> bool:
        settings = run.asked.get(self.evaluation)
        return settings is not None and self.asked.items() <= settings.items()


@dataclass(frozen=True, eq=False)
class Column:
    """A measure with a value for each seed of an encoding; of ROUNDS, for each round."""

    part: str  # heading of its table
    title: str
    source: Source
    of: Callable[[Any], float]  # the value of a run, of a row of ROUNDS, of an encoding's name
    middle: str  # mean or median
    best: str  # min, max or none
    digits: int
    against: Callable[[Any, Any], Any] | None = None  # with rope's value of the same seed


def loss(run: Run, times: int) -> float:
    """Returns the loss on windows of `times` the trained length, in nats per token."""
    rows, length = select(run.of("perplexity"), "loss"), times * run.settings["length"]
    rows = rows[rows["first"].isna() & (rows["length"] == length)]
    return measured(run, rows, f"windows of {length:,} tokens")["value"].mean()


def keys_at_twice(run: Run) -> float:
    rows, length = run.of("passkey"), 2 * run.asked["passkey"]["trained"]
    rows = rows[rows["length"] == length]
    return 100 * ratio(measured(run, rows, f"prompts of {length:,} tokens"))


def sums_one_longer(run: Run) -> float:
    rows, settings = run.of("arithmetic"), run.asked["arithmetic"]
    trained = max(settings["problems.max_first"], settings["problems.max_second"])
    digits = rows[["first_digits", "second_digits"]].max(axis=1)
    rows = rows[digits == trained + 1]
    return 100 * ratio(measured(run, rows, f"operands of {trained + 1} digits"))


def measured(run: Run, rows: pd.DataFrame, inputs: str) -> pd.DataFrame:
    """Returns the rows of a value; refuses none, which would look like a run that diverged."""
    if rows.empty:
        lacking = f"{run.folder} was not evaluated on {inputs}"
        raise ValueError(f"{lacking}: evaluate it, or leave it out")
    return rows


def parameters(name: str) -> int:
    return fake_model(configuration(PAPER, {"name": name}), "sdpa").num_parameters()


FILE = Path(__file__).with_suffix(".yaml")
TEXT, BIGRAMS, KEYS, ADDITION, TRAINING, DECODING, ON_GPU, GPU_DECODING, SHAPE = (  # as in the file
    Source(**fields) for fields in yaml.safe_load(FILE.read_text("utf-8")).values()
)
LANGUAGE, SYNTHETIC, COST = "Text, bigrams, pass keys, addition", "Synthetic tasks", "Cost"
SUB, RATIO, SECONDS = operator.sub, operator.truediv, operator.attrgetter("seconds")


def longest(task: str, trained: int) -> Column:
    settings = {"task": task, "trained": trained}
    command = f'TASKS={task} TYPES="mine rope" bash script/suite.sh'
    source = Source(FOLDER, ("tasks/*",), command, settings)
    value = lambda run: longest_solved(run.of(FOLDER))  # noqa: E731
    return Column(SYNTHETIC, f"{task} ({trained})", source, value, "median", "max", 1)


PANELS = 5  # of the picture, side by side
BETTER = {"min": "← better", "max": "better →"}
# Colours that differ for everyone who cannot see red or green; the other encodings are grey.
OTHERS, SET_OFF = "0.55", {"rope": "#0072b2", "tape": "#d55e00"}

COLUMNS = (
    Column(LANGUAGE, "perplexity 1x", TEXT, lambda run: exp(loss(run, 1)), "mean", "min", 2),
    Column(LANGUAGE, "text 4x, nats", TEXT, partial(loss, times=4), "mean", "min", 3, SUB),
    Column(LANGUAGE, "bigrams 8x, nats", BIGRAMS, partial(loss, times=8), "mean", "min", 3, SUB),
    Column(LANGUAGE, "pass keys 2x, %", KEYS, keys_at_twice, "median", "max", 1),
    Column(LANGUAGE, "addition +1 digit, %", ADDITION, sums_one_longer, "mean", "max", 1),
    *(longest(name, task.trained) for name, task in TASKS.items()),
    Column(COST, "step time, CPU", TRAINING, SECONDS, "median", "min", 2, RATIO),
    Column(COST, "step memory, CPU", TRAINING, lambda row: row.memory, "median", "min", 2, RATIO),
    Column(COST, "decoding time, CPU", DECODING, SECONDS, "median", "min", 2, RATIO),
    Column(COST, "step time, H100", ON_GPU, SECONDS, "median", "min", 2, RATIO),
    Column(COST, "decoding time, H100", GPU_DECODING, SECONDS, "median", "min", 2, RATIO),
    Column(COST, "parameters", SHAPE, parameters, "median", "", 0, SUB),
)


@cache
def configured(name: str) -> Mapping[str, Any]:
    """Returns an encoding's default arguments of config/position, if it has a file there."""
    return compose_run([override("position", name)])[1]["position"]


def row_of(run: Run) -> str:
    """Returns the encoding of a run, with arguments that are not the defaults of the registry."""
    usual = usual_settings(run.encoding)
    words = [run.encoding]
    for key, value in sorted(run.settings.items()):
        name = key.removeprefix("position.")
        is_free = name in (key, "name") or name.rpartition(".")[2] in FREE
        differs = usual and not is_free and value != usual.get(key)
        differs = differs and value != configured(run.encoding).get(name)
        words += [f"{name}={value}"] if differs or key in NAMED else []
    return " ".join(words)


@cache
def committed(pattern: str) -> list[Run]:
    folder, _, names = pattern.rpartition("/")
    return [run for run in read_saved(RESULTS / folder) if fnmatchcase(run.folder.name, names)]


@cache
def submitted() -> list[Run]:
    folders = sorted(RESULTS.glob("submissions/*"))
    return [run for folder in folders for run in read_saved(folder)]


@cache
def committed_rows() -> set[str]:
    patterns = {pattern for column in COLUMNS for pattern in runs_in(column.source)}
    return {row_of(run) for pattern in patterns for run in committed(pattern)}


def runs_in(source: Source) -> Sequence[str]:
    return () if source.evaluation in (ROUNDS, MODELS) else source.rows


def runs_of(source: Source, given: Sequence[Run]) -> list[tuple[str, Run, bool]]:
    """Returns the runs of a source with the name of their row, and whether they are given.
    Submitted ones replace committed ones of the same row and seed. Given runs are in a row of their
    own (YOURS) if any column has committed ones of that name. Raises a ValueError if two runs are
    the same, cannot be compared, or belong to one row and differ in more than the seed."""
    origins = chain.from_iterable(map(committed, source.rows)), submitted(), given
    in_results, new, yours = ([*filter(source.takes, runs)] for runs in origins)
    shared = replaced(in_results, new)
    try:
        groups_of(replaced(shared, yours))
    except DifferentSettings as error:
        name = yours[0].encoding if yours else "mine"
        raise ValueError(f"{error.what}; {recipe(source, name)}") from error
    known = committed_rows() | {*map(row_of, submitted())} if yours else set()
    first: dict[str, Run] = {}
    named = []
    for number, run in enumerate([*shared, *yours]):
        row, is_given = row_of(run), number >= len(shared)
        check_alike(row, first.setdefault(row, run), run)
        named.append((row + YOURS * (is_given and row in known), run, is_given))
    return named


def replaced(runs: Sequence[Run], by: Sequence[Run]) -> list[Run]:
    """Returns runs, those of the same row and seed replaced."""
    new = {(row_of(run), run.seed) for run in by}
    return [*(run for run in runs if (row_of(run), run.seed) not in new), *by]


def values_of(column: Column, given: Sequence[Run]) -> pd.DataFrame:
    """Returns the columns encoding, seed, value (inf where training diverged), whether the run has
    `learned` its task, and whether it is `given`. Raises a ValueError for a seed without the run of
    RoPE that its value is compared with."""
    source, kind = column.source, column.source.evaluation
    if kind == MODELS:
        rows = [(name, 0, column.of(name), True, False) for name in ENCODINGS]
    elif kind == ROUNDS:
        with reading(path := RESULTS / source.rows[0].replace("*", "rounds.csv")):
            rounds = pd.read_csv(path).query(f"comparison == {source.asked['comparison']!r}")
            rounds = rounds.dropna(subset="seconds").itertuples()
            rows = [(row.method, row.round, column.of(row), True, False) for row in rounds]
    else:
        rows = []
        for name, run, is_given in runs_of(source, given):
            has_learned = kind != FOLDER or learned(run.of(kind)).all()
            rows.append((name, run.seed, column.of(run), has_learned, is_given))
    values = pd.DataFrame(rows, columns=["encoding", "seed", "value", "learned", "given"])
    values = values.fillna(np.inf).astype({"value": float, "learned": bool, "given": bool})
    if column.against is not None:
        committed_base, your_base = (
            values["seed"].map(values[values["encoding"] == name].set_index("seed")["value"])
            for name in ("rope", f"rope{YOURS}")
        )
        base = your_base.where(values["given"]).fillna(committed_base)  # of one machine, if it can
        for row in values[base.isna()].itertuples():
            value = f"{column.title} of {row.encoding}, seed {row.seed}"
            raise ValueError(f"{value}: rope has no run of this seed; give it, too")
        values["value"] = column.against(values["value"], base)
    return values


def yours_note(names: Sequence[str]) -> str:
    """Explains the lines of given runs if there are committed runs of the same encodings."""
    if not any(name.endswith(YOURS) for name in names):
        return ""
    return (
        f"Lines with{YOURS} hold the given runs of encodings whose committed runs are above or "
        "below: a seed gives other weights on another machine. Given runs are compared with your "
        "RoPE of the same seed, without one with the committed RoPE.\n\n"
    )


def cells_of(column: Column, values: pd.DataFrame) -> pd.DataFrame:
    """Returns a line per encoding: its value, the range that is shown (low, high), how many of its
    runs have learned the task, its mark and its text. The mark is "best", also for a value that is
    shown like the best, or "near" if it is not worse than the best (than all, if several are) by
    more than one standard error of the difference, over FEWEST seeds (or rounds) of both or more.
    Ranks, of FEWEST runs or more, are values over all runs, 0 for one that has not learned its
    task; nothing is best at 0 there."""
    by_encoding, kind = values.groupby("encoding"), column.source.evaluation
    of_learned = values[values["learned"]].groupby("encoding")["value"]
    cells = pd.DataFrame({"value": of_learned.agg(column.middle)}, by_encoding.groups)
    for name, extreme, share in (("low", "min", 0.25), ("high", "max", 0.75)):
        quartile = partial(np.quantile, q=share, method="weibull")
        cells[name] = of_learned.agg(quartile if kind == ROUNDS else extreme)
    cells = cells.assign(learned=by_encoding["learned"].sum(), runs=by_encoding.size(), mark="")
    counted = values.assign(value=values["value"] * values["learned"])
    counted = counted.pivot(index="seed", columns="encoding", values="value")
    rank = counted.agg(column.middle).where(cells["runs"] >= FEWEST)
    best = rank.agg(column.best) if column.best and len(rank) else np.inf
    if np.isfinite(best) and (kind != FOLDER or best):
        near, counted = rank.notna() & ~np.isinf(counted).any(), counted.replace(np.inf, np.nan)
        for first in rank.index[rank == best]:
            worse = counted.sub(counted[first], axis=0) * (1 if column.best == "min" else -1)
            pairs, error = worse.count(), worse.std() / worse.count() ** 0.5
            near &= (pairs >= FEWEST) & (worse.agg(column.middle) <= error)
        cells.loc[near, "mark"] = "near"
        cells.loc[rank.round(column.digits) == round(best, column.digits), "mark"] = "best"
    cells["text"] = [text_of(column, cell) for cell in cells.itertuples()]
    return cells


def text_of(column: Column, cell: Any) -> str:
    """Formats a line of `cells_of`: `45 (32 to 64), 4 of 5`."""
    form = f"{'+' if column.against is SUB else ''}z,.{column.digits}f"
    form = "g" if column.source.evaluation == FOLDER else form  # a median of two may be 43.5
    text, low, high = (format(x, form) for x in (cell.value, cell.low, cell.high))
    text += f" ({low} to {high})" if low != high else ""
    if column.source.evaluation == FOLDER:
        text = f"{text}, " * bool(cell.learned) + f"{cell.learned} of {cell.runs}"
    return MARKS[cell.mark].format(text)


def tables(filled: Mapping[Column, pd.DataFrame], names: Sequence[str]) -> str:
    """Returns a table per part, of the columns and encodings with a value, under its heading."""
    papers = r"^\| `position=(\w+)` \|[^|]*?\]\((http[^)]+)\)"
    text = (DOCS / "code.md").read_text(encoding="utf-8")
    links, parts = dict(re.findall(papers, text, re.MULTILINE)), []
    for part in (LANGUAGE, SYNTHETIC, COST):
        columns = [column for column in filled if column.part == part]
        lines = [["encoding", *(column.title for column in columns)]]
        for name in names:
            paper = links.get(name.removesuffix(YOURS), "encodings.md#definitions")
            cells = [filled[column]["text"].get(name) for column in columns]
            if any(cells):
                lines.append([f"[{name}]({paper})", *(cell or "-" for cell in cells)])
        parts.append(f"## {part}\n\n{markdown_table(lines)}")
    return "\n\n".join(parts)


def sources(filled: Mapping[Column, pd.DataFrame]) -> str:
    """Returns a table of what fills the columns. Columns that are filled alike share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for column, cells in filled.items():
        source, runs = column.source, dict.fromkeys(cells["runs"].agg(["min", "max"]))
        seeds = " to ".join(f"{n:g}" for n in runs)
        folders = dict.fromkeys(pattern.rpartition("/")[0] for pattern in source.rows)
        rows = ", ".join(f"[{folder}](results/{folder})" for folder in folders)
        without = ", ".join(name for name in ENCODINGS if name not in cells.index)
        line = column.middle, column.best or "-", seeds, rows, f"`{source.command}`", without
        alike.setdefault(line, []).append(column.title)
    lines = [("; ".join(titles), *line) for line, titles in alike.items()]
    head = ["column", "value", "best", "runs", "rows", "command", "without rows"]
    return markdown_table([head, *lines])


def draw(values: Mapping[Column, pd.DataFrame], names: Sequence[str]) -> Figure:
    """Returns a panel per column with a dot for each seed of an encoding; a run that has not
    learned its task is a cross at 0."""
    with_values = {name for rows in values.values() for name in rows["encoding"]}
    names = [name for name in names if name in with_values]
    figure, panels = side_by_side(len(values), PANELS, (2.4, 0.19 * len(names) + 0.7))
    for number, (axes, (column, rows)) in enumerate(zip(panels, values.items(), strict=True)):
        seeds = rows.groupby("encoding")["value"]
        offset = (seeds.cumcount() + 0.5) / seeds.transform("size") - 0.5  # from the middle
        y = rows["encoding"].map(names.index) + 0.6 * offset
        x, reached = rows["value"] * rows["learned"], rows["learned"]
        colors = rows["encoding"].map(SET_OFF).fillna(OTHERS)
        axes.scatter(x[reached], y[reached], s=11, c=colors[reached], zorder=2)
        axes.scatter(x[~reached], y[~reached], s=11, c=colors[~reached], marker="x", zorder=2)
        if column.against is not None:
            axes.set_xscale("symlog", base=2, linthresh=0.5, linscale=2)  # one may be far off
            axes.xaxis.set_major_formatter("{x:g}")
            axes.axvline(0, color="0.6", linewidth=1, zorder=0)
        if column.source.evaluation == FOLDER:  # lengths in factors of √2
            shortest = column.source.asked["trained"] / 2
            axes.set_xscale("symlog", base=2, linthresh=shortest)
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks(range(len(names)), [] if number % PANELS else names)
        axes.set(xlabel=f"{column.title}\n{BETTER[column.best]}", ylim=(len(names) - 0.4, -0.6))
        axes.grid(alpha=0.3)
    return figure


def recipe(source: Source, name: str) -> str:
    """Says which columns take runs, and what trains an encoding for those of a source or for all
    of them."""
    taking = [column for column in COLUMNS if runs_in(column.source)]
    titles = "; ".join(column.title for column in taking)
    filled = "; ".join(column.title for column in taking if column.source == source)
    command = re.sub(r"\bmine\b", name, source.command)
    return (
        f"columns that take runs of their own recipe: {titles}. `{command}` makes rows of "
        f"{filled}; `TYPES={name} bash script/leaderboard.sh` makes those of all"
    )


def remedy(run: Run) -> str:
    """Says what to do about a run that no column takes."""
    settings = run.asked.get(TEXT.evaluation, {})
    if settings.get("data") == TEXT.asked["data"]:
        needed = " ".join(f"--{name} {TEXT.asked[name]}" for name in ("convention", "stride"))
        return f"evaluate it with {needed}, as tape sweep sweep=text does, or leave it out"
    sources = (column.source for column in COLUMNS if column.source.evaluation in run.asked)
    return f"leave it out; {recipe(next(sources, TEXT), run.encoding)}"


def leaderboard(
    folders: Sequence[Path], out: Path, failed: Sequence[Path] = ()
) -> tuple[str, dict[Path, str]]:
    """Writes leaderboard.md, .csv and .png, and seeds.png of the front page; returns the tables
    and, by folder, why it could not be read."""
    try:
        runs, missing = read_all(folders, None, failed=failed) if folders else ([], {})
    except ValueError as error:
        raise ValueError(f"{error}; {recipe(TEXT, 'mine')}") from error
    for run in (*submitted(), *runs):
        if not any(column.source.takes(run) for column in COLUMNS):
            raise ValueError(f"{run.folder} was asked what no column shows: {remedy(run)}")
    values = {column: values_of(column, runs) for column in COLUMNS}
    others = [name for rows in values.values() for name in rows["encoding"][rows["given"]]]
    names = [*dict.fromkeys([*ENCODINGS, *map(row_of, submitted()), *others])]
    values = {x: rows[rows["encoding"].isin(names)] for x, rows in values.items()}
    cells = {column: cells_of(column, rows) for column, rows in values.items()}
    order = next(lines["value"] for x, lines in cells.items() if x.title.startswith(FRONT))
    names.sort(key=lambda name: order.get(name, np.inf))
    filled = {x: lines for x, lines in cells.items() if len(lines)}
    text = yours_note(names) + tables(filled, names)
    page = PAGE.read_text(encoding="utf-8").format(tables=text, columns=sources(filled))
    write_text(out / "leaderboard.md", page)
    lines = pd.concat({x.title: column.drop(columns="text") for x, column in cells.items()})
    lines = lines.rename_axis(["column", "encoding"]).to_csv(float_format="%.7g")
    write_text(out / "leaderboard.csv", lines)
    drawn = {x: rows for x, rows in values.items() if x.part != COST and rows["learned"].any()}
    write_figure(draw(drawn, names), out / "leaderboard", ["png"])
    front = {x: rows for x, rows in drawn.items() if x.title.startswith(FRONT)}
    front = {x: rows[rows["encoding"].isin(order.index)] for x, rows in front.items()}
    write_figure(draw(front, names), out / "seeds", ["png"])
    return text, missing


def main(arguments: argparse.Namespace) -> None:
    text, missing = leaderboard(**vars(arguments))
    if arguments.folders:
        provenance.record(arguments.out)
    end(arguments, text + missing_note(missing), "as a page and in pictures", missing)
