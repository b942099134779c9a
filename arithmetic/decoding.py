"""Greedy decoding of answers with a KV cache, for batches of prompts of equal length."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from arithmetic.plan import Batch
from arithmetic.problems import places
from tape import TapeForCausalLM


@torch.no_grad()
def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    use_cache: bool = True,
) -> list[str]:
    """Decodes an answer to each prompt, including EOS unless it comes too late for a right answer;
    without spaces, if the model was trained with them.

    Random positions are drawn for the longest problem with such a prompt, so that answers do not
    depend on which questions share a batch.
    """
    prompts = [question.prompt for question in batch.questions]
    ids = torch.tensor(tokenizer(prompts, add_special_tokens=False)["input_ids"])
    ids = ids.to(model.device)
    positions = {}
    if batch.problems.abacus_offset is not None:  # places of the answer start after '=', at 0
        texts = np.frombuffer("".join(prompts).encode(), dtype=np.uint8).reshape(len(prompts), -1)
        positions["position_ids"] = torch.from_numpy(places(texts)).to(model.device)
    with model.evaluation_length(batch.length):
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **positions,
            max_new_tokens=batch.new_tokens,
            do_sample=False,
            use_cache=use_cache,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    end = tokenizer.eos_token
    texts = tokenizer.batch_decode(output[:, ids.shape[1] :], clean_up_tokenization_spaces=False)
    if batch.problems.spaces:
        texts = [text.replace(" ", "") for text in texts]
    return ["".join(text.partition(end)[:2]) for text in texts]
