"""A run on a stream of blocks: where the stream is, is the number of steps and nothing else."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer, TrainerCallback, TrainingArguments

from tape.data.streaming import StreamedBlocks
from tape.training.runs import step_of


def sequences_per_step(arguments: TrainingArguments) -> int:
    return arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size


def follow_stream(
    blocks: StreamedBlocks, arguments: TrainingArguments, checkpoint: Path | None
) -> None:
    """Let a run begin with the block after those that its checkpoint has seen.

    Raises:
        ValueError: for more data-loader workers than a stream can have.
    """
    if arguments.dataloader_num_workers > 1:
        raise ValueError(
            f"trainer.dataloader_num_workers={arguments.dataloader_num_workers} with a streamed "
            f"corpus: one stream has at most 1; the tokenizer uses all cores by itself with 0"
        )
    arguments.ignore_data_skip = True  # reading the stream again from the beginning would take days
    blocks.seek((step_of(checkpoint) if checkpoint else 0) * sequences_per_step(arguments))


class RestoreRandomness(TrainerCallback):
    """Opening a data loader draws a random number. A run that goes on opens it once more than one
    that was never stopped, so its first step takes the checkpoint's random state again."""

    def __init__(self, trainer: Trainer, checkpoint: Path):
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step_of(self.checkpoint):
            self.trainer._load_rng_state(str(self.checkpoint))
