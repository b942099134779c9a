"""Perplexity: losses against a loop over tokens, windows by hand, and the command around them."""

import math
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from commands import ROOT, tape
from conftest import VOCABULARY, make_model, random_tokens, refuses
from script_folder import commands_of, lay_out, start

from tape import TapeForCausalLM
from tape.cli import evaluate as parsers
from tape.core import run_folder as runs
from tape.core.files import write_text
from tape.evaluation import perplexity as entry
from tape.evaluation import scoring
from tape.evaluation.curves import figure_of, read_curves, read_evaluation
from tape.evaluation.scoring import losses, perplexity
from tape.evaluation.tables import add_rows, read_table
from tape.evaluation.texts import asked_text
from tape.evaluation.windows import (
    ALIKE,
    CONVENTIONS,
    batches_of,
    spread,
    strides_of,
    windows_of,
)

PG19 = "../data/pg19_test.bin"
TOKENS = 70
IDS = random_tokens(1, TOKENS)[0].tolist()


def make_run(folder, position="tape", seed=0):
    make_model(position, seed=seed).save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "llama_tape")


@pytest.fixture
def text_file(tmp_path):
    return write_ids(tmp_path / "pile.bin", IDS)


def write_ids(path, tokens):
    np.array(tokens, dtype="<u2").tofile(path)
    return path


def options(folder, data, *given):
    """Those of the command for a few short windows, and whatever else is given."""
    short = ["--lengths", "16", "32", "--batch_tokens", "70"]
    stride = [] if "disjoint" in given else ["--stride", "5"]
    return ["--model", str(folder), "--data", str(data), *short, *stride, *given]


def evaluate(folder, data, *given):
    return entry.run(parsers.perplexity(options(folder, data, *given)))


def test_a_model_that_is_written_again_meanwhile_is_refused(folder, text_file, monkeypatch):
    def rewritten(*given, **how):
        (weights := folder / "model.safetensors").write_bytes(weights.read_bytes())
        return asked_text(*given, **how)

    monkeypatch.setattr(entry, "asked_text", rewritten)
    refuses("llama_tape was written again while it was read: repeat", evaluate, folder, text_file)
    assert not (folder / "perplexity.csv").exists()


def table(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")


def loss_of(model, tokens, start, target, length):
    """Of one token, from those before it alone."""
    with torch.no_grad(), model.evaluation_length(length):
        logits = model(torch.tensor([tokens[start:target]]), use_cache=False).logits[0, -1]
    return -logits.double().log_softmax(-1)[tokens[target]].item()


def by_a_loop(model, tokens, convention, length, stride):
    """The number of scored tokens and their loss, from the definition of the convention."""
    count = len(tokens)
    if convention == "sliding":  # the first window that has a token
        firsts = [next(s for s in range(0, t + 1, stride) if t < s + length) for t in range(count)]
        places = [*enumerate(firsts)][1:]
    elif convention == "spread":  # as many ends as fit, from that of the first window of 32
        more = (count - 32) // stride
        ends = [32 + k * (count - 32) // more for k in range(more + 1)]
        places = [(t, end - length) for end in ends for t in range(end - stride, end)]
    else:
        last = count - length if convention == "disjoint" else count - length - 1
        starts = [*range(0, last + 1, stride)]
        if convention == "longlora":
            starts.pop()
        places = [(start + k, start) for start in starts for k in range(1, length)]
    losses = [loss_of(model, tokens, start, target, length) for target, start in places]
    return len(losses), np.mean(losses)


@pytest.mark.parametrize("position", ["tape", "randpe"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_convention_equals_a_loop(convention, position, text_file, tmp_path):
    folder = make_run(tmp_path / "model", position)
    evaluate(folder, text_file, "--convention", convention)
    model = TapeForCausalLM.from_pretrained(folder).eval()
    rows = table(folder / "perplexity.csv")
    assert [row["length"] for row in rows] == ["16", "32"]
    for row in rows:
        stride, length = int(row["stride"] or row["length"]), int(row["length"])
        tokens, nll = by_a_loop(model, IDS, convention, length, stride)
        assert int(row["tokens"]) == tokens and row["convention"] == convention
        assert float(row["nll"]) == pytest.approx(nll, rel=1e-5)
        assert float(row["perplexity"]) == pytest.approx(math.exp(nll), rel=1e-5)


def test_logits_are_made_in_parts_and_for_scored_tokens_only(monkeypatch):
    model, tokens = make_model("tape", dtype=torch.float64), np.array(IDS)
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
    model, tokens = make_model("randpe"), random_tokens(1, 200)[0].tolist()
    for length in (16, 32):
        windows = spread(len(tokens), length, 5, 32, 60)
        found = perplexity(model, np.array(tokens, dtype=np.uint16), windows, length)
        places = [(window.start, t) for window in windows for t in range(*window[1:])]
        expected = [loss_of(model, tokens, *place, length) for place in places]
        assert found.tokens == len(expected) == 60
        assert found.nll == pytest.approx(np.mean(expected), rel=1e-5)


def test_a_base_model_keeps_its_files(tmp_path, monkeypatch):
    """Results of a model that is no run go to output/, unless a folder there is another's."""
    monkeypatch.chdir(tmp_path)
    base, out = tmp_path / "bases" / "llama", Path("output", "llama")
    run = make_run(tmp_path / "run")
    shutil.copytree(run, run / "checkpoint-4", ignore=lambda *_: ["run.json"])
    shutil.copytree(run / "checkpoint-4", base)
    given = ["--model", str(base), "--data", "local"]
    assert parsers.perplexity(given).out == out / "perplexity.csv"
    shutil.copytree(base, out)
    refuses(r"output/llama, the folder of another model; rename one", parsers.perplexity, given)
    for folder in (run, run / "checkpoint-4", out):
        assert runs.folder_for_results(folder) == folder


def test_a_refused_evaluation_leaves_nothing_behind(folder, text_file, tmp_path):
    before = set(tmp_path.rglob("*"))
    for given, message in {
        ("--max_tokens", "31"): "31 tokens of text have no window of 32",
        ("--stride", "16"): r"stride=16 must lie in 1\.\.15",
        ("--shard", "3/2"): "shard='3/2' must be i/n",
        ("--out", "x.txt"): r"--out x\.txt must end in \.csv",
    }.items():
        refuses(message, evaluate, folder, text_file, *given)
    assert set(tmp_path.rglob("*")) == before


def test_losses_that_are_no_numbers(folder, text_file):
    model = TapeForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(model.lm_head.weight, 3e38)  # its products are not finite
    model.save_pretrained(folder)
    refuses(r"losses that are not finite in windows of 32", evaluate, folder, text_file)
    assert not (folder / "perplexity.csv").exists()


def results(folder):
    """The rows of both tables."""
    assert (folder / "perplexity.png").stat().st_size > 1000
    return table(folder / "perplexity.csv") + table(folder / "perplexity_by_position.csv")


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_is_scored_is_said(convention, folder, text_file, capsys):
    """In the table and in the picture; and whether lengths can be compared, as the same tokens are
    scored at each."""
    tape("perplexity", *options(folder, text_file, "--convention", convention))
    printed, (rows, bins) = capsys.readouterr().out, read_curves(folder / "perplexity.csv")
    strides = strides_of(convention, [16, 32], None if convention == "disjoint" else 5)
    scored = [
        {t for x in windows_of(convention, TOKENS, n, stride, 32) for t in range(x.first, x.stop)}
        for n, stride in strides.items()
    ]
    assert (scored[0] == scored[1]) == (convention in ALIKE)
    assert ("Windows of other lengths score other tokens" in printed) != (convention in ALIKE)
    assert "Fewer than 4,096 tokens" in printed and f"(convention {convention}" in printed
    title = figure_of(rows, bins).axes[0].get_title()
    assert title.startswith(convention) and all(str(count) in title for count in rows["tokens"])
    longest = bins[bins["length"] == 32]
    assert longest["first"].iloc[0] == 1  # of `spread`, too: for the loss by position


def test_samples_of_other_tokens_are_other_measurements(folder, text_file, tmp_path):
    for scored in ("20", "40", "40"):
        given = ("--convention", "spread", "--scored_tokens", scored)
        evaluate(folder, text_file, *given)
        evaluate(folder, text_file, *given, "--out", str(folder / "compare" / "perplexity.csv"))
    rows = table(folder / "perplexity.csv")
    assert [row["tokens"] for row in rows] == ["20", "20", "40", "40"]
    assert len({row["data_hash"] for row in rows}) == 2
    assert read_evaluation(folder / "compare").asked["scored_tokens"] == 40
    refuses_exit = pytest.raises(SystemExit)
    with refuses_exit:
        evaluate(folder, text_file, "--scored_tokens", "20")


def test_shards_equal_one(folder, text_file, tmp_path, capsys):
    shared = shutil.copytree(folder, tmp_path / "shared" / "llama_tape")
    tape("perplexity", *options(folder, text_file))
    printed = capsys.readouterr().out
    assert re.search(r"^\| 32 \| 69 \| [\d.]+ \| [\d.]+ \|$", printed, re.MULTILINE)
    tape("perplexity", *options(shared, text_file, "--shard", "2/2"))
    message = r"shard 2/2 is done; .* batches are missing.* a shard not started"
    assert re.search(message, capsys.readouterr().out)
    assert not (shared / "perplexity.csv").exists()
    evaluate(shared, text_file, "--shard", "1/2")
    assert results(shared) == results(folder)


def test_the_folder_of_an_evaluation_has_its_last_measurement(folder, text_file):
    out = folder / "compare" / "perplexity.csv"
    for stride in ("4", "5"):
        evaluate(folder, text_file, "--out", str(out), "--stride", stride)
        assert {*pd.read_csv(out)["stride"]} == {int(stride)}
        assert read_evaluation(out.parent).asked["lengths"] == [16, 32]


def test_what_is_done_is_not_done_again(folder, text_file, monkeypatch):
    evaluate(folder, text_file)
    before = results(folder)
    with monkeypatch.context() as patch:
        patch.setattr(scoring, "losses", None)
        evaluate(folder, text_file)
    assert results(folder) == before  # rows took the place of their like
    evaluate(folder, text_file, "--lengths", "24", "--dtype", "bfloat16")
    evaluate(make_run(folder, seed=1), text_file)  # other weights, beside the old ones
    rows = table(folder / "perplexity.csv")
    assert [row["length"] for row in rows] == ["16", "32", "24", "16", "32"]
    assert [row["dtype"] for row in rows][1:3] == ["float32", "bfloat16"]
    assert len({row["model_hash"] for row in rows}) == 2
    assert float(rows[2]["nll"]) == pytest.approx(float(rows[1]["nll"]), rel=0.1)
    path = folder / "config.json"  # these weights in another configuration
    path.write_text(path.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 10.0'))
    evaluate(folder, text_file)
    assert table(folder / "perplexity.csv")[: len(rows)] == rows  # not replaced
    assert float(table(folder / "perplexity.csv")[-1]["nll"]) != float(rows[-1]["nll"])


def test_losses_by_position_add_up(folder, text_file):
    evaluate(folder, text_file, "--convention", "paper", "--stride", "9")
    rows = pd.read_csv(folder / "perplexity_by_position.csv")
    for row in pd.read_csv(folder / "perplexity.csv").itertuples():
        bins = rows[rows["length"] == row.length]
        edges = zip(bins["first"], bins["last"], strict=True)
        covered = [k for first, last in edges for k in range(first, last + 1)]
        assert covered == list(range(1, row.length))
        windows = len(range(0, TOKENS - row.length, 9))
        assert (bins["tokens"] == windows * (bins["last"] - bins["first"] + 1)).all()
        assert np.average(bins["nll"], weights=bins["tokens"]) == pytest.approx(row.nll, rel=1e-9)
    model = TapeForCausalLM.from_pretrained(folder).eval()
    third = [loss_of(model, IDS, start, start + 3, 32) for start in range(0, TOKENS - 32, 9)]
    assert bins["nll"].iloc[2] == pytest.approx(np.mean(third), rel=1e-5)


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
    refuses("line 2: the number of values differs", read_table, path, ("a", "b"))


def test_pictures(folder, text_file, tmp_path):
    """Positions are those of the longest windows of each model, and of a lone series all."""
    out, other = tmp_path / "both.csv", make_run(tmp_path / "llama_rope", "rope")
    given = ["--convention", "paper", "--out", str(out)]
    evaluate(folder, text_file, *given)
    evaluate(folder, text_file, "--lengths", "16", "24", *given[2:])
    evaluate(other, text_file, *given)
    rows, bins = read_curves(out)
    left, right = ({x.get_label(): x for x in axes.lines} for axes in figure_of(rows, bins).axes)
    assert {*left} == {"llama_rope paper", "llama_tape paper", "llama_tape sliding"}
    expected = rows["perplexity"][rows["model"] == "llama_rope"]
    np.testing.assert_allclose(left["llama_rope paper"].get_ydata(), expected)
    assert min(right["llama_tape sliding, 24"].get_xdata()) > 16  # which most windows score
    alone = (each[each["model"] == "llama_rope"] for each in (rows, bins))
    labels = [[line.get_label() for line in axes.lines] for axes in figure_of(*alone).axes]
    assert labels == [["llama_rope"], ["16", "32"]]
    flat = rows.assign(nll=6 + 1e-5 * rows.index)
    low, high = figure_of(flat, bins).axes[0].get_ylim()
    assert (high - low) / 403.43 == pytest.approx(0.05, rel=1e-3)  # no change looks steep


LINES = {
    "data=proof_pile\nmodel_path=output/llama_adape\n{}": {},  # lines of the paper's README
    "DATA_DIR='../my data' {}": {"data": "../my data/proof_pile.bin"},
    "model_name=llama_lora {}": {"model": Path("output/llama_lora")},
    "model_name=x model_path='a b' {}": {"model": Path("a b")},
    "seq_len='2048 4096' {}": {"lengths": [2048, 4096]},
    "data=pg19_test seq_len=4096 {} --lengths 512": {"data": PG19, "lengths": [512]},
    "data=pile {}": r"error: \.\./data/pile\.bin .*DATA_DIR.*\n",  # not downloaded
}


@pytest.mark.parametrize(("lines", "expected"), LINES.items())
def test_the_papers_command_line(lines, expected, tmp_path, monkeypatch):
    monkeypatch.setattr("tape.cli.evaluate.model_folder", Path)
    (tmp_path / "project").mkdir()
    folder = lay_out(tmp_path / "project")
    for file in ("data/proof_pile.bin", "data/pg19_test.bin", "my data/proof_pile.bin"):
        write_text(tmp_path / file, "")
    words = shlex.split(lines.format("{} --convention paper"))
    at = words.index("{}")
    variables = dict(word.split("=") for word in words[:at])
    given = (folder, "eval_llama.sh", *words[at + 1 :])
    if isinstance(expected, str):
        done = start(*given, **variables)
        assert re.fullmatch(expected, done.communicate()[0]) and done.returncode == 1
        return
    ((option, module, command, *arguments),) = commands_of(*given, **variables)
    assert (option, module, command) == ("-m", "tape.cli", "perplexity")
    found = vars(parsers.perplexity(arguments))
    paper = {"model": Path("output/llama_adape"), "data": "../data/proof_pile.bin"}
    paper |= {"lengths": [1024, 2048, 4096, 8192], "convention": "paper"}
    assert found | paper | expected == found


def test_windows_of_a_thousand_tokens():
    """As documented."""
    expected = {
        "sliding": [(0, 1, 512), (256, 512, 768), (512, 768, 1000)],
        "spread": [(0, 256, 512), (488, 744, 1000)],
        "paper": [(0, 1, 512), (256, 257, 768)],
        "longlora": [(0, 1, 512)],
        "disjoint": [(0, 1, 512)],
    }
    for name in CONVENTIONS:
        windows = windows_of(name, 1000, 512, strides_of(name, [512])[512])
        assert windows == expected[name]
        cells = ", ".join(f"{w.first} to {w.stop - 1}" for w in windows)
        scored = sum(w.stop - w.first for w in windows)
        alike = "yes" if name in ALIKE else "no"
        row = rf"^\| `{name}` \| .* \| {cells} \| {scored:,} \| {alike} \|$"
        assert re.search(row, (ROOT / "docs" / "perplexity.md").read_text(), re.MULTILINE)
    assert windows_of("sliding", 1000, 256, 100)[-2:] == [(700, 856, 956), (800, 956, 1000)]
    assert windows_of("disjoint", 1000, 256, 256) == [(0, 1, 256), (256, 257, 512), (512, 513, 768)]
    assert len(windows_of("paper", 1000, 256, 256)) == len(range(0, 1000 - 256, 256)) == 3
    assert windows_of("paper", 1000, 100, 300)[-1] == (600, 601, 700)  # not (900, 901, 1000)


@pytest.mark.parametrize(
    ("available", "longest", "stride", "tokens"),
    [
        (1000, 64, 16, 160),
        (1000, 64, 16, 10**9),
        (64, 64, 16, 100),
        (70, 64, 16, 100),
        (193_594, 64, 19, 100_000),  # in floating point, four windows end a token earlier
    ],
)
def test_a_sample_of_windows_fits_and_scores_no_token_twice(available, longest, stride, tokens):
    windows, shorter = (spread(available, n, stride, longest, tokens) for n in (longest, 32))
    ends = [window.stop for window in windows]
    assert windows[0].start >= 0 and ends[-1] <= available and (np.diff(ends) >= stride).all()
    assert len(ends) >= 1 and len(ends) * stride <= max(tokens, stride)
    gaps, last = max(1, len(ends) - 1), available - longest
    assert ends == [longest + number * last // gaps for number in range(len(ends))]
    assert [w[1:] for w in windows] == [w[1:] for w in shorter]  # the same tokens
    assert {w.stop - w.first for w in windows} == {stride}


def test_windows_that_cannot_be():
    for lengths, stride in (([32, 16], 8), ([257, 512], 256)):
        assert strides_of("sliding", lengths) == dict.fromkeys(lengths, stride)
    assert strides_of("paper", [64, 512]) == {64: 64, 512: 64}  # no gaps
    refuses("63 tokens of text are fewer than one window of 64", spread, 63, 64, 8, 64, 100)
    refuses(r"stride=16 must lie in 1\.\.15", spread, 64, 16, 16, 64, 100)
    refuses(r"stride=16 must lie in 1\.\.15", strides_of, "sliding", [32, 16], 16)
    with pytest.raises(ValueError, match="stride=8 with convention 'disjoint': it can only be 16"):
        strides_of("disjoint", [8, 16], 8)
    for name, tokens in {"sliding": 15, "disjoint": 15, "paper": 16, "longlora": 24}.items():
        with pytest.raises(ValueError, match=f"{tokens} tokens of text have no window of 16 that"):
            windows_of(name, tokens, 16, 8)
        assert windows_of(name, tokens + 1, 16, 8)


def test_batches_hold_windows_of_one_size():
    windows = windows_of("sliding", 1000, 256, 100)
    batches = batches_of(windows, 256, 3 * 256)
    assert [w for batch in batches for w in batch.windows] == windows
    assert [len(batch.windows) for batch in batches] == [3, 3, 2, 1]  # the last one is cut
    assert [batch.cost for batch in batches] == [768, 768, 512, 200]
    assert {batch.length for batch in batches} == {256}
