"""Models of SentencePiece, trained for tests."""

import argparse
from pathlib import Path

import pytest


def trained_pieces(folder, kind="bpe", **given):
    """A tokenizer.model of SentencePiece, as of Llama-2 unless other settings are given."""
    sentencepiece = pytest.importorskip("sentencepiece")  # of the extra dev
    folder.mkdir()
    (folder / "text.txt").write_text(
        Path(argparse.__file__).read_text() + "gr\u00f6\u00dfe 1234\n" * 99
    )
    settings = {"byte_fallback": True, "remove_extra_whitespaces": False, "split_digits": True}
    settings |= {"normalization_rule_name": "identity", "allow_whitespace_only_pieces": True}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        model_type=kind,
        vocab_size=700,
        minloglevel=2,
        **settings | given,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
