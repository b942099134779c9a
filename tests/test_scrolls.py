"""SCROLLS up to training: files, rows, prompts within budgets, their order, the sample."""

import json
import re
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

from scrolls.examples import BUDGETS, Budget, Prompts, tokenize_split
from scrolls.official_files import find, questions_of, read_rows
from scrolls.predictions import Golds
from scrolls.sample import DECISIONS, write_sample
from scrolls.scrolls_task import RowSequences, TrainingRows, padded
from scrolls.show import majority
from scrolls.tasks import BENCHMARK, TASKS
from tape.model.loss import IGNORED

ROOT = Path(__file__).parent.parent
BUDGET = Budget(prompt=60, answer=8)


def byte_tokenizer(bos: bool = False) -> PreTrainedTokenizerFast:
    """A token per byte, and a few merges; with `bos`, texts begin with one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Where was the otter seen? At the mill."] * 9, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def rows_of(folder, task, split="train"):
    task = TASKS[task]
    return list(read_rows(find(task, split, folder, folder / "cache"), task, split))


def examples_of(folder, task="qasper", split="train", budget=BUDGET, bos=False):
    prompts = Prompts(byte_tokenizer(bos), TASKS[task], budget)
    return tokenize_split(prompts, split, folder, folder / "cache")


@pytest.mark.parametrize("task", [*BENCHMARK, "quality_hard"])
@pytest.mark.parametrize("zipped", [True, False])
def test_rows_of_official_files(task, zipped, tmp_path):
    write_task(tmp_path, task, train=6, zipped=zipped)
    rows = rows_of(tmp_path, task)
    assert len({row.id for row in rows}) == (3 if task == "quality_hard" else 6)
    for row in rows:
        assert row.output and row.document.startswith("Report ")
        assert row.question.endswith("\n\n") or row.question == ""
        assert (" (D) " in row.question) == task.startswith("quality")
    assert [row.output for row in rows_of(tmp_path, task, "test")].count(None) >= 1


@pytest.mark.parametrize("task", [*BENCHMARK, "quality_hard"])
@pytest.mark.parametrize("zipped", [True, False])
def test_the_default_folder(task, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task, cache, folders = TASKS[task], tmp_path / "cache", ("data/scrolls", "elsewhere", "given")
    for folder in map(Path, folders):
        folder.mkdir(parents=True)
        write_task(folder, task.name, zipped=zipped)
    for variable, data_dir, folder in (
        ({}, None, "data/scrolls"),
        ({"SCROLLS_DIR": ""}, None, "data/scrolls"),
        ({"SCROLLS_DIR": "elsewhere"}, None, "elsewhere"),
        ({"SCROLLS_DIR": "elsewhere"}, Path("given"), "given"),
    ):
        for name, value in variable.items():
            monkeypatch.setenv(name, value)
        found = str(find(task, "train", data_dir, cache))
        assert found.startswith(f"{folder}/{task.folder}{'.zip' if zipped else ''}/")


@pytest.mark.parametrize("task", BENCHMARK)
@pytest.mark.parametrize("variable", [None, "elsewhere"])
@pytest.mark.parametrize("data_dir", [None, Path("given")])
def test_files_that_are_missing(task, variable, data_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if variable:
        monkeypatch.setenv("SCROLLS_DIR", variable)
    message = (
        rf"^{data_dir or variable or 'data/scrolls'} has neither {task}\.zip nor "
        rf"{task}/validation\.jsonl.*{TASKS[task].size:,} MB.*huggingface\.co/datasets/tau/scrolls "
        r".*https://www\.scrolls-benchmark\.com.*data/scrolls.*SCROLLS_DIR"
    )
    with pytest.raises(FileNotFoundError, match=message) as refused:
        find(TASKS[task], "validation", data_dir, tmp_path)
    assert ("HF_HUB_OFFLINE is set" in str(refused.value)) == (data_dir is None)


def test_golds_are_grouped_in_the_order_of_their_rows(tmp_path):
    write_task(tmp_path, "narrative_qa", train=5)
    rows = rows_of(tmp_path, "narrative_qa")
    questions = questions_of(iter(rows))
    assert list(questions) == list(dict.fromkeys(row.id for row in rows))
    assert [len(asked.outputs) for asked in questions.values()] == [1, 2, 1, 2, 1]
    assert [gold for asked in questions.values() for gold in asked.outputs] == [
        row.output for row in rows
    ]


def spoiled(tmp_path, change):
    folder = write_task(tmp_path, "quality", zipped=False)
    path = folder / "train.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[2])
    path.write_text("\n".join([*lines[:2], change(row), *lines[3:]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: '{"id": ', r"train\.jsonl, line 3: not JSON"),
        (lambda row: "[1]", "line 3: not a JSON object"),
        (lambda row: json.dumps(row | {"output": None}), "id 'quality-train-2': .*'output' is mis"),
        (lambda row: json.dumps(row | {"input": 5}), "'input' is 5, which is not text"),
        (lambda row: json.dumps(row | {"id": 7}), "line 3: field 'id' is 7"),
        (lambda row: json.dumps(row | {"output": "\ud800"}), "'output' holds a lone surrogate"),
        (lambda row: json.dumps(row | {"pid": "quality-train-0_0"}), "duplicate pid"),
        (lambda row: json.dumps(row | {"input": "What?\n\nText"}), r"no choice'\\n\\n \(A\)'"),
    ],
)
def test_a_bad_row_is_named(change, message, tmp_path):
    spoiled(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        rows_of(tmp_path, "quality")
    with pytest.raises(ValueError, match=message):
        examples_of(tmp_path, "quality", budget=Budget(300, 8))
    assert not list((tmp_path / "cache" / "scrolls").iterdir())  # nothing half-done is left


def test_files_that_are_not_there_or_broken(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"neither qasper\.zip nor qasper/train\.jsonl"):
        rows_of(tmp_path, "qasper")
    archive = write_task(tmp_path, "qasper", train=200)
    with zipfile.ZipFile(archive) as content:
        middle = content.getinfo("qasper/train.jsonl").compress_size // 2
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"qasper\.zip/qasper/train\.jsonl cannot be read"):
        rows_of(tmp_path, "qasper")
    archive.write_bytes(whole[:middle] + bytes(60) + whole[middle + 60 :])
    with pytest.raises(ValueError, match=r"qasper/train\.jsonl(, line \d+: not JSON| cannot be)"):
        rows_of(tmp_path, "qasper")
    with zipfile.ZipFile(tmp_path / "qmsum.zip", "w") as content:
        content.writestr("other/train.jsonl", "{}")
    with pytest.raises(FileNotFoundError, match=r"qmsum\.zip has no qmsum/train\.jsonl"):
        rows_of(tmp_path, "qmsum")
    with pytest.raises(FileNotFoundError, match="sample has no test split"):
        find(TASKS["sample"], "test", None, tmp_path)


def test_quality_without_hard_questions(tmp_path):
    folder = write_task(tmp_path, "quality", zipped=False)
    path = folder / "train.jsonl"
    path.write_text(path.read_text().replace('"is_hard": true', '"is_hard": false'))
    with pytest.raises(ValueError, match="has no question with is_hard: use quality instead"):
        rows_of(tmp_path, "quality_hard")


def test_budgets_are_the_papers():
    lengths = {name: {kind: b.length for kind, b in of.items()} for name, of in BUDGETS.items()}
    assert lengths["paper8k"] == {"answer": 8192, "summary": 8192}
    assert lengths["table5"] == {"answer": 1024, "summary": 1024}
    assert BUDGETS["paper8k"]["answer"] == (7991, 200)
    assert BUDGETS["table5"]["summary"] == (767, 256)
    for name, of in BUDGETS.items():
        settings = yaml.safe_load((ROOT / "config" / "budget" / f"{name}.yaml").read_text())
        assert settings["data"]["budget"] == name
        assert {budget.length for budget in of.values()} == {settings["length"]}


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("task", ["qasper", "gov_report", "quality"])
def test_only_the_document_is_cut(task, bos, tmp_path):
    budget = Budget(prompt=150, answer=12)
    write_task(tmp_path, task)
    examples = examples_of(tmp_path, task, budget=budget, bos=bos)
    decode, end = examples.prompts.tokenizer.decode, examples.prompts.tokenizer.eos_token_id
    cut = 0
    for number, row in enumerate(rows_of(tmp_path, task)):
        ids, labels = examples.example(number)
        learned = labels != IGNORED
        prompt, answer = ids[~learned], ids[learned]
        np.testing.assert_array_equal(prompt, examples.tokens("prompt", number))
        np.testing.assert_array_equal(labels[learned], answer)
        assert len(prompt) <= budget.prompt and len(ids) <= budget.length
        assert (ids == 0).sum() == bos and (ids[0] == 0) == bos  # <s>, and none inside
        text, tail = decode(prompt[bos:]), examples.prompts.tail_text
        assert text.startswith(row.question) and text.endswith(tail)
        assert decode(examples.question(number)) == row.question
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


def test_a_question_without_room_for_its_document(tmp_path):
    write_task(tmp_path, "quality")
    with pytest.raises(ValueError, match=r"id 'quality-train-\d': no room .* prompt's 50"):
        examples_of(tmp_path, "quality", budget=Budget(50, 8))


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
    assert examples_of(tmp_path).fingerprint == examples.fingerprint
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "train.jsonl", "qasper/train.jsonl")
    (folder / "train.jsonl").rename(tmp_path / "aside")
    assert examples_of(tmp_path).fingerprint == examples.fingerprint  # the same rows, zipped
    monkeypatch.undo()
    (folder / "train.jsonl").write_text((tmp_path / "aside").read_text().replace("otter", "eel"))
    assert examples_of(tmp_path).fingerprint != examples.fingerprint
    assert examples_of(tmp_path, budget=Budget(70, 8)).tokens("prompt", 1).size > BUDGET.prompt


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-8],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content.replace(b"id", b"no"),
        lambda content: content[:-300] + bytes(200) + content[-100:],  # its metadata
        lambda content: re.sub(rb"[^\0]\0[^\0]\0[^\0]\0", b"\xff" * 6, content),  # no such tokens
        None,
    ],
    ids=range(7),
)
def test_damaged_tokens_are_made_again(tmp_path, caplog, change):
    write_task(tmp_path, "qasper", train=6)
    kept = examples_of(tmp_path).table.to_pydict()
    (file,) = (tmp_path / "cache" / "scrolls").rglob("rows.arrow")
    if change is None:
        file.unlink()
    else:
        changed = change(file.read_bytes())
        assert changed != file.read_bytes()
        file.unlink()  # and not the one that is mapped
        file.write_bytes(changed)
    assert examples_of(tmp_path).table.to_pydict() == kept
    assert f"{file.parent} is damaged" in caplog.text and "created again" in caplog.text


def training_rows(folder, total, seed=0, per_step=4):
    examples = examples_of(folder, budget=Budget(700, 8))
    sequences = RowSequences(examples, list(range(len(examples.ids))))
    return TrainingRows(sequences, total, seed, per_step)


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

    lengths = rows.lengths
    several = np.concatenate(order)[: 2 * count // 4 * 4].reshape(-1, 4)
    spread = [np.ptp(lengths[step]) for step in several]
    random = np.random.default_rng(0).permutation(count)
    assert np.mean(spread) < 0.2 * np.mean(
        [np.ptp(lengths[step]) for step in np.split(random, range(4, count, 4))]
    )


def test_padding_changes_nothing(tmp_path):
    write_task(tmp_path, "qasper")
    rows = training_rows(tmp_path, 4)
    sequences = [rows[n] | {} for n in range(4)]
    sequences[1] = {name: x[-20:] for name, x in sequences[1].items()}
    model = make_model("tape", vocab_size=300)
    batch = padded(sequences)
    assert (batch["labels"][1, 20:] == IGNORED).all() and batch["input_ids"].shape[1] > 20
    together = model(**batch).loss
    losses, counts = [], []
    for sequence in sequences:
        alone = {name: x[None] for name, x in sequence.items()}
        counts.append((sequence["labels"] != IGNORED).sum())
        losses.append(model(**alone).loss * counts[-1])
    torch.testing.assert_close(together, sum(losses) / sum(counts))


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

    reference = Golds("validation", None, tmp_path, with_inputs=True).of(TASKS["sample"])
    guesses = majority(reference, None, tmp_path)
    assert list(guesses) == list(golds)
    names = Counter(row.output for row in splits["train"] if "called" in row.question)
    asked = next(row for row in splits["validation"] if "called" in row.question)
    assert guesses[asked.id] == names.most_common(1)[0][0]
