"""Generates a model's answers to a task, one per id.

python -m scrolls.generate model=output/scrolls/quality/adape task=quality output=adape.json
python -m scrolls.generate ... shard=1/4       # and 2/4, 3/4, 4/4: the last one writes the output
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import hydra
import transformers
from omegaconf import DictConfig, OmegaConf

from scrolls.examples import tokenize_split
from scrolls.generation import Sampling, answers, plan
from scrolls.prompts import Prompts, budget_of, trained_budget
from scrolls.tasks import SPLITS, task_named
from tape.command import expected_errors
from tape.evaluation.journal import Incomplete, Shard, join, journals
from tape.evaluation.workers import answering, complete_shard
from tape.files import write_text
from tape.model.checkpoint import check_length, identified, load, weight_files
from tape.settings import groups
from tape.settings.composition import call
from tape.validation import check_flag, check_integer, check_path, look_up

CONFIG = groups.CONFIG / "scrolls"
log = logging.getLogger(__name__)


def sampling_of(cfg: DictConfig) -> Sampling | None:
    """Raises a ValueError for invalid sampling parameters."""
    check_flag("sample", cfg.sample)
    bounds = {
        "temperature": (sys.float_info.max, "be a number above 0"),
        "top_p": (1, "lie in (0, 1]"),
    }
    for name, (most, allowed) in bounds.items():
        if type(cfg[name]) not in (int, float) or not 0 < cfg[name] <= most:
            raise ValueError(f"{name}={cfg[name]!r} must {allowed}")
    if cfg.sample:
        return Sampling(float(cfg.temperature), float(cfg.top_p), cfg.seed)
    usual = OmegaConf.load(CONFIG / "generate.yaml")
    for name in Sampling._fields:
        if cfg[name] != usual[name]:
            raise ValueError(f"{name}={cfg[name]} requires sample=true: set both or neither")
    return None


def check(cfg: DictConfig) -> None:
    """Raises a ValueError for the first setting that is missing or wrong."""
    for name in ("model", "task", "output"):
        if OmegaConf.is_missing(cfg, name):
            raise ValueError(f"give {name}=..., see config/scrolls/generate.yaml")
    for name in ("model", "output", "cache_dir", "data_dir"):
        if name != "data_dir" or cfg.data_dir is not None:
            check_path(name, cfg[name])
    if Path(cfg.output).is_dir():
        raise ValueError(f"output={cfg.output} is a folder: give the file to write")
    for name, least in {"max_batch_tokens": 1, "seed": 0, "limit": 1, "processes": 1}.items():
        if cfg[name] is not None:
            check_integer(name, cfg[name], least)
    look_up("split", cfg.split, dict.fromkeys(SPLITS))


def run(cfg: DictConfig) -> None:
    """Generates one shard, and writes the output if all others are complete."""
    check(cfg)
    shard, folder, output = Shard.parse(str(cfg.shard)), Path(cfg.model), Path(cfg.output)
    task, sampling = task_named(cfg.task), sampling_of(cfg)
    weight_files(folder)
    name = cfg.budget or trained_budget(folder)
    budget = budget_of(name, task)
    model, tokenizer = load(folder)
    check_length(model, budget.length, f"budget={name}")
    prompts = Prompts(tokenizer, task, budget)
    data_dir = cfg.data_dir and Path(cfg.data_dir)
    examples = tokenize_split(task, cfg.split, data_dir, tokenizer, prompts, Path(cfg.cache_dir))
    examples.check(prompts)
    rows = examples.questions_spread(cfg.limit)
    batches = plan(examples, prompts, rows, cfg.max_batch_tokens)
    header = {
        **identified(folder),
        "task": task.name,
        "split": cfg.split,
        "tokens": examples.fingerprint,
        "budget": [name, *budget],
        "limit": cfg.limit,
        "max_batch_tokens": cfg.max_batch_tokens,
        "sampling": None if sampling is None else sampling._asdict(),
        "batches": len(batches),
    }
    results = output.with_suffix(".parts")
    if output.exists() and not journals(results):
        raise ValueError(
            f"{output} exists, but its journal is not in {results}: remove it, or give another "
            f"output=..."
        )
    log.info(
        "%s: %s questions of %s (%s) in %s batches, shard %s",
        folder,
        f"{len(rows):,}",
        task.name,
        cfg.split,
        len(batches),
        shard,
    )
    complete_shard(
        results,
        shard,
        header,
        batches,
        answering(folder, model, tokenizer, partial(answers, sampling=sampling), cfg.processes),
        lambda batch, given: {"answers": dict(zip(batch.ids, given, strict=True))},
        lambda batch: f"{len(batch.ids)} x {max(map(len, batch.prompts)):,} tokens",
    )
    try:
        given = join(results)[1]
    except Incomplete:
        log.info("shard %s is done; the last one to finish writes %s", shard, output)
        return
    texts = {id_: text for row in given for id_, text in row["answers"].items()}
    ordered = {examples.ids[row]: texts[examples.ids[row]] for row in rows}
    write_text(output, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    log.info("answers are in %s", output)


@hydra.main(version_base=None, config_path=str(CONFIG), config_name="generate")
def main(cfg: DictConfig) -> None:
    transformers.logging.disable_progress_bar()
    with nullcontext() if cfg.debug is True else expected_errors(continues=True):
        run(cfg)


if __name__ == "__main__":
    call(main, "generate", CONFIG)
