"""Questions to a model in batches, answers by greedy decoding, and their marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from tape.model.checkpoint import check_length
from tape.model.modeling import TapeForCausalLM


class Question(NamedTuple):
    """
    Attributes:
        cell: the conditions of its result, such as length and depth.
        prompt, answer: texts; where one forward pass answers, token ids and labels (T,).
        tokens: of the prompt.
        room: tokens of the longest answer; 0 where one forward pass answers.
    """

    cell: tuple[float | None, ...]
    prompt: Any
    answer: Any
    tokens: int
    room: int


class Answer(NamedTuple):
    """
    Attributes:
        text: what the model wrote.
        counts: what the results add up for each cell (`Accuracy.counts`).
        shown: what wrong.jsonl tells of a wrong one.
    """

    text: str
    right: bool
    counts: tuple[int, ...]
    shown: dict[str, str]


class Batch(NamedTuple):
    """
    Attributes:
        new_tokens: room for the longest answer.
        length: tokens that random positions are drawn for, the same for all batches of a group, so
            that answers do not depend on which questions share a batch.
    """

    questions: list[Question]
    new_tokens: int
    length: int

    @property
    def cost(self) -> int:
        """Tokens to run, roughly proportional to time."""
        return sum(question.tokens + self.new_tokens for question in self.questions)


class Questions:
    """The questions of a task, in groups of prompts that are about equally long: a frozen dataclass
    of what is asked.

    Attributes:
        LIMIT: the field with the largest length.
    """

    LIMIT: ClassVar[str] = "max_length"

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterable[list[Question]]:
        raise NotImplementedError

    def mark(
        self, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Answer:
        """Marks the tokens that a model wrote, with EOS unless it came too late."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Returns what is asked, for the journal and the summary."""
        return asdict(self)

    def check(self, model: TapeForCausalLM, batches: list[Batch], purpose: str = "") -> None:
        """Raises a ValueError if the model's encoding has too few positions."""
        limit = f"{purpose}{self.LIMIT}={getattr(self, self.LIMIT)}"
        check_length(model, max(batch.length for batch in batches), limit)

    def answers(
        self, model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase, batch: Batch
    ) -> list[Answer]:
        """Answers and marks a batch, by greedy decoding with a KV cache."""
        prompts = tokenizer([question.prompt for question in batch.questions])["input_ids"]
        end = tokenizer.eos_token_id
        written = greedy(model, prompts, end, batch.new_tokens, batch.length, use_cache=True)
        pairs = zip(batch.questions, written, strict=True)
        return [self.mark(question, tokens, tokenizer) for question, tokens in pairs]

    def plan(
        self,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> list[Batch]:
        """Returns all questions in batches, the costliest first: if memory is short, it shows at
        once. Batches have `batch_size` questions, or about `batch_tokens` tokens."""
        batches = []
        for group in self.groups(tokenizer):
            group = sorted(group, key=lambda each: (each.tokens, each.room))  # reduces padding
            length = group[-1].tokens + max(each.room for each in group)
            size = batch_size or max(1, batch_tokens // length)
            for first in range(0, len(group), size):
                part = group[first : first + size]
                batches.append(Batch(part, max(each.room for each in part), length))
        return sorted(batches, key=lambda batch: -batch.cost)


def left_padded(prompts: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """(B, T) tokens and their mask, zero at the padding: all prompts end where answers begin."""
    rows = [torch.as_tensor(prompt, dtype=torch.long) for prompt in prompts]
    ids = pad_sequence(rows, batch_first=True, padding_value=padding, padding_side="left")
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return ids, (torch.arange(ids.shape[1]) >= ids.shape[1] - lengths).long()


@contextmanager
def plain_generation(model: TapeForCausalLM) -> Iterator[None]:
    """Generation without the penalties and sampling settings that a base model may have."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


@torch.no_grad()
def greedy(
    model: TapeForCausalLM,
    prompts: Sequence[Sequence[int]],
    end: int,
    new_tokens: int,
    length: int,
    **how: Any,
) -> list[list[int]]:
    """Returns answers of up to `new_tokens` tokens, up to and including the first `end`.

    Args:
        length: tokens that random positions are drawn for, the same for all batches, so that
            answers do not depend on which prompts share a batch.
        how: further arguments of `generate`.
    """
    ids, mask = left_padded(prompts, 0)  # padding is masked, so any token will do
    with model.evaluation_length(length), plain_generation(model):
        output = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=end,
            **how,
        )
    written = output[:, ids.shape[1] :].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in written]
