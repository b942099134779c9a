"""Every committed picture is what its rows give, or the initial weights of encodings."""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from commands import tape
from matplotlib.figure import Figure
from pages import RESULTS
from test_tables import CONTRASTS, TABLES

from tape.analysis import growth, speed, state
from tape.cli import analyse as parsers
from tape.cli.leaderboard import leaderboard
from tape.evaluation.figures import write_figure
from tape.results import rates
from tape.results.figures import write_figures
from tape.results.rows import read
from tape.results.runs import read_all
from tape.tasks.synthetic.suite import suite

DOCS = RESULTS.parent


def comparison(results, chosen, out):
    write_figures(read([RESULTS / results], **chosen), out)


def choice(out):
    runs, _ = read_all([RESULTS / "rates_text"], "")
    write_figure(rates.draw(rates.choices(runs)), out / "rates")


def growing(results, out):
    raw = speed.read(RESULTS / results / "rounds.csv").groupby("comparison", sort=False)
    lengths = [name.split(", ")[-1].removesuffix(" tokens").replace(",", "") for name in raw.groups]
    asked = ["--case", "train_step", "--backends", "sdpa", "--lengths", *lengths]
    loads = speed.loads(speed.on_this_device(parsers.speed(asked)))
    found = pd.concat(speed.results(rows, loads[name][0]) for name, rows in raw)
    write_figure(growth.curves(growth.panels(found)), out / "growth")


def states(results, out):
    state.draw(pd.read_csv(RESULTS / results / "state.csv"), out)


# What draws pictures in a folder, and where those are that are committed, by name.
MAKERS = [
    (partial(leaderboard, []), {name: name for name in ("leaderboard", "seeds")}),
    (
        partial(tape, "gallery", "--out"),
        {name: f"results/gallery/{name}" for name in ("curves", "maps")},
    ),
    (choice, {"rates": "results/rates_text/rates"}),
]
for results in CONTRASTS:
    MAKERS.append((partial(suite, [RESULTS / results]), {"heatmap": f"results/{results}/heatmap"}))
for results in ("growth", "h100/growth"):
    MAKERS.append((partial(growing, results), {"growth": f"results/{results}/growth"}))
for results, names in {
    "state": ("attention", "phase", "interventions"),
    "state_addition": ("attention",),
    "state_bigrams": ("interventions",),
}.items():
    shown = {f"{name}_tape": f"results/{results}/{name}" for name in names}
    MAKERS.append((partial(states, results), shown))
for results, page, chosen, _ in TABLES:
    names = {"curves": page} if page != "table" else {x: x for x in ("curves", "heatmaps")}
    shown = {made: f"results/{results}/{name}" for made, name in names.items()}
    shown = {made: path for made, path in shown.items() if (DOCS / f"{path}.png").exists()}
    if shown:
        MAKERS.append((partial(comparison, results, chosen), shown))


def test_every_picture_can_be_drawn_again():
    drawn = [f"{path}.png" for _, shown in MAKERS for path in shown.values()]
    committed = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.png")]
    assert sorted(drawn) == sorted(committed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "shown"), MAKERS, ids=[next(iter(shown.values())) for _, shown in MAKERS]
)
def test_pictures_are_those_of_the_results(draw, shown, tmp_path, monkeypatch):
    def savefig(figure, file, **how):  # those of other tests are small
        if how["format"] == "png":
            figure.canvas.print_figure(file, **how)

    monkeypatch.setattr(Figure, "savefig", savefig)
    draw(tmp_path)
    for name, path in shown.items():
        made, committed = map(plt.imread, (tmp_path / f"{name}.png", DOCS / f"{path}.png"))
        assert made.shape == committed.shape and np.abs(made - committed).mean() < 1e-4, path
