"""What a model answers: greedy decoding with its cache, and which answers are right."""

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
        text: what the model wrote, with EOS if it came.
        found: of how many values that were asked for.
        right: whether these are all.
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
    """What the model writes after each prompt, marked.

    Shorter prompts of a batch are padded on the left. Positions that are drawn at random are drawn
    for the longest prompt of that length, so that the result does not depend on which questions
    share a batch.

    Args:
        original: mark as the original code does.
    """
    texts = [question.prompt.text for question in batch.questions]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    ids, mask = left_padded(rows, 0)  # padding is masked: any token will do
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
    """Tokens up to and with the first `end`, all if there is none."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def marked(question: Question, written: list[int], tokenizer: PreTrainedTokenizerBase) -> Answer:
    """Of k values that are asked for, those among the first k numbers are found. A number counts if
    something follows it, be it EOS: the last one may have been cut."""
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
    """Those of the answer where it follows the prompt."""
    before = len(tokenizer(prompt.text)["input_ids"])
    return tokenizer(prompt.text + prompt.answer)["input_ids"][before:]
