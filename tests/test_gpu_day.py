"""What a day with a GPU runs, and its report."""

import math
import time

import pandas as pd
import pytest
from commands import ROOT

from benchmarks import gpu_day

SPEED = {"implementation": "here", "work": "training", "length": gpu_day.LENGTHS[0]}


def write_speed(folder, *rows):
    folder.mkdir(parents=True)
    names = ["encoding", "backend", "milliseconds", "share"]
    table = pd.DataFrame([SPEED | dict(zip(names, row, strict=True)) for row in rows])
    table.to_csv(folder / "speed.csv", index=False)


def test_goals_take_the_fastest_backend_of_each_encoding(tmp_path):
    rows = ("rope", "sdpa", 2.0, 0.6), ("rope", "eager", 9.0, 0.1), ("tape", "sdpa", 3.0, 0.3)
    write_speed(tmp_path / "training", *rows, ("tape", "flex_attention", 2.5, 0.44))
    write_speed(tmp_path / "layer", *rows, ("fire", "sdpa", math.nan, math.nan))
    table = gpu_day.goals(tmp_path)[1:]
    assert [row[2:] for row in table] == [
        ["1.50", "no"],
        ["-", "-"],
        ["-", "-"],
        ["1.25", "no"],
        ["0.60", "yes"],
        ["0.44", "no"],
    ]
    assert [row[2:] for row in gpu_day.goals(tmp_path / "absent")[1:]] == [["-", "-"]] * 6


def test_tests_go_on_where_they_stopped(tmp_path):
    log, chosen = tmp_path / "log.txt", "tests/test_prefetch.py -k items"
    name = "tests/test_prefetch.py::test_the_{}"
    first, second = map(
        name.format,
        ("same_items_in_order_and_no_thread_left", "next_items_are_computed_meanwhile_but_no_more"),
    )
    log.write_text(f"{first} PASSED\n{second} FAILED\n")
    assert gpu_day.test(log, chosen, time.monotonic() + 60) == "finished"
    assert log.with_name("left.txt").read_text().split() == [second]
    assert gpu_day.outcomes(log) == {first: "PASSED", second: "PASSED"}
    assert gpu_day.test(log, chosen, time.monotonic()) == "finished"
    with pytest.raises(ValueError, match="finds no tests"):
        gpu_day.test(log, "tests/test_prefetch.py -k nothing", time.monotonic())


def test_a_test_that_kills_the_interpreter_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_day, "perform", lambda words, seconds, log: -11)
    log, chosen = tmp_path / "log.txt", "tests/test_prefetch.py -k error"
    log.write_text("")
    assert gpu_day.test(log, chosen, time.monotonic() + 60).startswith("failed")
    assert [*gpu_day.outcomes(log).values()] == ["ERROR"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit(75)", 75),
        ("import time; print('{left}', flush=True); time.sleep(60)", 75),
    ],
)
def test_a_part_has_the_time_that_is_left(code, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_day, "GRACE", 1)
    log = tmp_path / "logs" / "part.txt"
    seconds = 1.5 if "sleep" in code else 60
    assert gpu_day.perform(["-c", code], seconds, log) == expected
    assert log.read_text() == ("1\n" if "sleep" in code else "")


def test_every_part_is_a_command_with_a_log_of_its_own(tmp_path):
    every = [part for group in gpu_day.parts(tmp_path).values() for part in group]
    assert len({part.name for part in every}) == len(every)
    assert all((ROOT / part.words[0]).is_file() for part in every)
