"""Greedy decoding of answers with a KV cache, and their scoring."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from retrieval.plan import Batch, Question
from retrieval.prompts import Prompt
from tape import TapeForCausalLM
from tape.evaluation.padding import left_padded


class Answer(NamedTuple):
    """
    Attributes:
        text: generated text, with EOS if generated.
        found: number of requested values in it.
        right: whether all of them were found.
    """

    text: str
    found: int
    right: bool


@torch.no_grad()
def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    original: bool = False,
) -> list[Answer]:
    """Decodes and scores an answer to each prompt.

    Shorter prompts of a batch are padded on the left. Random positions are drawn for the longest
    prompt of that length, so that answers do not depend on which questions share a batch.

    Args:
        original: score as the original code does.
    """
    texts = [question.prompt.text for question in batch.questions]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    ids, mask = left_padded(rows, 0)  # padding is masked, so any token will do
    end = tokenizer.eos_token_id
    with model.evaluation_length(batch.positions):
        output = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=batch.new_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=end,
            pad_token_id=end,
        )
    mark = marked_as_original if original else marked
    written = output[:, ids.shape[1] :].tolist()
    return [
        mark(question, up_to(end, tokens), tokenizer)
        for question, tokens in zip(batch.questions, written, strict=True)
    ]


def up_to(end: int | None, tokens: list[int]) -> list[int]:
    """Returns tokens up to and including the first `end`, or all."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def marked(question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase) -> Answer:
    """Counts which of k requested values are among the first k numbers. A number counts if followed
    by anything, including EOS; otherwise it may be truncated."""
    text = tokenizer.decode(written, clean_up_tokenization_spaces=False)
    values = question.prompt.values
    numbers = re.findall(r"\d+(?=\D)", text)[: len(values)]
    found = len(set(values) & set(numbers))
    return Answer(text, found, found == len(values))


def marked_as_original(
    question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase
) -> Answer:
    """Right if the first tokens are those of the key."""
    expected = answer_tokens(question.prompt, tokenizer)
    text = tokenizer.decode(written, clean_up_tokenization_spaces=False)
    right = written[: len(expected)] == expected
    return Answer(text, int(right), right)


def answer_tokens(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the tokens of the answer as it follows the prompt."""
    before = len(tokenizer(prompt.text)["input_ids"])
    return tokenizer(prompt.text + prompt.answer)["input_ids"][before:]
