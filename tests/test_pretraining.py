"""Encodings over seeds in one table: the numbers, the statistics, and refusals."""

import csv
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_command
from conftest import composed
from pretraining import compare as entry
from pretraining.compare import compare
from pretraining.figures import figure_of
from pretraining.rows import compared, difference
from scipy.stats import ttest_rel

from config import ABLATIONS
from tape import TapeConfig
from tape.evaluation.curves import binned, write
from tape.files import write_text
from tape.training.runs import TRAINED, register_run

LENGTHS = (8, 16, 32)


def make_run(folder, position, seed, losses, *, speed=100.0, steps=5, asked=(), **arguments):
    """A run with these losses at LENGTHS; its weights are not there."""
    settings = {
        **{"name": folder.name, "seed": seed, "length": 8, "tokens": {"train": "t"}},
        "position": {"name": position, **arguments},
        "trainer": {"seed": seed, "max_steps": steps},
    }
    write_text(folder / TRAINED, json.dumps(register_run(folder, settings)))
    rows = [
        {"step": step, "loss": 9.0 - step, "tokens_per_second": speed + step, "peak_memory_gib": 2}
        for step in (1, 2, 3)
    ]
    rows.append({"step": 3, "eval_loss": losses[0] + 0.5})
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    about = {"model": folder.name, "model_hash": "f" * 16, "data": "d", "data_hash": "d"}
    about |= {"convention": "paper", "stride": 4, "batch_size": "", "dtype": "float32"}
    batches = {
        length: [binned(range(1, length), [loss] * (length - 1))]
        for length, loss in zip(LENGTHS, losses, strict=True)
    }
    write(folder / "compare" / "perplexity.csv", about | dict(asked), batches)
    return folder


LOSSES = {
    "rope": [(1.0, 3.0, 4.0), (1.1, 3.2, 4.5), (1.4, 3.1, 4.1)],
    "tape": [(0.9, 1.0, 1.1), (1.05, 1.1, 1.3), (1.2, 1.2, 1.1)],
}


@pytest.fixture
def runs(tmp_path):
    return [
        make_run(tmp_path / f"e_{position}_{seed}", position, seed, losses)
        for position, seeds in LOSSES.items()
        for seed, losses in enumerate(seeds)
    ]


def test_differences_are_those_of_the_paired_test(runs):
    tape, rope = compared(runs, "compare").rows  # the better first
    assert (tape.label, rope.label) == ("tape", "rope")
    for column, length in enumerate(LENGTHS):
        ours, theirs = (np.array([seed[column] for seed in LOSSES[n]]) for n in ("tape", "rope"))
        found = difference(tape, rope, length)
        expected = ttest_rel(ours, theirs)
        low, high = expected.confidence_interval(0.95)
        assert found.mean == pytest.approx((ours - theirs).mean())
        assert found.p == pytest.approx(expected.pvalue)
        assert found.half_width == pytest.approx((high - low) / 2)
    assert difference(rope, rope, 8) is None


def test_differences_are_of_the_seeds_that_both_have(runs):
    tape, rope = compared([*runs[:2], *runs[4:]], "compare").rows  # 0 and 1, 1 and 2
    assert difference(tape, rope, 8) is None
    tape, rope = compared([*runs[:3], *runs[4:]], "compare").rows
    assert difference(tape, rope, 8).mean == pytest.approx((1.05 - 1.1 + 1.2 - 1.4) / 2)


def test_the_table_the_lines_and_latex(runs, tmp_path):
    out = tmp_path / "out"
    text, found = compare(runs, "compare", "rope", out)
    lines = text.splitlines()
    assert lines[0] == (
        "| encoding | seeds | perplexity 8 | perplexity 16 | perplexity 32 | loss - rope, 8 | "
        "loss - rope, 32 | tokens/s | memory, GiB |"
    )
    values = [math.exp(x) for x in (0.9, 1.05, 1.2)]
    spread = 4.302653 * np.std(values, ddof=1) / 3**0.5
    assert lines[2].startswith(f"| tape | 3 | {np.mean(values):.2f} ± {spread:.2f} | ")
    assert lines[2].endswith("| 102 ± 0 | 2.00 ± 0.00 |") and " (p 0.0" in lines[2]
    assert "| - | - | 102 ± 0 |" in lines[3]
    assert not found.missing and "Not in the table" not in text
    assert (out / "table.md").read_text() == text + "\n"
    tex = (out / "table.tex").read_text()
    assert tex.startswith("\\begin{tabular}{lrrrrrrrr}\n\\toprule\nencoding & seeds & ")
    assert tex.count("\\\\\n") == 3 and "$\\pm$" in tex and "±" not in tex
    rows = list(csv.DictReader((out / "runs.csv").open(newline="")))
    assert len(rows) == 6 * 3
    assert rows[0] | {"perplexity": ""} == {
        **{"encoding": "tape", "seed": "0", "length": "8", "loss": "0.9", "perplexity": ""},
        **{"tokens_per_second": "102.0", "peak_memory_gib": "2.0"},
    }
    assert (out / "comparison.png").stat().st_size > 0
    without, _ = compare(runs, "compare", "alibi", out)
    assert "loss - " not in without


def test_the_picture_has_a_line_and_a_band_per_row(runs):
    panels = figure_of(compared(runs, "compare")).axes
    assert len(panels) == 3
    for axes in panels:
        lines = {line.get_label(): line for line in axes.lines}
        assert lines.keys() - {"trained up to here"} == {"tape", "rope"}
        assert len(axes.collections) == 2 and axes.get_xlabel() and axes.get_ylabel()
    by_length = {line.get_label(): line for line in panels[1].lines}["rope"].get_ydata()
    assert by_length[2] == pytest.approx(np.mean([math.exp(x) for x in (4.0, 4.5, 4.1)]))


def test_runs_that_did_not_finish_are_named(runs, tmp_path, monkeypatch, capsys):
    (runs[0] / "compare" / "perplexity.csv").unlink()
    (runs[1] / TRAINED).unlink()
    (runs[2] / "metrics.jsonl").write_text("")
    (runs[3] / "compare" / "perplexity.csv").write_text("a,b\n1,2\n")
    text, found = compare(runs, "compare", "rope", tmp_path / "out")
    assert list(found.missing) == runs[:4] and [row.label for row in found.rows] == ["tape"]
    assert f"* {runs[0]}: {runs[0]}/compare/perplexity.csv is not there" in text
    monkeypatch.setattr(sys, "argv", ["compare", *map(str, runs), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="error: 4 of 6 runs are not in the table"):
        entry.main()
    assert "| tape | 2 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 6}, r"were not given the same: trainer.max_steps: 5 -> 6.*one budget"),
        ({"asked": {"stride": 2}.items()}, "were not asked the same: stride: 4 -> 2"),
        ({"seed": 0}, "are the same run, seed 0"),
    ],
)
def test_unequal_runs_are_refused(changes, message, runs, tmp_path):
    changes = {"position": "rope", "seed": 3, "losses": (1.0, 2.0, 3.0)} | changes
    other = make_run(tmp_path / "other", **changes)
    with pytest.raises(ValueError, match=message):
        compare([*runs, other], "compare", "rope", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ablations_are_rows_of_their_own(tmp_path):
    runs = [
        make_run(tmp_path / f"{n}", "tape", 0, (n, n, n), attention=a, feed_forward=f)
        for n, (a, f) in enumerate([(True, True), (True, False), (False, True)], start=1)
    ]
    found = compared(runs, "compare")
    assert [row.label for row in found.rows] == [
        "tape",
        "tape feed_forward=False",
        "tape attention=False",
    ]


def test_a_baseline_is_a_row_or_one_of_its_runs_and_is_missed(runs, tmp_path):
    by_label, _ = compare(runs, "compare", "rope", tmp_path / "out")
    by_run, _ = compare(runs, "compare", str(runs[1]), tmp_path / "out")
    assert by_label == by_run and "| loss - rope, 8 |" in by_label
    for given, status in (("tpae", 1), ("", 1), ("rope", 0), (str(runs[1]), 0), (None, 0)):
        flag = [] if given is None else ["--baseline", given]
        outcome = run_command("-m", "pretraining.compare", *map(str, runs), *flag, folder=tmp_path)
        assert outcome.status == status and (given in ("tpae", "")) == ("error: " in outcome.err)
    without, _ = compare(runs, "compare", "tpae", tmp_path / "out")
    assert "loss - " not in without
    assert "Without differences: none of the rows is tpae." in without


def test_nothing_to_compare_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="is not there: the run did not finish"):
        compare([tmp_path / "nothing"], "compare", "rope", tmp_path / "out")


def test_every_row_of_the_papers_ablations_composes():
    paper = Path(entry.__file__).parent
    table6, table7 = (len((paper / f"table{n}.csv").read_text().splitlines()) - 1 for n in (6, 7))
    rows = {}
    for table in ("architecture", "equivariance", "width"):
        swept = ABLATIONS.tables[table]
        chosen = [composed(f"experiment=ablation_{table}", f"ablation={row}") for row in swept]
        rows[table] = {row: cfg.position for row, cfg in zip(swept, chosen, strict=True)}
        assert all(each.name == "tape" for each in rows[table].values())
        assert rows[table]["full"] == composed("experiment=ablation").position
    both = [(each.attention, each.feed_forward) for each in rows["architecture"].values()]
    assert set(both) == set(itertools.product([True, False], repeat=2))
    both = [(each.equivariant, each.tensorial) for each in rows["equivariance"].values()]
    assert set(both) == set(itertools.product([True, False], repeat=2))
    wide = composed("experiment=ablation_width", "ablation=width_8h", "model=base")
    assert (
        TapeConfig(hidden_size=96, num_attention_heads=12, position=dict(wide.position)).position[
            "width"
        ]
        == 96
    )
    widths = [each.width for each in rows["width"].values()]
    assert widths == ["1H", "2H", "4H", "8H", "16H"]
    assert len(rows["architecture"]) + len(rows["equivariance"]) - 1 == table6
    assert len(rows["width"]) == table7
