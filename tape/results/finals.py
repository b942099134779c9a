"""Runs by how their training ended: the validation loss at the last step, and the compute."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from tape.command import in_one_line
from tape.model.checkpoint import read_config
from tape.model.flops import training_flops
from tape.results.runs import Run, is_saved, read_saved, settings_of
from tape.runs.folder import TRAINED, read_configuration
from tape.runs.metrics import metric_rows

LOSS, COMPUTE = "validation loss", "compute"
BLOCKS = "eval_blocks"


def read_run(folder: Path) -> Run:
    """Reads a run with two rows: LOSS in nats and COMPUTE in FLOPs.

    Raises:
        ValueError, OSError: if it did not finish or was not evaluated at the end.
    """
    seed, settings = settings_of(folder)
    last, length = settings["trainer.max_steps"], settings["length"]
    blocks = read_configuration(folder, TRAINED).get(BLOCKS)
    if blocks is not None:  # of the validation
        settings[BLOCKS] = blocks
    losses = [
        row for row in metric_rows(folder) if (row["measure"], row.get("step")) == (LOSS, last)
    ]
    if not losses:
        raise ValueError(
            f"{folder} has no validation loss at its last step, {last}: trainer.eval_steps must "
            "divide trainer.max_steps"
        )
    per_sequence = training_flops(read_config(folder), length)
    spent = float(per_sequence * settings["sequences_per_step"] * last)
    compute = {"measure": COMPUTE, "value": spent, "n": 1, "unit": "FLOP"}
    rows = pd.DataFrame([losses[0], compute]).assign(evaluation="training")
    return Run(folder, seed, settings, rows=rows)


def value(run: Run, measure: str) -> float:
    return float(run.rows.loc[run.rows["measure"] == measure, "value"].iloc[0])


def read_all(folders: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """Returns the runs in folders, of runs or saved results, and why others could not be read.

    Raises:
        ValueError: if none can be read.
    """
    runs: list[Run] = []
    missing = {}
    for folder in folders:
        try:
            runs += read_saved(folder) if is_saved(folder) else [read_run(folder)]
        except (ValueError, OSError) as error:
            missing[folder] = in_one_line(error)
    if not runs:
        raise ValueError("; ".join(missing.values()))
    return runs, missing


def end(runs: Sequence[Path], missing: Mapping[Path, str]) -> None:
    """Names the folders that could not be read, and ends the command with status 1 if there are
    any."""
    if missing:
        print("\n".join(f"* {folder}: {why}" for folder, why in missing.items()))
        sys.exit(f"error: {len(missing)} of {len(runs)} could not be read")
