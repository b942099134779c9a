"""Text data: a corpus yields documents, a tokenizer encodes them, blocks pack the tokens."""

from tape.data.bigrams import BigramCorpus
from tape.data.blocks import EpochOrder, TokenBlocks, tokenize_corpus
from tape.data.c4 import C4Corpus, StreamedBlocks
from tape.data.corpora import Corpus, LocalCorpus, RedPajamaCorpus, TextCorpus
from tape.data.english import EnglishCorpus
from tape.data.tokenizer import load_tokenizer, train_tokenizer

__all__ = [
    "BigramCorpus",
    "C4Corpus",
    "Corpus",
    "EnglishCorpus",
    "EpochOrder",
    "LocalCorpus",
    "RedPajamaCorpus",
    "StreamedBlocks",
    "TextCorpus",
    "TokenBlocks",
    "load_tokenizer",
    "tokenize_corpus",
    "train_tokenizer",
]
