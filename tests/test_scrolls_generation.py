"""Answers in batches against one by one without a cache, journals, fine-tuning and commands."""

import json
import re
import shlex

import numpy as np
import pytest
import torch
from commands import tape
from conftest import composed, make_model, refuses
from scrolls_data import write_task
from test_scrolls import byte_tokenizer, examples_of
from trained import losses

import scrolls.generate as entry
from scrolls import parsers
from scrolls.examples import BUDGETS, Budget
from scrolls.generate import answers, plan
from tape import TapeForCausalLM
from tape.commands import train
from tape.evaluation.questions import Batch, Question


def make_base(folder, position="tape", seed=1, tokenizer=None, **changes):
    """The folder of a model as pre-training leaves it, with its tokenizer."""
    tokenizer = tokenizer or byte_tokenizer()
    model = make_model(position, vocab_size=len(tokenizer), seed=seed, **changes)
    with torch.no_grad():  # it says one thing and another, and comes to an end now and then
        model.lm_head.weight[tokenizer.eos_token_id] *= 3.0
    for each in (model, tokenizer):
        each.save_pretrained(folder)
    return folder


def test_answers_have_neither_eos_nor_more_tokens_than_their_room(monkeypatch):
    """Greedy decoding itself equals a loop: test_tasks.py."""
    tokenizer, room = byte_tokenizer(), 6  # 5 tokens and EOS
    written = [[70, 71, tokenizer.eos_token_id], [72] * room]
    monkeypatch.setattr(entry, "greedy", lambda *given, **how: written)
    asked = [Question((name,), [65], None, 1, room) for name in ("short", "long")]
    given = answers(None, tokenizer, Batch(asked, room, 30))
    assert given == {"short": tokenizer.decode([70, 71]), "long": tokenizer.decode([72] * 5)}


def test_a_plan_asks_each_id_once_within_its_tokens(tmp_path):
    write_task(tmp_path, "qasper", train=40)
    examples = examples_of(tmp_path, budget=Budget(400, 8))
    rows = examples.questions_spread(None)
    batches = plan(examples, rows, 1500)
    asked = {q.cell[0]: q.prompt.tolist() for batch in batches for q in batch.questions}
    assert asked == {examples.ids[row]: examples.tokens("prompt", row).tolist() for row in rows}
    assert [len(batch.questions) for batch in batches] == [3] * 13 + [1]
    assert {(batch.new_tokens, batch.length) for batch in batches} == {(9, 409)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zips")
    for task in ("qasper", "narrative_qa"):
        write_task(folder, task, train=12, validation=30)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_base(tmp_path_factory.mktemp("runs") / "adape_c4")


def generate(base, data, folder, settings=""):
    small = {"model": base, "output": folder / "adape.json", "data_dir": data, "task": "qasper"}
    small |= {"budget": "demo", "max_batch_tokens": 1000, "cache_dir": data / "cache"}
    small |= dict(setting.split("=") for setting in settings.split())
    words = [f"{name}={value}" for name, value in small.items() if value]
    entry.generate(parsers.scrolls_generate(words))
    return json.loads((folder / "adape.json").read_text())


@pytest.fixture(scope="module")
def whole(base, data, tmp_path_factory):
    """The folder of all answers."""
    generate(base, data, folder := tmp_path_factory.mktemp("whole"))
    return folder


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_answers_are_in_order_and_do_not_depend_on_others(processes, base, data, whole, tmp_path):
    found = generate(base, data, whole)
    assert list(found) == [f"qasper-validation-{n}" for n in range(30)]
    assert len(set(found.values())) > 15
    fewer = generate(base, data, tmp_path, f"limit=4 processes={processes}")
    assert fewer == {id_: found[id_] for id_ in (list(found)[n] for n in (0, 9, 19, 29))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("task=qaspr", "--task: invalid choice: 'qaspr'"),
        ("budget=", r"scrolls\.json names no budget of a fine-tuning: give a run of a task"),
        ("data_dir=/nowhere", "neither qasper.zip nor"),
        ("max_batch_tokens=100", "must be at least 256"),
        ("budget=table5 max_batch_tokens=2000", r"budget: \['demo', 223, 32\] -> \['table5', 823"),
        ("split=train", "split: validation -> train"),
        ("task=narrative_qa", "task: qasper -> narrative_qa"),
        ("model=other", r"holds another evaluation \(model: "),
        ("output=a.parts", r"a\.parts would be its own journal"),
        ("output=adape.json", r"adape\.json exists without its journal"),
    ],
)
def test_refusals(base, data, whole, tmp_path, monkeypatch, capsys, settings, message):
    monkeypatch.chdir(tmp_path)
    make_base(tmp_path / "other", seed=2)
    (tmp_path / "adape.json").touch()
    with pytest.raises((ValueError, OSError, SystemExit)) as refused:
        generate(base, data, whole, settings)
    assert re.search(message, f"{refused.value} {capsys.readouterr().err}")
    assert not (tmp_path / "adape.parts").exists()


def fine_tune(base, data, folder, overrides=""):
    small = f"""base_model={base} data.data_dir={data} output_dir={folder} cache_dir={data}/cache
        budget=demo data.task=qasper task.samples=4 trainer.max_steps=4 trainer.save_steps=2
        trainer.eval_steps=2 trainer.logging_steps=2 trainer.per_device_train_batch_size=2
        trainer.gradient_accumulation_steps=2"""
    train.run(composed("experiment=scrolls", *small.split(), *overrides.split()))
    return folder


def test_fine_tuning_and_generating(base, data, tmp_path):
    run = fine_tune(base, data, tmp_path / "run", "trainer.per_device_eval_batch_size=7")
    found = generate(run, data, tmp_path, "budget=")
    report = json.loads((run / "report" / "report.json").read_text())
    assert len(found) == 30 and report["questions"] == 4 and report["metric"] == "f1"
    recorded = json.loads((run / "trained.json").read_text())
    assert recorded["position"]["name"] == "tape" and len(recorded["base_weights"]) == 64
    tuned, before = (TapeForCausalLM.from_pretrained(folder) for folder in (run, base))
    assert tuned.config.max_position_embeddings == 256 != before.config.max_position_embeddings
    assert tuned.config.position == before.config.position

    # The same answers, and their scores, by the name of the run alone.
    with pytest.raises(ValueError, match=r"scrolls\.json names no task of a fine-tuning"):
        entry.evaluate_run(parsers.evaluate(["--model", str(base)]))
    *_, command = (run / "report" / "report.md").read_text().splitlines()
    assert shlex.split(command)[-1] == f"data_dir={data}"
    words = ["--max_batch_tokens=1000", f"--cache_dir={data / 'cache'}"]  # of the run's own data
    for shard in ("1/2", "2/2"):
        assert not (run / "scrolls" / "qasper.json").exists()
        tape("evaluate", run, "--task", "scrolls", *words, f"--shard={shard}")
    assert json.loads((run / "scrolls" / "qasper.json").read_text()) == found
    scored = json.loads((run / "scrolls" / "qasper_metrics.json").read_text())
    assert scored["num_predicted"] == 30 and 0 <= scored["f1"] <= 100

    # The validation loss is that of all tokens, whatever they share a batch with.
    examples = examples_of(data, split="validation", budget=BUDGETS["demo"]["answer"])
    sequences = [examples[row] for row in examples.questions_spread(None)]
    counts = [(each["labels"] != -100).sum().item() for each in sequences]
    batches = ({name: x[None] for name, x in each.items()} for each in sequences)
    with torch.no_grad():
        means = [tuned.eval()(**batch).loss.item() for batch in batches]
    expected = np.average(means, weights=counts)
    assert losses(run, "eval_loss")[-1] == (4, pytest.approx(expected, rel=1e-5))

    fine_tune(base, data, tmp_path / "cut", "trainer.max_steps=2")
    cut = fine_tune(base, data, tmp_path / "cut")
    for name, weight in TapeForCausalLM.from_pretrained(cut).state_dict().items():
        assert torch.equal(weight, tuned.state_dict()[name]), name
    with pytest.raises(ValueError, match=r"base_model: .* -> .*\n  base_weights: "):
        fine_tune(make_base(tmp_path / "other", seed=2), data, tmp_path / "cut")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("length=512", r"length=512: budget demo has 256 tokens; give budget=demo"),
        ("++model.hidden_size=64", r"model\.hidden_size=64, but .* has 32; leave these out, and"),
        ("++position.width=4", r"context.*weight of .* \(4, 16\), but \(4, 4\) by these"),
        ("task.samples=0", r"task\.samples=0 must be an integer"),
    ],
)
def test_refused_before_training(base, data, tmp_path, override, message):
    refuses(message, fine_tune, base, data, tmp_path / "run", override)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_random_positions_have_to_reach(data, tmp_path):
    short = make_base(tmp_path / "short", {"name": "randpe", "length": 200})
    refuses(r"length=256 needs 256 positions, .* 200", fine_tune, short, data, tmp_path / "run")
    wider = fine_tune(short, data, tmp_path / "wide", "+position.length=300")
    assert TapeForCausalLM.from_pretrained(wider).config.position["sampler"]["length"] == 300
    assert len(generate(wider, data, tmp_path, "budget=")) == 30
