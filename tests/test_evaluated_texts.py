"""Texts that models are evaluated on: corpora, files of token ids, and the text of a run."""

import json
import shutil

import numpy as np
import pytest
from conftest import VOCABULARY, make_model, refuses
from test_perplexity import evaluate, loss_of, table, write_ids

from tape import TapeForCausalLM
from tape.data import TextCorpus, load_tokenizer, tokenize_corpus, train_tokenizer
from tape.evaluation.texts import open_text


@pytest.fixture
def folder(tmp_path, cache, monkeypatch):
    """A run with a vocabulary of 300."""
    monkeypatch.setenv("TAPE_CACHE", str(cache))
    make_model("rope", vocab_size=300).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "run.json").write_text("{}")
    return tmp_path / "model"


def test_a_corpus_is_cut_by_the_models_tokenizer(text, cache, folder, tmp_path):
    corpus = TextCorpus(text)
    tokenizer = train_tokenizer(corpus, 300, cache)
    refuses("neither a folder with a tokenizer", evaluate, folder, "text", "--files", str(text))
    tokenizer.save_pretrained(folder)
    given = ("--lengths", "64", "--stride", "60")
    evaluate(folder, "text", "--files", str(text), *given)
    stream = tokenize_corpus(corpus, "validation", tokenizer, cache)
    evaluate(folder, write_ids(tmp_path / "copy.bin", stream.tokens), *given)
    first, second = table(folder / "perplexity.csv")
    assert int(first["tokens"]) == len(stream) - 1
    assert (first["data"], second["data"]) == ("text (validation)", "copy.bin")
    assert first | {"data": second["data"]} == second  # the same ids have the same hash


def test_a_text_of_ones_own_is_scored_whole_if_asked(folder, tmp_path, cache):
    """Only then: it may be the text that the model was trained on."""
    text = tmp_path / "own.jsonl"
    text.write_text(json.dumps({"text": "a sheep and a goat. " * 60}) + "\n")
    train_tokenizer(TextCorpus(text), 258, cache).save_pretrained(folder)
    given = ("--files", str(text), "--lengths", "64", "--stride", "60")
    refuses("no documents; --whole scores all of --files", evaluate, folder, "text", *given)
    evaluate(folder, "text", *given, "--whole")
    (row,) = table(folder / "perplexity.csv")
    assert row["data"] == "text" and int(row["tokens"]) == 20 * 60
    with pytest.raises(ValueError, match="--whole goes with --data text"):
        evaluate(folder, "local", "--whole", "--lengths", "64")


@pytest.mark.parametrize("convention", ["spread", "disjoint"])
def test_losses_by_document_equal_a_loop(convention, folder, tmp_path, cache):
    """A window belongs to the document of its first scored token."""
    path = tmp_path / "own.jsonl"
    texts = ["a sheep and a goat. " * n for n in (2, 1, 3)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = train_tokenizer(TextCorpus(path), 258, cache)
    tokenizer.save_pretrained(folder)
    stride = ("--stride", "4") if convention == "spread" else ()
    given = ("--whole", "--lengths", "8", "16", "--convention", convention, *stride)
    evaluate(folder, "text", "--files", str(path), *given)
    model = TapeForCausalLM.from_pretrained(folder).eval()
    ids = [x for text in texts for x in [*tokenizer(text).input_ids, tokenizer.eos_token_id]]
    expected = {}
    for length in (8, 16):
        if convention == "spread":
            last = len(ids) - 16
            ends = [16 + k * last // (last // 4) for k in range(last // 4 + 1)]
            windows = [(end - length, end - 4, end) for end in ends]
        else:
            starts = range(0, len(ids) - length + 1, length)
            windows = [(start, start + 1, start + length) for start in starts]
        for start, first, stop in windows:
            losses = [loss_of(model, ids, start, target, length) for target in range(first, stop)]
            document = ids[:first].count(tokenizer.eos_token_id)
            expected.setdefault((length, document), []).extend(losses)
    rows = table(folder / "perplexity_by_document.csv")
    found = {(int(row["length"]), int(row["document"])): row for row in rows}
    assert found.keys() == expected.keys() and {key[1] for key in found} == {0, 1, 2}
    for key, losses in expected.items():
        assert int(found[key]["tokens"]) == len(losses)
        assert float(found[key]["nll"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_bad_texts_are_refused(tmp_path):
    def refused(message, content, *files, name="bad.bin"):
        (tmp_path / name).write_bytes(content)
        name_refused(message, tmp_path / name, *files)

    def name_refused(message, data, *files):
        with pytest.raises(ValueError, match=message):
            open_text(str(data), [*files] or None, tmp_path, tmp_path).check(VOCABULARY)

    refused("141 bytes: it must hold token ids as uint16", b"\0" * 141)
    refused("bad.bin has 0 bytes", b"")
    beyond = b"\1\0" * 35 + b"\x3c\0" * 34 + b"\x3d\0"
    refused("token 69 is 61, beyond the model's vocabulary of 61", beyond)
    refused("--files goes with --data text", b"\0" * 140, "x")
    refused("holds text, not token ids: give --data text --files", b"{}", name="own.jsonl")
    name_refused("neither a file nor a corpus; did you mean 'local'", "locl")
    name_refused("--data text needs --files .*; --data local needs none: it is Python", "text")
    name_refused("--data c4 takes one folder of shards, not 2 --files", "c4", "a", "b")


@pytest.mark.parametrize("largest", [61, 49152, 128256])
def test_the_dtype_of_token_ids(largest, tmp_path):
    """It is given, recorded beside a file of the cache, or uint16 unless the file seems wider."""
    ids = np.random.default_rng(0).integers(0, largest, 300)
    dtypes = ["uint32", "uint16"][: 1 + (largest < 2**16)]

    def opened(file, dtype=None):
        return open_text(str(file), None, tmp_path, tmp_path, token_dtype=dtype).tokens.tolist()

    for dtype in dtypes:
        (folder := tmp_path / dtype).mkdir()
        ids.astype(dtype).tofile(file := folder / "tokens.bin")
        assert opened(file, dtype) == ids.tolist()
        if dtype == "uint16":
            assert opened(file) == ids.tolist()
        else:
            refuses(r"seems to hold uint32 .*; give --token_dtype uint32, or uint16", opened, file)
        (folder / "facts.json").write_text(json.dumps({"dtype": dtype}))
        assert opened(file) == ids.tolist()
        other = {"uint16": "uint32", "uint32": "uint16"}[dtype]
        refuses(f"facts.json says {dtype}; leave it out", opened, file, other)
    np.save(tmp_path / "ids.npy", ids.astype("uint16"))
    refuses(r"is a NumPy file, .*numpy.load.'ids.npy'", opened, tmp_path / "ids.npy")
    refuses("goes with a file of token ids, not with --data local", opened, "local", "uint16")


def test_a_run_is_scored_on_the_text_that_it_was_trained_on(run_quick, text, tmp_path):
    """With the same split, also if that is not the usual one; not on a text that was changed."""
    own = shutil.copy(text, tmp_path / f"own{text.suffix}")
    words = f"data.files={own}", "data.validation_fraction=0.01"
    run = run_quick(*words, folder=tmp_path / "run")
    text = open_text("run", None, run, tmp_path)
    corpus = TextCorpus(own, validation_fraction=0.01)
    stream = tokenize_corpus(corpus, "validation", load_tokenizer(str(run)), tmp_path)
    assert text.name == "text (validation)"
    np.testing.assert_array_equal(text.tokens, stream.tokens)
    message = rf"{run} was trained on {own}, split otherwise .*--data run"
    refuses(message, open_text, "text", [str(own)], run, tmp_path)
    whole = open_text("text", [str(own)], run, tmp_path, whole=True)
    assert len(whole.tokens) > len(stream)
    other = shutil.copy(own, tmp_path / f"other{own.suffix}")
    settings = json.loads((run / "trained.json").read_text())
    settings["data"] |= {"files": str(other), "validation": str(own)}
    (held_out := tmp_path / "held_out").mkdir()
    (held_out / "trained.json").write_text(json.dumps(settings))
    shutil.copy(run / "tokenizer.json", held_out)
    shutil.copy(run / "tokenizer_config.json", held_out)
    assert len(open_text("text", [str(own)], held_out, tmp_path).tokens)
    refuses(rf"was trained on {other}", open_text, "text", [str(other)], held_out, tmp_path)
    settings["data"] |= {"files": str(own), "validation": None, "validation_fraction": 0.2}
    (held_out / "trained.json").write_text(json.dumps(settings))  # more than is held out here
    assert len(open_text("text", [str(own)], held_out, tmp_path).tokens)
    with own.open("a") as file:
        file.write(own.read_text().splitlines()[0] + "\n")
    message = rf"--data run: text or .* changed since {run} was .*--data text --files"
    refuses(message, open_text, "run", None, run, tmp_path)


def test_a_run_that_names_no_text_is_refused(tmp_path):
    opened = open_text, "run", None, tmp_path, tmp_path
    refuses(r"has no trained\.json; give the text's name or file", *opened)
    for recorded, message in (
        ({"_target_": "arithmetic.problems.Problems"}, "was not trained on a text"),
        ({"_target_": "tape.data.tokenize_corpus"}, "was not trained on a text"),
        ({"files": "a"}, "trained.json is damaged"),
    ):
        (tmp_path / "trained.json").write_text(json.dumps({"data": recorded}))
        refuses(message, *opened)
