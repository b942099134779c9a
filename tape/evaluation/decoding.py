"""Greedy decoding of prompts of several lengths in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from tape.model.modeling import TapeForCausalLM


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
