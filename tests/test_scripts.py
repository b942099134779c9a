"""Scripts that start many runs, with tiny ones, in a folder where they may write output/."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import test_passkey
import torch
import yaml
from scrolls_data import write_task
from test_addition import SETTINGS
from test_grid import ROOT
from test_scrolls import byte_tokenizer
from test_scrolls_generation import make_speaker

from tape.files import write_text
from tape.training.runs import checkpoints, step_of


@pytest.fixture
def run_script(tmp_path):
    commands = ("train.py", "eval_retrieval.py", "eval_scrolls.py")
    for name in ("arithmetic", "benchmarks", "config", "extension", "retrieval", "tape", *commands):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "scrolls", tmp_path / "scrolls", ignore=lambda *_: ["__pycache__"])
    shutil.copytree(ROOT / "script", tmp_path / "script")
    (tmp_path / "script" / "setup.sh").write_text("# the environment is there\n")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    python = tmp_path / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)

    def run_script(script, *settings, **variables):
        return subprocess.Popen(
            ["bash", f"script/{script}", *settings],
            cwd=tmp_path,
            env={**os.environ, "VIRTUAL_ENV": str(tmp_path / "venv"), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run_script


@pytest.mark.parametrize(
    ("settings", "name", "alias"),
    [
        ([], "adape_local", "adape_c4"),
        (["experiment=c4"], "adape_c4", "adape_c4"),
        (["data=text", "data.name=code"], "adape_code", "adape_c4"),
        (["experiment=addition"], "adape_addition", "adape_c4"),
        (["name=mine"], "mine", None),
    ],
)
def test_a_run_is_named_after_its_text(run_script, settings, name, alias):
    printed, _ = run_script("train.sh", *settings, "--cfg", "job", "--resolve").communicate()
    composed = yaml.safe_load(printed)
    assert (composed["name"], composed["alias"]) == (name, alias), printed


def of_a_script(settings):
    """Those of a tiny run, but for the experiment, which is the script's to say."""
    own = [setting for setting in settings if not setting.startswith("experiment=")]
    return [*own, "trainer.eval_steps=1000"]


@pytest.fixture
def start(run_script):
    """Start a script with tiny runs of addition."""
    tiny = of_a_script(SETTINGS)
    return lambda script, *settings, **variables: run_script(script, *tiny, *settings, **variables)


def test_a_comparison_continues_reuses_and_compares(start, tmp_path):
    learning, steps = tmp_path / "output" / "add_rope_1" / "metrics.jsonl", "trainer.max_steps=200"
    first = start("compare_add.sh", steps, TYPES="rope", SEEDS="0 1")
    while not learning.exists() and first.poll() is None:
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 75
    assert "stopped after step" in (tmp_path / "output/compare_add/add_rope_1.log").read_text()

    second = start("compare_add.sh", steps, TYPES="rope", SEEDS="0 1")
    printed, _ = second.communicate()
    assert second.returncode == 0, printed
    assert re.search(r"add_rope_1: inside: [\d.]+ \(.*\) outside: ", printed)
    row = (tmp_path / "output/compare_add/table.md").read_text().splitlines()[2]
    assert row.startswith("| rope | 2 | ")

    log = tmp_path / "output/compare_add/add_rope_0.log"
    before = len(log.read_text())
    third = start("compare_add.sh", steps, "position.theta=x", TYPES="rope nope", SEEDS="0")
    printed, _ = third.communicate()
    assert third.returncode == 1
    for name in ("add_rope_0", "add_nope_0"):
        assert f"error: {name} did not finish, see output/compare_add/{name}.log" in printed
    assert "error: model: rotary positions: rope_theta='x' must be" in log.read_text()[before:]

    before = len(log.read_text())
    fourth = start(
        "compare_add.sh", steps, TYPES="rope", SEEDS="0", EVALUATION="samples=3", GRID="b"
    )
    printed, _ = fourth.communicate()
    assert fourth.returncode == 0, printed
    assert "\nstep " not in log.read_text()[before:]  # it had finished
    assert "| rope | 1 | " in printed and (tmp_path / "output/add_rope_0/b/grid.csv").exists()


def test_retrieval_is_compared_in_the_same_way(run_script, tmp_path):
    settings = {"TYPES": "rope alibi", "SEEDS": "0", "EVALUATION": "--num_tests 1 --depths 2"}
    started = run_script("compare_passkey.sh", *of_a_script(test_passkey.SETTINGS), **settings)
    printed, _ = started.communicate()
    assert started.returncode == 0, printed
    assert re.search(r"passkey_rope_0: inside: [\d.]+ \(.*\) outside: ", printed)
    table = (tmp_path / "output/compare_passkey/table.md").read_text()
    assert table.splitlines()[0] == (
        "| encoding | seeds | up to 32 tokens | 64 (2x) | 128 (4x) | 256 (8x) |"
    )
    assert "| rope | 1 | " in table and "| alibi | 1 | " in table and table in printed


@pytest.mark.parametrize(
    "script", ["compare_add.sh", "compare_passkey.sh", "compare.sh", "gpu/addition.sh"]
)
@pytest.mark.parametrize(
    ("settings", "variables", "message"),
    [
        ([], {"TYPES": "rope nop"}, "TYPES: no 'nop' in config/position"),
        ([], {"TYPES": "rope rope"}, "duplicate value"),
        ([], {"SEEDS": "0\n1\n0"}, "SEEDS='0 1 0': duplicate value"),
        (["seed=1"], {}, "seed=1 is set by this script"),
        (["output_dir=x"], {}, "output_dir=x is set by this script"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_the_first(
    start, tmp_path, script, settings, variables, message
):
    refused = start(script, *settings, **variables)
    printed, _ = refused.communicate()
    assert refused.returncode == 1 and message in printed
    assert not (tmp_path / "output").exists()


def test_the_papers_recipe_goes_on_slice_by_slice(start, tmp_path):
    settings = ["+trainer.use_cpu=true", "model.num_attention_heads=4", "model.num_recurrences=2"]
    run, steps = tmp_path / "output" / "addition_20_rope_0", "trainer.max_steps="
    first = start("gpu/addition.sh", *settings, f"{steps}100000", TYPES="rope", SLICE="25")
    printed, _ = first.communicate()
    assert first.returncode == 75, printed
    assert re.search(r"\| addition_20_rope_0 \| \d+ of 100,000 \| .* \(bfloat16\) \|", printed)
    assert not (run / "model.safetensors").exists()

    more = step_of(checkpoints(run)[-1]) + 2
    second = start("gpu/addition.sh", *settings, f"{steps}{more}", TYPES="rope")
    printed, _ = second.communicate()
    assert second.returncode == 0, printed
    assert (run / "grid" / "grid.csv").exists()
    assert (tmp_path / "output" / "addition_20_heatmaps.png").exists()


def test_a_slice_that_is_over_too_soon_says_so(start):
    over = start("gpu/addition.sh", TYPES="rope tape", SLICE="1")
    printed, _ = over.communicate()
    assert over.returncode == 75
    assert "no run has begun" in printed


def test_the_shape_of_a_llama_is_measured(run_script, tmp_path):
    measured = run_script("gpu/llama_step.sh", SHAPE="small", LENGTH="64", NEW="3")
    printed, _ = measured.communicate()
    assert measured.returncode == 0, printed
    tables = (tmp_path / "output" / "llama_step" / "llama_step.md").read_text()
    for name in ("lora", "longlora", "adape", "rope", "tape"):
        row = re.search(rf"^\| {name} \| (.*) \|$", tables, re.MULTILINE)[1].replace(",", "")
        speeds = [float(cell) for cell in row.split(" | ") if " to " not in cell]
        assert min(speeds) > 0 and speeds[-1] >= speeds[-2]


def test_efficiency_is_measured_slice_by_slice(run_script, tmp_path):
    parts = ("layer", "training", "biases", "decoding")
    first = run_script("gpu/efficiency.sh", SLICE="1")
    printed, _ = first.communicate()
    assert first.returncode == 75, printed
    layer = (tmp_path / "output/efficiency/layer/speed.csv").read_text().splitlines()
    second = run_script("gpu/efficiency.sh")
    printed, _ = second.communicate()
    assert second.returncode == 0, printed
    for part in parts:
        folder = tmp_path / "output" / "efficiency" / part
        rows = (folder / "speed.csv").read_text().splitlines()
        assert len(rows) > 3 and (folder / "speed.md").read_text() in printed
        assert part != "layer" or rows[: len(layer)] == layer


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_seven_billion_weights_want_a_gpu(run_script, tmp_path):
    refused = run_script("gpu/llama_step.sh", "here")
    printed, _ = refused.communicate()
    assert refused.returncode == 2 and "take --shape small" in printed
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("method", ["adape", pytest.param("longlora", marks=pytest.mark.slow)])
def test_a_llama_is_extended_by_the_papers_command(run_script, text, tmp_path, method):
    """The recipe, but for its size; rotary methods give a plain Llama."""
    tokenizer = byte_tokenizer()
    for part in (make_speaker("rope", tokenizer), tokenizer):
        part.save_pretrained(tmp_path / "base")
    small = ["base_model=base", "length=32", "data=text", f"data.files={text}", "eval_blocks=4"]
    small += ["trainer.max_steps=2", "trainer.gradient_accumulation_steps=2", "report.tokens=64"]
    small += ["trainer.warmup_steps=1"]
    started = run_script("train_llama.sh", *small, "+trainer.use_cpu=true", TYPE=method)
    printed, _ = started.communicate()
    assert started.returncode == 0, printed
    assert "weights train:" in printed and f"report are in output/llama_{method}" in printed
    form = "tape" if method == "adape" else "llama"
    command = ["-m", "tape.export", f"output/llama_{method}", "--out", "plain", "--format", form]
    exported = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert exported.returncode == 0, exported.stderr
    family = json.loads((tmp_path / "plain" / "config.json").read_text())["model_type"]
    assert family == form


@pytest.mark.parametrize(
    "task",
    ["quality"]
    + [
        pytest.param(task, marks=pytest.mark.slow)
        for task in ("qasper", "contract_nli", "narrative_qa", "qmsum", "gov_report")
    ],
)
def test_scrolls_from_zips_to_scores(run_script, tmp_path, task):
    write_task(tmp_path / "zips", task)
    tokenizer = byte_tokenizer()
    for model in (make_speaker("tape", tokenizer), tokenizer):
        model.save_pretrained(tmp_path / "output" / "adape_c4")

    def done(script, *settings, **variables):
        started = run_script(script, *settings, TYPE="adape", **variables)
        printed, _ = started.communicate()
        assert started.returncode == 0, printed
        return printed

    tiny = ["budget=demo", "trainer.max_steps=2", "trainer.per_device_train_batch_size=2"]
    tiny += ["trainer.gradient_accumulation_steps=1", "data.data_dir=zips"]
    printed = done("ft_scrolls.sh", *tiny, DATASET_NAME=task)
    assert f"report are in output/scrolls/{task}/adape" in printed
    done("gen_scrolls.sh", "data_dir=zips", SAVE_DIR=f"scrolls/{task}")
    command = ["--split", "validation", "--dataset_name", task, "--data_dir", "zips"]
    command += ["--predictions", f"scrolls/{task}/adape.json", "--metrics_output_dir", "scores"]
    scored = subprocess.run(
        [sys.executable, "eval_scrolls.py", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["num_predicted"] == 3
    assert (tmp_path / "scores" / f"{task}_metrics.json").read_text() == scored.stdout


@pytest.mark.slow
def test_the_demo(run_script, tmp_path):
    """As many steps as tell the kinds of questions apart, from a model that was never trained."""
    tokenizer = byte_tokenizer()
    for model in (make_speaker("tape", tokenizer), tokenizer):
        model.save_pretrained(tmp_path / "output" / "adape_c4")
    demo = run_script("scrolls_demo.sh", "trainer.max_steps=2", TYPE="adape")
    printed, _ = demo.communicate()
    assert demo.returncode == 0, printed
    for name in ("adape", "adape_untuned", "majority"):
        assert re.search(rf"\n{name} +F1 +[\d.]+\n", printed)
    assert (tmp_path / "scrolls" / "sample" / "answers.html").stat().st_size > 1000


@pytest.mark.slow
def test_the_demo_of_context_extension(run_script, tmp_path):
    """Tiny bases of the right lengths; stopped in the middle, it goes on and keeps what is done."""
    tiny = ["model.hidden_size=32", "model.intermediate_size=48", "trainer.max_steps=2"]
    tiny += ["model.num_hidden_layers=2", "eval_blocks=2", "report.tokens=256"]
    for base in (
        ["position=rope", "name=rope_c4", "vocab_size=300"],
        ["experiment=passkey", "position=rope", "task.samples=1"],
    ):
        command = [sys.executable, "train.py", *base, *tiny]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr

    def demo(*settings, types):
        small = ["trainer.per_device_train_batch_size=1", "eval_blocks=2", "report.tokens=512"]
        return run_script("extend_demo.sh", "trainer.max_steps=3", *small, *settings, TYPES=types)

    every = "longlora adape"
    first, run = demo(types=every), tmp_path / "output" / "extend" / "text_longlora_0"
    while not (run / "extend").exists():
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 75
    second = demo(types=every)
    printed, _ = second.communicate()
    assert second.returncode == 0, printed
    assert re.search(r"extend/text_adape_0: perplexity [\d.]+ at 256, perplexity ", printed)
    assert re.search(r"extend/passkey_longlora_0: 128 tokens: [\d.]+ +256 tokens: ", printed)
    rows = (tmp_path / "output" / "extend" / "table.md").read_text().splitlines()
    assert rows[0] == (
        "| method | seeds | perplexity 256 | perplexity 512 | perplexity 1,024 | "
        "pass keys, % 128 | pass keys, % 256 | pass keys, % 384 | pass keys, % 512 |"
    )
    assert {row.split(" | ")[0] for row in rows[2:]} == {f"| {m}" for m in every.split()} | {
        "| not extended"
    }
    assert "-" not in "".join(rows[2:])
    assert (tmp_path / "output" / "extend" / "extension.png").stat().st_size > 10_000

    third = demo("peft=lora", types="ft")
    printed, _ = third.communicate()
    assert third.returncode == 1 and "error: peft=lora is set by this script" in printed
    shutil.copytree(
        tmp_path / "output" / "passkey_rope_0", tmp_path / "output" / "rope_c4", dirs_exist_ok=True
    )
    fourth = demo(types="ft")
    printed, _ = fourth.communicate()
    assert fourth.returncode == 1
    assert (
        "error: output/rope_c4 was trained on 134 tokens, and this demo extends models of"
        in printed
    )


def test_encodings_are_compared_and_a_run_that_fails_is_named(run_script, tmp_path):
    tiny = ["vocab_size=300", "trainer.max_steps=4", "trainer.logging_steps=2", "length=32"]
    variables = {
        **{"TYPES": "rope alibi", "SEEDS": "0 1", "EXPERIMENT": "quick", "NAME": "e"},
        "EVALUATION": "--max_tokens 3000",
    }
    started = run_script("compare.sh", *of_a_script(tiny), **variables)
    printed, _ = started.communicate()
    assert started.returncode == 0, printed
    assert re.search(r"e_rope_0: perplexity [\d.]+ at 32, perplexity [\d.]+ at 64, ", printed)
    table = (tmp_path / "output/compare_e/table.md").read_text()
    assert "| rope | 2 | " in table and "| alibi | 2 | " in table and table in printed
    log = tmp_path / "output/compare_e/e_rope_0.log"
    before = len(log.read_text())
    found = re.findall(r"^e_rope_0: p.*|^\| rope .*", printed, re.MULTILINE)

    shutil.rmtree(tmp_path / "output/e_rope_1/compare")
    measured = run_script("compare.sh", *of_a_script(tiny), **variables)
    printed, _ = measured.communicate()
    assert measured.returncode == 0, printed
    assert re.findall(r"^e_rope_0: p.*|^\| rope .*", printed, re.MULTILINE) == found
    assert re.findall(r"^(\w+): run . of 4 begins", printed, re.MULTILINE) == ["e_rope_1"]
    assert len(log.read_text()) == before

    write_text(tmp_path / "output/e_nope_0/notes.txt", "of somebody else")
    again = run_script("compare.sh", *of_a_script(tiny), **variables | {"TYPES": "rope nope"})
    printed, _ = again.communicate()
    assert again.returncode == 1
    assert "error: e_nope_0 did not finish" in printed and "| rope | 2 | " in printed
    assert "* output/e_nope_0: output/e_nope_0/compare/perplexity.csv is not there" in printed
    assert "| nope | 1 | " in printed and len(log.read_text()) == before  # it had finished

    other = {"TYPES": "rope", "SEEDS": "0", "EVALUATION": "--max_tokens 3000 --dtype float32"}
    asked = run_script("compare.sh", *of_a_script(tiny), **variables | other)
    printed, _ = asked.communicate()
    assert asked.returncode == 0 and "e_rope_0: run 1 of 1 begins" in printed
    assert "\nstep " not in log.read_text()[before:]


def test_ablations_have_a_table_each(run_script, tmp_path):
    sizes = ["hidden_size=32", "intermediate_size=64", "num_hidden_layers=2"]
    tiny = ["vocab_size=300", "length=32", "trainer.max_steps=2", "trainer.logging_steps=1"]
    settings = of_a_script(
        [*tiny, "eval_blocks=8", "report.tokens=512", *(f"model.{size}" for size in sizes)]
    )
    variables = {"TABLES": "equivariance", "SEEDS": "0", "EVALUATION": "--max_tokens 2000"}
    started = run_script("ablations.sh", *settings, **variables)
    printed, _ = started.communicate()
    assert started.returncode == 0, printed
    table = (tmp_path / "output/compare_ablation/equivariance/table.md").read_text()
    assert table in printed
    assert table.startswith(
        "| encoding | seeds | perplexity 4 | perplexity 8 | perplexity 16 | perplexity 32 |"
        " loss - tape equivariant=True tensorial=True, 4 |"
    )
    rows = re.findall(r"^\| (tape .*?) \|", table, re.MULTILINE)
    assert {tuple(re.findall(r"=(\w+)", row)) for row in rows} == set(
        itertools.product(["True", "False"], repeat=2)
    )
    unknown = run_script("ablations.sh", TABLES="depth")
    printed, _ = unknown.communicate()
    assert unknown.returncode == 1 and "error: TABLES: no 'depth'; known: archi" in printed
