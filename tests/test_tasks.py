"""Evaluations on addition, pass keys and synthetic problems: one contract for all of them."""

import csv
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from commands import ROOT, run_command
from conftest import make_config, perturb
from test_prompts import byte_level, llama_like
from transformers import LlamaConfig, LlamaForCausalLM

import tape.tasks.evaluate as entry
from arithmetic import Problems, character_tokenizer
from arithmetic.addition_task import GridQuestions
from tape import TapeForCausalLM
from tape.evaluation import journal as workers
from tape.evaluation.figures import heat_map
from tape.evaluation.journal import FILE, Shard
from tape.evaluation.questions import Question, Questions, greedy
from tape.model.checkpoint import load
from tape.tasks.passkey.passkey_task import PasskeyQuestions, PasskeyTask
from tape.tasks.passkey.sequences import Passkeys, Prompt
from tape.tasks.synthetic.problems import Synthetic
from tape.tasks.synthetic.synthetic_task import SyntheticQuestions

refused = partial(pytest.raises, ValueError)


class Case(NamedTuple):
    """A task with what a tiny model is asked, in several batches of some cells."""

    task: str
    source: Any
    tokenizer: Any
    place: str
    questions: Questions


FLAGS = {
    "addition": "--max_length 3 --samples 4 --batch_size 5",
    "passkey": "--max_tokens 60 --interval 30 --num_tests 4 --depths 3 --batch_tokens 200",
    "original": "--max_tokens 300 --interval 300 --num_tests 3 --original --batch_tokens 900",
    "synthetic": "--max_length 8 --samples 5 --batch_tokens 40",
}
SUMS, KEYS = Problems(max_first=2, max_second=1), Passkeys(max_length=40)
COPIES, ORIGINAL = Synthetic("copy", 1, 4), PasskeyQuestions(300, 300, 3, original=True)
ASKED = SyntheticQuestions(COPIES, (2, 3, 4, 6, 8), 5, 0)
PLAIN = PasskeyQuestions(60, 30, 4, 3, plain=True)
CASES = {
    "addition": Case("addition", SUMS, SUMS.tokenizer(), "grid", GridQuestions(SUMS, 3, 4)),
    "passkey": Case("passkey", KEYS, KEYS.tokenizer(), "passkey", PLAIN),
    "original": Case("passkey", None, byte_level(), "passkey_original", ORIGINAL),
    "synthetic": Case("synthetic", COPIES, COPIES.tokenizer(), "synthetic", ASKED),
}
all_cases = pytest.mark.parametrize("name", CASES)
decoded = pytest.mark.parametrize("name", ["addition", "passkey", "original"])


def make_run(folder, name="addition", position="tape", seed=0):
    """A small model without training, in a folder as a run leaves it."""
    case = CASES[name]
    torch.manual_seed(seed)
    config = make_config(
        position,
        vocab_size=len(case.tokenizer),
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=case.source.length if case.source else 64,
        eos_token_id=case.tokenizer.eos_token_id,
        pad_token_id=case.tokenizer.pad_token_id,
    )
    model = perturb(TapeForCausalLM(config))
    with torch.no_grad():  # so that some answers end before they must
        model.lm_head.weight[case.tokenizer.eos_token_id] *= 3.0
    model.save_pretrained(folder)
    case.tokenizer.save_pretrained(folder)
    if case.source is not None:
        case.source.save(folder)
    (folder / "run.json").write_text("{}")
    settings = {"task.criterion": None, "trainer.max_steps": 5}
    (folder / "trained.json").write_text(json.dumps(settings))
    (folder / "metrics.jsonl").write_text("")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    return {name: make_run(parent / name, name) for name in CASES}


@pytest.fixture
def folder(made, name, tmp_path):
    return shutil.copytree(made[name], tmp_path / "run")


@pytest.fixture
def no_folder(monkeypatch):
    """Command lines are read though there is no such model."""
    monkeypatch.setattr("tape.command.check_model_folder", lambda folder: None)


def command(folder, name, *flags):
    case = CASES[name]
    words = [word for each in flags for word in each.split()]
    return [str(folder), "--task", case.task, *FLAGS[name].split(), "--processes", "1", *words]


def evaluate(folder, name, *flags):
    return entry.evaluate(entry.parsed(command(folder, name, *flags)))


def contents(results):
    """Everything but the journals."""
    return {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}


def journal(results):
    return results / "shard-1-of-1" / FILE


def asked(questions, tokenizer=None):
    return [each for group in questions.groups(tokenizer) for each in group]


def saying(monkeypatch, text):
    """Puts a function of a question and EOS in the place of the model."""

    def answers(self, model, tokenizer, batch):
        end = tokenizer.eos_token
        written = (tokenizer(text(each, end))["input_ids"] for each in batch.questions)
        pairs = zip(batch.questions, written, strict=True)
        return [self.mark(question, ids, tokenizer) for question, ids in pairs]

    monkeypatch.setattr(Questions, "answers", answers)


def truth(question, end):
    return getattr(question.answer, "answer", question.answer) + end


# ---- questions and answers


@torch.no_grad()
@decoded
@pytest.mark.parametrize("position", ["tape", {"name": "randpe", "length": 900}])
def test_answers_are_those_of_a_loop(name, position, tmp_path):
    """Over one prompt at a time, without a cache."""
    model, tokenizer = load(make_run(tmp_path, name, position))
    questions, endings = CASES[name].questions, 0
    batches = questions.plan(tokenizer, 10**6 if name == "original" else 200)
    widths = [len({each.tokens for each in batch.questions}) for batch in batches]
    assert (max(widths) > 1) == (name == "original")
    for batch in batches:
        given = questions.answers(model, tokenizer, batch)
        for question, answer in zip(batch.questions, given, strict=True):
            prompt = tokenizer(question.prompt)["input_ids"]
            ids = list(prompt)
            while len(ids) < len(prompt) + batch.new_tokens and ids[-1] != tokenizer.eos_token_id:
                with model.evaluation_length(batch.length):
                    logits = model(torch.tensor([ids]), use_cache=False).logits
                ids.append(logits[0, -1].argmax().item())
            assert answer.text == tokenizer.decode(ids[len(prompt) :])
            endings += len(ids) < len(prompt) + batch.new_tokens
    assert endings or name != "addition"  # or the end of an answer would not have been tested


def test_one_pass_marks_as_greedy_decoding_does(made):
    """The labels are replaced by what the model writes, for every second problem."""
    model, tokenizer = load(made["synthetic"])
    questions = replace(CASES["synthetic"].questions, lengths=(5,), samples=8)
    (batch,) = questions.plan(tokenizer, 10**6)
    model.generation_config.repetition_penalty = 5.0  # of a base model
    written = greedy(model, [each.prompt[:6] for each in batch.questions], -1, 6, 12)
    assert model.generation_config.repetition_penalty == 5.0
    for question, ids in [*zip(batch.questions, written, strict=True)][::2]:
        question.prompt[6:], question.answer[6:] = ids, ids
    given = questions.answers(model, tokenizer, batch)
    assert [each.right for each in given] == [True, False] * 4
    assert {each.counts[2] for each in given} == {6}
    assert [each.text for each in given[::2]] == [*map(tokenizer.decode, written[::2])]


@all_cases
def test_how_a_batch_is_made_up_does_not_matter(name, tmp_path):
    """Neither does a random draw of positions."""
    model, tokenizer = load(make_run(tmp_path, name, {"name": "randpe", "length": 900}))
    questions, given = CASES[name].questions, []
    for size in (1, 3, 1000):
        batches = questions.plan(tokenizer, batch_size=size)
        answers = [each for x in batches for each in questions.answers(model, tokenizer, x)]
        prompts = [str(each.prompt) for batch in batches for each in batch.questions]
        given.append(sorted(zip(prompts, answers, strict=True), key=str))
    assert given[0] == given[1] == given[2]


@all_cases
def test_a_plan_asks_everything_once_and_the_costliest_first(name):
    case = CASES[name]
    groups = [*case.questions.groups(case.tokenizer)]
    batches = case.questions.plan(case.tokenizer, batch_tokens=200)
    planned = [str(each) for batch in batches for each in batch.questions]
    assert sorted(planned) == sorted(str(each) for group in groups for each in group)
    assert [batch.cost for batch in batches] == sorted((x.cost for x in batches), reverse=True)
    for batch in batches:
        assert len(batch.questions) == 1 or batch.cost <= 200
        assert batch.length >= max(each.tokens for each in batch.questions) + batch.new_tokens
        assert batch.new_tokens == max(each.room for each in batch.questions)
    assert len(case.questions.plan(case.tokenizer, batch_size=10**6)) == len(groups)


KEY = Question((300, None), "The pass key is", Prompt("", ("123",)), 5, 9)
TWO_KEYS = Question((300, 0.0), "the pass keys are", Prompt("", ("12", "345")), 5, 9)
SUM = Question((1, 2), "5+59=", "001", 5, 4)
END = "<|endoftext|>"


WRONG = ["001", f"00{END}", f"0010{END}", f" 001{END}", f"000{END}", ""]
FOUND = [f" 123{END}", " 123 . the", " the pass key is 123 ."]
MISSED = [f" 12{END}", f" 1230{END}", f" 11 . 123{END}", " the lake is 123", " 1"]
SEVERAL = {f" 345 , 12{END}": 2, f" 12 , 12{END}": 1, f" 12 , 9 , 345{END}": 1, f" 7 , 8{END}": 0}
TOKENS = {" 123.": 1, " 123": 1, " 1234.": 0, " is 123.": 0}  # whatever follows


@pytest.mark.parametrize(
    ("name", "question", "found"),
    [
        ("addition", SUM, {f"001{END}": 1} | dict.fromkeys(WRONG, 0)),
        ("passkey", KEY, dict.fromkeys(FOUND, 1) | dict.fromkeys(MISSED, 0)),
        ("passkey", TWO_KEYS, SEVERAL),
        ("original", KEY, TOKENS),
    ],
)
def test_which_answers_are_right(name, question, found):
    tokenizer, questions = CASES[name].tokenizer, CASES[name].questions
    for written, n in found.items():
        answer = questions.mark(question, tokenizer(written)["input_ids"], tokenizer)
        right = n == (2 if question is TWO_KEYS else 1)
        assert (answer.right, answer.text, answer.shown["given"]) == (right, written, written)
        assert answer.counts == ((n, 1) if name == "addition" else (1, right, n, 5))


def test_spaces_are_no_mistakes_of_a_model_that_learned_them():
    """It needs the room for them, too."""
    tokenizer = character_tokenizer()
    for spaces, room, text in ((0.0, 3, "5 1 "), (0.5, 6, "51")):
        questions = GridQuestions(Problems(spaces=spaces), 1, 3)
        question = asked(questions)[0]
        assert question.room == room  # " 5 1 " and EOS
        written = tokenizer(f"5 1 {tokenizer.eos_token}")["input_ids"]
        assert questions.mark(question, written, tokenizer).text == text + tokenizer.eos_token


# ---- resuming, shards, processes


@all_cases
def test_a_torn_journal_is_continued_to_the_same_results(name, folder, monkeypatch):
    case = CASES[name]
    evaluate(folder, name)
    results, batches = folder / case.place, []
    whole, written = contents(results), journal(results).read_bytes()
    file = entry.task_of(case.task).results.file
    assert {file, "summary.json", "wrong.jsonl"} <= whole.keys()
    kind, answers = type(case.questions), type(case.questions).answers
    counted = lambda *given: batches.append(given) or answers(*given)  # noqa: E731
    monkeypatch.setattr(kind, "answers", counted)
    lines = written.splitlines(keepends=True)
    assert len(lines) > 3
    two = len(b"".join(lines[:3]))
    cuts = {5: 0, two - 1: 1, two + 9: 2, len(written): len(lines) - 1}
    for size, kept in cuts.items():
        for file in whole:
            (results / file).unlink()
        journal(results).write_bytes(written[:size])
        batches.clear()
        evaluate(folder, name)
        assert len(batches) == len(lines) - 1 - kept
        assert contents(results) == whole and journal(results).read_bytes() == written


@all_cases
def test_shards_give_the_same_as_one(name, folder, made, tmp_path):
    case = CASES[name]
    evaluate(folder, name)
    other = shutil.copytree(made[name], tmp_path / "shards" / "run")
    place = other / case.place
    assert evaluate(other, name, "--shard 2/3") is None
    assert evaluate(other, name, "--shard 2/6") is None  # again what the first has answered
    results = entry.task_of(case.task).results
    with refused(match=r"batches are missing.* a shard not started"):
        results.gather(place)
    assert evaluate(other, name, "--shard 1/3") is None and not (place / results.file).exists()
    found = evaluate(other, name, "--shard 3/3")  # the last one to finish
    assert contents(place) == contents(folder / case.place)
    assert results.gather(place).rows.equals(found.rows)
    assert results.read(place).rows.equals(found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["addition", "passkey", "synthetic"])
def test_several_processes_equal_one_and_end_with_it(name, folder, made, tmp_path):
    whole = shutil.copytree(made[name], tmp_path / "whole" / "run")
    evaluate(whole, name)
    several = command(folder, name, "--processes 2")
    started = subprocess.Popen([sys.executable, "-m", "tape.tasks.evaluate", *several], cwd=ROOT)
    place = folder / CASES[name].place
    while started.poll() is None and not (place.exists() and journal(place).exists()):
        time.sleep(0.02)
    time.sleep(1)
    children = (
        psutil.Process(started.pid).children(recursive=True) if started.poll() is None else []
    )
    started.kill()
    started.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]
    evaluate(folder, name, "--processes 2")
    assert contents(place) == contents(whole / CASES[name].place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["addition"])
def test_a_worker_that_is_killed_loses_nothing_that_is_done(name, folder, monkeypatch):
    monkeypatch.setattr(workers, "_answer", die)
    with pytest.raises(OSError, match=r"was killed, .* repeat the command"):
        evaluate(folder, name, "--processes 2")
    monkeypatch.undo()
    evaluate(folder, name, "--samples 5")  # nothing was: other settings may follow


def die(batch):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_shards_share_the_cost(count):
    questions = GridQuestions(Problems(), 8, 5)
    costs = [batch.cost for batch in questions.plan(character_tokenizer(), batch_size=9)]
    shares = [Shard(index, count).numbers(len(costs)) for index in range(1, count + 1)]
    assert sorted(number for share in shares for number in share) == list(range(len(costs)))
    totals = [sum(costs[number] for number in share) for share in shares]
    assert max(totals) - min(totals) <= max(costs)


@pytest.mark.parametrize("text", ["5/4", "0/4", "x", "1", "1/0", "-1/4", "1/4/2", ""])
def test_shards_that_do_not_exist(text):
    with refused(match="must be i/n with 1 <= i <= n"):
        Shard.parse(text)


@pytest.mark.parametrize("name", ["addition"])
def test_a_run_trained_with_a_fault_that_is_gone_is_refused(name, folder):
    (folder / "trained.json").write_text(json.dumps({"task": {"original_fault": True}}))
    with refused(match="was trained with task.original_fault=true, which this version lacks"):
        evaluate(folder, name)


@all_cases
def test_what_does_not_belong_together_is_refused(name, folder, tmp_path):
    case = CASES[name]
    evaluate(folder, name)
    with refused(match=r"holds another evaluation \(wrong: 3 -> 4"):
        evaluate(folder, name, "--wrong 4")
    with refused(match=r"shard-1-of-1/parts.jsonl holds another evaluation \(seed: 0 -> 1\)"):
        evaluate(folder, name, "--shard 2/2 --seed 1")
    assert [path.parent.name for path in folder.glob(f"*/*/{FILE}")] == ["shard-1-of-1"]
    make_run(tmp_path / "other", name, seed=1)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    with refused(match=r"holds another evaluation \(model: "):
        evaluate(folder, name)
    results, place = entry.task_of(case.task).results, folder / case.place
    (place / "summary.json").write_text("{")
    with refused(match=r"summary\.json is damaged"):
        results.read(place)
    journal(place).write_text("{\n" + journal(place).read_text())
    with refused(match="is damaged"):
        results.gather(place)


@pytest.mark.parametrize(
    ("name", "processes"),
    [("passkey", "1"), pytest.param("addition", "2", marks=pytest.mark.slow)],
)
def test_a_model_whose_state_is_not_updated_answers_as_rope(name, processes, folder, tmp_path):
    place, more = CASES[name].place, "--wrong 9"
    evaluate(folder, name, "--intervention initial --processes", processes, more)
    rope = make_run(tmp_path / "rope", name, "rope")
    model = TapeForCausalLM.from_pretrained(rope)
    model.load_state_dict(load(folder)[0].state_dict(), strict=False)
    model.save_pretrained(rope)
    evaluate(rope, name, more), evaluate(folder, name, more)
    expected = (rope / place / "wrong.jsonl").read_text()
    assert (folder / f"{place}_initial" / "wrong.jsonl").read_text() == expected
    assert (folder / place / "wrong.jsonl").read_text() != expected
    with refused(match="position 'rope': give a model with tape or tape_yarn"):
        evaluate(rope, name, "--intervention phases")
    with refused(match="intervention"):
        evaluate(folder, name, more, "--intervention initial --name", place)


# ---- results and pictures


def drawn(name, folder):
    """The heat map of the results in a folder."""
    results = entry.task_of(name).results
    asked, rows = results.read(folder)
    return heat_map(results.view.heatmap, rows.assign(row="run"), {"run": asked})


@pytest.mark.parametrize("name", ["addition"])
def test_rows_are_the_first_operand(name, folder, monkeypatch):
    saying(monkeypatch, lambda each, end: "" if each.cell[0] == 2 else truth(each, end))
    evaluate(folder, name)
    results = folder / "grid"
    rows = [*csv.DictReader((results / "grid.csv").open())]
    assert [*rows[3].values()] == ["accuracy", "2", "1", "0.0", "4", "share"]
    wrong = {(r["first_digits"], r["second_digits"]) for r in rows if r["value"] == "0.0"}
    assert wrong == {("2", "1"), ("2", "2"), ("2", "3")}
    kept = [json.loads(line) for line in (results / "wrong.jsonl").read_text().splitlines()]
    assert [(row["n"], row["m"]) for row in kept] == [(2, m) for m in (1, 2, 3) for _ in range(3)]
    axes, _ = drawn(name, results).axes
    image = axes.images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    assert [*image.get_extent()] == [-0.5, 2.5, 2.5, -0.5]  # (1, 1) at the top left
    assert "first" in axes.get_ylabel() and "0.667" in axes.get_title()
    frame = axes.patches[0].get_bbox()  # 2 x 1 digits in training
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (-0.5, 0.5, -0.5, 1.5)
    summary = json.loads((results / "summary.json").read_text())
    parts = [(summary[part]["correct"], summary[part]["total"]) for part in ("inside", "outside")]
    assert parts == [(4, 8), (20, 28)]
    assert [cell["accuracy"] for cell in summary["diagonal"]] == [1, 0, 1]
    assert summary["evaluated"]["samples"] == 4 and len(summary["evaluated"]["model"]) == 64


@pytest.mark.parametrize("name", ["passkey"])
def test_rows_are_lengths_and_depths(name, folder, monkeypatch):
    """Wrong at depth 0.5 of 60 tokens; the training went to 40."""
    saying(monkeypatch, lambda each, end: "" if each.cell == (60, 0.5) else truth(each, end))
    evaluate(folder, name)
    assert (folder / "passkey" / "passkey.csv").read_text().splitlines()[-6:] == [
        "accuracy,60,0.5,0.0,4,share",
        "found,60,0.5,0.0,4,share",
        "tokens,60,0.5,60.0,4,tokens",
        "accuracy,60,1.0,1.0,4,share",
        "found,60,1.0,1.0,4,share",
        "tokens,60,1.0,60.0,4,tokens",
    ]
    summary = json.loads((folder / "passkey" / "summary.json").read_text())
    parts = [(summary[part]["correct"], summary[part]["total"]) for part in ("inside", "outside")]
    assert parts == [(12, 12), (8, 12)]
    assert summary["lengths"][1]["accuracy"] == summary["lengths"][1]["found"] == 8 / 12
    wrong = (folder / "passkey" / "wrong.jsonl").read_text().splitlines()
    assert len(wrong) == 3 and all(json.loads(row)["depth"] == 0.5 for row in wrong)
    axes, _ = drawn(name, folder / "passkey").axes
    np.testing.assert_array_equal(axes.images[0].get_array(), [[1, 1], [1, 0], [1, 1]])


@pytest.mark.parametrize("name", ["passkey"])
def test_several_values_count_alone_and_together(name, folder, monkeypatch):
    first = lambda each, end: f" {each.answer.values[0]}{end}"  # noqa: E731
    saying(monkeypatch, lambda each, end: (truth if each.cell[1] else first)(each, end))
    found = evaluate(folder, name, "--keys 2 --values 2 --max_tokens 120 --interval 120")
    assert (folder / "passkey_2x2" / "passkey.csv").exists()
    of = {measure: [*rows["value"]] for measure, rows in found.rows.groupby("measure")}
    assert of["accuracy"] == [0, 1, 1] and of["found"] == [0.5, 1, 1]
    results = entry.task_of("passkey").results
    (length,) = results.summary(found)["lengths"]
    assert (length["accuracy"], length["found"]) == (8 / 12, 20 / 24)
    assert ", 0.833 of the values" in results.describe(found)


# ---- the command


def test_the_papers_command_line(made, no_folder):
    line = "--context_size 8192 --base_model output/llama_adape --max_tokens 8192 --interval 1000"
    given = entry.parsed(["--task", "passkey", *line.split()])
    questions, name = PasskeyTask.asked(given, given.run, load(made["original"])[0])
    assert [*questions.lengths] == [*range(1000, 8001, 1000)]
    assert (questions.num_tests, questions.plain, questions.original) == (20, False, False)
    batches = replace(questions, num_tests=1, depths=1).plan(byte_level(), 16384)
    assert max(batch.length for batch in batches) <= given.context_size and name == "passkey"
    for words in ("max_length=10 shard=1/4", "--max_length 10 --shard=1/4"):  # script/eval_add.sh
        given = entry.parsed(["output/add_tape", "--task", "addition", *words.split()])
        assert (str(given.run), given.max_length, given.shard) == ("output/add_tape", 10, "1/4")


def test_needles_of_the_training_are_those_that_are_asked(tmp_path, no_folder):
    Passkeys(max_length=90, keys=2).save(tmp_path)
    given = entry.parsed([str(tmp_path), "--task", "passkey"])
    questions, name = PasskeyTask.asked(given, tmp_path, None)
    assert (questions.keys, questions.values, questions.plain, name) == (2, 1, True, "passkey")
    assert (questions.max_tokens, questions.interval, questions.trained) == (720, 90, 90)


def test_the_command(made, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = shutil.copytree(made["passkey"], tmp_path / "run")
    words = ["--num_tests", "1", "--depths", "1", "--processes", "1"]
    done = run_command("eval_retrieval.py", "--base_model", folder, *words, folder=tmp_path)
    assert done.status == 0 and "320 tokens: " in caplog.text and "outside: " in caplog.text
    lengths = entry.task_of("passkey").results.read(folder / "passkey").rows["length"]
    assert [*lengths.unique()] == [40 * n for n in range(1, 9)]  # eight times 40


def test_a_base_model_keeps_its_files(made, tmp_path, monkeypatch):
    """Results of a model that is no run go to output/."""
    monkeypatch.chdir(tmp_path)
    base = shutil.copytree(made["passkey"], tmp_path / "bases" / "llama")
    (base / "run.json").unlink()
    before = sorted(path.name for path in base.iterdir())
    evaluate(base, "passkey")
    assert sorted(path.name for path in base.iterdir()) == before
    assert (tmp_path / "output" / "llama" / "passkey" / "passkey.csv").is_file()


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("addition", "--samples 2000000", "max_length=3 and samples=2000000: 18,000,000 quest"),
        ("addition", "--name report", "--name='report' is used by"),
        ("addition", "--context_size 8", r"context_size=8 is shorter .*, 8 \+ 5 tokens: .*_length"),
        ("passkey", "--interval 20", r"prompt of 20 tokens has no room .* which take 2\d"),
        ("passkey", "--context_size 64", r"context_size=64 is shorter .*, 60 \+ 9 tokens"),
        ("passkey", "--interval 70", "interval=70, the shortest length, is more than max_tokens"),
        ("passkey", "--keys 25", "keys=25 must be an integer in 1..24"),
        ("passkey", "--original", "one key and one value, and this .*: leave out --original"),
        ("original", "--values 2", "one key and one value, and this .*: leave out --original"),
        ("synthetic", "--max_length 0", "max_length=0: problems of copy have lengths in 1..100000"),
    ],
)
def test_refusals(name, flags, message, folder):
    with refused(match=message):
        evaluate(folder, name, flags)
    assert not [path for path in folder.iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "error: give --task, one of addition, passkey, synthetic"),
        ("--task division", r"error: --task: invalid choice: 'division'"),
        ("--task addition", "has no problems.json: give the folder of a run on this task"),
        ("--task synthetic", "has no synthetic.json: give the folder of a run on this task"),
        ("--task passkey", "error: give --max_tokens"),
        ("--task addition --samples many", "--samples: 'many' must be an integer >= 1"),
        ("--task addition --depths 3", "unrecognized arguments: --depths 3"),
        ("--task synthetic --seed -1", "--seed: '-1' must be an integer >= 0"),
    ],
)
def test_command_lines_are_refused_in_one_line(words, message, made, tmp_path):
    words = ("tape.tasks.evaluate", made["original"], *words.split())
    done = run_command("-m", *words, folder=tmp_path)
    assert done.status and len(done.lines) == 1 and message in done.lines[0]


@pytest.mark.parametrize(
    ("name", "length", "flags", "message"),
    [
        ("addition", 13, "max_length=4", r"max_length=4 needs 16 positions, .* 13"),
        ("passkey", 69, "--max_tokens 90", r"max_tokens=90 needs 99 positions, .* 'randpe' has 69"),
    ],
)
def test_more_tokens_than_there_are_positions(name, length, flags, message, tmp_path):
    folder = make_run(tmp_path, name, {"name": "randpe", "length": length})
    evaluate(folder, name)  # 123+987=0111 and EOS
    with refused(match=message):
        evaluate(folder, name, flags, "--name longer")
    assert not (folder / "longer").exists()


@torch.no_grad()
def test_a_llama_checkpoint_answers_as_the_library_does(tmp_path):
    tokenizer = llama_like()
    torch.manual_seed(0)
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    config |= {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    llama = LlamaForCausalLM(LlamaConfig(**config)).eval()
    llama.generation_config.repetition_penalty = 5.0  # of chats: no evaluation takes it
    llama.save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, tokenizer = load(tmp_path)
    questions = PasskeyQuestions(220, 220, 2, 2)
    (batch,) = questions.plan(tokenizer, 10**6)
    given = questions.answers(model, tokenizer, batch)
    for question, answer in zip(batch.questions, given, strict=True):
        ids = torch.tensor([tokenizer(question.prompt)["input_ids"]])
        how = {"do_sample": False, "repetition_penalty": 1.0, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        expected = llama.generate(ids, attention_mask=mask, max_new_tokens=batch.new_tokens, **how)
        assert answer.text == tokenizer.decode(expected[0, 220:])
    (tmp_path / "run.json").write_text("{}")
    found = evaluate(tmp_path, "passkey", "--max_tokens 220 --interval 110 --num_tests 1")
    assert {*found.rows["length"]} == {110, 220} and found.asked["trained"] == 2048
