"""Bad data, models and results are refused in one line that names the file, and do not change."""

import gzip
import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_command
from conftest import make_model
from refusals import (
    NESTED,
    QUANTIZED,
    check_refusal,
    configuration,
    files,
    left_in,
    line_of,
)
from scrolls_data import write_task
from test_scrolls import byte_tokenizer

from tape import TapeForCausalLM
from tape.commands import train
from tape.model.checkpoint import load, weight_files
from tape.statistics import with_interval


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def given(tmp_path_factory):
    """Files, good and bad, and models that were made with them."""
    folder = tmp_path_factory.mktemp("given")
    write_texts(folder)
    write_scrolls(folder)
    write_models(folder)
    return folder


def write_texts(folder):
    text = "".join(
        f'{{"text": "line {n}: {n * n} sheep and {n % 5} goats. "}}\n' for n in range(2000)
    )
    contents = {
        "text.jsonl": text,
        "nested.jsonl": '{"text": ' + "[" * 100_000 + "\n",
        "empty.txt": "",
        "file": "x",
        "tokenizer_vocabulary/tokenizer.json": '{"model": {"type": "BPE"}}',
    }
    write_all(folder, contents)
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "folder.txt").mkdir()
    (folder / "c4").mkdir()
    for split in ("train", "validation"):
        shard = folder / "c4" / f"c4-{split}.00000-of-00001.json.gz"
        shard.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_all(folder, contents):
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_scrolls(folder):
    write_task(folder / "scrolls", "qasper")
    locked = (folder / "scrolls" / "qasper.zip").read_bytes()
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of every member
        locked = re.sub(
            re.escape(mark) + b"." * place,
            lambda found: found[0][:-4] + bytes([found[0][-4] | 1]) + found[0][-3:],
            locked,
            flags=re.DOTALL,
        )
    answers = {f"qasper-validation-{n}": "x" for n in range(3)}
    contents = {
        "zip_locked/qasper.zip": locked,
        os.fsdecode(b"answers_unnamed/qasper/\xff.json"): "{}",
        "answers/tape.json": json.dumps(answers),
    }
    write_all(folder, contents)
    (folder / "answers_loop" / "qasper").mkdir(parents=True)
    (folder / "answers_loop" / "qasper" / "tape.json").symlink_to("tape.json")


def write_models(folder):
    """Untrained ones, each with a file of what it was trained on that is damaged."""
    tokenizer = byte_tokenizer()
    make_model("tape", vocab_size=len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, content in {
        "problems_nested": "[" * 100_000,
        "problems_key": '{"max_first": "many"}',
        "problems_digits": '{"max_first": 2}',
        "passkeys_key": '{"max_length": 3}',
        "passkeys_prompts": '{"max_length": 40}',
    }.items():
        model = shutil.copytree(folder / "model", folder / name)
        (model / f"{name.partition('_')[0]}.json").write_text(content)


TEXT = "data=text data.files={given}/text.jsonl"
C4 = "data=c4 data.dir={given}/c4 data.window=4 data.tokenizer_documents=50"
ADDITION = "task=arithmetic data=addition length=19 name=x"
PASSKEY = "task=passkey data=passkey length=134 name=x"
SCROLLS = (
    "task=scrolls data=scrolls name=x base_model={given}/model tokenizer={given}/model "
    "position=keep model=keep ~model.hidden_size ~model.intermediate_size "
    "~model.num_hidden_layers length=256 data.task=qasper data.budget=demo"
)
DATA = [
    # What cannot be read
    ("data=text data.files={given}/nested.jsonl", r"nested\.jsonl, line 1: not JSON .*recursion"),
    ("data=text data.files={given}/loop.txt", r"data\.files: .*loop\.txt is a broken link"),
    ("data=text data.files={given}/folder.txt", r"data\.files: no \.txt, .* in folder .*folder"),
    ("data=text data.files=/dev/zero", r"data\.files: /dev/zero is neither a file nor a folder"),
    ("data=text data.files={given}/empty.txt", r"the train split of text has no documents"),
    # What is no path
    ("data=text data.files=null", r"data=text needs data\.files="),
    (f"{TEXT} data.validation=nowhere", r"data\.validation: nothing matches 'nowhere'"),
    (f"{TEXT} cache_dir={{given}}/file", r"given.*/file/tokenizers cannot be created: .*is a f"),
    (f"{TEXT} output_dir={{given}}/file", r"given.*/file cannot be created: .*file is a file"),
    (f"{TEXT} tokenizer={{given}}/c4", r"tokenizer='.*c4' is neither a folder with a tokenizer"),
    (f"{TEXT} tokenizer={{given}}/tokenizer_vocabulary", r"tokenizer\.json is damaged \(KeyError"),
    # What is no number or name
    (f"{C4} data.shards=0", r"data\.shards=0 must be an integer >= 1"),
    (f"{C4} data.streaming=maybe", r"data\.streaming='maybe' must be true or false"),
    (f"{TEXT} data.documents=marsk", r"data\.documents='marsk' must be join or mask, or null for"),
    # Tasks of their own
    ("data=addition name=x", r"task=text with Problems, which is no text: choose"),
    (f"{ADDITION} data.max_first=many", r"data\.max_first='many' must be an integer"),
    (f"{SCROLLS} data.data_dir=5", r"data\.data_dir=5 must be a path"),
    (f"{SCROLLS} data.data_dir={{given}}/zip_locked", r"qasper\.zip.* cannot be read: .*encrypted"),
]

SCORED = "eval_scrolls.py --dataset_name qasper --metrics_output_dir metrics --cache_dir {store}"
VALID = "--split validation --data_dir {given}/scrolls --predictions {given}/answers/tape.json"
ALL = "eval_scrolls.py --all --cache_dir {store} --data_dir {given}/scrolls --predictions"
GRID = (
    "-m tape.tasks.evaluate --task addition samples=1 max_length=2 processes=1 "
    "model={given}/problems_"
)
KEYS = "eval_retrieval.py --num_tests 1 --depths 1 --processes 1 --base_model {given}/passkeys_"
A_MODEL = r"is the folder of a run or a model \(config\.json\); give another one"
FILES = [
    (f"{SCORED} {VALID} --metrics_output_dir {{given}}/file", r"file cannot be created: .* is a f"),
    (f"{ALL} {{given}}/answers_loop --metrics_output_dir m", r"tape\.json cannot be used"),
    (f"{ALL} {{given}}/answers_unnamed --metrics_output_dir m", r"qasper/\\udcff\.json.* UTF-8"),
    # What would be written over
    (f"{SCORED} {VALID} --metrics_output_dir {{given}}/model", A_MODEL),
    (f"{GRID}nested", r"problems_nested/problems\.json is damaged \(RecursionError"),
    (f"{GRID}key", r"problems_key/problems\.json: .*max_first='many' must be an integer"),
    (f"{GRID}digits model={{given}}/loop.txt", r"--model\S*: .*loop\.txt is not a folder"),
    (f"{KEYS}key", r"passkeys_key/passkeys\.json: .*max_length=3: prompts"),
    (f"{KEYS}prompts --max_tokens 20 --interval 20", r"20 tokens has no room for its description"),
]


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A cache; nothing in it may be half-written."""
    folder = tmp_path_factory.mktemp("store")
    yield folder
    assert not list(folder.rglob(".*"))


def names_of(cases):
    return [words.replace("{given}", "").replace("{store}", "")[-60:] for words, _ in cases]


@pytest.mark.parametrize(("words", "message"), DATA, ids=names_of(DATA))
def test_data_of_a_run(words, message, given, store, here):
    settings = [*words.replace("{given}", str(given)).split(), "vocab_size=300"]
    cfg = configuration([f"cache_dir={store}", *settings])
    assert re.search(message, line_of(train.run, cfg))
    assert not left_in(here)


@pytest.mark.parametrize(("words", "message"), FILES, ids=names_of(FILES))
def test_files_of_a_command(words, message, given, store, tmp_path):
    before = files(given)
    words = words.replace("{given}", str(given)).replace("{store}", str(store)).split()
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(given) == before


# --- evaluations and results

CELLS = "measure,first_digits,second_digits,value,n,unit"
ASKED_OF_1 = {"model": "0" * 64, "max_length": 1}
ASKED_OF_1 |= {"problems.max_first": 1, "problems.max_second": 1}
GRID_OF_1 = {
    "grid.csv": f"{CELLS}\naccuracy,1,1,0.5,2,share\n",
    "summary.json": json.dumps({"all": with_interval(1, 2), "evaluated": ASKED_OF_1}),
}
OTHER_GRID = GRID_OF_1["summary.json"].replace('"correct": 1', '"correct": 2')
PERPLEXITIES = "model,model_hash,data,data_hash,convention,length,stride,batch_size,dtype"
PERPLEXITIES += ",tokens,nll,perplexity"
TRAINED_RUN = {"seed": 0, "trainer.seed": 0, "position.name": "rope", "length": 8}
# Folders of `made`, each a good model but for one file: its name, what it holds, the folder's name.
DAMAGED = {
    "config.json": {
        "empty": "",
        "gpt2": '{"model_type": "gpt2", "n_embd": 32}',
        "quantized": QUANTIZED,
        "encoding": {"position": {"name": "rpoe"}},
        "layers": {"num_hidden_layers": 9},
    },
    "model.safetensors": {"empty": ""},
    "tokenizer.json": {"nested": NESTED},
    "metrics.jsonl": {"nested": NESTED},
    "perplexity.csv": {"empty": "", "binary": "\x00\udcff"},
    "zero_shot.csv": {"columns": "a,b\n1,2\n"},
    "compare/perplexity.csv": {
        "untrue": f"{PERPLEXITIES}\nm,{'0' * 16},d,d,sliding,64,32,,float32,9,6.1,1.5\n",
    },
    "grid/grid.csv": {"text": f"{CELLS}\naccuracy,1,1,a,2,share\n"},
    "grid/summary.json": {"key": '{"evaluated": {}}', "other": OTHER_GRID},
    "passkey/passkey.csv": {"columns": "a,b\n1,2\n"},
}


@pytest.fixture(scope="session")
def made(given, tmp_path_factory):
    """Models, runs and results, each with one file that is damaged."""
    folder = tmp_path_factory.mktemp("made")
    np.arange(600, dtype=np.uint16).__mod__(256).tofile(folder / "ids.bin")
    (folder / "loop").symlink_to("loop")
    (folder / "file").touch()
    (folder / "empty").mkdir()
    (folder / "tasks").mkdir()
    (folder / "tasks" / "a.yaml").write_text("task: t1\n: [")
    model = given / "problems_digits"
    for file, contents in DAMAGED.items():
        for name, content in contents.items():
            copy = shutil.copytree(model, folder / f"{Path(file).stem}_{name}")
            if isinstance(content, dict):
                content = json.dumps(json.loads((model / file).read_text()) | content)
            path = copy / file
            path.parent.mkdir(exist_ok=True)
            if path.parent != copy:
                (copy / "trained.json").write_text(json.dumps(TRAINED_RUN))
            for other, good in GRID_OF_1.items() if path.parent.name == "grid" else ():
                (path.parent / other).write_text(good)
            path.write_text(content, errors="surrogateescape")
    (folder / "metrics_nested" / "run.json").write_text("{}")
    for file in ("config.json", "model.safetensors"):
        for kind in ("without", "folder"):
            shutil.copytree(model, other := folder / f"{kind}_{file}")
            (other / file).unlink()
        (other / file).mkdir()
    broken = TapeForCausalLM.from_pretrained(model)
    torch.nn.init.constant_(broken.model.embed_tokens.weight, math.nan)
    broken.save_pretrained(shutil.copytree(model, folder / "nan"))
    shutil.copytree(folder / "without_model.safetensors", folder / "index")
    index = folder / "index" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../w"}}')
    return folder


MODELS = {
    "config_empty": r"config_empty/config\.json is damaged",
    "config_gpt2": r"config\.json: .* model_type 'gpt2'; allowed: 'tape'",
    "config_quantized": r"quantization_config .* requires bitsandbytes",
    "config_encoding": r"encoding 'rpoe'; did you mean 'rope'\?",
    "config_layers": r"weights of the model .* are missing, such as model",
    "model_empty": r"model_empty/model\.safetensors is damaged",
    "tokenizer_nested": r"tokenizer\.json is damaged \(RecursionError",
    "empty": r"empty has no model\.safetensors",
    "index": r"index\.json: names '\.\./w', which is not a file in the same folder",
    "nan": r"made\d+/nan: some weights are not finite, such as model\.",
}
for _kind in ("without", "folder"):
    for _file in ("config.json", "model.safetensors"):
        MODELS[f"{_kind}_{_file}"] = rf"{_kind}_{re.escape(_file)} has no {re.escape(_file)}"


@pytest.mark.parametrize("name", MODELS)
def test_models(name, made):
    def use(folder):
        weight_files(folder)
        load(folder)

    before = files(made)
    assert re.search(MODELS[name], line_of(use, made / name))
    assert files(made) == before


GOOD = "{given}/problems_digits"
MEASURED = "-m tape.evaluation.perplexity --data {made}/ids.bin --lengths 64 --out o.csv"
MEASURED += f" --model {GOOD}"
LM_EVAL = f"-m tape.evaluation.lm_eval --tasks lambada_openai --out o.csv --model {GOOD}"
STABILITY = "-m tape.analysis.stability --length 16 --windows 1 --out o --model"
PICTURES = f"-m tape.analysis.visualize --out o --model {GOOD}"
TABLE = "-m tape.evaluation.lm_eval --table"
COMPARE = "-m tape.results.compare"
EVALUATIONS = [
    ("-m tape.export --out o {made}/loop", r"loop is not a folder"),
    # Flags
    (f"{MEASURED} --out {{made}}/file/o.csv", r"file is a file; give "),
    (f"{MEASURED} --data {{made}}/file", r"file has 0 bytes, none: it must hold token ids"),
    (f"{LM_EVAL} --include_path {{made}}/tasks", r"tasks/a\.yaml is damaged \(ParserError"),
    (f"{LM_EVAL} --tasks a,b,a", r"--tasks: duplicate value a"),
    (f"{LM_EVAL} --tasks ,", r"--tasks: ',' names no task"),
    (f"{STABILITY} {GOOD} --out /proc/x", r"--out: the folder /proc/x cannot be \S.*; give"),
    (f"{STABILITY} {GOOD} --length 100000", r"shifted by 1000: [\d,]+ GiB of attention weights"),
    (f"{PICTURES} --length 100000", r"--length 100000 --windows 8: [\d,]+ GiB of attention we"),
    (f"-m tape.export {GOOD} --out /proc/x", r"/proc/x cannot be used"),
    (f"-m tape.export {GOOD} --out {GOOD}", r"problems_digits already exists; choose another"),
    (f"{COMPARE} {GOOD} --out {{given}}/model", rf"--out: \S+model {A_MODEL}"),
    # Results
    *(
        (f"{MEASURED} --out {{made}}/perplexity_{damage}/perplexity.csv", rf"_{damage}/\S+csv is ")
        for damage in ("empty", "binary")
    ),
    (f"{TABLE} {{made}}/zero_shot_columns/zero_shot.csv", r"zero_shot\.csv is "),
    (f"{COMPARE} {{made}}/grid_text --out o", r"grid/grid\.csv, line 2: value='a' is"),
    (f"{COMPARE} {{made}}/summary_key --out o", r"grid/summary\.json"),
    (f"{COMPARE} {{made}}/perplexity_untrue --out o", r"line 2: perplexity=1\.5 is not exp"),
    (f"{COMPARE} {{made}}/summary_other --out o", r"its accuracy is not that of summary\.json"),
    (f"{COMPARE} {{made}}/passkey_columns --out o", r"passkey_columns/passkey/"),
]


@pytest.mark.parametrize(("words", "message"), EVALUATIONS, ids=names_of(EVALUATIONS))
def test_evaluations_and_results(words, message, given, made, tmp_path):
    before = files(given) | files(made)
    words = shlex.split(words.replace("{given}", str(given)).replace("{made}", str(made)))
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(given) | files(made) == before and not (tmp_path / "o").exists()


def test_a_damaged_log_of_a_run_is_listed(made, tmp_path):
    """The page shows the other runs."""
    words = ["-m", "tape.results.report", str(made / "metrics_nested")]
    outcome = run_command(*words, folder=tmp_path)
    assert outcome.status == 0 and "Traceback" not in outcome.err, outcome.err
    assert "metrics_nested" in (tmp_path / "report" / "index.html").read_text()
