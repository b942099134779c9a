"""Bad input of every command: a status that is not 0, one line that names the setting, no
traceback, and nothing left behind."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch
from commands import ROOT, run_command

from tape.training.runs import HASHES, seal

# --- settings of a run

# Settings of train.py, and what its one line says.
SETTINGS = [
    # numbers
    ("vocab_size=many", r"vocab_size='many' must be an integer >= 258|in 258"),
    ("vocab_size=100", r"vocab_size=100 must be an integer in 258"),
    ("seed=x", r"seed='x' must be an integer in 0\.\.4294967295"),
    ("seed=-1", r"seed=-1 must be an integer in 0\.\."),
    ("seed=1.5", r"seed=1\.5 must be an integer"),
    ("seed=4294967296", r"seed=4294967296 must be an integer"),
    ("length=1", r"length=1 must be an integer in 2\.\."),
    ("length=null", r"length=null must be an integer"),
    ("length=1e9", r"length=1000000000\.0 must be an integer"),
    ("eval_blocks=0", r"eval_blocks=0 must be an integer in 1\.\.\d+, or null"),
    ("eval_blocks=-1", r"eval_blocks=-1 must be an integer"),
    ("eval_blocks=all", r"eval_blocks='all' must be an integer"),
    ("report.tokens=0", r"report\.tokens=0 must be an integer >= 1"),
    ("report.tokens=-5", r"report\.tokens=-5 must be an integer >= 1"),
    ("report.tokens=x", r"report\.tokens='x' must be an integer"),
    ("report=null", r"report=null must hold settings such as report\.tokens"),
    ("debug=5", r"debug=5 must be true or false"),
    ("cache_dir=null", r"cache_dir=null must be text"),
    ("output_dir=null", r"output_dir=null must be text"),
    ("trainer.max_steps=0", r"trainer\.max_steps=0 must be an integer in 1\.\."),
    ("trainer.max_steps=-1", r"trainer\.max_steps=-1 must be an integer"),
    ("trainer.max_steps=1.5", r"trainer\.max_steps=1\.5 must be an integer"),
    ("trainer.max_steps=true", r"trainer\.max_steps=true must be an integer"),
    ("trainer.max_steps=99999999999999999999", r"trainer\.max_steps=9+ must be an integer"),
    ("trainer.per_device_train_batch_size=0", r"per_device_train_batch_size=0 must be an integer"),
    ("trainer.per_device_eval_batch_size=-2", r"per_device_eval_batch_size=-2 must be an integer"),
    ("trainer.gradient_accumulation_steps=0", r"gradient_accumulation_steps=0 must be an integer"),
    ("trainer.learning_rate=-1", r"trainer\.learning_rate=-1 must be a number >= 0"),
    ("trainer.learning_rate=fast", r"trainer\.learning_rate='fast' must be a number"),
    ("trainer.learning_rate=nan", r"trainer\.learning_rate=nan must be a number"),
    ("trainer.learning_rate=inf", r"trainer\.learning_rate=inf must be a number"),
    ("trainer.warmup_steps=-3", r"trainer\.warmup_steps=-3 must be a number >= 0"),
    ("trainer.weight_decay=x", r"trainer\.weight_decay='x' must be a number >= 0"),
    ("trainer.max_grad_norm=-1", r"trainer\.max_grad_norm=-1 must be a number >= 0"),
    ("trainer.bf16=maybe", r"trainer\.bf16='maybe' must be true or false"),
    ("trainer.save_steps=0", r"trainer\.save_steps=0 must be an integer >= 1, or a number in \(0"),
    ("trainer.eval_steps=0", r"trainer\.eval_steps=0 must be an integer >= 1"),
    ("trainer.eval_steps=1.5", r"trainer\.eval_steps=1\.5 must be an integer >= 1"),
    ("trainer.logging_steps=0", r"trainer\.logging_steps=0 must be an integer >= 1"),
    ("trainer.save_total_limit=0", r"trainer\.save_total_limit=0 must be an integer >= 1, or null"),
    ("trainer.dataloader_num_workers=-1", r"dataloader_num_workers=-1 must be an integer >= 0"),
    ("+trainer.adam_beta1=7", r"trainer\.adam_beta1=7 must be a number in \[0, 1\)"),
    ("+trainer.adam_epsilon=x", r"trainer\.adam_epsilon='x' must be a number"),
    ("+trainer.ddp_timeout=x", r"trainer\.ddp_timeout='x' must be a number"),
    ("+trainer.torch_compile=5", r"trainer\.torch_compile=5 must be true or false"),
    ("+trainer.lerning_rate=1", r"trainer\.lerning_rate: .* did you mean trainer\.learning_rate"),
    ("trainer.lr_scheduler_type=foo", r"trainer: foo is not a valid SchedulerType"),
    ("+trainer.optim=foo", r"trainer: foo is not a valid OptimizerNames"),
    ("trainer.eval_strategy=foo", r"trainer: foo is not a valid IntervalStrategy"),
    ("trainer.report_to=foo", r"trainer\.report_to=foo: foo is not supported"),
    ("trainer.train_sampling_strategy=random", r"train_sampling_strategy=random: .* order"),
    ("+trainer.num_train_epochs=x", r"trainer\.num_train_epochs='x' must be a number"),
    ("+trainer.accelerator_config=5", r"trainer\.accelerator_config=5 must be text"),
    ("+trainer.fsdp=true", r"trainer\.fsdp=true with one process has nothing to shard over"),
    ("trainer.output_dir=x", r"trainer\.output_dir=x and output_dir=.*: set the latter"),
    (
        "trainer.per_device_train_batch_size=1000000000",
        r"batch_size=1000000000 with length=64: [\d,]+ GiB .* are more than the \d+ GiB",
    ),
    # the model
    ("model.hidden_size=0", r"model\.hidden_size=0 must be"),
    ("model.hidden_size=x", r"model: Field 'hidden_size' expected int"),
    ("model.hidden_size=100000000", r"model: [\d,]+ GiB of weights .* more than the \d+ GiB"),
    ("model.intermediate_size=0", r"model\.intermediate_size=0 must be"),
    ("model.num_hidden_layers=0", r"model\.num_hidden_layers=0 must be"),
    ("model.num_hidden_layers=2.5", r"model: Field 'num_hidden_layers' expected int"),
    ("model.num_attention_heads=0", r"model\.num_attention_heads=0 must be"),
    ("model.num_attention_heads=-4", r"model\.num_attention_heads=-4 must be"),
    ("model.num_attention_heads=3", r"hidden size \(32\) is not a multiple .* \(3\)"),
    ("model.num_key_value_heads=0", r"model\.num_key_value_heads=0 must be"),
    ("+model.head_dim=0", r"model\.head_dim=0 must be"),
    ("+model.head_dim=-2", r"model\.head_dim=-2 must be"),
    ("+model.num_recurrences=0", r"model\.num_recurrences=0 must be"),
    ("model.max_position_embeddings=0", r"model\.max_position_embeddings=0 must be"),
    ("+model.hidden_act=foo", r"model: unknown hidden_act 'foo'"),
    ("+model.attention_dropout=2", r"model\.attention_dropout=2 must be a number in \[0, 1\)"),
    ("+model.attention_dropout=x", r"'attention_dropout' with value 'x'"),
    ("model.rms_norm_eps=-1.0", r"model\.rms_norm_eps=-1\.0 must be a number > 0"),
    ("+model.pad_token_id=9999", r"model\.pad_token_id=9999: it is the tokenizer's"),
    ("model.vocab_size=3", r"tokenizer has 300 tokens, more than model\.vocab_size=3"),
    ("model.attn_implementation=foo", r"attn_implementation='foo' .*: no such implementation"),
    ("+model.hiden_size=3", r"model takes no argument 'hiden_size'; did you mean 'hidden_size'"),
    # the encoding
    ("position=rope position.theta=inf", r"theta=inf must be a number > 0"),
    ("position=rope position.theta=0", r"theta=0 must be a number > 0"),
    ("position=rope position.scaling=5", r"scaling=5 must be a mapping with a rope_type"),
    ("position=rope position.scaling={rope_type:linear}", r"'linear': \{'factor'\}"),
    ("position=rope position.scaling={rope_type:linear,factor:0}", r"factor=0 must be a number"),
    ("position=rope position.scaling={rope_type:dynamic}", r"rope_type='dynamic': only schedules"),
    ("position=yarn position.factor=0", r"factor=0 must be a number > 0"),
    ("position=yarn position.factor=-3", r"factor=-3 must be a number > 0"),
    ("position=yarn position.factor=0.5", r"factor=0\.5 must be a number >= 1"),
    ("position=yarn position.beta_slow=64", r"beta_slow=64 must be below beta_fast=32"),
    ("position=fire position.threshold=-1", r"position fire: threshold=-1 must be a number > 0"),
    ("position=fire position.threshold=nan", r"'fire': threshold=nan must be a number"),
    ("position=xpos position.scale_base=0", r"position xpos: scale_base=0 must be a number > 0"),
    ("position=xpos position.centre=inf", r"centre=inf must be a number"),
    ("position=sincos position.base=-1", r"position sincos: base=-1 must be a number > 0"),
    ("position=t5 position.num_buckets=0", r"position t5: num_buckets=0 must be even"),
    ("position=t5 position.max_distance=99999999999", r"'t5': max_distance=9+ must be"),
    ("position=learned position.length=5", r"position 63 is beyond the learned table of length=5"),
    ("position.width=-1", r"width=-1 must be"),
    ("position.width=99999999999999999999", r"width=9+ must be"),
    ("tape_sampler=5", r"unknown sampler 5"),
    ("tape_sampler={name:shift,maximum:9223372036854775808}", r"maximum=9223372036854775808 must"),
    ("position.name=5", r"unknown position encoding 5"),
    ("position=keep", r"position=keep .* a base_model=\.\.\.: give one"),
    # names, folders and groups
    ("name=null", r"name=null must be one folder"),
    ("name=../../esc", r"name='\.\./\.\./esc' must be one folder"),
    ("name=a/b", r"name='a/b' must be one folder"),
    ("name=.hidden", r"name='\.hidden' must be one folder"),
    ('name="a b"', r"name='a b' must be one folder"),
    ('name="<script>"', r"name='<script>' must be one folder"),
    ("name='a\nb'", r"name='a\\+nb' must be one folder"),
    ("output_dir=/proc/run", r"/proc/run cannot be a run's folder .*; choose another name"),
    ("position=null", r"unknown position 'null'\. Known: adape"),
    ("position=rpe", r"unknown position 'rpe'; did you mean 'rope'\?"),
    ("task=null", r"unknown task 'null'\. Known: arithmetic"),
    ("data=null", r"unknown data 'null'\. Known: addition"),
    ("model=null", r"unknown model 'null'\. Known: arithmetic"),
    ("trainer=null", r"unknown trainer 'null'\. Known: base"),
    ("~position", r"position=null: choose one of adape"),
    ("lenght=3", r"lenght=3: there is no such setting; did you mean 'length'\?"),
    ("trainer.lerning_rate=1", r"there is no such setting; did you mean 'trainer\.learning_rate'"),
    ("model.hidden=3", r"model\.hidden=3: there is no such setting; did you mean 'model\.hidden_"),
    ("a=b=c", r"mismatched input '='"),
    ("name=${nothing}", r"nothing"),
    ("task._target_=foo.bar", r"foo"),
    # bases
    ("peft=lora", r"peft=lora adapts a trained model: give base_model=\.\.\."),
    ("peft=lor", r"unknown peft 'lor'; did you mean 'lora'\?"),
    ("frozen=int9", r"unknown frozen 'int9'; did you mean 'int8'"),
    ("frozen=nf4", r"frozen=nf4: every weight trains"),
    ("base_model=5", r"base_model=5 must be text, or null"),
    ("base_model=/no/such/folder", r"base_model=/no/such/folder: "),
    ("base_model=.", r"base_model=\.: \. has no config\.json"),
    ("tokenizer=5", r"tokenizer=5 must be text, or null"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    lines = [f"line {n} of a text: {n % 7} sheep and {n % 5} goats\n" for n in range(2000)]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def train(corpus, cache, tmp_path):
    """Runs train.py at its smallest in an empty folder."""

    def train(*settings, folder=tmp_path):
        small = ("experiment=quick", "data=text", f"data.files={corpus}", "vocab_size=300")
        steps = ("trainer.max_steps=2", "trainer.save_steps=1", f"cache_dir={cache}")
        return run_command("train.py", *small, *steps, *settings, folder=folder)

    return train


def files(folder):
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def check_refusal(outcome, message, folder, before=frozenset()):
    """One line, which matches `message`, and the files in `folder` are those of `before`."""
    assert outcome.status not in (0, None)
    assert "Traceback" not in outcome.err, outcome.err
    assert len(outcome.lines) == 1, outcome.err
    assert outcome.lines[0].startswith("error: "), outcome.err
    assert re.search(message, outcome.lines[0]), outcome.err
    left = {path for path in folder.rglob("*") if path.name != ".lock" and not path.is_dir()}
    assert left == set(before)


@pytest.mark.parametrize(("settings", "message"), SETTINGS, ids=[case[0] for case in SETTINGS])
def test_settings_of_a_run(train, settings, message, tmp_path):
    check_refusal(train(*re.split(r" (?=\S+=)", settings)), message, tmp_path)


def test_bad_settings_are_refused_before_torch_is_imported():
    script = "import sys, train; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


# --- a run that is damaged


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory, cache):
    """A finished run of two steps, with a checkpoint at each, and its folder's parent."""
    folder = tmp_path_factory.mktemp("trained")
    small = ("experiment=quick", "data=text", f"data.files={corpus}", "vocab_size=300")
    steps = ("trainer.max_steps=2", "trainer.save_steps=1", f"cache_dir={cache}", "name=run")
    assert run_command("train.py", *small, *steps, folder=folder).status == 0
    return folder / "output" / "run"


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "output" / "run")


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "content", ["", "{", "5", "[]", NESTED, "\0", '{"name": 5}'], ids=lambda text: text[:9]
)
def test_a_damaged_record_of_a_run(train, run, tmp_path, content):
    (run / "run.json").write_text(content)
    before = files(tmp_path)
    outcome = train("name=run")
    assert outcome.status == 1 and "Traceback" not in outcome.err, outcome.err
    assert re.match(r"error: .*(run\.json|holds a run with another)", outcome.lines[-1])
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_foreign_pickle_in_a_checkpoint(train, run, tmp_path, name):
    """It is never loaded, whatever its hash says."""

    class Foreign:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "loaded"),)

    shutil.rmtree(run / "checkpoint-2")
    checkpoint = run / "checkpoint-1"
    torch.save(Foreign(), checkpoint / name, pickle_module=pickle)
    (checkpoint / HASHES).unlink()
    seal(checkpoint.rename(run / "work"), checkpoint)
    outcome = train("name=run")
    assert outcome.status == 1 and not (tmp_path / "loaded").exists()
    stem = name.split(".")[0]
    assert re.search(
        rf"^error: \S+checkpoint-1: .*{stem}\S* .*which are not loaded", outcome.err, re.M
    )


@pytest.mark.parametrize("hashes", ["5", "null", "[]", "{", NESTED], ids=lambda text: text[:9])
def test_a_damaged_list_of_a_checkpoints_files(train, run, hashes):
    (run / "checkpoint-2" / HASHES).write_text(hashes)
    outcome = train("name=run")
    assert outcome.status == 0, outcome.err
    assert "checkpoint-2 is left out: " in outcome.out and "continuing from " in outcome.out


def test_quantized_weights_are_no_base(train, run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (run / "config.json").write_text(json.dumps(config))
    outcome = train(f"base_model={run}", f"tokenizer={run}", "position=keep", "model=keep")
    assert outcome.status == 1 and len(outcome.lines) == 1
    assert re.match(rf"error: base_model={run} holds quantized weights", outcome.err)


@pytest.mark.parametrize("content", ["", "{", "5", "[]", NESTED], ids=lambda text: text[:9])
def test_a_damaged_configuration_of_a_base(train, run, content):
    (run / "config.json").write_text(content)
    outcome = train(f"base_model={run}", f"tokenizer={run}", "position=keep", "model=keep")
    assert outcome.status == 1 and len(outcome.lines) == 1, outcome.err
    assert re.match(rf"error: base_model={run}: ", outcome.err)


def test_a_full_disk_is_called_so(train, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    outcome = train("name=run")
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert re.search(
        r"^error: \S+checkpoint-1 could not be written \(the disk is full\)", outcome.err, re.M
    )
    assert not list((tmp_path / "output" / "run").glob("checkpoint-*"))


# --- scripts


@pytest.fixture
def script(tmp_path):
    """Runs a script where there is nothing to install and nothing to start."""
    shutil.copytree(ROOT / "script", tmp_path / "script")
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "script" / "setup.sh").write_text("# installed\n")

    def script(name, **variables):
        environment = {**os.environ, "VIRTUAL_ENV": "/no/such/environment", **variables}
        return subprocess.run(
            ["bash", f"script/{name}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )

    return script


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        *(
            ("train.sh", {variable: value})
            for variable in ("NGPUS", "NNODES")
            for value in (
                "0",
                "-1",
                "1.5",
                "abc",
                "08",
                "a[$(touch harm)]",
                "",
                "99999999999999999999",
            )
        ),
        ("train.sh", {"NODE_RANK": "x"}),
        ("compare.sh", {"JOBS": "a[$(touch harm)]"}),
        ("compare.sh", {"SEEDS": "0 x"}),
        ("compare.sh", {"SEEDS": "a[$(touch harm)]"}),
        ("compare.sh", {"SEEDS": "0 0"}),
        ("compare.sh", {"TYPES": "keep"}),
        ("compare.sh", {"TYPES": "rope ../task/text"}),
        ("compare.sh", {"TYPES": "rope rope"}),
        ("compare.sh", {"NAME": "../outside"}),
        ("extend_demo.sh", {"NAME": "a/b"}),
        ("gpu/addition.sh", {"SLICE": "a[$(touch harm)]"}),
        ("gpu/efficiency.sh", {"SLICE": "soon"}),
    ],
    ids=str,
)
def test_variables_of_scripts(script, tmp_path, name, variables):
    outcome = script(name, **variables)
    variable = next(iter(variables))
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stderr.startswith("error: ") and len(outcome.stderr.splitlines()) == 1
    assert re.search(rf"{variable}|{variable[:-1].lower()}", outcome.stderr), outcome.stderr
    assert not (tmp_path / "harm").exists() and not (tmp_path / "output").exists()
