"""The harness of the benchmarks: turns, memory, raw rows on disk and tables."""

import math
import re

import pandas as pd
import pytest
import torch

from benchmarks import harness
from benchmarks.harness import (
    DEVICE,
    RAN_OUT,
    Comparison,
    inability,
    measure,
    parser,
    show,
    table,
)
from benchmarks.timing import Spread, in_turn, limit_memory, observed


def test_methods_take_turns_in_alternating_order():
    order = []
    work = {name: lambda name=name: order.append(name) for name in "abc"}
    times = in_turn(work, 3, warm_up=0)
    assert "".join(order) == "cbaabccba" and {len(each) for each in times.values()} == {3}


def test_short_work_is_repeated_within_a_measurement():
    done = {"a": 0, "b": 0}

    def count(name):
        done[name] += 1

    in_turn({name: lambda name=name: count(name) for name in done}, 7, warm_up=1, least=0.001)
    assert done["a"] > 8 and done["b"] > 8


def test_ratios_are_taken_within_rounds():
    """A slow round leaves them as they are, where it moves the ratio of medians."""
    base, slow = [1.0, 10.0, 1.0, 1.0, 10.0, 1.0, 1.0], [2.0, 20.0, 20.0, 20.0, 20.0, 2.0, 2.0]
    assert Spread.of_ratios(slow, base) == (2.0, 2.0, 20.0)
    assert Spread.of([3.0]) == (3.0, 3.0, 3.0) and Spread.of([1.0, 2.0]) == (1.5, 1.0, 2.0)
    a = pd.DataFrame({"method": "a", "seconds": base, "memory": 2**20, "result": ""})
    b = pd.DataFrame({"method": "b", "seconds": slow, "memory": 3 * 2**20, "result": ""})
    assert table(pd.concat([a, b])).splitlines()[2:] == [
        "| a | 1,000.0 | 1.00 (1.00 to 1.00) | 1.0 | 1.00 |",
        "| b | 20,000.0 | 2.00 (2.00 to 20.00) | 3.0 | 3.00 |",
    ]
    fast = table(pd.concat([b, a]), amount=40, result="loss").splitlines()
    assert fast[0].startswith("| method | ms | tokens/s | throughput / b | memory, MiB |")
    assert fast[3] == "| a | 1,000.0 | 40 | 2.00 (2.00 to 20.00) | 1.0 | 0.33 |  |"


def test_memory_is_that_of_tensors_at_most():
    def work():
        a = torch.zeros(1000)
        b = torch.zeros(3000)
        del a
        return torch.zeros(500), b

    kept = {}

    def replace():  # frees what was there before it was watched
        kept["x"] = torch.zeros(2000)

    replace()
    if DEVICE.type == "cpu":
        assert observed(work)[0] == 4 * 4000
        assert observed(replace)[0] == 4 * 2000


def test_what_does_not_fit_is_left_out():
    with limit_memory(), pytest.raises(Exception) as failed:
        torch.empty(2**45, device=DEVICE)
    assert inability(failed.value) == "does not fit into memory"
    assert inability(RuntimeError("shapes differ")) is None
    assert inability(ValueError("takes float16\nand bfloat16")) == "takes float16"


def test_memory_that_runs_out_later_is_a_note_too():
    """Beside others, or in the rounds: nothing is measured, and the reason is given."""
    done = []

    def work():
        done.append(1)
        if len(done) == 20:
            raise torch.OutOfMemoryError

    def starved():
        raise torch.OutOfMemoryError

    prepare = {"large": starved, "a": lambda: work, "b": lambda: work}
    comparison = Comparison("", [*prepare], lambda name: prepare[name](), optional=True)
    rows = measure(comparison, 20)
    assert rows.seconds.isna().all()
    assert [*rows.note] == ["does not fit into memory", RAN_OUT, RAN_OUT]
    done.clear()
    rows = measure(comparison._replace(methods=["b", "a", "large"]), 20)
    assert rows.note.iloc[-1].startswith("does not fit into memory beside the methods before it")


def test_unfused_attention_is_no_fused_kernel():
    """torch's name for it is like the others'."""
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    mask = torch.zeros(1, 1, 4, 4, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert observed(lambda: attend(q, q, q, attn_mask=mask))[1] == []
    assert observed(lambda: attend(q, q, q, is_causal=True))[1] != []


@pytest.fixture
def benchmark(tmp_path, capsys):
    """Runs a benchmark of two comparisons with a flag; returns what it printed."""
    calls = []

    def benchmark(*flags, fail=None):
        def prepare(name):
            calls.append(name)
            if name == fail:
                raise KeyboardInterrupt
            return lambda: name

        found = parser("A benchmark.", rounds=(2, 1), size=(1, 1, "of the work"))
        arguments = found.parse_args([*flags, "--out", str(tmp_path / "out")])
        comparisons = [Comparison(name, [name, name * 2], prepare) for name in "ab"]
        show("demo", arguments, comparisons, result="name")
        return capsys.readouterr().out

    benchmark.calls = calls
    return benchmark


def test_a_killed_benchmark_resumes(benchmark, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        benchmark(fail="bb")
    rows = (tmp_path / "out" / "demo_rounds.csv").read_text()
    assert [line.split(",")[:3] for line in rows.splitlines()[1:]] == [
        ["a", method, number] for method in ("a", "aa") for number in "12"
    ]
    benchmark.calls.clear()
    printed = benchmark()
    assert benchmark.calls == ["b", "bb"]
    assert (tmp_path / "out" / "demo_rounds.csv").read_text().startswith(rows)
    assert benchmark() == printed and benchmark.calls == ["b", "bb"]  # all of it is there
    assert printed.startswith((tmp_path / "out" / "demo.md").read_text().rstrip())
    assert re.search(r"^\| bb \|.*\| bb \|$", printed, re.MULTILINE)
    origin = harness.origin.read(tmp_path / "out")
    assert len(origin) == 2 and {"time", "command", "commit", "machine"} <= origin[0].keys()
    assert origin[0]["time"][:10] in printed


def test_other_settings_or_code_are_another_folder(benchmark, tmp_path, monkeypatch):
    benchmark()
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match=r"size: 1 -> 2.*give this one another place"):
        benchmark("--size", "2")
    monkeypatch.setattr(harness, "code", lambda: "changed")
    with pytest.raises(ValueError, match=r"code: \w+ -> changed"):
        benchmark()
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_an_error_of_a_method_is_one_unless_it_is_optional():
    def refuse(_):
        raise ValueError("takes float16")

    comparison = Comparison("a", ["a"], refuse)
    with pytest.raises(ValueError, match="takes float16"):
        measure(comparison, 2)
    (row,) = measure(comparison._replace(optional=True), 2).to_dict("records")
    assert row["note"] == "takes float16" and math.isnan(row["seconds"])
