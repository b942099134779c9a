"""The report of a run on text: bits per byte with tokenizers of several kinds."""

import json
import math
import re

import numpy as np
import pytest
from conftest import make_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape.data import TextCorpus, tokenize_corpus, train_tokenizer
from tape.files import write_text
from tape.training.report import scored_windows, write_report

# Texts that differ in their bytes per token; some tokens end within a character.
UNEVEN = ["naïve café, 日本語のテキスト。" * 30, "plain words of one byte a letter " * 40]


def words():
    """A token per word; spaces have none."""
    found = dict.fromkeys(re.findall(r"\w+|[^\w\s]+", " ".join(UNEVEN)))
    vocabulary = {token: n for n, token in enumerate(["[UNK]", "[SEP]", *found])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]")


@pytest.mark.parametrize("kind", ["byte_level", "words"])
def test_bits_per_byte_are_of_the_bytes_of_the_scored_tokens(tmp_path, kind):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in UNEVEN))
    (tmp_path / "other.txt").write_text("a")
    corpus = TextCorpus(path, validation=tmp_path / "other.txt")
    tokenizer = words() if kind == "words" else train_tokenizer(corpus, 300, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    model = make_model("nope", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    write_text(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
    text = write_report(
        tmp_path, model, tokenizer, stream, 16, 40, 0, np.array(stream.tokens)[None]
    )
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    rows = [*report["perplexity"], *report["ngrams"]["models"]]
    if kind == "words":
        assert {row["bits_per_byte"] for row in rows} == {None} and text.count("| - |") == len(rows)
        return
    windows = scored_windows(model, stream, 16, 40)[16]
    scored = np.concatenate([np.arange(window.first, window.stop) for window in windows])
    tokens = tokenizer.convert_ids_to_tokens(stream.tokens[scored].tolist())
    size = sum(len(token) for token in tokens if token != tokenizer.eos_token)  # a letter per byte
    whole = len("".join(UNEVEN).encode())
    assert abs(size / len(scored) / (whole / len(stream)) - 1) > 0.02  # the text is uneven
    for row in rows:
        expected = math.log2(row["perplexity"]) * len(scored) / size
        assert row["bits_per_byte"] == pytest.approx(expected, rel=1e-9)
