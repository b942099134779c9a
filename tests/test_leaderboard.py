"""The leaderboard: how values are ranked, marked and written, and whose runs are taken."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest
from conftest import refuses

from tape.cli import leaderboard as board
from tape.cli.settings.composition import compose_run
from tape.core.provenance import TRAINED
from tape.results.runs import settings_of, write_runs
from tape.training.settings import RunSettings

TITLED = {column.title.split()[0]: column for column in board.COLUMNS}
TEXT, BIGRAMS, TIME = TITLED["text"], TITLED["bigrams"], TITLED["decoding"]
(FLIPS,) = (column for column in board.COLUMNS if column.title == "flip_flop (16)")


def runs_of(column, given=()):
    """By row and seed."""
    return {(row, run.seed): run for row, run, _ in board.runs_of(column.source, given)}


def ropes(column, given=()):
    """The runs of RoPE with seed 1, by their row."""
    found = runs_of(column, given)
    return {row: found[row, 1] for row in ("rope", "rope (yours)") if (row, 1) in found}


def texts(column, **values):
    """The cells of encodings by the values of their seeds; None: has not learned, but solved 8."""
    rows = [(name, n, x or 8, bool(x)) for name, each in values.items() for n, x in enumerate(each)]
    rows = pd.DataFrame(rows, columns=["encoding", "seed", "value", "learned"])
    return [*board.cells_of(column, rows)["text"]]


def test_the_best_and_what_is_within_a_standard_error_of_it_are_marked():
    lengths = {"a": [64, 32, 128], "b": [64, None, 64], "c": [45] * 3, "d": [None, None, 128]}
    assert "<u>" not in texts(FLIPS, a=[64] * 3, c=[45] * 3, z=[64, 32, 128])[1]  # not beside a
    solved = ["**64 (32 to 128), 3 of 3**", "**64, 2 of 3**", "<u>45, 3 of 3</u>", "128, 1 of 3"]
    # c is behind a by 19 ± 28.2 and behind b by 19 ± 21.3; d is ranked by 0.
    assert texts(FLIPS, **lengths) == solved
    assert texts(FLIPS, a=[23, 23, 64, 64]) == ["**43.5 (23 to 64), 4 of 4**"]
    assert texts(FLIPS, a=[None, 32, None], b=[None]) == ["32, 1 of 3", "0 of 1"]
    losses = {"a": [-0.3, -0.2, -0.1], "b": [-0.15, -0.1501, -0.1502], "c": [-0.14] * 3}
    losses["d"] = [0.1, inf, inf]
    shown = ["**-0.200 (-0.300 to -0.100)**", "<u>-0.150</u>", "-0.140", "+inf (+0.100 to +inf)"]
    assert texts(TEXT, **losses) == shown  # behind a by 0.0499 ± 0.0578 and 0.0600 ± 0.0577
    # Encodings are paired by seed: what seeds share, such as the noise of RoPE, is no error.
    assert "<u>" not in texts(TEXT, a=[-1.0, -0.5, 0.0], b=[-0.98, -0.479, 0.019])[1]
    assert texts(TEXT, a=[inf] * 3) == ["+inf"]
    alike = texts(TEXT, a=[-0.2] * 3, b=[-0.2004] * 3, c=[-0.1] * 3, d=[-0.3] * 2)
    assert alike == ["**-0.200**", "**-0.200**", "-0.100", "-0.300"]
    assert texts(TIME, a=[1, 2, 3, 4, 5, 6, 7]) == ["**4.00 (2.00 to 6.00)**"]


def test_marks_need_three_seeds_in_common():
    rows = [("a", seed, seed, True) for seed in range(5)]
    rows += [("b", seed, 1.6 + seed % 2, True) for seed in (3, 4, 5, 6)]
    rows = pd.DataFrame(rows, columns=["encoding", "seed", "value", "learned"])
    assert [*board.cells_of(TEXT, rows)["mark"]] == ["best", ""]  # 2 of 5 and of 4
    common = rows.assign(seed=[0, 1, 2, 3, 4, 0, 1, 2, 3])
    assert [*board.cells_of(TEXT, common)["mark"]] == ["best", "near"]


def test_no_encoding_on_bigrams_is_marked_like_one_that_is_better_in_the_same_seeds():
    """By their losses themselves, without RoPE's."""
    runs = runs_of(BIGRAMS)
    marks = board.cells_of(BIGRAMS, board.values_of(BIGRAMS, []))["mark"]
    assert marks["wall"] == "best"
    for name in {name for name, _ in runs} - {"wall"}:
        common = [seed for row, seed in runs if row == name and ("wall", seed) in runs]
        behind = [BIGRAMS.of(runs[name, x]) - BIGRAMS.of(runs["wall", x]) for x in common]
        near = len(common) >= 3 and mean(behind) <= stdev(behind) / len(behind) ** 0.5
        assert near == (marks[name] == "near"), name


def test_differences_are_those_of_the_same_seed():
    runs = runs_of(TEXT)
    at = "measure == 'loss' and length == 1024 and first != first"
    fire, rope = (runs[name, 3].rows.query(at)["value"].item() for name in ("fire", "rope"))
    diverged = replace(runs["fire", 2], rows=runs["fire", 2].rows.assign(value=nan))
    better = runs["rope", 2].rows
    better = replace(runs["rope", 2], rows=better.assign(value=better["value"] - 0.5))
    near = replace(runs["fire", 2])
    values = board.values_of(TEXT, [diverged]).set_index(["encoding", "seed"])["value"]
    assert values["fire", 3] == fire - rope and values["fire (yours)", 2] == inf
    own = board.values_of(TEXT, [near, better]).set_index(["encoding", "seed"])["value"]
    assert own["fire (yours)", 2] == pytest.approx(own["fire", 2] + 0.5)  # to the given RoPE
    assert own["fire", 2] == values["fire", 2] and own["rope (yours)", 2] == 0
    alone = board.values_of(TEXT, [near]).set_index(["encoding", "seed"])["value"]
    assert alone["fire (yours)", 2] == alone["fire", 2]
    assert not values["rope"].any()
    refuses("seed 9: rope has no run", board.values_of, TEXT, [replace(runs["fire", 2], seed=9)])


def test_what_a_run_was_not_evaluated_on_is_refused():
    """It would seem to have diverged."""
    lengths = {"text": (1024, "windows of 1,024"), "bigrams": (512, "windows of 512")}
    lengths |= {"pass": (256, "prompts of 256")}
    for title, (length, what) in lengths.items():
        column = TITLED[title]
        run = ropes(column)["rope"]
        run = replace(run, rows=run.rows[run.rows["length"] != length])
        refuses(f"was not evaluated on {what} tokens", board.values_of, column, [run])
    run = ropes(TITLED["addition"])["rope"]
    digits = run.rows[["first_digits", "second_digits"]].max(axis=1)
    run = replace(run, rows=run.rows[digits <= 5])
    refuses("was not evaluated on operands of 6", board.values_of, TITLED["addition"], [run])


@pytest.mark.parametrize("name", ["fox", "yarn", "abacus"])
def test_runs_by_the_recipes_of_today_are_beside_committed_ones(name, tmp_path):
    columns = {each: TITLED[each.split()[0]] for each in ("text", "bigrams", "addition")}
    columns |= {"passkey": TITLED["pass"], "synthetic data=flip_flop": FLIPS}
    for recipe, column in columns.items():
        like, words = ropes(column)["rope"], f"position={name} experiment={recipe}".split()
        recorded = RunSettings(**compose_run(words)[1]).recorded
        (tmp_path / TRAINED).write_text(json.dumps(recorded))
        own = {x: y for x, y in like.settings.items() if x.startswith(("tokens.", "sequences_"))}
        given = replace(like, settings=settings_of(tmp_path)[1] | own)
        rows = {*board.values_of(column, [given])["encoding"]}
        assert rows & {name, f"{name} (yours)"}


def test_submitted_runs_replace_committed_ones_and_given_ones_are_apart(monkeypatch):
    run = ropes(FLIPS)["rope"]
    theirs, given = (replace(run, folder=Path(name)) for name in ("theirs", "given"))
    monkeypatch.setattr(board, "submitted", lambda: [theirs])
    assert ropes(FLIPS) == {"rope": theirs}
    assert ropes(FLIPS, [given]) == {"rope": theirs, "rope (yours)": given}


def test_given_runs_get_a_row(tmp_path, undrawn):
    runs = [run for (row, _), run in runs_of(FLIPS).items() if row == "rope"]
    like = lambda run, key, value: replace(run, settings=run.settings | {key: value})  # noqa: E731
    mine = [like(run, "position.name", "mine") for run in runs[1:]]
    write_runs(tmp_path, [*mine, replace(runs[0], rows=runs[0].rows.assign(reached=0))])
    text, missing = board.leaderboard([tmp_path], tmp_path / "out")
    assert not missing and text.count("[mine](encodings.md#definitions)") == 1
    assert "Lines with (yours) hold the given runs" in text and "| [rope (yours)](http" in text
    rows = pd.read_csv(tmp_path / "out" / "leaderboard.csv", index_col=["column", "encoding"])
    rows, before = rows.loc[FLIPS.title], board.values_of(FLIPS, []).query("encoding == 'rope'")
    assert [*rows.loc["mine", ["learned", "runs"]]] == [before["learned"][1:].sum(), len(mine)]
    assert [*rows.loc["rope", ["learned", "runs"]]] == [before["learned"].sum(), len(runs)]
    assert [*rows.loc["rope (yours)", ["learned", "runs"]]] == [0, 1]
    assert board.row_of(like(runs[0], "position.theta", 9.0)) == "rope theta=9.0"
    write_runs(tmp_path / "other", [replace(runs[0], asked={})])
    refuses("what no column shows", board.leaderboard, [tmp_path / "other"], tmp_path)


def test_runs_of_another_recipe_are_refused_with_those_of_the_columns(tmp_path):
    """And with the command for the given encoding."""
    columns = r"; columns that take runs .*: perplexity 1x; text 4x, nats; .*; needle \(32\).*\. `"
    like = lambda run, **changes: replace(run, settings=run.settings | changes)  # noqa: E731
    mine = {"position.name": "mine"}
    run = ropes(TEXT)["rope"]
    short = like(run, **mine, **{"trainer.max_steps": 20})
    made = r"tape sweep sweep=text 'vary.position=\[mine, rope\]'` makes rows of perplexity 1x; "
    told = rf"different settings: trainer\.max_steps: 1800 -> 20{columns}{made}text 4x, nats; "
    refuses(f"{told}`TYPES=mine bash script/leaderboard.sh`", board.values_of, TEXT, [short])
    run = ropes(FLIPS)["rope"]
    longer = like(run, **{"position.name": "mine2", "length": 9})
    command = r"`TASKS=flip_flop TYPES=.mine2 rope. bash script/suite\.sh` makes rows of flip_flop"
    told = rf"length: \d+ -> 9.*{command}"
    refuses(told, board.values_of, FLIPS, [longer])
    asked = {name: dict(each, trained=5) for name, each in run.asked.items()}
    write_runs(tmp_path, [replace(like(run, **mine), asked=asked)])
    told = rf"asked what no column shows: leave it out{columns}TASKS=copy TYPES=.mine rope. bash"
    refuses(told, board.leaderboard, [tmp_path], tmp_path / "out")
    nowhere = tmp_path / "nowhere"
    refuses(rf"nowhere.*{columns}{made}", board.leaderboard, [nowhere], tmp_path / "out")


def test_a_row_holds_runs_of_one_recipe():
    runs = [run for (row, _), run in runs_of(FLIPS).items() if row == "rope"]
    like = lambda run, key, value: replace(run, settings=run.settings | {key: value})  # noqa: E731
    other = replace(runs[1], rows=runs[1].rows.assign(value=0.0))
    for key in ("trainer.max_steps", "trainer.learning_rate"):
        refuses(f"{key}: ", board.values_of, FLIPS, [runs[1], like(other, key, 9)])
