"""What the speed of encodings is measured with and written down as; never how fast they are."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.speed import PRODUCT, SCOPES, Case, Method, cases, main, parse
from benchmarks.speed_report import COLUMNS, beside_paper, by_length
from benchmarks.workloads import Load
from tape.evaluation.tables import read_table

SHAPE = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": None, "mlp": 48, "vocabulary": 61}
TINY = [str(x) for k, v in SHAPE.items() if v is not None for x in (f"--{k}", v)]


@pytest.fixture
def speed(tmp_path, monkeypatch, capsys):
    """Run the command in a folder of its own; what it prints and its table. Only where a test asks
    for pictures are they drawn: they take longer than the measurements."""
    monkeypatch.chdir(tmp_path)

    def speed(*arguments, pictures=False):
        if not pictures:
            monkeypatch.setattr("benchmarks.speed_report.write_figure", lambda *_: None)
        main([*TINY, "--new", "2", "--out", "speed", *map(str, arguments)])
        return capsys.readouterr().out, read_table(Path("speed/speed.csv"), tuple(COLUMNS))

    return speed


@pytest.mark.parametrize(
    "asked",
    [
        ("--scopes", "layer", "--work", "forward", "--lengths", 8),
        pytest.param(
            ("--lengths", 8, "--encodings", "rope", "tape", "--backends", "eager", "sdpa"),
            marks=pytest.mark.slow,
        ),
        ("--lengths", 8, "--encodings", "rope", "tape", "--work", "training", "--scopes", "layer"),
        pytest.param(
            ("--lengths", 8, "--encodings", "rope", "fire", "tape"), marks=pytest.mark.slow
        ),
    ],
    ids=["all encodings", "all work", "all backends", "all work in all backends"],
)
def test_every_encoding_and_kernel_has_a_row_that_says_what_ran(speed, asked):
    printed, rows = speed(*asked)
    assert len(rows) == len({tuple(row.values())[:9] for row in rows})
    asked = {
        (c.scope, c.load.work, c.backend, str(c.load.length), m.label, m.implementation)
        for c in cases(parse([str(x) for x in asked]))
        for m in c.methods.values()
    }
    key = ("scope", "work", "backend", "length", "encoding", "implementation")
    assert {tuple(row[k] for k in key) for row in rows} == asked
    for row in rows:
        measured = COLUMNS[COLUMNS.index("milliseconds") : -2]
        numbers = [row[c] for c in measured if c not in ("peer_ratio", "reference")]
        assert all(numbers) != bool(row["note"]) and any(numbers) != bool(row["note"]), row
        if row["note"]:
            continue
        assert all(math.isfinite(float(x)) and float(x) > 0 for x in numbers), row
        first, median, third = (
            float(row[f"milliseconds{part}"]) for part in ("_first", "", "_third")
        )
        assert first <= median <= third
        assert bool(row["peer_ratio"]) == (row["implementation"] != "here")
        if row["backend"] == "eager":
            assert not row["kernels"]
        if row["backend"] == "sdpa" and row["encoding"] == "rope":
            assert "_scaled_dot_product_" in row["kernels"]
    flash = [row["note"] for row in rows if row["backend"] == "flash_attention_2"]
    if not torch.cuda.is_available():
        assert all(flash), flash
        flex = [r for r in rows if r["backend"] == "flex_attention" and r["work"] == "training"]
        assert all(row["note"] for row in flex)
    assert Path("speed/speed.md").read_text() in printed


SHORT = ("--lengths", 8, "--scopes", "layer", "--backends", "sdpa")
SHORT += ("--encodings", "rope", "tape", "--peers")


@pytest.mark.slow
def test_pictures_are_drawn_for_each_scope_and_backend(speed):
    few = ("--lengths", 8, 16, "--work", "forward", "--backends", "eager", "sdpa")
    speed(*few, "--encodings", "rope", "tape", "--peers", "transformers", pictures=True)
    for name in (f"speed_{scope}_{kernel}" for scope in SCOPES for kernel in ("eager", "sdpa")):
        assert Path(f"speed/{name}.png").stat().st_size > 1000
        assert Path(f"speed/{name}.svg").stat().st_size > 1000


def test_a_run_that_ends_early_is_continued(speed, monkeypatch):
    rounds = Path("speed/speed_rounds.csv")
    for number in (1, 2):  # a slice measures something, however short it is
        with pytest.raises(SystemExit) as stopped:
            speed(*SHORT, "--seconds", 1e-9)
        assert stopped.value.code == 75
        assert len(set(pd.read_csv(rounds).comparison)) == number
    begun = rounds.read_text()
    _, rows = speed(*SHORT)
    assert rounds.read_text().startswith(begun)  # nothing is measured twice
    counted = pd.read_csv(rounds).groupby(["comparison", "method"]).size()
    assert {*counted} == {7} and len(counted) == 1 + len(rows)
    monkeypatch.setattr("benchmarks.harness.measure", None)
    assert speed(*SHORT)[1] == rows  # nor measured again


def test_ratios_are_those_within_rounds(speed):
    """And every number of the table follows from the raw rows."""
    _, rows = speed(*SHORT, "--work", "forward")
    raw = pd.read_csv("speed/speed_rounds.csv").pivot(
        index="round", columns=["comparison", "method"], values="seconds"
    )
    seconds = raw["layer, forward, sdpa, 8"]
    tape = next(row for row in rows if row["encoding"] == "tape")
    ratio = (seconds["tape"] / seconds["rope"]).median()
    assert float(tape["ratio"]) == pytest.approx(ratio, rel=1e-4)
    load = Load("forward", 1, 8, 1, torch.float32, False)
    macs = Case("layer", "sdpa", load, SHAPE).multiply_adds(Method("tape"), False)
    middle, peak = seconds["tape"].median(), 2 * 1024**3 / raw[PRODUCT, PRODUCT].min()
    for column, expected in {
        "milliseconds": 1e3 * middle,
        "tflops": 2 * macs / middle / 1e12,
        "tokens_per_second": 8 / middle,
        "reference_tflops": peak / 1e12,
        "share": 2 * macs / middle / peak,
    }.items():
        if column not in ("reference_tflops", "share") or not torch.cuda.is_available():
            assert float(tape[column]) == pytest.approx(expected, rel=1e-4), column


def test_another_shape_or_machine_is_another_folder(speed, monkeypatch):
    few = (*SHORT, "--work", "forward")
    speed(*few)
    before = {path: path.read_bytes() for path in Path("speed").rglob("*.*")}
    with pytest.raises(SystemExit, match=r"^error: .*batch: 1 -> 2.*give this one another place"):
        speed(*few, "--batch", 2)
    monkeypatch.setattr("benchmarks.harness.machine", lambda: "an abacus")
    with pytest.raises(SystemExit, match=r"machine: .* -> an abacus"):
        speed(*few)
    assert {path: path.read_bytes() for path in Path("speed").rglob("*.*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--lengths 0", "--lengths: '0' must be an integer >= 1"),
        ("--lengths 8 8", "--lengths: duplicate value 8"),
        ("--encodings tape", "--encodings tape: times are given next to those of rope; add it"),
        ("--rounds 6", "--rounds/--repeats: '6' must be an integer >= 7"),
        ("--heads 5", "--hidden 32 must be a multiple of --heads 5"),
        ("--hidden 36 --heads 12", "rotary positions need pairs of channels: head_dim=3"),
        ("--seconds -1", "--seconds -1.0 must be above 0"),
        (
            "--out file",
            "--out: the folder file cannot be created: file is a file; give another one",
        ),
    ],
)
def test_invalid_arguments_are_refused(speed, capsys, arguments, message):
    Path("file").touch()
    with pytest.raises(SystemExit) as refused:
        speed(*arguments.split())
    said = capsys.readouterr().err if refused.value.code == 2 else refused.value.code
    assert said.startswith(f"error: {message}")
    assert [path.name for path in Path().iterdir()] == ["file"]


def table_of(*rows):
    """What is timed; a row is a dict of its columns."""
    about = {"scope": "layer", "work": "forward", "implementation": "here", "compiled": "no"}
    found = pd.DataFrame([about | row for row in rows], columns=[*COLUMNS, "how", "method"])
    return found.assign(method=found.encoding, how=found.backend, kernels="")


def test_the_table_shows_ratios_and_the_longest_length():
    row = {"milliseconds": 2.0, "tokens_per_second": 4000.0, "tflops": 0.5, "share": 0.25}
    row |= {"ratio": 1.5, "ratio_first": 1.25, "ratio_third": 2.0, "memory_mib": 3.0}
    row |= {"encoding": "tape", "backend": "sdpa"}
    shown = by_length(table_of(*(row | {"length": length} for length in (8, 1024))))
    assert shown.splitlines()[0].startswith("| encoding | ms, 8 | ms, 1,024 | tokens/s |")
    cell = "2 (1.50; 1.25 to 2.00)"
    assert (
        shown.splitlines()[2] == f"| tape | {cell} | {cell} | 4,000 | 0.5 | 25.0% | 3.0 | unfused |"
    )


def test_the_papers_table_4_is_beside_a_layer_at_its_length():
    """The fastest fused kernel of each, and for the row that is not fused eager attention."""
    names = ("encoding", "backend", "length", "milliseconds", "ratio")
    times = [
        ("rope", "sdpa", 1024, 2.0),
        ("rope", "flex_attention, compiled", 1024, 1.0, 1.0),
        ("rope", "eager", 1024, 4.0),
        ("rope", "sdpa", 512, 0.1),
        ("tape", "sdpa", 1024, 1.25),
        ("t5", "flex_attention, compiled", 1024, 1.5, 1.75),
        ("tape", "eager", 1024, 3.0),
        ("fire", "eager", 1024, 9.0),
    ]
    found = table_of(*(dict(zip(names, row, strict=False)) for row in times))
    (shown,) = beside_paper(found)
    assert shown.splitlines()[2:] == [
        "| RoPE | 0.208 | 1.00 | 1 | 1.00 | flex_attention, compiled |",
        "| TAPE | 0.256 | 1.23 | 1.25 | 1.25, medians | sdpa |",
        "| TAPE, not fused | 0.563 | 2.71 | 3 | 3.00, medians | eager |",
        "| FIRE | 0.556 | 2.67 |  |  |  |",
        "| T5 bias | 0.690 | 3.32 | 1.5 | 1.75 | flex_attention, compiled |",
    ]
    assert not [*beside_paper(found[found.length == 512])]


@pytest.mark.slow
def test_compiled_layers_and_decoders(speed):
    few = ("--lengths", 8, "--backends", "sdpa", "--encodings", "rope", "tape")
    _, rows = speed(*few, "--peers", "transformers", "--compiled", "yes")
    assert {row["compiled"] for row in rows} == {"yes"}
    assert not [row for row in rows if row["note"]]
