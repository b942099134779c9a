"""SCROLLS up to training: files, rows, prompts within budgets, their order, the sample."""

import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import make_model
from scrolls_data import write_task
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from scrolls import rows
from scrolls.examples import BUDGETS, Budget, Prompts, tokenize_split
from scrolls.rows import HUB, find, read_rows
from scrolls.sample import DECISIONS, write_sample
from scrolls.scrolls_task import TrainingRows, padded
from scrolls.tasks import BENCHMARK, TASKS
from tape.model.loss import IGNORED

ROOT = Path(__file__).parent.parent
BUDGET = Budget(prompt=60, answer=8)


def byte_tokenizer(texts=("Where was the otter seen? At the mill.",) * 9, bos=False):
    """A token per byte, and a few merges from texts; with `bos`, texts begin with one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def rows_of(folder, task, split="train"):
    task = TASKS[task]
    return list(read_rows(find(task, split, folder, folder / "cache"), task, split))


def examples_of(folder, task="qasper", split="train", budget=BUDGET, bos=False):
    prompts = Prompts(byte_tokenizer(bos=bos), TASKS[task], budget)
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


@pytest.mark.parametrize(
    ("variable", "data_dir", "folder", "zipped"),
    [
        ("", None, "data/scrolls", True),
        ("elsewhere", None, "elsewhere", False),
        ("elsewhere", "given", "given", True),
    ],
)
def test_the_default_folder(variable, data_dir, folder, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCROLLS_DIR", variable)
    asked = TASKS["quality"], "train", data_dir and Path(data_dir), tmp_path
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: '{"id": ', r"train\.jsonl, line 3: Expecting value"),
        (lambda row: "[1]", "line 3: not a JSON object"),
        (lambda row: json.dumps(row | {"output": None}), "line 3: id 'quality-train-2': output=No"),
        (lambda row: json.dumps(row | {"input": 5}), "input=5 must be text"),
        (lambda row: json.dumps(row | {"id": 7}), "line 3: id 7: id=7 must be text"),
        (lambda row: json.dumps(row | {"output": "\ud800"}), "output='.ud800' must be text"),
        (lambda row: json.dumps(row | {"pid": "quality-train-0_0"}), "duplicate pid"),
        (lambda row: json.dumps(row | {"input": "What?\n\nText"}), "its input has no choices and"),
    ],
)
def test_a_bad_row_is_named(change, message, tmp_path):
    path = write_task(tmp_path, "quality", zipped=False) / "train.jsonl"
    first, second, third, *others = path.read_text().splitlines()
    path.write_text("\n".join([first, second, change(json.loads(third)), *others]))
    with pytest.raises(ValueError, match=message):
        examples_of(tmp_path, "quality", budget=Budget(300, 8))
    assert not list((tmp_path / "cache" / "scrolls").iterdir())  # nothing half-done is left


def test_files_that_are_broken(tmp_path):
    archive = write_task(tmp_path, "qasper", train=200)
    with zipfile.ZipFile(archive) as content:
        middle = content.getinfo("qasper/train.jsonl").compress_size // 2
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"qasper\.zip/qasper/train\.jsonl cannot be read"):
        rows_of(tmp_path, "qasper")
    archive.write_bytes(whole[:middle] + bytes(60) + whole[middle + 60 :])
    with pytest.raises(ValueError, match=r"qasper/train\.jsonl(, line \d+: | cannot be read)"):
        rows_of(tmp_path, "qasper")
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
        np.testing.assert_array_equal(labels[learned], answer)
        assert len(prompt) <= budget.prompt and len(ids) <= budget.length
        assert (ids == 0).sum() == bos and (ids[0] == 0) == bos  # <s>, and none inside
        text, tail = decode(prompt[bos:]), examples.prompts.tail_text
        assert text.startswith(row.question) and text.endswith(tail)
        document = text[len(row.question) : -len(tail)]
        assert row.document.startswith(document)
        if document != row.document:
            cut += 1
            assert len(prompt) == budget.prompt
        if answer[-1] == end:
            assert decode(answer[:-1]) == f" {row.output}"
        else:  # too long: no end is learned
            assert len(answer) == budget.answer and f" {row.output}".startswith(decode(answer))
    assert cut
    with pytest.raises(ValueError, match=rf"id '{task}-train-0': no room .* prompt's 10"):
        examples_of(tmp_path, task, budget=Budget(10, 8))


def test_tokens_are_cached_by_content(tmp_path, monkeypatch):
    folder = write_task(tmp_path, "qasper", train=300, zipped=False)  # more rows than one batch
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for row in rows[::3]:
        row["input"] = "Where?\n\nThe same for all."
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = examples_of(tmp_path)
    assert examples.ids == [row["id"] for row in rows]
    for number, row in enumerate(rows):
        tokens = examples.prompts.tokenizer(row["input"])["input_ids"]
        assert abs(examples.lengths[number] - len(tokens)) <= 1  # question and document meet
    monkeypatch.setattr("scrolls.examples.read_rows", None)  # nothing is read again
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "train.jsonl", "qasper/train.jsonl")
    (folder / "train.jsonl").rename(tmp_path / "aside")
    assert examples_of(tmp_path).fingerprint == examples.fingerprint  # the same rows, zipped
    monkeypatch.undo()
    (folder / "train.jsonl").write_text((tmp_path / "aside").read_text().replace("otter", "eel"))
    assert examples_of(tmp_path).fingerprint != examples.fingerprint
    assert examples_of(tmp_path, budget=Budget(70, 8)).tokens("prompt", 1).size > BUDGET.prompt


@pytest.mark.parametrize("cut", [False, True])
def test_damaged_tokens_are_made_again(tmp_path, caplog, cut):
    write_task(tmp_path, "qasper", train=6)
    kept = examples_of(tmp_path).table.to_pydict()
    (file,) = (tmp_path / "cache" / "scrolls").rglob("rows.arrow")
    content = file.read_bytes()
    file.unlink()  # and not the one that is mapped
    file.write_bytes(content[:-8] if cut else content.replace(b"id", b"no"))
    assert examples_of(tmp_path).table.to_pydict() == kept
    assert f"{file.parent} is damaged" in caplog.text and "created again" in caplog.text


def training_rows(folder, total, seed=0):
    return TrainingRows(examples_of(folder, budget=Budget(700, 8)), total, seed, per_step=4)


def test_the_order_of_training(tmp_path):
    write_task(tmp_path, "qasper", train=200)
    rows = training_rows(tmp_path, 10**6)
    count = len(rows.sequences)
    order = [rows._order(epoch) for epoch in (0, 1)]
    assert all(sorted(one) == list(range(count)) for one in order)  # each row once an epoch
    assert list(order[0]) != list(order[1])
    assert list(order[0]) != list(training_rows(tmp_path, 10**6, seed=1)._order(0))
    fresh = training_rows(tmp_path, 10**6)  # as in a run that is continued
    for n in (count + 7, 3, count - 1):
        torch.testing.assert_close(fresh[n], rows[n])
    steps = np.concatenate(order)[: 2 * count // 4 * 4].reshape(-1, 4)
    shuffled = np.random.default_rng(0).permutation(steps.ravel()).reshape(-1, 4)
    spread, usual = (np.ptp(rows.lengths[of], axis=1).mean() for of in (steps, shuffled))
    assert spread < 0.2 * usual


def test_padding_changes_nothing(tmp_path):
    write_task(tmp_path, "qasper")
    rows = training_rows(tmp_path, 4)
    sequences = [rows[0], {name: x[-20:] for name, x in rows[1].items()}]
    batch, model = padded(sequences), make_model("tape", vocab_size=300)
    assert (batch["labels"][1, 20:] == IGNORED).all() and batch["input_ids"].shape[1] > 20
    alone = [model(**{name: x[None] for name, x in each.items()}).loss for each in sequences]
    counts = (batch["labels"] != IGNORED).sum(1)
    expected = (torch.stack(alone) * counts).sum() / counts.sum()
    torch.testing.assert_close(model(**batch).loss, expected)


@pytest.mark.slow
def test_the_sample_is_balanced_and_held_out(tmp_path):
    folder = write_sample(tmp_path)
    splits = {}
    for split in ("train", "validation"):
        source = find(TASKS["sample"], split, None, tmp_path)
        splits[split] = list(read_rows(source, TASKS["sample"], split))
        for question in DECISIONS:
            of = [row.output for row in splits[split] if row.question.startswith(question)]
            assert of.count("Yes") == of.count("No") > 0
    train, validation = ({row.document for row in rows} for rows in splits.values())
    assert not train & validation
    golds = Counter(row.id for row in splits["validation"])
    assert max(golds.values()) > 1 and 200 < len(golds) < 400
    assert write_sample(tmp_path) == folder  # from the cache
