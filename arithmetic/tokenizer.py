"""Tokenizer of arithmetic: one token per character."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from arithmetic.tasks import TASKS
from tape.data.tokenizer import END, PADDING

CHARACTERS = "".join(dict.fromkeys("0123456789=-, " + "".join(t.symbol for t in TASKS.values())))


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token each for digits, '=', '-', ',', space, the symbol of every
    task, EOS and padding. It refuses other characters."""
    vocabulary = {token: index for index, token in enumerate((END, PADDING, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )
