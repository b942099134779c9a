"""Evaluates a trained model on all pairs of operand lengths, by exact match.

python -m arithmetic.evaluate model=output/add_adape max_length=10 samples=100
python -m arithmetic.evaluate model=output/add_adape shard=1/4       # and 2/4, 3/4, 4/4
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial

import hydra
import transformers
from omegaconf import DictConfig, OmegaConf

from arithmetic.decoding import answers
from arithmetic.fault import load
from arithmetic.grid import GRID, mark
from arithmetic.grid_plan import check_positions, plan
from arithmetic.problems import Problems
from tape.command import expected_errors
from tape.evaluation.journal import Shard, place_of
from tape.evaluation.workers import answering
from tape.model.checkpoint import identified
from tape.settings import groups
from tape.settings.composition import call
from tape.validation import check_flag, check_integer, check_path

MAX_DIGITS = 1000  # digits of an operand; the grid has their square
CONFIG, SETTINGS = groups.CONFIG / "arithmetic", "evaluate_add"
log = logging.getLogger(__name__)


def run(cfg: DictConfig) -> None:
    """Evaluates one shard; writes the results if all others are complete."""
    if OmegaConf.is_missing(cfg, "model") or cfg.model is None:
        raise ValueError("give model=..., the folder of a trained run")
    check_flag("debug", cfg.debug)
    shard, folder = Shard.parse(str(cfg.shard)), check_path("model", cfg.model)
    for name, least in {"samples": 1, "seed": 0, "batch_size": 1, "wrong": 0}.items():
        check_integer(name, cfg[name], least)
    for name, most in {"max_length": MAX_DIGITS, "processes": None}.items():
        if cfg[name] is not None:
            check_integer(name, cfg[name], most=most)
    problems = Problems.load(folder)
    max_length = cfg.max_length or 2 * max(problems.max_first, problems.max_second)
    if cfg.intervention is not None and cfg.name == "grid":
        raise ValueError(
            f"intervention={cfg.intervention} with name=grid, the folder of the model's own "
            f"results: give another, such as name=grid_{cfg.intervention}"
        )
    changed = partial(load, intervention=cfg.intervention)
    model, tokenizer = changed(folder)
    batches = plan(problems, max_length, cfg.samples, cfg.seed, cfg.batch_size)
    longest = max(batch.length for batch in batches)
    check_positions(model, problems, (max_length, max_length), longest, f"max_length={max_length}")
    header = {
        **identified(folder),
        **{f"problems.{name}": value for name, value in asdict(problems).items()},
        "max_length": max_length,
        **{name: cfg[name] for name in ("samples", "seed", "batch_size", "wrong")},
        "batches": len(batches),
    }
    if cfg.intervention is not None:
        header["intervention"] = cfg.intervention
    results = place_of(folder, "name", cfg.name)
    GRID.evaluate(
        results,
        shard,
        header,
        batches,
        answering(folder, model, tokenizer, answers, cfg.processes, changed),
        partial(mark, end=tokenizer.eos_token, keep=cfg.wrong),
        title=lambda batch: f"{batch.questions[0].n} x {batch.questions[0].m} digits",
    )


@hydra.main(version_base=None, config_path=str(CONFIG), config_name=SETTINGS)
def main(cfg: DictConfig) -> None:
    transformers.logging.disable_progress_bar()
    with nullcontext() if cfg.debug is True else expected_errors(continues=True):
        run(cfg)


if __name__ == "__main__":
    call(main, SETTINGS, CONFIG)
