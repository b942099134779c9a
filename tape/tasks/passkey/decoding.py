"""Greedy decoding of answers with a KV cache, and their scoring."""

from __future__ import annotations

import re
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from tape.evaluation.decoding import greedy
from tape.model.modeling import TapeForCausalLM
from tape.tasks.passkey.passkey_plan import Batch, Question


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


def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    original: bool = False,
) -> list[Answer]:
    """Decodes and scores an answer to each prompt.

    Args:
        original: score as the original code does.
    """
    prompts = [tokenizer(question.prompt.text)["input_ids"] for question in batch.questions]
    end, mark = tokenizer.eos_token_id, marked_as_original if original else marked
    written = greedy(model, prompts, end, batch.new_tokens, batch.positions, use_cache=True)
    pairs = zip(batch.questions, written, strict=True)
    return [mark(question, tokens, tokenizer) for question, tokens in pairs]


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
    """Right if the first tokens are those of the key as it follows the prompt."""
    prompt, answer = question.prompt.text, question.prompt.answer
    before = len(tokenizer(prompt)["input_ids"])
    expected = tokenizer(prompt + answer)["input_ids"][before:]
    text = tokenizer.decode(written, clean_up_tokenization_spaces=False)
    right = written[: len(expected)] == expected
    return Answer(text, int(right), right)
