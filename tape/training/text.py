"""Pre-training on text: a corpus in blocks of tokens, and perplexity in the report."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from transformers import TrainingArguments, default_data_collator

from tape.data import (
    Corpus,
    StreamedBlocks,
    TokenBlocks,
    TrainingOrder,
    load_tokenizer,
    tokenize_corpus,
    train_tokenizer,
)
from tape.model.modeling import TapeForCausalLM
from tape.settings.run import RunSettings
from tape.training.arguments import training_order
from tape.training.report import write_report
from tape.training.task import Task
from tape.validation import check_path

COUNTED = 2**24  # training tokens at most that the n-gram models of the report are fitted to
log = logging.getLogger(__name__)


def separate(end: int, blocks: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collates blocks of documents that end with the token `end`, with the ids of the documents;
    their first tokens are not predicted."""
    batch = default_data_collator(blocks)
    begins = F.pad(batch["input_ids"][:, :-1] == end, (1, 0))
    labels = batch["labels"].masked_fill(begins, -100)
    return batch | {"labels": labels, "document_ids": begins.cumsum(-1)}


class TextTask(Task):
    def __init__(self, corpus: Corpus, settings: RunSettings, arguments: TrainingArguments):
        self.settings, cache = settings, check_path("cache_dir", settings.cache_dir)
        log.info(corpus.describe())
        if settings.tokenizer is None:
            self.tokenizer = train_tokenizer(corpus, settings.vocab_size, cache)
        else:
            self.tokenizer = load_tokenizer(settings.tokenizer)
        if corpus.masked:
            if (peft := settings.peft) and peft["groups"]:
                raise ValueError(
                    f"data.documents=mask with peft.groups={peft['groups']}: groups would join "
                    "documents; give peft.groups=null or data.documents=join"
                )
            self.collate = partial(separate, self.tokenizer.eos_token_id)
        (total, seed), length = training_order(arguments), settings.length
        if corpus.streaming:
            self.train = StreamedBlocks(corpus, self.tokenizer, length, cache, seed)
        else:
            stream = tokenize_corpus(corpus, "train", self.tokenizer, cache)
            self.train = TrainingOrder(TokenBlocks(stream, length), total, seed)
        self.validation = tokenize_corpus(corpus, "validation", self.tokenizer, cache)
        self.evaluation = TokenBlocks(self.validation, length, limit=settings.eval_blocks)
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
            self.settings.length,
            self.settings.report["tokens"],
            self.settings.seed,
            seen=self.train.seen(COUNTED) if isinstance(self.train, TrainingOrder) else None,
        )
