"""Batched generation for prompts of different lengths: left-padded, with a KV cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from scrolls.examples import Examples
from scrolls.prompts import Budget, Prompts
from tape.evaluation.decoding import left_padded, plain_generation
from tape.model.modeling import TapeForCausalLM


class Batch(NamedTuple):
    """Prompts of similar length that are answered together."""

    number: int
    ids: list[str]
    prompts: list[np.ndarray]
    budget: Budget

    @property
    def cost(self) -> int:
        """Tokens to process, roughly proportional to time."""
        return len(self.ids) * (max(map(len, self.prompts)) + self.budget.answer + 1)


class Sampling(NamedTuple):
    """Nucleus sampling: draws from the most likely tokens with total probability `top_p`."""

    temperature: float
    top_p: float
    seed: int


def plan(
    examples: Examples, prompts: Prompts, rows: list[int], max_batch_tokens: int
) -> list[Batch]:
    """Groups the questions of these rows into batches of at most `max_batch_tokens` tokens, with
    padding and room for answers. The most expensive come first: if memory runs out, it does so
    early.

    Raises:
        ValueError: if that is less than one prompt needs.
    """
    budget = prompts.budget
    if max_batch_tokens < budget.length:
        raise ValueError(
            f"max_batch_tokens={max_batch_tokens:,} must be at least {budget.length:,}, which one "
            f"prompt and its answer may take"
        )
    texts = [(examples.ids[row], examples.prompt(row, prompts)) for row in rows]
    batches: list[Batch] = []
    for id_, prompt in sorted(texts, key=lambda text: -len(text[1])):
        # The first prompt of a batch is its longest.
        each = len(batches[-1].prompts[0]) + budget.answer + 1 if batches else 0
        if not batches or (len(batches[-1].ids) + 1) * each > max_batch_tokens:
            batches.append(Batch(0, [], [], budget))
        batches[-1].ids.append(id_)
        batches[-1].prompts.append(prompt)
    batches.sort(key=lambda batch: -batch.cost)
    return [batch._replace(number=number) for number, batch in enumerate(batches)]


@torch.no_grad()
def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    sampling: Sampling | None = None,
    use_cache: bool = True,
) -> list[str]:
    """Generates a text after each prompt, up to EOS or the budget.

    Random positions are drawn for the budget's length and sampling is seeded by the batch, so the
    result is independent of earlier batches and of the process.
    """
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    padding = end if padding is None else padding
    ids, mask = (x.to(model.device) for x in left_padded(batch.prompts, padding))
    devices = [model.device] if model.device.type == "cuda" else []
    length = model.evaluation_length(batch.budget.length)
    with torch.random.fork_rng(devices), length, plain_generation(model):
        choice: dict[str, float] = {"do_sample": False}
        if sampling is not None:
            temperature, top_p, seed = sampling
            choice = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
            state = np.random.SeedSequence((seed, batch.number)).generate_state(1)
            torch.manual_seed(int(state[0]))
        output = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=batch.budget.answer + 1,
            use_cache=use_cache,
            eos_token_id=end,
            pad_token_id=padding,
            **choice,
        )
    texts = []
    for tokens in output[:, ids.shape[1] :].tolist():
        tokens = tokens[: tokens.index(end)] if end in tokens else tokens[: batch.budget.answer]
        texts.append(tokenizer.decode(tokens, skip_special_tokens=True).strip())
    return texts
