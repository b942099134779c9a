"""Text to blocks of tokens: a corpus yields documents, a tokenizer cuts them, blocks pack them."""

from tape.data.blocks import TokenBlocks, TrainingOrder, tokenize_corpus
from tape.data.corpora import Corpus, LocalCorpus, TextCorpus
from tape.data.tokenizer import load_tokenizer, train_tokenizer

__all__ = [
    "Corpus",
    "LocalCorpus",
    "TextCorpus",
    "TokenBlocks",
    "TrainingOrder",
    "load_tokenizer",
    "tokenize_corpus",
    "train_tokenizer",
]
