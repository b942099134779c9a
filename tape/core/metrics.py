"""metrics.jsonl of a run: a row of JSON per log event."""

import json
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from transformers import TrainerCallback, TrainerState

from tape.core.files import reading, write_text


class MetricsFile(TrainerCallback):
    """Writes one JSON object per log event to metrics.jsonl. A resumed run drops the lines of what
    it repeats: later steps, and a validation that its checkpoint does not hold."""

    FILE = "metrics.jsonl"

    def on_train_begin(self, args, state, control, **kwargs):
        path = Path(args.output_dir) / self.FILE
        if state.is_world_process_zero and path.exists():
            last = state.global_step
            before = last if validated(state) else last - 1
            kept = (
                json.dumps(row) + "\n"
                for row in read_metrics(path)
                if row["step"] <= (before if any(x.startswith("eval_") for x in row) else last)
            )
            write_text(path, "".join(kept))

    def on_log(self, args, state, control, logs, **kwargs):
        if "train_loss" in logs:  # transformers' summary of the steps since the last start
            if state.global_step < state.max_steps:
                return
            logs = {"total_flos": logs["total_flos"]}
        if state.is_world_process_zero:
            with (Path(args.output_dir) / self.FILE).open("a") as file:
                file.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def validated(state: TrainerState) -> bool:
    """Returns whether a checkpoint of this state holds the validation of its step, if there is one:
    that may have been skipped because the run was told to stop."""
    return any(x["step"] == state.global_step and "eval_loss" in x for x in state.log_history)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a metrics.jsonl, if there is one, up to the first invalid row, e.g. the
    last of a run that was killed while writing."""
    rows = []
    with suppress(FileNotFoundError, ValueError, RecursionError):
        for line in path.read_text(errors="replace").splitlines():
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                break
            rows.append(row)
    return rows


def metric_rows(folder: Path, last: int) -> list[dict[str, Any]]:
    """Returns the metrics of a run up to its step `last` (others are of a continuation) in long
    form: losses by step, the median speed, the peak memory; none if the run keeps no metrics.
    Raises a ValueError if the file is damaged, or has no training loss."""
    path = folder / MetricsFile.FILE
    logged = [row for row in read_metrics(path) if row["step"] <= last]
    losses = [row for row in logged if "loss" in row]
    if path.exists() and not losses:
        what = f"{path} contains no training loss"
        raise ValueError(f"{what}: trainer.logging_steps must be <= trainer.max_steps")
    rows = []
    with reading(path):
        for name, key in (("training loss", "loss"), ("validation loss", "eval_loss")):
            for row in (each for each in logged if key in each):
                rows.append((name, row["step"], float(row[key]), "nats"))
        if losses:
            speeds = [float(row["tokens_per_second"]) for row in losses]
            memory = [float(row["peak_memory_gib"]) for row in losses]
            rows.append(("speed", None, median(speeds), "tokens/s"))
            rows.append(("peak memory", None, max(memory), "GiB"))
    names = ("measure", "step", "value", "unit")
    return [dict(zip(names, row, strict=True)) | {"n": 1} for row in rows]
