"""Tasks of lm-eval: log-likelihoods against a loop, tables, and what is refused."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import make_model
from lm_eval.api.instance import Instance
from test_scrolls import byte_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from tape import parsers
from tape.evaluation import lm_eval as entry
from tape.evaluation.harness import Harness
from tape.evaluation.tables import read_table
from tape.model.checkpoint import load
from tape.model.modeling import TapeForCausalLM

SUMS = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/sums.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_target: answer
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
metadata: {version: 3}
"""
OTHERS = (
    "include: sums.yaml\ntask: others\ndataset_kwargs: {data_files: {test: FOLDER/others.jsonl}}"
)
GROUP = """
group: both
task: [sums, others]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
metadata: {version: 1}
"""
SPOKEN = """
include: sums.yaml
task: spoken
output_type: generate_until
doc_to_target: "1"
generation_kwargs: {until: ["zz"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""
DOCUMENTS = [
    {
        "question": f"What is {number} and {number + 2}?",
        "choices": [f"{number * 7}", f"it is {number}", "none"],
        "answer": number % 3,
    }
    for number in range(12)
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    texts = {"sums": SUMS, "others": OTHERS, "both": GROUP, "spoken": SPOKEN}
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    for name, rows in (("sums", DOCUMENTS), ("others", DOCUMENTS[:5])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPE_CACHE", str(tmp_path / "cache"))


def make_folder(folder, position="tape"):
    tokenizer = byte_tokenizer()
    model = make_model(position, vocab_size=len(tokenizer), max_position_embeddings=64)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "run.json").write_text("{}")
    return folder


def ask(folder, tasks, names, *given):
    where = ["--model", str(folder), "--include_path", str(tasks), "--tasks", names]
    return entry.run(parsers.lm_eval([*where, "--batch_size", "4", *given]))


@torch.no_grad()
def log_likelihood(model, ids, begin):
    """Of the tokens from `begin` on."""
    logs = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
    return sum(logs[n - 1, ids[n]].item() for n in range(begin, len(ids)))


def right(folder, documents):
    """How many a loop over single choices gets right, by likelihood and by that per byte."""
    model, tokenizer = load(folder)
    counts = [0, 0]
    for document in documents:
        choices, begin = document["choices"], len(tokenizer(document["question"])["input_ids"])
        texts = [f"{document['question']} {choice}" for choice in choices]
        found = [log_likelihood(model, tokenizer(text)["input_ids"], begin) for text in texts]
        per_byte = [value / len(x) for value, x in zip(found, choices, strict=True)]
        for number, values in enumerate((found, per_byte)):
            counts[number] += values.index(max(values)) == document["answer"]
    return counts


@pytest.mark.parametrize("position", ["tape", "fire"])
def test_likelihoods_are_those_of_a_loop(position, tasks, tmp_path):
    folder = make_folder(tmp_path / "model", position)
    rows = ask(folder, tasks, "both")
    found = {(row["task"], row["metric"]): row for row in rows}
    acc, acc_norm = right(folder, DOCUMENTS)
    others, _ = right(folder, DOCUMENTS[:5])
    assert 0 < acc < 12 and float(found["sums", "acc"]["value"]) == pytest.approx(acc / 12)
    assert float(found["sums", "acc_norm"]["value"]) == pytest.approx(acc_norm / 12)
    assert float(found["both", "acc"]["value"]) == pytest.approx((acc + others) / 17)
    counts = [found[task, "acc"]["questions"] for task in ("sums", "others", "both")]
    assert counts == ["12", "5", "17"]
    assert {row["shots"] for row in rows} == {"0"} and found["sums", "acc"]["version"] == "3"
    assert found["sums", "acc"]["max_length"] == "64"


def test_nothing_is_printed_outside_a_repository(tasks, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    ask(make_folder(tmp_path / "model"), tasks, "sums")
    assert "git" not in capfd.readouterr().err


def test_answers_that_were_given_are_not_asked_again(tasks, tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "model")
    first = ask(folder, tasks, "sums,spoken")

    def forward(*args, **kwargs):
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(TapeForCausalLM, "forward", forward)
    assert ask(folder, tasks, "sums,spoken") == first
    assert read_table(folder / "zero_shot.csv", entry.COLUMNS) == first
    with pytest.raises(ValueError, match="AssertionError: the model was asked again"):
        ask(folder, tasks, "sums", "--dtype", "bfloat16")


def asked(kind, arguments):
    return [Instance(kind, doc={}, arguments=each, idx=n) for n, each in enumerate(arguments)]


def most_likely(model, ids, count):
    """`count` tokens of greedy decoding, without a cache."""
    with torch.no_grad():
        for _ in range(count):
            following = model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()
            ids = [*ids, following.item()]
    return ids[-count:]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_answer_ends_with_its_own_eos(batch_size):
    """Also where other answers of a batch go on."""
    tokenizer = byte_tokenizer()
    model = make_model("tape", vocab_size=len(tokenizer), max_position_embeddings=64)
    prompts = [f"{n} otters at" for n in range(8)]
    eos, ids = tokenizer.eos_token_id, [tokenizer(prompt)["input_ids"] for prompt in prompts]
    later = [id_ for each in ids for id_ in most_likely(model, each, 6)[1:]]
    common, rows = max(later, key=later.count), model.lm_head.weight.data
    rows[[eos, common]] = rows[[common, eos]]
    whole = [most_likely(model, each, 6) for each in ids]
    ends = [each.index(eos) if eos in each else len(each) for each in whole]
    assert len({*ends}) > 1
    found = Harness(model, tokenizer, 64, batch_size).generate_until(
        asked("generate_until", [(prompt, {"until": [], "max_gen_toks": 6}) for prompt in prompts]),
        disable_tqdm=True,
    )
    ended = [
        tokenizer.decode(ids[:end], skip_special_tokens=True)
        for ids, end in zip(whole, ends, strict=True)
    ]
    assert found == ended


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling"])
def test_single_likelihoods(kind):
    """Those of a model in bfloat16 are not rounded. A whole text is scored without the BOS of its
    tokenizer: the prefix token before it is one."""
    whole = kind == "loglikelihood_rolling"
    tokenizer = byte_tokenizer(bos=whole)
    model = make_model("rope", vocab_size=len(tokenizer), max_position_embeddings=64)
    model = model.to(torch.float32 if whole else torch.bfloat16)
    prompt, answer = "Where was", " the heron seen, and by whom"
    ids = tokenizer(prompt + answer)["input_ids"]
    begin = 1 if whole else len(tokenizer(prompt)["input_ids"])
    request = asked(kind, [(prompt + answer,) if whole else (prompt, answer)])
    (found,) = getattr(Harness(model, tokenizer, 64), kind)(request, disable_tqdm=True)
    value = found if whole else found[0]
    assert value == pytest.approx(log_likelihood(model, ids, begin), rel=1e-5)


def test_answers_of_another_tokenizer_are_asked_again(tasks, tmp_path):
    folder = make_folder(tmp_path / "model")
    ask(folder, tasks, "sums", "--limit", "1")
    before = [*(tmp_path / "cache" / "lm_eval").iterdir()]
    written = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(
        written.replace('"ignore_merges": false', '"ignore_merges": true')
    )
    ask(folder, tasks, "sums", "--limit", "1")
    assert len([*(tmp_path / "cache" / "lm_eval").iterdir()]) == len(before) + 1


def test_texts_are_written_at_positions_for_the_longest(tasks, tmp_path):
    """Whatever else is in a batch; RandPE would refuse what goes beyond its draw."""
    folder = make_folder(tmp_path / "model", {"name": "randpe", "eval_length": 20})
    assert ask(folder, tasks, "spoken")


def test_an_extended_model_has_rows_of_its_own(tasks, tmp_path):
    folder = make_folder(tmp_path / "model", "rope")
    extend = ["--extend", "rerope", "--out", str(tmp_path / "table.csv")]
    (row, *_) = ask(folder, tasks, "sums", *extend)
    position = {"name": "extended", "method": "rerope"}
    TapeForCausalLM.from_pretrained(folder, position=position).save_pretrained(folder)
    rows = ask(folder, tasks, "sums", *extend[2:])
    assert row["model"] == "model rerope" and rows[-1]["model"] == "model"
    assert row["value"] in {each["value"] for each in rows if each["model"] == "model"}


LONGER = r"a prompt and its answer have \d\d tokens, more than --max_length "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("sums", "--max_length", "18"), LONGER + "18"),
        (("spoken", "--max_length", "9"), LONGER + "9"),
        (("sums", "--max_length", "5", "--truncate"), "one answer has"),
        (("sums", "--lengths", "32"), "--lengths: sums has no prompts of given lengths; omit"),
        (("sums", "--lengths", "70", "--max_length", "64"), "--lengths 70 is more than"),
        pytest.param(
            ("nothing",), "--tasks nothing: .*'nothing' is not a", marks=pytest.mark.slow
        ),  # reads thousands of files to know
    ],
)
def test_what_cannot_be_asked_is_refused(given, message, tasks, tmp_path):
    folder = make_folder(tmp_path / "model")
    with pytest.raises((ValueError, OSError), match=message):
        ask(folder, tasks, *given)
    assert not (folder / "zero_shot.csv").exists()
    if "a prompt and" in message:
        assert ask(folder, tasks, *given, "--truncate")


def test_what_cannot_be_loaded_is_refused(tasks, tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "model")
    path = folder / entry.TOKENIZER
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": "x"}}))
    with pytest.raises(ValueError, match="requires custom code"):
        ask(folder, tasks, "sums")
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ValueError, match="install the extra `eval`"):
        ask(folder, tasks, "sums")


def row(model, task, value, metric="acc", **changes):
    about = dict.fromkeys(entry.COLUMNS, "") | {"shots": "0", "dtype": "float32"}
    about |= {"max_length": "4096", "stderr": "0.01", "questions": "100"}
    found = {"model": model, "task": task, "metric": metric, "value": str(value)}
    return about | found | changes


def test_the_table_has_the_papers_rows():
    rows = [
        row("ours", "arc_easy", 0.75),
        row("ours", "mmlu_stem", 0.5, stderr=""),
        row("ours", "arc_easy", 0.7, metric="acc_norm"),
        row("other", "arc_easy", 0.25),
        row("other", "niah_single_1", 1.0, metric="8192"),
        row("other", "lambada", 7.8403, metric="perplexity", stderr="0.25"),
    ]
    lines = entry.table(rows).splitlines()
    columns = "mmlu_stem | arc_easy | niah_single_1 8192 | lambada perplexity"
    assert lines[0] == f"| model | {columns} | from |"
    assert lines[2].startswith("| ours | 50.00 | 75.00 ± 1.00 | - | - | 0 shots, float32, up to 40")
    assert lines[3].startswith("| other | - | 25.00 ± 1.00 | 100.00 ± 1.00 | 7.8403 ± 0.2500 |")
    assert "| TAPE | 33.27 | 74.16 | - | - | arXiv 2501.00712, Table 9 |" in lines
    assert "| 70.00 ± 1.00 |" in entry.table(rows, "acc_norm")


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("acc_norm", 1.0, "100.00"),
        ("em", 0.0, "0.00"),
        ("exact_match:strict-match", 0.5, "50.00"),
        ("accuracy", 62.5, "62.5000"),  # in percent already
        ("word_perplexity", 1234567.0, "1234567.0000"),
        ("mcc", -0.1, "-0.1000"),
    ],
)
def test_only_accuracies_are_in_percent(metric, value, shown):
    lines = entry.table([row("ours", "arc_easy", value, metric, stderr="")], metric).splitlines()
    assert lines[2].startswith(f"| ours | {shown} | ")
    papers = [line for line in lines if line.startswith("| TAPE | 74.16 |")]
    assert bool(papers) == (f"{float(shown):.2f}" == shown or metric == "accuracy")


@pytest.mark.parametrize(
    ("changes", "metric", "message"),
    [
        ({"model": "other", "shots": "5"}, None, "arc_easy has different settings: shots=0 and 5"),
        ({"model": "other", "limit": "9"}, None, "different settings: limit=none and 9"),
        ({"max_length": "64"}, None, "two results of one model: max_length=4096 and 64"),
        ({"model": "other"}, "acd", "unknown --metric 'acd'; did you mean 'acc'"),
    ],
)
def test_a_table_mixes_no_questions(changes, metric, message):
    rows = [row("ours", "arc_easy", 0.75), row("ours", "arc_easy", 0.5) | changes]
    with pytest.raises(ValueError, match=message):
        entry.table(rows, metric)


BABILONG = """
task: babilong_qa1
custom_dataset: !function made.load
output_type: generate_until
test_split: qa1
doc_to_text: "{{input}}"
doc_to_target: "{{target}}"
generation_kwargs: {until: [], max_gen_toks: 6}
metric_list: [{metric: acc}]
process_results: !function made.score
metadata: {version: 0}
"""
MADE = """
import datasets

def load(max_seq_lengths="0k", **_):
    rows = [{"input": f"of {max_seq_lengths}", "target": max_seq_lengths}] * 2
    return {"qa1": datasets.Dataset.from_list(rows)}

def score(doc, results):
    return {"acc": float(doc["target"] == "2k")}
"""


def test_babilong_has_lengths(tmp_path):
    (tmp_path / "babilong_qa1.yaml").write_text(BABILONG)
    (tmp_path / "made.py").write_text(MADE)
    folder = make_folder(tmp_path / "model", "rope")
    (row,) = ask(folder, tmp_path, "babilong_qa1", "--lengths", "2048")
    assert (row["metric"], row["value"]) == ("2048", "1.0")
    message = "BABILong takes one multiple of 1,024 and no other tasks"
    for given in ("babilong_qa1 2000", "babilong_qa1 1024 2048", "babilong_qa1,ruler_vt 1024"):
        tasks, *lengths = given.split()
        with pytest.raises(ValueError, match=message):
            ask(folder, tmp_path, tasks, "--lengths", *lengths)


@pytest.mark.slow  # reads thousands of files
def test_six_tasks_of_ruler_need_no_network(tmp_path, monkeypatch):
    page = (Path(entry.__file__).parents[2] / "docs" / "zero_shot.md").read_text()
    (names,) = re.findall(r"--tasks (niah_[\w,]+)", page)
    words = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    folder = make_folder(tmp_path / "model", "rope")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr("datasets.load_dataset", None)
    given = ["--model", str(folder), "--lengths", "1024", "--max_length", "1400", "--limit", "1"]
    rows = entry.run(parsers.lm_eval([*given, "--tasks", names]))
    assert {row["task"] for row in rows} == {*names.split(",")} and len(rows) >= 6
