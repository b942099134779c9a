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
from typing import NamedTuple

import hydra
import numpy as np
import torch
import transformers
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerBase

from scrolls.examples import (
    Budget,
    Examples,
    Prompts,
    budget_of,
    tokenize_split,
    trained_budget,
)
from scrolls.tasks import SPLITS, TASKS
from tape.command import expected_errors
from tape.evaluation.decoding import left_padded, plain_generation
from tape.evaluation.journal import Incomplete, Shard, join, journals
from tape.evaluation.workers import answering, complete_shard
from tape.files import write_text
from tape.model.checkpoint import check_length, identified, load, weight_files
from tape.model.modeling import TapeForCausalLM
from tape.settings import groups
from tape.settings.composition import call
from tape.validation import check_flag, check_integer, check_path, look_up

CONFIG = groups.CONFIG / "scrolls"
log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """Prompts of similar length that are answered together."""

    number: int
    ids: list[str]
    prompts: list[np.ndarray]
    budget: Budget

    @property
    def cost(self) -> int:
        """Tokens to process, roughly proportional to time."""
        return len(self.ids) * (max(map(len, self.prompts)) + self.budget.answer + 1)


class Sampling(NamedTuple):
    """Nucleus sampling: draws from the most likely tokens with total probability `top_p`."""

    temperature: float
    top_p: float
    seed: int


def plan(examples: Examples, rows: list[int], max_batch_tokens: int) -> list[Batch]:
    """Groups the questions of these rows into batches of at most `max_batch_tokens` tokens, with
    padding and room for answers. The most expensive come first: if memory runs out, it does so
    early.

    Raises:
        ValueError: if that is less than one prompt needs.
    """
    budget = examples.prompts.budget
    if max_batch_tokens < budget.length:
        raise ValueError(
            f"max_batch_tokens={max_batch_tokens:,} must be at least {budget.length:,}, which one "
            f"prompt and its answer may take"
        )
    texts = [(examples.ids[row], examples.tokens("prompt", row)) for row in rows]
    batches: list[Batch] = []
    for id_, prompt in sorted(texts, key=lambda text: -len(text[1])):
        # The first prompt of a batch is its longest.
        each = len(batches[-1].prompts[0]) + budget.answer + 1 if batches else 0
        if not batches or (len(batches[-1].ids) + 1) * each > max_batch_tokens:
            batches.append(Batch(0, [], [], budget))
        batches[-1].ids.append(id_)
        batches[-1].prompts.append(prompt)
    batches.sort(key=lambda batch: -batch.cost)
    return [batch._replace(number=number) for number, batch in enumerate(batches)]


@torch.no_grad()
def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    sampling: Sampling | None = None,
    use_cache: bool = True,
) -> list[str]:
    """Generates a text after each prompt, up to EOS or the budget.

    Random positions are drawn for the budget's length and sampling is seeded by the batch, so the
    result is independent of earlier batches and of the process.
    """
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    padding = end if padding is None else padding
    ids, mask = (x.to(model.device) for x in left_padded(batch.prompts, padding))
    devices = [model.device] if model.device.type == "cuda" else []
    length = model.evaluation_length(batch.budget.length)
    with torch.random.fork_rng(devices), length, plain_generation(model):
        choice: dict[str, float] = {"do_sample": False}
        if sampling is not None:
            temperature, top_p, seed = sampling
            choice = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
            state = np.random.SeedSequence((seed, batch.number)).generate_state(1)
            torch.manual_seed(int(state[0]))
        output = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=batch.budget.answer + 1,
            use_cache=use_cache,
            eos_token_id=end,
            pad_token_id=padding,
            **choice,
        )
    texts = []
    for tokens in output[:, ids.shape[1] :].tolist():
        tokens = tokens[: tokens.index(end)] if end in tokens else tokens[: batch.budget.answer]
        texts.append(tokenizer.decode(tokens, skip_special_tokens=True).strip())
    return texts


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
    check_flag("sample", cfg.sample)
    bounds = {
        "temperature": (sys.float_info.max, "be a number above 0"),
        "top_p": (1, "lie in (0, 1]"),
    }
    for name, (most, allowed) in bounds.items():
        if type(cfg[name]) not in (int, float) or not 0 < cfg[name] <= most:
            raise ValueError(f"{name}={cfg[name]!r} must {allowed}")
    usual = OmegaConf.load(CONFIG / "generate.yaml")
    for name in () if cfg.sample else Sampling._fields:
        if cfg[name] != usual[name]:
            raise ValueError(f"{name}={cfg[name]} requires sample=true: set both or neither")


def run(cfg: DictConfig) -> None:
    """Generates one shard, and writes the output if all others are complete."""
    check(cfg)
    shard, folder, output = Shard.parse(str(cfg.shard)), Path(cfg.model), Path(cfg.output)
    task = look_up("task", cfg.task, TASKS)
    sampling = None
    if cfg.sample:
        sampling = Sampling(float(cfg.temperature), float(cfg.top_p), cfg.seed)
    weight_files(folder)
    name = cfg.budget or trained_budget(folder)
    budget = budget_of(name, task)
    model, tokenizer = load(folder)
    check_length(model, budget.length, f"budget={name}")
    prompts = Prompts(tokenizer, task, budget)
    data_dir = cfg.data_dir and Path(cfg.data_dir)
    examples = tokenize_split(prompts, cfg.split, data_dir, Path(cfg.cache_dir))
    rows = examples.questions_spread(cfg.limit)
    batches = plan(examples, rows, cfg.max_batch_tokens)
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
    about = f"{len(rows):,} questions of {task.name} ({cfg.split}) in {len(batches)} batches"
    log.info("%s: %s, shard %s", folder, about, shard)
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
    from scrolls import generate  # worker processes find its functions by this name

    call(generate.main, "generate", CONFIG)
