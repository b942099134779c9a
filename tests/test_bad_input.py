"""Bad input of every command: a status that is not 0, one line that names the setting, no
traceback, and nothing left behind."""

import gzip
import io
import json
import math
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import zstandard
from commands import ROOT, run_command
from conftest import make_model
from pyarrow import parquet
from scrolls_data import write_task
from test_scrolls import byte_tokenizer

from arithmetic.problems import character_tokenizer
from tape import TapeForCausalLM
from tape.runs.folder import HASHES, finalize_checkpoint
from tape.statistics import with_interval

# --- settings of a run

BASE_LORA = "base_model=org/base peft=lora"
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
    ("trainer.warmup_steps=1e9", r"warmup_steps=1000000000\.0 is more than trainer\.max_steps=2"),
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
    (
        "trainer.report_to=codecarbon",
        r"trainer\.report_to=codecarbon: codecarbon is not installed or not set up; install it",
    ),
    ("+trainer.use_cpu=true +trainer.fp16=true", r"trainer\.fp16=True: float16 needs a GPU"),
    ("trainer.train_sampling_strategy=random", r"train_sampling_strategy=random: .* order"),
    ("+trainer.num_train_epochs=x", r"trainer\.num_train_epochs='x' must be a number"),
    ("+trainer.accelerator_config=5", r"trainer\.accelerator_config=5 must be text"),
    ("+trainer.deepspeed=text.txt", r"trainer(\.deepspeed=text\.txt)?: "),
    ("+trainer.fsdp=true", r"trainer\.fsdp=true with one process has nothing to shard over"),
    ("trainer.output_dir=x", r"trainer\.output_dir=x and output_dir=.*: set only the latter"),
    (
        "trainer.per_device_train_batch_size=1000000000",
        r"batch_size=1000000000 with length=64: [\d,]+ GiB .* exceed the \d+ GiB",
    ),
    # the model
    ("model.hidden_size=0", r"model\.hidden_size=0 must be"),
    ("model.hidden_size=x", r"model: Field 'hidden_size' expected int"),
    ("model.hidden_size=100000000", r"model: [\d,]+ GiB of weights .* exceed the \d+ GiB"),
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
    ("+model.num_recurrences=999999", r"model\.num_hidden_layers=\d times num_recurrences=999999"),
    ("model.num_hidden_layers=999999", r"num_hidden_layers=999999 times num_recurrences=1 must be"),
    ("model.max_position_embeddings=0", r"model\.max_position_embeddings=0 must be"),
    ("+model.hidden_act=foo", r"model: unknown hidden_act 'foo'"),
    ("+model.attention_dropout=2", r"model\.attention_dropout=2 must be a number in \[0, 1\)"),
    ("+model.attention_dropout=x", r"'attention_dropout' with value 'x'"),
    ("model.rms_norm_eps=-1.0", r"model\.rms_norm_eps=-1\.0 must be a number > 0"),
    ("+model.pad_token_id=9999", r"model\.pad_token_id=9999: it is set by the tokenizer"),
    ("model.vocab_size=3", r"tokenizer has ids up to 299, too many for model\.vocab_size=3"),
    ("model.attn_implementation=foo", r"attn_implementation='foo' .*: no such implementation"),
    ("+model.hiden_size=3", r"model takes no argument 'hiden_size'; did you mean 'hidden_size'"),
    # the encoding
    ("position=rope position.theta=inf", r"theta=inf must be a number > 0"),
    ("position=rope position.theta=0", r"theta=0 must be a number > 0"),
    ("position=rope position.scaling=5", r"scaling=5 must be a mapping with a rope_type"),
    ("position=rope position.scaling={rope_type:linear}", r"rope_type='linear' also needs factor"),
    (
        "position=rope position.scaling={rope_type:linear,factor:2,partial_rotary_factor:0.5}",
        r"=0.5 with rope_type='linear': only 'default' and 'proportional' rotate a part",
    ),
    ("position=relative position.extent=0", r"extent=0 must be an integer >= 1"),
    ("position=cope position.count=1", r"count=1 must be an integer >= 2"),
    ("position=dape position.width=0", r"width=0 must be an integer >= 1"),
    ("position=pope position.base=-1", r"base=-1 must be a number > 0"),
    ("position=fox position.start=x", r"start='x' must be a number"),
    ("position=rope position.scaling={rope_type:linear,factor:0}", r"factor=0 must be a number"),
    ("position=rope position.scaling={rope_type:dynamic}", r"rope_type='dynamic': only schedules"),
    ("position=yarn position.factor=0", r"factor=0 must be a number > 0"),
    ("position=yarn position.factor=-3", r"factor=-3 must be a number > 0"),
    ("position=yarn position.factor=0.5", r"factor=0\.5 must be a number >= 1"),
    (
        "position=yarn position.beta_slow=64",
        r"^error: model: rotary positions: beta_slow=64 must be below beta_fast=32",
    ),
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
    ("position.sampler=5", r"unknown sampler 5"),
    ("position.sampler={name:shift,maximum:9223372036854775808}", r"maximum=9223372036854775808 m"),
    ("position.name=5", r"unknown position encoding 5"),
    ("position=keep", r"position=keep .* need a base_model=\.\.\."),
    # names, folders and groups
    ("name=null", r"name=null must be one folder"),
    ("name=../../esc", r"name='\.\./\.\./esc' must be one folder"),
    ("name=a/b", r"name='a/b' must be one folder"),
    ("name=.hidden", r"name='\.hidden' must be one folder"),
    ('name="a b"', r"name='a b' must be one folder"),
    ('name="<script>"', r"name='<script>' must be one folder"),
    ("name='a\nb'", r"name='a\\+nb' must be one folder"),
    ("output_dir=/proc/run", r"the folder /proc/run cannot be created: .*; give another one"),
    ("position=null", r"position=null: leave position out, or choose one of abacus, adape"),
    ("position=rpe", r"unknown position 'rpe'; did you mean 'rope'\?"),
    ("task=null", r"task=null: leave task out, or choose one of arithmetic"),
    ("data=null", r"data=null: leave data out, or choose one of a5, add, addition"),
    ("model=null", r"model=null: leave model out, or choose one of arithmetic"),
    ("trainer=null", r"trainer=null: leave trainer out, or choose one of base"),
    ("peft=null", r"peft=null: leave peft out, or choose one of adape"),
    ("experiment=extend peft=null", r"peft=null: leave peft out, or choose one of adape"),
    (
        "experiment=scrolls_sample budget=null",
        r"budget=null: leave budget out, or choose one of demo",
    ),
    ("experiment=null", r"experiment=null: leave experiment out, or choose one of ablation"),
    ("launcher=null", r"launcher=null: leave launcher out, or choose one of ddp"),
    ("~position", r"position=null: choose one of abacus, adape"),
    (
        "position=abacus position.digits=[99999]",
        r"digits=\[99999\] must be a list of token ids below",
    ),
    ("position=mixed position.pattern=[mixed]", r"mixed applies to all layers"),
    (
        "schedule=wsd trainer.warmup_steps=0 trainer.lr_scheduler_kwargs.num_decay_steps=-5",
        r"trainer\.lr_scheduler_kwargs\.num_decay_steps=-5 must be an integer >= 0",
    ),
    ("+foo=3", r"\+foo=3: there is no such setting"),
    ("position=rope +optimizer.encoding_factor=2", r"the encoding has no parameters of its own"),
    ("+optimizer.encoding_factor=-2", r"optimizer\.encoding_factor=-2 must be a number >= 0"),
    ("+optimizer.foo=3", r"optimizer\.foo: there is no such setting"),
    ("optimizer.matrix_learning_rate=0.1", r"matrix_learning_rate=0\.1: there is no such setting"),
    ("optimizer=muon optimizer.matrix_learning_rate=null", r"rate=null must be a number >= 0"),
    ("+report.foo=3", r"\+report\.foo=3: there is no such setting; did you mean 'report"),
    ("data.documents=marsk", r"data\.documents='marsk' must be join or mask, or null for join"),
    ("+data.foo=3", r"TextCorpus takes no argument 'foo'"),
    ("sweep=encodings", r"sweep=encodings: there is no such setting; did you mean 'seed'\?"),
    ("lenght=3", r"lenght=3: there is no such setting; did you mean 'length'\?"),
    ("trainer.lerning_rate=1", r"there is no such setting; did you mean 'trainer\.learning_rate'"),
    ("model.hidden=3", r"model\.hidden=3: there is no such setting; did you mean 'model\.hidden_"),
    ("a=b=c", r"mismatched input '='"),
    ("name=${nothing}", r"nothing"),
    ("task._target_=foo.bar", r"foo"),
    ("hydra.run.dir=/dev/null/x", r"hydra\.run\.dir, .*: no folder /dev/null/x can be made"),
    # bases
    ("peft=lora", r"peft=lora adapts a trained model: give base_model=\.\.\."),
    *(
        (f"{BASE_LORA} peft.lora.{setting}", rf"peft\.lora\.{message}")
        for setting, message in (
            *(
                (f"alpha={x}", r"alpha=\S+ must be a finite number > 0")
                for x in (0, -16, "nan", "inf")
            ),
            ("alpha=true", r"alpha=True must be a finite number > 0"),
            ("rank=0", r"rank=0 must be an integer >= 1"),
            ("rank=1.5", r"rank=1\.5 must be an integer"),
            ("rank=true", r"rank=True must be an integer"),
            ("dropout=nan", r"dropout=nan must lie in \[0, 1\)"),
            ("dropout=a", r"dropout='a' must lie in \[0, 1\)"),
            ("targets=5", r"targets=5 must be a list from q_proj, k_proj"),
            ("targets=[[1]]", r"targets=\[\[1\]\] must be a list from"),
            ("targets=[]", r"targets=\[\] must be a list from"),
        )
    ),
    (f"{BASE_LORA} peft.extra=maybe", r"peft\.extra='maybe' must be true or false"),
    (f"{BASE_LORA} peft.lora=5", r"peft\.lora=5 must hold settings"),
    (f"{BASE_LORA} name=x peft.name=5", r"peft\.name=5 must be text"),
    ("peft=lor", r"unknown peft 'lor'; did you mean 'lora'\?"),
    ("frozen=int9", r"unknown frozen 'int9'; did you mean 'int8'"),
    ("frozen=nf4", r"frozen=nf4: all weights are trained"),
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


def test_debug_shows_where_a_setting_was_refused(train):
    assert "Traceback" in train("debug=true", "length=1").err


@pytest.mark.filterwarnings("error::FutureWarning")
def test_no_warning_is_above_an_error(train, tmp_path):
    refused = r"^error: base_model=output/no: there is no such folder"
    outcome = train("experiment=extend", "peft=lora", "base_model=output/no")
    check_refusal(outcome, refused, tmp_path)


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


def test_a_run_with_other_settings(train, run, tmp_path):
    (run / ".lock").unlink()
    before = files(tmp_path)
    outcome = train("name=run", "trainer.learning_rate=0.5")
    difference = (
        r"another configuration: trainer\.learning_rate: \S+ -> 0\.5; give this run its own"
    )
    check_refusal(outcome, difference, tmp_path, before)


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
    finalize_checkpoint(checkpoint.rename(run / "work"), checkpoint)
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
    assert "checkpoint-2 is skipped: " in outcome.out and "continuing from " in outcome.out


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
    for package in ("config", "tape", "sweep.py"):
        (tmp_path / package).symlink_to(ROOT / package)
    (tmp_path / "script" / "setup.sh").write_text("# installed\n")

    def script(name, **variables):
        environment = {**os.environ, "VIRTUAL_ENV": sys.prefix, **variables}
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
                "99999999999999999999",
            )
        ),
        ("train.sh", {"NODE_RANK": "x"}),
        ("compare.sh", {"JOBS": "a[$(touch harm)]"}),
        ("compare.sh", {"SEEDS": "0 x"}),
        ("compare.sh", {"SEEDS": "a[$(touch harm)]"}),
        ("compare.sh", {"SEEDS": "0 0"}),
        ("compare.sh", {"TYPES": " "}),
        ("compare.sh", {"SEEDS": " "}),
        ("compare.sh", {"TYPES": "keep"}),
        ("compare.sh", {"TYPES": "rope ../task/text"}),
        ("compare.sh", {"TYPES": "rope rope"}),
        ("compare.sh", {"NAME": "../outside"}),
        ("suite.sh", {"TASKS": "copy poetry"}),
        ("suite.sh", {"NAME": "a/b"}),
        ("suite.sh", {"SLICE": "a[$(touch harm)]"}),
        ("gpu/all.sh", {"SLICE": "soon"}),
    ],
    ids=str,
)
def test_variables_of_scripts(script, tmp_path, name, variables):
    outcome = script(name, **variables)
    variable = next(iter(variables))
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stderr.startswith("error: ") and len(outcome.stderr.splitlines()) == 1
    setting = {"TYPES": "position", "TASKS": "data", "SLICE": "SLICE|seconds"}.get(
        variable, variable[:-1].lower()
    )
    assert re.search(rf"{variable}|{setting}", outcome.stderr), outcome.stderr
    assert not (tmp_path / "harm").exists() and not (tmp_path / "output").exists()


# --- data and files


@pytest.fixture(scope="session")
def given(tmp_path_factory):
    """Files, good and bad, and models that were made with them."""
    folder = tmp_path_factory.mktemp("given")
    write_texts(folder)
    write_scrolls(folder)
    write_models(folder)
    return folder


def damaged(content, place):
    """With 20 bytes inverted."""
    part = bytes(byte ^ 0xFF for byte in content[place : place + 20])
    return content[:place] + part + content[place + 20 :]


def write_texts(folder):
    text = "".join(
        json.dumps({"text": f"line {n}: {n * n} sheep and {n % 5} goats. " * 9}) + "\n"
        for n in range(300)
    ).encode()
    table = io.BytesIO()
    parquet.write_table(pa.table({"text": text.decode().splitlines()}), table)
    squeezed, table = zstandard.compress(text), table.getvalue()
    files = {
        "text.jsonl": text,
        "gzip.jsonl.gz": damaged(gzip.compress(text, mtime=0), 10),
        "gzip_cut.jsonl.gz": gzip.compress(text, mtime=0)[:-20],
        "zstd.jsonl.zst": damaged(squeezed, len(squeezed) // 2),
        "zstd_cut.jsonl.zst": squeezed[: len(squeezed) // 2],
        "table.parquet": damaged(table, len(table) // 3),
        "table_cut.parquet": table[:-20],
        "nested.jsonl": b'{"text": ' + b"[" * 100_000 + b"\n",
        "number.jsonl": b'{"text": 3}\n',
        "latin.jsonl": '{"text": "café"}'.encode("latin-1"),
        "empty.txt": b"",
        "blank.jsonl": b"\n" * 9,
        "file": b"x",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "nowhere.txt").symlink_to("nothing.txt")
    (folder / "folder.txt").mkdir()
    shards = folder / "c4"
    shards.mkdir()
    (folder / "c4_corrupt").mkdir()
    for split in ("train", "validation"):
        corrupt = folder / "c4_corrupt" / f"c4-{split}.00000-of-00001.json.gz"
        corrupt.write_bytes(damaged(gzip.compress(text, mtime=0), 10))
    for split in ("train", "validation"):
        (shards / f"c4-{split}.00000-of-00001.json.gz").write_bytes(gzip.compress(text, mtime=0))
    for name in ("vocabulary", "nested"):
        (folder / f"tokenizer_{name}").mkdir()
        content = {"vocabulary": '{"model": {"type": "BPE"}}', "nested": "[" * 100_000}[name]
        (folder / f"tokenizer_{name}" / "tokenizer.json").write_text(content)


def write_scrolls(folder):
    write_task(folder / "scrolls", "qasper")
    archive = (folder / "scrolls" / "qasper.zip").read_bytes()
    locked = archive
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of every member
        locked = re.sub(
            re.escape(mark) + b"." * place,
            lambda found: found[0][:-4] + bytes([found[0][-4] | 1]) + found[0][-3:],
            locked,
            flags=re.DOTALL,
        )
    row = {"id": "a", "pid": "a_1", "input": "Why?\n\nA document", "output": "x"}
    sets = {
        "zip_locked": {"qasper.zip": locked},
        "zip": {"qasper.zip": damaged(archive, archive.index(b"validation.jsonl") + 40)},
        "zip_cut": {"qasper.zip": archive[:-20]},
        "zip_not": {"qasper.zip": b"x"},
        "rows_nested": {"qasper/validation.jsonl": b'{"id": ' + b"[" * 100_000},
        "rows_none": {"qasper/validation.jsonl": b"\n"},
        "rows_number": {"qasper/validation.jsonl": b"5"},
        "rows_input": {"qasper/validation.jsonl": json.dumps(row | {"input": 5}).encode()},
        "rows_pid": {"qasper/validation.jsonl": json.dumps(row | {"pid": ["a"]}).encode()},
        "answers_nested": {"qasper/tape.json": b"[" * 100_000},
        "answers_unnamed": {os.fsdecode(b"qasper/\xff.json"): b"{}"},
        "answers": {
            "tape.json": json.dumps({f"qasper-validation-{n}": "x" for n in range(3)}).encode(),
            "twice.json": b'{"a": "x", "a": "y"}',
            "half.json": b'{"a": "\\ud800"}',
        },
    }
    for name, files in sets.items():
        for file, content in files.items():
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for name in ("zip_loop/qasper.zip", "answers_loop/qasper/tape.json"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to((folder / name).name)


def write_models(folder):
    """Untrained ones, each with a file of what it was trained on that is damaged."""
    tokenizer, text = byte_tokenizer(), {"nested": "[" * 100_000, "number": "5", "key": "{}"}
    texts = {
        "problems.json": text | {"key": '{"max_first": "many"}', "digits": '{"max_first": 2}'},
        "passkeys.json": text | {"key": '{"max_length": 3}', "prompts": '{"max_length": 40}'},
        "scrolls.json": text | {"type": '{"budget": 5}', "rows": '{"budget": "demo"}'},
    }
    make_model("tape", vocab_size=len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for file, contents in texts.items():
        for name, content in contents.items():
            model = shutil.copytree(folder / "model", folder / f"{file[:-5]}_{name}")
            (model / file).write_text(content)


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
    ("data=text data.files={given}/gzip.jsonl.gz", r"gzip\.jsonl\.gz cannot be read: Error -3"),
    ("data=text data.files={given}/gzip_cut.jsonl.gz", r"gzip_cut\.jsonl\.gz cannot be read"),
    ("data=text data.files={given}/zstd.jsonl.zst", r"zstd\.jsonl\.zst cannot be read"),
    ("data=text data.files={given}/zstd_cut.jsonl.zst", r"zstd_cut\.jsonl\.zst cannot be read"),
    ("data=text data.files={given}/table.parquet", r"table\.parquet cannot be read"),
    ("data=text data.files={given}/table_cut.parquet", r"table_cut\.parquet cannot be read"),
    ("data=text data.files={given}/number.jsonl", r"line 1: field 'text' has int 3; a document "),
    ("data=text data.files={given}/nested.jsonl", r"nested\.jsonl, line 1: not JSON .*recursion"),
    ("data=text data.files={given}/latin.jsonl", r"latin\.jsonl is not UTF-8"),
    ("data=text data.files={given}/loop.txt", r"data\.files: .*loop\.txt is a broken link"),
    ("data=text data.files={given}/nowhere.txt", r"data\.files: .*nowhere.txt is a broken link"),
    ("data=text data.files={given}/folder.txt", r"data\.files: no \.txt, .* in folder .*folder"),
    ("data=text data.files={given}/file", r"data\.files: .*file must be one of \.txt"),
    ("data=text data.files=/dev/zero", r"data\.files: /dev/zero is neither a file nor a folder"),
    ("data=text data.files={given}/empty.txt", r"the train split of text has no documents"),
    ("data=text data.files={given}/blank.jsonl", r"the train split of text has no documents"),
    # What is no path
    ("data=text data.files=5", r"data\.files=5 must be a path"),
    ("data=text data.files=null", r"data=text needs data\.files="),
    ("data=text data.files=[]", r"data\.files=\[\] must be a path"),
    ("data=text data.files=[null]", r"data\.files=None must be a path"),
    ("data=text data.files={a:b}", r"data\.files={'a': 'b'} must be a path"),
    ("data=text data.files=''", r"data\.files='' must be a path"),
    (f"{TEXT} data.validation=5", r"data\.validation=5 must be a path"),
    (f"{TEXT} data.validation=[]", r"data\.validation=\[\] must be a path"),
    (f"{TEXT} data.validation=nowhere", r"data\.validation: nothing matches 'nowhere'"),
    (f"{TEXT} data.validation={{given}}/empty.txt", r"the validation split of text has no docu"),
    (f"{TEXT} cache_dir=null", r"cache_dir=null must be text"),
    (f"{TEXT} cache_dir=5", r"cache_dir=5 must be text"),
    (f"{TEXT} cache_dir=''", r"cache_dir='' must be text"),
    (
        f"{TEXT} cache_dir={{given}}/file",
        r"given.*/file/tokenizers cannot be created: .*file is a f",
    ),
    (f"{TEXT} output_dir={{given}}/file", r"given.*/file cannot be created: .*file is a file"),
    (f"{TEXT} tokenizer=5", r"tokenizer=5 must be text"),
    (f"{TEXT} tokenizer=''", r"tokenizer='' must be text"),
    (f"{TEXT} tokenizer={{given}}/c4", r"tokenizer='.*c4' is neither a folder with a tokenizer"),
    (f"{TEXT} tokenizer={{given}}/tokenizer_vocabulary", r"tokenizer\.json is damaged \(KeyError"),
    (f"{TEXT} tokenizer={{given}}/tokenizer_nested", r"tokenizer\.json is damaged \(Recursion"),
    # What is no number or name
    (f"{TEXT} data.field=null", r"data\.field=None must be text"),
    (f"{TEXT} data.field=5", r"data\.field=5 must be text"),
    (f"{TEXT} data.field=[text]", r"data\.field=\['text'\] must be text"),
    (f"{TEXT} data.name=null", r"data\.name=None must be text"),
    (f"{TEXT} data.name=''", r"data\.name='' must be text"),
    (f"{TEXT} data.validation_fraction=a", r"data\.validation_fraction='a' must lie in \(0, 1\)"),
    (f"{TEXT} data.validation_fraction=nan", r"data\.validation_fraction=nan must lie in"),
    (f"{TEXT} data.validation_fraction=null", r"data\.validation_fraction=None must lie in"),
    (f"{TEXT} data.validation_fraction=1", r"data\.validation_fraction=1 must lie in"),
    (f"{C4} data.shards=0", r"data\.shards=0 must be an integer >= 1"),
    (f"{C4} data.shards=a", r"data\.shards='a' must be an integer"),
    (f"{C4} data.shards=true", r"data\.shards=True must be an integer"),
    (f"{C4} data.shards=9", r"data\.shards=9 but .* has 1 train shards"),
    (f"{C4} data.window=0", r"data\.window=0 must be an integer"),
    (f"{C4} data.window=99999999999", r"data\.window=99999999999 must be an integer in 1\.\."),
    (f"{C4} data.window=null", r"data\.window=None must be an integer"),
    (f"{C4} data.validation_documents=1.5", r"data\.validation_documents=1\.5 must be an int"),
    (f"{C4} data.tokenizer_documents=0", r"data\.tokenizer_documents=0 must be an integer"),
    (f"{C4} data.seed=a", r"data\.seed='a' must be an integer >= 0"),
    (f"{C4} data.max_bad=-1", r"max_bad"),
    (f"{C4} data.streaming=maybe", r"data\.streaming='maybe' must be true or false"),
    (
        f"{C4} data.dir={{given}}/c4_corrupt data.streaming=false",
        r"c4-train\.00000-of-00001\.json\.gz cannot be read: Error -3",
    ),
    (
        f"{C4} data.dir={{given}}/c4_corrupt tokenizer={{given}}/model",
        r"c4-validation\.00000-of-00001\.json\.gz cannot be read: Error -3",
    ),
    (f"{C4} data.dir=5", r"data\.dir=5 must be a path"),
    (f"{C4} data.dir={{given}}/loop.txt", r"given.*loop\.txt"),
    (f"{C4} data.dir={{given}}/file", r"no train or validation shards among .*file"),
    ("data=c4 data.root=5", r"data\.root=5 must be text"),
    ("data=redpajama data.dir=5", r"data\.dir=5 must be a path"),
    ("data=redpajama data.dir={given}/file", r"data\.dir=.*file has none of arxiv_sample"),
    ("data=redpajama data.validation_fraction=a", r"data\.validation_fraction='a' must lie in"),
    # Tasks of their own
    (f"{ADDITION} data.max_first=many", r"data\.max_first='many' must be an integer"),
    (f"{ADDITION} data.max_second=1{'0' * 20}", r"data\.max_second=10+ must be an integer"),
    (f"{ADDITION} data.spaces=nan", r"data\.spaces=nan must be a probability"),
    (f"{ADDITION} data.task=divide", r"unknown data\.task 'divide'.*Known: addition"),
    (f"{ADDITION} data.reverse=maybe", r"data\.reverse='maybe' must be true or false"),
    (f"{ADDITION} position=abacus position.offset=-1", r"abacus: offset=-1 must be an integer"),
    (f"{ADDITION} task.samples=0", r"task\.samples=0 must be an integer >= 1"),
    (f"{PASSKEY} data.max_length=few", r"data\.max_length='few' must be an integer"),
    (f"{PASSKEY} data.keys=99", r"keys=99 must be an integer in 1..24"),
    (f"{PASSKEY} data.values=99999", r"values=99999 must be an integer"),
    (f"{PASSKEY} task.samples=null", r"task\.samples=null must be an integer >= 1"),
    (f"{SCROLLS} data.task=quizz", r"unknown data\.task 'quizz'.*Known:"),
    (f"{SCROLLS} data.budget=5", r"unknown data\.budget 5.*Known: demo"),
    (f"{SCROLLS} data.data_dir=5", r"data\.data_dir=5 must be a path"),
    (f"{SCROLLS} data.data_dir={{given}}/zip_locked", r"qasper\.zip.* cannot be read .*encrypted"),
    (f"{SCROLLS} data.data_dir={{given}}/rows_nested", r"neither qasper\.zip nor qasper/train"),
    (f"{SCROLLS} cache_dir=null", r"cache_dir=null must be text"),
    (f"{SCROLLS} tokenizer=null", r"tokenizer=None must be text"),
]

SCORED = "eval_scrolls.py --dataset_name qasper --metrics_output_dir metrics --cache_dir {store}"
VALID = "--split validation --data_dir {given}/scrolls --predictions {given}/answers/tape.json"
TESTED = "--data_dir {given}/scrolls --predictions {given}/answers/tape.json --test_data_file"
ALL = "eval_scrolls.py --all --cache_dir {store} --data_dir {given}/scrolls --predictions"
SHOWN = "-m scrolls.show --dataset_name qasper --cache_dir {store} --data_dir {given}/scrolls"
GENERATED = (
    "-m scrolls.generate task=qasper processes=1 limit=1 max_batch_tokens=300 output=o.json "
    "cache_dir={store} data_dir={given}/scrolls model={given}/scrolls_"
)
GRID = (
    "-m tape.tasks.evaluate --task addition samples=1 max_length=2 processes=1 "
    "model={given}/problems_"
)
KEYS = "eval_retrieval.py --num_tests 1 --depths 1 --processes 1 --base_model {given}/passkeys_"
OTHER = r"--\w+ \S+ contains something else: remove it, or give another file"
A_MODEL = r"is the folder of a run or a model \(config\.json\); give another one"
FILES = [
    (f"{SCORED} {VALID} --data_dir {{given}}/zip_locked", r"qasper\.zip.* cannot be .*encrypted"),
    (f"{SCORED} {VALID} --data_dir {{given}}/zip", r"qasper\.zip.* cannot be read"),
    (f"{SCORED} {VALID} --data_dir {{given}}/zip_cut", r"qasper\.zip.* cannot be read"),
    (f"{SCORED} {VALID} --data_dir {{given}}/zip_not", r"qasper\.zip.* cannot be read"),
    (f"{SCORED} {VALID} --data_dir {{given}}/zip_loop", r"zip_loop has neither qasper\.zip"),
    (f"{SCORED} {VALID} --data_dir {{given}}/file", r"file has neither qasper\.zip"),
    (f"{SCORED} {VALID} --data_dir {{given}}/rows_nested", r"line 1: not JSON .*recursion"),
    (f"{SCORED} {VALID} --data_dir {{given}}/rows_none", r"validation\.jsonl has no rows"),
    (f"{SCORED} {VALID} --data_dir {{given}}/rows_number", r"line 1: not a JSON object"),
    (
        f"{SCORED} {VALID} --data_dir {{given}}/rows_pid",
        r"field 'pid' is \['a'\], which is not text",
    ),
    (f"{SCORED} {VALID} --predictions {{given}}/nested.jsonl", r"cannot be read as pred.*recurs"),
    (f"{SCORED} {VALID} --predictions {{given}}/loop.txt", r"the file of predictions .*loop"),
    (f"{SCORED} {VALID} --predictions {{given}}/folder.txt", r"the file of predictions .*folder"),
    (f"{SCORED} {VALID} --predictions {{given}}/empty.txt", r"empty\.txt cannot be read as pred"),
    (f"{SCORED} {VALID} --predictions {{given}}/answers/twice.json", r"duplicate id 'a'"),
    (
        f"{SCORED} {VALID} --predictions {{given}}/answers/half.json",
        r"'a': it contains a lone surrogate",
    ),
    (f"{SCORED} {VALID} --metrics_output_dir {{given}}/file", r"file cannot be created: .* is a f"),
    (f"{SCORED} {TESTED} {{given}}/nested.jsonl", r"nested\.jsonl, line 1: not JSON .*recursion"),
    (f"{SCORED} {TESTED} {{given}}/loop.txt", r"loop\.txt cannot be read"),
    (f"{SCORED} {TESTED} {{given}}/folder.txt", r"folder\.txt cannot be read"),
    (f"{SCORED} {TESTED} {{given}}/empty.txt", r"empty\.txt has no rows"),
    (f"{ALL} {{given}}/file --metrics_output_dir m", r"file contains no predictions"),
    (f"{ALL} {{given}}/answers_nested --metrics_output_dir m", r"tape\.json cannot be read as"),
    (f"{ALL} {{given}}/answers_loop --metrics_output_dir m", r"the file of predictions .*tape"),
    (f"{ALL} {{given}}/answers_unnamed --metrics_output_dir m", r"qasper/\\udcff\.json.* UTF-8"),
    (f"{SHOWN} --predictions {{given}}/nowhere", r"nowhere contains no predictions"),
    (f"{SHOWN} --predictions {{given}}/answers_nested/qasper", r"cannot be read as predictions"),
    (f"{SHOWN} --predictions {{given}}/answers_unnamed/qasper", r"\\udcff\.json.* UTF-8"),
    (f"{SHOWN} --predictions {{given}}/answers --limit 0", r"--limit 0 must be at least 1"),
    (
        f"{SHOWN} --predictions {{given}}/answers --data_dir {{given}}/rows_input",
        r"line 1, id 'a': field 'input' is 5",
    ),
    # What would be written over
    (f"{SHOWN} --predictions {{given}}/answers --out {{given}}/answers/tape.json", OTHER),
    (f"{SHOWN} --predictions {{given}}/answers --out {{given}}/model/config.json", OTHER),
    (
        f"{GENERATED}rows output={{given}}/model/config.json",
        r"config\.json exists, but its journal is",
    ),
    (f"{ALL} {{given}} --metrics_output_dir m --type a --submission {{given}}/text.jsonl", OTHER),
    (f"{SCORED} {VALID} --metrics_output_dir {{given}}/model", A_MODEL),
    (f"{GENERATED}nested", r"scrolls_nested/scrolls\.json is damaged .*recursion.*budget=\.\.\."),
    (f"{GENERATED}number", r"scrolls\.json is damaged .*give budget=\.\.\."),
    (f"{GENERATED}key", r"scrolls\.json is damaged .*give budget=\.\.\."),
    (f"{GENERATED}type", r"unknown budget 5.*Known: demo"),
    (f"{GENERATED}rows model={{given}}/file", r"file is not a folder"),
    (f"{GENERATED}rows model=null", r"model=None must be a path"),
    (f"{GENERATED}rows output=null", r"output=None must be a path"),
    (f"{GENERATED}rows output=''", r"output='' must be a path"),
    (f"{GENERATED}rows output={{given}}/folder.txt", r"folder\.txt is a folder: give the file"),
    (f"{GENERATED}rows output={{given}}/file/o.json", r"cannot be created: .*file is a file"),
    (f"{GENERATED}rows data_dir=5", r"data_dir=5 must be a path"),
    (f"{GENERATED}rows cache_dir=null", r"cache_dir=None must be a path"),
    (f"{GENERATED}rows cache_dir={{given}}/file", r"cannot be created: .*file is a file"),
    (f"{GENERATED}rows temperature=-3", r"temperature=-3 must be a number above 0"),
    (f"{GENERATED}rows top_p=7", r"top_p=7 must lie in \(0, 1\]"),
    (f"{GENERATED}rows top_p=0.5", r"top_p=0\.5 requires sample=true: set both or neither"),
    (f"{GENERATED}rows seed=9", r"seed=9 requires sample=true: set both or neither"),
    (
        f"{GENERATED}rows task=sample",
        r"sample is generated locally and not read from \S+scrolls: leave",
    ),
    (
        f"{SHOWN} --dataset_name sample --predictions {{given}}/answers",
        r"sample is generated locally and",
    ),
    (f"{GENERATED}rows sample=true temperature=inf", r"temperature=inf must be a number above 0"),
    (f"{GENERATED}rows sample=true temperature=true", r"temperature=True must be a number above"),
    (f"{GENERATED}rows sample=true top_p=nan", r"top_p=nan must lie in \(0, 1\]"),
    (f"{GENERATED}rows -m limit=1,2", r"--multirun is for train\.py: repeat this command"),
    (f"{GRID}nested", r"problems_nested/problems\.json is damaged \(RecursionError"),
    (f"{GRID}number", r"problems\.json: it must be a JSON object"),
    (f"{GRID}key", r"problems_key/problems\.json: .*max_first='many' must be an integer"),
    (f"{GRID}digits max_length=99999", r"--max_length: 99999 is more than 1,000"),
    ("-m tape.tasks.evaluate --task addition", r"arguments are required: --model"),
    (f"{GRID}digits model={{given}}/loop.txt", r"--model: .*loop\.txt is not a folder"),
    (f"{KEYS}nested", r"passkeys_nested/passkeys\.json is damaged \(RecursionError"),
    (f"{KEYS}number", r"passkeys\.json: it must be a JSON object"),
    (f"{KEYS}key", r"passkeys_key/passkeys\.json: .*max_length=3: prompts"),
    (f"{KEYS}prompts --keys 99", r"keys=99 must be an integer in 1..24"),
    (f"{KEYS}prompts --values 99999 --max_tokens 500", r"values=99999 must be an integer"),
    (f"{KEYS}prompts --interval 0", r"--interval: '0' must be an integer >= 1"),
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
def test_data_of_a_run(words, message, given, store, tmp_path):
    settings = words.replace("{given}", str(given)).split()
    common = ["experiment=quick", "vocab_size=300", f"cache_dir={store}"]
    outcome = run_command("train.py", *common, *settings, folder=tmp_path)
    check_refusal(outcome, message, tmp_path)


@pytest.mark.parametrize(("words", "message"), FILES, ids=names_of(FILES))
def test_files_of_a_command(words, message, given, store, tmp_path):
    before = files(given)
    words = words.replace("{given}", str(given)).replace("{store}", str(store)).split()
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(given) == before


# --- evaluations and results


QUANTIZED = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
CELLS = "measure,first_digits,second_digits,value,n,unit"
GRID_OF_1 = {
    "grid.csv": f"{CELLS}\naccuracy,1,1,0.5,2,share\n",
    "summary.json": json.dumps(
        {
            "all": with_interval(1, 2),
            "evaluated": {
                **{"model": "0" * 64, "max_length": 1},
                **{"problems.max_first": 1, "problems.max_second": 1},
            },
        }
    ),
}
OTHER = GRID_OF_1["summary.json"].replace('"correct": 1', '"correct": 2')
UNHASHED = GRID_OF_1["summary.json"].replace("0" * 64, "")
PERPLEXITIES = "model,model_hash,data,data_hash,convention,length,stride,batch_size,dtype"
PERPLEXITIES += ",tokens,nll,perplexity"
TRAINED_RUN = {"seed": 0, "trainer.seed": 0, "position.name": "rope", "length": 8}
# Folders of `made`, each a good model but for one file: its name, what it holds, the folder's name.
DAMAGED = {
    "config.json": {
        "empty": "",
        "nested": NESTED,
        "number": "5",
        "bare": "{}",
        "gpt2": '{"model_type": "gpt2", "n_embd": 32}',
        "quantized": QUANTIZED,
        "heads": {"num_attention_heads": 0},
        "encoding": {"position": {"name": "rpoe"}},
        "layers": {"num_hidden_layers": 9},
    },
    "model.safetensors": {"empty": "", "text": "x" * 99},
    "trained.json": {"text": "x"},
    "tokenizer.json": {"nested": NESTED},
    "metrics.jsonl": {"nested": NESTED, "number": "5\n", "text": '{"step": "a", "loss": 3}\n'},
    "perplexity.csv": {"empty": "", "columns": "a,b\n1,2\n", "binary": "\x00\udcff"},
    "zero_shot.csv": {"empty": "", "columns": "a,b\n1,2\n", "binary": "\x00\udcff"},
    "compare/perplexity.csv": {
        "untrue": f"{PERPLEXITIES}\nm,{'0' * 16},d,d,sliding,64,32,,float32,9,6.1,1.5\n",
    },
    "grid/grid.csv": {
        "empty": "",
        "text": f"{CELLS}\naccuracy,1,1,a,2,share\n",
        "binary": "\udcff",
    },
    "grid/summary.json": {
        "nested": NESTED,
        "number": "5",
        "key": '{"evaluated": {}}',
        "other": OTHER,
        "hash": UNHASHED,
    },
    "passkey/passkey.csv": {"empty": "", "columns": "a,b\n1,2\n", "binary": "\udcff"},
}


@pytest.fixture(scope="session")
def made(given, tmp_path_factory):
    """Models, runs and results, each with one file that is damaged."""
    folder = tmp_path_factory.mktemp("made")
    np.arange(600, dtype=np.uint16).__mod__(256).tofile(folder / "ids.bin")
    np.full(600, 65_000, dtype=np.uint16).tofile(folder / "beyond.bin")
    (folder / "odd.bin").write_bytes(b"x" * 3)
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
    for name in ("trained_text", "metrics_nested"):
        (folder / name / "run.json").write_text("{}")
    for file in ("config.json", "model.safetensors"):
        shutil.copytree(model, without := folder / f"without_{file}")
        (without / file).unlink()
        for kind in ("folder", "loop"):
            shutil.copytree(without, folder / f"{kind}_{file}")
        (folder / f"folder_{file}" / file).mkdir()
        (folder / f"loop_{file}" / file).symlink_to(file)
    broken = TapeForCausalLM.from_pretrained(model)
    torch.nn.init.constant_(broken.model.embed_tokens.weight, math.nan)
    broken.save_pretrained(shutil.copytree(model, folder / "nan"))
    shutil.copytree(folder / "without_model.safetensors", folder / "index")
    index = folder / "index" / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../w"}}')
    characters = character_tokenizer()
    small = make_model("tape", vocab_size=len(characters), max_position_embeddings=64)
    small.save_pretrained(folder / "characters")
    characters.save_pretrained(folder / "characters")
    return folder


GOOD = "{given}/problems_digits"
PERPLEXITY = "-m tape.evaluation.perplexity --data {made}/ids.bin --lengths 64 --out o.csv --model"
MEASURED = f"{PERPLEXITY} {GOOD}"
LM_EVAL = f"-m tape.evaluation.lm_eval --tasks lambada_openai --out o.csv --model {GOOD}"
STABILITY = "-m tape.analysis.stability --length 16 --windows 1 --out o --model"
PICTURES = f"-m tape.analysis.visualize --out o --model {GOOD}"
COMPARE, HEATMAP = "-m tape.results.compare", "-m tape.results.heatmap"
PASSKEYS = f"{KEYS}prompts --max_tokens 80 --interval 80"
NO_NAME = r"it must be a single folder name of letters"
EVALUATIONS = [
    # Models
    (f"{PERPLEXITY} {{made}}/config_empty", r"config_empty/config\.json is damaged"),
    (f"{PERPLEXITY} {{made}}/config_nested", r"config\.json is damaged \(RecursionError"),
    (f"{PERPLEXITY} {{made}}/config_number", r"config\.json: it must be a JSON object, not int"),
    (f"{PERPLEXITY} {{made}}/config_gpt2", r"config\.json: .* model_type 'gpt2'; allowed: 'tape'"),
    (f"{PERPLEXITY} {{made}}/config_quantized", r"quantization_config .* requires bitsandbytes"),
    (f"{PERPLEXITY} {{made}}/config_heads", r"num_attention_heads=0 must be an integer >= 1"),
    (f"{PERPLEXITY} {{made}}/config_encoding", r"encoding 'rpoe'; did you mean 'rope'\?"),
    (f"{PERPLEXITY} {{made}}/config_layers", r"weights of the model .* are missing, such as model"),
    (f"{PERPLEXITY} {{made}}/model_empty", r"model_empty/model\.safetensors is damaged"),
    (f"{PERPLEXITY} {{made}}/model_text", r"model_text/model\.safetensors is damaged"),
    *(
        (f"{PERPLEXITY} {{made}}/{kind}_{file}", rf"{kind}_{re.escape(file)} has no {file}")
        for kind in ("without", "folder", "loop")
        for file in ("config.json", "model.safetensors")
    ),
    *(
        (f"{PERPLEXITY} {{made}}/{name}", rf"{name} is not a folder")
        for name in ("file", "loop", "nothing")
    ),
    (f"{PERPLEXITY} {{made}}/empty", r"empty has no model\.safetensors"),
    (f"{STABILITY} {{made}}/config_gpt2", r"model_type 'gpt2'; allowed: 'tape'"),
    (f"{STABILITY} {{made}}/tokenizer_nested", r"tokenizer\.json is damaged \(RecursionError"),
    ("-m tape.export --out o {made}/config_gpt2", r"model_type 'gpt2'; allowed: 'tape'"),
    ("-m tape.export --out o {made}/model_text", r"model\.safetensors is damaged"),
    ("-m tape.export --out o {made}/loop", r"loop is not a folder"),
    (f"{KEYS}prompts --base_model {{made}}/loop", r"loop is not a folder"),
    *(
        (f"{command} {{made}}/nan", r"made\d+/nan: some weights are not finite, such as model\.")
        for command in (
            PERPLEXITY,
            STABILITY,
            f"{KEYS}prompts --base_model",
            "-m tape.export --out o",
            "-m tape.analysis.visualize --out o --model",
        )
    ),
    (f"{GRID}digits model={{made}}/nan", r"made\d+/nan: some weights are not finite"),
    # A tokenizer of characters, and other text
    *(
        (f"{command} {{made}}/characters", r"the tokenizer has no token for a part of the text \(W")
        for command in (
            "-m tape.evaluation.perplexity --data local --lengths 64 --out o.csv --model",
            STABILITY,
        )
    ),
    # Flags
    *(
        (f"{MEASURED} --lengths {value}", rf"--lengths: '{value}' must be an integer >= 2")
        for value in ("1", "-5", "nan", "1e3")
    ),
    (f"{MEASURED} --lengths {'9' * 14}", r"--lengths: 9+ is more than"),
    (f"{MEASURED} --lengths 9999", r"600 tokens of text have no window of 9,999"),
    (f"{MEASURED} --stride 0", r"--stride: '0' must be an integer >= 1"),
    (f"{MEASURED} --stride 64", r"stride=64 must lie in 1\.\.63"),
    (f"{MEASURED} --max_tokens 3", r"3 tokens of text have no window of 64"),
    (f"{MEASURED} --shard 2/1", r"shard='2/1' must be i/n"),
    (f"{MEASURED} --dtype int8", r"--dtype: invalid choice: 'int8'"),
    (f"{MEASURED} --data {{made}}/odd.bin", r"odd\.bin has 3 bytes, an odd number"),
    (f"{MEASURED} --data {{made}}/beyond.bin", r"beyond\.bin: token 0 is 65,000, beyond the"),
    (f"{MEASURED} --data {{made}}/loop", r"--data \S+loop is neither a file nor a corpus"),
    (f"{MEASURED} --data {{made}}/empty", r"--data \S+empty is neither a file nor a corpus"),
    (f"{MEASURED} --out {{made}}/empty", r"--out \S+empty must end in \.csv"),
    (f"{MEASURED} --out {{made}}/file/o.csv", r"file is a file; give "),
    (f"{MEASURED} --data {{made}}/file", r"file has 0 bytes, none: it must hold token ids"),
    *(
        (
            f"-m tape.evaluation.perplexity --plot o.csv --out {out}",
            rf"--out {out} must end in \.png",
        )
        for out in ("o.csv", "o", "o.json")
    ),
    *(
        (f"{HEATMAP} {GOOD} --out {out}", rf"--out: '{re.escape(out)}' must be a file")
        for out in (".", "..", "/")
    ),
    (f"{LM_EVAL} --include_path {{made}}/tasks", r"tasks/a\.yaml is damaged \(ParserError"),
    (f"{STABILITY} {GOOD} --data {{made}}/file", r"file has 0 bytes, none"),
    (f"{STABILITY} {GOOD} --shifts 999999999999", r"--shifts: 9+ is more than 1,000,000"),
    (f"-m tape.export {GOOD} --out /proc/x", r"/proc/x cannot be used"),
    (f"{LM_EVAL} --batch_size 0", r"--batch_size: '0' must be an integer >= 1"),
    (f"{LM_EVAL} --max_length 1", r"--max_length: '1' must be an integer >= 2"),
    (f"{LM_EVAL} --tasks a,b,a", r"--tasks: duplicate value a"),
    (f"{LM_EVAL} --max_length 99999999", r"--max_length: 99999999 is more than 10,000,000"),
    (f"{LM_EVAL} --lengths 99999999", r"--lengths: 99999999 is more than 10,000,000"),
    (f"{LM_EVAL} --out /proc/x.csv", r"the folder /proc cannot be written to: .*; give another"),
    (f"{MEASURED} --out /proc/x.csv", r"the folder /proc cannot be written to"),
    (f"{LM_EVAL} --tasks ,", r"--tasks: ',' names no task"),
    (f"{LM_EVAL} --include_path {{made}}/file", r"--include_path \S+file is not a folder"),
    (f"{STABILITY} {GOOD} --shifts 0", r"--shifts: '0' must be an integer >= 1"),
    (f"{STABILITY} {GOOD} --shifts 3 3", r"--shifts: duplicate value 3"),
    (f"{STABILITY} {GOOD} --dtypes int8", r"--dtypes: invalid choice: 'int8'"),
    (f"{STABILITY} {GOOD} --out {{made}}/file", r"file is a file; give "),
    (f"{PICTURES} --length 7", r"--length: '7' must be an integer >= 8"),
    (f"{PICTURES} --out {{made}}/file", r"file is a file; give "),
    *(
        (f"{command} --out /proc/x", r"--out: the folder /proc(/x)? cannot be \S.*; give another")
        for command in (
            f"{STABILITY} {GOOD}",
            PICTURES,
            f"{COMPARE} {GOOD}",
            f"{HEATMAP} {GOOD}",
            "-m tape.analysis.cost",
            "benchmarks/speed.py",
        )
    ),
    (f"{STABILITY} {GOOD} --length 100000", r"shifted by 1000: [\d,]+ GiB of attention weights"),
    (
        f"{PICTURES} --length 100000",
        r"--length 100000 --windows 8: [\d,]+ GiB of attention weights",
    ),
    (f"{PICTURES} --windows 99999999", r"--windows: 99999999 is more than 1,000,000"),
    (f"{STABILITY} {GOOD} --windows 99999999", r"--windows: 99999999 is more than 1,000,000"),
    (f"-m tape.analysis.state --model {GOOD} --out o --lengths 3", r"--lengths: .3. must be"),
    (f"{STABILITY} {{made}}/config_bare", r"config_bare has no config\.json, or an empty one"),
    (f"-m tape.export {GOOD} --out {GOOD}", r"problems_digits already exists; choose another"),
    (f"-m tape.export {GOOD} --out o --format onnx", r"--format: invalid choice: 'onnx'"),
    # Results among the files of a model
    *(
        (f"-m {command} --out {{given}}/model", rf"--out: \S+model {A_MODEL}")
        for command in (
            f"tape.results.compare {GOOD}",
            *(f"tape.analysis.{name} --model {GOOD}" for name in ("stability", "visualize")),
            "tape.analysis.cost",
        )
    ),
    ("benchmarks/speed.py --out {given}/model", rf"--out: \S+model {A_MODEL}"),
    # Empty paths
    ("-m tape.results.report ''", r"folders: '' must be a path"),
    (f"{HEATMAP} {GOOD} --out ''", r"--out: '' must be a path"),
    (f"{COMPARE} {GOOD} --out ''", r"--out: '' must be a path"),
    (
        f"{COMPARE} {GOOD} --baseline nosuch",
        r"has none of|--baseline 'nosuch' is not a row; choose one of",
    ),
    ("-m tape.export --out o ''", r"folder: '' must be a path"),
    # Names of evaluations, and their numbers
    *(
        (f"{GRID}digits name={name}", rf"name='?{name}'?: {NO_NAME}")
        for name in ("../../x", "''", ".lock")
    ),
    (f"{GRID}digits name=report", r"name='report' is used by .* itself; choose another"),
    (f"{GRID}digits name=ORIGIN.JSON", r"name='ORIGIN\.JSON' is used by .* itself"),
    (f"{GRID}digits name=checkpoint-4", r"name='checkpoint-4' is used by .* itself"),
    (f"{GRID}digits max_length=1,2", r"--max_length: '1,2' must be an integer >= 1"),
    (
        f"{GRID}digits hydra.run.dir=/dev/null/x",
        r"unrecognized arguments: hydra\.run\.dir=/dev/nul",
    ),
    (f"{GRID}digits shard=3/2", r"shard='3/2' must be i/n"),
    (f"{GRID}digits samples=null", r"--samples: 'null' must be an integer >= 1"),
    (f"{GRID}digits seed=-1", r"--seed: '-1' must be an integer >= 0"),
    (f"{GRID}digits processes=a", r"--processes: 'a' must be an integer >= 1"),
    (f"{GRID}digits foo=3", r"unrecognized arguments: --foo=3"),
    (f"{GENERATED}rows +foo=3", r"\+foo=3: there is no such setting"),
    (f"{PASSKEYS} --name ../../x", rf"--name: name='\.\./\.\./x': {NO_NAME}"),
    (f"{PASSKEYS} --name ''", rf"--name: name='': {NO_NAME}"),
    (f"{PASSKEYS} --name report", r"--name='report' is used by .* itself; choose another"),
    (f"{PASSKEYS} --num_tests 0", r"--num_tests: '0' must be an integer >= 1"),
    (f"{PASSKEYS} --depths -1", r"--depths: '-1' must be an integer >= 1"),
    (f"{PASSKEYS} --batch_tokens 0", r"--batch_tokens: '0' must be an integer >= 1"),
    (f"{PASSKEYS} --shard x", r"shard='x' must be i/n"),
    # Results
    *(
        (f"{command} {{made}}/{name}_{damage}/{name}.csv", rf"{name}_{damage}/{name}\.csv is ")
        for command, name in (
            ("-m tape.evaluation.perplexity --out o.png --plot", "perplexity"),
            ("-m tape.evaluation.lm_eval --table", "zero_shot"),
        )
        for damage in ("empty", "columns", "binary")
    ),
    (
        "-m tape.evaluation.perplexity --out o.png --plot {made}/loop",
        r"loop does not exist: measure",
    ),
    *(
        (
            f"{command} {{made}}/grid_{damage} --out o",
            r"grid/grid\.csv, line 2: value='a' is" if damage == "text" else r"grid/grid\.csv",
        )
        for command in (COMPARE, HEATMAP)
        for damage in ("empty", "text", "binary")
    ),
    *(
        (f"{HEATMAP} {{made}}/summary_{damage} --out o", r"grid/summary\.json")
        for damage in ("nested", "number", "key")
    ),
    (f"{COMPARE} {{made}}/perplexity_untrue --out o", r"line 2: perplexity=1\.5 is not exp"),
    (f"{COMPARE} {{made}}/summary_hash --out o", r"evaluated with other weights"),
    (f"{HEATMAP} {{made}}/summary_other --out o", r"its accuracy is not that of summary\.json"),
    *(
        (f"{command} {{made}}/passkey_{damage} --out o", rf"passkey_{damage}/passkey/")
        for command in (COMPARE, HEATMAP)
        for damage in ("empty", "columns", "binary")
    ),
    (f"{COMPARE} {{made}}/nothing --out o", r"nothing/? has none of grid, passkey"),
    (f"{COMPARE} {{made}}/empty --name ../x", rf"--name: name='\.\./x': {NO_NAME}"),
    (f"{LM_EVAL} --out o.bin", r"--out o\.bin must end in \.csv"),
    (f"{PASSKEYS} --max_tokens {'9' * 14}", r"--max_tokens: 9+ is more than 1,000,"),
    (
        f"{PERPLEXITY} {{made}}/index",
        r"index\.json: names '\.\./w', which is not a file in the same folder",
    ),
    ("-m tape.results.report {made}/nothing", r"nothing is not a folder"),
    ("-m tape.results.report {made}/loop", r"loop is not a folder"),
    (
        "-m tape.results.report {made}/empty --out {made}/file",
        r"--out \S+file is neither empty nor a report",
    ),
]


@pytest.mark.parametrize(("words", "message"), EVALUATIONS, ids=names_of(EVALUATIONS))
def test_evaluations_and_results(words, message, given, made, tmp_path):
    before = files(given) | files(made)
    words = shlex.split(words.replace("{given}", str(given)).replace("{made}", str(made)))
    check_refusal(run_command(*words, folder=tmp_path), message, tmp_path)
    assert files(given) | files(made) == before and not (tmp_path / "o").exists()


@pytest.mark.parametrize("damage", DAMAGED["metrics.jsonl"])
def test_a_damaged_log_of_a_run_is_listed(made, tmp_path, damage):
    """The page shows the other runs."""
    outcome = run_command(
        "-m", "tape.results.report", str(made / f"metrics_{damage}"), folder=tmp_path
    )
    assert outcome.status == 0 and "Traceback" not in outcome.err, outcome.err
    assert f"metrics_{damage}" in (tmp_path / "report" / "index.html").read_text()
