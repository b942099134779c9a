"""C4's shards: which are taken, what is read of them, what is left out and what is refused."""

import gzip
import logging
import os
import random

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile
from hub import serving
from huggingface_hub import HfFileSystem, constants
from shards import name_of, record, shard_bytes, text_of, write_shards

from tape.data import C4Corpus, tokenize_corpus, train_tokenizer
from tape.data.shards import Shard

TRAIN, VALIDATION = (7, 0, 300, 1023), (0, 5)


@pytest.fixture
def folder(tmp_path):
    return write_shards(tmp_path / "en")


@pytest.fixture
def remote(folder):
    files = fsspec.filesystem("memory")
    for path in folder.iterdir():
        files.pipe(f"/c4/en/{path.name}", path.read_bytes())
    yield "memory://c4/en"
    files.rm("/c4", recursive=True)


def texts(number, split="train", documents=30):
    return [text_of(name_of(split, number)[3:14], n) for n in range(documents)]


def names(shards):
    return [shard.name for shard in shards]


def rewrite(folder, number, content):
    (folder / name_of("train", number)).write_bytes(content)


def only(folder, number, **arguments):
    """A corpus of one training shard."""
    for path in folder.glob("c4-train*"):
        if path.name != name_of("train", number):
            path.unlink()
    return C4Corpus(folder, **arguments)


@pytest.mark.parametrize("streaming", [True, False])
def test_documents_are_those_of_the_shards_and_validation_is_apart(folder, streaming):
    corpus = C4Corpus(folder, streaming=streaming, validation_shards=2)
    train = list(corpus.documents("train"))
    assert sorted(train) == sorted(text for number in TRAIN for text in texts(number))
    held_out = [text for number in VALIDATION for text in texts(number, "validation")]
    assert list(corpus.documents("validation")) == held_out
    assert list(C4Corpus(folder).documents("validation")) == texts(0, "validation")
    some = C4Corpus(folder, validation_shards=2, validation_documents=31)
    assert list(some.documents("validation")) == held_out[:31]


def test_the_same_shards_through_a_url(folder, remote):
    local, far = C4Corpus(folder), C4Corpus(root=remote)
    assert names(local.train) == names(far.train)
    for split in ("train", "validation"):
        assert list(local.documents(split)) == list(far.documents(split))
    assert local.fingerprint() == far.fingerprint()
    assert C4Corpus(root=remote, streaming=False).fingerprint() != far.fingerprint()


def test_the_choice_of_shards_depends_on_the_seed_and_the_names_alone(folder, monkeypatch):
    whole = names(C4Corpus(folder).train)
    for count in (1, 2, 3):
        assert names(C4Corpus(folder, shards=count).train) == whole[:count]
    choices = {tuple(names(C4Corpus(folder, shards=2, seed=seed).train)) for seed in range(9)}
    assert len(choices) > 4
    listing = type(fsspec.filesystem("file")).ls

    def shuffled(*arguments, **options):
        entries = listing(*arguments, **options)
        random.shuffle(entries)
        return entries

    monkeypatch.setattr(type(fsspec.filesystem("file")), "ls", shuffled)
    assert names(C4Corpus(folder).train) == whole
    (folder / whole[3]).unlink()  # what is not chosen does not matter
    assert names(C4Corpus(folder, shards=2).train) == whole[:2]


def test_the_choice_is_what_it_was(folder):
    """Written down: another choice would silently be another corpus."""
    expected = [name_of("train", number) for number in (300, 0, 7, 1023)]
    assert names(C4Corpus(folder).train) == expected
    order = [name_of("train", number) for number in (1023, 7, 300, 0)]
    assert names(C4Corpus(folder).order(seed=0, epoch=1)) == order


def test_passes_have_orders_of_their_own(folder):
    corpus = C4Corpus(folder)
    orders = {tuple(names(corpus.order(seed, epoch))) for seed in (0, 1) for epoch in range(4)}
    assert len(orders) > 4
    assert all(sorted(order) == sorted(names(corpus.train)) for order in orders)


def test_the_tokenizers_sample_is_spread_over_shards(folder):
    sample = list(C4Corpus(folder, tokenizer_documents=10).sample())
    assert len(sample) == len(set(sample)) == 10
    shares = [sum(text.startswith(f"train.{number:05}") for text in sample) for number in TRAIN]
    assert sorted(shares) == [2, 2, 3, 3]
    assert len(list(C4Corpus(folder).sample())) == 120  # all there are


@pytest.mark.parametrize("streaming", [True, False])
def test_fingerprint_follows_all_that_decides_the_documents(folder, tmp_path, streaming):
    def fingerprint(place=folder, **arguments):
        return C4Corpus(place, streaming=streaming, **arguments).fingerprint()

    before = fingerprint()
    others = [
        fingerprint(**{setting: value})
        for setting, value in {
            "shards": 3,
            "seed": 1,
            "validation_shards": 2,
            "validation_documents": 5,
            "tokenizer_documents": 5,
        }.items()
    ]
    assert len({before, *others}) == 6
    assert fingerprint(max_bad=3) == before
    copy = write_shards(tmp_path / "copy")
    assert fingerprint(copy) == before
    rewrite(copy, 7, shard_bytes(name_of("train", 7)).replace(b"\x00", b"\x01", 1))
    assert fingerprint(copy) != before


def test_a_streamed_fingerprint_reads_the_ends_of_files_alone(tmp_path):
    path = tmp_path / "a.gz"
    content = bytearray(os.urandom(2**18))

    def identity():
        path.write_bytes(content)
        return Shard("a.gz", str(path), len(content), None).identity()

    before = identity()
    for place, seen in ((0, True), (2**16 - 1, True), (2**17, False), (2**18 - 1, True)):
        content[place] ^= 1
        assert (identity() != before) is seen
        content[place] ^= 1


BAD_LINES = [
    (b'{"text": "cut off', r"not JSON \(Unterminated string"),
    (b"[1, 2]", r"no text in field 'text'"),
    (b'{"content": "x"}', r"no text in field 'text'"),
    (b'{"text": 3}', r"no text in field 'text'"),
    (b'{"text": "caf\xe9"}', r"not UTF-8 \(byte 0xe9 at 13\)"),
    (b'{"text": "\\ud800"}', r"'text' holds a lone surrogate"),
    (b"[" * 100_000, r"not JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", r"not JSON"),
]


@pytest.mark.parametrize(("line", "fault"), BAD_LINES)
def test_a_bad_line_is_named_counted_and_left_out(folder, caplog, line, fault):
    lines = [record("first"), line + b"\n", b"\n", record("  "), record("last")]
    rewrite(folder, 7, gzip.compress(b"".join(lines)))
    corpus = only(folder, 7)
    for _ in range(2):
        assert list(corpus.documents("train")) == ["first", "last"]
    (message,) = caplog.messages  # once, however often it is read
    assert message.startswith(f"{name_of('train', 7)}, line 2: ")
    assert message.endswith("skipped (1 so far)")
    with pytest.raises(ValueError, match=rf"of-01024\.json\.gz, line 2: {fault}.*data\.max_bad=0"):
        list(C4Corpus(folder, max_bad=0).documents("train"))


def test_many_bad_lines_are_counted_and_then_too_many(folder, caplog):
    rewrite(folder, 7, gzip.compress(b"nonsense\n" * 250 + record("good")))
    corpus = only(folder, 7, max_bad=250)
    assert list(corpus.documents("train")) == ["good"]
    assert len(corpus.bad) == 250 and len(caplog.messages) == 10 + 2
    assert caplog.messages[-1].startswith("200 bad lines skipped so far")
    limit = r"line 101: not JSON.*101 lines or shards are bad, more than data\.max_bad=100"
    with pytest.raises(ValueError, match=limit):
        list(C4Corpus(folder).documents("train"))


@pytest.mark.parametrize("kind", ["cut", "changed", "trailing", "empty", "no gzip"])
def test_a_broken_shard_keeps_what_precedes_the_fault(folder, caplog, kind):
    long = random.Random(0).randbytes(30_000).hex()  # so that the shard has several chunks
    documents = [f"{n} {long}" for n in range(8)]
    whole = gzip.compress(b"".join(map(record, documents)))
    half = len(whole) // 2
    content = {
        "cut": whole[:half],
        "changed": whole[:half] + b"\xff" * 99 + whole[half + 99 :],
        "trailing": whole + b"nonsense",
        "empty": b"",
        "no gzip": b"nonsense",
    }[kind]
    rewrite(folder, 7, content)
    read = list(only(folder, 7).documents("train"))
    if kind == "changed":  # which the checksum tells at the end: what is near it may be wrong
        assert read[:3] == documents[:3]
    else:
        assert read == documents[: {"cut": 3, "trailing": 8}.get(kind, 0)]
    (message,) = caplog.messages
    assert f"{name_of('train', 7)}: the compressed data" in message
    assert f"after line {len(read):,}; the rest of the shard is skipped (1 so far)" in message
    with pytest.raises(ValueError, match=r"00007-of-01024\.json\.gz: the compressed data"):
        list(C4Corpus(folder, max_bad=0).documents("train"))


def test_shards_of_several_gzip_members_are_read_whole(folder):
    rewrite(folder, 7, b"".join(gzip.compress(record(str(n))) for n in range(9)))
    assert list(only(folder, 7).documents("train")) == [str(n) for n in range(9)]
    rewrite(folder, 7, gzip.compress(record("x") + record("no newline")[:-1]))
    assert list(C4Corpus(folder).documents("train")) == ["x", "no newline"]


def test_a_connection_that_breaks_is_no_fault_of_the_data(remote):
    corpus = C4Corpus(root=remote)
    files = fsspec.filesystem("memory")
    path = f"/c4/en/{corpus.train[1].name}"
    files.pipe(path, files.cat(path)[:-9])  # fewer bytes come than were announced
    with pytest.raises(OSError, match=r"\.json\.gz: received [\d,]+ bytes of [\d,]+"):
        list(corpus.documents("train"))


def test_other_errors_of_a_file_system_are_named(remote, monkeypatch):
    def fail(*_):
        raise RuntimeError("connection lost")

    corpus = C4Corpus(root=remote)
    monkeypatch.setattr(MemoryFile, "read", fail)
    with pytest.raises(OSError, match=r"memory:///c4/en/.*cannot be read: connection lost"):
        list(corpus.documents("train"))


def test_reading_goes_on_from_any_line(folder):
    good = texts(7)
    lines = [record(text) for text in good]
    lines[3] = b"nonsense\n"
    rewrite(folder, 7, gzip.compress(b"".join(lines)))
    corpus = only(folder, 7)
    expected = [(n, text) for n, text in enumerate(good) if n != 3]
    for first in range(32):
        rest = [(n, text) for n, text in expected if n >= first]
        assert list(corpus.read(corpus.train[0], first)) == rest


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        (
            [],
            {},
            r"no train or validation shards among the 0 files .* names must be c4-train\.00000-of",
        ),
        (["train.json.gz"], {}, r"no train or validation shards among the 1 files"),
        ([name_of("train", 1)], {}, r"no validation shards among"),
        ([name_of("validation", 1)], {}, r"no train shards among"),
        ([name_of("train", 1), name_of("validation", 1)], {"shards": 2}, r"data\.shards=2 but"),
        (
            [name_of("train", 1), name_of("validation", 1)],
            {"validation_shards": 2},
            r"data\.validation_shards=2 but .* has 1 validation shards",
        ),
        (
            [name_of("train", 1), name_of("train", 1, 512), name_of("validation", 1)],
            {},
            r"mixes shards of several editions",
        ),
        ([], {"shards": 0}, r"data\.shards=0 must be an integer >= 1"),
        ([], {"window": 0}, r"data\.window=0 must be an integer in 1..1048576"),
        ([], {"dir": "/no/such"}, r"there is no folder /no/such"),
        ([], {"dir": None, "root": "hf://datasets/allenai/c4/en"}, r"cannot be listed.*data\.dir"),
        (
            [],
            {"dir": None, "root": "hf://datasets/no/such/en", "streaming": False},
            r"HF_HUB_OFFLINE is set and nothing of .*no/such/en is in the hub's cache",
        ),
    ],
)
def test_wrong_folders_and_numbers_are_refused(tmp_path, files, arguments, message):
    for name in files:
        (tmp_path / name).write_bytes(shard_bytes(name))
    with pytest.raises((ValueError, OSError), match=message):
        C4Corpus(**({"dir": tmp_path} | arguments))


def test_cached_tokens_are_those_of_the_chosen_shards(folder, tmp_path):
    corpus = C4Corpus(folder, streaming=False, shards=2)
    tokenizer = train_tokenizer(corpus, 280, tmp_path)
    stream = tokenize_corpus(corpus, "train", tokenizer, tmp_path)
    joined = "".join(text + tokenizer.eos_token for text in corpus.documents("train"))
    assert tokenizer.decode(stream.tokens) == joined and stream.documents == 60


def test_the_hub_streams_and_is_cached(folder, tmp_path, monkeypatch):
    local = C4Corpus(folder)
    with serving(folder) as address, monkeypatch.context() as online:
        online.setattr(constants, "HF_HUB_OFFLINE", False)
        online.setattr(constants, "ENDPOINT", address)
        files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        online.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        online.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        HfFileSystem.clear_instance_cache()
        streamed = C4Corpus()
        assert names(streamed.train) == names(local.train)
        assert all(shard.version for shard in streamed.train)  # of which nothing has to be read
        for split in ("train", "validation"):
            assert list(streamed.documents(split)) == list(local.documents(split))
        cached = C4Corpus(streaming=False, shards=2)
    HfFileSystem.clear_instance_cache()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    again = C4Corpus(streaming=False, shards=2)  # now without the hub
    copy = C4Corpus(folder, streaming=False, shards=2)
    assert cached.fingerprint() == again.fingerprint() == copy.fingerprint()
    assert len(list((tmp_path / "hub").rglob("en/*.json.gz"))) == 3
    with pytest.raises(ValueError, match=r"data\.shards=3 but .* has 2 train shards"):
        C4Corpus(streaming=False, shards=3)


@pytest.fixture(autouse=True)
def warnings_alone(caplog):
    caplog.set_level(logging.WARNING)
