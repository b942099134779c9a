"""The report of a run on text: bits per byte with tokenizers of several kinds."""

import json
import math
import re

import numpy as np
import pytest
from conftest import make_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.data import TextCorpus, tokenize_corpus, train_tokenizer
from tape.files import write_text
from tape.training.report import scored_windows, write_report

# Texts that differ in their bytes per token; some tokens end within a character.
UNEVEN = ["naïve café, 日本語のテキスト。" * 30, "plain words of one byte a letter " * 40]


def sentencepiece():
    """As Llama 2's: "▁" for a space, one before each text, and tokens of single bytes."""
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"plainwords"]
    vocabulary = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    changes = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(changes)
    tokenizer.decoder = decoders.ByteFallback()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def words():
    """A token per word; spaces have none."""
    found = dict.fromkeys(re.findall(r"\w+|[^\w\s]+", " ".join(UNEVEN)))
    vocabulary = {token: n for n, token in enumerate(["[UNK]", "[SEP]", *found])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]")


def bytes_in(token):
    """From the alphabet of a byte-level vocabulary, or from the names of SentencePiece."""
    if token.startswith("<"):  # a byte, or a special token
        return int(bool(re.fullmatch(r"<0x[0-9A-F]{2}>", token)))
    return len(token.replace("▁", " ").encode()) if "▁" in token else len(token)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "words"])
def test_bits_per_byte_are_of_the_bytes_of_the_scored_tokens(tmp_path, kind):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in UNEVEN))
    (tmp_path / "other.txt").write_text("a")
    corpus = TextCorpus(path, validation=tmp_path / "other.txt")
    tokenizer = {
        "byte_level": lambda: train_tokenizer(corpus, 300, tmp_path),
        "sentencepiece": sentencepiece,
        "words": words,
    }[kind]()
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    model = make_model("nope", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    write_text(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
    text = write_report(tmp_path, model, tokenizer, stream, 16, 40, np.array(stream.tokens)[None])
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    rows = [*report["perplexity"], *report["ngrams"]["models"]]
    if kind == "words":
        assert {row["bits_per_byte"] for row in rows} == {None} and text.count("| - |") == len(rows)
        return
    windows = scored_windows(model, stream, 16, 40)[16]
    scored = np.concatenate([np.arange(window.first, window.stop) for window in windows])
    size = sum(map(bytes_in, tokenizer.convert_ids_to_tokens(stream.tokens[scored].tolist())))
    if kind == "sentencepiece":  # the space before a text is not in the text
        begins = [-1, *np.flatnonzero(stream.tokens == tokenizer.eos_token_id)]
        size -= np.isin(scored - 1, begins).sum()
    whole = len("".join(UNEVEN).encode())
    assert abs(size / len(scored) / (whole / len(stream)) - 1) > 0.02  # the text is uneven
    for row in rows:
        expected = math.log2(row["perplexity"]) * len(scored) / size
        assert row["bits_per_byte"] == pytest.approx(expected, rel=1e-9)
