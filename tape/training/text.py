"""Pre-training on text: a corpus in blocks of tokens, or a stream of them; perplexity in the
report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

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
from tape.runs.folder import step_of
from tape.settings.schema import RunSettings
from tape.training.arguments import sequences_per_step, sharing, training_order
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
        if not isinstance(corpus, Corpus):
            raise ValueError(
                f"task=text with {type(corpus).__name__}, which is no text: choose an experiment "
                "of that data, such as addition, passkey, synthetic or scrolls"
            )
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
        seen = self.train.seen(COUNTED) if isinstance(self.train, TrainingOrder) else None
        length, seed = self.settings.length, self.settings.seed
        tokens, text = self.settings.report["tokens"], self.validation
        return write_report(folder, model, self.tokenizer, text, length, tokens, seed, seen)


def follow_stream(
    blocks: StreamedBlocks, arguments: TrainingArguments, checkpoint: Path | None
) -> None:
    """Starts a run at the first block that its checkpoint has not seen: the position in a stream
    follows from the number of steps.

    Raises:
        ValueError: for settings that would split the stream.
    """
    if workers := arguments.dataloader_num_workers:
        raise ValueError(
            f"trainer.dataloader_num_workers={workers} with a streamed corpus: must be 0; the "
            "tokenizer uses all cores by itself, ahead of training"
        )
    arguments.ignore_data_skip = True  # skipping would read the stream from its beginning, for days
    blocks.start = (step_of(checkpoint) if checkpoint else 0) * sequences_per_step(arguments)


class Repeated(IterableDataset):
    """A stream whose every batch comes once for each of the processes that share it: accelerate
    reads a stream in the first process and deals its batches to all in turn, so that the order does
    not depend on their number, as that of `split_dataset_by_node` would."""

    def __init__(self, blocks: StreamedBlocks, arguments: TrainingArguments):
        self.blocks, self.times = blocks, sharing(arguments)
        self.batch = arguments.train_batch_size

    def __iter__(self) -> Iterator[Any]:
        blocks = iter(self.blocks)
        while batch := [*islice(blocks, self.batch)]:
            for _ in range(self.times):
                yield from batch


class ContinuedStream(TrainerCallback):
    """Restores what transformers does not when a run resumes without skipping batches.

    Opening a data loader draws a random number, so the checkpoint's random state is restored again
    for the first step. The epoch (here the completed fraction of the run) would restart at 0.
    """

    def __init__(self, trainer: Trainer, checkpoint: Path):
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step_of(self.checkpoint):
            self.trainer._load_rng_state(str(self.checkpoint))

    def on_step_end(self, args, state, control, **kwargs):
        state.epoch = state.global_step / state.max_steps
