"""Bad models and results are refused in one line that names the file, and do not change."""

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_command
from conftest import make_model
from refusals import NESTED, QUANTIZED, check_refusal, files, line_of
from results import add_grid, add_passkeys, add_perplexity, make_run
from test_scrolls import byte_tokenizer

from tape.model.checkpoint import load, weight_files
from tape.results.runs import read_run

# Folders of `made`, each a good model but for one file: its name, what it holds, the folder's name.
DAMAGED = {
    "config.json": {
        "empty": "",
        "gpt2": '{"model_type": "gpt2", "n_embd": 32}',
        "quantized": QUANTIZED,
        "encoding": {"position": {"name": "rpoe"}},
        "layers": {"num_hidden_layers": 9},
        "shapes": {"intermediate_size": 8},
    },
    "model.safetensors": {"empty": ""},
    "tokenizer.json": {"nested": NESTED},
    "problems.json": {"key": '{"max_first": "many"}'},
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Models, each with one file that is damaged."""
    folder = tmp_path_factory.mktemp("made")
    np.arange(600, dtype=np.uint16).__mod__(256).tofile(folder / "ids.bin")
    (folder / "loop").symlink_to("loop")
    (folder / "file").touch()
    (folder / "empty").mkdir()
    model, tokenizer = folder / "model", byte_tokenizer()
    broken = make_model("tape", vocab_size=len(tokenizer))
    for part in (broken, tokenizer):
        part.save_pretrained(model)
    for file, contents in DAMAGED.items():
        for name, content in contents.items():
            copy = shutil.copytree(model, folder / f"{Path(file).stem}_{name}")
            if isinstance(content, dict):
                content = json.dumps(json.loads((model / file).read_text()) | content)
            (copy / file).write_text(content)
    for file in ("config.json", "model.safetensors"):
        shutil.copytree(model, other := folder / f"without_{file}")
        (other / file).unlink()
    torch.nn.init.constant_(broken.model.embed_tokens.weight, math.nan)
    broken.save_pretrained(shutil.copytree(model, folder / "nan"))
    shutil.copytree(folder / "without_model.safetensors", folder / "index")
    index = folder / "index" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../w"}}')
    return folder


MODELS = {
    "config_empty": r"config_empty/config\.json is damaged",
    "config_gpt2": r"config\.json: .* model_type 'gpt2'; allowed: 'tape'",
    "config_quantized": r"config_quantized holds quantized weights",
    "config_encoding": r"encoding 'rpoe'; did you mean 'rope'\?",
    "config_layers": r"weights of the model .* are missing, such as model",
    "config_shapes": r"of \S+config_shapes has the shape \(\d+, \d+\), but \(\d+, \d+\) by",
    "model_empty": r"model_empty is damaged \(SafetensorError",
    "tokenizer_nested": r"tokenizer\.json is damaged \(RecursionError",
    "empty": r"empty has no model\.safetensors",
    "index": r"index\.json: names '\.\./w', which is not a file in the same folder",
    "nan": r"made\d+/nan: some weights are not finite, such as model\.",
}
for _file in ("config.json", "model.safetensors"):
    MODELS[f"without_{_file}"] = rf"without_{re.escape(_file)} has no {re.escape(_file)}"


@pytest.mark.parametrize("name", MODELS)
def test_models(name, made):
    def use(folder):
        weight_files(folder)
        load(folder)

    before = files(made)
    assert re.search(MODELS[name], line_of(use, made / name))
    assert files(made) == before


MODEL = "--model {made}/model"
MEASURED = f"-m tape.evaluation.perplexity --data {{made}}/ids.bin --lengths 64 --out o.csv {MODEL}"
LM_EVAL = f"-m tape.evaluation.lm_eval --tasks lambada_openai {MODEL}"
A_MODEL = r"is the folder of a run or a model \(config\.json\); give another one"
COMMANDS = [
    ("-m tape.analysis.state --model . no --out x", r"--model: no is not a folder: give that of"),
    ("-m tape.export {made}/model --out {made}/model", r"model already exists; choose another"),
    (f"{MEASURED} --out {{made}}/file/o.csv", r"file cannot be used: Not a directory"),
    (f"{LM_EVAL} --tasks a,b,a", r"--tasks: duplicate value a"),
    (
        f"-m tape.analysis.stability --windows 1 --out o --length 100000 {MODEL}",
        r"shifted by 1000: [\d,]+ GiB of attention weights",
    ),
    ("-m tape.results.compare {made}/model --out {made}/model", rf"--out: \S+model {A_MODEL}"),
    ("-m tape.tasks.evaluate {made}/problems_key --task addition", r"max_first='many' must be an "),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=[case[0][-60:] for case in COMMANDS])
def test_commands(words, message, made, tmp_path):
    before = files(made)
    words = shlex.split(words.replace("{made}", str(made)))
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(made) == before and not (tmp_path / "o").exists()


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
