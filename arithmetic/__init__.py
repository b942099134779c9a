"""Arithmetic on numbers longer than those of the training: problems, made on the fly."""

from arithmetic.problems import Problems, ProblemSequences
from arithmetic.tasks import TASKS
from arithmetic.tokenizer import character_tokenizer

__all__ = ["TASKS", "ProblemSequences", "Problems", "character_tokenizer"]
