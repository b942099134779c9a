"""Corpora, tokenizers and blocks: what is read, how it is split, what is refused."""

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tape.data import (
    BigramCorpus,
    LocalCorpus,
    RedPajamaCorpus,
    TextCorpus,
    TokenBlocks,
    TokenStream,
    TrainingOrder,
    readers,
    redpajama,
    tokenize_corpus,
    train_tokenizer,
)
from tape.data import blocks as blocks_module
from tape.data.corpora import KNOWN, PLAIN
from tape.data.tokenizer import load_tokenizer
from tape.files import new_folder, write_text
from tape.runs.folder import register_run

DOCUMENTS = [f"document {n}: " + "the quick brown fox jumps over the dog. " * 20 for n in range(60)]


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return path


@pytest.fixture
def corpus(jsonl):
    return TextCorpus(jsonl)


def both_splits(corpus):
    return [list(corpus.documents(split)) for split in ("train", "validation")]


def test_local_corpus_is_real_text_in_two_splits():
    corpus = LocalCorpus()
    train, validation = both_splits(corpus)
    assert sum(map(len, train)) > 4_000_000
    assert 0.02 < sum(map(len, validation)) / sum(map(len, train)) < 0.25
    assert not set(train) & set(validation)
    names = [path.relative_to(corpus.root).parts for path in corpus.files()]
    assert not any({"site-packages", "test", "tests"} & set(parts) for parts in names)
    assert ("argparse.py",) in names and ("pydoc_data", "topics.py") in names


def test_redpajama_reads_the_text_of_files_with_other_columns(tmp_path, monkeypatch, caplog):
    """As on the hub, where the files of its cache are links to others without a suffix."""
    columns = [{"meta": {"url": "x"}}, {"red_pajama_subset": "arxiv", "meta": "{}"}, {}]
    documents = iter(DOCUMENTS)
    for name, other in zip(redpajama.FILES, columns * 4, strict=False):
        rows = [{"text": next(documents), **other} for _ in range(5)] + [{"text": " ", **other}]
        (tmp_path / f"blob-{name[:-6]}").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / name).symlink_to(tmp_path / f"blob-{name[:-6]}")
    download = lambda repository, name, **_: str(tmp_path / name)  # noqa: E731
    monkeypatch.setattr(readers, "hf_hub_download", download)
    corpus = RedPajamaCorpus(validation_fraction=0.3)
    train, validation = both_splits(corpus)
    assert sorted(train + validation) == sorted(DOCUMENTS[:55]) and 5 < len(validation) < 30
    assert RedPajamaCorpus(tmp_path, 0.3).fingerprint() == corpus.fingerprint()
    (tmp_path / "book_sample.jsonl").unlink()
    assert len(RedPajamaCorpus(tmp_path).files()) == 10 and "book_sample.jsonl" in caplog.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has none of arxiv_sample\.jsonl"):
        RedPajamaCorpus(tmp_path / "empty")


def test_redpajama_without_a_network_says_what_to_do(monkeypatch):
    def unreachable(*arguments, **settings):
        raise ConnectionError("no network")

    monkeypatch.setattr(readers, "hf_hub_download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"no network.*data\.dir=.*data=local"):
        RedPajamaCorpus()


@pytest.mark.slow
def test_local_corpus_is_the_same_in_another_process():
    script = "from tape.data import LocalCorpus; print(LocalCorpus().fingerprint())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C"}
    output = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert output.strip() == LocalCorpus().fingerprint()


def write_all_kinds(folder):
    (folder / "deep").mkdir()
    (folder / "plain.txt").write_text("plain text é")
    (folder / "deep" / "module.py").write_text("print()")
    (folder / "ignored.csv").write_text("a,b")
    rows = [json.dumps({"text": f"row {n}"}) for n in range(3)]
    with gzip.open(folder / "rows.jsonl.gz", "wt") as file:
        file.write("\n".join(rows[:2]) + "\n\n")
    with zstandard.open(folder / "rows.jsonl.zst", "wt") as file:
        file.write(rows[2])
    table = pa.table({"text": ["column 0", "column 1"], "other": [0, 1]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")


def test_text_corpus_reads_every_kind(tmp_path):
    write_all_kinds(tmp_path)
    assert TextCorpus(tmp_path).size() is None  # some of it is compressed
    assert TextCorpus([tmp_path / "plain.txt", tmp_path / "deep"]).size() == 13 + 7
    train, validation = both_splits(TextCorpus(tmp_path))
    everything = {"plain text é", "print()", "row 0", "row 1", "row 2", "column 0", "column 1"}
    assert set(train) | set(validation) == everything
    assert len(train) + len(validation) == len(everything)
    some = TextCorpus([str(tmp_path / "*.gz"), str(tmp_path / "rows.parquet")])
    assert sum(map(len, both_splits(some))) == 4


def test_a_folder_says_which_files_it_reads(tmp_path, caplog):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_all_kinds(folder)
    for name in ("a.txt.gz", "b.TXT", "c.json", "d.csv", "README", ".e.txt"):
        (folder / "deep" / name).write_text("x")
    (tmp_path / "other.txt").write_text("x")
    for setting in ("files", "validation"):
        caplog.clear()
        TextCorpus(**{"files": tmp_path / "other.txt"} | {setting: folder})
        message = f"data.{setting}: 5 of the 12 files in {folder} are read; left out: "
        message += "2 .csv, 1 .TXT, 1 .gz, 1 .json, 1 hidden, 1 without a suffix; "
        assert message in caplog.text and "only .txt, .md, " in caplog.text
    caplog.clear()
    TextCorpus(str(folder / "*.jsonl*"))
    assert not caplog.text


@pytest.mark.parametrize("name", [f"a{suffix}" for suffix in KNOWN if suffix != ".parquet"])
def test_a_byte_order_mark_is_no_text(name, tmp_path):
    """Files with and without one are the same corpus."""
    found = []
    for mark in ("", "\ufeff"):
        path = tmp_path / f"{len(mark)}" / name
        path.parent.mkdir()
        text = json.dumps({"text": "one\ufeff two"}) + "\n" if "jsonl" in name else "one\ufeff two"
        data = (mark + text).encode()
        packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(path.suffix[1:], bytes)
        path.write_bytes(packed(data))
        copy = path.with_name(f"b{name}")
        copy.write_bytes(path.read_bytes())
        corpus = TextCorpus(path, validation=copy)
        assert list(corpus.documents("train")) == ["one\ufeff two"]
        found.append(corpus.fingerprint())
    if path.suffix in PLAIN:
        assert found[0] == found[1]


def test_links_are_followed_and_read_once(tmp_path):
    """A file that is held out is not trained on under another name either."""
    for folder, name in (("corpus", "a"), ("held", "validation"), ("more", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.txt").write_text(name)
    corpus = tmp_path / "corpus"
    (corpus / "link.txt").symlink_to(tmp_path / "held" / "validation.txt")
    (corpus / "again.txt").symlink_to(corpus / "a.txt")
    (corpus / "more").symlink_to(tmp_path / "more")
    (corpus / "more" / "above").symlink_to(corpus)
    for held_out in (corpus / "link.txt", tmp_path / "held"):
        train, validation = both_splits(TextCorpus(corpus, held_out))
        assert (sorted(train), validation) == (["a", "b"], ["validation"])


def test_documents_are_split_by_content(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [json.dumps({"text": text}) for text in DOCUMENTS]
    path.write_text("\n".join(rows + rows))
    train, validation = both_splits(TextCorpus(path, validation_fraction=0.2))
    assert 0 < len(validation) < len(train)
    assert not set(train) & set(validation)
    path.write_text("\n".join(reversed(rows)))
    assert set(both_splits(TextCorpus(path, validation_fraction=0.2))[1]) == set(validation)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"line {n}\n" for n in range(1000)),
        "word " * 1000,
        "x" * 5000,
        *(first + "ACGT" * 1000 for first in ("A title\n", "A title in ", "A title\nin ")),
    ],
    ids=["lines", "words", "a word", "a title", "a beginning", "both"],
)
def test_a_lone_file_is_cut_near_its_end_at_a_line_or_a_space(text, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(text)
    (train,), (validation,) = both_splits(TextCorpus(path))
    assert train + validation == text
    assert 0.03 < len(validation) / len(text) < 0.07
    if "line 0" in text:
        assert train.endswith("\n")


def test_paths_are_the_same_file_however_they_are_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a[1].txt", "v.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    corpus = TextCorpus(["a[1].txt", "v.txt", tmp_path / "a[1].txt"], validation=tmp_path / "v.txt")
    assert both_splits(corpus) == [["text of a[1].txt"], ["text of v.txt"]]


def test_the_same_bytes_as_another_kind_of_file_are_another_corpus(tmp_path, jsonl):
    plain = tmp_path / "copy.txt"
    plain.write_bytes(jsonl.read_bytes())
    assert TextCorpus(plain).fingerprint() != TextCorpus(jsonl).fingerprint()


def test_special_tokens_in_a_text_are_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{n} <|endoftext|> {n}"}) + "\n" for n in range(99))
    )
    corpus = TextCorpus(path)
    tokenizer = train_tokenizer(corpus, 260, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    assert list(stream.tokens).count(tokenizer.eos_token_id) == stream.documents


def test_validation_can_be_given(tmp_path, jsonl):
    held_out = tmp_path / "held.txt"
    held_out.write_text("held out")
    corpus = TextCorpus([jsonl, held_out], validation=held_out)
    assert both_splits(corpus) == [DOCUMENTS, ["held out"]]


def test_fingerprint_follows_content_and_split(tmp_path, jsonl):
    before = TextCorpus(jsonl).fingerprint()
    assert TextCorpus(jsonl, validation_fraction=0.3).fingerprint() != before
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes(jsonl.read_bytes())
    assert TextCorpus(copy).fingerprint() == before
    copy.write_text(jsonl.read_text().replace("fox", "cat", 1))
    assert TextCorpus(copy).fingerprint() != before


def test_fingerprints_are_what_they_were(tmp_path):
    """Written down: with another, runs and caches of earlier versions would not be continued."""
    plain, rows = bad(tmp_path, "a.txt", "plain"), bad(tmp_path, "b.jsonl", '{"text": "a row"}\n')
    assert TextCorpus(tmp_path).fingerprint()[:16] == "6e2691a46fa03d64"
    assert TextCorpus(rows, validation=plain).fingerprint()[:16] == "990b57fac8acd9ec"
    assert BigramCorpus().fingerprint()[:16] == "e5fd671ea419dfcd"


def bad(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", r"a\.txt is not UTF-8 text: byte 0xe9 at 3"),
        ("a.txt", b"ab\0c", r"a\.txt is binary: it has a zero byte at 2"),
        ("a.jsonl", '{"text": "x"}\n{"text": ', r"a\.jsonl, line 2: not JSON"),
        (
            "a.jsonl",
            '{"content": "x"}',
            r"line 1: no text in field 'text' .*fields content.*data\.f",
        ),
        ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl, line 1: 'text' holds a lone surrogate"),
        (
            "a.jsonl",
            '{"text": null}',
            r"line 1: field 'text' has null; a document must be a string",
        ),
        ("a.jsonl", f'{{"text": {"9" * 5000}}}', r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", "[1]", r"line 1: no text in field 'text'.*no fields"),
        ("a.jsonl", b'{"text": "caf\xe9"}', r"a\.jsonl is not UTF-8"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)[:-9],
            r"a\.jsonl\.gz cannot be read",
        ),
        ("a.jsonl.zst", b"nonsense", r"a\.jsonl\.zst cannot be read"),
        ("a.parquet", b"nonsense", r"a\.parquet cannot be read"),
        ("a.csv", 'text\n"x\n', r"a\.csv cannot be read: .*EOF inside string"),
        ("a.csv", "", r"a\.csv cannot be read: No columns"),
        ("a.csv", b"text\ncaf\xe9\n", r"a\.csv is not UTF-8 text"),
        ("a.csv", "text\n1\n", r"a\.csv, row 0: field 'text' has int 1; a document must be a"),
        ("a.csv", "body\nx\n", r"a\.csv, row 0: no text in field 'text' .*fields body"),
        ("a.json", "a", r"a\.json must be one of \.txt"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    path = bad(tmp_path, name, content)
    with pytest.raises(ValueError, match=message):
        both_splits(TextCorpus(path))


def test_rows_of_tables(tmp_path):
    """A document is what the file has, also if it looks like a number, a date or nothing."""
    texts = ['two\nlines, "q"', "NA", "12", "2020-01-01", "x" * 9]
    lines = "".join('1,"' + text.replace('"', '""') + '"\n' for text in texts)
    (tmp_path / "a.csv").write_text(f"n,text\n{lines}2,\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    path = tmp_path / "a.parquet"
    for kind in (pa.string(), pa.large_string(), pa.dictionary("int32", "string")):
        table = {"text": pa.array(texts, kind), "n": pa.array([b"x"] * 5)}
        pyarrow.parquet.write_table(pa.table(table), path)
        for name in ("a.csv", "a.csv.gz", "a.parquet"):
            train, validation = both_splits(TextCorpus(tmp_path / name))
            assert sorted(train + validation) == sorted(texts)
        pyarrow.parquet.write_table(pa.table({"text": pa.array(["x"] * 1500 + [None], kind)}), path)
        with pytest.raises(ValueError, match=r"a\.parquet, row 1,500: field 'text' has null"):
            both_splits(TextCorpus(path))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([b"x"]), "bytes b'x'"),
        (pa.array([1]), "int 1"),
        (pa.array([["x"]]), r"list \['x'\]"),
        (pa.array([None]), "null"),
    ],
)
def test_a_parquet_column_of_another_type_is_named(column, message, tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"text": column}), path)
    message = rf"a\.parquet, row 0: field 'text' has {message}; a document must be a string"
    with pytest.raises(ValueError, match=message):
        both_splits(TextCorpus(path))
    with pytest.raises(ValueError, match=r"row 0: no text in field 'body' .*text\); set data\.f"):
        both_splits(TextCorpus(path, field="body"))


def test_compressed_text_in_another_locale_is_refused(tmp_path, monkeypatch):
    """`datasets` reads it in the encoding of the locale."""
    path = bad(tmp_path, "a.jsonl.gz", gzip.compress('{"text": "é"}\n'.encode()))
    monkeypatch.setattr("locale.getpreferredencoding", lambda _: "ISO-8859-1")
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: .*, ISO-8859-1, .*set PYTHONUTF8=1"):
        both_splits(TextCorpus(path))


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.files: nothing matches '.*nowhere'"):
        TextCorpus(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"data\.files: no \.txt, .* in folder"):
        TextCorpus(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"data\.validation: nothing matches"):
        TextCorpus(tmp_path, validation="nowhere.txt")
    with pytest.raises(ValueError, match=r"validation_fraction=1\.5"):
        TextCorpus(tmp_path, validation_fraction=1.5)


def test_tokenizer_is_trained_once_and_round_trips(tmp_path, corpus):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    assert len(tokenizer) == 280
    text = "naïve\n\tdef f(x): return '→' # 日本"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id is not None
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    (folder,) = (tmp_path / "tokenizers").iterdir()
    before = folder.stat().st_mtime_ns
    again = train_tokenizer(corpus, 280, tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert folder.stat().st_mtime_ns == before
    assert load_tokenizer(str(folder)).get_vocab() == tokenizer.get_vocab()


def plain_tokenizer(corpus, vocab_size):
    """As tokenizers were trained before pieces had a bound."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.documents("train"), trainer)
    return tokenizer


def tokenizer_folder(corpus, vocab_size, cache):
    """Where tokenizers have always been."""
    key = hashlib.sha256(f"{corpus.fingerprint()} bpe {vocab_size}".encode()).hexdigest()[:16]
    return cache / "tokenizers" / key


@pytest.fixture(
    params=[
        "ACGT",
        "".join(map(chr, range(0x4E00, 0x4E80))),
        "アイウエオ",
        "0123456789",
        "-=",
        " \t",
    ],
    ids=["dna", "chinese", "japanese", "digits", "signs", "spaces"],
)
def one_line(request, tmp_path):
    path = tmp_path / "line.txt"
    path.write_text(f"A{''.join(random.Random(0).choices(request.param, k=5000))}")
    return TextCorpus(path)


def test_pieces_of_a_text_without_spaces_are_bounded(one_line, tmp_path):
    tokenizer = train_tokenizer(one_line, 280, tmp_path)
    (text,) = one_line.documents("train")
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert max(end - start for _, (start, end) in pieces) == 256
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    folder = tokenizer_folder(one_line, 280, tmp_path)
    assert not folder.exists()  # it is of another kind than those there
    again = train_tokenizer(one_line, 280, tmp_path)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(list(folder.parent.iterdir())) == 1


def test_tokenizers_of_an_earlier_version_are_used(one_line, tmp_path):
    before = PreTrainedTokenizerFast(
        tokenizer_object=plain_tokenizer(one_line, 260), eos_token="<|endoftext|>"
    )
    before.save_pretrained(tokenizer_folder(one_line, 260, tmp_path))
    tokenizer = train_tokenizer(one_line, 260, tmp_path)
    assert tokenizer.backend_tokenizer.to_str() == before.backend_tokenizer.to_str()


def test_a_tokenizer_of_words_is_what_it_always_was(corpus, tmp_path):
    tokenizer = train_tokenizer(corpus, 300, tmp_path).backend_tokenizer
    found, expected = (json.loads(of.to_str()) for of in (tokenizer, plain_tokenizer(corpus, 300)))
    for part in ("normalizer", "pre_tokenizer", "model", "decoder"):
        assert found[part] == expected[part]
    assert tokenizer_folder(corpus, 300, tmp_path).is_dir()


def test_bounded_pieces_are_those_of_words(one_line, tmp_path):
    """One long word changes no other."""
    bounded = train_tokenizer(one_line, 260, tmp_path).backend_tokenizer.pre_tokenizer
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = [*" \n\ta中7'-", "  ", "word", "'s", "'ll", "e\u0301", "\u3000"]
    for seed in range(500):
        text = "".join(random.Random(seed).choices(parts, k=40))
        assert bounded.pre_tokenize_str(text) == plain.pre_tokenize_str(text)


def test_impossible_vocabularies(tmp_path, corpus):
    with pytest.raises(ValueError, match="vocab_size=100 must be at least 258"):
        train_tokenizer(corpus, 100, tmp_path)
    with pytest.raises(ValueError, match="too small for vocab_size=9000"):
        train_tokenizer(corpus, 9000, tmp_path)
    assert not list((tmp_path / "tokenizers").glob("*"))


def test_missing_tokenizer(tmp_path):
    with pytest.raises(ValueError, match=r"neither a folder .* nor available from the hub"):
        load_tokenizer(str(tmp_path / "none"))


def test_packing_loses_nothing(tmp_path, corpus):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    joined = "".join(text + tokenizer.eos_token for text in corpus.documents("train"))
    assert tokenizer.decode(stream.tokens) == joined
    assert stream.bytes == sum(len(text.encode()) for text in corpus.documents("train"))
    assert stream.documents == list(stream.tokens).count(tokenizer.eos_token_id)
    for length in (7, 64):
        blocks = TokenBlocks(stream, length)
        packed = np.concatenate([block["input_ids"] for block in blocks])
        assert len(packed) == len(stream) // length * length
        assert (packed == stream.tokens[: len(packed)]).all()
        assert all((block["labels"] == block["input_ids"]).all() for block in blocks)


def test_a_limited_set_of_blocks_is_spread_over_the_stream(tmp_path, corpus):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    few, every = TokenBlocks(stream, 16, limit=5), TokenBlocks(stream, 16)
    assert len(few) == 5
    assert (few[0]["input_ids"] == every[0]["input_ids"]).all()
    assert (few[4]["input_ids"] == every[len(every) - 1]["input_ids"]).all()
    with pytest.raises(ValueError, match="fewer than one block of length=999999"):
        TokenBlocks(stream, 999_999)


@pytest.fixture
def stream(tmp_path):
    return TokenStream(np.arange(48), documents=1, bytes=48, fingerprint="of the text")


def test_the_order_of_training_is_the_same_in_every_numpy(stream):
    order = TrainingOrder(TokenBlocks(stream, 4), total=24, seed=3)
    numbers = [int(order[n]["input_ids"][0]) // 4 for n in range(24)]
    assert numbers[:12] == [1, 9, 0, 8, 10, 11, 2, 4, 3, 5, 7, 6]
    assert numbers[12:] == [1, 3, 9, 5, 6, 0, 8, 10, 11, 7, 2, 4]


def test_a_run_begun_in_another_order_is_not_continued(stream, tmp_path):
    order = TrainingOrder(TokenBlocks(stream, 4), total=24, seed=3)
    register_run(
        tmp_path, {"tokens": {"train": stream.fingerprint}}
    )  # as recorded with default_rng
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match=r"tokens\.train: of the text -> .*RandomState"):
        register_run(tmp_path, {"tokens": {"train": order.fingerprint}})


def test_tokens_are_cached_by_content(tmp_path, corpus, monkeypatch):
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    first = tokenize_corpus(corpus, "train", tokenizer, tmp_path)

    def fail(*_):
        raise AssertionError("tokenized again")

    monkeypatch.setattr(blocks_module, "_write_stream", fail)
    again = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    assert (first.tokens == again.tokens).all()
    with pytest.raises(AssertionError, match="tokenized again"):
        tokenize_corpus(corpus, "train", train_tokenizer(corpus, 300, tmp_path), tmp_path)


def test_an_interrupted_cache_leaves_nothing(tmp_path, jsonl):
    corpus = TextCorpus(jsonl)
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    jsonl.write_text(jsonl.read_text() + "{broken\n")
    with pytest.raises(ValueError, match="line 61: not JSON"):
        tokenize_corpus(TextCorpus(jsonl), "train", tokenizer, tmp_path)
    assert not list((tmp_path / "tokens").iterdir())


def test_an_empty_split_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one document"}')
    corpus = TextCorpus(path, validation_fraction=1e-6)
    tokenizer = train_tokenizer(corpus, 258, tmp_path)
    with pytest.raises(ValueError, match="validation split of text has no documents"):
        tokenize_corpus(corpus, "validation", tokenizer, tmp_path)


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


DAMAGES = {
    "bytes": ("tokens.bin", lambda content: content[:-200]),
    "odd bytes": ("tokens.bin", lambda content: content[:-1]),
    "no bytes": ("tokens.bin", lambda content: b""),
    "its head": ("tokens.bin", lambda content: b"xyz" + content[3:]),
    "token 65535": ("tokens.bin", lambda content: content[:-2] + b"\xff\xff"),
    "cut facts": ("facts.json", lambda content: content[:20]),
    "nested facts": ("facts.json", lambda content: b"[" * 100_000),
    "a number": ("facts.json", lambda content: b"5"),
    "a key": ("facts.json", lambda content: content.replace(b'"bytes"', b'"x"')),
    "less": ("facts.json", lambda content: content.replace(b'"tokens": ', b'"tokens": -')),
    "dtype": ("facts.json", lambda content: content.replace(b"uint16", b"float9")),
    "no facts": ("facts.json", None),
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
    assert (again.documents, again.bytes) == (whole.documents, whole.bytes)
    assert f"{file.parent} is damaged" in caplog.text and "created again" in caplog.text
    assert [path.name for path in file.parent.parent.iterdir()] == [whole.fingerprint]


def test_tokens_of_an_earlier_version_are_checked_by_their_size(tmp_path, corpus, caplog):
    """Their facts have no hash."""
    tokenizer = train_tokenizer(corpus, 300, tmp_path)
    tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    (path,) = (tmp_path / "tokens").glob("*/facts.json")
    facts = json.loads(path.read_text())
    del facts["head"]
    path.write_text(json.dumps(facts))
    before = path.stat()
    caplog.clear()
    tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    assert path.stat() == before and not caplog.text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer.json", '{"model": {"type": "BPE"}}'),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "5"),
        ("tokenizer_config.json", "{}"),
    ],
    ids=range(6),
)
def test_a_damaged_tokenizer_is_trained_again(tmp_path, corpus, caplog, name, content):
    expected = train_tokenizer(corpus, 300, tmp_path)
    (file,) = (tmp_path / "tokenizers").glob(f"*/{name}")
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    again = train_tokenizer(corpus, 300, tmp_path)
    assert again.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert again.eos_token == expected.eos_token
    assert f"{file.parent} is damaged" in caplog.text


def test_zstd_files_are_read_to_their_end(tmp_path):
    rows = [json.dumps({"text": text}) + "\n" for text in DOCUMENTS]
    frames = [zstandard.compress("".join(part).encode()) for part in (rows[:20], rows[20:])]
    path = tmp_path / "frames.jsonl.zst"
    path.write_bytes(b"".join(frames))
    corpus = TextCorpus(path)
    assert sorted(text for split in both_splits(corpus) for text in split) == sorted(DOCUMENTS)
    for content in (b"".join(frames)[:-9], frames[0] + b"x" * 9):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"frames\.jsonl\.zst cannot be read: "):
            both_splits(TextCorpus(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path, jsonl):
    (tmp_path / "deep").mkdir(mode=0o000)
    with pytest.raises(OSError, match=r"Permission denied: .*deep"):
        TextCorpus(tmp_path)
    jsonl.chmod(0o000)
    with pytest.raises(ValueError, match=r"corpus\.jsonl cannot be read: .*Permission denied"):
        both_splits(TextCorpus(jsonl))
