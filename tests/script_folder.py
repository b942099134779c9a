"""A folder in which scripts run: the project's files, without an installation."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from commands import ROOT

LINKED = ("arithmetic", "config")
FILES = ("tape", "train.py", "sweep.py", "eval_retrieval.py", "eval_scrolls.py")
# Shows commands in place of running them; sweep.py shows its own.
RECORDER = """#!/usr/bin/env bash
if [[ $1 == sweep.py ]]; then
    exec "{python}" sweep.py dry_run=true "${{@:2}}"
fi
exec "{python}" -I -S -c 'import shlex, sys; print("python", shlex.join(sys.argv[1:]))' "$@"
"""


def lay_out(folder: Path) -> Path:
    """Links the project's files; scripts, and the folder in which answers lie, are copies."""
    for name in (*LINKED, *FILES):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "scrolls", folder / "scrolls", ignore=lambda *_: ["__pycache__"])
    shutil.copytree(ROOT / "script", folder / "script")
    (folder / "script" / "setup.sh").write_text("# the environment is there\n")
    for name, text in (
        ("venv", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
        ("recorder", RECORDER.format(python=sys.executable)),
    ):
        python = folder / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(text)
        python.chmod(0o755)
    return folder


def start(folder: Path, script: str, *settings: str, **variables: str) -> subprocess.Popen:
    """Starts a script; its output, with the errors, is text."""
    return subprocess.Popen(
        ["bash", f"script/{script}", *settings],
        cwd=folder,
        env={**os.environ, "VIRTUAL_ENV": str(folder / "venv"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def commands_of(folder: Path, script: str, *settings: str, **variables: str) -> list[list[str]]:
    """The commands of a script, or of the sweep that it starts, without `python` or `tape`."""
    variables = {"VIRTUAL_ENV": str(folder / "recorder"), **variables}
    started = start(folder, script, *settings, **variables)
    printed, _ = started.communicate()
    assert started.returncode == 0, printed
    return [shlex.split(line)[1:] for line in printed.splitlines() if not line.startswith("#")]
