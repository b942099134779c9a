"""Runs as folders: how they were trained and how they were evaluated, without weights."""

import json

from arithmetic.addition_task import GRID
from tape.core.files import write_text
from tape.core.provenance import TRAINED
from tape.core.run_folder import register_run
from tape.evaluation.curves import binned, write
from tape.tasks.passkey.passkey_task import PASSKEY


def make_run(folder, position, seed=0, **changes):
    """A finished run; `changes` of its settings by their names, with __ for dots."""
    settings = {"name": folder.name, "seed": seed, "length": 8, "tokens": {"train": "one"}}
    settings |= {"model": {"hidden_size": 8}, "position": {"name": position}}
    settings["trainer"] = {"seed": seed, "max_steps": 5, "eval_steps": seed + 1}
    for name, value in changes.items():
        place, *groups, last = settings, *name.split("__")
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    write_text(folder / TRAINED, json.dumps(register_run(folder, settings)))
    return folder


def change(run, **settings):
    """Changes settings that a run was trained with."""
    trained = json.loads((run / TRAINED).read_text()) | settings
    write_text(run / TRAINED, json.dumps(trained))


def add_grid(place, outside, **asked):
    """An evaluation of 2 x 2 digits with so many right of 10 in each cell beyond 1 x 1, where all
    are right."""
    evaluated = {"model": "-", "max_length": 2, "samples": 10, "seed": 0, "wrong": 0}
    evaluated |= {"problems.max_first": 1, "problems.max_second": 1} | asked
    cells = [[1, 1, 10, 10], *([n, m, outside, 10] for n, m in ((1, 2), (2, 1), (2, 2)))]
    place.mkdir()
    GRID.write(place, evaluated, [{"batch": 0, "cells": cells, "wrong": []}])
    return place


def add_passkeys(place, trained, right, weights="-"):
    """An evaluation with so many right of five prompts, by length and depth."""
    evaluated = {"model": weights, "trained": trained, "max_tokens": 80, "interval": 10}
    evaluated |= {"num_tests": 5, "depths": 2, "seed": 0, "keys": 1, "values": 1, "plain": True}
    cells = [
        [length, depth, 5, count, count, 5 * length]
        for length, counts in right.items()
        for depth, count in zip((0.0, 1.0), counts, strict=True)
    ]
    evaluated |= {"original": False, "wrong": 0}
    place.mkdir(exist_ok=True)
    PASSKEY.write(place, evaluated, [{"batch": 0, "cells": cells, "wrong": []}])


def add_perplexity(place, losses, weights="f" * 16, windows=1, **asked):
    """An evaluation with a loss by length, the same at all positions."""
    about = {"model": "run", "model_hash": weights[:16], "data": "d", "data_hash": "d"}
    about |= {"extend": ""}
    about |= {"convention": "paper", "stride": 4, "batch_size": "", "dtype": "float32"} | asked
    batches = {
        length: [binned([*range(1, length)] * windows, [loss] * (length - 1) * windows)]
        for length, loss in losses.items()
    }
    write(place / "perplexity.csv", about, batches)


def add_metrics(run, loss, last=3):
    """What a run logged, with the loss of a validation at step `last`."""
    lines = [{"step": n, "loss": 9.0 - n, "tokens_per_second": 100.0 + n} for n in (1, 2, 3)]
    lines = [*(line | {"peak_memory_gib": 2} for line in lines), {"step": last, "eval_loss": loss}]
    write_text(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
