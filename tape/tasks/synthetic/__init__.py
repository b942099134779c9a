"""Synthetic tasks that tell encodings apart by the longest problems that they solve."""

from tape.tasks.synthetic.generators import TASKS, example
from tape.tasks.synthetic.problems import Synthetic, SyntheticSequences
from tape.tasks.synthetic.words import words_tokenizer

__all__ = ["TASKS", "Synthetic", "SyntheticSequences", "example", "words_tokenizer"]
