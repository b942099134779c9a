"""Bad input of every command: a status that is not 0, one line that names the setting, no
traceback, and nothing left behind."""

import re

import pytest
from commands import run_command

# Arguments of train.py, and what its one line says.
SETTINGS = [
    (["vocab_size=many"], r"vocab_size='many' must be a number"),
]


def check_refusal(outcome, message, folder, before=frozenset()):
    """One line, which matches `message`, and the files in `folder` are those of `before`."""
    assert outcome.status not in (0, None)
    assert "Traceback" not in outcome.err, outcome.err
    assert len(outcome.lines) == 1, outcome.err
    assert outcome.lines[0].startswith("error: "), outcome.err
    assert re.search(message, outcome.lines[0]), outcome.err
    left = {path for path in folder.rglob("*") if path.name != ".lock" and not path.is_dir()}
    assert left == set(before)


@pytest.mark.parametrize(
    ("settings", "message"), SETTINGS, ids=[" ".join(settings) for settings, _ in SETTINGS]
)
def test_settings_of_a_run(settings, message, tmp_path):
    outcome = run_command("train.py", "experiment=quick", *settings, folder=tmp_path)
    check_refusal(outcome, message, tmp_path)
