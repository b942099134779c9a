"""Scripts, with tiny runs, in a folder where they may write output/."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest
import yaml
from commands import ROOT, run_command
from script_folder import commands_of, lay_out, start
from scrolls_data import write_task
from test_scrolls_generation import make_base


@pytest.fixture
def run_script(tmp_path):
    """Starts a script, as a process."""
    return partial(start, lay_out(tmp_path))


@pytest.fixture
def done(tmp_path):
    """Runs the command of a script in this process."""
    folder = lay_out(tmp_path)

    def done(script, *settings, **variables):
        (words,) = commands_of(folder, script, *settings, **variables)
        return run_command(*words, folder=folder)

    return done


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ([], "adape_local"),
        (["experiment=c4"], "adape_c4"),
        (["data=text", "data.name=code"], "adape_code"),
        (["name=mine"], "mine"),
    ],
)
def test_a_run_is_named_after_its_text(done, settings, name):
    outcome = done("train.sh", *settings, "--cfg", "job", "--resolve")
    composed = yaml.safe_load(outcome.out)
    assert composed["name"] == name, outcome
    named = {value for value in composed.values() if str(value).endswith("_c4")}
    assert named == ({name, f"output/{name}"} if name == "adape_c4" else set())


@pytest.mark.parametrize(
    ("there", "variables", "settings", "base"),
    [
        ([], {}, [], "adape_c4"),  # train.py says that it is missing
        (["adape_c4", "adape_local"], {}, [], "adape_c4"),
        (["adape_local", "mine_local"], {"output_name": "mine"}, [], "mine_local"),
        (["adape_local"], {}, ["base_model=output/own"], "own"),
    ],
)
def test_what_is_fine_tuned(tmp_path, there, variables, settings, base):
    folder = lay_out(tmp_path)
    for name in there:
        (folder / "output" / name).mkdir(parents=True)
    python = {"VIRTUAL_ENV": str(folder / "recorder")}
    printed, _ = start(folder, "ft_scrolls.sh", *settings, **variables, **python).communicate()
    *told, command = printed.splitlines()
    assert re.findall(r"base_model=(\S+)", command)[-1] == f"output/{base}"
    assert len(told) == base.endswith("_local") and all(f"output/{base}, " in line for line in told)


def test_a_synthetic_run_has_its_own_folder(run_script):
    refused = run_script("train_synthetic.sh", "output_dir=output/long", TYPE="rope")
    printed, _ = refused.communicate()
    assert refused.returncode == 1 and "error: output_dir=output/long: the result is in" in printed


STUB = """#!/bin/sh
case "$*" in
    *is_available*) exit 1 ;;
    *layer*) exit 3 ;;
    *biases*) exec sleep 60 ;;
    *"speed.py --out"*) [ -f again ] || exit 75 ;;
esac
"""


def test_a_day_with_a_gpu_says_what_is_left(run_script, tmp_path):
    """What failed, what the time was over for, what waits; then only that runs again."""
    stub = tmp_path / "venv" / "bin" / "python"
    stub.write_text(STUB)
    printed, _ = run_script("gpu/all.sh", PARTS="layer training text", SLICE="3").communicate()
    states = dict(re.findall(r"^\| (\S+: \S+) \| ([^,|]+)\b.*\|$", printed, re.M))
    assert states == {
        "layer: layer": "failed",
        "training: training": "goes on",
        "training: biases": "goes on",
        "text: rope": "waits",
        "text: tape": "waits",
    }
    (tmp_path / "again").touch()
    stub.write_text(STUB.replace("sleep 60", "true").replace("exit 3", "true"))
    again = run_script("gpu/all.sh", PARTS="layer training text", SLICE="60")
    printed, _ = again.communicate()
    assert again.returncode == 0 and printed.count("| finished |") == 5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adape", "longlora"])
def test_a_llama_is_extended_by_the_papers_command(done, text, tmp_path, method):
    """The recipe, but for its size; rotary methods give a plain Llama."""
    make_base(tmp_path / "base", "rope")
    small = ["base_model=base", "length=32", "data=text", f"data.files={text}", "eval_blocks=4"]
    small += ["trainer.max_steps=2", "trainer.gradient_accumulation_steps=2", "report.tokens=64"]
    small += ["trainer.warmup_steps=1"]
    trained = done("train_llama.sh", *small, TYPE=method)
    assert trained.status == 0, trained.err
    assert "weights train:" in trained.out
    assert f"report are in output/llama_{method}" in trained.out
    form = "tape" if method == "adape" else "llama"
    command = ["-m", "tape.export", f"output/llama_{method}", "--out", "plain", "--format", form]
    exported = run_command(*command, folder=tmp_path)
    assert exported.status == 0, exported.err
    family = json.loads((tmp_path / "plain" / "config.json").read_text())["model_type"]
    assert family == form


@pytest.mark.parametrize("task", ["quality", pytest.param("gov_report", marks=pytest.mark.slow)])
def test_scrolls_from_zips_to_scores(done, tmp_path, task):
    (zips := tmp_path / "data" / "scrolls").mkdir(parents=True)
    write_task(zips, task)
    make_base(tmp_path / "output" / "adape_c4")

    tiny = ["budget=demo", "trainer.max_steps=2", "trainer.per_device_train_batch_size=2"]
    tiny += ["trainer.gradient_accumulation_steps=1"]
    variables = {"TYPE": "adape", "DATASET_NAME": task, "SAVE_DIR": f"scrolls/{task}"}
    trained = done("ft_scrolls.sh", *tiny, **variables)
    assert trained.status == 0, trained.err
    assert f"report are in output/scrolls/{task}/adape" in trained.out
    answered = done("gen_scrolls.sh", "processes=1", **variables)
    assert answered.status == 0, answered.err
    command = ["--split", "validation", "--dataset_name", task]
    command += ["--predictions", f"scrolls/{task}/adape.json", "--metrics_output_dir", "scores"]
    scored = run_command("eval_scrolls.py", *command, folder=tmp_path)
    assert scored.status == 0, scored.err
    assert json.loads(scored.out)["num_predicted"] == 3
    assert (tmp_path / "scores" / f"{task}_metrics.json").read_text() == scored.out


@pytest.mark.slow
def test_the_demo(run_script, tmp_path):
    """As many steps as tell the kinds of questions apart, from a model that was never trained."""
    make_base(tmp_path / "output" / "adape_local")
    demo = run_script("scrolls_demo.sh", "trainer.max_steps=2", TYPE="adape")
    printed, _ = demo.communicate()
    assert demo.returncode == 0, printed
    for name in ("adape", "adape_untuned"):
        assert re.search(rf"\nscrolls/sample/{name}\.json: \[[\d.]+\]\n", printed)
    page = tmp_path / "scrolls" / "sample" / "metrics" / "sample_answers.html"
    assert page.stat().st_size > 1000


PIP = """#!/bin/sh
if [ "$1" = -c ]; then exec {python} "$@"; fi
for last; do :; done
echo "$last"
"""


def test_extras_are_installed_when_asked_for_and_kept(tmp_path):
    for name in ("pyproject.toml", "constraints.txt", "script/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(python=sys.executable))
    python.chmod(0o755)

    def installed(extras):
        environment = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "environment"), "EXTRAS": extras}
        command = ["bash", "script/setup.sh"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stderr.splitlines()[1:]

    assert [installed(""), installed("")] == [["."], []]
    assert [installed("flash,eval"), installed("eval")] == [[".[eval,flash]"], []]
    assert [installed("dev"), installed("")] == [[".[dev,eval,flash]"], []]
