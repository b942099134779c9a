"""Passkey retrieval: accuracy by the length of the prompt and the depth of the key."""

from retrieval.plan import Questions
from retrieval.prompts import Draft, Needles, original_prompt
from retrieval.sequences import Passkeys, PromptSequences
from retrieval.texts import plain_tokenizer

__all__ = [
    "Draft",
    "Needles",
    "Passkeys",
    "PromptSequences",
    "Questions",
    "original_prompt",
    "plain_tokenizer",
]
