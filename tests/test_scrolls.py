"""SCROLLS up to training: files, rows, prompts within budgets, their order, the sample."""

import json
import shutil
import zipfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import ROOT
from conftest import refuses
from scrolls_data import write_rows, write_task
from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from scrolls import rows
from scrolls.examples import BUDGETS, Budget, Prompts, tokenize_split
from scrolls.rows import HUB, find, read_rows
from scrolls.sample import DECISIONS, write_sample
from scrolls.scrolls_task import TrainingRows
from scrolls.tasks import BENCHMARK, TASKS
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
