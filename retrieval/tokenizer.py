"""Tokenizer of plain prompts: one token per word and per digit."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retrieval.texts import NAMES, PLAIN
from tape.data.tokenizer import END, PADDING


def words() -> list[str]:
    """Returns all distinct words of plain prompts and their answers."""
    named = [
        part(name, several)
        for name in (None, *NAMES)
        for several in (False, True)
        for part in (lambda name, several: PLAIN.line(name, "", several), PLAIN.question)
    ]
    sentences = map(PLAIN.sentence, PLAIN.nouns, PLAIN.adjectives)
    return list(dict.fromkeys(" ".join([PLAIN.description, *sentences, *named, ","]).split()))


def plain_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of `words`, digits, EOS and padding; it refuses anything else. The
    space before a word or number belongs to its first token."""
    first = PLAIN.description.split()[0]
    tokens = [END, PADDING, *"0123456789", *(f" {digit}" for digit in "0123456789"), first]
    tokens += [f" {word}" for word in words()]
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\d| ?[^\s\d]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PADDING, padding_side="right"
    )
