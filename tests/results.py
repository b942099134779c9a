"""Runs with their evaluations as folders, from saved results."""

import json
import math

from arithmetic.addition_task import GRID
from tape.evaluation.curves import ABOUT, COLUMNS, POSITION_COLUMNS
from tape.evaluation.tables import csv_table
from tape.files import write_text
from tape.tasks.passkey.passkey_task import PASSKEY

PLACES = {"perplexity": "compare", "arithmetic": "grid", "passkey": "passkey"}


def lay_out(run, folder, place=None):
    """Write a run as its training and its evaluations left it, without weights. Its evaluations
    are in the folder `place`, by default that of the scripts."""
    settings = {"trainer.seed": run.seed} | run.settings | {"seed": run.seed}
    write_text(folder / "trained.json", json.dumps(settings))
    for kind, asked in run.asked.items():
        rows = run.rows[run.rows["evaluation"] == kind]
        target = folder / (place or PLACES[kind])
        target.mkdir(parents=True, exist_ok=True)
        {"perplexity": perplexity, "arithmetic": grid, "passkey": passkey}[kind](
            target, asked, rows
        )
    training = run.rows[run.rows["evaluation"] == "training"]
    if len(training):
        write_text(folder / "metrics.jsonl", metrics(training))
    return folder


def grid(target, asked, rows):
    cells = [
        [int(row.first_digits), int(row.second_digits), round(row.value * row.n), int(row.n)]
        for row in rows.itertuples()
    ]
    GRID.write(target, asked, [{"batch": 0, "cells": cells, "wrong": []}])


def passkey(target, asked, rows):
    counts = rows.assign(count=(rows["value"] * rows["n"]).round().astype(int))
    cells = []
    for (length, depth), cell in counts.groupby(["length", "depth"], dropna=False):
        count = cell.set_index("measure")["count"]
        prompts = int(cell.set_index("measure")["n"]["accuracy"])
        numbers = (int(count[name]) for name in ("accuracy", "found", "tokens"))
        cells.append([int(length), None if math.isnan(depth) else depth, prompts, *numbers])
    PASSKEY.write(target, asked, [{"batch": 0, "cells": cells, "wrong": []}])


def perplexity(target, asked, rows):
    about = asked | {"model": target.parent.name, "model_hash": asked["model"]}
    tables = {"perplexity.csv": [COLUMNS], "perplexity_by_position.csv": [POSITION_COLUMNS]}
    for row in rows[rows["measure"] == "loss"].itertuples():
        key = [row.length if name == "length" else about[name] for name in ABOUT]
        key[ABOUT.index("length")] = int(row.length)
        if math.isnan(row.first):
            values = [*key, int(row.n), row.value, math.exp(row.value)]
            tables["perplexity.csv"].append(values)
        else:
            values = [*key, int(row.first), int(row.last), int(row.n), row.value]
            tables["perplexity_by_position.csv"].append(values)
    for name, lines in tables.items():
        write_text(target / name, csv_table(lines))


def metrics(rows):
    value = {row.measure: row.value for row in rows.itertuples()}
    spent = {"tokens_per_second": value["speed"], "peak_memory_gib": value["peak memory"]}
    lines = []
    for row in rows.itertuples():
        if row.measure == "training loss":
            lines.append({"step": int(row.step), "loss": row.value, **spent})
        elif row.measure == "validation loss":
            lines.append({"step": int(row.step), "eval_loss": row.value})
    return "".join(json.dumps(line) + "\n" for line in lines)
