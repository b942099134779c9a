"""The report of a run on text: bits per byte with tokenizers of several kinds."""

import json
import math
import re

import numpy as np
import pytest
from conftest import make_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tape.data import TextCorpus, tokenize_corpus, train_tokenizer
from tape.files import write_text
from tape.training.report import scored_windows, write_report

# Texts that differ in their bytes per token; some tokens end within a character.
UNEVEN = ["naïve café, 日本語のテキスト。" * 30, "plain words of one byte a letter " * 40]


def sentencepiece(texts):
    """As Llama 2's: "▁" for a space, one before each text, and tokens of single bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<unk>", "<s>", "</s>", *single],
        limit_alphabet=30,
        max_token_length=6,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Single bytes are no special tokens.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), unk_token="<unk>", eos_token="</s>"
    )


def words(texts):
    """A token per word; spaces have none."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[SEP]"]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]")


def bytes_of(tokenizer, ids):
    """The bytes of tokens one by one: from the alphabet of a byte-level vocabulary, or from the
    names of SentencePiece."""
    alphabet = {character: byte for byte, character in bytes_to_unicode().items()}
    found = b""
    for token in tokenizer.convert_ids_to_tokens(ids):
        if token in tokenizer.all_special_tokens:
            continue
        if tokenizer.unk_token is None:
            found += bytes(alphabet[character] for character in token)
        elif re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            found += bytes([int(token[3:5], 16)])
        else:
            found += token.replace("▁", " ").encode()
    return found


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "words"])
def test_bits_per_byte_are_of_the_bytes_of_the_scored_tokens(tmp_path, kind):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in UNEVEN))
    (tmp_path / "other.txt").write_text("a")
    corpus = TextCorpus(path, validation=tmp_path / "other.txt")
    kinds = {
        "byte_level": lambda texts: train_tokenizer(corpus, 300, tmp_path),
        "sentencepiece": sentencepiece,
        "words": words,
    }
    tokenizer = kinds[kind](UNEVEN)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    model = make_model("nope", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    write_text(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
    seen = np.array(stream.tokens)[None]
    text = write_report(tmp_path, model, tokenizer, stream, 16, 40, 0, seen)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    rows = [*report["perplexity"], *report["ngrams"]["models"]]
    if kind == "words":
        assert {row["bits_per_byte"] for row in rows} == {None} and text.count("| - |") == len(rows)
        return
    windows = scored_windows(model, stream, 16, 40)[16]
    scored = np.concatenate([np.arange(window.first, window.stop) for window in windows])
    size = len(bytes_of(tokenizer, stream.tokens[scored].tolist()))
    if kind == "sentencepiece":  # the space before a text is not in the text
        begins = [-1, *np.flatnonzero(stream.tokens == tokenizer.eos_token_id)]
        size -= np.isin(scored - 1, begins).sum()
    whole = len("".join(UNEVEN).encode())
    assert abs(size / len(scored) / (whole / len(stream)) - 1) > 0.02  # the text is uneven
    for row in rows:
        expected = math.log2(row["perplexity"]) * len(scored) / size
        assert row["bits_per_byte"] == pytest.approx(expected, rel=1e-9)
