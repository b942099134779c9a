"""A stream of blocks: what is in it, that one integer finds any place of it, and runs on it."""

import gc
import gzip
import json
import shutil
import threading
from itertools import islice
from pathlib import Path
from unittest import mock

import fsspec
import numpy as np
import pytest
import torch
from conftest import composed
from shards import name_of, record, write_shards
from trained import assert_same_weights, weights

from tape.commands import train
from tape.data import C4Corpus, StreamedBlocks, train_tokenizer
from tape.data import blocks as blocks_module
from tape.data import c4 as streaming_module
from tape.runs.metrics import read_metrics

LENGTH, WINDOW, TAKEN = 24, 13, 600  # 600 blocks are two passes and a part of the third


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_shards(tmp_path_factory.mktemp("c4") / "en", train=(1, 2, 3), documents=70)
    name = name_of("train", 2)
    lines = gzip.decompress((folder / name).read_bytes()).splitlines(keepends=True)
    lines[5] = b"\n"
    lines[9] = record(" ".join(map(str, range(900))))  # longer than a window
    (folder / name).write_bytes(gzip.compress(b"".join(lines), mtime=0))
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


def by_definition(corpus, tokenizer, seed, count):
    tokens, epoch = [], 0
    while len(tokens) < (count + WINDOW) * LENGTH:
        for shard in corpus.order(seed, epoch):
            for line in gzip.decompress(Path(shard.url).read_bytes()).splitlines():
                if line:
                    text = json.loads(line)["text"]
                    tokens += tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]
        epoch += 1
    blocks = [tokens[n : n + LENGTH] for n in range(0, len(tokens) - LENGTH + 1, LENGTH)]
    shuffled = []
    for window in range(count // WINDOW + 1):
        order = np.random.RandomState([seed, window]).permutation(WINDOW)
        shuffled += [blocks[window * WINDOW + which] for which in order]
    return shuffled[:count], epoch


@pytest.fixture(scope="module")
def expected(folder, tokenizer):
    blocks, epochs = by_definition(C4Corpus(folder), tokenizer, 3, TAKEN)
    assert epochs == 3 and len({tuple(block) for block in blocks}) > TAKEN / 2
    return blocks


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
    with pytest.raises(ValueError, match=r"\d+\.json is damaged .* or remove it"):
        take(stream(TAKEN - 1), 1)


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
    with pytest.raises(ValueError, match="train split of c4 has no documents; give more"):
        next(iter(stream(dir=empty)))
    bad = write_shards(tmp_path / "bad", train=(1,))
    lines = record("good") * 300 + b"nonsense\n"
    (bad / name_of("train", 1)).write_bytes(gzip.compress(lines))
    with pytest.raises(ValueError, match=r"c4-train\.00001\S+, line 301: not JSON"):
        take(stream(dir=bad), TAKEN)
    monkeypatch.setattr(streaming_module, "get_worker_info", mock.Mock())
    with pytest.raises(ValueError, match="read in the main process: use 0 workers"):
        next(iter(stream()))


SETTINGS = ["experiment=quick", "data=c4", "vocab_size=300", "length=32", "trainer.max_steps=8"]
SETTINGS += ["trainer.save_steps=4", "trainer.eval_steps=2", "trainer.logging_steps=1"]
# Runs stop within a window, and steps lie across its border.
SETTINGS += ["trainer.gradient_accumulation_steps=2", "trainer.per_device_train_batch_size=3"]
SETTINGS += ["data.window=5", "position.sampler=shift"]  # shows a random state that is not restored
# Otherwise fewer steps would have another schedule.
SETTINGS += ["trainer.lr_scheduler_type=constant", "trainer.warmup_steps=0"]


@pytest.fixture
def start(folder, tmp_path):
    def start(*overrides, run="run"):
        places = f"data.dir={folder}", f"cache_dir={tmp_path / 'cache'}"
        train.run(composed(*SETTINGS, *places, f"output_dir={tmp_path / run}", *overrides))
        return tmp_path / run

    return start


def test_a_killed_run_goes_on_as_if_it_had_not_been(start, tmp_path):
    settings = ["trainer.lr_scheduler_type=cosine", "trainer.save_steps=3"]
    whole, killed = start(*settings, run="whole"), tmp_path / "killed"
    shutil.copytree(whole, killed)
    for step in (6, 8):
        shutil.rmtree(killed / f"checkpoint-{step}")
    (killed / "model.safetensors").unlink()
    start(*settings, run=killed.name)
    assert_same_weights(weights(whole), weights(killed))
    rows = [read_metrics(folder / "metrics.jsonl") for folder in (whole, killed)]
    for name in ("loss", "eval_loss", "learning_rate", "epoch"):
        one, other = ([(row["step"], row.get(name)) for row in each] for each in rows)
        assert one == other


def test_a_run_goes_on_with_the_same_data_alone(start):
    start("trainer.max_steps=4")
    for change, message in {
        "data.seed=1": r"another configuration:\n  data\.seed: 0 -> 1\n  tokens\.train",
        "data.shards=2": r"data\.shards: None -> 2\n  tokens\.train",
        "data.window=6": r"data\.window: 5 -> 6\n  tokens\.train",
        "seed=1": r"\n  seed: 0 -> 1",
        "trainer.gradient_accumulation_steps=4": r"\n  sequences_per_step: 6 -> 12",
    }.items():
        with pytest.raises(ValueError, match=message):
            start(change)
    with pytest.raises(ValueError, match="num_workers=1 with a streamed corpus: must"):
        start("trainer.dataloader_num_workers=1", run="several")
