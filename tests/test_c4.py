"""C4's shards: which are taken, what is read of them, and what is refused."""

import gzip
import os
import random

import fsspec
import pytest
from shards import name_of, record, shard_bytes, text_of, write_shards

from tape.data import C4Corpus
from tape.data.c4 import Shard

TRAIN, VALIDATION = (7, 0, 300, 1023), (0, 5)


@pytest.fixture
def folder(tmp_path):
    return write_shards(tmp_path / "en")


def texts(number, split="train", documents=30):
    return [text_of(name_of(split, number)[3:14], n) for n in range(documents)]


def names(shards):
    return [shard.name for shard in shards]


def rewrite(folder, number, content):
    (folder / name_of("train", number)).write_bytes(content)


def test_documents_are_those_of_the_shards_and_validation_is_apart(folder):
    corpus = C4Corpus(folder, validation_shards=2)
    train = list(corpus.documents("train"))
    assert sorted(train) == sorted(text for number in TRAIN for text in texts(number))
    held_out = [text for number in VALIDATION for text in texts(number, "validation")]
    assert list(corpus.documents("validation")) == held_out
    assert list(C4Corpus(folder).documents("validation")) == texts(0, "validation")
    some = C4Corpus(folder, validation_shards=2, validation_documents=31)
    assert list(some.documents("validation")) == held_out[:31]


def test_the_choice_of_shards_depends_on_the_seed_and_the_names_alone(folder, monkeypatch):
    """Written down: another choice would silently be another corpus."""
    corpus = C4Corpus(folder)
    whole = names(corpus.train)
    assert whole == [name_of("train", number) for number in (300, 0, 7, 1023)]
    order = [name_of("train", number) for number in (1023, 7, 300, 0)]
    assert names(corpus.order(seed=0, epoch=1)) == order
    assert len({tuple(names(corpus.order(s, epoch))) for s in (0, 1) for epoch in range(4)}) > 4
    assert len({tuple(names(C4Corpus(folder, shards=2, seed=s).train)) for s in range(9)}) > 4
    files = fsspec.filesystem("file")
    entries = [each | {"blob_id": "x"} for each in files.ls(folder, detail=True)]
    monkeypatch.setattr(type(files), "ls", lambda *_, **__: random.sample(entries, len(entries)))
    assert names(C4Corpus(folder).train) == whole
    assert {shard.version for shard in C4Corpus(folder).train} == {"x"}  # as of the hub's files
    entries[:] = [each for each in entries if not each["name"].endswith(whole[3])]
    assert names(C4Corpus(folder, shards=2).train) == whole[:2]


def test_the_tokenizers_sample_is_spread_over_shards(folder):
    sample = list(C4Corpus(folder, tokenizer_documents=10).sample())
    assert len(sample) == len(set(sample)) == 10
    shares = [sum(text.startswith(f"train.{number:05}") for text in sample) for number in TRAIN]
    assert sorted(shares) == [2, 2, 3, 3]
    assert len(list(C4Corpus(folder).sample())) == 120  # all there are


def test_fingerprint_follows_all_that_decides_the_documents(folder, tmp_path):
    settings = ("shards", "seed", "validation_shards", "validation_documents")
    found = {C4Corpus(folder, **{name: 2}).fingerprint() for name in settings}
    found |= {C4Corpus(folder).fingerprint(), C4Corpus(folder, tokenizer_documents=5).fingerprint()}
    assert len(found) == 6
    copy = write_shards(tmp_path / "copy")
    assert C4Corpus(copy, streaming=False).fingerprint() == C4Corpus(folder).fingerprint()
    rewrite(copy, 7, shard_bytes(name_of("train", 7)).replace(b"\x00", b"\x01", 1))
    assert C4Corpus(copy).fingerprint() not in found


def test_a_streamed_fingerprint_reads_the_ends_of_files_alone(tmp_path):
    path = tmp_path / "a.gz"
    content = bytearray(os.urandom(2**18))

    found = []
    for place in (2**17, 0, 2**16 - 1, 2**18 - 1, 2**17):
        content[place] ^= 1
        path.write_bytes(content)
        found.append(Shard("a.gz", str(path), len(content), None).identity())
    assert found[-1] == found[-2] and len({*found}) == 4
    assert Shard("a.gz", "/no/such", 5, "hash").identity() == "a.gz 5 hash"


def test_a_broken_shard_is_named(folder):
    lines = [record(f"{n} {os.urandom(3000).hex()}") for n in range(8)]
    whole = gzip.compress(b"".join(lines))
    half = len(whole) // 2
    for content, fault in (
        (whole[:half] + b"\xff" * 99 + whole[half + 99 :], " cannot be read: "),
        (whole + b"nonsense", " cannot be read: Not a gzipped file"),
        (gzip.compress(b"".join([*lines, b"nonsense"])), ", line 9: not JSON"),
    ):
        rewrite(folder, 7, content)
        with pytest.raises(ValueError, match=rf"00007-of-01024\.json\.gz{fault}"):
            list(C4Corpus(folder).documents("train"))


def test_shards_of_several_gzip_members_are_read_whole(tmp_path):
    folder = write_shards(tmp_path, train=(7,))
    rewrite(folder, 7, gzip.compress(record("one")) + gzip.compress(record("two")[:-1]))
    assert list(C4Corpus(folder).documents("train")) == ["one", "two"]


def test_a_connection_that_breaks_does_not_shorten_a_shard(folder):
    files = fsspec.filesystem("memory")
    files.put(f"{folder}/", "/c4/en/", recursive=True)
    corpus = C4Corpus(root="memory://c4/en")
    path = f"/c4/en/{corpus.train[1].name}"
    files.pipe(path, files.cat(path)[:-9])  # fewer bytes come than were announced
    with pytest.raises(ValueError, match=r"memory:///c4/en/.*\.json\.gz cannot be read: "):
        list(corpus.documents("train"))


SHARDS = [name_of("train", 1), name_of("validation", 1)]
WRONG = [
    (["train.json.gz"], {}, r"no train or validation shards among the 1 files .* c4-train\.0"),
    (SHARDS[:1], {}, r"no validation shards among"),
    (SHARDS, {"shards": 2}, r"data\.shards=2 but \S+ has 1 train shards"),
    (SHARDS, {"validation_shards": 2}, r"data\.validation_shards=2 but \S+ has 1 val"),
    ([], {"shards": 0}, r"data\.shards=0 must be an integer >= 1"),
    ([], {"streaming": "maybe"}, r"data\.streaming='maybe' must be true or false"),
    ([], {"dir": "/no/such"}, r"/no/such cannot be listed"),
    ([], {"dir": None}, r"hf://datasets/allenai/c4/en cannot be listed.*data\.dir"),
]


@pytest.mark.parametrize(("files", "arguments", "message"), WRONG)
def test_wrong_folders_are_refused(tmp_path, files, arguments, message):
    for name in files:
        (tmp_path / name).write_bytes(shard_bytes(name))
    with pytest.raises((ValueError, OSError), match=message):
        C4Corpus(**({"dir": tmp_path} | arguments))
