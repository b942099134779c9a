"""The leaderboard: how values are ranked, marked and written, and whose runs are taken."""

from dataclasses import replace

import pandas as pd
import pytest

from tape.commands.leaderboard import COLUMNS, RESULTS, cells_of, leaderboard, values_of
from tape.results.runs import read_saved, write_runs

TITLED = {column.title: column for column in COLUMNS}
FLIPS, TEXT, TIME = (TITLED[x] for x in ("flip_flop (32)", "text 4x, nats", "step time"))


def texts(column, **values):
    """The cells of encodings by the values of their seeds; None: has not learned the trained 8."""
    rows = [
        (name, seed, 8 if value is None else value, value is not None)
        for name, each in values.items()
        for seed, value in enumerate(each)
    ]
    rows = pd.DataFrame(rows, columns=["encoding", "seed", "value", "learned"])
    return cells_of(column, rows)["text"].to_dict()


def test_the_best_and_what_is_within_its_standard_error_are_marked():
    lengths = {"a": [64, 32, 128], "b": [64, None, 64], "c": [45] * 3, "d": [None, None, 128]}
    assert texts(FLIPS, **lengths, e=[None]) == {
        "a": "**64 (32 to 128), 3 of 3**",  # standard deviation 48.9, error 28.2
        "b": "**64, 2 of 3**",
        "c": "<u>45, 3 of 3</u>",
        "d": "128, 1 of 3",  # the median of all is 0
        "e": "0 of 1",
    }
    assert texts(FLIPS, a=[None, 32, None]) == {"a": "32, 1 of 3"}
    assert texts(TEXT, a=[-0.3, -0.1], b=[-0.1, -0.1002], c=[-0.0998, -0.0999], d=[0.0]) == {
        "a": "**-0.200 (-0.300 to -0.100)**",  # error 0.1
        "b": "<u>-0.100</u>",
        "c": "-0.100",
        "d": "+0.000",
    }
    assert texts(TIME, a=[1, 2, 3, 4, 5, 6, 7]) == {"a": "**4.00 (2.00 to 6.00)**"}


def test_differences_are_those_of_the_same_seed():
    values = values_of(TEXT, []).set_index(["encoding", "seed"])["value"]
    (rope, fire) = (
        next(run for run in read_saved(RESULTS / "encodings") if run.folder.name == name)
        for name in ("text_rope_3", "text_fire_3")
    )
    at = "measure == 'loss' and length == 1024 and first != first"
    assert values["fire", 3] == fire.rows.query(at).value.item() - rope.rows.query(at).value.item()
    assert not values["rope"].any()


def test_given_runs_get_a_row_or_replace_committed_ones(tmp_path, undrawn):
    fox = [run for run in read_saved(RESULTS / "suite") if "flip_flop_fox" in str(run.folder)]
    mine = [replace(run, settings=run.settings | {"position.name": "mine"}) for run in fox[1:]]
    failed = replace(fox[0], rows=fox[0].rows.assign(reached=0))
    write_runs(tmp_path / "runs", [*mine, failed])
    text, missing = leaderboard([tmp_path / "runs"], tmp_path / "out")
    assert not missing and "| **256, 4 of 5** |" in text
    (row,) = (line for line in text.split("## ")[2].splitlines() if "[mine]" in line)
    assert row.endswith("| - | **256, 4 of 4** |")
    variant = replace(fox[0], settings=fox[0].settings | {"position.start": 4.0})
    names = {*values_of(FLIPS, [variant])["encoding"]}
    assert "fox start=4.0" in names and "tape init=xavier" in names and "tape" in names
    longer = replace(mine[0], settings=mine[0].settings | {"trainer.max_steps": 9})
    with pytest.raises(ValueError, match=r"different settings: trainer\.max_steps"):
        values_of(FLIPS, [longer])
    faster = replace(fox[1], settings=fox[1].settings | {"trainer.learning_rate": 9.0})
    with pytest.raises(ValueError, match="fox has two runs of seed 1; give one"):
        values_of(FLIPS, [fox[1], faster])
