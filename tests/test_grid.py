"""The evaluation of arithmetic: decoding against a plain loop, marking, parts, shards, pictures."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from conftest import perturb
from hydra import compose, initialize_config_dir

import arithmetic.evaluate as entry
from arithmetic import Problems, character_tokenizer
from arithmetic.decoding import answers
from arithmetic.grid import GRID, read_evaluation
from arithmetic.grid_plan import plan
from tape import TapeConfig, TapeForCausalLM
from tape.evaluation import workers
from tape.evaluation.accuracy import share
from tape.evaluation.journal import FILE, Shard, read
from tape.model.checkpoint import load
from tape.results import heatmap
from tape.results.figures import Map, side_by_side
from tape.statistics import wilson

RESULTS = ("grid.csv", "summary.json", "wrong.jsonl", "heatmap.png", "heatmap.svg")
ROOT = entry.CONFIG.parent.parent
TRAINED = Problems(max_first=2, max_second=1)


def make_run(folder, position="tape", seed=0):
    tokenizer = character_tokenizer()
    torch.manual_seed(seed)
    config = TapeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TRAINED.length,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        position=position,
    )
    model = perturb(TapeForCausalLM(config))
    with torch.no_grad():  # so that some answers end before they must
        model.lm_head.weight[tokenizer.eos_token_id] *= 3.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    TRAINED.save(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "add_tape")


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "add_tape")


def evaluate(folder, *overrides):
    with initialize_config_dir(version_base=None, config_dir=str(entry.CONFIG)):
        small = [f"model={folder}", "max_length=3", "samples=4", "batch_size=5"]
        entry.run(compose("evaluate_add", overrides=[*small, *overrides]))
    return folder / "grid"


def contents(results):
    return {name: (results / name).read_bytes() for name in RESULTS}


def answering(monkeypatch, answer):
    """Put a function of a question in the place of the model."""

    def answers(model, tokenizer, batch):
        return [answer(question, tokenizer.eos_token) for question in batch.questions]

    monkeypatch.setattr(entry, "answers", answers)


@pytest.mark.parametrize("position", ["tape", "randpe", "fire"])
def test_decoding_equals_a_loop(position, tmp_path):
    model, tokenizer = load(make_run(tmp_path, position))
    end, endings = tokenizer.eos_token_id, 0
    for batch in plan(TRAINED, 3, 3, 0, batch_size=7):
        given = answers(model, tokenizer, batch)
        for question, text in zip(batch.questions, given, strict=True):
            prompt = tokenizer(question.prompt)["input_ids"]
            ids = list(prompt)
            while len(ids) < len(prompt) + batch.new_tokens and ids[-1] != end:
                with torch.no_grad(), model.evaluation_length(batch.length):
                    logits = model(torch.tensor([ids]), use_cache=False).logits
                ids.append(logits[0, -1].argmax().item())
            assert text == tokenizer.decode(ids[len(prompt) :])
            endings += len(ids) < len(prompt) + batch.new_tokens
    assert endings  # or the end of an answer would not have been tested


def test_abacus_answers_alike_with_and_without_a_cache(tmp_path):
    digits = [character_tokenizer().get_vocab()[digit] for digit in "0123456789"]
    position = {"name": "abacus", "length": 8, "digits": digits}
    model, tokenizer = load(make_run(tmp_path, position))
    for batch in plan(TRAINED, 2, 2, 0, batch_size=7):
        texts = answers(model, tokenizer, batch)
        assert texts == answers(model, tokenizer, batch, use_cache=False)
        assert any(any(map(str.isdigit, text)) for text in texts)


def test_a_plan_asks_everything_once():
    batches = plan(TRAINED, 4, 6, 0, batch_size=10)
    expected = [
        (n, m, *q) for n in range(1, 5) for m in range(1, 5) for q in TRAINED.evaluation(n, m, 6, 0)
    ]
    assert sorted(q for batch in batches for q in batch.questions) == sorted(expected)
    for batch in batches:
        assert 0 < len(batch.questions) <= 10
        assert len({len(question.prompt) for question in batch.questions}) == 1
        assert batch.new_tokens == max(max(q.n, q.m) for q in batch.questions) + 2
        assert batch.length >= len(batch.questions[0].prompt) + batch.new_tokens
    lengths = {}  # how positions are drawn does not depend on the batch
    assert all(
        lengths.setdefault(len(b.questions[0].prompt), b.length) == b.length for b in batches
    )


def test_spaces_are_no_mistakes_of_a_model_that_learned_them(folder, monkeypatch):
    """It needs the room for them, too."""
    (plain,), (spaced,) = (plan(Problems(spaces=p), 1, 3, 0, 8) for p in (0.0, 0.5))
    assert (plain.new_tokens, spaced.new_tokens) == (3, 6)  # " 5 1 " and EOS
    model, tokenizer = load(folder)
    end = tokenizer.eos_token
    written = torch.tensor([tokenizer(f"5 1 {end}7")["input_ids"]] * 3)
    monkeypatch.setattr(model, "generate", lambda ids, **_: torch.cat((ids, written), dim=1))
    assert answers(model, tokenizer, spaced) == [f"51{end}"] * 3
    assert answers(model, tokenizer, plain) == [f"5 1 {end}"] * 3


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_share_the_cost(count):
    costs = [batch.cost for batch in plan(TRAINED, 8, 5, 0, batch_size=9)]
    shares = [Shard(index, count).numbers(len(costs)) for index in range(1, count + 1)]
    assert sorted(number for share in shares for number in share) == list(range(len(costs)))
    totals = [sum(costs[number] for number in share) for share in shares]
    assert max(totals) - min(totals) <= max(costs)


@pytest.mark.parametrize("text", ["5/4", "0/4", "x", "1", "1/0", "-1/4", "1/4/2", ""])
def test_shards_that_do_not_exist(text):
    with pytest.raises(ValueError, match="must be i/n with 1 <= i <= n"):
        Shard.parse(text)


def test_wilson_against_known_values():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(29, 29) == pytest.approx((0.8830, 1.0), abs=1e-4)


def test_the_truth_is_right_and_a_random_model_is_not(folder, monkeypatch):
    random = share(read_evaluation(evaluate(folder)).rows)
    assert random["total"] == 9 * 4 and random["accuracy"] < 0.2
    answering(monkeypatch, lambda question, end: question.answer + end)
    truth = read_evaluation(evaluate(folder, "name=truth").parent / "truth")
    assert (truth.rows["value"] == 1).all()
    assert (folder / "truth" / "wrong.jsonl").read_text() == ""


@pytest.mark.parametrize(
    "spoil",
    [
        lambda answer, end: answer,  # no end
        lambda answer, end: answer[:-1] + end,
        lambda answer, end: answer + "0" + end,
        lambda answer, end: " " + answer + end,
        lambda answer, end: answer[:-1] + chr(ord(answer[-1]) ^ 1) + end,
        lambda answer, end: "",
    ],
)
def test_only_the_exact_answer_is_right(spoil, folder, monkeypatch):
    answering(monkeypatch, lambda question, end: spoil(question.answer, end))
    results = evaluate(folder)
    assert share(read_evaluation(results).rows)["correct"] == 0
    rows = [json.loads(line) for line in (results / "wrong.jsonl").read_text().splitlines()]
    assert [(row["n"], row["m"]) for row in rows] == [
        (n, m) for n in (1, 2, 3) for m in (1, 2, 3) for _ in range(3)
    ]
    assert all(row["given"] != row["expected"] for row in rows)


def test_rows_are_the_first_operand(folder, monkeypatch):
    answering(monkeypatch, lambda q, end: "" if q.n == 2 else q.answer + end)
    results = evaluate(folder)
    with (results / "grid.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert rows[3] == {
        **{"measure": "accuracy", "first_digits": "2", "second_digits": "1"},
        **{"value": "0.0", "n": "4", "unit": "share"},
    }
    wrong = {(r["first_digits"], r["second_digits"]) for r in rows if r["value"] == "0.0"}
    assert wrong == {("2", "1"), ("2", "2"), ("2", "3")}
    axes, bar = side_by_side(heatmap.maps_in(results, "run")).axes
    image = axes.images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    left, right, bottom, top = image.get_extent()
    assert (left, right, bottom, top) == (-0.5, 2.5, 2.5, -0.5)  # (1, 1) at the top left
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text() for label in labels] == ["1", "2", "3"]
    assert "first" in axes.get_ylabel() and "second" in axes.get_xlabel()
    assert "0.667" in axes.get_title() and image.get_clim() == (0, 1) and bar.get_ylabel()
    frame = axes.patches[0].get_bbox()  # 2 x 1 digits in training
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (-0.5, 0.5, -0.5, 1.5)
    summary = json.loads((results / "summary.json").read_text())
    inside, outside = summary["inside"], summary["outside"]
    assert (inside["correct"], inside["total"]) == (4, 8)
    assert (outside["correct"], outside["total"]) == (20, 28)
    assert [cell["accuracy"] for cell in summary["diagonal"]] == [1, 0, 1]
    assert summary["evaluated"]["samples"] == 4 and len(summary["evaluated"]["model"]) == 64


@pytest.mark.parametrize("size", [1, 10, 20, 37, 80, 300])
def test_labels_stay_readable(size):
    digits = [(n, m) for n in range(1, size + 1) for m in range(1, size + 1)]
    rows = pd.DataFrame(digits, columns=["first_digits", "second_digits"])
    rows = rows.assign(measure="accuracy", value=1.0, n=1)
    asked = {"problems.max_first": size // 2, "problems.max_second": size}
    *panels, _bar = side_by_side([Map("run", "arithmetic", asked, rows)] * 5).axes
    assert len(panels) == 5
    for axes in panels:
        labels, others = axes.get_xticklabels(), axes.get_yticklabels()
        assert [each.get_text() for each in labels] == [each.get_text() for each in others]
        assert labels[0].get_text() == "1" and len(labels) <= 12
        assert axes.images[0].get_clim() == (0, 1)


def test_shards_merge_into_the_unsharded_run(folder, trained, tmp_path):
    whole = contents(evaluate(folder))
    other = shutil.copytree(trained, tmp_path / "shards" / "add_tape")
    evaluate(other, "shard=2/3")
    with pytest.raises(ValueError, match=r"batches are missing.* a shard not started"):
        GRID.gather(other / "grid")
    evaluate(other, "shard=1/3")
    assert not (other / "grid" / "grid.csv").exists()
    evaluate(other, "shard=3/3")  # the last one to finish
    assert contents(other / "grid") == whole
    GRID.gather(other / "grid")
    assert contents(other / "grid") == whole


def test_a_torn_file_is_continued_to_the_same_results(folder, monkeypatch):
    results = evaluate(folder)
    whole, parts = contents(results), results / "shard-1-of-1" / FILE
    written = parts.read_bytes()
    asked = []

    def counted(model, tokenizer, batch, answers=entry.answers):
        asked.append(batch)
        return answers(model, tokenizer, batch)

    monkeypatch.setattr(entry, "answers", counted)
    ends = [n + 1 for n, byte in enumerate(written) if byte == ord("\n")]
    cuts = {5: 0, ends[0]: 0, ends[3] - 1: 2, ends[3]: 3, ends[3] + 9: 3, len(written): None}
    for size, kept in cuts.items():
        for name in RESULTS:
            (results / name).unlink()
        parts.write_bytes(written[:size])
        asked.clear()
        evaluate(folder)
        assert len(asked) == (0 if kept is None else len(ends) - 1 - kept)
        assert contents(results) == whole and parts.read_bytes() == written


def test_a_killed_process_is_continued(folder, trained, tmp_path):
    whole = contents(evaluate(shutil.copytree(trained, tmp_path / "whole" / "add_tape")))
    dies = """
import os, runpy, signal, arithmetic.decoding as decoding
before, left = decoding.answers, iter([True] * 3)
def answers(*given):
    next(left, False) or os.kill(os.getpid(), signal.SIGKILL)
    return before(*given)
decoding.answers = answers
runpy.run_module("arithmetic.evaluate", run_name="__main__")
"""
    settings = [f"model={folder}", "max_length=3", "samples=4", "batch_size=5", "processes=1"]
    command = [sys.executable, "-c", dies, *settings]
    killed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(read(folder / "grid" / "shard-1-of-1" / FILE)[1]) == 3
    assert contents(evaluate(folder)) == whole


@pytest.mark.slow
def test_several_processes_equal_one_and_end_with_it(folder, trained, tmp_path):
    settings = ["max_length=3", "samples=40", "batch_size=5"]
    whole = shutil.copytree(trained, tmp_path / "whole" / "add_tape")
    whole = contents(evaluate(whole, *settings))
    command = [sys.executable, "-m", "arithmetic.evaluate", f"model={folder}", *settings]
    started = subprocess.Popen([*command, "processes=2"], cwd=ROOT, stderr=subprocess.DEVNULL)
    parts = folder / "grid" / "shard-1-of-1" / FILE
    while started.poll() is None and (not parts.exists() or parts.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    children = psutil.Process(started.pid).children(recursive=True)
    started.kill()
    assert started.wait() == -signal.SIGKILL and len(children) >= 2
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert contents(evaluate(folder, *settings, "processes=2")) == whole


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_that_is_done(folder, monkeypatch):
    monkeypatch.setattr(workers, "_answer", die)
    with pytest.raises(OSError, match=r"was killed, .* repeat the command"):
        evaluate(folder, "processes=2")
    monkeypatch.undo()
    evaluate(folder, "samples=5")  # nothing was: other settings may follow


def die(batch):
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_does_not_belong_together_is_refused(folder, tmp_path):
    evaluate(folder)
    with pytest.raises(ValueError, match="samples: 4 -> 5"):
        evaluate(folder, "samples=5")
    with pytest.raises(ValueError, match=r"overlap: batch 1 belongs to both"):
        evaluate(folder, "shard=2/2")
    with pytest.raises(ValueError, match=r"different evaluations \(seed: 0 -> 1\)"):
        evaluate(folder, "shard=2/2", "seed=1")
    assert [path.name for path in (folder / "grid").glob(f"*/{FILE}")] == [FILE]
    make_run(tmp_path / "other", seed=1)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    with pytest.raises(ValueError, match=r"holds another evaluation \(model: "):
        evaluate(folder)
    parts = folder / "grid" / "shard-1-of-1" / FILE
    parts.write_text("{\n" + parts.read_text())
    with pytest.raises(ValueError, match="is damaged"):
        GRID.gather(folder / "grid")


def test_refusals(folder, tmp_path):
    with pytest.raises(ValueError, match="shard='5/4' must be"):
        evaluate(folder, "shard=5/4")
    with pytest.raises(ValueError, match="samples='many' must be an integer"):
        evaluate(folder, "samples=many")
    with pytest.raises(ValueError, match="max_length=0 must be an integer"):
        evaluate(folder, "max_length=0")
    with pytest.raises(ValueError, match=r"has no problems\.json"):
        evaluate(tmp_path)
    with pytest.raises(ValueError, match="contains no evaluation"):
        GRID.gather(folder / "grid")
    with pytest.raises(ValueError, match=r"has no grid\.csv"):
        read_evaluation(folder / "grid")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        evaluate(folder)


def test_a_grid_of_a_model_whose_state_is_not_updated(folder, trained, tmp_path):
    """That of RoPE with the same weights; and no grid is continued with another state."""
    changed = ("processes=2", "intervention=initial", "wrong=9", "name=changed")
    evaluate(folder, *changed)
    rope = make_run(tmp_path / "rope", "rope")
    model = TapeForCausalLM.from_pretrained(rope)
    model.load_state_dict(load(trained)[0].state_dict(), strict=False)
    model.save_pretrained(rope)
    expected = evaluate(rope, "wrong=9")
    for name in ("grid.csv", "wrong.jsonl"):
        assert (folder / "changed" / name).read_text() == (expected / name).read_text()
    own = evaluate(shutil.copytree(trained, tmp_path / "own"), "wrong=9")
    assert (own / "wrong.jsonl").read_text() != (expected / "wrong.jsonl").read_text()
    with pytest.raises(ValueError, match="intervention"):
        evaluate(folder, "wrong=9", "name=changed")
    with pytest.raises(ValueError, match=r"with name=grid, .* such as name=grid_initial"):
        evaluate(folder, "intervention=initial")
    with pytest.raises(ValueError, match="position 'rope': give a model with tape or tape_yarn"):
        evaluate(rope, "intervention=phases", "name=other")


def test_more_digits_than_there_are_positions(tmp_path):
    folder = make_run(tmp_path, {"name": "randpe", "length": 13})
    evaluate(folder)  # 123+987=0111 and EOS
    with pytest.raises(ValueError, match=r"max_length=4 needs 16 positions, .* 13"):
        evaluate(folder, "max_length=4", "name=longer")
    assert not (folder / "longer").exists()


def test_commands(folder, monkeypatch, capsys, tmp_path):
    def call(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        module.main()

    with pytest.raises(SystemExit, match="error: shard='x' must be i/n"):
        call(entry, f"model={folder}", "shard=x")
    with pytest.raises(SystemExit, match=r"error: give model=\.\.\., the folder of a trained run"):
        call(entry)
    with pytest.raises(SystemExit, match=r"error: no evaluation with a heat map in .*grid: "):
        heatmap.main([str(folder), "--name", "grid"])
    call(entry, f"model={folder}", "samples=1")  # twice the trained lengths
    assert len(read_evaluation(folder / "grid").rows) == 4 * 4 and not list(
        folder.glob("**/.hydra")
    )
    heatmap.main([str(folder), str(folder), "--out", str(tmp_path / "two.png")])
    assert (tmp_path / "two.png").stat().st_size and (tmp_path / "two.svg").stat().st_size
