"""Evaluations on addition, pass keys and synthetic problems: one contract for all of them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from commands import ROOT
from test_prompts import TOKENIZERS
from test_scrolls import make_base

import tape.tasks.evaluate as entry
from arithmetic.addition_task import GRID, GridQuestions
from arithmetic.problems import Problems
from tape import TapeForCausalLM
from tape.cli import evaluate as parsers
from tape.core import provenance
from tape.evaluation import journal as workers
from tape.evaluation.journal import FILE, join
from tape.evaluation.questions import Questions, greedy
from tape.evaluation.task import tasks_by_name
from tape.model.checkpoint import load
from tape.tasks.passkey.passkey_task import PasskeyQuestions
from tape.tasks.passkey.sequences import Passkeys
from tape.tasks.synthetic.problems import Synthetic
from tape.tasks.synthetic.synthetic_task import SyntheticQuestions

refused, slow = partial(pytest.raises, ValueError), pytest.mark.slow


class Case(NamedTuple):
    """What a tiny model is asked, in several batches of some cells, as `FLAGS` do."""

    source: Any
    place: str
    questions: Questions

    @property
    def tokenizer(self):
        return self.source.tokenizer() if self.source else TOKENIZERS["byte_level"][1]


FLAGS = {
    "addition": "addition --max_length 3 --samples 4 --batch_size 5",
    "passkey": "passkey --max_tokens 60 --interval 30 --num_tests 4 --depths 3 --batch_tokens 200",
    "original": "passkey --max_tokens 300 --interval 300 --num_tests 3 --batch_tokens 9 --original",
    "synthetic": "synthetic --max_length 8 --samples 5 --batch_tokens 40",
}
SUMS, KEYS, COPIES = Problems(2, 1), Passkeys(40), Synthetic("copy", 1, 4)
CASES = {
    "addition": Case(SUMS, "grid", GridQuestions(SUMS, 3, 4)),
    "passkey": Case(KEYS, "passkey", PasskeyQuestions(60, 30, 4, 3, plain=True)),
    "original": Case(None, "passkey_original", PasskeyQuestions(300, 300, 3, original=True)),
    "synthetic": Case(COPIES, "synthetic", SyntheticQuestions(COPIES, (2, 3, 4, 6, 8), 5, 0)),
}
all_cases = pytest.mark.parametrize("name", CASES)


def make_run(folder, name="addition", position="tape", seed=0):
    """A small model without training, in a folder as a run leaves it."""
    source, tokenizer = CASES[name].source, CASES[name].tokenizer
    length = source.length if source else 64
    make_base(folder, position, seed, tokenizer, max_position_embeddings=length)
    if source is not None:
        source.save(folder)
    settings = json.dumps({"task.criterion": None, "trainer.max_steps": 5})
    for file, text in {"run.json": "{}", "trained.json": settings, "metrics.jsonl": ""}.items():
        (folder / file).write_text(text)
    return folder


@pytest.fixture
def folder(name, tmp_path):
    return make_run(tmp_path / "run", name)


def command(folder, name, flags=""):
    return [str(folder), *f"--task {FLAGS[name]} --processes 1 {flags}".split()]


def evaluate(folder, name, flags=""):
    return entry.evaluate(parsers.evaluate(command(folder, name, flags)))


def contents(results):
    """Everything but the journals."""
    return {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}


def journal(results):
    return results / "shard-1-of-1" / FILE


@torch.no_grad()
@pytest.mark.parametrize("name", ["addition", "passkey", "original"])
@pytest.mark.parametrize("position", ["tape", {"name": "randpe", "length": 1000}])
def test_answers_are_those_of_a_loop(name, position, tmp_path):
    """Over one prompt at a time, without a cache."""
    model, tokenizer = load(make_run(tmp_path, name, position))
    questions, endings = CASES[name].questions, 0
    for batch in questions.plan(tokenizer, 10**6 if name == "original" else 200):
        assert (len({each.tokens for each in batch.questions}) > 1) == (name == "original")
        given = questions.answers(model, tokenizer, batch)
        for question, answer in zip(batch.questions, given, strict=True):
            ids = tokenizer(question.prompt)["input_ids"]
            start, end = len(ids), len(ids) + batch.new_tokens
            while len(ids) < end and ids[-1] != tokenizer.eos_token_id:
                with model.evaluation_length(batch.length):
                    logits = model(torch.tensor([ids]), use_cache=False).logits
                ids.append(logits[0, -1].argmax().item())
            assert answer.shown["given"] == tokenizer.decode(ids[start:])
            endings += len(ids) < end
    assert endings or name != "addition"  # or the end of an answer would not have been tested


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_answers_end_with_any_end_token_of_the_checkpoint(file, tmp_path):
    run, questions = make_run(tmp_path, "passkey"), CASES["passkey"].questions
    model, tokenizer = load(run)
    (batch, *_) = questions.plan(tokenizer, batch_size=4)
    prompts = tokenizer([question.prompt for question in batch.questions])["input_ids"]
    whole = greedy(model, prompts, [-1], batch.new_tokens, batch.length)
    stops = {tokenizer.eos_token_id, whole[0][2]}
    settings = json.loads((run / file).read_text()) | {"eos_token_id": sorted(stops)}
    (run / file).write_text(json.dumps(settings))
    given = questions.answers(*load(run), batch)
    for row, answer in zip(whole, given, strict=True):
        end = next((n for n, id_ in enumerate(row) if id_ in stops), len(row))
        text = tokenizer.decode(row[:end]) + tokenizer.eos_token * (end < len(row))
        assert answer.shown["given"] == text


def test_answers_that_no_token_ends_are_refused(tmp_path):
    model, _ = load(make_run(tmp_path, "passkey"))
    with refused(match="no token ends an answer"):
        greedy(model, [[1, 2]], [], 2, 8)


def test_one_pass_marks_as_greedy_decoding_does(tmp_path):
    """The labels are replaced by what the model writes, for every second problem."""
    model, tokenizer = load(make_run(tmp_path, "synthetic"))
    questions = replace(CASES["synthetic"].questions, lengths=(5,), samples=8)
    (batch,) = questions.plan(tokenizer, 10**6)
    model.generation_config.repetition_penalty = 5.0  # of a base model
    written = greedy(model, [each.prompt[:6] for each in batch.questions], [-1], 6, 12)
    assert model.generation_config.repetition_penalty == 5.0
    for question, ids in [*zip(batch.questions, written, strict=True)][::2]:
        question.prompt[6:], question.answer[6:] = ids, ids
    given = questions.answers(model, tokenizer, batch)
    assert [each.right for each in given] == [True, False] * 4
    assert {each.counts[2] for each in given} == {6}
    assert [each.shown["given"] for each in given[::2]] == [*map(tokenizer.decode, written[::2])]


@all_cases
def test_a_plan_asks_everything_once_and_its_batches_do_not_matter(name, tmp_path):
    """Neither does a random draw of positions. Only the room of others may be longer. The costliest
    batch is the first."""
    model, tokenizer = load(make_run(tmp_path, name, {"name": "randpe", "length": 1000}))
    questions, given = CASES[name].questions, []
    groups = [*questions.groups(tokenizer)]
    for how in ({"batch_tokens": 200}, {"batch_size": 3}, {"batch_size": 1000}):
        texts, batches = [], questions.plan(tokenizer, **how)
        for batch in batches:
            asked, costs = batch.questions, [each.cost for each in batches]
            assert len(asked) == 1 or batch.cost <= 200 or "batch_size" in how
            assert batch.length >= max(each.tokens for each in asked) + batch.new_tokens
            assert batch.new_tokens == max(each.room for each in asked)
            answers = questions.answers(model, tokenizer, batch)
            pairs = zip(asked, answers, strict=True)
            for each, answer in pairs:
                texts.append((str(each), answer.shown["given"][: each.room or None]))
        assert costs == sorted(costs, reverse=True)
        given.append(sorted(texts))
    assert given[0] == given[1] == given[2] and len(batches) == len(groups)
    assert [each for each, _ in given[0]] == sorted(str(each) for group in groups for each in group)


@all_cases
def test_a_torn_journal_is_continued_to_the_same_results(name, folder, monkeypatch):
    case = CASES[name]
    evaluate(folder, name)
    results, batches = folder / case.place, []
    whole, written = contents(results), journal(results).read_bytes()
    assert {"summary.json", "wrong.jsonl"} < whole.keys()
    kind, answers = type(case.questions), type(case.questions).answers
    counted = lambda *given: batches.append(given) or answers(*given)  # noqa: E731
    monkeypatch.setattr(kind, "answers", counted)
    lines = written.splitlines(keepends=True)
    two = len(b"".join(lines[:3]))  # the header and two batches
    for size, kept in {5: 0, two - 1: 1, two + 9: 2, len(written): len(lines) - 1}.items():
        for file in whole:
            (results / file).unlink()
        journal(results).write_bytes(written[:size])
        batches.clear()
        evaluate(folder, name)
        assert len(batches) == len(lines) - 1 - kept
        assert contents(results) == whole and journal(results).read_bytes() == written


@all_cases
def test_shards_give_the_same_as_one(name, folder, tmp_path):
    case = CASES[name]
    evaluate(folder, name)
    other = make_run(tmp_path / "shards" / "run", name)
    place = other / case.place
    assert evaluate(other, name, "--shard 2/3") is None
    assert evaluate(other, name, "--shard 2/6") is None  # again what the first has answered
    results = tasks_by_name()[FLAGS[name].split()[0]].load().results
    with refused(match=r"batches are missing.* a shard not started"):
        results.write(place, *join(place))
    assert evaluate(other, name, "--shard 1/3") is None and not (place / results.file).exists()
    found = evaluate(other, name, "--shard 3/3")  # the last one to finish
    assert contents(place) == contents(folder / case.place)
    assert results.write(place, *join(place)).rows.equals(found.rows)
    assert results.read(place).rows.equals(found.rows)


@slow
@pytest.mark.parametrize("name", ["passkey"])
def test_several_processes_equal_one_and_end_with_it(name, folder, tmp_path):
    whole, place = make_run(tmp_path / "whole" / "run", name), folder / CASES[name].place
    evaluate(whole, name)
    several = command(folder, name, "--processes 2")
    words = [sys.executable, "-m", "tape.cli", "evaluate", *several]
    started = subprocess.Popen(words, cwd=ROOT)
    while started.poll() is None and not journal(place).exists():
        time.sleep(0.02)
    time.sleep(1)  # for the workers
    children = [] if started.poll() is not None else psutil.Process(started.pid).children(True)
    started.kill()
    started.wait()
    assert not psutil.wait_procs(children, timeout=300)[1]
    evaluate(folder, name, "--processes 2")
    assert contents(place) == contents(whole / CASES[name].place)


@slow
@pytest.mark.parametrize("name", ["addition"])
def test_a_worker_that_is_killed_loses_nothing_that_is_done(name, folder, monkeypatch):
    monkeypatch.setattr(workers, "_answer", die)
    with pytest.raises(OSError, match=r"was killed, .* repeat the command"):
        evaluate(folder, name, "--processes 2")
    monkeypatch.undo()
    with monkeypatch.context() as others:
        others.setattr(workers, "_begin", begin_after_a_change)
        with refused(match="the model was written again while it was read: repeat"):
            evaluate(folder, name, "--processes 2")
    evaluate(folder, name, "--samples 5")  # nothing was: other settings may follow


def die(batch):
    os.kill(os.getpid(), signal.SIGKILL)


def begin_after_a_change(folder, answer, load, files, begin=workers._begin):
    begin(folder, answer, load, files[:-1])


@pytest.mark.parametrize("name", ["addition"])
def test_what_does_not_belong_together_is_refused(name, folder, tmp_path, monkeypatch):
    evaluate(folder, name)
    with refused(match=r"holds another evaluation \(wrong: 3 -> 4"):
        evaluate(folder, name, "--wrong 4")
    with refused(match=r"shard-1-of-1/parts.jsonl holds another evaluation \(seed: 0 -> 1\)"):
        evaluate(folder, name, "--shard 2/2 --seed 1")
    assert [path.parent.name for path in folder.glob(f"*/*/{FILE}")] == ["shard-1-of-1"]
    with monkeypatch.context() as edited:
        edited.setattr(provenance, "fingerprint", lambda model: "of other code")
        with refused(match=r"holds another evaluation \(code: \w+ -> of other code\)"):
            evaluate(folder, name)
    make_run(tmp_path / "other", name, seed=1)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    with refused(match=r"holds another evaluation \(model: "):
        evaluate(folder, name)
    place = folder / CASES[name].place
    journal(place).write_text("{\n" + journal(place).read_text())
    with refused(match="is damaged"):
        GRID.write(place, *join(place))


@pytest.mark.parametrize(
    ("name", "position", "flags"),
    [
        ("addition", "tape", "--intervention initial"),
        pytest.param("addition", "tape", "--intervention initial --processes 2", marks=slow),
        ("passkey", "rope", "--extend dca --factor 2"),
    ],
)
def test_a_changed_model_answers_as_one_that_is_so(name, position, flags, tmp_path):
    """TAPE without updates as RoPE, an extended model as one that was saved as such; in a folder of
    its own, beside the answers of the model as it is."""
    run, other = make_run(tmp_path / "run", name, position), make_run(tmp_path / "b", name, "rope")
    extended = {"name": "extended", "method": "dca", "window": None}
    suffix, changed = ("initial", {}) if position == "tape" else ("dca_2", {"position": extended})
    model = TapeForCausalLM.from_pretrained(other, **changed)
    model.load_state_dict(load(run)[0].state_dict(), strict=False)
    model.save_pretrained(other)
    for folder, given in ((run, flags), (run, ""), (other, "")):
        evaluate(folder, name, f"--wrong 9 {given}")
    place = CASES[name].place
    places = run / f"{place}_{suffix}", other / place, run / place
    answers, expected, own = ((each / "wrong.jsonl").read_text() for each in places)
    assert answers == expected != own
    with refused(match="position '.*': give a model with tape or tape_yarn"):
        evaluate(other, name, "--intervention phases")
    with refused(match="holds another evaluation .*(intervention|extend)"):
        evaluate(run, name, f"--wrong 9 {flags} --name {place}")


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("tokenizer_config.json", {"add_bos_token": True}, "tokenizer: "),
        ("generation_config.json", {"eos_token_id": [0, 7]}, "end_tokens: "),
    ],
)
def test_answers_with_other_prompts_or_other_ends_are_not_repeated(file, change, what, tmp_path):
    run = make_run(tmp_path, "original")
    evaluate(run, "original")
    about = json.loads((run / file).read_text())
    (run / file).write_text(json.dumps(about | change))
    with refused(match=rf"holds another evaluation \({what}"):
        evaluate(run, "original")


def test_a_model_answers_in_another_dtype_as_one_that_was_saved_in_it(tmp_path):
    run, other = (make_run(tmp_path / place, "passkey", "rope") for place in "ab")
    load(run)[0].bfloat16().save_pretrained(other)
    evaluate(run, "passkey", "--wrong 9 --dtype bfloat16")
    evaluate(other, "passkey", "--wrong 9")
    place = CASES["passkey"].place
    found = run / f"{place}_bfloat16"
    assert (found / "wrong.jsonl").read_text() == (other / place / "wrong.jsonl").read_text()
    assert '"dtype": "bfloat16"' in journal(found).read_text()
