"""Sweeps that ship: their commands, what is refused, and the scripts that call them."""

import re
import shlex
import subprocess
import sys
from functools import partial

import pytest
from commands import ROOT, run_command
from script_folder import commands_of, lay_out

from tape.settings.groups import options

SEVEN = "adape rope fire randrope nope alibi xpos"


def commands(*words):
    """The commands of a sweep, without the interpreter."""
    outcome = run_command("sweep.py", "dry_run=true", *words, folder=ROOT)
    assert outcome.status == 0, outcome.err
    return [shlex.split(line)[1:] for line in outcome.out.splitlines()]


def given(command, name):
    """The values of a setting or a flag in a command."""
    if f"--{name}" in command:
        values = command[command.index(f"--{name}") + 1 :]
        ends = (n for n, word in enumerate(values) if word.startswith("--"))
        return values[: next(ends, len(values))]
    return [word.partition("=")[2] for word in command if word.startswith(f"{name}=")]


@pytest.fixture
def run_script(tmp_path):
    """The commands that a script shows."""
    return partial(commands_of, lay_out(tmp_path))


# ---- sweep.py


def test_the_training_that_a_sweep_takes_is_announced(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("tape.sweep.estimate.product_flops", lambda: 1e11)
    for sweep, ending in (
        ("suite_quick", "minutes on this CPU, without evaluation; runs stop earlier if they reach"),
        ("encodings_quick", "on this CPU, without evaluation$"),
    ):
        words = ["dry_run=true", f"sweep={sweep}", f"name=announced_{sweep}"]
        told = run_command("sweep.py", *words, folder=ROOT).err
        assert re.search(
            rf"^\d+ runs, up to [\d,]+ tokens of training: about [\d.]+ .*{ending}", told
        )


def test_values_and_seeds_are_combined():
    found = commands(
        *("sweep=encodings", "vary.position=[tape,rope]", "vary.trainer.learning_rate=[1e-3,2e-5]"),
        *(
            "seeds=0 7",
            "name=rates",
            "settings=['length=64']",
            "--",
            "data=text",
            "data.files=my texts/",
        ),
    )
    runs = [command for command in found if command[0] == "train.py"]
    names = [
        f"rates_{position}_learning_rate_{rate}_{seed}"
        for seed in (0, 7)
        for position in ("tape", "rope")
        for rate in ("0.001", "2e-05")
    ]
    assert [given(run, "name") for run in runs] == [[name] for name in names]
    assert runs[5] == [
        *("train.py", "experiment=text", f"name={names[5]}", f"output_dir=output/{names[5]}"),
        *("position=tape", "trainer.learning_rate=2e-05", "seed=7", "length=64"),
        *("data=text", "data.files=my texts/"),
    ]
    assert given(found[-1], "out") == ["output/compare_rates"]
    assert len([word for word in found[-1] if word.startswith("output/rates_")]) == 8


@pytest.mark.parametrize("name", sorted(options("sweep")))
def test_runs_of_a_sweep_compose(name):
    """One run of each group; its evaluation and the comparison are commands of the project."""
    one_task = ["vary.data=parity"] if name == "suite" else []
    found = commands(f"sweep={name}", "seeds=[0]", *one_task)
    own = [command for command in found if command[0] == "train.py"]
    for settings in own[:1] + own[-1:]:
        outcome = run_command(*settings, "--cfg", "job", "--resolve", folder=ROOT)
        assert outcome.status == 0, outcome.err
    for command in found:
        file = command[1].replace(".", "/") if command[0] == "-m" else command[0]
        assert any((ROOT / f"{file}{end}").exists() for end in ("", ".py", "/__main__.py"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"sweep=null: choose one of ablations, addition, "),
        (["sweep=encoding"], r"unknown sweep 'encoding'; did you mean 'encodings'\?"),
        (["sweep=passkey", "vary.position=[rope,nop]"], r"vary\.position='nop' .*known: abacus, "),
        (
            ["vary.position=[rope]", "vary.position.name=[tape]"],
            r"error: vary\.position\.name=\[tape\] beside vary\.position=\[rope\]: give one of",
        ),
        (["sweep=passkey", "vary.position=keep"], r"vary\.position='keep' is no value of"),
        (["sweep=passkey", "vary.position=[]"], r"vary\.position=\[\]: name one value or more"),
        (["sweep=passkey", "vary.position=rope rope"], r"'rope': duplicate value; name it once"),
        (["sweep=passkey", "vary.length=[[1]]"], r"vary\.length=\[1\] must be an integer in 2\.\."),
        (["sweep=passkey", "vary.tokenizer=[{a: 1}]"], r"vary\.tokenizer=.* must be text, or null"),
        (["sweep=passkey", "vary.data.task=[[1]]"], r"vary\.data\.task=\[1\] is no value of that"),
        (["sweep=passkey", "seeds=0 1 0"], r"seeds=0: duplicate value"),
        (["sweep=passkey", "seeds=0 x"], r"seeds='x' must be an integer >= 0|in 0\.\."),
        (["sweep=passkey", "seeds=[-1]"], r"seeds=-1 must be an integer in 0\.\."),
        (["sweep=passkey", "jobs=0"], r"jobs=0 must be an integer >= 1"),
        (["sweep=passkey", "seconds=-1"], r"seconds=-1 must be a number > 0"),
        (["sweep=passkey", "partial=2"], r"partial=2 must be true or false"),
        (["sweep=passkey", "cluster=pbs"], r"cluster='pbs' must be null, slurm or local"),
        (["sweep=passkey", "name=../outside"], r"name='\.\./outside' must be one folder of "),
        (["sweep=passkey", "length=64"], r"length=64: .*; settings of the runs follow --$"),
        (["sweep=passkey", "jbos=3"], r"jbos=3: there is no such setting; did you mean 'jobs'"),
        (["sweep=passkey", "-m"], r"--multirun is for train\.py"),
        (["sweep=passkey", "vary.seed=[1,2]"], r"vary\.seed is set by the sweep; give name="),
        (["sweep=passkey", "runs=output/x"], r"runs=output/x: two runs have one folder"),
        (["sweep=ablations", "only=depth"], r"only=depth: no such table; known: architecture, "),
        (["sweep=passkey", "--", "seed=1"], r"seed=1 is set by the sweep; give name="),
        (["sweep=passkey", "--", "+output_dir=x"], r"\+output_dir=x is set by the sweep"),
        (["sweep=passkey", "--", "position=x"], r"position=x is set by the sweep"),
        # what would replace the values that vary
        (["sweep=passkey", "--", "position.name=rope"], r"position\.name=rope is set by the sweep"),
        (["sweep=passkey", "--", "+position.name=rope"], r"\+position\.name=rope is set by"),
        (
            ["sweep=passkey", "settings=['position.name=rope']"],
            r"position\.name=rope is set by the",
        ),
        (["sweep=passkey", "--", "position@position=rope"], r"position@position=rope is set by"),
        (
            ["sweep=passkey", "vary.data=[local]", "--", "data._target_=x"],
            r"data\._target_=x is set",
        ),
        (["sweep=extension", "--", "peft.name=ft"], r"peft\.name=ft is set by the sweep"),
        (["sweep=extension", "--", "position=tape"], r"position=tape is set by the sweep"),
        (
            ["sweep=extension", "vary.peft=[lora,longlora]", "--", "peft.groups=4"],
            r"lora and longlora",
        ),
        (["sweep=passkey", "vary.model=[tiny,base]", "--", "model=base"], r"model=base is set by"),
        (
            ["sweep=passkey", "vary.trainer.max_steps=[9]", "--", "trainer={max_steps:1}"],
            r"trainer",
        ),
        (
            ["sweep=ablations", "only=width", "--", "position.width=3"],
            r"position\.width=3 is set by",
        ),
        (
            ["sweep=passkey", "vary.position=[adape,tape]"],
            r"adape and tape are rows with the same se",
        ),
        # what the runs, or the comparison, would refuse
        (["sweep=passkey", "recipe=pass"], r"unknown experiment 'pass'; did you mean 'passkey'\?"),
        (["sweep=passkey", "--", "experiment=no"], r"unknown experiment 'no'"),
        (["sweep=passkey", "--", "lenght=5"], r"lenght=5: there is no such setting; did you mean"),
        (["sweep=passkey", "--", "+lenght=5"], r"\+lenght=5: there is no such setting"),
        (
            ["sweep=passkey", "--", "--help"],
            r"--help is not a setting of train\.py; give name=value",
        ),
        (["sweep=passkey", "--", "length"], r"length is not a setting of train\.py"),
        (["sweep=passkey", "--", "length=0"], r"length=0 must be an integer in 2\.\."),
        (["sweep=passkey", "vary.trainer.max_steps=[5,x]"], r"max_steps='x' must be an integer"),
        (
            ["sweep=passkey", "--", "trainer.per_device_train_batch_size=-1"],
            r"trainer\.per_device_train_batch_size=-1 must be an integer",
        ),
        (
            ["sweep=passkey", "--", "trainer.max_steps=5", "trainer.warmup_steps=0"],
            r"trainer\.logging_steps=50 is more than trainer\.max_steps=5: no loss",
        ),
        (
            ["sweep=encodings", "baseline=ropee"],
            r"baseline=ropee is not a row of the sweep; choose one",
        ),
        (
            ["sweep=encodings", "vary.position=[rope]", "baseline=alibi"],
            r"baseline=alibi is not a row",
        ),
        (
            ["sweep=passkey", "baseline=rope"],
            r"baseline=rope: this comparison has none; leave it o",
        ),
        (
            ["sweep=ablations", "only=width", "baseline=attention"],
            r"baseline=attention is not a row",
        ),
        (
            ["sweep=ablations", "baseline=attention"],
            r"baseline=attention is not in table equivarian",
        ),
        (
            ["sweep=ablations", "vary.ablation=[width_1h]", "baseline=null"],
            r"table architecture has no row of the sweep; choose tables with only=",
        ),
        # types
        (["sweep=null"], r"sweep=null: leave sweep out, or choose one of ablations, "),
        (["sweep=passkey", "out=5"], r"out=5 must be text"),
        (
            ["sweep=passkey", "runs='output/{rwo}_{seed}'"],
            r"runs='output/\{rwo\}_\{seed\}' must be",
        ),
        (
            ["sweep=passkey", "runs={row: 3}"],
            r"runs=\{'row': 3\} must be a folder in output/, in qu",
        ),
        (
            ["sweep=passkey", "runs='../{row}_{seed}'"],
            r"runs='\.\./\{row\}_\{seed\}' must be a folder",
        ),
        (["sweep=passkey", "runs='output/../../{row}_{seed}'"], r"must be a folder in output/"),
        (["sweep=passkey", "groups=3"], r"groups=3 must be a mapping of mappings, or null"),
        (["sweep=passkey", "groups={a: 3}"], r"groups=\{'a': 3\} must be a mapping of mappings"),
        (
            ["sweep=passkey", "groups={a: {recip: x}}"],
            r"groups\.a\.recip: there is no such setting",
        ),
        (
            ["sweep=passkey", "groups={a: {base: x}}"],
            r"base='x' must be a mapping of folder, length",
        ),
        (["sweep=passkey", "vary=3"], r"vary=3 must be a mapping"),
        (["sweep=passkey", "tables=3"], r"tables=3 must be a mapping of lists, or null"),
        (["sweep=passkey", "compare=5"], r"compare=5 must be a command with closed quotes"),
        (
            ["sweep=passkey", "compare='x {run}'"],
            r"no placeholders but \{runs\}, \{out\}, \{baseline\}",
        ),
        (
            ["sweep=passkey", "evaluate='x \"'"],
            r"evaluate='x \"' must be a command with closed quotes",
        ),
        (
            ["sweep=passkey", "evaluate='x {length/0}'"],
            r"evaluate='x \{length/0\}' must be a command",
        ),
        (["sweep=passkey", "train="], r"train='' must be a command"),
        (
            ["sweep=passkey", "measures=5"],
            r"measures=5 must be find, a regular expression, and show",
        ),
        (
            ["sweep=passkey", "measures.find='['"],
            r"measures=\{'find': '\[', .* must be find, a regular",
        ),
        (
            ["sweep=passkey", r"measures.show='\9'"],
            r"measures=.* must be find, a regular expression",
        ),
        (
            ["sweep=passkey", "base=output/rope_local"],
            r"base='output/rope_local' must be a mapping of folde",
        ),
        (["sweep=ablations", "only="], r"only=\[\]: name one table or more; known: architecture, "),
        (["sweep=ablations", "only=[]"], r"only=\[\]: name one table or more"),
        (["sweep=passkey", "only=a"], r"only=a: no such table; known: none"),
        (["sweep=addition_gpu", "batch=-1"], r"batch=-1 must be an integer >= 1"),
        (["sweep=encodings", "stride=-1"], r"stride=-1 must be an integer >= 1, or a multiple"),
        (["sweep=encodings", "windows=3x"], r"windows='3x' must be lengths, as '\{length\} "),
        (["sweep=encodings", "windows=' '"], r"windows=' ' must be lengths"),
        (["sweep=encodings", "stride=null"], r"stride=null must be an integer >= 1, or a multiple"),
        (["sweep=passkey", "--", ""], r"'' is not a setting of train\.py; give name=value"),
        (["sweep=addition", "grid=../x"], r"grid='\.\./x' must be one folder"),
        (
            ["sweep=passkey", "submitit.timeout_min=5"],
            r"submitit\.timeout_min=5 is for jobs: give cluster=slurm or cluster=local too",
        ),
        (
            ["sweep=passkey", "cluster=local", "submitit.timeout_mn=5"],
            r"submitit\.timeout_mn=5: there is no such parameter; known: name, timeout_min",
        ),
        (
            ["sweep=passkey", "cluster=local", "submitit={timeout_mn: 5}"],
            r"submitit\.timeout_mn=5: there is no such parameter",
        ),
        (
            ["sweep=passkey", "cluster=local", "submitit.timeout_min=long"],
            r"submitit\.timeout_min=long has the wrong type",
        ),
    ],
)
def test_sweeps_that_cannot_be_are_refused_before_the_first_run(words, message, tmp_path):
    outcome = run_command("sweep.py", "dry_run=true", *words, folder=tmp_path)
    assert outcome.status == 1 and len(outcome.lines) == 1, outcome.err
    assert re.match(rf"error: {message}", outcome.err) or re.search(message, outcome.err)
    assert outcome.err.startswith("error: ") and not list(tmp_path.iterdir())


def test_settings_that_leave_the_rows_apart_are_accepted():
    given_to_all = ["position.sampler=shift", "experiment=compare", "position.theta=500"]
    found = commands("sweep=encodings", "vary.position=[rope,xpos]", "--", *given_to_all)
    assert found[0][-3:] == given_to_all


def test_the_models_of_each_seed_start_from_its_base():
    found = commands("sweep=bases", "vary.peft=[lora,norms]", "seeds=[4,5]")
    trained = [words for words in found if "train.py" in words]
    bases = [f"output/passkey_rope_{seed}" for seed in (4, 5)]
    assert [words[-1] for words in trained] == [
        *("seed=4", "seed=5"),
        *(f"base_model={base}" for base in bases for _ in range(2)),
    ]
    evaluated = [given(words, "base_model") for words in found if "eval_retrieval.py" in words]
    folders = [f"output/bases/{method}_{seed}" for seed in (4, 5) for method in ("lora", "norms")]
    assert evaluated == [[folder] for folder in (*bases, *folders)]


def test_a_sweep_begins_without_slow_imports():
    code = (
        "import sys, sweep; sys.exit(bool({'torch', 'transformers', 'submitit'} & {*sys.modules}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---- scripts


@pytest.mark.parametrize(
    ("script", "axis", "prefix", "values"),
    [
        ("compare.sh", "position", "encodings_", SEVEN),
        ("compare_add.sh", "position", "add_", SEVEN),
        ("compare_passkey.sh", "position", "passkey_", SEVEN),
        (
            "extend_demo.sh",
            "peft",
            "extend/text_",
            "lora longlora thetalora yarn adape adape_lora ft",
        ),
        ("gpu/addition.sh", "position", "addition_20_", "adape rope fire"),
        ("ablations.sh", "ablation", "ablation_", "neither feed_forward attention full"),
    ],
)
def test_a_script_has_its_defaults(run_script, script, axis, prefix, values):
    found = run_script(script, "length=512")
    runs = [
        run for run in found if any(word.startswith(f"output_dir=output/{prefix}") for word in run)
    ]
    values = values.split()
    assert [given(run, axis)[0] for run in runs][: len(values)] == values
    seeds = {"extend_demo.sh": 1, "gpu/addition.sh": 1, "compare.sh": 5}.get(script, 3)
    assert {int(given(run, "seed")[0]) for run in runs} == {*range(seeds)}
    assert all("length=512" in run for run in runs)


def test_variables_of_the_comparison_on_text(run_script):
    variables = {"TYPES": " rope\ntape ", "SEEDS": "3", "NAME": "e", "BASELINE": "tape width=64"}
    flags = {"EVALUATION": "--data text --files github/", "EXPERIMENT": "compare_quick"}
    found = run_script("compare.sh", **variables, **flags)
    assert [run[1:3] for run in found[:3:2]] == [
        ["experiment=compare_quick", f"name=e_{position}_3"] for position in ("rope", "tape")
    ]
    assert found[1][-4:] == ["--data", "text", "--files", "github/"]
    assert given(found[1], "stride") == ["4096"]
    assert given(found[1], "lengths") == ["{length}", "{length*2}", "{length*4}"]
    assert given(found[-1], "baseline") == ["tape width=64"]
    assert given(found[-1], "out") == ["output/compare_e"]
    assert given((run_script("compare.sh"))[1], "stride") == ["{length*8}"]


def test_variables_of_the_comparison_on_addition(run_script):
    evaluation = {"EVALUATION": "samples=3 max_length=4", "GRID": "b"}
    found = run_script("compare_add.sh", "experiment=addition_20", **evaluation)
    assert found[0][-1] == "experiment=addition_20" and given(found[-1], "name") == ["b"]
    assert found[1][-3:] == ["samples=3", "max_length=4", "name=b"]


def test_variables_of_the_comparison_on_pass_keys(run_script):
    found = run_script("compare_passkey.sh", TYPES="rope", EVALUATION="--num_tests 5")
    assert len(found) == 3 * 2 + 1
    assert found[1] == [
        *("eval_retrieval.py", "--base_model", "output/passkey_rope_0"),
        *("--name", "passkey", "--num_tests", "5"),
    ]


def test_variables_of_the_suite(run_script):
    found = run_script("suite.sh", TASKS="copy s5", TYPES="rope", EVALUATION="--samples 5")
    assert len(found) == 5 * 2 * 2 + 1
    assert found[2][1:6] == [
        *("experiment=synthetic", "name=suite_s5_rope_0", "output_dir=output/suite_s5_rope_0"),
        *("data=s5", "position=rope"),
    ]
    assert found[1][2:] == ["--model", "output/suite_copy_rope_0", "--samples", "5"]
    assert given(found[-1], "beside") == ["docs/results/suite"]
    quick = run_script("suite.sh", "quick", "trainer.max_steps=999")
    assert len(quick) == 3 * 3 * 2 + 1 and quick[0][-1] == "trainer.max_steps=999"


def test_variables_of_the_ablations(run_script):
    found = run_script("ablations.sh", TABLES="width equivariance", SEEDS="1")
    assert len(found) == 8 * 2 + 2  # `full` is in both tables, and is trained once
    compared = {given(command, "out")[0]: command for command in found[-2:]}
    assert {*compared} == {f"output/compare_ablation/{name}" for name in ("width", "equivariance")}
    for command in compared.values():
        assert given(command, "baseline") == ["output/ablation_full_1"]
    assert given(found[1], "lengths") == [f"{{length{part}}}" for part in ("/8", "/4", "/2", "")]


def test_variables_of_the_extensions(run_script):
    found = run_script("extend_demo.sh", "trainer.max_steps=5", TYPES="ft", NAME="n")
    assert found[0] == ["train.py", "position=rope", "name=rope_local"]
    assert found[2] == ["train.py", "experiment=passkey", "position=rope", "seed=0"]
    folders = [given(run, "output_dir") for run in found if "trainer.max_steps=5" in run]
    assert folders == [["output/n/text_ft_0"], ["output/n/passkey_ft_0"]]
    runs = ["output/rope_local", "output/passkey_rope_0", *(folder for (folder,) in folders)]
    compared = ["-m", "tape.results.compare", *runs]
    assert found[-1] == [*compared, "--name", "extend", "--out", "output/n"]


def test_variables_of_the_slices_on_a_gpu(run_script):
    variables = {"TYPES": "rope", "SEEDS": "2", "EXPERIMENT": "addition_40", "BATCH": "8"}
    found = run_script("gpu/addition.sh", **variables)
    run = "output/addition_40_rope_2"
    assert given(found[0], "experiment") == ["addition_40"] and given(found[0], "output_dir") == [
        run
    ]
    assert found[1][2:4] == [f"model={run}", "batch_size=8"]
    heatmaps = ["--name", "grid", "--out", "output/addition_40_heatmaps"]
    assert found[2] == ["-m", "tape.results.heatmap", run, *heatmaps]
