"""Arithmetic on numbers longer than those of the training: problems, made on the fly."""

from arithmetic.problems import TASKS, Problems, character_tokenizer

__all__ = ["TASKS", "Problems", "character_tokenizer"]
