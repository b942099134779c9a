"""Loss against compute: a known law comes out again, and what cannot be fitted is refused."""

import json

import numpy as np
import pytest
from conftest import make_config

from tape.files import write_text
from tape.model.flops import multiply_adds
from tape.results.finals import COMPUTE, read_run, value
from tape.results.scaling import draw, drawn_again, fit, main, points_of
from tape.runs.folder import TRAINED, register_run

FLOOR, EXPONENT, GAINS = 1.5, 0.25, {"rope": 1.0, "tape": 2.0, "alibi": 0.5}


def make_run(folder, encoding, width, steps, seed, noise=0.0, **others):
    """A run that follows the law, with the compute of its model."""
    config = make_config(encoding, hidden_size=width, intermediate_size=2 * width)
    spent = 6 * sum(multiply_adds(config, 8).values()) * 4 * steps
    loss = FLOOR + 30 * (GAINS[encoding] * spent) ** -EXPONENT + noise
    settings = {"seed": seed, "length": 8, "sequences_per_step": 4, **others}
    settings |= {"position": {"name": encoding}, "model": {"hidden_size": width}}
    settings["trainer"] = {"seed": seed, "max_steps": steps}
    write_text(folder / TRAINED, json.dumps(register_run(folder, settings)))
    config.save_pretrained(folder)
    row = {"step": steps, "loss": 4.0, "tokens_per_second": 9.0, "peak_memory_gib": 1.0}
    rows = [row, {"step": steps, "eval_loss": loss}]
    write_text(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def runs(tmp_path):
    random = np.random.Generator(np.random.PCG64(3))
    return [
        make_run(
            tmp_path / f"s_{name}_{width}_{seed}", name, width, steps, seed, 1e-3 * random.normal()
        )
        for name in GAINS
        for width, steps in ((16, 10), (32, 40), (64, 160), (128, 640))
        for seed in range(3)
    ]


def test_the_compute_of_a_run(runs):
    run = read_run(runs[0])
    # A training step has three times the FLOPs of a forward pass, which has two per multiply-add.
    forward = sum(
        multiply_adds(make_config("rope", hidden_size=16, intermediate_size=32), 8).values()
    )
    assert value(run, COMPUTE) == 3 * 2 * forward * 4 * 10


def test_the_law_comes_out_again(runs):
    points = points_of([read_run(run) for run in runs])
    found = fit(points)
    assert found.floor == pytest.approx(FLOOR, abs=0.05)
    assert found.exponent == pytest.approx(EXPONENT, abs=0.03)
    for name, gain in GAINS.items():
        assert found.gain(name, "rope") == pytest.approx(gain, rel=0.05)
    np.testing.assert_allclose(
        found.loss("tape", points["compute"][12:24]), points["loss"][12:24], atol=0.01
    )
    again = drawn_again(points, np.random.Generator(np.random.PCG64(0)))
    assert again.groupby(["label", "size"]).size().eq(3).all() and not again.equals(points)
    lines = draw(points, found).axes[0].lines
    assert len(lines) == 6


def test_rates_of_the_encoding_are_rows_of_their_own(runs, tmp_path):
    factor = {"optimizer": {"encoding_factor": 10}}
    others = [
        make_run(tmp_path / f"f{width}", "tape", width, steps, 0, **factor)
        for width, steps in ((16, 10), (32, 40), (64, 160))
    ]
    points = points_of([read_run(run) for run in [*runs, *others]])
    assert set(points["label"]) == {*GAINS, "tape encoding_factor=10"}


def test_command(runs, tmp_path, capsys):
    given = [*map(str, runs), "--samples", "20"]
    main([*given, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    first = (tmp_path / "out" / "table.md").read_text()
    assert printed.startswith(first) and (tmp_path / "out" / "scaling.png").is_file()
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["| tape", "| rope", "| alibi"]
    low, high = map(float, rows[0][3].split(" to "))
    assert low < 2.0 * 1.05 and high > 2.0 / 1.05 and high - low < 0.5
    assert rows[1][2:4] == ["1.00", "-"]
    main([*map(str, runs[::3]), "--out", str(tmp_path / "one")])  # a seed of each
    printed = capsys.readouterr().out
    assert "No intervals: they need" in printed and " to " not in printed.split("\n\n")[0]
    main([str(tmp_path / "out"), "--samples", "20", "--out", str(tmp_path / "again")])
    assert (tmp_path / "again" / "table.md").read_text() == first


def test_what_cannot_be_fitted_is_refused(runs, tmp_path):
    with pytest.raises(SystemExit, match="2 sizes of models: a fit of loss against compute needs"):
        main([*map(str, runs[:6]), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="--baseline 'nope' is none of rope, tape, alibi"):
        main([*map(str, runs), "--baseline", "nope", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="is given twice, or is as another run"):
        main([*map(str, [*runs, runs[0]]), "--out", str(tmp_path / "out")])
    other = make_run(tmp_path / "other", "rope", 256, 5, 0, vocab_size=7)
    with pytest.raises(SystemExit, match="were trained with different settings: vocab_size"):
        main([*map(str, [*runs, other]), "--out", str(tmp_path / "out")])
