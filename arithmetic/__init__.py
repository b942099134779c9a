"""Arithmetic on numbers longer than those of the training: problems, made on the fly."""

from arithmetic.problems import Problems, character_tokenizer
from arithmetic.tasks import TASKS

__all__ = ["TASKS", "Problems", "character_tokenizer"]
