"""C4 as a stream of blocks, any place of which one integer finds; runs on it; and its shards: which
are taken, what is read of them, and what is refused."""

import gc
import gzip
import json
import os
import random
import shutil
import threading
from itertools import islice
from pathlib import Path
from unittest import mock

import fsspec
import numpy as np
import pytest
import torch
from conftest import composed, refuses
from shards import name_of, record, shard_bytes, text_of, write_shards
from trained import assert_same_weights, losses, weights

from tape.cli import train
from tape.data import C4Corpus, StreamedBlocks, train_tokenizer
from tape.data import blocks as blocks_module
from tape.data import c4 as streaming_module
from tape.data.c4 import Shard

LENGTH, WINDOW, TAKEN = 24, 13, 600  # 600 blocks are two passes and a part of the third


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_shards(tmp_path_factory.mktemp("c4") / "en", train=(1, 2, 3), documents=70)
    name = name_of("train", 2)
    lines = gzip.decompress((folder / name).read_bytes()).splitlines(keepends=True)
    lines[5] = b"\n"
    lines[9] = record(" ".join(map(str, range(900))))  # longer than a window
    members = b"".join(lines[:30]), b"".join(lines[30:])[:-1]  # and no line break at the end
    (folder / name).write_bytes(b"".join(gzip.compress(part, mtime=0) for part in members))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder, tmp_path_factory):
    return train_tokenizer(C4Corpus(folder), 300, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def stream(folder, tokenizer, tmp_path):
    def make(start=0, seed=3, cache=tmp_path, **arguments):
        corpus = C4Corpus(**{"dir": folder, "window": WINDOW} | arguments)
        return StreamedBlocks(corpus, tokenizer, LENGTH, cache, seed, start)

    return make


def take(stream, count):
    return [block["input_ids"].tolist() for block in islice(stream, count)]


@pytest.fixture(scope="module")
def expected(folder, tokenizer):
    """The blocks by definition, with the seed 3."""
    tokens, epoch = [], 0
    while len(tokens) < (TAKEN + WINDOW) * LENGTH:
        for shard in C4Corpus(folder).order(3, epoch):
            for line in gzip.decompress(Path(shard.url).read_bytes()).splitlines():
                if line:
                    text = json.loads(line)["text"]
                    tokens += tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
        epoch += 1
    blocks = [tokens[n : n + LENGTH] for n in range(0, len(tokens) - LENGTH + 1, LENGTH)]
    shuffled = []
    for window in range(TAKEN // WINDOW + 1):
        order = np.random.RandomState([3, window]).permutation(WINDOW)
        shuffled += [blocks[window * WINDOW + which] for which in order]
    assert epoch == 3 and len({*map(tuple, shuffled)}) > TAKEN / 2
    return shuffled[:TAKEN]


def test_the_stream_is_what_it_is_defined_as(stream, expected):
    before = {*threading.enumerate()}
    assert take(stream(), TAKEN) == expected
    gc.collect()
    new = {*threading.enumerate()} - before
    assert not [thread for thread in new if thread.name.startswith("ThreadPoolExecutor")]
    first = next(iter(stream()))
    assert torch.equal(first["labels"], first["input_ids"])
    assert first["input_ids"].dtype == torch.int64


def test_any_place_is_found_with_and_without_the_index(stream, expected):
    places = [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 311, TAKEN - 1]
    for start in reversed(places):  # of what precedes the first one, nothing is known
        assert take(stream(start), TAKEN - start) == expected[start:]
    known = stream()
    for known.start in range(0, TAKEN, 23):
        assert take(known, 1) == expected[known.start : known.start + 1]


def test_an_index_spares_tokenizing_what_precedes(stream, expected, monkeypatch):
    encode = mock.Mock(side_effect=streaming_module.encode)
    monkeypatch.setattr(streaming_module, "encode", encode)
    monkeypatch.setattr(blocks_module, "DOCUMENTS_AT_ONCE", 4)
    beginnings = set()
    for window in (40, *range(0, 40, 4)):
        encode.reset_mock()
        assert take(stream(WINDOW * window), 1) == expected[WINDOW * window : WINDOW * window + 1]
        assert window == 40 or encode.call_count < 20
        beginnings.add(encode.call_args_list[0].args[1][0])
    assert len(beginnings) > 5
    assert {int(path.stem) for path in stream().folder.iterdir()} >= {*range(1, 41)}


def test_a_lost_index_is_made_again_and_a_damaged_one_is_named(stream, expected):
    list(islice(stream(), TAKEN))
    whole = {path: path.read_bytes() for path in stream().folder.iterdir()}
    for kept in (0, 9):
        for path in whole:
            if int(path.stem) > kept:
                path.unlink(missing_ok=True)
        assert take(stream(TAKEN - 1), 1) == expected[TAKEN - 1 :]
        for window in range(1, TAKEN // WINDOW + 1):
            path = stream().folder / f"{window}.json"
            assert path.read_bytes() == whole[path]
    path.write_text("{")
    refuses(r"\d+\.json is damaged .* or remove it", take, stream(TAKEN - 1), 1)


def test_a_url_streams_as_the_folder_does(stream, expected, folder):
    fsspec.filesystem("memory").put(f"{folder}/", "/far/en/", recursive=True)
    far = stream(dir=None, root="memory://far/en")
    assert far.fingerprint == stream().fingerprint
    assert take(far, 50) == expected[:50]


def test_other_data_are_another_stream(stream, tokenizer, folder, tmp_path):
    streams = [stream(), stream(seed=4), stream(shards=2), stream(window=14)]
    streams.append(StreamedBlocks(streams[0].corpus, tokenizer, LENGTH + 1, tmp_path, 3))
    assert len({one.fingerprint for one in streams}) == 5


def test_bad_streams_are_refused(stream, tmp_path, monkeypatch):
    empty = write_shards(tmp_path / "empty", documents=0)
    refuses("train split of c4 has no documents; give more", next, iter(stream(dir=empty)))
    bad = write_shards(tmp_path / "bad", train=(1,))
    lines = record("good") * 300 + b"nonsense\n"
    (bad / name_of("train", 1)).write_bytes(gzip.compress(lines))
    refuses(r"c4-train\.00001\S+, line 301: not JSON", take, stream(dir=bad), TAKEN)
    monkeypatch.setattr(streaming_module, "get_worker_info", mock.Mock())
    refuses("read in the main process: use 0 workers", next, iter(stream()))


SETTINGS = ["experiment=quick", "data=c4", "vocab_size=300", "length=32", "trainer.max_steps=8"]
SETTINGS += ["trainer.save_steps=4", "trainer.eval_steps=2", "trainer.logging_steps=1"]
# Runs stop within a window, and steps lie across its border.
SETTINGS += ["trainer.gradient_accumulation_steps=2", "trainer.per_device_train_batch_size=3"]
SETTINGS += ["data.window=5", "position.sampler=shift"]  # shows a random state that is not restored


@pytest.fixture
def start(folder, tmp_path):
    def start(*overrides, run="run"):
        places = f"data.dir={folder}", f"cache_dir={tmp_path / 'cache'}"
        train.run(composed(*SETTINGS, *places, f"output_dir={tmp_path / run}", *overrides))
        return tmp_path / run

    return start


def test_a_killed_run_goes_on_as_if_it_had_not_been(start, tmp_path):
    settings = ["trainer.save_steps=3", "trainer.save_total_limit=null"]
    whole, killed = start(*settings, run="whole"), tmp_path / "killed"
    shutil.copytree(whole, killed)
    for step in (6, 8):
        shutil.rmtree(killed / f"checkpoint-{step}")
    (killed / "model.safetensors").unlink()
    start(*settings, run=killed.name)
    assert_same_weights(weights(whole), weights(killed))
    for name in ("loss", "eval_loss", "learning_rate", "epoch"):
        assert losses(killed, name) == losses(whole, name) != []


def test_a_run_goes_on_with_the_same_data_alone(start):
    start("trainer.max_steps=4")
    for change, message in {
        "data.seed=1": r"another configuration:\n  data\.seed: 0 -> 1\n  tokens\.train",
        "data.shards=2": r"data\.shards: None -> 2\n  tokens\.train",
        "data.window=6": r"data\.window: 5 -> 6\n  tokens\.train",
        "seed=1": r"\n  seed: 0 -> 1",
    }.items():
        refuses(message, start, change)
    with pytest.raises(ValueError, match="num_workers=1 with a streamed corpus: must"):
        start("trainer.dataloader_num_workers=1", run="several")


TRAIN, VALIDATION = (7, 0, 300, 1023), (0, 5)


@pytest.fixture
def official(tmp_path):
    return write_shards(tmp_path / "en")


def texts(number, split="train", documents=30):
    return [text_of(name_of(split, number)[3:14], n) for n in range(documents)]


def names(shards):
    return [shard.name for shard in shards]


def rewrite(official, number, content):
    (official / name_of("train", number)).write_bytes(content)


def test_documents_are_those_of_the_shards_and_validation_is_apart(official):
    corpus = C4Corpus(official, validation_shards=2)
    train = list(corpus.documents("train"))
    assert sorted(train) == sorted(text for number in TRAIN for text in texts(number))
    held_out = [text for number in VALIDATION for text in texts(number, "validation")]
    assert list(corpus.documents("validation")) == held_out
    assert list(C4Corpus(official).documents("validation")) == texts(0, "validation")
    some = C4Corpus(official, validation_shards=2, validation_documents=31)
    assert list(some.documents("validation")) == held_out[:31]


def test_the_choice_of_shards_depends_on_the_seed_and_the_names_alone(official, monkeypatch):
    """Written down: another choice would silently be another corpus."""
    corpus = C4Corpus(official)
    whole = names(corpus.train)
    assert whole == [name_of("train", number) for number in (300, 0, 7, 1023)]
    order = [name_of("train", number) for number in (1023, 7, 300, 0)]
    assert names(corpus.order(seed=0, epoch=1)) == order
    assert len({tuple(names(corpus.order(s, epoch))) for s in (0, 1) for epoch in range(4)}) > 4
    assert len({tuple(names(C4Corpus(official, shards=2, seed=s).train)) for s in range(9)}) > 4
    files = fsspec.filesystem("file")
    entries = [each | {"blob_id": "x"} for each in files.ls(official, detail=True)]
    monkeypatch.setattr(type(files), "ls", lambda *_, **__: random.sample(entries, len(entries)))
    assert names(C4Corpus(official).train) == whole
    assert {shard.version for shard in C4Corpus(official).train} == {"x"}  # as of the hub's files
    entries[:] = [each for each in entries if not each["name"].endswith(whole[3])]
    assert names(C4Corpus(official, shards=2).train) == whole[:2]


def test_the_tokenizers_sample_is_spread_over_shards(official):
    sample = list(C4Corpus(official, tokenizer_documents=10).sample())
    assert len(sample) == len(set(sample)) == 10
    shares = [sum(text.startswith(f"train.{number:05}") for text in sample) for number in TRAIN]
    assert sorted(shares) == [2, 2, 3, 3]
    assert len(list(C4Corpus(official).sample())) == 120  # all there are


def test_fingerprint_follows_all_that_decides_the_documents(official, tmp_path):
    names = ("shards", "seed", "validation_shards", "validation_documents", "tokenizer_documents")
    found = {C4Corpus(official, **{name: 2}).fingerprint() for name in names}
    found.add(C4Corpus(official).fingerprint())
    assert len(found) == 6
    copy = write_shards(tmp_path / "copy")
    assert C4Corpus(copy, streaming=False).fingerprint() == C4Corpus(official).fingerprint()
    rewrite(copy, 7, shard_bytes(name_of("train", 7)).replace(b"\x00", b"\x01", 1))
    assert C4Corpus(copy).fingerprint() not in found


def test_a_streamed_fingerprint_reads_the_ends_of_files_alone(tmp_path):
    path, found = tmp_path / "a.gz", []
    content = bytearray(os.urandom(2**18))
    for place in (2**17, 0, 2**16 - 1, 2**18 - 1, 2**17):
        content[place] ^= 1
        path.write_bytes(content)
        found.append(Shard("a.gz", str(path), len(content), None).identity())
    assert found[-1] == found[-2] and len({*found}) == 4
    assert Shard("a.gz", "/no/such", 5, "hash").identity() == "a.gz 5 hash"


def test_a_broken_shard_is_named(official):
    whole = gzip.compress(record(os.urandom(30_000).hex()))
    half = len(whole) // 2
    for content, fault in (
        (whole[:half] + b"\xff" * 99 + whole[half + 99 :], ""),
        (whole + b"nonsense", "Not a gzipped file"),
    ):
        rewrite(official, 7, content)
        with pytest.raises(ValueError, match=rf"00007-of-01024\.json\.gz cannot be read: {fault}"):
            list(C4Corpus(official).documents("train"))


def test_a_connection_that_breaks_does_not_shorten_a_shard(official):
    files = fsspec.filesystem("memory")
    files.put(f"{official}/", "/c4/en/", recursive=True)
    corpus = C4Corpus(root="memory://c4/en")
    path = f"/c4/en/{corpus.train[1].name}"
    files.pipe(path, files.cat(path)[:-9])  # fewer bytes come than were announced
    refuses(r"memory:///c4/en/.*\.json\.gz cannot be read: ", list, corpus.documents("train"))


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
