"""A run on a stream of blocks: where the stream is, is the number of steps and nothing else."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer, TrainerCallback, TrainingArguments

from tape.data.streaming import StreamedBlocks
from tape.training.arguments import sequences_per_step
from tape.training.runs import step_of


def follow_stream(
    blocks: StreamedBlocks, arguments: TrainingArguments, checkpoint: Path | None
) -> None:
    """Let a run begin with the block after those that its checkpoint has seen.

    Raises:
        ValueError: for settings that make more than one stream of it.
    """
    if arguments.dataloader_num_workers > 1:
        raise ValueError(
            f"trainer.dataloader_num_workers={arguments.dataloader_num_workers} with a streamed "
            f"corpus: one stream has at most 1; the tokenizer uses all cores by itself with 0"
        )
    arguments.ignore_data_skip = True  # reading the stream again from the beginning would take days
    blocks.seek((step_of(checkpoint) if checkpoint else 0) * sequences_per_step(arguments))


class ContinuedStream(TrainerCallback):
    """What the library leaves different in a run that goes on without skipping batches.

    Opening a data loader draws a random number, so the first step takes the checkpoint's random
    state again; and the epoch (here the share of the run that is done) would count from 0.
    """

    def __init__(self, trainer: Trainer, checkpoint: Path):
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step_of(self.checkpoint):
            self.trainer._load_rng_state(str(self.checkpoint))

    def on_step_end(self, args, state, control, **kwargs):
        state.epoch = state.global_step / state.max_steps
