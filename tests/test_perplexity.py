"""Perplexity: losses against a loop over tokens, and the command around them."""

import csv
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, make_config, make_model, perturb, random_tokens
from transformers import LlamaConfig, LlamaForCausalLM

from tape import TapeForCausalLM
from tape.data import TextCorpus, load_tokenizer, tokenize_corpus, train_tokenizer
from tape.evaluation import lm_eval, scoring
from tape.evaluation import perplexity as entry
from tape.evaluation.curves import figure_of, read_curves
from tape.evaluation.journal import Incomplete
from tape.evaluation.scoring import losses, perplexity
from tape.evaluation.tables import add_rows, read_table
from tape.evaluation.texts import open_text
from tape.evaluation.windows import batches_of, spread, windows_of
from tape.runs import folder as runs

ROOT = Path(__file__).parent.parent
PG19 = "../data/pg19_test.bin"
TOKENS = 70


def make_folder(folder, position="tape", seed=0):
    """A model that is no run."""
    make_model(position, seed=seed).save_pretrained(folder)
    return folder


def make_run(folder, position="tape", seed=0):
    make_folder(folder, position, seed)
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("models") / "llama_tape")


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "llama_tape")


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    return write_ids(tmp_path_factory.mktemp("data") / "pile.bin", ids(TOKENS))


def ids(count):
    return random_tokens(1, count)[0].tolist()


def write_ids(path, tokens):
    np.array(tokens, dtype="<u2").tofile(path)
    return path


def options(folder, data, *given):
    """Those of the command for a few short windows, and whatever else is given."""
    short = [] if "--lengths" in given else ["--lengths", "16", "32"]
    stride = [] if "--stride" in given or "disjoint" in given else ["--stride", "5"]
    small = [] if "--batch_tokens" in given else ["--batch_tokens", "70"]
    return ["--model", str(folder), "--data", str(data), *short, *stride, *small, *given]


def evaluate(folder, data, *given):
    return entry.run(entry.parse(options(folder, data, *given)))


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- losses


def loss_of(model, tokens, start, target, length):
    """Of one token, from those before it alone."""
    with torch.no_grad(), model.evaluation_length(length):
        logits = model(torch.tensor([tokens[start:target]]), use_cache=False).logits[0, -1]
    return -logits.double().log_softmax(-1)[tokens[target]].item()


def by_a_loop(model, tokens, convention, length, stride):
    """The number of scored tokens and their loss, from the definition of the convention."""

    def loss(start, target):
        return loss_of(model, tokens, start, target, length)

    count = len(tokens)
    if convention == "sliding":
        found = []
        for target in range(1, count):
            start = 0
            while start + length <= target:  # the first window that has it
                start += stride
            found.append(loss(start, target))
        return len(found), sum(found) / len(found)
    starts = range(0, count - length, stride)
    if convention == "disjoint":
        starts = [start for start in range(0, count, length) if start + length <= count]
    windows = [[loss(start, start + k) for k in range(1, length)] for start in starts]
    if convention == "longlora":
        windows.pop()
    return sum(map(len, windows)), np.mean(windows)


@pytest.mark.parametrize("position", ["tape", "randpe"])
@pytest.mark.parametrize(
    ("convention", "given"),
    [
        ("sliding", ["--stride", "5"]),
        ("paper", ["--stride", "9"]),
        ("longlora", ["--stride", "9"]),
        ("disjoint", []),
    ],
)
def test_a_convention_equals_a_loop(convention, given, position, text_file, tmp_path):
    folder = make_run(tmp_path / "model", position)
    evaluate(folder, text_file, "--convention", convention, *given)
    model = TapeForCausalLM.from_pretrained(folder).eval()
    rows = table(folder / "perplexity.csv")
    assert [row["length"] for row in rows] == ["16", "32"]
    for row in rows:
        stride, length = int(row["stride"] or row["length"]), int(row["length"])
        tokens, nll = by_a_loop(model, ids(TOKENS), convention, length, stride)
        assert int(row["tokens"]) == tokens and row["convention"] == convention
        assert float(row["nll"]) == pytest.approx(nll, rel=1e-5)
        assert float(row["perplexity"]) == pytest.approx(math.exp(nll), rel=1e-5)


def test_logits_are_made_in_parts_and_for_scored_tokens_only(monkeypatch):
    model, tokens = make_model("tape", dtype=torch.float64), np.array(ids(TOKENS))
    batches = batches_of(windows_of("sliding", TOKENS, 32, 5), 32, 3 * 32)
    whole = np.concatenate([losses(model, tokens, batch) for batch in batches])
    sizes = []
    model.lm_head.register_forward_hook(lambda *given: sizes.append(given[-1].shape[:-1].numel()))
    monkeypatch.setattr(scoring, "LOGITS", 7 * VOCABULARY)
    parts = np.concatenate([losses(model, tokens, batch) for batch in batches])
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    assert max(sizes) == 7 and sum(sizes) == TOKENS - 1


def test_a_sample_equals_a_loop():
    """What the report of a run gives."""
    model, tokens = make_model("randpe"), ids(200)
    for length in (16, 32):
        windows = spread(len(tokens), length, 32, 5, 60)
        found = perplexity(model, np.array(tokens, dtype=np.uint16), windows, length)
        expected = [
            loss_of(model, tokens, w.start, t, length) for w in windows for t in range(*w[1:])
        ]
        assert found.tokens == len(expected) == 60
        assert found.nll == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_llama_of_several_files_is_the_librarys(text_file, tmp_path):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    library = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=4, num_key_value_heads=2, **shape)
    ).eval()
    library.save_pretrained(tmp_path / "llama", max_shard_size="10KB")
    assert len(list((tmp_path / "llama").glob("*.safetensors"))) > 1
    out = tmp_path / "llama.csv"
    evaluate(tmp_path / "llama", text_file, "--lengths", "16", "--out", str(out))
    tokens, nll, before = torch.tensor([ids(TOKENS)]), 0.0, 0
    for start in range(0, TOKENS, 5):  # as transformers' guide does
        stop = min(start + 16, TOKENS)
        labels = tokens[:, start:stop].clone()
        labels[:, : before - stop] = -100
        counted = (labels[:, 1:] != -100).sum().item()
        with torch.no_grad():
            nll += library(tokens[:, start:stop], labels=labels).loss.item() * counted
        before = stop
        if stop == TOKENS:
            break
    (row,) = table(out)
    assert float(row["nll"]) == pytest.approx(nll / (TOKENS - 1), rel=1e-5)


def test_a_base_model_keeps_its_files(tmp_path, monkeypatch):
    """Results of a model that is no run go to output/, unless a folder there is another's."""
    monkeypatch.chdir(tmp_path)
    base, out = make_folder(tmp_path / "bases" / "llama", "rope"), Path("output", "llama")
    given = ["--model", str(base)]
    assert entry.parse([*given, "--data", "local"]).out == out / "perplexity.csv"
    assert lm_eval.parse([*given, "--tasks", "mmlu"]).out == out / "zero_shot.csv"
    make_folder(out)
    with pytest.raises(ValueError, match=r"output/llama, the folder of another model; rename one"):
        entry.parse([*given, "--data", "local"])
    run = make_run(tmp_path / "run")
    for folder in (run, make_folder(run / "checkpoint-4"), out):
        assert runs.folder_for_results(folder) == folder


# ---- texts


def test_a_corpus_is_cut_by_the_models_tokenizer(text, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("TAPE_CACHE", str(cache))
    corpus = TextCorpus(text)
    tokenizer = train_tokenizer(corpus, 300, cache)
    torch.manual_seed(0)
    folder = tmp_path / "model"
    perturb(TapeForCausalLM(make_config("rope", vocab_size=300))).save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="neither a folder with a tokenizer"):
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
def test_bad_texts_are_refused(data, files, message, trained, tmp_path):
    (tmp_path / "own.jsonl").write_text('{"text": "some"}')
    if isinstance(data, bytes):
        (tmp_path / "bad.bin").write_bytes(data)
        data = "{folder}/bad.bin"
    data = data.format(folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        open_text(data, files, trained, tmp_path).check(VOCABULARY)


def test_a_run_is_scored_on_the_text_that_it_was_trained_on(run_quick, tmp_path):
    """With the same split, also if that is not the usual one."""
    run = run_quick("data.validation_fraction=0.2", folder=tmp_path / "run")
    text = open_text("run", None, run, tmp_path)
    settings = json.loads((run / "trained.json").read_text())["data"]
    files, share = settings["files"], settings["validation_fraction"]
    corpus = TextCorpus(files, validation_fraction=share)
    stream = tokenize_corpus(corpus, "validation", load_tokenizer(str(run)), tmp_path)
    assert text.name == "text (validation)" and share == 0.2
    np.testing.assert_array_equal(text.tokens, stream.tokens)
    usual = open_text("text", [files], run, tmp_path)
    assert usual.fingerprint() != text.fingerprint()


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


def test_a_refused_evaluation_leaves_nothing_behind(folder, text_file, tmp_path):
    before = set(tmp_path.rglob("*"))
    for given, message in {
        ("--max_tokens", "31"): "31 tokens of text have no window of 32",
        ("--stride", "16"): r"stride=16 must lie in 1\.\.15",
        ("--shard", "3/2"): "shard='3/2' must be i/n",
        ("--out", "x.txt"): r"--out x\.txt must end in \.csv",
    }.items():
        with pytest.raises(ValueError, match=message):
            evaluate(folder, text_file, *given)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("position", ["randpe", {"name": "learned", "length": 24}])
def test_more_positions_than_there_are(position, text_file, tmp_path):
    folder = make_run(tmp_path / "model", position)
    longest = 24 if isinstance(position, dict) else 64
    with pytest.raises(ValueError, match=rf"--lengths 65 needs 65 positions, .* has {longest}: "):
        evaluate(folder, text_file, "--lengths", "16", "65")
    assert not (folder / "perplexity").exists()


def test_losses_that_are_no_numbers(folder, text_file):
    model = TapeForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(model.lm_head.weight, 3e38)  # its products are not finite
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"losses that are not finite in windows of 32"):
        evaluate(folder, text_file)
    assert not (folder / "perplexity.csv").exists()


# ---- shares, and what is left of a run


def results(folder):
    """The rows of both tables. Processes may round differently, as their threads share the work."""
    assert (folder / "perplexity.png").stat().st_size > 1000
    rows = table(folder / "perplexity.csv") + table(folder / "perplexity_by_position.csv")
    measured = ("nll", "perplexity")
    return [
        {key: pytest.approx(float(x), rel=1e-6) if key in measured else x for key, x in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_shards_and_processes_equal_one(folder, trained, text_file, tmp_path, processes):
    evaluate(folder, text_file)
    shared = shutil.copytree(trained, tmp_path / "shared" / "llama_tape")
    with pytest.raises(Incomplete, match=r"batches are missing.* a shard not started"):
        evaluate(shared, text_file, "--shard", "2/2", "--processes", processes)
    assert not (shared / "perplexity.csv").exists()
    evaluate(shared, text_file, "--shard", "1/2")
    assert results(shared) == results(folder)


def test_what_is_done_is_not_done_again(folder, text_file, monkeypatch):
    evaluate(folder, text_file)
    before = results(folder)
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "losses", None)
        evaluate(folder, text_file)
    assert results(folder) == before  # rows took the place of their like
    evaluate(folder, text_file, "--lengths", "24", "--dtype", "bfloat16")
    evaluate(make_folder(folder, seed=1), text_file)  # other weights, beside the old ones
    rows = table(folder / "perplexity.csv")
    assert [row["length"] for row in rows] == ["16", "32", "24", "16", "32"]
    assert [row["dtype"] for row in rows][1:3] == ["float32", "bfloat16"]
    assert len({row["model_hash"] for row in rows}) == 2
    assert float(rows[2]["nll"]) == pytest.approx(float(rows[1]["nll"]), rel=0.1)
    path = folder / "config.json"  # these weights in another configuration
    config = json.loads(path.read_text())
    config["rope_parameters"]["rope_theta"] = 10.0
    path.write_text(json.dumps(config))
    evaluate(folder, text_file)
    again = table(folder / "perplexity.csv")
    assert float(again[-1]["nll"]) != float(rows[-1]["nll"])


def test_losses_by_position_add_up(folder, text_file):
    evaluate(folder, text_file, "--convention", "paper", "--stride", "9")
    rows = table(folder / "perplexity_by_position.csv")
    for row in table(folder / "perplexity.csv"):
        length = int(row["length"])
        bins = [bin for bin in rows if int(bin["length"]) == length]
        edges = [(int(bin["first"]), int(bin["last"])) for bin in bins]
        covered = [k for first, last in edges for k in range(first, last + 1)]
        assert covered == list(range(1, length))
        tokens = [int(bin["tokens"]) for bin in bins]
        windows = len(range(0, TOKENS - length, 9))
        assert tokens == [windows * (last - first + 1) for first, last in edges]
        total = sum(n * float(bin["nll"]) for n, bin in zip(tokens, bins, strict=True))
        assert total / sum(tokens) == pytest.approx(float(row["nll"]), rel=1e-9)
    model, tokens = TapeForCausalLM.from_pretrained(folder).eval(), ids(TOKENS)
    third = [loss_of(model, tokens, start, start + 3, 32) for start in range(0, TOKENS - 32, 9)]
    assert float(bins[2]["nll"]) == pytest.approx(np.mean(third), rel=1e-5)


def test_tables_take_rows_of_their_kind_only(folder, text_file, tmp_path):
    path = tmp_path / "perplexity.csv"
    path.write_text("n,m\n1,2\n")
    with pytest.raises(ValueError, match="its columns are n, m instead of model, "):
        evaluate(folder, text_file, "--out", str(path))
    assert path.read_text() == "n,m\n1,2\n" and not (tmp_path / "perplexity").exists()
    path.unlink()
    add_rows(path, ("a", "b", "c"), 2, [{"a": 1, "b": "x,y", "c": 0.5}, {"a": 2, "b": "", "c": 1}])
    add_rows(path, ("a", "b", "c"), 2, [{"a": 1, "b": "x,y", "c": 0.25}, {"a": 1, "b": "", "c": 1}])
    assert path.read_text() == 'a,b,c\n1,"x,y",0.25\n2,,1\n1,,1\n'
    path.write_text("a,b\n1\n")
    with pytest.raises(ValueError, match="line 2: the number of values differs"):
        read_table(path, ("a", "b"))


# ---- pictures and commands


def test_pictures(folder, text_file, tmp_path):
    """A table of several models has a line for each; positions are those of their longest windows,
    and of a lone series all."""
    out, other = tmp_path / "both.csv", make_run(tmp_path / "llama_rope", "rope")
    given = ["--convention", "paper", "--out", str(out)]
    evaluate(folder, text_file, *given)
    evaluate(folder, text_file, "--lengths", "16", "24", *given[2:])
    evaluate(other, text_file, *given)
    assert out.with_suffix(".png").stat().st_size
    rows, bins = read_curves(out)
    left, right = figure_of(rows, bins).axes
    lines = {line.get_label(): line for line in left.lines}
    assert set(lines) == {"llama_rope paper", "llama_tape paper", "llama_tape sliding"}
    expected = [float(r["perplexity"]) for r in rows if r["model"] == "llama_rope"]
    np.testing.assert_allclose(lines["llama_rope paper"].get_ydata(), expected)
    assert list(lines["llama_tape sliding"].get_xdata()) == [16, 24]
    curves = {line.get_label(): line.get_xdata() for line in right.lines}
    assert curves["llama_rope paper, 32"][0] == 1 and curves["llama_rope paper, 32"][-1] > 27
    assert min(curves["llama_tape sliding, 24"]) > 16  # of 19..23, which most windows score
    alone = ([r for r in each if r["model"] == "llama_rope"] for each in (rows, bins))
    left, right = figure_of(*alone).axes
    assert [line.get_label() for line in left.lines] == ["llama_rope"]
    assert [line.get_label() for line in right.lines] == ["16", "32"]


def test_commands(folder, text_file, capsys):
    entry.main(options(folder, text_file))
    printed = capsys.readouterr().out
    assert re.search(r"^\| 32 \| 69 \| [\d.]+ \| [\d.]+ \|$", printed, re.MULTILINE)
    entry.main(options(folder, text_file, "--shard", "1/3", "--lengths", "32"))
    assert "shard 1/3 is done; " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--model {folder}", "the following arguments are required: --data"),
        ("--model {folder} --data x --lengths 1", "'1' must be an integer >= 2"),
        ("--model {folder} --data x --short 4", "--model takes no --short"),
        ("--model {folder} --data x --choose k.txt", "--choose k.txt must end in .json"),
        ("--model {folder} --data x --choose k.json --out a.csv", "--choose takes no --out"),
        ("--model {folder} --data x --choose k.json --lengths 8 16", "takes one of --lengths"),
        ("--model {folder} --data x --keys k.json --stride 4", "--keys takes no --stride"),
        ("--model {folder} --data x --keys k --choose k", "not allowed with argument"),
    ],
)
def test_options_that_do_not_go_together(given, message, trained, capsys):
    with pytest.raises(SystemExit):
        entry.parse(given.format(folder=trained).split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("data=proof_pile\nmodel_path=output/llama_adape\n{}", {}),  # lines of the paper's README
        ("DATA_DIR='../my data' {}", {"data": "../my data/proof_pile.bin"}),
        ("model_name=llama_lora {}", {"model": Path("output/llama_lora")}),
        ("model_name=x model_path='a b' {}", {"model": Path("a b")}),
        ("seq_len='2048 4096' {}", {"lengths": [2048, 4096]}),
        ("data=pg19_test seq_len=4096 {} --lengths 512", {"data": PG19, "lengths": [512]}),
        ("data=pile {}", r"error: \.\./data/pile\.bin .*DATA_DIR.*\n"),  # not downloaded
    ],
)
def test_the_papers_command_line(lines, expected, tmp_path, monkeypatch):
    """With a command that prints its arguments in the place of Python."""
    monkeypatch.setattr("tape.command.check_model_folder", lambda folder: None)
    project, python = tmp_path / "project", tmp_path / "venv" / "bin" / "python"
    shutil.copytree(ROOT / "script", project / "script")
    (project / "script" / "setup.sh").write_text("# the environment is there\n")
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    for file in ("data/proof_pile.bin", "data/pg19_test.bin", "my data/proof_pile.bin"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    command = lines.format("bash script/eval_llama.sh") + " --convention paper"
    how = {"cwd": project, "capture_output": True, "text": True}
    how["env"] = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv")}
    started = subprocess.run(["bash", "-c", command], **how)
    if isinstance(expected, str):
        assert started.returncode == 1 and re.fullmatch(expected, started.stderr)
        return
    assert started.returncode == 0, started.stderr
    option, module, *arguments = started.stdout.splitlines()
    assert (option, module) == ("-m", "tape.evaluation.perplexity")
    found = vars(entry.parse(arguments))
    paper = {"model": Path("output/llama_adape"), "data": "../data/proof_pile.bin"}
    paper |= {"lengths": [1024, 2048, 4096, 8192], "convention": "paper"}
    assert found | paper | expected == found
