"""Synthetic tasks that tell encodings apart by the longest problems that they solve."""

from synthetic.generators import TASKS, example
from synthetic.problems import Synthetic, SyntheticSequences
from synthetic.words import words_tokenizer

__all__ = ["TASKS", "Synthetic", "SyntheticSequences", "example", "words_tokenizer"]
