"""Pre-training on text, in blocks of tokens or a stream of them; its report has perplexities."""

import logging
from functools import partial
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from tape.core.run_folder import step_of
from tape.data.blocks import TokenBlocks, TrainingOrder, tokenize_corpus
from tape.data.c4 import StreamedBlocks
from tape.data.corpora import Corpus
from tape.data.tokenizer import load_tokenizer, train_tokenizer
from tape.model.modeling import TapeForCausalLM
from tape.training.arguments import sequences_per_step, training_order
from tape.training.report import write_report
from tape.training.settings import RunSettings
from tape.training.task import Task

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
        self.settings, cache = settings, Path(settings.cache_dir)
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
        parts = {"train": self.train, "validation": self.validation}
        self.fingerprints = {name: part.fingerprint for name, part in parts.items()}

    def describe(self) -> str:
        seen, held_out = self.train.describe(), len(self.validation)
        return f"training tokens: {seen}, validation tokens: {held_out:,}"

    def report(self, folder: Path, model: TapeForCausalLM) -> str:
        seen = self.train.seen(COUNTED) if isinstance(self.train, TrainingOrder) else None
        length, tokens = self.settings.length, self.settings.report["tokens"]
        text, base = self.validation, self._base(model)
        return write_report(folder, model, self.tokenizer, text, length, tokens, seen, base)

    def _base(self, model: TapeForCausalLM) -> TapeForCausalLM | None:
        """Returns the model that training started from; None for a new model, or if the base was
        trained with another tokenizer, whose tokens these are not."""
        base = self.settings.base_model
        if base is None or base != self.settings.tokenizer:
            return None
        return TapeForCausalLM.from_pretrained(base, dtype=model.dtype).to(model.device)


def follow_stream(
    blocks: StreamedBlocks, arguments: TrainingArguments, checkpoint: Path | None
) -> None:
    """Starts a run at the first block that its checkpoint has not seen."""
    if workers := arguments.dataloader_num_workers:
        raise ValueError(
            f"trainer.dataloader_num_workers={workers} with a streamed corpus: must be 0; the "
            "tokenizer uses all cores by itself, ahead of training"
        )
    arguments.ignore_data_skip = True  # skipping would read the stream from its beginning, for days
    blocks.start = (step_of(checkpoint) if checkpoint else 0) * sequences_per_step(arguments)


class ContinuedStream(TrainerCallback):
    """Restores what transformers does not when a run resumes without skipping batches: the random
    state, of which opening a data loader draws a number, and the epoch, the share of the run."""

    def __init__(self, trainer: Trainer, checkpoint: Path):
        self.trainer, self.checkpoint = trainer, checkpoint

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step_of(self.checkpoint):
            self.trainer._load_rng_state(str(self.checkpoint))

    def on_step_end(self, args, state, control, **kwargs):
        state.epoch = state.global_step / state.max_steps
