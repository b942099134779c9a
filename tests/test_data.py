"""Corpora, tokenizers and blocks: what is read, how it is split, what is refused."""

import gzip
import json
import os
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tape.data import (
    BigramCorpus,
    LocalCorpus,
    RedPajamaCorpus,
    TextCorpus,
    corpora,
    tokenize_corpus,
    train_tokenizer,
)

DOCUMENTS = [f"document {n}: " + "the quick brown fox jumps over the dog. " * 20 for n in range(60)]


def lines_of(texts):
    return "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)


def bad(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def both_splits(corpus):
    return [list(corpus.documents(split)) for split in ("train", "validation")]


def everything(corpus):
    train, validation = both_splits(corpus)
    return sorted(train + validation)


# ---- corpora


def test_local_corpus_is_real_text_in_two_splits():
    corpus = LocalCorpus()
    train, validation = both_splits(corpus)
    assert sum(map(len, train)) > 4_000_000
    assert 0.02 < sum(map(len, validation)) / sum(map(len, train)) < 0.25
    assert not set(train) & set(validation)
    names = [path.relative_to(corpus.root).parts for path in corpus.files]
    assert not any({"site-packages", "test", "tests"} & set(parts) for parts in names)
    assert ("argparse.py",) in names and ("pydoc_data", "topics.py") in names


def test_redpajama_reads_the_text_of_its_files(tmp_path, monkeypatch):
    """As on the hub, where the files of its cache are links to others without a suffix."""
    for n, source in enumerate(RedPajamaCorpus.SOURCES):
        (tmp_path / f"blob-{n}").write_text(lines_of([*DOCUMENTS[5 * n : 5 * n + 5], " "]))
        (tmp_path / f"{source}_sample.jsonl").symlink_to(tmp_path / f"blob-{n}")
    monkeypatch.setattr(corpora, "snapshot_download", lambda hub, **_: str(tmp_path))
    corpus = RedPajamaCorpus(validation_fraction=0.3)
    train, validation = both_splits(corpus)
    assert sorted(train + validation) == sorted(DOCUMENTS[:55]) and 5 < len(validation) < 30
    assert RedPajamaCorpus(tmp_path, 0.3).fingerprint() == corpus.fingerprint()
    (tmp_path / "book_sample.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r" has no book_sample\.jsonl: fetch all"):
        RedPajamaCorpus(tmp_path)

    def unreachable(*arguments, **settings):
        raise ConnectionError("no network")

    monkeypatch.setattr(corpora, "snapshot_download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"no network.*data\.dir=.*data=local"):
        RedPajamaCorpus()


def test_a_folder_is_read_whole_and_names_what_it_leaves_out(tmp_path, caplog):
    """A document is what the file has, without a byte order mark, with its line ends, and also if
    it looks like a number or a date."""
    texts = ["two\nlines", "NA", "12", "2020-01-01", "one\ufeff two\r\n", "x" * 200_000]
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    bad(folder, "plain.txt", "\ufeffplain text \u00e9\r\n")
    bad(folder / "deep", "module.py", "print()")
    bad(folder, "rows.jsonl", f"\ufeff{lines_of(texts)}")
    bad(folder, "rows.jsonl.gz", gzip.compress(lines_of([*texts, " "]).encode()))
    for kind in (pa.string(), pa.large_string(), pa.dictionary("int32", "string")):
        table = pa.table({"other": [b"x"] * len(texts), "text": pa.array(texts, kind)})
        pyarrow.parquet.write_table(table, folder / f"{kind.id}.parquet", row_group_size=4)
    for name in ("a.txt.gz", "b.TXT", "c.csv", "README"):
        (folder / "deep" / name).write_text("x")
    found = everything(TextCorpus(folder))
    assert found == sorted(["plain text \u00e9\r\n", "print()", *texts * 5])
    assert f"data.files: 7 files of {folder} are read; left out: 1 " in caplog.text
    assert all(kind in caplog.text for kind in ("1 .TXT", "1 .csv", "1 .gz", "1 README"))
    assert everything(TextCorpus([str(folder / "*.gz")])) == sorted(texts)


def test_links_are_followed_and_read_once(tmp_path, monkeypatch):
    """A file that is held out is not trained on under another name either."""
    for folder, name in (("corpus", "a"), ("held", "validation"), ("more", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.txt").write_text(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a[1].txt").write_text("brackets")
    several = TextCorpus(["a[1].txt", tmp_path / "a[1].txt", "held"])
    assert {path.name for path in several.files} == {"a[1].txt", "validation.txt"}
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
    path.write_text(lines_of(DOCUMENTS * 2))
    train, validation = both_splits(TextCorpus(path, validation_fraction=0.2))
    assert 0 < len(validation) < len(train)
    assert not set(train) & set(validation)
    path.write_text(lines_of(reversed(DOCUMENTS)))
    assert set(both_splits(TextCorpus(path, validation_fraction=0.2))[1]) == set(validation)


TITLES = ("", "A title\n", "A title in ", "A title\nin ")
BOOKS = ["".join(f"line {n}\n" for n in range(1000)), "word " * 1000]


@pytest.mark.parametrize("text", [*BOOKS, *(title + "ACGT" * 1000 for title in TITLES)], ids=len)
def test_a_lone_file_is_cut_near_its_end_at_a_line_or_a_space(text, tmp_path):
    (train,), (validation,) = both_splits(TextCorpus(bad(tmp_path, "book.txt", text)))
    assert train + validation == text
    assert 0.03 < len(validation) / len(text) < 0.07
    if "ACGT" not in text:
        assert train[-1] == text[-1]  # a line break, or a space


def test_fingerprints_follow_content_kind_and_split(tmp_path):
    """Written down: with another, runs and caches of earlier versions would not be continued."""
    plain, rows = bad(tmp_path, "a.txt", "plain"), bad(tmp_path, "b.jsonl", '{"text": "a row"}\n')
    found = {TextCorpus(tmp_path, validation_fraction=0.65).fingerprint()[:16]: "e94b16b1371bd1e3"}
    found[TextCorpus(rows, validation=plain).fingerprint()[:16]] = "990b57fac8acd9ec"
    found[BigramCorpus().fingerprint()[:16]] = "e5fd671ea419dfcd"
    assert [*found] == [*found.values()]
    before = TextCorpus(rows).fingerprint()
    copies = {name: bad(tmp_path, name, rows.read_bytes()) for name in ("c.jsonl", "c.txt")}
    assert TextCorpus(copies["c.jsonl"]).fingerprint() == before
    assert TextCorpus(copies["c.txt"]).fingerprint() != before
    assert TextCorpus(rows, validation_fraction=0.3).fingerprint() != before
    rows.write_text('{"text": "a cow"}\n')
    assert TextCorpus(rows).fingerprint() != before


def literal_chains(seed, count, length):
    """The draws of bigrams in context, one symbol at a time."""
    random = np.random.RandomState(seed)
    weights = random.standard_gamma(BigramCorpus.CONCENTRATION, (count, 16, 16))
    symbols = [[n] for n in random.randint(16, size=count)]
    for _ in range(length - 1):
        for chain, table, drawn in zip(symbols, weights, random.random_sample(count), strict=True):
            left, row = drawn * table[chain[-1]].sum(), table[chain[-1]]
            chain.append(next(n for n in range(16) if left < row[: n + 1].sum()))
    return symbols


def test_bigrams_in_context(tmp_path, monkeypatch):
    """Windows of the validation split begin with documents."""
    assert BigramCorpus.chains([3, 1], 5, 40).tolist() == literal_chains([3, 1], 5, 40)
    monkeypatch.setattr(BigramCorpus, "DOCUMENTS", {"train": 9, "validation": 5})
    monkeypatch.setattr(BigramCorpus, "AT_ONCE", 4)
    corpus, ends = BigramCorpus(), {}
    tokenizer = train_tokenizer(corpus, 258, tmp_path)
    for split, count in BigramCorpus.DOCUMENTS.items():
        tokens = tokenize_corpus(corpus, split, tokenizer, tmp_path).tokens
        ends[split] = np.flatnonzero(tokens == tokenizer.eos_token_id)
        texts = [*corpus.documents(split)]
        assert len(set(texts)) == count and len(tokens) == sum(map(len, texts)) + count
        assert tokenizer.decode(tokens[: ends[split][0]]) == texts[0]
    assert ends["validation"].tolist() == [513 * n - 1 for n in range(1, 6)]
    assert len({*(ends["train"] % 64)}) == 9
    assert not {*corpus.documents("train")} & {*corpus.documents("validation")}


# ---- what cannot be read


GZIP = gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", r" is not UTF-8 text: .* 0xe9 in position 3"),
        ("a.txt", b"ab\0c", r" is binary: it has a zero byte at 2"),
        ("a.csv", "text\nx\n", r" must be one of \.txt, .*\.parquet"),
        ("a.jsonl", '{"text": "x"}\n{"text": ', r", line 2: not JSON"),
        ("a.jsonl", '{"body": "x"}', r", line 1: no text in field 'text' .*fields body.*data\.f"),
        ("a.jsonl", '{"text": "\\ud800"}', r", line 1: 'text' holds a lone surrogate"),
        ("a.jsonl", '{"text": null}', r", line 1: field 'text' has null; a document must be"),
        ("a.jsonl", f'{{"text": {"9" * 5000}}}', r", line 1: not JSON"),
        ("a.jsonl", "[1]", r", line 1: a list; each line must be a JSON object, \{.text"),
        ("a.jsonl", b'{"text": "caf\xe9"}', r" is not UTF-8"),
        ("a.jsonl.gz", GZIP[:-9], r" cannot be read"),
        ("a.parquet", b"nonsense", r" cannot be read"),
        ("a.parquet", {"body": ["x"]}, r": no column 'text' among body; set data\.field"),
        ("a.parquet", {"text": ["x", None]}, r", row 1: field 'text' has null; a document must"),
        ("a.parquet", {"text": [1]}, r", row 0: field 'text' has int 1; a document must be"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, dict):
        pyarrow.parquet.write_table(pa.table(content), path)
    else:
        bad(tmp_path, name, content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + message):
        both_splits(TextCorpus(path))


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "link.txt").symlink_to("gone.txt")
    (tmp_path / "empty").mkdir()
    for path, message in {
        tmp_path / "link.txt": r"data\.files: .*gone\.txt is neither a file nor a folder",
        tmp_path / "empty": r"data\.files: no \.txt, .* in folder .*empty",
        "/dev/zero": r"data\.files: /dev/zero is neither a file nor a folder",
    }.items():
        with pytest.raises((ValueError, OSError), match=message):
            TextCorpus(path)
    with pytest.raises((ValueError, OSError), match=r"data\.validation: nothing matches 'nowhere'"):
        TextCorpus(bad(tmp_path, "a.txt", "x"), validation="nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    jsonl = bad(tmp_path, "corpus.jsonl", lines_of(DOCUMENTS))
    (tmp_path / "deep").mkdir(mode=0o000)
    with pytest.raises(OSError, match=r"Permission denied: .*deep"):
        TextCorpus(tmp_path)
    jsonl.chmod(0o000)
    with pytest.raises(ValueError, match=r"corpus\.jsonl cannot be read: .*Permission denied"):
        both_splits(TextCorpus(jsonl))
