"""Texts that models are evaluated on: corpora, files of token ids, and the text of a run."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, make_config, perturb
from test_perplexity import evaluate, table, write_ids

from tape import TapeForCausalLM
from tape.data import TextCorpus, load_tokenizer, tokenize_corpus, train_tokenizer
from tape.evaluation.texts import open_text


def test_a_corpus_is_cut_by_the_models_tokenizer(text, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPE_CACHE", str(cache))
    corpus = TextCorpus(text)
    tokenizer = train_tokenizer(corpus, 300, cache)
    torch.manual_seed(0)
    folder = tmp_path / "model"
    perturb(TapeForCausalLM(make_config("rope", vocab_size=300))).save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be loaded from a folder or the hub"):
        evaluate(folder, "text", "--files", str(text))
    tokenizer.save_pretrained(folder)
    evaluate(folder, "text", "--files", str(text), "--lengths", "64", "--stride", "60")
    stream = tokenize_corpus(corpus, "validation", tokenizer, cache)
    write_ids(tmp_path / "copy.bin", stream.tokens)
    evaluate(folder, tmp_path / "copy.bin", "--lengths", "64", "--stride", "60")
    first, second = table(folder / "perplexity.csv")
    assert int(first["tokens"]) == len(stream) - 1
    assert (first["data"], second["data"]) == ("text (validation)", "copy.bin")
    assert first | {"data": second["data"]} == second  # the same ids have the same hash


def test_a_text_of_ones_own_is_scored_whole_if_asked(tmp_path, cache, monkeypatch):
    """Only then: it may be the text that the model was trained on."""
    monkeypatch.setenv("TAPE_CACHE", str(cache))
    text, folder = tmp_path / "own.jsonl", tmp_path / "model"
    text.write_text(json.dumps({"text": "a sheep and a goat. " * 60}) + "\n")
    perturb(TapeForCausalLM(make_config("rope", vocab_size=258))).save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    train_tokenizer(TextCorpus(text), 258, cache).save_pretrained(folder)
    given = ("--files", str(text), "--lengths", "64", "--stride", "60")
    with pytest.raises(ValueError, match=r"no documents; --whole scores all of --files"):
        evaluate(folder, "text", *given)
    evaluate(folder, "text", *given, "--whole")
    (row,) = table(folder / "perplexity.csv")
    assert row["data"] == "text" and int(row["tokens"]) == 20 * 60
    with pytest.raises(ValueError, match="--whole goes with --data text"):
        evaluate(folder, "local", "--whole", "--lengths", "64")


@pytest.mark.parametrize(
    ("data", "files", "message"),
    [
        (b"\0" * 141, None, "141 bytes, an odd number: it must hold token ids as uint16"),
        (b"", None, "bad.bin has 0 bytes"),
        (b"\0" * 138 + b"\x3d\0", None, "token 69 is 61, beyond the model's vocabulary of 61"),
        (b"\0" * 140, ["x"], "--files goes with --data text"),
        ("locl", None, "neither a file nor a corpus; did you mean 'local'"),
        ("text", None, "--data text needs --files"),
        ("c4", ["a", "b"], "--data c4 takes one folder of shards, not 2 --files"),
        ("{folder}/own.jsonl", None, "holds text, not token ids: give --data text --files"),
    ],
)
def test_bad_texts_are_refused(data, files, message, tmp_path):
    (tmp_path / "own.jsonl").write_text('{"text": "some"}')
    if isinstance(data, bytes):
        (tmp_path / "bad.bin").write_bytes(data)
        data = "{folder}/bad.bin"
    data = data.format(folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        open_text(data, files, tmp_path, tmp_path).check(VOCABULARY)


def test_a_run_is_scored_on_the_text_that_it_was_trained_on(run_quick, text, tmp_path):
    """With the same split, also if that is not the usual one; not on a text that was changed."""
    own = shutil.copy(text, tmp_path / f"own{text.suffix}")
    words = f"data.files={own}", "data.validation_fraction=0.2"
    run = run_quick(*words, folder=tmp_path / "run")
    text = open_text("run", None, run, tmp_path)
    settings = json.loads((run / "trained.json").read_text())["data"]
    files, share = settings["files"], settings["validation_fraction"]
    corpus = TextCorpus(files, validation_fraction=share)
    stream = tokenize_corpus(corpus, "validation", load_tokenizer(str(run)), tmp_path)
    assert text.name == "text (validation)" and share == 0.2
    np.testing.assert_array_equal(text.tokens, stream.tokens)
    usual = open_text("text", [files], run, tmp_path)
    assert usual.fingerprint() != text.fingerprint()
    with own.open("a") as file:
        file.write(own.read_text().splitlines()[0] + "\n")
    message = rf"--data run: files={own} or .* changed since {run} was .*--data text --files"
    with pytest.raises(ValueError, match=message):
        open_text("run", None, run, tmp_path)


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        (None, "run has no trained.json; give the text's name or file"),
        ({"_target_": "arithmetic.problems.Problems"}, "run was not trained on a text"),
        ({"_target_": "tape.data.tokenize_corpus"}, "run was not trained on a text"),
        ({"files": "a"}, "trained.json"),
    ],
)
def test_a_run_that_names_no_text_is_refused(recorded, message, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    if recorded is not None:
        (run / "trained.json").write_text(json.dumps({"data": recorded}))
    with pytest.raises(ValueError, match=message):
        open_text("run", None, run, tmp_path)
