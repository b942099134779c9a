"""Tokenizers, tokens and blocks: what is cached, what is packed, what is made again; and models
that count tokens, against a literal loop."""

import hashlib
import json
import random
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from conftest import refuses
from test_data import DOCUMENTS, bad, lines_of
from tokenizers import ByteLevelBPETokenizer, Tokenizer, pre_tokenizers

from tape.core.files import new_folder, write_text
from tape.data import TextCorpus, tokenize_corpus, train_tokenizer
from tape.data import blocks as blocks_module
from tape.data.blocks import TokenBlocks, TokenStream, TrainingOrder
from tape.data.ngrams import NGrams
from tape.data.tokenizer import load_tokenizer
from tape.evaluation.windows import Window
from tape.training.report import counted


@pytest.fixture
def corpus(tmp_path):
    return TextCorpus(bad(tmp_path, "corpus.jsonl", lines_of(DOCUMENTS)))


def test_tokenizer_is_trained_once_and_round_trips(tmp_path, corpus, monkeypatch):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    text = "naïve\n\tdef f(x): return '→' # 日本"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert None is not tokenizer.eos_token_id != tokenizer.pad_token_id
    monkeypatch.setattr("tape.data.tokenizer._train", None)
    assert train_tokenizer(corpus, 280, tmp_path).get_vocab() == tokenizer.get_vocab()


def plain_tokenizer(corpus, vocab_size):
    tokenizer, texts = ByteLevelBPETokenizer(), corpus.documents("train")
    special = ["<|endoftext|>", "<|padding|>"]
    tokenizer.train_from_iterator(texts, vocab_size, 0, show_progress=False, special_tokens=special)
    return Tokenizer.from_str(tokenizer.to_str())


def tokenizer_folder(corpus, vocab_size, cache):
    key = hashlib.sha256(f"{corpus.fingerprint()} bpe {vocab_size}".encode()).hexdigest()[:16]
    return cache / "tokenizers" / key


def one_line(folder, letters):
    drawn = random.Random(0).choices(letters, k=5000)
    return TextCorpus(bad(folder, "line.txt", "".join(["A", *drawn])))


@pytest.mark.parametrize("letters", ["ACGT", "日本語中文", " \t"], ids=["dna", "chinese", "spaces"])
def test_pieces_of_a_text_without_spaces_are_bounded(letters, tmp_path):
    corpus = one_line(tmp_path, letters)
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    (text,) = corpus.documents("train")
    bounded = tokenizer.backend_tokenizer.pre_tokenizer
    assert max(end - start for _, (start, end) in bounded.pre_tokenize_str(text)) == 256
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    folder = tokenizer_folder(corpus, 280, tmp_path)
    again = train_tokenizer(corpus, 280, tmp_path)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(list(folder.parent.iterdir())) == 1
    # One long word changes no other.
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [*" \n\ta中7'-", "  ", "word", "'s", "'ll", "e\u0301", "\u3000"]
    for seed in range(30):
        text = "".join(random.Random(seed).choices(parts, k=40))
        assert bounded.pre_tokenize_str(text) == plain.pre_tokenize_str(text)


def test_tokenizers_are_what_they_always_were(corpus, tmp_path):
    tokenizer = train_tokenizer(corpus, 300, tmp_path).backend_tokenizer
    found, expected = (json.loads(of.to_str()) for of in (tokenizer, plain_tokenizer(corpus, 300)))
    for part in ("normalizer", "pre_tokenizer", "model", "decoder"):
        assert found[part] == expected[part]
    assert tokenizer_folder(corpus, 300, tmp_path).is_dir()


def test_a_damaged_tokenizer_is_trained_again(tmp_path, corpus, caplog):
    expected = train_tokenizer(corpus, 300, tmp_path)
    damages = {"tokenizer.json": '{"model": {"type": "BPE"}}', "tokenizer_config.json": "{}"}
    for name, content in damages.items():
        (file,) = (tmp_path / "tokenizers").glob(f"*/{name}")
        file.write_text(content)
        again = train_tokenizer(corpus, 300, tmp_path)
        assert again.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
        assert again.eos_token == expected.eos_token
        assert f"{file.parent} is damaged" in caplog.text
        caplog.clear()


def test_what_cannot_be_tokenized(tmp_path, corpus):
    refuses(
        "too small for vocab_size=100: give vocab_size=2", train_tokenizer, corpus, 100, tmp_path
    )
    with pytest.raises(ValueError, match=r"small for vocab_size=9000: give vocab_size=\d+, all"):
        train_tokenizer(corpus, 9000, tmp_path)
    assert not list((tmp_path / "tokenizers").glob("*"))
    refuses(
        r"neither a folder with a tokenizer nor the name of one",
        load_tokenizer,
        str(tmp_path / "none"),
    )
    write_text(tmp_path / "damaged" / "tokenizer.json", '{"model": {"type": "BPE"}}')
    refuses(r"tokenizer\.json is damaged \(KeyError", load_tokenizer, str(tmp_path / "damaged"))
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    lone = TextCorpus(bad(tmp_path, "lone.jsonl", lines_of(["alone"] * 3)))
    with pytest.raises(ValueError, match=r"no documents; empty files have none: give more doc"):
        tokenize_corpus(lone, "validation", tokenizer, tmp_path)
    broken = TextCorpus(bad(tmp_path, "broken.jsonl", lines_of(DOCUMENTS) + "{broken\n"))
    refuses("line 61: not JSON", tokenize_corpus, broken, "train", tokenizer, tmp_path)
    assert not list((tmp_path / "tokens").iterdir())  # nothing half-written


def test_packing_loses_nothing(tmp_path):
    lines = lines_of([*DOCUMENTS, "a <|endoftext|> b"])  # the name of a token is text
    held_out = bad(tmp_path, "held.txt", "held out")
    corpus = TextCorpus(bad(tmp_path, "a.jsonl", lines), validation=held_out)
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    joined = "".join(text + tokenizer.eos_token for text in corpus.documents("train"))
    assert tokenizer.decode(stream.tokens) == joined
    assert stream.bytes == sum(len(text.encode()) for text in corpus.documents("train"))
    assert stream.documents == list(stream.tokens).count(tokenizer.eos_token_id) == 61
    for length in (7, 64):
        blocks = TokenBlocks(stream, length)
        packed = np.concatenate([block["input_ids"] for block in blocks])
        assert len(packed) == len(stream) // length * length
        assert (packed == stream.tokens[: len(packed)]).all()
        assert all((block["labels"] == block["input_ids"]).all() for block in blocks)


@pytest.fixture
def stream():
    return TokenStream(np.arange(48), documents=1, bytes=48, fingerprint="of the text")


def test_a_limited_set_of_blocks_is_spread_over_the_stream(stream):
    few = TokenBlocks(stream, 4, limit=5)
    assert [int(block["input_ids"][0]) // 4 for block in few] == [0, 2, 5, 8, 11]
    refuses("48 tokens are fewer than one block of length=49", TokenBlocks, stream, 49)


def test_the_order_of_training_is_the_same_in_every_numpy(stream):
    order = TrainingOrder(TokenBlocks(stream, 4), total=24, seed=3)
    numbers = [int(order[n]["input_ids"][0]) // 4 for n in range(24)]
    assert numbers[:12] == [1, 9, 0, 8, 10, 11, 2, 4, 3, 5, 7, 6]
    assert numbers[12:] == [1, 3, 9, 5, 6, 0, 8, 10, 11, 7, 2, 4]
    # Written down: runs go on with this order alone.
    assert order.fingerprint == "of the text, permuted by RandomState"


def test_tokens_are_cached_by_content(tmp_path, corpus, monkeypatch):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    first = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    monkeypatch.setattr(blocks_module, "_write_stream", None)
    assert (first.tokens == tokenize_corpus(corpus, "train", tokenizer, tmp_path).tokens).all()
    with pytest.raises(TypeError, match="not callable"):  # tokenized again
        tokenize_corpus(corpus, "train", train_tokenizer(corpus, 300, tmp_path), tmp_path)


def test_damaged_tokens_are_made_again(tmp_path, corpus, caplog):
    tokenizer = train_tokenizer(corpus, 300, tmp_path)
    whole = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    folder, expected = tmp_path / "tokens" / whole.fingerprint, whole.tokens.tolist()
    for name, harm in (
        ("tokens.bin", lambda path: path.write_bytes(path.read_bytes()[:-200])),
        ("tokens.bin", lambda path: path.write_bytes(path.read_bytes()[:-2] + b"\xff\xff")),
        ("tokens.bin", Path.unlink),
        ("facts.json", lambda path: path.write_text("5")),
        ("facts.json", lambda path: path.write_text(path.read_text().replace('"bytes"', '"x"'))),
        ("facts.json", lambda path: path.write_text(path.read_text().replace("uint16", "float9"))),
    ):
        harm(folder / name)
        again = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
        assert again.tokens.tolist() == expected
        assert (again.documents, again.bytes) == (whole.documents, whole.bytes)
        assert f"{folder} is damaged" in caplog.text and "created again" in caplog.text
        assert [*folder.parent.iterdir()] == [folder]
        caplog.clear()


def test_folders_and_files_appear_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), new_folder(tmp_path / "a") as work:
        (work / "half").write_text("x")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    for _ in range(2):  # the second one finds that another process was faster
        with new_folder(tmp_path / "a") as work:
            (work / "whole").write_text("x")
    write_text(tmp_path / "b", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


V = 4


def count(blocks, k):
    return Counter(tuple(b[i : i + k]) for b in blocks for i in range(len(b) - k + 1))


def literal(blocks, gram, order, k=None):
    k = order if k is None else k
    if k == 0:
        return Fraction(1, V)
    gram = tuple(gram)[len(gram) - k :]
    counts = count(blocks, k)
    if k < order:
        counts = Counter(longer[1:] for longer in count(blocks, k + 1))
    once, twice = ([*counts.values()].count(n) for n in (1, 2))
    discount = Fraction(once, once + 2 * twice) if once else Fraction(1, 2)
    same = [n for other, n in counts.items() if other[:-1] == gram[:-1]]
    lower = literal(blocks, gram, order, k - 1)
    if not same:
        return lower
    kept = max(counts[gram] - discount, 0)
    return (kept + discount * len(same) * lower) / sum(same)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_it_equals_the_definition(order):
    blocks = np.random.default_rng(0).choice(V - 1, (3, 11), p=[0.6, 0.3, 0.1]).astype(np.uint16)
    model = NGrams(blocks, V)
    contexts = [*product(range(V), repeat=order - 1)][:: 1 if order < 5 else 5]
    grams = np.array([[*context, token] for context in contexts for token in range(V)])
    found = model.probabilities(grams, order)
    expected = [float(literal(blocks.tolist(), gram.tolist(), order)) for gram in grams]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(found.reshape(-1, V).sum(1), 1, rtol=1e-12)


def test_the_report_counts_the_blocks_that_the_run_saw_and_scores_what_the_windows_score():
    text = np.random.default_rng(0).integers(0, V, 70).astype(np.uint16)
    stream = TokenStream(text, 1, 70, "")
    order = TrainingOrder(TokenBlocks(stream, 7), 4, seed=0)
    seen = order.seen(1000)
    drawn = [order[n]["input_ids"].tolist() for n in range(4)]
    assert sorted(seen.tolist()) == sorted(drawn)
    assert order.seen(15).tolist() == sorted(drawn[:2], key=seen.tolist().index)
    assert len(TrainingOrder(TokenBlocks(stream, 7), 99, seed=0).seen(1000)) == 10

    windows = [Window(0, 3, 7), Window(20, 23, 27)]
    found = counted(seen, V, stream, windows)
    assert [*found] == ["bigram", "trigram"]  # 3 tokens of context are too few for the 5-gram
    for name, order in (("bigram", 2), ("trigram", 3)):
        grams = [text[n - order + 1 : n + 1].tolist() for n in (*range(3, 7), *range(23, 27))]
        each = [float(literal(seen.tolist(), gram, order)) for gram in grams]
        assert found[name].nll == pytest.approx(-np.log(each).mean(), abs=1e-12)
        assert found[name].tokens == 8
