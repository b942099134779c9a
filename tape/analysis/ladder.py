"""Encodings at several sizes: losses on documents that no run was trained on or tuned for, and the
gain in compute over RoPE (`tape.results.gain`).

losses.csv has a row per run, length and document: the run's size (training tokens), encoding, seed,
`flops` of its training, and the mean loss `nll` (nats) of `n` scored tokens.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from tape.analysis.cost import fake_model, operations
from tape.analysis.speed import read as read_rounds
from tape.core.files import reading, write_text
from tape.core.progress import track
from tape.core.provenance import SOURCE
from tape.core.run_folder import differences
from tape.core.statistics import CONFIDENCE
from tape.evaluation.curves import document_table
from tape.evaluation.figures import write_figure
from tape.evaluation.tables import markdown_table, write_rows
from tape.model.checkpoint import read_config
from tape.results.gain import LEAST, Gain, fit, gains
from tape.results.rows import check_alike, check_given
from tape.results.runs import Run, check_weights, settings_of

COLUMNS = ("size", "encoding", "seed", "flops", "length", "document", "n", "nll")
EVALUATED = ("data", "data_hash", "convention", "stride", "batch_size", "dtype")  # alike in all
REFERENCE = "rope"
RESULTS = SOURCE / "docs" / "results"
COMMITTED = RESULTS / "ladder" / "losses.csv"
TIMES = RESULTS / "train_step" / "rounds.csv"  # of steps, by encoding
NOTES = """\
Losses in nats per token, means over seeds and documents. Gain: the compute with which {reference}
reaches the encoding's loss, divided by the compute that the encoding took; above 1, the encoding
needs less. In brackets the 95 % interval of a bootstrap over seeds and documents. In time: the same
for the time of training, with the times of steps in docs/results/train_step (one CPU thread). A
backward pass counts as two forward passes."""


def read_run(folder: Path) -> pd.DataFrame:
    """Returns the rows of a run, with how it was EVALUATED; raises a ValueError if it did not
    finish, or was not evaluated by `tape perplexity` on test documents."""
    seed, settings = settings_of(folder)
    path = document_table(folder / "compare" / "perplexity.csv")
    if not path.is_file():
        out = path.with_name("perplexity.csv")
        how = f"tape perplexity --model {folder} --data run --split test --out {out}"
        raise ValueError(f"{folder} has no losses by document: {how}")
    with reading(path):
        rows = pd.read_csv(path, dtype=dict.fromkeys(EVALUATED, str)).rename(
            columns={"tokens": "n"}
        )
        rows[[*EVALUATED]] = rows[[*EVALUATED]].fillna("")  # of what does not apply
        check_weights(folder, "compare", rows["model_hash"].iloc[0])
        length = settings["length"]
        tokens = settings["trainer.max_steps"] * settings["sequences_per_step"] * length
        _, forward = operations(fake_model(read_config(folder), "eager"), length)
        about = {"size": tokens, "encoding": settings["position.name"], "seed": seed}
        return rows.assign(**about, flops=3 * forward / length * tokens)[[*COLUMNS, *EVALUATED]]


def check_runs(tables: Mapping[Path, pd.DataFrame]) -> None:
    """Raises a ValueError for runs, by their folders, that cannot be compared: evaluated
    differently, of one size with other settings than encoding, learning rate and seed, of one
    encoding there with other settings than the seed, or given twice."""
    sizes: dict[int, list[Run]] = {}
    known: dict[tuple[int, str], dict[int, Run]] = {}
    asked = {
        folder: dict(rows[[*EVALUATED]].astype(str).iloc[0]) for folder, rows in tables.items()
    }
    for folder, rows in tables.items():
        first = next(iter(tables))
        if changes := differences(asked[first], asked[folder]):
            what = f"{first} and {folder} were evaluated with different settings"
            raise ValueError(f"{what}: {'; '.join(changes)}; evaluate one of them again")
        run, size = Run(folder, *settings_of(folder)), int(rows["size"].iloc[0])
        peers = known.setdefault((size, run.encoding), {})
        check_alike(f"{run.encoding}, {size:,} tokens", next(iter(peers.values()), run), run)
        if (other := peers.setdefault(run.seed, run)) is not run:
            both = f"{other.folder} and {folder}"
            raise ValueError(f"{both} are the same run, seed {run.seed}: give only one of them")
        sizes.setdefault(size, []).append(run)
    for runs in sizes.values():
        check_given(runs)


def arrays(rows: pd.DataFrame, seeds: Iterable[int]) -> tuple[list[float], list[np.ndarray]]:
    """Returns costs and losses (S, D), by size, of one encoding at one length."""
    costs, losses = [], []
    for _, each in rows.groupby("size"):
        costs.append(each["flops"].iloc[0])
        losses.append(each.pivot(index="seed", columns="document", values="nll").loc[[*seeds]])
    return costs, [each.to_numpy() for each in losses]


def seeds_of(rows: pd.DataFrame) -> set[int]:
    """Returns the seeds that runs of every size have."""
    return set.intersection(*({*each} for _, each in rows.groupby("size")["seed"]))


def gains_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the gains of all encodings by size, encoding and length, as columns of `Gain`; none
    where the reference has no falling curve over LEAST or more sizes."""
    found = []
    for length, at in rows.groupby("length"):
        reference = at[at["encoding"] == REFERENCE]
        for encoding, own in track([*at.groupby("encoding")], desc=f"gains at {length}"):
            seeds = sorted(seeds_of(reference) & seeds_of(own))
            if encoding == REFERENCE or reference["size"].nunique() < LEAST or not seeds:
                continue
            curve_costs, curve_losses = arrays(reference, seeds)
            costs, losses = arrays(own, seeds)
            try:
                each = gains(curve_losses, curve_costs, losses, costs)
            except ValueError:  # losses beyond the trained length need not fall with the compute
                continue
            key = {"encoding": encoding, "length": length}
            sizes = zip(sorted({*own["size"]}), each, strict=True)
            found += [key | {"size": size} | gain._asdict() for size, gain in sizes]
    return pd.DataFrame(found, columns=["size", "encoding", "length", *Gain._fields])


def step_times() -> pd.Series:
    """Returns the time of a training step by encoding, divided by the reference's."""
    rounds = read_rounds(TIMES).pivot(index="round", columns="method", values="seconds")
    return rounds.div(rounds[REFERENCE], axis=0).median()


def table(rows: pd.DataFrame, found: pd.DataFrame) -> str:
    """Tabulates losses and gains by size, with the lowest loss at the trained length first."""
    times, lengths = step_times(), sorted({*rows["length"]})
    gained = {(x.size, x.encoding, x.length): x for x in found.itertuples()}
    parts = []
    for size, of_size in rows.groupby("size"):
        flops = of_size.groupby("encoding")["flops"].first()
        means = of_size.groupby(["encoding", "seed", "length"])["nll"].mean()
        means = means.groupby(["encoding", "length"]).mean().unstack().sort_values(lengths[0])
        head = ["encoding", "n", *(f"loss {n:,}" for n in lengths)]
        lines = [[*head, *(f"gain {n:,}" for n in lengths), f"gain {lengths[0]:,}, in time"]]
        for encoding, losses in means.iterrows():
            n = of_size.loc[of_size["encoding"] == encoding, "seed"].nunique()
            each = [gained.get((size, encoding, length)) for length in lengths]
            cells = [shown(gain) for gain in each]
            factor = flops[encoding] / flops.get(REFERENCE, np.nan) / times.get(encoding, np.nan)
            cells.append(shown(each[0], factor))
            lines.append([encoding, str(n), *(f"{x:.3f}" for x in losses), *cells])
        parts.append(f"## {size:,} training tokens\n\n{markdown_table(lines)}")
    return "\n\n".join(parts)


def shown(gain: Gain | None, factor: float = 1.0) -> str:
    """Formats a gain times a factor with its interval; - without one."""
    if gain is None or np.isnan(factor):
        return "-"
    value, low, high = (factor * x for x in (gain.value, gain.low, gain.high))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def order(rows: pd.DataFrame, draws: int = 2_000, seed: int = 0) -> str:
    """Says how well the order of encodings at each size predicts that at the next: Spearman's rank
    correlation of mean losses at the trained length, with the interval of a bootstrap over
    documents; of encodings at both sizes."""
    random, lines = np.random.RandomState(seed), []
    at = rows[rows["length"] == rows["length"].min()]
    losses = at.pivot_table(index=["size", "document"], columns="encoding", values="nll")
    sizes = sorted({*at["size"]})
    for small, large in pairwise(sizes):
        both = losses.loc[[small, large]].dropna(axis=1)
        pair = both.loc[small].to_numpy(), both.loc[large].to_numpy()
        if both.shape[1] < 3:
            continue
        picked = random.randint(len(pair[0]), size=(draws, len(pair[0])))
        drawn = [spearmanr(*(x[each].mean(0) for x in pair))[0] for each in picked]
        value = spearmanr(*(x.mean(0) for x in pair))[0]
        low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        which = f"{both.shape[1]} encodings, {small:,} and {large:,} tokens"
        lines.append(f"Rank correlation of losses ({which}): {value:.2f} ({low:.2f} to {high:.2f})")
    return "\n".join(lines)


def draw(rows: pd.DataFrame, found: pd.DataFrame) -> Figure:
    """Draws losses at the trained length against compute, with the curve of the reference; and the
    gains at the largest size of each encoding."""
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    at = rows[rows["length"] == rows["length"].min()]
    means = at.groupby(["encoding", "size"])[["flops", "nll"]].mean()
    names = [*means.groupby("encoding")["nll"].min().sort_values().index]
    for number, name in enumerate(names):
        style = {"color": f"C{number % 10}", "marker": "os^vD"[number // 10 % 5]}
        if name == REFERENCE:
            style |= {"color": "black", "zorder": 3}
        left.plot(means.loc[name, "flops"], means.loc[name, "nll"], ls="", label=name, **style)
    reference = means.loc[REFERENCE]
    if len(reference) >= LEAST:
        curve = fit(reference["flops"], reference["nll"])
        x = np.geomspace(reference["flops"].min(), reference["flops"].max())
        left.plot(x, curve.loss(x), color="black", lw=1, label=f"fitted for {REFERENCE}")
    left.set(xscale="log", xlabel="compute of the training (FLOPs)", ylabel="loss (nats per token)")
    left.set_title("trained length: down is better")
    left.legend(fontsize="small", ncols=2)
    best = found[found["length"] == rows["length"].min()].sort_values("size")
    best = best.groupby("encoding").last().sort_values("value")
    spread = [best["value"] - best["low"], best["high"] - best["value"]]
    right.errorbar(best["value"], [*best.index], xerr=spread, fmt="o", capsize=3)
    right.axvline(1, color="black", lw=1)
    right.set_xlabel(f"gain in compute over {REFERENCE}, largest size: right is better")
    return figure


def run(folders: Sequence[Path], out: Path) -> str:
    """Writes losses, table and picture of the committed runs and of those in folders, which replace
    committed ones of the same size, encoding and seed; returns the table. Raises a ValueError for
    runs that cannot be compared."""
    with reading(COMMITTED):
        tables = [pd.read_csv(COMMITTED)] if COMMITTED.is_file() else []
    given = {folder: read_run(folder) for folder in track(folders, desc="runs")}
    check_runs(given)
    tables += [rows[[*COLUMNS]] for rows in given.values()]
    if not tables:
        raise ValueError(f"{COMMITTED} is missing: name runs of `tape sweep sweep=ladder`")
    key = ["size", "encoding", "seed", "length", "document"]
    rows = pd.concat(tables).drop_duplicates(key, keep="last").sort_values(key)
    found = gains_of(rows)
    text = "\n\n".join(filter(None, [table(rows, found), order(rows)]))
    text += "\n\n" + NOTES.format(reference=REFERENCE) + "\n"
    write_rows(out / "losses.csv", rows, list(COLUMNS[3:7]))
    write_text(out / "ladder.md", text)
    write_figure(draw(rows, found), out / "ladder", ["png"])
    return text


def main(arguments: argparse.Namespace) -> None:
    print(f"{run(arguments.folders, arguments.out)}\nalso in {arguments.out}, with a picture")
