"""Vocabularies of other people's tokenizers: unknown tokens, ids with gaps, and bytes, of which the
report of a run has bits per byte."""

import argparse
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_model, refuses
from pieces import trained_pieces
from scrolls_data import write_task
from shards import write_shards
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from scrolls.examples import Budget, Prompts, tokenize_split
from scrolls.tasks import TASKS
from tape.core.files import write_text
from tape.data import C4Corpus, StreamedBlocks, TextCorpus, tokenize_corpus, train_tokenizer
from tape.data.blocks import TokenStream, encode, tokenizer_fingerprint
from tape.data.text_bytes import text_bytes
from tape.data.tokenizer import load_tokenizer
from tape.evaluation.texts import open_text
from tape.model.configuration import TapeConfig
from tape.model.tokenizer import read_tokenizer
from tape.training.build import adapt_model, build_model
from tape.training.report import scored_windows, write_report

UNKNOWN, END = "[UNK]", "[END]"
IDS = {token: n for n, token in enumerate([UNKNOWN, END, *"abcdefgh"])}
MODELS = {
    "words": models.WordLevel(IDS, unk_token=UNKNOWN),
    "pieces": models.WordPiece(IDS, unk_token=UNKNOWN),
    "pairs": models.BPE(IDS, [], unk_token=UNKNOWN),
    "unigram": models.Unigram([(token, -float(n)) for token, n in IDS.items()], 0),
}


def tokenizer_of(model, end=END):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)


def corpus_of(folder, words, known):
    """A training and a validation file of `words` words, `known` of them letters."""
    text = " ".join("abcdefgh"[n % 8] if n < known else "?" for n in range(words))
    for name in ("train", "validation"):
        (folder / f"{name}.txt").write_text(text)
    return TextCorpus(folder / "train.txt", validation=folder / "validation.txt")


@pytest.mark.parametrize("end", [END, UNKNOWN])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_unknown_tokens_are_counted(model, end, tmp_path, caplog):
    """Also if the tokens come from the cache, and if documents end with the unknown token."""
    tokenizer = tokenizer_of(model, end)
    message = r"^text \(train\): 20.0% of the tokens are unknown \('\[UNK\]'\): at most 10%"
    for _ in range(2):
        tokenize_corpus(corpus_of(tmp_path, 200, 200), "train", tokenizer, tmp_path)
        assert not caplog.text
        tokenize_corpus(corpus_of(tmp_path, 200, 190), "train", tokenizer, tmp_path)
        assert "text (train): 5.0% of the tokens are unknown ('[UNK]')" in caplog.text
        caplog.clear()
        with pytest.raises(ValueError, match=message):
            tokenize_corpus(corpus_of(tmp_path, 200, 160), "train", tokenizer, tmp_path)


def test_texts_of_unknown_tokens_are_refused_wherever_they_are_read(tmp_path):
    tokenizer = tokenizer_of(MODELS["words"])
    tokenizer.save_pretrained(tmp_path / "model")
    corpus_of(tmp_path, 200, 0)
    streamed = C4Corpus(write_shards(tmp_path / "en", train=(1,), documents=70))
    write_task(tmp_path, "qasper")
    prompts = Prompts(tokenizer, TASKS["qasper"], Budget(prompt=60, answer=8))
    for read in (
        lambda: open_text("text", [str(tmp_path / "train.txt")], tmp_path / "model", tmp_path),
        lambda: next(iter(StreamedBlocks(streamed, tokenizer, 24, tmp_path))),
        lambda: tokenize_split(prompts, "train", tmp_path, tmp_path),
    ):
        refuses(r"of the tokens are unknown \('\[UNK\]'\): at most", read)


@pytest.mark.parametrize("largest", [9, 70_000])
def test_a_vocabulary_may_have_gaps(largest, tmp_path):
    tokenizer = tokenizer_of(models.WordLevel({UNKNOWN: 0, END: 1, "a": 5, "b": largest}, UNKNOWN))
    (tmp_path / "text.txt").write_text("a b " * 50)
    corpus = TextCorpus(tmp_path / "text.txt", validation_fraction=0.5)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    assert set(stream.tokens.tolist()) == {1, 5, largest}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = TapeConfig(**small, num_attention_heads=1, position={"name": "rope"})
    model = build_model(config, {}, tokenizer)
    assert model.config.vocab_size == largest + 1
    ids = torch.tensor(stream.tokens[None, :6].astype(int))
    assert model(ids, labels=ids).loss.isfinite()
    with pytest.raises(ValueError, match=f"ids up to {largest:,}.*model.vocab_size={largest:,}"):
        build_model(config, {"vocab_size": largest}, tokenizer)
    config.vocab_size = largest
    with pytest.raises(ValueError, match=f"ids up to {largest:,}.*base_model=base {largest:,}"):
        adapt_model("base", config, tokenizer)


def saved(folder, tokenizer, kind):
    """The folder of a tokenizer of this class, with all its words in tokenizer.json."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": kind, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]  # special, as from this trainer


def learned(model, text, pre_tokenizer, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizer, normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 9, trainer)
    return tokenizer


WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPACED = pre_tokenizers.ByteLevel(add_prefix_space=True)


SENTENCEPIECE = normalizers.Sequence(
    [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
)
# Parts of a tokenizer.json, and classes that transformers builds with other ones.
LABELS = {
    "llama-2": (models.BPE(byte_fallback=True), None, SENTENCEPIECE, "LlamaTokenizer"),
    "smollm": (models.BPE(), WORDS, None, "Qwen2Tokenizer"),
    "deepseek": (models.BPE(), WORDS, None, "LlamaTokenizerFast"),
    "digits": (
        models.BPE(),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), WORDS]),
        None,
        "GPT2Tokenizer",
    ),
}


def paragraphs(source):
    return [part for part in source.split("\n\n") if part]


@pytest.mark.parametrize("kind", LABELS)
def test_tokens_are_those_of_the_file(kind, tmp_path):
    """transformers builds some classes anew, with parts that are not those of tokenizer.json."""
    text = Path(argparse.__file__).read_text()
    model, pre_tokenizer, normalizer, label = LABELS[kind]
    made = learned(model, text[:2000], pre_tokenizer, normalizer)
    folder = saved(tmp_path / kind, made, label)
    write_text(folder / "config.json", json.dumps({"model_type": "llama"}))
    tokenizer = read_tokenizer(folder)
    texts = [
        *paragraphs(text),
        "    return x + 1\n",
        "\t\tx  ",
        "\r\n1234",
        "gr\u00f6\u00dfe e\u0301 \u2603",
    ]
    texts += ["", " ", "a</s>b </s> c", "\U0001f680"]
    for text in texts:
        assert tokenizer(text)["input_ids"] == made.encode(text).ids, text
    # Also for programs that read what is saved by a run or exported.
    tokenizer.save_pretrained(tmp_path / "again")
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_settings_of_a_tokenizer(tmp_path):
    """BOS and EOS are added as told, and nothing beside tokenizer.json changes its tokens."""
    made = learned(models.BPE(), "12345", WORDS)
    bare = made.encode("12").ids
    folder = saved(tmp_path / "model", made, "LlamaTokenizerFast")
    file, template = folder / "tokenizer_config.json", processors.TemplateProcessing
    settings = json.loads(file.read_text())
    bos = {"single": "<s> $A", "pair": "<s> $A $B", "special_tokens": [("<s>", 1)]}
    for given, of_file, before, after in (
        ({}, None, [], []),
        ({"add_bos_token": True}, None, [1], []),
        ({"add_bos_token": False}, bos, [], []),
        ({"add_eos_token": True}, bos, [1], [2]),
        ({"add_bos_token": None}, bos, [1], []),
    ):
        made.post_processor = template(**of_file) if of_file else processors.ByteLevel()
        made.save(str(folder / "tokenizer.json"))
        file.write_text(json.dumps(settings | {"bos_token": "<s>"} | given))
        tokenizer = read_tokenizer(folder)
        assert tokenizer("12")["input_ids"] == before + bare + after, given
        assert tokenizer.eos_token_id == 2
    changed = AddedToken("2", special=False).__getstate__()
    file.write_text(json.dumps(settings | {"added_tokens_decoder": {"600": changed}}))
    refuses(r"changes the tokens of \S+tokenizer.json, as in", read_tokenizer, folder)


@pytest.mark.parametrize("split", [WORDS, None])
@pytest.mark.parametrize("role", ["pad_token", "eos_token", "extra_special_tokens"])
def test_a_token_of_plain_text_may_have_a_role(role, split, tmp_path):
    """As padding is "!" in some checkpoints. It is no special token then, but others are."""
    made = learned(models.BPE(), "other then. " * 9, split)
    folder = saved(tmp_path / "model", made, "PreTrainedTokenizerFast")
    file, text = folder / "tokenizer_config.json", "other then. the"
    given = {role: ["the"] if role.startswith("extra") else "the", "bos_token": "<new>"}
    file.write_text(json.dumps(json.loads(file.read_text()) | given))
    for _ in range(2):
        tokenizer = read_tokenizer(folder)
        ids = tokenizer(text)["input_ids"]
        assert ids == made.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == made.decode(ids)
        the, new = tokenizer.convert_tokens_to_ids(["the", "<new>"])
        assert the == made.token_to_id("the") and tokenizer("<new>")["input_ids"] == [new]
        assert role.startswith("extra") or getattr(tokenizer, f"{role}_id") == the
        tokenizer.save_pretrained(folder := tmp_path / "again")


@pytest.mark.parametrize("given", [{}, {"add_dummy_prefix": False}, {"byte_fallback": False}])
def test_a_tokenizer_of_sentencepiece_alone_makes_its_tokens(given, tmp_path):
    pieces = trained_pieces(tmp_path / "model", **given)
    for settings, before in (({}, [1]), ({"add_bos_token": False}, [])):
        write_text(tmp_path / "model" / "tokenizer_config.json", json.dumps(settings))
        tokenizer = load_tokenizer(str(tmp_path / "model"))
        ids = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
        assert ids == (1, 2, 0)
        source = Path(json.__file__).read_text() + Path(json.decoder.__file__).read_text()
        letters = random.Random(0)
        texts = ["".join(letters.choices(" \t\nab\u2581=-#0\u00e9", k=30)) for _ in range(300)]
        for text in [*paragraphs(source), *texts, "    return x\n", " ", "\r\n", "\u2603 e\u0301"]:
            assert tokenizer(text)["input_ids"] == before + pieces.encode(text), text
    assert tokenizer.decode(pieces.encode("    x = 12")) == "    x = 12"


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("unigram", {}, "a model of another type"),
        ("bpe", {"normalization_rule_name": "nmt_nfkc"}, "a map of characters .nmt_nfkc"),
        ("bpe", {"remove_extra_whitespaces": True}, "a removal of spaces"),
        ("bpe", {"user_defined_symbols": ["<x>"]}, "user-defined or unused pieces"),
    ],
)
def test_other_models_of_sentencepiece_are_refused(kind, given, reason, tmp_path, monkeypatch):
    trained_pieces(tmp_path / "model", kind, **given)
    refuses(
        rf"tokenizer\.model has .*{reason}.*: give the tokenizer\.json of the same model",
        read_tokenizer,
        tmp_path / "model",
    )
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    refuses("needs sentencepiece: EXTRAS=sentencepiece bash", read_tokenizer, tmp_path / "model")


def test_the_first_call_does_not_change_the_fingerprint(tmp_path):
    made = learned(models.BPE(), "don't stop", WORDS)
    made.enable_truncation(5)
    made.enable_padding()
    tokenizer = load_tokenizer(str(saved(tmp_path / "cut", made, "PreTrainedTokenizerFast")))
    before = tokenizer_fingerprint(tokenizer)
    assert len(tokenizer("don't stop" * 9)["input_ids"]) > 5
    assert tokenizer_fingerprint(tokenizer) == before


SPACES = normalizers.Replace(" ", "\u2581")
REMOVED = pre_tokenizers.Split(" ", "removed")
METASPACE = pre_tokenizers.Metaspace(prepend_scheme="first")
NORMALIZERS = [normalizers.NFC(), normalizers.NFKC(), normalizers.Lowercase()]
NORMALIZERS += [normalizers.Strip(), normalizers.Replace(Regex(" +"), " ")]


def bytes_of(tokenizer, text):
    (tokens,) = encode(tokenizer, [text])
    stream = TokenStream(tokens, 1, len(text.encode()), "")
    return text_bytes(tokenizer, stream, np.arange(len(tokens)))


def test_bytes_are_those_of_the_text_or_unknown():
    """Also those of a line break and of letters for which there are bytes alone."""
    text = "An old\n text  of (12) e\u0301 \ufb01\u00e9\u4e2d "
    for level, normalizer, pre_tokenizer, is_known in (
        *((True, normalizer, WORDS, False) for normalizer in NORMALIZERS),
        *((False, normalizers.Sequence([each, SPACES]), None, False) for each in NORMALIZERS),
        (True, None, WORDS, True),
        (True, None, SPACED, True),
        (True, normalizers.ByteLevel(), None, True),
        (True, SPACES, WORDS, False),
        (True, None, pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), SPACED]), False),
        (True, None, pre_tokenizers.Sequence([REMOVED, WORDS]), False),
        (False, SPACES, None, True),
        (False, normalizers.Sequence([normalizers.Prepend("\u2581"), SPACES]), None, True),
        (False, normalizers.Sequence([normalizers.Prepend("x"), SPACES]), None, False),
        (False, normalizers.Replace(" ", "\u2581\u2581"), None, False),
        (False, None, METASPACE, True),
        (False, None, pre_tokenizers.Sequence([REMOVED, METASPACE]), False),
    ):
        model = models.BPE(byte_fallback=not level, unk_token=None if level else "<unk>")
        made = learned(model, "An old text  of 12 words", pre_tokenizer, normalizer)
        made.decoder = decoders.ByteLevel() if level else decoders.ByteFallback()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
        expected = len(text.encode()) if is_known else None
        assert bytes_of(tokenizer, text) == expected, (normalizer, pre_tokenizer)


def test_bytes_of_spaces_and_of_unknown_tokens():
    for pieces, text, expected in (
        (["\u2581", *"abc1\n"], "a b", 3),
        (["\u2581", *"abc1\n"], "a d", None),
        ([*BYTE_TOKENS, "\u2581", *"abc"], "a b", 3),
        ([*BYTE_TOKENS, *"abc"], "a b", None),  # the sign of a space would be three bytes
    ):
        ids = {token: n for n, token in enumerate(["<unk>", "</s>", *pieces])}
        made = Tokenizer(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True))
        made.normalizer, special = SPACES, {"eos_token": "</s>", "unk_token": "<unk>"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **special)
        assert bytes_of(tokenizer, text) == expected, pieces


# Texts that differ in their bytes per token; some tokens end within a character.
UNEVEN = ["naïve café, 日本語のテキスト。" * 30, "plain words of one byte a letter " * 40]


def words(corpus, size, cache):
    """A tokenizer with a token per word; spaces have none."""
    vocabulary = {token: n for n, token in enumerate(["[UNK]", "[SEP]", *UNEVEN[1].split()[:7]])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="[SEP]")


@pytest.mark.parametrize("make", [train_tokenizer, words])
def test_bits_per_byte_are_of_the_bytes_of_the_scored_tokens(tmp_path, make):
    texts = UNEVEN if make is train_tokenizer else UNEVEN[1:]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "other.txt").write_text("a")
    corpus = TextCorpus(path, validation=tmp_path / "other.txt")
    tokenizer = make(corpus, 300, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    model = make_model("nope", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    write_text(tmp_path / "metrics.jsonl", json.dumps({"step": 1, "loss": 1.0}) + "\n")
    text = write_report(tmp_path, model, tokenizer, stream, 16, 40, np.array(stream.tokens)[None])
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    rows = [*report["perplexity"], *report["ngrams"]["models"]]
    if make is words:
        assert {row["bits_per_byte"] for row in rows} == {None} and text.count("| - |") == len(rows)
        return
    short = make_model({"name": "learned", "length": 40})
    assert [*scored_windows(short, stream, 16, 40)] == [16, 32]
    windows = scored_windows(model, stream, 16, 40)[16]
    scored = np.concatenate([np.arange(window.first, window.stop) for window in windows])
    tokens = tokenizer.convert_ids_to_tokens(stream.tokens[scored].tolist())
    size = sum(len(token) for token in tokens if token != tokenizer.eos_token)  # a letter per byte
    whole = len("".join(UNEVEN).encode())
    assert abs(size / len(scored) / (whole / len(stream)) - 1) > 0.02  # the text is uneven
    for row in rows:
        expected = math.log2(row["perplexity"]) * len(scored) / size
        assert row["bits_per_byte"] == pytest.approx(expected, rel=1e-9)
