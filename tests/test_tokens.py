"""Tokenizers, tokens and blocks: what is cached, what is packed, what is made again."""

import hashlib
import random

import numpy as np
import pytest
from test_data import DOCUMENTS, bad, lines_of
from tokenizers import pre_tokenizers

from tape.data import (
    TextCorpus,
    TokenBlocks,
    TokenStream,
    TrainingOrder,
    tokenize_corpus,
    train_tokenizer,
)
from tape.data import blocks as blocks_module
from tape.data.blocks import tokenizer_fingerprint
from tape.data.tokenizer import load_tokenizer
from tape.files import new_folder, write_text


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(lines_of(DOCUMENTS))
    return path


@pytest.fixture
def corpus(jsonl):
    return TextCorpus(jsonl)


# ---- tokenizers


def tokenizer_folder(corpus, vocab_size, cache):
    """Where tokenizers have always been."""
    key = hashlib.sha256(f"{corpus.fingerprint()} bpe {vocab_size}".encode()).hexdigest()[:16]
    return cache / "tokenizers" / key


def test_tokenizers_are_trained_once_and_what_they_always_were(tmp_path, corpus, monkeypatch):
    """Written down: another one would silently be another text."""
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    text = "naïve\n\tdef f(x): return '→' # 日本"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert None is not tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer_fingerprint(tokenizer)[:16] == "a4df8656f4871206"
    assert tokenizer_folder(corpus, 280, tmp_path).is_dir()
    monkeypatch.setattr("tape.data.tokenizer._train", None)
    assert train_tokenizer(corpus, 280, tmp_path).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("letters", ["ACGT", "日本語中文", " \t"], ids=["dna", "chinese", "spaces"])
def test_pieces_of_a_text_without_spaces_are_bounded(letters, tmp_path, corpus):
    """Unless a tokenizer of an earlier version is there."""
    line = bad(tmp_path, "line.txt", f"A{''.join(random.Random(0).choices(letters, k=5000))}")
    whole = TextCorpus(line)
    tokenizer = train_tokenizer(whole, 280, tmp_path).backend_tokenizer
    (text,) = whole.documents("train")
    bounded, words = tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert max(end - start for _, (start, end) in bounded.pre_tokenize_str(text)) == 256
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert train_tokenizer(whole, 280, tmp_path).backend_tokenizer.to_str() == tokenizer.to_str()
    # One long word changes no other.
    parts = [*" \n\ta中7'-", "  ", "word", "'s", "'ll", "e\u0301", "\u3000"]
    for seed in range(30):
        text = "".join(random.Random(seed).choices(parts, k=40))
        assert bounded.pre_tokenize_str(text) == words.pre_tokenize_str(text)
    before = train_tokenizer(corpus, 280, tmp_path)
    assert not tokenizer_folder(whole, 280, tmp_path).exists()  # those there have no bound
    before.save_pretrained(tokenizer_folder(whole, 280, tmp_path))
    again = train_tokenizer(whole, 280, tmp_path).backend_tokenizer
    assert again.to_str() == before.backend_tokenizer.to_str() != tokenizer.to_str()


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", '{"model": {"type": "BPE"}}'), ("tokenizer_config.json", "{}")],
)
def test_a_damaged_tokenizer_is_trained_again(tmp_path, corpus, caplog, name, content):
    expected = train_tokenizer(corpus, 300, tmp_path)
    (file,) = (tmp_path / "tokenizers").glob(f"*/{name}")
    file.write_text(content)
    again = train_tokenizer(corpus, 300, tmp_path)
    assert again.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert again.eos_token == expected.eos_token
    assert f"{file.parent} is damaged" in caplog.text


def test_what_cannot_be_tokenized(tmp_path, jsonl):
    def refused(message, work, *given):
        with pytest.raises(ValueError, match=message):
            work(*given)

    message = r"too small for vocab_size=9000: give vocab_size=\d+, all"
    refused(message, train_tokenizer, TextCorpus(jsonl), 9000, tmp_path)
    assert not list((tmp_path / "tokenizers").glob("*"))
    write_text(tmp_path / "damaged" / "tokenizer.json", '{"model": {"type": "BPE"}}')
    for name, error in (("none", "OSError"), ("damaged", "KeyError")):
        message = rf"{name}' cannot be loaded from a folder or the hub \({error}"
        refused(message, load_tokenizer, str(tmp_path / name))
    tokenizer = train_tokenizer(TextCorpus(jsonl), 280, tmp_path)
    lone = TextCorpus(bad(tmp_path, "lone.jsonl", lines_of(["alone"])))
    message = r"split of text has no documents; give data\.validation=FILE, more doc"
    refused(message, tokenize_corpus, lone, "validation", tokenizer, tmp_path)
    jsonl.write_text(jsonl.read_text() + "{broken\n")
    message = "line 61: not JSON"
    refused(message, tokenize_corpus, TextCorpus(jsonl), "train", tokenizer, tmp_path)
    assert not list((tmp_path / "tokens").iterdir())  # nothing half-written


# ---- tokens and blocks


def test_packing_loses_nothing(tmp_path, jsonl):
    jsonl.write_text(lines_of([*DOCUMENTS, "a <|endoftext|> b"]))  # its name is text
    held_out = bad(tmp_path, "held.txt", "held out")
    corpus = TextCorpus(jsonl, validation=held_out)
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    joined = "".join(text + tokenizer.eos_token for text in corpus.documents("train"))
    assert tokenizer.decode(stream.tokens) == joined
    assert stream.documents == list(stream.tokens).count(tokenizer.eos_token_id) == 61
    for length in (7, 64):
        blocks = TokenBlocks(stream, length)
        packed = np.concatenate([block["input_ids"] for block in blocks])
        assert len(packed) == len(stream) // length * length
        assert (packed == stream.tokens[: len(packed)]).all()
        assert all((block["labels"] == block["input_ids"]).all() for block in blocks)


@pytest.fixture
def stream():
    return TokenStream(np.arange(48), documents=1, fingerprint="of the text")


def test_a_limited_set_of_blocks_is_spread_over_the_stream(stream):
    few = TokenBlocks(stream, 4, limit=5)
    assert [int(block["input_ids"][0]) // 4 for block in few] == [0, 2, 5, 8, 11]
    with pytest.raises(ValueError, match="48 tokens are fewer than one block of length=49"):
        TokenBlocks(stream, 49)


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


DAMAGES = {
    "bytes": ("tokens.bin", lambda content: content[:-200]),
    "half a token": ("tokens.bin", lambda content: content[:-1]),
    "token 65535": ("tokens.bin", lambda content: content[:-2] + b"\xff\xff"),
    "a number": ("facts.json", lambda content: b"5"),
    "a key": ("facts.json", lambda content: content.replace(b'"documents"', b'"x"')),
    "no tokens": ("tokens.bin", None),
}


@pytest.mark.parametrize(("name", "change"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_tokens_are_made_again(tmp_path, corpus, caplog, name, change):
    tokenizer = train_tokenizer(corpus, 300, tmp_path)
    whole = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    expected, (file,) = whole.tokens.tolist(), (tmp_path / "tokens").glob(f"*/{name}")
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))
    again = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    assert again.tokens.tolist() == expected
    assert again.documents == whole.documents
    assert f"{file.parent} is damaged" in caplog.text and "created again" in caplog.text
    assert [path.name for path in file.parent.parent.iterdir()] == [whole.fingerprint]


# ---- files


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
