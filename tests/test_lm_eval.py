"""Tasks of lm-eval: log-likelihoods against a loop, generations, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_model, refuses
from lm_eval.api.instance import Instance
from test_scrolls import byte_tokenizer
from test_stability import make_folder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tape.cli import evaluate as parsers
from tape.evaluation import lm_eval as entry
from tape.evaluation.lm_eval import Harness
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
SPOKEN = """
include: sums.yaml
task: spoken
output_type: generate_until
doc_to_target: "1"
generation_kwargs: {until: ["zz"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""
QUESTIONS = {f"What is {n} and {n + 2}?": [f"{n * 7}", f"it is {n}", "none"] for n in range(12)}
DOCUMENTS = [
    {"question": question, "choices": choices, "answer": n % 3}
    for n, (question, choices) in enumerate(QUESTIONS.items())
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in {"sums": SUMS, "spoken": SPOKEN}.items():
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path):
    def run(position="tape"):
        folder = make_folder(tmp_path / "model", position, max_position_embeddings=64)
        (folder / "run.json").write_text("{}")
        return folder

    return run


def ask(folder, tasks, names, *given):
    """The results that the command writes."""
    where = ["--model", str(folder), "--include_path", str(tasks), "--tasks", names]
    arguments = parsers.lm_eval([*where, "--batch_size", "4", *given])
    entry.run(arguments)
    return json.loads(arguments.out.read_text())


@torch.no_grad()
def log_likelihood(model, ids, begin):
    """Of the tokens from `begin` on."""
    logs = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
    return sum(logs[n - 1, ids[n]].item() for n in range(begin, len(ids)))


def right(folder):
    """The share that a loop over single choices gets right, by likelihood and by that per byte."""
    model, tokenizer = load(folder)
    rights = []
    for n, (question, choices) in enumerate(QUESTIONS.items()):
        begin = len(tokenizer(question)["input_ids"])
        texts = tokenizer([f"{question} {choice}" for choice in choices])["input_ids"]
        found = np.array([log_likelihood(model, text, begin) for text in texts])
        per_byte = found / [*map(len, choices)]
        rights.append([found.argmax() == n % 3, per_byte.argmax() == n % 3])
    return np.mean(rights, axis=0)


@pytest.mark.parametrize("position", ["tape", "fire"])
def test_likelihoods_are_those_of_a_loop(position, tasks, run):
    folder = run(position)
    found = ask(folder, tasks, "sums")
    assert found["num_fewshot"] == 0 and found["max_length"] == 64
    assert found["versions"]["sums"] == 3 and found["n-samples"]["sums"]["effective"] == 12
    shares = [found["results"]["sums"][f"{metric},none"] for metric in ("acc", "acc_norm")]
    assert shares == pytest.approx(right(folder)) and 0 < shares[0] < 1


def test_answers_that_were_given_are_not_asked_again(tasks, run, monkeypatch):
    folder = run()
    first = ask(folder, tasks, "sums,spoken")
    monkeypatch.setattr(TapeForCausalLM, "forward", None)
    assert ask(folder, tasks, "sums,spoken") == first
    refuses("TypeError", ask, folder, tasks, "sums", "--dtype", "bfloat16")


def answers(kind, model, tokenizer, requests, batch_size=1):
    how = {"batch_size": batch_size, "max_length": 64}
    harness = Harness(model, tokenizer=tokenizer, **how, **entry.PRECISE)
    asked = [Instance(kind, doc={}, arguments=each, idx=n) for n, each in enumerate(requests)]
    return getattr(harness, kind)(asked, disable_tqdm=True)


@torch.no_grad()
def most_likely(model, ids, count):
    """`count` tokens of greedy decoding, without a cache."""
    for _ in range(count):
        following = model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()
        ids = [*ids, following.item()]
    return ids[-count:]


@pytest.mark.parametrize("owner", [None, "config", "generation_config"])
def test_an_answer_ends_with_its_own_eos(owner):
    """Also where other answers of a batch go on, and with further end tokens of the model."""
    tokenizer = byte_tokenizer()
    model = make_model("tape", vocab_size=len(tokenizer), max_position_embeddings=64)
    prompts = [f"{n} otters at" for n in range(8)]
    eos, ids = tokenizer.eos_token_id, tokenizer(prompts)["input_ids"]
    later = [id_ for each in ids for id_ in most_likely(model, each, 6)[1:]]
    common, rows = max(later, key=later.count), model.lm_head.weight.data
    rows[[eos, common]] = rows[[common, eos]]
    whole, stops = [most_likely(model, each, 6) for each in ids], {eos}
    if owner:
        others = [id_ for each in whole for id_ in each[2:] if id_ != eos]
        stops.add(max(others, key=others.count))
        getattr(model, owner).eos_token_id = sorted(stops)
    ends = [min([each.index(id_) for id_ in stops & {*each}], default=6) for each in whole]
    assert len({*ends}) > 1
    texts = [ids[:end] for ids, end in zip(whole, ends, strict=True)]
    texts = tokenizer.batch_decode(texts, skip_special_tokens=True)
    requests = [(prompt, {"until": [], "max_gen_toks": 6}) for prompt in prompts]
    for batch_size in (1, 4):
        assert answers("generate_until", model, tokenizer, requests, batch_size) == texts


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
    request = (prompt + answer,) if whole else (prompt, answer)
    (found,) = answers(kind, model, tokenizer, [request])
    value = found if whole else found[0]
    assert value == pytest.approx(log_likelihood(model, ids, begin), rel=1e-5)


def test_random_positions_are_drawn_for_the_longest(tasks, run):
    """Whatever else is in a batch; RandPE would refuse what goes beyond its draw."""
    assert ask(run({"name": "randpe", "eval_length": 20}), tasks, "sums,spoken")["results"]


def test_an_extended_model_has_a_file_of_its_own(tasks, run):
    folder = run("rope")
    plain, extended = ask(folder, tasks, "sums"), ask(folder, tasks, "sums", "--extend", "rerope")
    assert plain["position"] is None and extended["position"]["method"] == "rerope"
    assert len([*(folder / "lm_eval").iterdir()]) == 2


def test_the_longest_question_fits_exactly(tasks, run):
    """A prompt with the choice after it, whose last token is not read, or with the tokens that may
    be generated; here a byte is a token."""
    folder, prompts = run(), [*QUESTIONS]
    choice = max(len(f"{asked} {x}") for asked, choices in QUESTIONS.items() for x in choices)
    for task, needed in (("sums", choice - 1), ("spoken", max(map(len, prompts)) + 6)):
        message = rf"a prompt and its answer have {needed} tokens, more than --max_length "
        short = str(needed - 1)
        refuses(message + short, ask, folder, tasks, task, "--max_length", short)
        assert ask(folder, tasks, task, "--max_length", str(needed))["max_length"] == needed


def test_what_cannot_be_asked_is_refused(tasks, run):
    folder = run()

    def refused(given, message):
        refuses(message, ask, folder, tasks, *given.split())

    refused("sums --lengths 70 --max_length 64", "--lengths 70 is more than")
    refused("sums --lengths 32", "--lengths: sums has no prompts of given lengths")
    refused("babilong_qa1 --lengths 33", "BABILong takes one multiple of 1,024")
    assert entry.prompt_lengths(["babilong_qa1"], [4096]) == {"max_seq_lengths": "4k"}
    assert entry.prompt_lengths(["ruler_vt"], [512, 96]) == {"max_seq_lengths": [512, 96]}
    refused(f"sums --out {folder}/config.json", "contains something else")
    refused("sums --include_path none", "none is not a folder")
    path = folder / entry.TOKENIZER
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": "x"}}))
    refused("sums", "requires custom code")
    assert not (folder / "lm_eval").exists()


def test_tasks_that_make_prompts_have_the_tokens_of_the_checkpoint(tasks, run, monkeypatch):
    """RULER's load a tokenizer by name, as transformers does, which builds some classes anew."""
    folder, found, make = run(), [], entry.task_manager
    path = folder / entry.TOKENIZER
    label = {"tokenizer_class": "Qwen2Tokenizer"}  # which composes accents
    path.write_text(json.dumps(json.loads(path.read_text()) | label))
    text, (_, own) = "e\u0301", load(folder)
    by_label = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]

    def manager(names, given, metadata):
        found.append(AutoTokenizer.from_pretrained(metadata["tokenizer"])(text)["input_ids"])
        return make(names, given, metadata)

    monkeypatch.setattr(entry, "task_manager", manager)
    ask(folder, tasks, "sums")
    assert found == [own(text)["input_ids"]] != [by_label]


def test_what_is_not_downloaded_is_named_with_the_tasks_that_need_no_network(
    tasks, run, monkeypatch
):
    def offline(*given, **named):
        raise ConnectionError("HTTPSConnectionPool(host='x'): Max retries")

    monkeypatch.setattr(entry, "task_manager", offline)
    folder = run()
    told = r"its texts cannot be downloaded \(HTTPS.* Max retries\); run it with a network"
    refuses(f"--tasks sums: {told}$", ask, folder, tasks, "sums")
    told += ", or take those of RULER that need none: niah_single_1,"
    refuses(f"--tasks ruler_qa_squad: {told}", ask, folder, tasks, "ruler_qa_squad")


@pytest.mark.slow  # reads thousands of files
def test_six_tasks_of_ruler_need_no_network(run, monkeypatch):
    page = (Path(entry.__file__).parents[2] / "docs" / "zero_shot.md").read_text()
    (names,) = re.findall(r"--tasks (niah_[\w,]+)", page)
    assert names == ",".join(entry.OFFLINE)
    words = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    folder, special = run("rope"), {"eos_token": "</s>", "pad_token": "</s>"}
    words = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special)
    words.save_pretrained(folder)
    monkeypatch.setattr("datasets.load_dataset", None)
    given = ["--model", str(folder), "--lengths", "1024", "--max_length", "1400", "--limit", "1"]
    found = entry.run(parsers.lm_eval([*given, "--tasks", names]))
    assert {*found["results"]} == {*names.split(",")}
    assert all(-1 not in values.values() for values in found["results"].values())
