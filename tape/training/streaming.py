"""Resuming on a stream of blocks, whose position follows from the number of steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from tape.data import StreamedBlocks
from tape.runs.folder import step_of
from tape.training.arguments import sequences_per_step, sharing


def follow_stream(
    blocks: StreamedBlocks, arguments: TrainingArguments, checkpoint: Path | None
) -> None:
    """Starts a run at the first block that its checkpoint has not seen.

    Raises:
        ValueError: for settings that would split the stream.
    """
    if workers := arguments.dataloader_num_workers:
        raise ValueError(
            f"trainer.dataloader_num_workers={workers} with a streamed corpus: must be 0; the "
            "tokenizer uses all cores by itself, ahead of training"
        )
    arguments.ignore_data_skip = True  # skipping would read the stream from its beginning, for days
    blocks.seek((step_of(checkpoint) if checkpoint else 0) * sequences_per_step(arguments))


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
