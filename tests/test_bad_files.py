"""Bad models and results are refused in one line that names the file, and do not change."""

import json
import math
import re
import shlex
import shutil

import pytest
from commands import run_command
from conftest import make_model
from refusals import NESTED, QUANTIZED, check_refusal, files, line_of
from results import add_grid, add_passkeys, add_perplexity, make_run
from safetensors.torch import load_file, save_file
from test_scrolls import byte_tokenizer

from tape.model.checkpoint import load, weight_files
from tape.results.runs import read_run


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A good model with its tokenizer, and bad settings of problems."""
    folder, tokenizer = tmp_path_factory.mktemp("made") / "model", byte_tokenizer()
    for part in (make_model("tape", vocab_size=len(tokenizer)), tokenizer):
        part.save_pretrained(folder)
    (folder / "problems.json").write_text('{"max_first": "many"}')
    return folder


CONFIG, WEIGHTS = "config.json", "model.safetensors"
INDEX = '{"weight_map": {"model.norm.weight": "../model.safetensors"}}'
# A file of a model; its content, entries of its object, or None where it is missing.
DAMAGED = [
    (CONFIG, "", r"broken/config\.json is damaged"),
    (
        CONFIG,
        '{"model_type": "gpt2", "n_embd": 32}',
        r"json: .*type 'gpt2'; allowed: 'tape'",
    ),
    (CONFIG, QUANTIZED, r"broken holds quantized weights"),
    (CONFIG, {"position": {"name": "rpoe"}}, r"encoding 'rpoe'; did you mean 'rope'\?"),
    (CONFIG, {"num_hidden_layers": 9}, r"weights of the model .* are missing, such as model"),
    (
        CONFIG,
        {"intermediate_size": 8},
        r"of \S+broken has the shape \(\d+, \d+\), but \(",
    ),
    (CONFIG, None, r"broken has no config\.json"),
    (WEIGHTS, "", r"broken is damaged \(SafetensorError"),
    (WEIGHTS, None, r"broken has no model\.safetensors"),
    ("tokenizer.json", NESTED, r"tokenizer\.json is damaged \(RecursionError"),
    (f"{WEIGHTS}.index.json", INDEX, r"names '\.\./\S+', which is not a file in the same folder"),
]


def harm(folder, file, content):
    path = folder / file
    if isinstance(content, dict):
        content = json.dumps(json.loads(path.read_text()) | content)
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)
    if file.endswith("index.json"):
        (folder / WEIGHTS).unlink()


def use(folder):
    weight_files(folder)
    load(folder)


@pytest.mark.parametrize(("file", "content", "message"), DAMAGED)
def test_models(file, content, message, model, tmp_path):
    harm(folder := shutil.copytree(model, tmp_path / "broken"), file, content)
    before = files(folder)
    assert re.search(message, line_of(use, folder))
    assert files(folder) == before


def test_weights_that_are_not_finite(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "nan")
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"].fill_(math.nan)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    message = r"nan: some weights are not finite, such as model\.norm"
    assert re.search(message, line_of(use, folder))


MODEL = "--model {model}"
MEASURED = f"-m tape.evaluation.perplexity --data local --lengths 64 {MODEL}"
LM_EVAL = f"-m tape.evaluation.lm_eval --tasks lambada_openai {MODEL}"
A_MODEL = r"is the folder of a run or a model \(config\.json\); give another one"
COMMANDS = [
    ("-m tape.analysis.state --model . no --out x", r"--model: no is not a folder: give that of"),
    ("-m tape.export {model} --out {model}", r"model already exists; choose another"),
    (f"{MEASURED} --out {{model}}/config.json/o.csv", r"json cannot be used: Not a directory"),
    (f"{LM_EVAL} --tasks a,b,a", r"--tasks: duplicate value a"),
    (
        f"-m tape.analysis.stability --windows 1 --out o --length 100000 {MODEL}",
        r"shifted by 1000: [\d,]+ GiB of attention weights",
    ),
    ("-m tape.tasks.evaluate {model} --task addition", r"max_first='many' must be an "),
    ("-m tape.results.compare {model} --out {model}", rf"--out: \S+model {A_MODEL}"),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=[case[0][-60:] for case in COMMANDS])
def test_commands(words, message, model, tmp_path):
    before = files(model)
    words = shlex.split(words.replace("{model}", str(model)))
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(model) == before


RESULTS = [
    ("grid", "grid.csv", ("1.0,10", "a,10"), r"grid/grid\.csv, line 2: value='a' is"),
    ("grid", "grid.csv", ("1.0,10", "0.9,10"), r"its accuracy is not that of summary\.json"),
    ("grid", "summary.json", ('"evaluated"', '"x"'), r"grid/summary\.json"),
    ("compare", "perplexity.csv", (",2.718", ",x"), r"line 2: perplexity='x\d+' is not a valid"),
    ("passkey", "passkey.csv", ("accuracy,", ""), r"passkey/"),
]


@pytest.mark.parametrize(("name", "file", "change", "message"), RESULTS)
def test_results(name, file, change, message, tmp_path):
    run = make_run(tmp_path / "run", "rope")
    (run / "compare").mkdir()
    add_grid(run / "grid", 5)
    add_perplexity(run / "compare", {8: 1.0})
    add_passkeys(run / "passkey", 10, {10: [5, 5]})
    path = run / name / file
    assert read_run(run, name)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    assert re.search(message, line_of(read_run, run, name))
