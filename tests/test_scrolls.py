"""SCROLLS up to scores: files, rows, prompts within budgets, their order, the sample; answers in
batches against one by one without a cache, journals, fine-tuning and commands."""

import json
import re
import shlex
import shutil
import zipfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import ROOT, tape
from conftest import composed, make_model, refuses
from scrolls_data import write_rows, write_task
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, processors
from trained import losses
from transformers import PreTrainedTokenizerFast

import scrolls.generate as entry
from scrolls import commands as parsers
from scrolls import rows
from scrolls.examples import BUDGETS, Budget, Prompts, tokenize_split
from scrolls.generate import answers, plan
from scrolls.rows import HUB, find, read_rows
from scrolls.sample import DECISIONS, write_sample
from scrolls.scrolls_task import TrainingRows
from scrolls.tasks import BENCHMARK, TASKS
from tape import TapeForCausalLM
from tape.cli import train
from tape.evaluation.questions import Batch, Question
from tape.model.loss import IGNORED


def byte_tokenizer(texts=("Where was the otter seen? At the mill.",) * 9, bos=False):
    """A token per byte, and a few merges from texts; with `bos`, texts begin with one."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    trained, how = ByteLevelBPETokenizer(), {"vocab_size": 300, "show_progress": False}
    trained.train_from_iterator(texts, special_tokens=[*special.values()], **how)
    if bos:
        trained.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    tokenizer = Tokenizer.from_str(trained.to_str())
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def rows_of(folder, task, split="train"):
    task = TASKS[task]
    return list(read_rows(find(task, split, folder, folder / "cache"), task, split))


def examples_of(folder, task="qasper", split="train", budget=(60, 8), bos=False):
    prompts = Prompts(byte_tokenizer(bos=bos), TASKS[task], Budget(*budget))
    return tokenize_split(prompts, split, folder, folder / "cache")


def test_answers_keep_the_spaces_of_their_words(monkeypatch):
    """A tokenizer of words may be set to write "it's" for "it 's", which is another word."""
    words = {"</s>": 0, "it": 1, "'s": 2, ".": 3}
    made = Tokenizer(models.WordLevel(words))
    how = {"eos_token": "</s>", "clean_up_tokenization_spaces": True}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **how)
    assert tokenizer.decode([1, 2]) == "it's"
    monkeypatch.setattr(entry, "greedy", lambda *given: [[1, 2, 3, 0]])
    batch = Batch([Question(("a",), [1], None, 1, 9)], 9, 10)
    model = make_model("rope")
    assert answers(model, tokenizer, batch) == {"a": "it 's ."}


def test_rows_of_official_files(tmp_path):
    for task in BENCHMARK:
        write_task(tmp_path, task, train=6)
        rows = rows_of(tmp_path, task)
        assert len({row.id for row in rows}) == 6
        for row in rows:
            assert row.output and row.document.startswith("Report ")
            assert row.question.endswith("\n\n") or row.question == ""
            assert (" (D) " in row.question) == (task == "quality")
        assert {row.output for row in rows_of(tmp_path, task, "test")} == {None}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["data/scrolls", "elsewhere", "given"])
def test_the_default_folder(folder, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCROLLS_DIR", "" if folder == "data/scrolls" else "elsewhere")
    data_dir = Path(folder) if folder == "given" else None
    asked = TASKS["quality"], "train", data_dir, tmp_path
    message = rf"^{folder} has neither quality\.zip nor quality/train\.jsonl.* 20 MB.*SCROLLS_DIR"
    with pytest.raises(FileNotFoundError, match=message) as refused:
        find(*asked)
    assert ("The hub cannot be used: " in str(refused.value)) == (data_dir is None)
    zips = {(HUB, "quality.zip"): write_task(tmp_path / "hub", "quality")}
    monkeypatch.setattr(rows, "hf_hub_download", lambda *of, repo_type: zips[of])
    if data_dir is None:  # the hub is asked for what is not there
        assert str(find(*asked)) == f"{tmp_path}/hub/quality.zip/quality/train.jsonl"
    for place in ("data/scrolls", "elsewhere", "given"):
        write_task(Path(place), "quality", zipped=zipped)
    place = "quality.zip/quality" if zipped else "quality"
    assert str(find(*asked)) == f"{folder}/{place}/train.jsonl"


def test_a_bad_row_is_named(tmp_path):
    path = write_task(tmp_path, "quality", zipped=False) / "train.jsonl"
    first, second, third, *others = path.read_text().splitlines()
    for change, message in (
        (lambda row: '{"id": ', r"train\.jsonl, line 3: Expecting value"),
        (lambda row: "[1]", "line 3: not a JSON object"),
        (lambda row: json.dumps(row | {"output": None}), "line 3: id 'quality-train-2': output=No"),
        (lambda row: json.dumps(row | {"id": 7}), "line 3: id 7: id=7 must be text"),
        (lambda row: json.dumps(row | {"output": "\ud800"}), "output='.ud800' must be text"),
        (lambda row: json.dumps(row | {"pid": "0"}), "duplicate pid"),
        (lambda row: json.dumps(row | {"input": "What?\n\nText"}), "its input has no choices and"),
    ):
        path.write_text("\n".join([first, second, change(json.loads(third)), *others]))
        refuses(message, examples_of, tmp_path, "quality", budget=Budget(300, 8))
        assert not list((tmp_path / "cache" / "scrolls").iterdir())  # nothing half-done is left


def test_files_that_are_broken(tmp_path):
    archive = write_task(tmp_path, "qasper", train=200)
    with zipfile.ZipFile(archive) as content:
        middle = content.getinfo("qasper/train.jsonl").compress_size // 2
    whole = archive.read_bytes()
    for damaged in (whole[:-40], whole[:middle] + bytes(60) + whole[middle + 60 :]):
        archive.write_bytes(damaged)
        refuses(r"\.zip/.*jsonl(, line \d+: | cannot be read)", rows_of, tmp_path, "qasper")
    with zipfile.ZipFile(tmp_path / "qmsum.zip", "w") as content:
        content.writestr("qmsum/train.jsonl", "\n")
    for split, message in {"train": "has no rows", "test": r"has no qmsum/test\.jsonl"}.items():
        with pytest.raises((ValueError, FileNotFoundError), match=rf"qmsum\.zip.* {message}"):
            rows_of(tmp_path, "qmsum", split)


def test_budgets_are_the_papers():
    assert BUDGETS["paper8k"]["answer"] == (7991, 200)
    assert BUDGETS["table5"]["summary"] == (767, 256)
    for name, of in BUDGETS.items():
        settings = yaml.safe_load((ROOT / "config" / "budget" / f"{name}.yaml").read_text())
        assert settings["data"]["budget"] == name
        assert {budget.length for budget in of.values()} == {settings["length"]}


@pytest.mark.parametrize(
    ("task", "bos"), [("qasper", False), ("gov_report", True), ("quality", True)]
)
def test_only_the_document_is_cut(task, bos, tmp_path):
    budget = Budget(prompt=150, answer=12)
    write_task(tmp_path, task)
    examples = examples_of(tmp_path, task, budget=budget, bos=bos)
    decode, end = examples.prompts.tokenizer.decode, examples.prompts.tokenizer.eos_token_id
    cut = 0
    for number, row in enumerate(rows_of(tmp_path, task)):
        ids, labels = (x.numpy() for x in examples[number].values())
        learned = labels != IGNORED
        prompt, answer = ids[~learned], ids[learned]
        assert (labels[learned] == answer).all()
        assert len(prompt) <= budget.prompt and len(answer) <= budget.answer + 1
        assert (ids == 0).sum() == bos and (ids[0] == 0) == bos  # <s>, and none inside
        text, tail = decode(prompt[bos:]), examples.prompts.tail_text
        assert text.startswith(row.question) and text.endswith(tail)
        document = text[len(row.question) : -len(tail)]
        assert row.document.startswith(document)
        cut += document != row.document
        assert len(prompt) == budget.prompt or document == row.document
        if answer[-1] == end:
            assert decode(answer[:-1]) == f" {row.output}"
        else:  # too long: no end is learned
            assert len(answer) == budget.answer and f" {row.output}".startswith(decode(answer))
    assert cut
    with pytest.raises(ValueError, match=rf"id '{task}-train-0': no room .* prompt's 10"):
        examples_of(tmp_path, task, budget=Budget(10, 8))


def test_tokens_are_cached_by_content(tmp_path, monkeypatch, caplog):
    texts = [f"Otter {n}?\n\nOf {n if n % 3 else 'all'}." for n in range(600)]  # > one batch
    rows = [(f"id {n}", text, "mill") for n, text in enumerate(texts)]
    file = write_rows(tmp_path / "qasper" / "train.jsonl", rows)
    examples = examples_of(tmp_path)
    assert examples.ids == [id_ for id_, _, _ in rows]
    counts = [*map(len, examples.prompts.tokenizer(texts)["input_ids"])]
    assert np.abs(examples.lengths - counts).max() <= 1  # question and document meet
    shutil.make_archive(str(tmp_path / "qasper"), "zip", tmp_path, "qasper")
    aside = file.rename(tmp_path / "aside")
    with monkeypatch.context() as patch:
        patch.setattr("scrolls.examples.read_rows", None)  # nothing is read again
        assert examples_of(tmp_path).fingerprint == examples.fingerprint  # the same rows, zipped
    file.write_text(aside.read_text().replace("Otter", "Eel"))
    assert examples_of(tmp_path).fingerprint != examples.fingerprint
    assert examples_of(tmp_path, budget=Budget(20, 8)).tokens("prompt", 1).size == 20
    kept = examples.table.to_pydict()
    for change in (lambda content: content[:-8], lambda content: content.replace(b"id", b"no")):
        file.write_bytes(aside.read_bytes())
        (tokens,) = (tmp_path / "cache" / "scrolls").glob(f"{examples.fingerprint}-60/rows.arrow")
        content = tokens.read_bytes()
        tokens.unlink()  # and not the one that is mapped
        tokens.write_bytes(change(content))
        assert examples_of(tmp_path).table.to_pydict() == kept
        assert f"{tokens.parent} is damaged" in caplog.text and "created again" in caplog.text


def test_the_order_of_training(tmp_path):
    write_task(tmp_path, "qasper", train=200)
    examples = examples_of(tmp_path, budget=Budget(700, 8))
    # The second as in a run that is continued.
    rows, fresh, other = (TrainingRows(examples, 10**6, seed, per_step=4) for seed in (0, 0, 1))
    count = len(rows.sequences)
    order = [rows._order(epoch) for epoch in (0, 1)]
    orders = [*order, other._order(0)]
    assert all(sorted(each) == list(range(count)) for each in orders)  # each row once an epoch
    assert len({*map(tuple, orders)}) == 3
    for n in (count + 7, 3, count - 1):
        torch.testing.assert_close(fresh[n], rows[n])
    steps = np.concatenate(order)[: 2 * count // 4 * 4].reshape(-1, 4)
    shuffled = np.random.default_rng(0).permutation(steps.ravel()).reshape(-1, 4)
    spread, usual = (np.ptp(rows.lengths[of], axis=1).mean() for of in (steps, shuffled))
    assert spread < 0.2 * usual


@pytest.mark.slow
def test_the_sample_is_balanced_and_held_out(tmp_path):
    folder = write_sample(tmp_path)
    train, validation = (
        list(read_rows(find(TASKS["sample"], split, None, tmp_path), TASKS["sample"], split))
        for split in ("train", "validation")
    )
    for split, question in product((train, validation), DECISIONS):
        of = [row.output for row in split if row.question.startswith(question)]
        assert of.count("Yes") == of.count("No") > 0
    assert not {row.document for row in train} & {row.document for row in validation}
    golds = Counter(row.id for row in validation)
    assert max(golds.values()) > 1 and 200 < len(golds) < 400
    assert write_sample(tmp_path) == folder  # from the cache


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
    given = answers(make_model("rope"), tokenizer, Batch(asked, room, 30))
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
    # The answers to some are beside those to all, which may come first or last.
    shutil.copytree(whole, folder := tmp_path / "copy")
    assert generate(base, data, folder, f"limit=4 processes={processes}") == found
    assert generate(base, data, folder) == found
    fewer = json.loads((folder / "limit_4" / "adape.json").read_text())
    assert fewer == {id_: found[id_] for id_ in (list(found)[n] for n in (0, 9, 19, 29))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("task=qaspr", "--task: unknown 'qaspr'; did you mean 'qasper'"),
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
