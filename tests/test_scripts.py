"""Scripts, with tiny runs, in a folder where they may write output/; and sweeps that ship: their
commands, what is refused, and the scripts that call them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import product

import pytest
import yaml
from commands import ROOT, run_command
from script_folder import commands_of, lay_out, start
from scrolls_data import write_task
from test_scrolls import make_base

from tape.cli.commands import all_commands
from tape.cli.settings.composition import compose_run
from tape.cli.settings.groups import options


@pytest.fixture
def project(tmp_path):
    return lay_out(tmp_path)


def done(folder, script, *settings, **variables):
    (words,) = commands_of(folder, script, *settings, **variables)
    return run_command(*words, folder=folder, succeeds=True)


NAMED = {"data=local": "adape_local", "experiment=c4": "adape_c4", "name=mine": "mine"}
NAMED["data=text data.name=code"] = "adape_code"


@pytest.mark.parametrize(("settings", "name"), NAMED.items())
def test_a_run_is_named_after_its_text(project, settings, name):
    outcome = done(project, "train.sh", *settings.split(), "--cfg", "job", "--resolve")
    composed = yaml.safe_load(outcome.out)
    assert (composed["name"], composed["output_dir"]) == (name, f"output/{name}"), outcome


BASES = [
    ([], {}, [], "adape_c4"),  # train.py says that it is missing
    (["adape_c4", "adape_local"], {}, [], "adape_c4"),
    (["adape_local", "mine_local"], {"output_name": "mine"}, [], "mine_local"),
    (["adape_local"], {}, ["base_model=output/own"], "own"),
]


@pytest.mark.parametrize(("there", "variables", "settings", "base"), BASES)
def test_what_is_fine_tuned(project, there, variables, settings, base):
    for name in there:
        (project / "output" / name).mkdir(parents=True)
    python = {"VIRTUAL_ENV": str(project / "recorder")}
    printed, _ = start(project, "ft_scrolls.sh", *settings, **variables, **python).communicate()
    *told, command = printed.splitlines()
    assert re.findall(r"base_model=(\S+)", command)[-1] == f"output/{base}"
    assert len(told) == base.endswith("_local") and all(f"output/{base}, " in line for line in told)


def test_a_synthetic_run_has_its_own_folder(project):
    refused = start(project, "train_synthetic.sh", "output_dir=output/long", TYPE="rope")
    printed, _ = refused.communicate()
    assert refused.returncode == 1 and "error: output_dir=output/long: the result is in" in printed


STUB = """#!/bin/sh
case "$*" in
    *is_available*) exit 1 ;;
    *layer*) exit 3 ;;
    *biases*) exec sleep 60 ;;
    *"tape.cli speed --out"*) [ -f again ] || exit 75 ;;
esac
"""


def test_a_day_with_a_gpu_says_what_is_left(project):
    """What failed, what the time was over for, what waits; then only that runs again."""
    stub, parts = project / "venv" / "bin" / "python", "layer training text"
    stub.write_text(STUB)
    printed, _ = start(project, "gpu/all.sh", PARTS=parts, SLICE="3").communicate()
    states = dict(re.findall(r"^\| (\S+: \S+) \| ([^,|]+)\b.*\|$", printed, re.M))
    expected = dict.fromkeys(("layer: layer", "layer: layer_compiled"), "failed")
    expected |= dict.fromkeys(("text: rope", "text: tape"), "waits")
    assert states == expected | dict.fromkeys(("training: training", "training: biases"), "goes on")
    (project / "again").touch()
    stub.write_text(STUB.replace("sleep 60", "true").replace("exit 3", "true"))
    again = start(project, "gpu/all.sh", PARTS=parts, SLICE="60")
    printed, _ = again.communicate()
    assert again.returncode == 0 and printed.count("| finished |") == 6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adape", "longlora"])
def test_a_llama_is_extended_by_the_papers_command(project, text, method):
    """The recipe, but for its size; rotary methods give a plain Llama."""
    make_base(project / "base", "rope")
    small = ["base_model=base", "length=32", "data=text", f"data.files={text}", "eval_blocks=4"]
    small += ["trainer.max_steps=2", "trainer.gradient_accumulation_steps=2", "report.tokens=64"]
    trained = done(project, "train_llama.sh", *small, "trainer.warmup_steps=1", TYPE=method)
    assert "weights train:" in trained.out
    assert f"report are in output/llama_{method}" in trained.out
    form = "tape" if method == "adape" else "llama"
    command = f"-m tape.cli export output/llama_{method} --out plain --format {form}"
    run_command(*command.split(), folder=project, succeeds=True)
    config = json.loads((project / "plain" / "config.json").read_text())
    assert config["model_type"] == form


def test_scrolls_from_zips_to_scores(project):
    write_task(project / "data" / "scrolls", "quality")
    make_base(project / "output" / "adape_c4")
    tiny = ["budget=demo", "trainer.max_steps=2", "trainer.per_device_train_batch_size=2"]
    tiny.append("trainer.gradient_accumulation_steps=1")
    variables = {"TYPE": "adape", "DATASET_NAME": "quality", "SAVE_DIR": "scrolls/quality"}
    trained = done(project, "ft_scrolls.sh", *tiny, **variables)
    assert "report are in output/scrolls/quality/adape" in trained.out
    done(project, "gen_scrolls.sh", "processes=1", **variables)
    command = ["--split", "validation", "--dataset_name", "quality"]
    command += ["--predictions", "scrolls/quality/adape.json", "--metrics_output_dir", "scores"]
    scored = run_command("eval_scrolls.py", *command, folder=project, succeeds=True)
    assert json.loads(scored.out)["num_predicted"] == 3
    assert (project / "scores" / "quality_metrics.json").read_text() == scored.out


@pytest.mark.slow
def test_the_demo(project):
    """As many steps as tell the kinds of questions apart, from a model that was never trained."""
    make_base(project / "output" / "adape_local")
    demo = start(project, "scrolls_demo.sh", "trainer.max_steps=2", TYPE="adape")
    printed, _ = demo.communicate()
    assert demo.returncode == 0, printed
    for name in ("adape", "adape_untuned"):
        assert re.search(rf"\n\| {name} \| [\d.]+ \|\n", printed)
    page = project / "scrolls" / "sample" / "metrics" / "sample_answers.html"
    assert page.stat().st_size > 1000


PIP = """#!/bin/sh
if [ "$1" = -c ]; then exec {python} "$@"; fi
for last; do :; done
echo "$last"
"""


def test_extras_are_installed_when_asked_for_and_kept(project):
    for name in ("pyproject.toml", "constraints.txt", "script/setup.sh"):
        shutil.copy(ROOT / name, project / name)
    (project / "venv" / "bin" / "python").write_text(PIP.format(python=sys.executable))

    def installed(extras):
        printed, _ = start(project, "setup.sh", EXTRAS=extras).communicate()
        return printed.splitlines()[1:]

    assert [installed(""), installed("")] == [["."], []]
    assert [installed("flash,eval"), installed("eval")] == [[".[eval,flash]"], []]
    assert [installed("dev"), installed("")] == [[".[dev,eval,flash]"], []]
    refused = start(project, "setup.sh", EXTRAS="eval,test")
    said, _ = refused.communicate()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = ",".join(sorted(extras["optional-dependencies"]))
    assert said == f"error: EXTRAS=test is not an extra; known: {known}\n" and refused.returncode


@pytest.fixture
def texts(tmp_path):
    """A folder with texts that sweeps name: they must be there."""
    (tmp_path / "my texts").mkdir()
    for name in ("a.txt", "ü.txt", "my texts/b.txt"):
        (tmp_path / name).write_text("a sheep")
    return tmp_path


def commands(*words, folder=ROOT):
    outcome = run_command("sweep.py", "dry_run=true", *words, folder=folder, succeeds=True)
    return [shlex.split(line)[1:] for line in outcome.out.splitlines()]


def given(command, name):
    if f"--{name}" in command:
        values = command[command.index(f"--{name}") + 1 :]
        ends = (n for n, word in enumerate(values) if word.startswith("--"))
        return values[: next(ends, len(values))]
    return [word.partition("=")[2] for word in command if word.startswith(f"{name}=")]


def test_what_varies_may_differ_between_the_rows_of_the_comparison():
    words = ["sweep=encodings", "vary.position=[rope]", "vary.trainer.learning_rate=[0.1]"]
    assert "--across" not in commands(*words)[-1]
    more = ["vary.trainer.max_steps=[3,10]", "vary.model=[small]"]
    assert commands(*words, *more)[-1][-3:] == ["--across", "trainer.max_steps", "model.*"]


def test_only_predictions_about_what_varies_are_tested():
    words = [
        "sweep=suite",
        "vary.data=[copy]",
        "seeds=[0]",
        "vary.position=[rope,tape_subset,randpe]",
    ]
    assert given(commands(*words)[-1], "contrasts") == ["copy:tape sampler=subset:randpe"]
    words[-1:] = ["vary.position=[rope]", "contrasts='copy:fox:rope'"]
    assert given(commands(*words)[-1], "contrasts") == ["copy:fox:rope"]


def test_rates_that_differ_are_said_at_the_start(texts):
    words = ["sweep=encodings", "seeds=[0]", "vary.position=[tape,rope]", "name=own"]
    settings = ["--", "data=text", "data.files=a.txt"]
    found = run_command("sweep.py", "dry_run=true", *words, *settings, folder=texts, succeeds=True)
    assert found.lines[0] == "# learning rates: tape 0.016, rope 0.032"
    (one,) = re.findall("one rate for all: -- (.*)", found.err)
    (chosen,) = re.findall("choose them: tape sweep (.*)", found.err)
    more = ("sweep.py", "dry_run=true", *words, *settings, one)
    assert run_command(*more, folder=texts, succeeds=True).err == ""
    words = shlex.split(chosen)
    trained = [run for run in commands(*words, folder=texts) if run[0] == "train"]
    assert len(trained) == 2 * 5 and all({*settings[1:]} <= {*run} for run in trained)


def test_values_may_be_lists_and_entries_with_arguments(texts):
    words = ["sweep=encodings", "seeds=[0]", "vary.position=[{name:rope,theta:1e6},rope]"]
    words.append('vary.data.files=[[a.txt,"ü.txt"],[a.txt],[a.txt]]')
    found = commands(*words, "--", "data=text", folder=texts)
    runs = [command for command in found if command[0] == "train"]
    rows = product(("rope_theta_1000000.0", "rope"), ("a.txt+-.txt", "a.txt"))
    names = [f"encodings_{position}_files_{files}_0" for position, files in rows]
    assert [given(run, "name") for run in runs] == [[name] for name in names]
    settings = compose_run(runs[0][1:])[1]
    assert settings["position"]["name"] == "rope" and settings["position"]["theta"] == 1e6
    assert settings["data"]["files"] == ["a.txt", "ü.txt"]
    assert compose_run(runs[3][1:])[1]["data"]["files"] == ["a.txt"]
    assert given(found[-1], "across") == ["data.files", "tokens.*"]


SCRIPTS = [path.name for path in (ROOT / "script").glob("*.sh")]


def test_every_script_shows_its_head(project):
    for name in (*{*SCRIPTS} - {"help.sh", "environment.sh", "setup.sh"}, "gpu/all.sh"):
        shown, _ = (started := start(project, name, "--help")).communicate()
        lines = (ROOT / "script" / name).read_text().splitlines()
        assert shown.startswith(lines[1].removeprefix("# ")) and started.returncode == 0, name
        assert "set -euo" not in shown and "#" not in shown.split("\n")[0][:1]


def test_help_whose_reader_has_ended_says_nothing():
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT, "text": True}
    process = subprocess.Popen([sys.executable, "train.py", "--help"], **how)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 1


def test_values_and_seeds_are_combined(texts):
    words = ["sweep=encodings", "vary.position=[tape,rope]"]
    words += ["vary.trainer.learning_rate=[1e-3,2e-5]", "seeds=0 7", "name=rates"]
    words += ["settings=['length=64']", "--", "data=text", "data.files=my texts/"]
    words += ["evaluate.perplexity.convention=sliding"]
    found = commands(*words, folder=texts)
    runs = [command for command in found if command[0] == "train"]
    each = product(("tape", "rope"), ("0.001", "2e-05"))
    rows = [f"rates_{position}_learning_rate_{rate}" for position, rate in each]
    names = [f"{row}_{seed}" for seed in (0, 7) for row in rows]
    assert [given(run, "name") for run in runs] == [[name] for name in names]
    settings = f"experiment=text length=64 data=text name={names[5]} output_dir=output/{names[5]} "
    settings += "seed=7 position=tape trainer.learning_rate=2e-05"
    assert {*runs[5]} == {"train", *settings.split(), "data.files=my texts/", words[-1]}
    evaluated = [command for command in found if command[0] == "perplexity"]
    assert given(evaluated[5], "model") == [f"output/{names[5]}"]
    assert given(evaluated[5], "out") == [f"output/{names[5]}/compare/perplexity.csv"]
    assert given(evaluated[5], "lengths") == ["64", "128", "256"]
    assert given(evaluated[5], "convention") == ["sliding"]
    assert given(found[-1], "out") == ["output/compare_rates"]
    assert len([word for word in found[-1] if word.startswith("output/rates_")]) == 8


SMALL = {"ablation_architecture", "bigrams", "passkey", "suite_quick"}
LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(options("sweep") - SMALL)]


@pytest.mark.parametrize("name", [*sorted(SMALL), *LARGE])
def test_runs_of_a_sweep_compose(name):
    fewer = ["vary.data=parity"] if name == "suite" else []
    fewer += ["vary.trainer.learning_rate=[1e-3]"] if "rates" in name else []
    assert {command[0] for command in commands(f"sweep={name}", "seeds=[0]", *fewer)} <= {
        *all_commands()
    }


# Words of a sweep | what is wrong with them; those of the runs follow --.
REFUSED = r"""
dry_run=true | sweep=null: choose one of ablation_architecture,
sweep=encoding | sweep=encoding: there is no such entry; did you mean 'encodings'
sweep=passkey vary.position=[rope,nop] | position=nop: there is no such entry
sweep=passkey vary.position=[] | vary, seeds: name one value or more of each
sweep=passkey vary.seed=[1,2] | seed= is set by the sweep; give name=
sweep=passkey seeds=[0,x] | seeds='x' must be an integer in 0\.\.
sweep=passkey jobs=0 | jobs=0 must be an integer >= 1
sweep=passkey seconds=10m | seconds='10m' must be a number > 0, or null
sweep=passkey seconds=0 | seconds=0 must be a number > 0, or null
sweep=passkey submitit.timeout_min=9 | submitit\.\* are parameters of jobs: give cluster=slurm
sweep=passkey cluster=slrum | unknown cluster 'slrum'; did you mean 'slurm'
sweep=passkey evaluation=['out=x.csv'] | out=x\.csv is set by the sweep
sweep=passkey baseline=foo | unknown baseline 'foo'
sweep=passkey baseline=rope vary.trainer.max_steps=[5,6] | baseline=rope: several rows have it
sweep=encodings vary.tokenizer=[a/b,a-b] | two runs have one folder
sweep=encodings vary.length=[64,32] | evaluated differently .*_64_0 by .* --lengths 64 128 256 .*; a
sweep=passkey name=../outside | name='\.\./outside' must be one folder of
sweep=passkey length=64 | length: .*; settings of the runs follow --$
sweep=passkey jbos=3 | jbos: there is no such setting; did you mean 'jobs'
sweep=passkey vary.position=[adape,tape] | adape and tape are rows with the same se
sweep=passkey -- seed=1 | seed=1 is set by the sweep; give name=
sweep=passkey -- +position.name=rope | \+position.name=rope is set by the sweep
sweep=passkey -- position@position=rope | position@position=rope is set by the
sweep=passkey vary.data=[local] -- data._target_=x | data\._target_=x is set
sweep=extension vary.peft=[lora] -- position=rope | position=rope is set
sweep=extension vary.peft=[lora,longlora] -- peft.groups=4 | lora and longlora
sweep=passkey evaluate.perplexity.max_tokens=9 | max_tokens: .*; settings of the runs follow --$
sweep=passkey -- evaluate.perplexity.max_tokens=9 | max_tokens: .*; a sweep's evaluation='--max_
sweep=passkey -- lenght=5 | lenght: there is no such setting; did you mean
sweep=encodings -- data=text data.files=none.txt | data\.files: nothing matches 'none\.txt'
sweep=passkey -- data.files=ü.txt | data\.files=ü\.txt: .* quotes .*: 'data\.files="ü\.txt"'$
sweep=passkey -- data.files=[ü.txt,b.txt] | : 'data\.files=\["ü\.txt",b\.txt\]'$
sweep=encodings vary.position=[{theta:9}] | give the entry of the group as its name
sweep=passkey vary.trainer.max_steps=[5,x] | max_steps='x' must be an integer
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_sweeps_that_cannot_be_are_refused_before_the_first_run(case, tmp_path):
    words, message = case.split(" | ")
    outcome = run_command("sweep.py", *words.split(), folder=tmp_path)
    assert outcome.status == 1 and len(outcome.lines) == 1, outcome.err
    assert outcome.err.startswith("error: ") and re.search(message, outcome.err), outcome.err
    assert not list(tmp_path.iterdir())


def test_a_sweep_of_other_settings_is_refused_before_anything_trains(quick_run, tmp_path):
    """The run of seed 0 is there, that of seed 1 is new."""
    shutil.copytree(quick_run, tmp_path / "output" / "e_tape_0")
    data = json.loads((quick_run / "run.json").read_text())["data"]
    words = ["sweep=encodings", "name=e", "recipe=quick", "vary.position=[tape]", "seeds=[0,1]"]
    words += ["--", "data=text", f"data.files={data['files']}", "vocab_size=300"]
    words += ["trainer.max_steps=8", "report.tokens=9", "trainer.save_steps=2"]
    same = run_command("sweep.py", "dry_run=true", *words, folder=tmp_path, succeeds=True)
    assert same.err == ""
    changed = ("trainer.max_steps=12", "model.num_hidden_layers=3")
    outcome = run_command("sweep.py", *words, *changed, folder=tmp_path)
    layers = json.loads((quick_run / "run.json").read_text())["model"]["num_hidden_layers"]
    told = f"model.num_hidden_layers: {layers} -> 3; trainer.max_steps: 8 -> 12"
    assert outcome.err == (
        f"error: output/e_tape_0 began with other settings (before -> now): {told}; "
        "choose another name=... (NAME of the scripts), or put the settings back\n"
    )
    assert [path.name for path in (tmp_path / "output").iterdir()] == ["e_tape_0"]
    assert not (tmp_path / "output" / "e_tape_0" / "compare").exists()


def test_settings_that_leave_the_rows_apart_are_accepted():
    given_to_all = ["position.sampler=shift", "experiment=compare", "position.theta=500"]
    words = ["sweep=encodings", "vary.position=[rope,xpos]", "vary.trainer.max_steps=[9]"]
    found = commands(*words, "--", *given_to_all, "trainer={max_steps:1}")
    assert found[0][2:5] == given_to_all
    assert found[0][-1] == "trainer.max_steps=9"  # what varies comes last


def test_the_models_of_each_seed_start_from_its_base():
    found = commands("sweep=bases", "vary.peft=[lora,norms]", "seeds=[4,5]")
    trained = [words for words in found if words[0] == "train"]
    bases = [f"output/passkey_rope_{seed}" for seed in (4, 5)]
    started = [f"base_model={base}" for base in bases for _ in range(2)]
    assert [words[1] for words in trained[:2]] == ["seed=4", "seed=5"]
    assert [words[-1] for words in trained[2:]] == started
    evaluated = [given(words, "model") for words in found if words[0] == "evaluate"]
    folders = [f"output/bases/{method}_{seed}" for seed in (4, 5) for method in ("lora", "norms")]
    assert evaluated == [[folder] for folder in (*bases, *folders)]


def test_variables_of_the_comparison_on_text(project):
    runs = [run for run in commands_of(project, "compare.sh", "length=512") if run[0] == "train"]
    seven = ["adape", "rope", "fire", "randrope", "nope", "alibi", "xpos"]
    assert [given(run, "position")[0] for run in runs][:7] == seven
    assert {given(run, "seed")[0] for run in runs} == {*"01234"}
    assert all("length=512" in run for run in runs)
    variables = {"TYPES": " rope\ntape ", "SEEDS": "3", "NAME": "e", "BASELINE": "tape width=64"}
    flags = {"EVALUATION": "--data text --files github/", "EXPERIMENT": "compare_quick"}
    found = commands_of(project, "compare.sh", **variables, **flags)
    names = [["experiment=compare_quick", f"name=e_{row}_3"] for row in ("rope", "tape")]
    assert [run[1:3] for run in found[:3:2]] == names
    assert found[1][-4:] == ["--data", "text", "--files", "github/"]
    assert given(found[1], "convention") == ["spread"]
    assert given(found[1], "scored_tokens") == ["4096"]
    assert given(found[1], "lengths") == ["128", "256", "512"]
    for convention in ("sliding", "paper"):  # what another convention needs is not inherited
        flags["EVALUATION"] = f"--convention {convention} --lengths 64 96"
        again = commands_of(project, "compare.sh", **variables, **flags)[1]
        assert again[-5:] == flags["EVALUATION"].split()
        assert not given(again, "stride") and not given(again, "scored_tokens")
        assert again.count("--lengths") == again.count("--convention") == 1
    assert given(found[-1], "baseline") == ["tape width=64"]
    assert given(found[-1], "out") == ["output/compare_e"]


def test_committed_rows_are_made_by_their_convention(project):
    """The comparisons of docs/results, which the leaderboard adds to."""
    for sweep, stride in (("text", "2048"), ("contextual_text", "2048"), ("bigrams", "513")):
        evaluated = commands(f"sweep={sweep}", "seeds=[0]")[1]
        assert given(evaluated, "convention") == ["paper"]
        assert given(evaluated, "stride") == [stride]


def test_variables_of_the_suite(project):
    variables = {"TASKS": "copy s5", "TYPES": "rope", "EVALUATION": "--samples 5"}
    found = commands_of(project, "suite.sh", **variables)
    assert len(found) == 5 * 2 * 2 + 1
    assert [*given(found[2], "data"), *given(found[2], "position")] == ["s5", "rope"]
    evaluated = ["--model", "output/suite_copy_rope_0", "--task", "synthetic"]
    assert found[1] == ["evaluate", *evaluated, "--samples", "5"]
    quick = commands_of(project, "suite.sh", "quick", "trainer.max_steps=999")
    assert len(quick) == 3 * 3 * 2 + 1 and "trainer.max_steps=999" in quick[0]


def test_all_columns_of_the_leaderboard(project):
    for sweep in ("suite", "passkey"):
        rows = project / "output" / f"compare_leaderboard_{sweep}" / "results.csv"
        rows.parent.mkdir(parents=True)
        rows.touch()
        os.utime(rows, (2**33, 2**33))  # made after the script began
    found = commands_of(project, "leaderboard.sh", TYPES="rope", SEEDS="7", SWEEPS="suite passkey")
    trained = [run for run in found if run[0] == "train"]
    assert len(trained) == 8 + 1 and all(given(run, "seed") == ["7"] for run in trained)
    folders = [f"output/compare_leaderboard_{sweep}" for sweep in ("suite", "passkey")]
    assert found[-1] == ["-m", "tape.cli", "leaderboard", *folders]
    only = {"TYPES": "rope", "SEEDS": "7", "SWEEPS": "suite passkey", "TASKS": "flip_flop"}
    few = commands_of(project, "leaderboard.sh", **only)
    trained = [words for words in few if words[0] == "train"]
    assert ["data=flip_flop" in words for words in trained] == [True, False]
    command = ("leaderboard.sh", "position.theta=5000")
    *trained, _ = commands_of(project, *command, TYPES="rope", SEEDS="7", SWEEPS="passkey")
    assert all("position.theta=5000" in run for run in trained if run[0] == "train")
    os.utime(rows, (0, 0))  # by an earlier sweep
    assert commands_of(project, "leaderboard.sh", TYPES="rope", SWEEPS="passkey")[-1][0] != "-m"
