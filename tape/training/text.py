"""Pre-training on text: a corpus in blocks of tokens, and perplexity in the report."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from tape.data import (
    Corpus,
    TokenBlocks,
    TrainingOrder,
    load_tokenizer,
    tokenize_corpus,
    train_tokenizer,
    training_blocks,
)
from tape.modeling import TapeForCausalLM
from tape.names import check_path
from tape.training.arguments import training_order
from tape.training.report import write_report
from tape.training.task import Task

COUNTED = 2**24  # training tokens at most that the n-gram models of the report are fitted to
log = logging.getLogger(__name__)


class TextTask(Task):
    def __init__(self, corpus: Corpus, settings: dict[str, Any], arguments: TrainingArguments):
        self.settings, cache = settings, check_path("cache_dir", settings["cache_dir"])
        log.info(corpus.describe())
        if settings["tokenizer"] is None:
            self.tokenizer = train_tokenizer(corpus, settings["vocab_size"], cache)
        else:
            self.tokenizer = load_tokenizer(settings["tokenizer"])
        (total, seed), length = training_order(arguments), settings["length"]
        self.train = training_blocks(corpus, self.tokenizer, length, cache, seed, total)
        self.validation = tokenize_corpus(corpus, "validation", self.tokenizer, cache)
        self.evaluation = TokenBlocks(self.validation, length, limit=settings["eval_blocks"])
        self.fingerprints = {
            "train": self.train.fingerprint,
            "validation": self.validation.fingerprint,
        }

    def describe(self) -> str:
        return (
            f"training tokens: {self.train.describe()}, validation tokens: {len(self.validation):,}"
        )

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        return write_report(
            folder,
            model,
            self.tokenizer,
            self.validation,
            self.settings["length"],
            self.settings["report"]["tokens"],
            self.settings["seed"],
            seen=self.train.seen(COUNTED) if isinstance(self.train, TrainingOrder) else None,
        )
