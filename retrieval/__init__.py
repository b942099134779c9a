"""Passkey retrieval: how deep in how long a text a model finds what it was told."""

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
