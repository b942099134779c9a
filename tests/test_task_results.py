"""Answers on tasks that are right, results and heat maps, and the command line."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run_command
from conftest import refuses
from test_tasks import CASES, evaluate, make_run

from arithmetic.addition_task import GRID
from tape.cli import evaluate as parsers
from tape.evaluation.figures import heat_map
from tape.evaluation.questions import Question, Questions
from tape.model.checkpoint import load
from tape.tasks.passkey.passkey_task import PASSKEY, PasskeyTask
from tape.tasks.passkey.sequences import Passkeys, Prompt

KEY = Question((300, None), "The pass key is", Prompt("", ("123",)), 5, 9)
TWO_KEYS = Question((300, 0.0), "the pass keys are", Prompt("", ("12", "345")), 5, 9)
SUM = Question((1, 2), "5+59=", "001", 5, 4)
END = "<|endoftext|>"
WRONG = ["001", f"00{END}", f"0010{END}", f" 001{END}", f"000{END}", ""]
FOUND = [f" 123{END}", " 123 . the", " the pass key is 123 ."]
MISSED = [f" 12{END}", f" 1230{END}", f" 11 . 123{END}", " the lake is 123", " 1"]
SEVERAL = {f" 345 , 12{END}": 2, f" 12 , 12{END}": 1, f" 12 , 9 , 345{END}": 1, f" 7 , 8{END}": 0}
TOKENS = {" 123.": 1, " 123": 1, " 1234.": 0, " is 123.": 0}  # whatever follows


def test_which_answers_are_right():
    for name, question, found in (
        ("addition", SUM, {f"001{END}": 1} | dict.fromkeys(WRONG, 0)),
        ("passkey", KEY, dict.fromkeys(FOUND, 1) | dict.fromkeys(MISSED, 0)),
        ("passkey", TWO_KEYS, SEVERAL),
        ("original", KEY, TOKENS),
    ):
        tokenizer, questions = CASES[name].tokenizer, CASES[name].questions
        for written, n in found.items():
            answer = questions.mark(question, tokenizer(written)["input_ids"], tokenizer)
            right = n == (2 if question is TWO_KEYS else 1)
            assert (answer.right, answer.shown["given"]) == (right, written)
            assert answer.counts == ((n, 1) if name == "addition" else (1, right, n, 5))


def truth(question):
    return getattr(question.answer, "answer", question.answer) + END


@pytest.fixture
def answered(tmp_path, monkeypatch):
    """Evaluates a run whose answers are a function of the question. Returns the evaluation, its
    folder, the summary, the counts in and beyond the trained conditions, and the wrong answers."""

    def answered(name, text, flags=""):
        def answers(self, model, tokenizer, batch):
            written = (tokenizer(text(each))["input_ids"] for each in batch.questions)
            pairs = zip(batch.questions, written, strict=True)
            return [self.mark(question, ids, tokenizer) for question, ids in pairs]

        monkeypatch.setattr(Questions, "answers", answers)
        found = evaluate(make_run(tmp_path / "run", name), name, flags)
        (results,) = (path.parent for path in (tmp_path / "run").glob("*/summary.json"))
        summary = json.loads((results / "summary.json").read_text())
        parts = [summary[each] for each in ("inside", "outside") if summary[each]]
        counts = [(part["correct"], part["total"]) for part in parts]
        wrong = [*map(json.loads, (results / "wrong.jsonl").read_text().splitlines())]
        return found, results, summary, counts, wrong

    return answered


def test_rows_are_the_first_operand(answered):
    (asked, rows), _, summary, parts, wrong = answered(
        "addition", lambda each: "" if each.cell[0] == 2 else truth(each)
    )
    assert [(row["n"], row["m"]) for row in wrong] == [(2, m) for m in (1, 2, 3) for _ in range(3)]
    rows = rows.assign(row="run")
    axes, _ = heat_map(GRID.view.heatmap, rows, {"run": asked}).axes
    assert heat_map(GRID.view.heatmap, rows[rows["first_digits"] == 1], {"run": asked}) is None
    image = axes.images[0]
    np.testing.assert_array_equal(image.get_array(), [[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    assert [*image.get_extent()] == [-0.5, 2.5, 2.5, -0.5]  # (1, 1) at the top left
    assert "first" in axes.get_ylabel() and "0.667" in axes.get_title()
    frame = axes.patches[0].get_bbox()  # 2 x 1 digits in training
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (-0.5, 0.5, -0.5, 1.5)
    assert parts == [(4, 8), (20, 28)]
    assert [cell["accuracy"] for cell in summary["diagonal"]] == [1, 0, 1]
    assert summary["evaluated"]["samples"] == 4 and len(summary["evaluated"]["model"]) == 64


def test_rows_are_lengths_and_depths(answered):
    """Wrong at depth 0.5 of 60 tokens; the training went to 40."""
    _, results, summary, parts, wrong = answered(
        "passkey", lambda each: "" if each.cell == (60, 0.5) else truth(each)
    )
    rows = (results / "passkey.csv").read_text().splitlines()
    assert rows[-2:] == ["found,60,1.0,1.0,4,share", "tokens,60,1.0,60.0,4,tokens"]
    assert parts == [(12, 12), (8, 12)] and [row["depth"] for row in wrong] == [0.5] * 3
    assert summary["lengths"][1]["accuracy"] == summary["lengths"][1]["found"] == 8 / 12


def test_several_values_count_alone_and_together(answered):
    """At depth 0 the first one is right."""
    found, results, summary, _, _ = answered(
        "passkey",
        lambda each: truth(each) if each.cell[1] else f" {each.answer.values[0]}{END}",
        "--keys 2 --values 2 --max_tokens 120 --interval 120",
    )
    of = {measure: [*rows["value"]] for measure, rows in found.rows.groupby("measure")}
    assert of["accuracy"] == [0, 1, 1] and of["found"] == [0.5, 1, 1]
    (length,) = summary["lengths"]
    assert (length["accuracy"], length["found"], results.name) == (8 / 12, 20 / 24, "passkey_2x2")
    shown = PASSKEY.describe(found)
    assert ", 0.833 of the values" in shown and shown.endswith("effective length: >= 120")


def test_words_that_a_tokenizer_lacks_are_refused(tmp_path):
    run = make_run(tmp_path / "run", "synthetic")
    refuses("no token for a part of the text", evaluate, run, "passkey", "--max_tokens 100")


def test_a_run_may_be_the_current_folder(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    for place, given in (("run", "."), ("run/report", "..")):
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        assert parsers.evaluate([given, "--task", "addition"]).run == tmp_path / "run"


def test_command_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("tape.cli.evaluate.model_folder", Path)
    line = "--context_size 8192 --base_model output/llama_adape --max_tokens 8192 --interval 1000"
    given = parsers.evaluate(["--task", "passkey", *line.split()])
    model, tokenizer = load(make_run(tmp_path, "original"))
    questions, name = PasskeyTask.asked(given, given.run, model)
    assert (questions.num_tests, questions.plain, questions.original) == (20, False, False)
    batches = replace(questions, num_tests=1, depths=1).plan(tokenizer, 16384)
    asked = sorted(question.tokens for batch in batches for question in batch.questions)
    assert asked == [*range(1000, 8001, 1000)] and name == "passkey"
    assert max(batch.length for batch in batches) <= given.context_size
    Passkeys(max_length=90, keys=2).save(tmp_path / "keys")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys=2").mkdir()
    assert str(parsers.evaluate(["keys=2", "--task", "passkey", "keys=3"]).run) == "keys=2"
    given = parsers.evaluate([str(tmp_path / "keys"), "--task", "passkey"])
    questions, name = PasskeyTask.asked(given, tmp_path / "keys", None)
    assert (questions.keys, questions.values, questions.plain, name) == (2, 1, True, "passkey")
    assert (questions.max_tokens, questions.interval, questions.trained) == (720, 90, 90)
    for words in ("max_length=10 shard=1/4", "--max_length 10 --shard=1/4"):  # script/eval_add.sh
        given = parsers.evaluate(["output/add_tape", "--task", "addition", *words.split()])
        assert (str(given.run), given.max_length, given.shard) == ("output/add_tape", 10, "1/4")


def test_the_command(tmp_path, caplog):
    """A model that is no run keeps its files: results go to output/."""
    caplog.set_level(logging.INFO)
    base = make_run(tmp_path / "bases" / "llama", "passkey")
    (base / "run.json").unlink()
    before = sorted(path.name for path in base.iterdir())
    words = ["--num_tests", "1", "--depths", "1", "--processes", "1"]
    done = run_command("eval_retrieval.py", "--base_model", base, *words, folder=tmp_path)
    assert done.status == 0 and "320 tokens: " in caplog.text and "outside: " in caplog.text
    lengths = PASSKEY.read(tmp_path / "output" / "llama" / "passkey").rows["length"]
    assert [*lengths.unique()] == [40 * n for n in range(1, 9)]  # eight times 40
    assert sorted(path.name for path in base.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("original", "", "error: give --task, one of addition, passkey, scrolls, synthetic"),
        ("original", "division", "error: --task: unknown 'division'"),
        ("original", "addition", r"has no problems\.json: give the folder of a run on this task"),
        ("original", "synthetic", r"has no synthetic\.json: give the folder of a run on this task"),
        ("original", "passkey", "error: give --max_tokens"),
        ("original", "addition --depths 3", "unrecognized arguments: --depths 3"),
        ("addition", "addition --name report", "--name='report' is used by"),
        ("addition", "addition --shard 5/4", "5/4.* must be i/n with 1 <= i <= n"),
        ("addition", "addition --context_size 8", r"=8 is shorter .*, 10 \+ 6 tokens: .*_length"),
        ("passkey", "passkey --context_size 64", r"context_size=64 is shorter .*, 320 \+ 9 tokens"),
        ("passkey", "passkey --interval 20", "prompt of 20 tokens has no room .* which take 2"),
        ("passkey", "passkey --interval 700", "interval=700 exceeds max_tokens=320"),
        ("passkey", "passkey --keys 25", r"keys=25 must be an integer in 1\.\.24"),
        ("passkey", "passkey --original", "one key and one value, and .*: leave out --original"),
        ("original", "passkey --max_tokens 9 --original --values 2", "one value, .* --original"),
        ("synthetic", "synthetic --max_length 0", r"max_length=0 must be an integer in 1\.\."),
    ],
)
def test_refusals_are_one_line(name, words, message, tmp_path):
    folder, words = make_run(tmp_path / "run", name), ["--task", *words.split()] if words else []
    done = run_command("-m", "tape.cli", "evaluate", folder, *words, folder=tmp_path)
    assert done.status and len(done.lines) == 1 and re.search(message, done.lines[0])
    assert not [path for path in folder.iterdir() if path.is_dir()]
