"""Passkey retrieval: answers against a loop and transformers' Llama, marking, results, resuming."""

import csv
import json
import logging
import shutil
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import perturb
from test_prompts import byte_level, llama_like
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import tape.tasks.passkey.evaluate as entry
from arithmetic import character_tokenizer
from tape import TapeConfig, TapeForCausalLM
from tape.evaluation.journal import FILE
from tape.model.checkpoint import load
from tape.results.figures import side_by_side
from tape.results.heatmap import maps_in
from tape.tasks.passkey import Needles, Passkeys, Questions, plain_tokenizer
from tape.tasks.passkey.decoding import Answer, answers, marked, marked_as_original
from tape.tasks.passkey.passkey_plan import Batch, Question, plan
from tape.tasks.passkey.prompts import Prompt
from tape.tasks.passkey.results import PASSKEY, read_evaluation

RESULTS = ("passkey.csv", "summary.json", "wrong.jsonl")
PICTURES = tuple(f"{name}.{kind}" for name in ("heatmap", "lengths") for kind in ("png", "svg"))
TRAINED = Passkeys(max_length=40)


def make_run(folder, position="tape", tokenizer=None):
    """A small model without training; without a tokenizer, one that was to learn plain prompts."""
    if tokenizer is None:
        tokenizer = plain_tokenizer()
        TRAINED.save(folder)
    torch.manual_seed(0)
    config = TapeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        position=position,
    )
    perturb(TapeForCausalLM(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "passkey_tape")


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "passkey_tape")


def evaluate(folder, *flags):
    small = ["--max_tokens", "60", "--interval", "30", "--num_tests", "4", "--depths", "3"]
    small += ["--batch_tokens", "200", "--processes", "1", "--base_model", str(folder)]
    return entry.evaluate(entry.parser().parse_args([*small, *flags]))


def answering(monkeypatch, answer):
    """Put a function of a question in the place of the model."""

    def answers(model, tokenizer, batch, original):
        given = map(answer, batch.questions)
        return [Answer("-", found, found == len(q.prompt.values)) for q, found in given]

    monkeypatch.setattr(entry, "answers", answers)


def all_right(question):
    return question, len(question.prompt.values)


def values(evaluation, measure):
    """By length and depth."""
    rows = evaluation.rows[evaluation.rows["measure"] == measure]
    return dict(zip(zip(rows["length"], rows["depth"], strict=True), rows["value"], strict=True))


def contents(results):
    return {name: (results / name).read_bytes() for name in (*RESULTS, *PICTURES)}


@torch.no_grad()
@pytest.mark.parametrize(
    ("position", "original"),
    [
        *(("tape", False), ("fire", False), ({"name": "randpe", "length": 100}, False)),
        *(("tape", True), ({"name": "randpe", "length": 900}, True)),
    ],
)
def test_answers_are_those_of_a_loop(position, original, tmp_path):
    """Over one prompt at a time, without a cache. By the original rule prompts of a batch have
    unequal lengths."""
    model, tokenizer = load(make_run(tmp_path, position, byte_level() if original else None))
    length, tests = (300, 3) if original else (45, 5)
    asked = Questions(length, length, tests, 2, plain=not original, original=original)
    batches = plan(asked, tokenizer, batch_tokens=10**6 if original else 200)
    widths = {len(tokenizer(q.prompt.text)["input_ids"]) for b in batches for q in b.questions}
    assert (len(widths) > 1) == original
    for batch in batches:
        given = answers(model, tokenizer, batch, original)
        for question, answer in zip(batch.questions, given, strict=True):
            prompt = tokenizer(question.prompt.text)["input_ids"]
            ids = list(prompt)
            while len(ids) < len(prompt) + batch.new_tokens and ids[-1] != tokenizer.eos_token_id:
                with model.evaluation_length(batch.positions):
                    logits = model(torch.tensor([ids]), use_cache=False).logits
                ids.append(logits[0, -1].argmax().item())
            assert answer.text == tokenizer.decode(ids[len(prompt) :])


def test_the_papers_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tape.command.check_model_folder", lambda folder: None)
    line = "--context_size 8192 --base_model output/llama_adape --max_tokens 8192 --interval 1000"
    arguments = entry.parser().parse_args(line.split())
    questions = entry.questions_for(arguments, None)
    assert [*questions.lengths] == [*range(1000, 8001, 1000)]
    assert (questions.num_tests, questions.plain, questions.original) == (20, False, False)
    batches = plan(replace(questions, num_tests=1, depths=1), byte_level(), 16384)
    assert max(batch.positions for batch in batches) <= arguments.context_size


@torch.no_grad()
def test_a_llama_checkpoint_answers_as_the_library_does(tmp_path):
    tokenizer = llama_like()
    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).eval()
    llama.generation_config.repetition_penalty = 5.0  # of chats: no evaluation takes it
    llama.save_pretrained(tmp_path, max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, tokenizer = load(tmp_path)
    (batch,) = plan(Questions(220, 220, 2, 2), tokenizer, 10**6)
    for question, answer in zip(batch.questions, answers(model, tokenizer, batch), strict=True):
        ids = torch.tensor([tokenizer(question.prompt.text)["input_ids"]])
        expected = llama.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=batch.new_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
        )
        assert answer.text == tokenizer.decode(expected[0, 220:])
    (tmp_path / "run.json").write_text("{}")
    found = evaluate(tmp_path, "--max_tokens", "220", "--interval", "110", "--num_tests", "1")
    assert {*found.rows["length"]} == {110, 220} and found.asked["trained"] == 2048


def test_a_base_model_keeps_its_files(tmp_path, monkeypatch):
    """Results of a model that is no run go to output/."""
    monkeypatch.chdir(tmp_path)
    base = make_run(tmp_path / "bases" / "llama")
    (base / "run.json").unlink()
    before = sorted(path.name for path in base.iterdir())
    evaluate(base)
    assert sorted(path.name for path in base.iterdir()) == before
    assert (tmp_path / "output" / "llama" / "passkey" / "passkey.csv").is_file()


def test_how_a_batch_is_made_up_does_not_matter(tmp_path):
    """Neither does a random draw of positions."""
    model, tokenizer = load(make_run(tmp_path, {"name": "randpe", "length": 200}))
    questions = Questions(80, 40, num_tests=3, depths=2, plain=True)
    given = []
    for size in (1, 200, 10**6):
        pairs = [
            (question.prompt.text, answer.text)
            for batch in plan(questions, tokenizer, size)
            for question, answer in zip(
                batch.questions, answers(model, tokenizer, batch), strict=True
            )
        ]
        given.append(sorted(pairs))
    assert given[0] == given[1] == given[2]


def test_a_plan_asks_everything_once_and_the_costliest_first():
    tokenizer = plain_tokenizer()
    questions = Questions(90, 30, num_tests=5, depths=4, plain=True)
    batches = plan(questions, tokenizer, batch_tokens=300)
    cells = [(q.length, round(q.depth, 3)) for batch in batches for q in batch.questions]
    expected = [(n, d) for n in (30, 60, 90) for d in (0, 0.333, 0.667, 1) for _ in range(5)]
    assert sorted(cells) == sorted(expected)
    assert len({q.prompt.text for batch in batches for q in batch.questions}) == 60
    assert [batch.cost for batch in batches] == sorted((b.cost for b in batches), reverse=True)
    for batch in batches:
        lengths = {q.length for q in batch.questions}
        assert len(lengths) == 1 and batch.positions == lengths.pop() + batch.new_tokens
        assert len(batch.questions) == 1 or batch.cost <= 300
    assert batches[0].new_tokens == 5 + 4
    assert [len(plan(questions, tokenizer, n)) for n in (1, 10**6)] == [60, 3]


@pytest.mark.parametrize(
    ("values", "written", "found"),
    [
        ("47129", " 47129<|endoftext|>", 1),
        ("47129", " 47129 . the", 1),
        ("47129", " the pass key is 47129 .", 1),
        ("47129", " 4712<|endoftext|>", 0),
        ("47129", " 471290<|endoftext|>", 0),
        ("47129", " 11 . 47129<|endoftext|>", 0),
        ("47129", " the lake is 47129", 0),  # it may go on
        ("47129", "<|endoftext|> 47129 .", 0),
        ("47129", " the lake", 0),
        ("12 345", " 345 , 12<|endoftext|>", 2),
        ("12 345", " 12 , 12<|endoftext|>", 1),
        ("12 345", " 12 , 9 , 345<|endoftext|>", 1),
        ("12 345", " 7 , 8<|endoftext|>", 0),
    ],
)
def test_the_first_numbers_are_the_answer(values, written, found):
    tokenizer = plain_tokenizer()

    class Model:
        device, generation_config = torch.device("cpu"), None

        def evaluation_length(self, length):
            return torch.no_grad()

        def generate(self, ids, **_):
            return torch.cat((ids, torch.tensor([tokenizer(written)["input_ids"]])), dim=1)

    prompt = Prompt("what is the pass key ?".replace("what", "find"), tuple(values.split()))
    batch = Batch([Question(5, 0.5, prompt, 5)], 9, 14)
    (answer,) = answers(Model(), tokenizer, batch)
    assert (answer.found, answer.right) == (found, found == len(prompt.values))


def test_the_original_marks_tokens():
    tokenizer = byte_level()
    question = Question(300, None, Prompt("The pass key is", ("123",)), 5)
    for written, original, first_number in (
        (" 123.", True, True),
        (" 1234.", False, False),
        (" is 123.", False, True),
        (" 123", True, False),
    ):
        ids = tokenizer(written)["input_ids"]
        assert marked_as_original(question, ids, tokenizer).right == original, written
        assert marked(question, ids, tokenizer).right == first_number, written


def test_the_truth_is_right_everywhere(folder, monkeypatch):
    answering(monkeypatch, all_right)
    right = values(evaluate(folder), "accuracy")
    assert right == {(length, depth): 1 for length in (30, 60) for depth in (0, 0.5, 1)}
    assert (folder / "passkey" / "wrong.jsonl").read_text() == ""


def test_rows_and_pictures_are_lengths_and_depths(folder, monkeypatch):
    """Wrong at depth 0.5 of 60 tokens; the training went to 40."""
    answering(monkeypatch, lambda q: (q, int(not (q.length == 60 and q.depth == 0.5))))
    results = evaluate(folder)
    assert read_evaluation(folder / "passkey").rows.equals(results.rows)
    with (folder / "passkey" / "passkey.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row.values()) for row in rows[-6:]] == [
        ("accuracy", "60", "0.5", "0.0", "4", "share"),
        ("found", "60", "0.5", "0.0", "4", "share"),
        ("tokens", "60", "0.5", "60.0", "4", "tokens"),
        ("accuracy", "60", "1.0", "1.0", "4", "share"),
        ("found", "60", "1.0", "1.0", "4", "share"),
        ("tokens", "60", "1.0", "60.0", "4", "tokens"),
    ]
    summary = json.loads((folder / "passkey" / "summary.json").read_text())
    assert (summary["inside"]["correct"], summary["inside"]["total"]) == (12, 12)
    assert (summary["outside"]["correct"], summary["outside"]["total"]) == (8, 12)
    assert summary["lengths"][1]["accuracy"] == summary["lengths"][1]["found"] == 8 / 12
    wrong = (folder / "passkey" / "wrong.jsonl").read_text().splitlines()
    assert len(wrong) == 3 and all(json.loads(row)["depth"] == 0.5 for row in wrong)
    axes, bar = side_by_side(maps_in(folder / "passkey", "run")).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), [[1, 1], [1, 0], [1, 1]])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "0.5", "1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["30", "60"]
    frame = axes.patches[0].get_bbox()  # between the columns of 30 and 60, over all depths
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (-0.5, 0.5, -0.5, 2.5)
    assert "0.833" in axes.get_title() and bar.get_ylabel()


def test_several_values_count_alone_and_together(folder, monkeypatch):
    answering(monkeypatch, lambda q: (q, 1 if q.depth == 0 else 2))
    flags = ["--keys", "2", "--values", "2", "--max_tokens", "120", "--interval", "120"]
    results = evaluate(folder, *flags)
    assert (folder / "passkey_2x2" / "passkey.csv").exists()
    assert [*values(results, "accuracy").values()] == [0, 1, 1]
    assert [*values(results, "found").values()] == [0.5, 1, 1]
    (length,) = PASSKEY.summary(results)["lengths"]
    assert (length["accuracy"], length["found"]) == (8 / 12, 20 / 24)
    assert ", 0.833 of the values" in PASSKEY.describe(results)


def test_the_original_rule_is_asked_for(tmp_path, monkeypatch):
    folder = make_run(tmp_path, tokenizer=byte_level())
    flags = ["--max_tokens", "300", "--interval", "300", "--original"]
    answering(monkeypatch, all_right)
    results = evaluate(folder, *flags)
    assert results.rows["depth"].isna().all() and [*values(results, "accuracy").values()] == [1]
    written = {path.name for path in (folder / "passkey_original").iterdir()}
    assert written >= {*RESULTS, "lengths.png"} and "heatmap.png" not in written
    assert read_evaluation(folder / "passkey_original").rows.equals(results.rows)


@pytest.mark.slow
def test_shards_and_processes_give_the_same_as_one(folder, trained, tmp_path):
    evaluate(folder)
    whole = contents(folder / "passkey")
    other = shutil.copytree(trained, tmp_path / "shards" / "passkey_tape")
    assert evaluate(other, "--shard", "2/2") is None
    assert not (other / "passkey" / "passkey.csv").exists()
    assert evaluate(other, "--shard", "1/2", "--processes", "2") is not None
    assert contents(other / "passkey") == whole


def test_a_model_whose_state_is_not_updated_answers_as_rope(folder, trained, tmp_path):
    for processes in ("1", "2"):
        evaluate(folder, "--intervention", "initial", "--processes", processes)
    rope = make_run(tmp_path / "rope", "rope")
    model = TapeForCausalLM.from_pretrained(rope)
    model.load_state_dict(load(trained)[0].state_dict(), strict=False)
    model.save_pretrained(rope)
    evaluate(rope), evaluate(folder)
    wrong = [run / "wrong.jsonl" for run in (folder / "passkey_initial", rope / "passkey")]
    assert wrong[0].read_text() == wrong[1].read_text()
    assert wrong[0].read_text() != (folder / "passkey" / "wrong.jsonl").read_text()
    with pytest.raises(ValueError, match="position 'rope': give a model with tape or tape_yarn"):
        evaluate(rope, "--intervention", "phases")
    with pytest.raises(ValueError, match="intervention"):
        evaluate(folder, "--intervention", "initial", "--name", "passkey")


def test_a_killed_evaluation_is_continued(folder, monkeypatch):
    evaluate(folder)
    whole, parts = contents(folder / "passkey"), folder / "passkey" / "shard-1-of-1" / FILE
    written, asked = parts.read_bytes(), []

    def counted(model, tokenizer, batch, answers=entry.answers, **settings):
        asked.append(batch)
        return answers(model, tokenizer, batch, **settings)

    monkeypatch.setattr(entry, "answers", counted)
    lines = written.splitlines(keepends=True)
    for cut, left in ((3, len(lines) - 1), (len(b"".join(lines[:3])) + 9, len(lines) - 3)):
        parts.write_bytes(written[:cut])
        for name in (*RESULTS, *PICTURES):
            (folder / "passkey" / name).unlink()
        asked.clear()
        evaluate(folder)
        assert len(asked) == left and contents(folder / "passkey") == whole


def test_what_cannot_be_is_refused(folder, tmp_path):
    refused = partial(pytest.raises, ValueError)
    with refused(match=r"prompt of 20 tokens has no room .* which take 2\d"):
        evaluate(folder, "--interval", "20")
    with refused(match=r"context_size=64 is shorter than the longest .*, 60 \+ 9 tokens"):
        evaluate(folder, "--context_size", "64")
    with refused(match="interval=70, the shortest length, is more than max_tokens=60"):
        evaluate(folder, "--interval", "70")
    with refused(match="num_tests=0 must be an integer"):
        evaluate(folder, "--num_tests", "0")
    with refused(match="keys=0 must be an integer"):
        evaluate(folder, "--keys", "0")
    with refused(match="one key and one value: leave out --original"):
        evaluate(folder, "--original", "--values", "2")
    with refused(match="trained on plain prompts, but the original rule uses the wording"):
        evaluate(folder, "--original")
    with refused(match="has no model.safetensors"):
        evaluate(tmp_path)
    assert not list(folder.glob("passkey*/"))
    evaluate(folder, "--context_size", "69")
    with refused(match="num_tests: 4 -> 5"):
        evaluate(folder, "--num_tests", "5")
    with refused(match="different evaluations"):
        evaluate(folder, "--shard", "2/2", "--seed", "1")
    (folder / "passkey" / "summary.json").write_text("{")
    with refused(match=r"summary\.json is damaged"):
        read_evaluation(folder / "passkey")


def ending_with_eos():
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return tokenizer


def without_letters():
    tokenizer = llama_like()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = {
        token: n for token, n in state["model"]["vocab"].items() if "g" not in token
    }
    state["model"]["merges"] = []
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), unk_token="<unk>", eos_token="</s>"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (character_tokenizer, "cannot write a prompt: WordLevel error"),
        (without_letters, "cannot write a prompt: parts of it are <unk>"),
        (ending_with_eos, "ends every text with EOS"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        plan(Questions(300, 300, 1, 1), make(), 1000)


def test_more_tokens_than_there_are_positions(tmp_path):
    folder = make_run(tmp_path, {"name": "randpe", "length": 69})
    evaluate(folder)
    with pytest.raises(ValueError, match=r"max_tokens=90 needs 99 positions, .* 'randpe' has 69"):
        evaluate(folder, "--max_tokens", "90", "--name", "longer")
    assert not (folder / "longer").exists()


def test_the_command(folder, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["eval_retrieval.py", *map(str, arguments)])
        entry.main()

    with pytest.raises(SystemExit, match=r"error: .* has no model\.safetensors"):
        call("--base_model", tmp_path)
    other = make_run(tmp_path / "llama", tokenizer=llama_like())
    with pytest.raises(SystemExit, match="error: give --max_tokens"):
        call("--base_model", other)
    call("--base_model", folder, "--num_tests", "1", "--depths", "1", "--processes", "1")
    assert "320 tokens: " in caplog.text and "outside: " in caplog.text  # eight times 40
    lengths = read_evaluation(folder / "passkey").rows["length"]
    assert [*lengths.unique()] == [40 * n for n in range(1, 9)]


def test_needles_of_the_training_are_those_that_are_asked(tmp_path):
    Passkeys(max_length=90, keys=2).save(tmp_path)
    arguments = entry.parser().parse_args(["--base_model", str(tmp_path)])
    questions = entry.questions_for(arguments, Passkeys.load(tmp_path))
    assert questions.needles == Needles(2, 1) and questions.plain
    assert (questions.max_tokens, questions.interval) == (720, 90)
