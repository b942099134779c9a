"""Bad settings, arguments, models and results are refused in one line that names them, and leave
nothing behind. Settings meet the function that refuses them, in this process."""

import argparse
import json
import math
import os
import pickle
import re
import shlex
import shutil

import pytest
import torch
from commands import run_command
from conftest import composed, refuses
from omegaconf import OmegaConf, open_dict
from results import add_grid, add_passkeys, add_perplexity, make_run
from safetensors.torch import load_file, save_file
from script_folder import lay_out
from script_folder import start as start_script
from test_scrolls import make_base

from tape.cli import train
from tape.cli.settings.composition import check_rates_are_read, help_of, is_expected, parsed, refuse
from tape.cli.settings.groups import options
from tape.core import command
from tape.core.run_folder import HASHES, finalize_checkpoint
from tape.model.checkpoint import load, weight_files
from tape.model.modeling import TapeForCausalLM
from tape.results.runs import read_run
from tape.training.settings import FOLDER

NESTED = "[" * 100_000 + "]" * 100_000
QUANTIZED = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}


def line_of(work, *given):
    """The line with which a command ends that refuses to do this."""
    with pytest.raises(Exception) as refusal:
        work(*given)
    assert is_expected(refusal.value), refusal.value
    with pytest.raises(SystemExit) as end:
        refuse(refusal.value)
    assert "\n" not in end.value.code
    return end.value.code


def changed(cfg, words):
    """A configuration with other settings, as Hydra reads them."""
    with open_dict(cfg):
        for override in parsed(words):
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=True)
    return cfg


def configuration(words):
    """That of a run: groups of settings are composed, once for each choice, and others changed."""
    grouped = [word for word in words if options(word.partition("=")[0])]
    others = [word for word in words if word not in grouped]
    return changed(composed("experiment=quick", *grouped), others)


def files(folder):
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def left_in(folder):
    return {path for path in folder.rglob("*") if path.name != ".lock" and not path.is_dir()}


def check_refusal(outcome, message, folder):
    """One line, which matches `message`, and nothing in `folder`."""
    assert outcome.status not in (0, None)
    assert "Traceback" not in outcome.err, outcome.err
    assert len(outcome.lines) == 1, outcome.err
    assert re.search(f"^error: .*?{message.removeprefix('^error: ')}", outcome.lines[0]), outcome
    assert not left_in(folder)


BOUNDS = [
    ("an integer in 258..2147483647", "vocab_size", "many", 100),
    ("an integer in 0..4294967295", "seed", "x", -1, 1.5, 2**32),
    ("an integer in 2..2147483647", "length", 1, None, 1e9),
    ("copy or counting", "rates_of", "sorting"),
    ("an integer in 1..2147483647, or null", "eval_blocks", 0, -1, "all"),
    ("an integer >= 1", "report.tokens", 0, -5, "x"),
    ("true or false", "debug", 5, None),
    ("text", "cache_dir", None, 5, ""),
    ("text, or null", "tokenizer", 5, ""),
    ("a mapping of commands to arguments, or null", "evaluate", 5, {"a": 5}),
    (FOLDER.words, "name", None, "../../esc", "a/b", ".hidden", "a b", "<script>", "a\nb"),
    ("a number >= 0", "optimizer.matrix_learning_rate", None, -1),
    ("a number >= 0", "optimizer.encoding_factor", -2),
    ("an integer in 1..2147483647", "trainer.max_steps", 0, -1, 1.5, True, 10**20),
    ("an integer >= 1", "trainer.per_device_train_batch_size", 0),
    ("a number >= 0", "trainer.learning_rate", -1, "fast", math.nan, math.inf),
    ("a number in [0, 1)", "trainer.adam_beta1", 7),
    ("an integer >= 1, or a number in (0, 1)", "trainer.logging_steps", 0),
    ("an integer >= 1, or a number in (0, 1), or null", "trainer.eval_steps", 0, 1.5),
    ("an integer >= 1, or null", "trainer.save_total_limit", 0),
    ("an integer >= 0", "trainer.dataloader_num_workers", -1),
    # types of other fields of TrainingArguments
    ("a number", "trainer.num_train_epochs", "x"),
    ("true or false", "trainer.bf16", "maybe"),
    ("text, a list or a mapping", "trainer.accelerator_config", 5),
]


@pytest.mark.parametrize("case", BOUNDS, ids=lambda case: case[1])
def test_values_out_of_bounds(case):
    allowed, setting, *values = case
    for value in values:
        cfg = composed("schedule=wsd")
        OmegaConf.update(cfg, setting, value, force_add=True)
        line = line_of(train.settings_of, cfg)
        assert re.fullmatch(rf"error: {setting}=.* must be {re.escape(allowed)}", line)


# Settings of a run | what its one line says.
SETTINGS = r"""
report=null | report=null must hold settings such as report\.tokens
trainer.warmup_steps=9 | =9 is more than trainer\.max_steps=2: .* such as .*steps=0\.05
data.files=null | data=text needs data\.files.*; data=local needs none: it is Python's own source
data.documents=marsk | data\.documents='marsk' must be join or mask, or null for
trainer.lr_scheduler_type=foo | trainer: foo is not a valid SchedulerType
trainer.use_cpu=true trainer.fp16=true | trainer\.fp16=True: float16 needs a GPU
trainer.use_cpu=true model.attn_implementation=flex_attention | on a CPU it has no backward pass
trainer.report_to=[mlflow] | trainer\.report_to=\['mlflow'\]: not installed; installed: 
trainer.save_strategy=best | a run resumes from its last checkpoint
trainer.accelerator_config={even_batches:false} | \.even_batches=False: all steps and processes
trainer.deepspeed=text.txt | trainer(\.deepspeed=text\.txt)?: 
trainer.fsdp=true | fsdp only works in distributed training
trainer.output_dir=x | trainer\.output_dir=x: set output_dir=\.\.\. instead
trainer.do_train=false | trainer\.do_train: a run validates by
trainer.gradient_checkpointing_kwargs={use_reentrant:false} | without trainer\.gradient_checkpointin
trainer.lr_scheduler_type=warmup_stable_decay | type=warmup_stable_decay, .* missing .*num_decay
trainer.lr_scheduler_type=polynomial trainer.lr_scheduler_kwargs.lr_end=9 | initial lr \(0\.00\d+\)
trainer.lr_scheduler_kwargs.bogus=3 | unexpected keyword argument 'bogus'
trainer.lr_scheduler_type=greedy | reads a metric: the rate must follow from the step
trainer.optim_args="momentum=0.9" | optim_args=momentum=0\.9: runs do without it
schedule=wsd trainer.warmup_steps=0 trainer.lr_scheduler_kwargs.num_decay_steps=3 | num_decay_steps=
output_dir=/proc/run | ^error: /proc/run cannot be used: No such file or directory$
model.hidden_size=0 | model\.hidden_size=0 must be
model.hidden_size=x | model: Field 'hidden_size' expected int
model.hidden_size=100000000 | model: [\d,]+ GiB of weights .* exceed the \d+ GiB
model.num_attention_heads=3 | hidden size \(32\) is not a multiple .* \(3\)
model.pad_token_id=9999 | model\.pad_token_id=9999: it is set by the tokenizer
model.vocab_size=3 | tokenizer has ids up to 299, too many for model\.vocab_size=3
+position.widht=3 | takes no argument 'widht'; did you mean 'width'
model.hiden_size=3 | model takes no argument 'hiden_size'; did you mean 'hidden_size'
position=rope position.scaling={rope_type:linear,factor:2,partial_rotary_factor:0.5} | not default
position=t5 position.max_distance=99999999999 | t5: max_distance=9+ must be an integer.*, below 2
position=learned position.length=5 | position 63 is beyond the learned table of length=5
position.sampler={name:shift,maximum:9223372036854775808} | maximum=9223372036854775808 m
position=keep | position=keep .* need a base_model=\.\.\.
position=abacus position.digits=[99999] | digits=\[99999\] must be a list of token ids bel
base_model=output/no | base_model=output/no: there is no such folder; give that of a model
base_model=. | base_model=\.: \. has no config\.json
"""


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("case", SETTINGS.strip().splitlines())
def test_settings_of_a_run(case, text, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, message = case.split(" | ")
    small = ["data=text", f"data.files={text}", "vocab_size=300", f"cache_dir={cache}"]
    small += ["trainer.max_steps=2", "trainer.save_steps=1"]
    cfg = configuration([*small, *re.split(r" (?=\S+=)", settings)])
    assert re.search(message, line_of(train.run, cfg))
    assert not left_in(tmp_path)


COMMAND_LINES = [
    ("position=rpe", r"=rpe: there is no such entry; did you mean 'rope'\? Known: .* adape, "),
    ("lenght=5", r"lenght: there is no such setting; did you mean 'length'"),
    ("trainer.lerning_rate=1", r"lerning_rate: .* did you mean 'trainer\.learning_rate'"),
    ("+foo=3", r"\+foo=3: there is no such setting"),
    ("+report.foo=3", r"\+report\.foo=3: there is no such setting"),
    ("optimizer.foo=3", r"optimizer\.foo: there is no such setting"),
    ("data=local data.files=x", r"data\.files: .* no such setting; it is one of data=text$"),
    ("data.dir=x", r"such setting; it is one of data=c4 or data=english or data=redpajama$"),
    ("position.scaling=3", r"setting.*; \+position\.scaling=\.\.\. gives an argument"),
    ("rates=text", r"rates=text: this experiment has one learning rate"),
    ("trainer.optim_args=momentum=0.9", r"args=momentum=0\.9: .* needs quotes of its own"),
    ("name=${nothing}", r"nothing"),
    ("name=x ~position", r"position is missing: give position=NAME"),
    ("~trainer.max_steps", r"trainer\.max_steps is missing: it must be an integer"),
]


@pytest.mark.parametrize(("settings", "message"), COMMAND_LINES)
def test_command_lines_of_a_run(settings, message, tmp_path):
    outcome = run_command("train.py", "experiment=quick", *settings.split(), folder=tmp_path)
    check_refusal(outcome, message, tmp_path)


def test_settings_with_several_values_are_composed_without_them():
    words = ["experiment=quick", "seed=0,1", "trainer.learning_rate=1e-3,2e-3", "rates=text"]
    assert "\nseed: 0\n" in help_of(words, "train")
    check_rates_are_read(words, "train")
    del words[2]
    refuses("rates=text: this experiment has one", check_rates_are_read, words, "train")


def test_debug_shows_where_a_setting_was_refused(tmp_path):
    outcome = run_command("train.py", "debug=true", "length=1", folder=tmp_path)
    assert "Traceback" in outcome.err


@pytest.mark.parametrize("content", ["", NESTED, "\0", '{"name": 5}'], ids=lambda text: text[:9])
def test_a_damaged_record_of_a_run(start, finished, content):
    (finished / "run.json").write_text(content)
    (finished / ".lock").unlink()
    before = files(finished)
    assert re.match(r"error: .*(run\.json|holds a run with another)", line_of(start))
    assert files(finished) == before | {finished / ".lock": 0}


class Foreign:
    def __reduce__(self):
        return os.mkdir, ("loaded",)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_foreign_pickle_in_a_checkpoint(start, finished, tmp_path, monkeypatch, name):
    """It is never loaded, whatever its hash says."""
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(finished / "checkpoint-8")
    checkpoint = finished / "checkpoint-4"
    torch.save(Foreign(), checkpoint / name, pickle_module=pickle)
    (checkpoint / HASHES).unlink()
    finalize_checkpoint(checkpoint.rename(finished / "work"), checkpoint)
    assert "checkpoint-4 contains objects that are not loaded" in line_of(start)
    assert not (tmp_path / "loaded").exists()


VARIABLES = [
    ("train.sh", "NGPUS", ["0", "-1", "1.5", "abc", "08", "a[$(touch harm)]", "9" * 20]),
    ("train.sh", "NNODES", ["0", "a[$(touch harm)]"]),
    ("train.sh", "NODE_RANK", ["x"]),
    # Of sweep.py, whose refusals are in test_scripts.
    pytest.param("compare.sh", "JOBS", ["a[$(touch harm)]"], marks=pytest.mark.slow),
    ("gpu/all.sh", "SLICE", ["soon"]),
    ("suite.sh", "SLICE", ["9m", "0"]),
]


@pytest.mark.parametrize(("name", "variable", "values"), VARIABLES)
def test_variables_of_scripts(tmp_path, name, variable, values):
    lay_out(tmp_path)
    for value in values:
        process = start_script(tmp_path, name, **{variable: value})
        said, _ = process.communicate()
        assert process.returncode == 1 and len(said.splitlines()) == 1, said
        assert re.match(rf"error: .*({variable}|{variable[:-1].lower()})", said)
        assert not (tmp_path / "harm").exists() and not (tmp_path / "output").exists()


def test_arguments():
    for parse, texts, message in (
        (command.integer(2), "1 -5 nan 1e3", "must be an integer >= 2"),
        (command.integer(1, 1000), "1001 99999999999999", "is more than 1,000"),
        (command.folder_name, "../x .lock '' a/b", "it must be a single folder name of letters"),
        (command.path, "''", "'' must be a path"),
        (command.result_folder, "/proc/x /dev/null/x", "x cannot be used: No"),
    ):
        for text in shlex.split(texts):
            with pytest.raises(argparse.ArgumentTypeError, match=re.escape(message)):
                parse(text)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A good model with its tokenizer, and bad settings of problems."""
    folder = make_base(tmp_path_factory.mktemp("made") / "model")
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
        r"type 'gpt2', with n_positions .*; allowed: 'tape'",
    ),
    (CONFIG, QUANTIZED, r"broken holds quantized weights"),
    (CONFIG, {"position": {"name": "rpoe"}}, r"encoding 'rpoe'; did you mean 'rope'\?"),
    (CONFIG, {"num_hidden_layers": 9}, r"weights of the model .* are missing, such as model"),
    (CONFIG, {"intermediate_size": 8}, r"of \S+broken has the shape \(\d+, \d+\), but \("),
    (CONFIG, None, r"broken has no config\.json"),
    (WEIGHTS, "", r"broken is damaged \(SafetensorError"),
    (WEIGHTS, None, r"broken has no model\.safetensors"),
    ("tokenizer.json", NESTED, r"tokenizer\.json is damaged \(RecursionError"),
    (f"{WEIGHTS}.index.json", '{"weight_map": {}}', "names '', which is not a file"),
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
MEASURED = f"-m tape.cli perplexity --data local --lengths 64 {MODEL}"
LM_EVAL = f"-m tape.cli lm-eval --tasks lambada_openai {MODEL}"
A_MODEL = r"is the folder of a run or a model \(config\.json\); give another one"
COMMANDS = [
    ("-m tape.cli state --model . no --out x", r"--model: no is not a folder"),
    ("-m tape.cli export {model} --out {model}", r"model already exists; choose another"),
    (f"{MEASURED} --out {{model}}/config.json/o.csv", r"json cannot be used: Not a directory"),
    (f"{LM_EVAL} --tasks a,b,a", r"--tasks: duplicate value a"),
    (
        f"-m tape.cli stability --windows 1 --out o --length 100000 {MODEL}",
        r"shifted by 1000: [\d,]+ GiB of attention weights",
    ),
    ("-m tape.cli evaluate {model} --task addition", r"max_first='many' must be an "),
    ("-m tape.cli compare {model} --out {model}", rf"--out: \S+model {A_MODEL}"),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=[case[0][-60:] for case in COMMANDS])
def test_commands(words, message, model, tmp_path):
    before = files(model)
    words = shlex.split(words.replace("{model}", str(model)))
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(model) == before


GGUF = [
    "-m tape.cli perplexity --data local --lengths 8 --model {}",
    "-m tape.cli evaluate {} --task passkey",
    "train.py experiment=quick peft=ft base_model={}",
]


@pytest.mark.parametrize("words", GGUF)
def test_gguf_files_are_converted_first(words, tmp_path):
    """One line, for the file and for a folder with no other weights."""
    for name in ("base", "here"):
        (tmp_path / name).mkdir()
    folder, here = tmp_path / "base", tmp_path / "here"
    (file := folder / "a b.gguf").write_bytes(b"GGUF")
    message = rf"a b\.gguf is a GGUF file: convert it by `tape import '{file}' --out FOLDER`"
    for source in (file, folder):
        words_of = [word.replace("{}", str(source)) for word in words.split()]
        if words_of[0] == "train.py":
            refuses(message, train.run, configuration([*words_of[1:], f"output_dir={here}"]))
        else:
            check_refusal(run_command(*words_of, folder=here), message, here)
    refuses(message, TapeForCausalLM.from_pretrained, folder, gguf_file=file.name)
    refuses(message, TapeForCausalLM.from_pretrained, folder)


RESULTS = [
    ("grid", "grid.csv", ("1.0,10", "a,10"), r"grid/grid\.csv: Unable to parse string .a."),
    ("grid", "grid.csv", ("1.0,10", "0.9,10"), r"its accuracy is not that of summary\.json"),
    ("grid", "summary.json", ('"evaluated"', '"x"'), r"grid/summary\.json"),
    ("compare", "perplexity.csv", (",2.718", ",x"), r"perplexity\.csv: Unable to parse string"),
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
