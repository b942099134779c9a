"""Greedy decoding of answers with a KV cache, for batches of prompts of equal length."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from arithmetic.grid_plan import Batch
from tape.evaluation.decoding import greedy
from tape.model.modeling import TapeForCausalLM


def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    use_cache: bool = True,
) -> list[str]:
    """Decodes an answer to each prompt, including EOS unless it comes too late for a right answer;
    without spaces, if the model was trained with them."""
    prompts = [question.prompt for question in batch.questions]
    ids, end = tokenizer(prompts, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id
    written = greedy(model, ids, end, batch.new_tokens, batch.length, use_cache=use_cache)
    texts = tokenizer.batch_decode(written, clean_up_tokenization_spaces=False)
    return [text.replace(" ", "") if batch.problems.spaces else text for text in texts]
