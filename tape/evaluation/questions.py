"""Questions to a model in batches, answers by greedy decoding, and their marks."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from tape.model.checkpoint import check_length
from tape.model.generation import end_tokens
from tape.model.modeling import TapeForCausalLM


class Question(NamedTuple):
    """A prompt and its answer: texts, or token ids and labels (T,) if one forward pass answers."""

    cell: tuple[float | None, ...]  # the conditions of its result, such as length and depth
    prompt: Any
    answer: Any
    tokens: int  # of the prompt
    room: int  # tokens of the longest answer; 0 if one forward pass answers


class Answer(NamedTuple):
    """What the model wrote, marked."""

    right: bool
    counts: tuple[int, ...]  # that the results add up for each cell (`Accuracy.counts`)
    shown: dict[str, str]  # in wrong.jsonl, the text as "given"


class Batch(NamedTuple):
    questions: list[Question]
    new_tokens: int  # room for the longest answer
    # Tokens that random positions are drawn for: the same for all batches of a group, so that
    # answers do not depend on which questions share a batch.
    length: int

    @property
    def cost(self) -> int:
        """Tokens to run, roughly proportional to time."""
        return sum(question.tokens + self.new_tokens for question in self.questions)


class Questions:
    """The questions of a task, in groups of prompts that are about equally long: a frozen dataclass
    of what is asked."""

    LIMIT: ClassVar[str] = "max_length"  # the field with the largest length

    def groups(self, tokenizer: PreTrainedTokenizerBase) -> Iterable[list[Question]]:
        raise NotImplementedError

    def mark(
        self, question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Answer:
        """Marks the tokens that a model wrote, with EOS unless it came too late."""
        raise NotImplementedError

    def ids(self, question: Question, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Returns the tokens of a prompt."""
        return tokenizer(question.prompt)["input_ids"]

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
        prompts = [self.ids(question, tokenizer) for question in batch.questions]
        ends = end_tokens(model, tokenizer)
        written = greedy(model, prompts, ends, batch.new_tokens, batch.length)
        pairs = zip(batch.questions, written, strict=True)
        return [self.mark(question, tokens, tokenizer) for question, tokens in pairs]

    def plan(
        self,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
    ) -> list[Batch]:
        """Returns all questions in batches of this size or about `batch_tokens` tokens, the
        costliest first: if memory is short, it shows at once."""
        batches = []
        for group in self.groups(tokenizer):
            group = sorted(group, key=lambda each: (each.tokens, each.room))  # reduces padding
            length = group[-1].tokens + max(each.room for each in group)
            size = batch_size or max(1, batch_tokens // length)
            for first in range(0, len(group), size):
                part = group[first : first + size]
                batches.append(Batch(part, max(each.room for each in part), length))
        return sorted(batches, key=lambda batch: -batch.cost)


def of_texts(model: TapeForCausalLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns what determines the tokens of prompts and where answers end, besides the model's
    weights and configuration: for the record of an evaluation."""
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.special_tokens_map)
    found: dict[str, Any] = {"tokenizer": hashlib.sha256(written.encode()).hexdigest()}
    ends = end_tokens(model, tokenizer)
    return found | ({"end_tokens": ends} if len(ends) > 1 else {})


@torch.no_grad()
def greedy(
    model: TapeForCausalLM,
    prompts: Sequence[Sequence[int]],
    ends: list[int],
    new_tokens: int,
    length: int,
) -> list[list[int]]:
    """Returns answers of up to `new_tokens` tokens, up to the first of `ends`, whose place
    `ends[0]` takes. Random positions are drawn for `length` tokens, as in a `Batch`. Raises a
    ValueError if there are no ends."""
    if not ends:
        raise ValueError(
            "no token ends an answer: tokenizer, config.json and generation_config.json have no "
            "eos_token_id; write one into generation_config.json"
        )
    rows = [torch.as_tensor(prompt, dtype=torch.long) for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = padded(rows).to(model.device)
    mask = padded([torch.ones_like(row) for row in rows]).to(model.device)
    how = {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[0], "use_cache": True}
    # Without the penalties and sampling settings that a base model may have.
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with model.evaluation_length(length):
            output = model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, **how)
    finally:
        model.generation_config = own
    new = output[:, ids.shape[1] :]
    new[torch.isin(new, torch.tensor(ends, device=new.device))] = ends[0]
    rows = new.tolist()
    return [row[: row.index(ends[0]) + 1] if ends[0] in row else row for row in rows]
