"""Passkey retrieval: accuracy by the length of the prompt and the depth of the key."""

from tape.tasks.passkey.passkey_plan import Questions
from tape.tasks.passkey.prompts import Draft, Needles, original_prompt
from tape.tasks.passkey.sequences import Passkeys, PromptSequences
from tape.tasks.passkey.texts import plain_tokenizer

__all__ = [
    "Draft",
    "Needles",
    "Passkeys",
    "PromptSequences",
    "Questions",
    "original_prompt",
    "plain_tokenizer",
]
