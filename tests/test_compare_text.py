"""Encodings over seeds in one table: the numbers, the statistics, and refusals."""

import json
import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from commands import tape
from conftest import composed, refuses
from results import add_metrics, add_perplexity, change
from results import make_run as make

from tape import TapeConfig
from tape.evaluation.curves import ABOUT, binned, context_gain, read_evaluation, write
from tape.evaluation.windows import CONVENTIONS, strides_of, windows_of
from tape.files import write_text
from tape.results.compare import compare, read
from tape.results.figures import curves
from tape.results.typesetting import markdown
from tape.settings.groups import ABLATIONS
from tape.statistics import differences


def make_run(folder, position, seed, losses, **settings):
    make(folder, position, seed, **settings)
    add_perplexity(folder / "compare", dict(zip((8, 16, 32), losses, strict=True)), windows=100)
    add_metrics(folder, losses[0] + 0.5)
    return folder


LOSSES = {
    "rope": [(1.0, 3.0, 4.0), (1.1, 3.2, 4.5), (1.4, 3.1, 4.1)],
    "tape": [(0.9, 1.0, 1.1), (1.05, 1.1, 1.3), (1.2, 1.2, 1.1)],
}


EACH = [(name, n, x) for name, seeds in LOSSES.items() for n, x in enumerate(seeds)]


@pytest.fixture
def runs(tmp_path):
    return [make_run(tmp_path / f"e_{name}_{n}", name, n, losses) for name, n, losses in EACH]


def test_differences_are_those_of_the_statistics(runs):
    values = [(name, seed, losses[2], 1) for name, seed, losses in EACH]
    rows = pd.DataFrame(values, columns=["row", "seed", "value", "n"])
    found = differences(rows, "rope").loc["tape"]
    assert (
        f"| tape | loss, 32 | {found['mean']:+.4f} ± {found.half_width:.4f} "
        f"| 3 | {found.p:.2g} | 0.25 | {found.detectable:.2g} |"
    ) in markdown(read(runs, "compare"), "rope")
    pairs = markdown(read([runs[0], runs[2], runs[3], runs[5]], "compare"), "rope")
    assert f"| loss, 32 | {(1.1 - 4.0 + 1.1 - 4.1) / 2:+.4f} ±" in pairs
    text = markdown(read([runs[0], runs[3]], "compare"), "rope")
    assert "Δ" not in text and "No differences to rope: they need two" in text


def test_the_table_and_the_rows(runs, tmp_path):
    """The tables of docs/ show how they are written."""
    out = tmp_path / "out"
    text, found = compare(runs, out, "compare", "rope")
    assert not found.missing and (out / "table.md").read_text() == text + "\n"
    assert "No context gain" in text  # the trained length of 8 tokens has none
    assert sum(line.startswith("|") for line in text.splitlines()) == 4 + 4 + 4  # three tables
    rows = pd.read_csv(out / "results.csv")
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    shown = ["encoding", "seed", "length", "n", "unit", "value"]
    expected = ["tape", 0, 8, 700, "nats", pytest.approx(0.9)]
    assert len(whole) == 6 * 3 and [*whole[shown].iloc[0]] == expected
    measures = {"loss", "training loss", "validation loss", "speed", "peak memory"}
    assert {*rows["measure"]} == measures and (out / "curves.png").stat().st_size > 0
    assert "Δ" not in compare(runs, out, "compare")[0]


def test_a_baseline_is_a_row_or_one_of_its_runs(runs, tmp_path, capsys):
    by_label = markdown(read(runs), "rope")
    assert "| tape | loss, 8 | -" in by_label
    tape("compare", *runs, "--baseline", runs[1], "--out", tmp_path / "out")
    assert by_label in capsys.readouterr().out


def test_a_perplexity_beyond_all_numbers_is_infinite(tmp_path):
    runs = [make_run(tmp_path / f"{n}", "rope", n, (1.0, 2.0, 800.0 + n)) for n in range(2)]
    assert "| inf" in compare(runs, tmp_path / "out")[0]


def test_every_row_of_the_papers_ablations_composes():
    rows, both = {}, [*product([True, False], repeat=2)]
    for table, names in ABLATIONS.tables.items():
        rows[table] = [composed(f"ablation={x}").position for x in names]
    full = composed().position
    assert full.name == "tape" and all(full in each for each in rows.values())
    # The seven rows of Table 6.
    assert sorted((x.attention, x.feed_forward) for x in rows["architecture"]) == sorted(both)
    assert sorted((x.equivariant, x.tensorial) for x in rows["equivariance"]) == sorted(both)
    assert [x.width for x in rows["width"]] == ["1H", "2H", None, "8H", "16H"]
    wide = {"hidden_size": 96, "num_attention_heads": 12, "position": {**rows["width"][3]}}
    assert TapeConfig(**wide).position["width"] == 96


def test_the_context_gain_and_ngram_models_of_the_report(runs, tmp_path):
    for n, run in enumerate(runs):
        change(run, length=32)
        models = {"models": [{"model": "bigram", "perplexity": 4.0 + n}]}
        report = json.dumps({"scored_tokens": 9, "ngrams": models})
        write_text(run / "report" / "report.json", report)
    text, found = compare(runs, tmp_path / "out", "compare")
    assert text.splitlines()[0].endswith("| context gain, nats |")
    assert "| 0.00 ± 0.00 |" in text  # every position has the same loss here
    assert "No context gain" not in text
    panel = curves(found).axes[2]
    line = next(line for line in panel.lines if line.get_label() == "bigram")
    assert line.get_ydata()[0] == pytest.approx(np.mean([math.log(4.0 + n) for n in range(6)]))
    again = curves(read([tmp_path / "out"])).axes[2]
    assert "bigram" in [line.get_label() for line in again.lines]


def test_a_continuation_is_left_out_until_it_ends(runs, tmp_path):
    text, _ = compare(runs, tmp_path / "out", "compare")
    for run in runs:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 7, "loss": 1, "tokens_per_second": 9, "peak_memory_gib": 9}\n')
            file.write('{"step": 8, "eval_loss": 0.1}\n')
    assert compare(runs, tmp_path / "again", "compare")[0] == text
    for name in ("results.csv", "settings.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_an_extended_model_is_a_row_of_its_own(runs, tmp_path):
    for run in runs[:3]:
        (place := run / "compared").mkdir()
        add_perplexity(place, {8: 1.0, 16: 2.0, 32: 3.0}, windows=100, extend="linear 8")
    both = [run / name for run in runs[:3] for name in ("compare", "compared")]
    compare(both, tmp_path / "out")
    for folders in (both, [tmp_path / "out"]):
        assert {*read(folders).labels} == {"rope", "rope extend=linear 8"}


def test_losses_by_position_are_those_of_the_measurement(runs):
    """Those of weights that the run had before remain in their file."""
    place = runs[0] / "compare"
    (place / "perplexity.csv").unlink()
    add_perplexity(place, {8: 2.0, 16: 2.0, 32: 2.0}, weights="e" * 16, windows=100)
    found = read_evaluation(place).rows
    assert {*found["value"]} == {2.0} and found["first"].notna().any()
    (place / "perplexity.csv").unlink()
    write(place / "perplexity.csv", dict.fromkeys(ABOUT, "other"), {8: [binned([1], [1.0])]})
    by_position = place / "perplexity_by_position.csv"
    kept = [x for x in by_position.read_text().splitlines(True) if not x.startswith("other")]
    by_position.write_text("".join(kept))
    refuses("not of the measurement in", read_evaluation, place)


@pytest.mark.parametrize("tokens", [900, 9_000])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_context_gain_needs_many_windows(tmp_path, convention, tokens):
    """Under `sliding`, only the first one scores the first tokens."""
    shown = tokens == 9_000 and convention != "sliding"
    disjoint = convention == "disjoint"
    lengths = [32] if disjoint else [32, 64]
    strides = strides_of(convention, lengths, None if disjoint else 16)
    batches = {length: [] for length in lengths}
    for length, found in batches.items():
        for window in windows_of(convention, tokens, length, strides[length]):
            positions = np.array(window.positions)
            found.append(binned(positions, 1 / (1 + positions)))
    write(tmp_path / "perplexity.csv", dict.fromkeys(ABOUT, convention), batches)
    found = context_gain(read_evaluation(tmp_path).rows, 32)
    early, late = (np.mean(1 / (1 + np.arange(*part))) for part in ((2, 8), (16, 32)))
    assert [row["value"] for row in found] == [pytest.approx(early - late)] * shown
