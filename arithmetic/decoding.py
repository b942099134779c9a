"""What a model answers: greedy decoding with its cache, one batch of equal prompts at a time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from arithmetic.plan import Batch
from arithmetic.problems import places
from tape import TapeForCausalLM

WEIGHTS = "model.safetensors"


def load(folder: Path) -> tuple[TapeForCausalLM, PreTrainedTokenizerBase]:
    """The model of a run, on a GPU if there is one, and its tokenizer.

    Raises:
        ValueError: if the folder holds no trained model.
    """
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} has no {WEIGHTS}: give the folder of a run that has finished")
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def fingerprint(folder: Path) -> str:
    """The SHA-256 of a model's weights."""
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_length(model: TapeForCausalLM, needed: int, purpose: str) -> None:
    """Raise a ValueError if the model's encoding has less than the `needed` positions."""
    longest = model.base_model.position.longest
    if longest is not None and needed > longest:
        raise ValueError(
            f"{purpose} needs {needed} positions, but the model's "
            f"{model.config.position['name']!r} has {longest}: train with position.length={needed}"
        )


@torch.no_grad()
def answers(
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Batch,
    use_cache: bool = True,
) -> list[str]:
    """What the model writes after each prompt, up to and with EOS; without EOS, if it did not come
    in time for a right answer; without spaces, if it was trained with them.

    Positions that are drawn at random are drawn for the longest problem with such a prompt, so
    that the result does not depend on which questions share a batch.
    """
    prompts = [question.prompt for question in batch.questions]
    ids = torch.tensor(tokenizer(prompts, add_special_tokens=False)["input_ids"])
    ids = ids.to(model.device)
    positions = {}
    if batch.problems.abacus_offset is not None:  # the answer's places go on from 0 at '='
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
