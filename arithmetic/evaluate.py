"""Evaluate a trained model on every pair of operand lengths, by exact match.

python -m arithmetic.evaluate model=output/add_adape max_length=10 samples=100
python -m arithmetic.evaluate model=output/add_adape shard=1/4       # and 2/4, 3/4, 4/4; then
python -m arithmetic.merge output/add_adape
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import torch
import transformers
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from tqdm import tqdm

from arithmetic import workers
from arithmetic.decoding import answers, check_length, fingerprint, load
from arithmetic.merge import describe, merge, owners, shards
from arithmetic.parts import FILE, Parts
from arithmetic.plan import Batch, Shard, plan
from arithmetic.problems import Problems, check_whole
from tape.training.runs import locked

CONFIG = Path(__file__).parent.parent / "config" / "arithmetic"
log = logging.getLogger(__name__)


def mark(batch: Batch, given: list[str], end: str, keep: int) -> dict[str, Any]:
    """Counts per cell, [n, m, correct, total], and the first wrong answers of each.

    An answer is right if all of it is, and EOS follows.
    """
    cells: dict[tuple[int, int], list[int]] = {}
    wrong = []
    for question, text in zip(batch.questions, given, strict=True):
        n, m, prompt, answer = question
        count = cells.setdefault((n, m), [0, 0])
        right = question.is_answered(text, end)
        count[0] += right
        count[1] += 1
        if not right and count[1] - count[0] <= keep:
            shown = {"prompt": prompt, "expected": answer + end, "given": text}
            wrong.append({"n": n, "m": m, **shown})
    return {"cells": [[*cell, *count] for cell, count in cells.items()], "wrong": wrong}


def evaluate(
    share: dict[int, Batch],
    parts: Parts,
    answered: Callable[[dict[int, Batch]], Iterable[tuple[int, list[str]]]],
    end: str,
    keep: int,
) -> None:
    """Answer and mark those batches of a share that are not among its parts yet.

    Args:
        answered: the numbers of batches, in any order, and what follows each prompt of them, up
            to and with `end` if that came.
        keep: how many wrong answers to keep of each cell.
    """
    done = {row["batch"] for row in parts.rows}
    bar = tqdm(
        total=sum(batch.cost for batch in share.values()),
        initial=sum(share[number].cost for number in done),
        unit="token",
        unit_scale=True,
        disable=None,
    )
    with bar:
        missing = {number: batch for number, batch in share.items() if number not in done}
        for number, given in answered(missing):
            batch = share[number]
            n, m, *_ = batch.questions[0]
            bar.set_postfix_str(f"{n} x {m} digits")
            parts.append({"batch": number, **mark(batch, given, end, keep)})
            bar.update(batch.cost)


def run(cfg: DictConfig) -> None:
    """One share of an evaluation, and its results if that share is all of it."""
    if OmegaConf.is_missing(cfg, "model"):
        raise ValueError("give model=..., the folder of a trained run")
    shard, folder = Shard.parse(str(cfg.shard)), Path(cfg.model)
    for name, least in {"samples": 1, "seed": 0, "batch_size": 1, "wrong": 0}.items():
        check_whole(name, cfg[name], least)
    for name in ("max_length", "processes"):
        if cfg[name] is not None:
            check_whole(name, cfg[name])
    problems = Problems.load(folder)
    max_length = cfg.max_length or 2 * max(problems.max_first, problems.max_second)
    model, tokenizer = load(folder)
    batches = plan(problems, max_length, cfg.samples, cfg.seed, cfg.batch_size)
    check_length(model, max(batch.positions for batch in batches), f"max_length={max_length}")
    header = {
        "model": fingerprint(folder),
        **{f"problems.{name}": value for name, value in asdict(problems).items()},
        "max_length": max_length,
        **{name: cfg[name] for name in ("samples", "seed", "batch_size", "wrong")},
        "batches": len(batches),
        "shard": str(shard),
    }
    results = folder / cfg.name
    share = results / f"shard-{shard.index}-of-{shard.count}"
    with locked(share):
        others = {path: begun for path, (begun, _) in shards(results).items()}
        owners(others | {share / FILE: header})  # or it could not be merged in the end
        parts = Parts(share, header)
        log.info("%s: shard %s of the grid 1..%s squared", folder, shard, max_length)
        mine = {number: batches[number] for number in shard.numbers(len(batches))}
        threads = torch.get_num_threads() if model.device.type == "cpu" else 1
        if (processes := cfg.processes or threads) == 1:

            def answered(batches: dict[int, Batch]) -> Iterable[tuple[int, list[str]]]:
                return ((n, answers(model, tokenizer, batch)) for n, batch in batches.items())
        else:
            answered = partial(workers.answered, folder, processes=processes)
        evaluate(mine, parts, answered, tokenizer.eos_token, cfg.wrong)
    if shard.count == 1:
        log.info("%s\nresults are in %s", describe(merge(folder, cfg.name)), results)
    else:
        log.info(
            "shard %s is done; after all of them: python -m arithmetic.merge %s", shard, folder
        )


@hydra.main(version_base=None, config_path=str(CONFIG), config_name="evaluate_add")
def main(cfg: DictConfig) -> None:
    transformers.logging.disable_progress_bar()
    try:
        run(cfg)
    except (ValueError, TypeError, OSError, SafetensorError) as error:
        if cfg.debug:
            raise
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        log.info("interrupted: the same command continues")
        sys.exit(130)


if __name__ == "__main__":
    main()
