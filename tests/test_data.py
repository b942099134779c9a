"""Corpora, tokenizers and blocks: what is read, how it is split, what is refused."""

import gzip
import hashlib
import json
import os
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from conftest import refuses

from tape.data import BigramCorpus, corpora, tokenize_corpus, train_tokenizer
from tape.data.corpora import LocalCorpus, RedPajamaCorpus, TextCorpus

DOCUMENTS = [f"document {n}: " + "the quick brown fox jumps over the dog. " * 20 for n in range(60)]


def lines_of(texts):
    return "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts)


def both_splits(corpus):
    return [list(corpus.documents(split)) for split in ("train", "validation")]


def everything(corpus):
    train, validation = both_splits(corpus)
    return sorted(train + validation)


def test_local_corpus_is_real_text_in_two_splits():
    corpus = LocalCorpus()
    train, validation = both_splits(corpus)
    assert sum(map(len, train)) > 4_000_000
    assert 0.02 < sum(map(len, validation)) / sum(map(len, train)) < 0.25
    assert not set(train) & set(validation)
    names = [path.relative_to(corpus.root).parts for path in corpus.files]
    assert not any({"site-packages", "test", "tests"} & set(parts) for parts in names)
    assert ("argparse.py",) in names and ("pydoc_data", "topics.py") in names


def test_redpajama_reads_the_text_of_its_files(tmp_path, monkeypatch, caplog):
    """As on the hub, where the files of its cache are links to others without a suffix."""
    for n, source in enumerate(RedPajamaCorpus.SOURCES):
        (tmp_path / f"blob-{n}").write_text(lines_of([*DOCUMENTS[5 * n : 5 * n + 5], " "]))
        (tmp_path / f"{source}_sample.jsonl").symlink_to(tmp_path / f"blob-{n}")
    monkeypatch.setattr(corpora, "hf_hub_download", lambda hub, name, **_: str(tmp_path / name))
    corpus = RedPajamaCorpus(validation_fraction=0.3)
    train, validation = both_splits(corpus)
    hashes = {text: hashlib.sha256(text.encode()).hexdigest() for text in DOCUMENTS[:55]}
    assert {*validation} == {text for text in hashes if hashes[text] < "4ccccc"}  # a share of 0.3
    assert sorted(train + validation) == sorted(hashes)
    assert RedPajamaCorpus(tmp_path, 0.3).fingerprint() == corpus.fingerprint()
    (tmp_path / "book_sample.jsonl").unlink()
    assert len(RedPajamaCorpus(tmp_path).files) == 10 and "book_sample.jsonl" in caplog.text

    unreachable = mock.Mock(side_effect=ConnectionError("no network"))
    monkeypatch.setattr(corpora, "hf_hub_download", unreachable)
    with pytest.raises(FileNotFoundError, match=r"no network.*data\.dir=.*data=local"):
        RedPajamaCorpus()


def test_a_folder_is_read_whole_and_names_what_it_leaves_out(tmp_path, caplog):
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "plain.txt").write_text("\ufeffplain text é\r\n")
    (folder / "deep" / "module.py").write_text("print()")
    (folder / "named.csv").write_text("n,text\n1,a cell\n")
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines_of(["row 0", "row 1", ""]).encode()))
    (folder / "rows.jsonl.zst").write_bytes(zstandard.compress(lines_of(["row 2"]).encode()))
    table = pa.table({"text": ["column 0", "column 1"], "other": [b"x", b"x"]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")

    for name in ("a.txt.gz", "b.TXT", "c.csv", "README", ".e.txt"):
        (folder / "deep" / name).write_text("x")
    rows = [*(f"row {n}" for n in range(3)), "column 0", "column 1"]
    assert everything(TextCorpus(folder)) == sorted(["plain text é\r\n", "print()", *rows])
    assert f"data.files: 5 files of {folder} are read; left out: 2 .csv, " in caplog.text
    assert "1 .TXT" in caplog.text and "1 hidden" in caplog.text
    some = TextCorpus([str(folder / "*.gz"), str(folder / "*.csv")])
    assert everything(some) == ["a cell", "row 0", "row 1"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    found = set()
    for n, mark in enumerate(("", "\ufeff")):
        (tmp_path / f"{n}.txt").write_text(f"{mark}one\ufeff two")
        (tmp_path / f"{n}.jsonl").write_text(mark + lines_of(["row"]))
        corpus = TextCorpus(tmp_path / f"{n}.txt", validation=tmp_path / f"{n}.jsonl")
        assert both_splits(corpus) == [["one\ufeff two"], ["row"]]
        found.add(TextCorpus(tmp_path / f"{n}.txt").fingerprint())
    assert len(found) == 1


def test_links_are_followed_and_read_once(tmp_path, monkeypatch):
    for folder, name in (("corpus", "a"), ("held", "validation"), ("more", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.txt").write_text(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a[1].txt").write_text("brackets")
    found = everything(TextCorpus(["a[1].txt", tmp_path / "a[1].txt", "held"]))
    assert found == ["brackets", "validation"]
    corpus = tmp_path / "corpus"
    (corpus / "link.txt").symlink_to(tmp_path / "held" / "validation.txt")
    (corpus / "again.txt").symlink_to(corpus / "a.txt")
    (corpus / "more").symlink_to(tmp_path / "more")
    (corpus / "more" / "above").symlink_to(corpus)
    for held_out in (corpus / "link.txt", tmp_path / "held"):
        train, validation = both_splits(TextCorpus(corpus, held_out))
        assert (sorted(train), validation) == (["a", "b"], ["validation"])


@pytest.mark.parametrize("kind", ["texts", "rows"])
def test_of_two_documents_one_is_held_out(kind, tmp_path):
    """That with the lowest hash, if none is below the fraction; the tokens of training change, and
    so does the fingerprint."""
    if kind == "texts":
        for n in range(2):
            (tmp_path / f"{n}.txt").write_text(DOCUMENTS[n])
    else:
        (tmp_path / "a.jsonl").write_text(lines_of(DOCUMENTS[:2] * 2))
    corpus = TextCorpus(tmp_path, validation_fraction=1e-6)
    train, validation = both_splits(corpus)
    lowest = min(DOCUMENTS[:2], key=lambda text: hashlib.sha256(text.encode()).digest())
    assert {*validation} == {lowest} and {*train} == {*DOCUMENTS[:2]} - {lowest}
    before = hashlib.sha256(corpus.rule.encode())
    for path in corpus.files:
        before.update(b"plain" if kind == "texts" else b"rows")
        before.update(hashlib.sha256(path.read_bytes()).digest())
    assert corpus.fingerprint() != before.hexdigest()


def test_what_is_held_out_is_named(tmp_path):
    """Files all of whose documents are for validation, empty ones aside; many are counted."""
    bad(tmp_path, "empty.txt", "")
    for n in range(2):
        bad(tmp_path, f"{n}.txt", DOCUMENTS[n])
    bad(tmp_path, "both.jsonl", lines_of(DOCUMENTS[:2]))
    _, (held_out,) = both_splits(TextCorpus([tmp_path / "0.txt", tmp_path / "1.txt"], None, 1e-6))
    path = tmp_path / f"{DOCUMENTS.index(held_out)}.txt"
    assert TextCorpus(tmp_path, None, 1e-6).describe().endswith(f"; for validation: {path}")
    others = TextCorpus(tmp_path, tmp_path / "0.txt").describe()
    assert others.endswith(f"; for validation: {tmp_path / '0.txt'}")
    assert TextCorpus(path).describe().endswith(f"; for validation: the end of {path}")
    assert LocalCorpus().describe().endswith(" of them")


def test_a_lone_file_is_cut_near_its_end_at_a_line_or_a_space(tmp_path):
    for text in (
        "".join(f"line {n}\n" for n in range(1000)),
        "word " * 1000,
        *(first + "ACGT" * 1000 for first in ("", "A title\n", "A title in ", "A title\nin ")),
    ):
        (train,), (validation,) = both_splits(TextCorpus(bad(tmp_path, "book.txt", text)))
        assert train + validation == text
        assert 0.03 < len(validation) / len(text) < 0.07
        assert train.endswith("\n") or "line 0" not in text


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
    random = np.random.RandomState(seed)
    weights = random.standard_gamma(BigramCorpus.CONCENTRATION, (count, 16, 16))
    symbols = [[n] for n in random.randint(16, size=count)]
    for _ in range(length - 1):
        for chain, table, drawn in zip(symbols, weights, random.random_sample(count), strict=True):
            left, row = drawn * table[chain[-1]].sum(), table[chain[-1]]
            chain.append(next(n for n in range(16) if left < row[: n + 1].sum()))
    return symbols


def test_bigrams_in_context(tmp_path, monkeypatch):
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


def bad(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GZIP = gzip.compress(b'{"text": "x"}\n' * 99, mtime=0)
TABLE = gzip.compress(b"n,text\n1,a\nb\n", mtime=0)
ZSTD = zstandard.compress(lines_of(DOCUMENTS).encode())
FORM = "; fields are separated by commas, .* quotes in them are doubled, not escaped"
TWO_LINES = r"a\.csv, row 0 \(to line 2\)"
BAD = [
    ("a.txt", b"caf\xe9", r"a\.txt is not UTF-8 text: .* 0xe9 in position 3"),
    ("a.txt", b"ab\0c", r"a\.txt is binary: it has a zero byte at 2"),
    ("a.jsonl", '{"text": "x"}\n{"text": ', r"a\.jsonl, line 2: not JSON \(.*\); each line"),
    ("a.jsonl", '{"body": "x"}', r"line 1: no text in field 'text' .*fields body.*data\.f"),
    ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl, line 1: 'text' holds a lone surrogate"),
    ("a.jsonl", '{"text": null}', r"line 1: field 'text' has null; a document must be a str"),
    ("a.jsonl", "[" * 10**6, r"a\.jsonl, line 1: not JSON"),
    ("a.jsonl", "[1]", r"line 1: a list; each line must be a JSON object, \{.text"),
    ("a.jsonl", b'{"text": "caf\xe9"}', r"a\.jsonl is not UTF-8"),
    ("a.jsonl.gz", GZIP[:-9], r"a\.jsonl\.gz cannot be read"),
    ("a.jsonl.zst", ZSTD[:-9], r"a\.jsonl\.zst cannot be read"),
    ("a.jsonl.zst", ZSTD + b"x" * 9, r"a\.jsonl\.zst cannot be read"),
    ("a.parquet", b"nonsense", r"a\.parquet cannot be read"),
    ("a.csv", 'text\n"x\n', rf"{TWO_LINES}: unexpected end of data{FORM}"),
    ("a.csv", '"a";"text"\n"1";"x"\n', rf"a\.csv, header: ',' expected after '\"'{FORM}"),
    ("a.csv", 'text\n"a \\"b\\" c"\n', rf"{TWO_LINES}: ',' expected.*{FORM}"),
    ("a.csv", "a;text\n1;x\n", r"a\.csv: no columns 'text' among a;text; set data\.field"),
    ("a.csv", "text,n,text\na,1,b\n", r"a\.csv: 2 columns 'text' among "),
    ("a.csv", "", r"a\.csv, header: missing"),
    ("a.csv", b"text\ncaf\xe9\n", r"a\.csv is not UTF-8 text"),
    ("a[1].jsonl.gz", GZIP, r"a\[1\]\.jsonl\.gz: rename it: .* no brackets in a compressed file"),
    ("a::b.jsonl", "{}", r"a::b\.jsonl: rename it: no :: in a name"),
    ("a.csv", "text\na, b\nc\n", rf"{TWO_LINES}: fields: 2, in the header: 1{FORM}"),
    ("a.csv", "id,text\n\n1,a, b\n", r"row 0 \(to line 3\): fields: 3, in the header: 2; "),
    ("a.csv", 'n,text\n1,"a\nb"\n2,c\nd\n', r"row 2 \(to line 5\): fields: 1, in the header: 2; "),
    ("a.csv.gz", TABLE, r"a\.csv\.gz, row 1 .*: fields: 1, in the h"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_bad_files_are_named(tmp_path, name, content, message):
    path = bad(tmp_path, name, content)
    refuses(message, both_splits, TextCorpus(path))


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "empty").mkdir()
    for path, message in {
        tmp_path / "loop.txt": r"data\.files: .*loop\.txt is a broken link",
        tmp_path / "empty": r"data\.files: no \.txt, .* in folder .*empty",
        "/dev/zero": r"data\.files: /dev/zero is neither a file nor a folder",
    }.items():
        with pytest.raises((ValueError, OSError), match=message):
            TextCorpus(path)
    with pytest.raises((ValueError, OSError), match=r"data\.validation: nothing matches 'nowhere'"):
        TextCorpus(bad(tmp_path, "a.txt", "x"), validation="nowhere")


def test_rows_of_tables(tmp_path):
    """A document is what the file has, also if it looks like a number, a date or nothing."""
    texts = ['two\nlines, "q"', "NA", "12", "2020-01-01", "x" * 200_000]
    lines = "".join('1,"' + text.replace('"', '""') + '"\n' for text in texts)
    (tmp_path / "a.csv").write_text(f"\ufeffn,text\n{lines}\n \n2,\n")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    (tmp_path / "[a].csv.jsonl").write_text(lines_of(texts))
    frames = [zstandard.compress(lines_of(part).encode()) for part in (texts[:2], texts[2:])]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    for kind in (pa.string(), pa.large_string(), pa.dictionary("int32", "string")):
        path = tmp_path / f"{kind.id}.parquet"
        pyarrow.parquet.write_table(pa.table({"text": pa.array(texts, kind)}), path)
    for path in tmp_path.iterdir():
        assert everything(TextCorpus(path)) == sorted(texts)
    digits = bad(tmp_path, "digits.csv", "text\n007\n456\n")
    assert everything(TextCorpus(digits)) == ["007", "456"]


def test_compressed_text_in_another_locale_is_refused(tmp_path, monkeypatch):
    """`datasets` reads it in the encoding of the locale."""
    path = bad(tmp_path, "a.jsonl.gz", gzip.compress('{"text": "é"}\n'.encode()))
    monkeypatch.setattr("locale.getpreferredencoding", lambda _: "ISO-8859-1")
    refuses(r"a\.jsonl\.gz: .*, ISO-8859-1, .*set PYTHONUTF8=1", both_splits, TextCorpus(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(tmp_path):
    (tmp_path / "deep").mkdir(mode=0o000)
    with pytest.raises(OSError, match=r"Permission denied: .*deep"):
        TextCorpus(tmp_path)
