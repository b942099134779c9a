"""Progress outside a terminal: lines, and only if the work takes long."""

import re
import time

import pytest

from tape.core import progress


@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_log_has_lines_with_the_time_left(seconds, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", seconds)
    with progress.track(total=4, desc="evaluation", unit=" tokens") as bar:
        for _ in range(3):
            time.sleep(0.01)
            bar.update()
    printed = capsys.readouterr().err
    assert bool(printed) == (seconds == 0)
    for line in printed.splitlines():
        assert re.fullmatch(r"evaluation: \d+ % of 4, (\?|[\d:]+) left", line), printed
