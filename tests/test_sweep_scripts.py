"""Sweeps that ship: their commands, what is refused, and the scripts that call them."""

import re
import shlex
from functools import partial
from itertools import product

import pytest
from commands import ROOT, run_command
from script_folder import commands_of, lay_out

from tape.commands.__main__ import TARGETS
from tape.settings.groups import options

SEVEN = "adape rope fire randrope nope alibi xpos"


def commands(*words):
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


def test_values_and_seeds_are_combined():
    words = ["sweep=encodings", "vary.position=[tape,rope]"]
    words += ["vary.trainer.learning_rate=[1e-3,2e-5]", "seeds=0 7", "name=rates"]
    words += ["settings=['length=64']", "--", "data=text", "data.files=my texts/"]
    words += ["evaluate.perplexity.stride=${seed}"]
    found = commands(*words)
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
    assert given(evaluated[5], "stride") == ["7"]  # that of its seed
    assert given(found[-1], "out") == ["output/compare_rates"]
    assert len([word for word in found[-1] if word.startswith("output/rates_")]) == 8


SMALL = {"ablation_architecture", "bigrams", "passkey", "suite_quick"}


LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(options("sweep") - SMALL)]


@pytest.mark.parametrize("name", [*sorted(SMALL), *LARGE])
def test_runs_of_a_sweep_compose(name):
    """Its evaluation and the comparison are commands of the project."""
    fewer = ["vary.data=parity"] if name == "suite" else []
    fewer += ["vary.trainer.learning_rate=[1e-3]"] if "rates" in name else []
    assert {command[0] for command in commands(f"sweep={name}", "seeds=[0]", *fewer)} <= {*TARGETS}


# Words of a sweep | what is wrong with them; those of the runs follow --.
REFUSED = r"""
dry_run=true | sweep=null: choose one of ablation_architecture,
sweep=encoding | Could not find 'sweep/encoding'; Available options .* encodings;
sweep=passkey vary.position=[rope,nop] | Could not find 'position/nop'
sweep=passkey vary.position=[] | vary, seeds: name one value or more of each
sweep=passkey vary.seed=[1,2] | seed= is set by the sweep; give name=
sweep=passkey seeds=[0,x] | seeds='x' must be an integer in 0\.\.
sweep=passkey jobs=0 | jobs=0 must be an integer >= 1
sweep=passkey evaluation=['out=x.csv'] | out=x\.csv is set by the sweep
sweep=passkey baseline=foo | unknown baseline 'foo'
sweep=encodings vary.tokenizer=[a/b,a-b] | two runs have one folder
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
sweep=passkey -- lenght=5 | lenght: there is no such setting; did you mean
sweep=passkey -- --help | --help
sweep=passkey vary.trainer.max_steps=[5,x] | max_steps='x' must be an integer
"""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_sweeps_that_cannot_be_are_refused_before_the_first_run(case, tmp_path):
    words, message = case.split(" | ")
    outcome = run_command("sweep.py", *words.split(), folder=tmp_path)
    assert outcome.status == 1 and len(outcome.lines) == 1, outcome.err
    assert outcome.err.startswith("error: ") and re.search(message, outcome.err), outcome.err
    assert not list(tmp_path.iterdir())


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


def test_variables_of_the_comparison_on_text(run_script):
    runs = [run for run in run_script("compare.sh", "length=512") if run[0] == "train"]
    assert [given(run, "position")[0] for run in runs][:7] == SEVEN.split()
    assert {given(run, "seed")[0] for run in runs} == {*"01234"}
    assert all("length=512" in run for run in runs)
    variables = {"TYPES": " rope\ntape ", "SEEDS": "3", "NAME": "e", "BASELINE": "tape width=64"}
    flags = {"EVALUATION": "--data text --files github/", "EXPERIMENT": "compare_quick"}
    found = run_script("compare.sh", **variables, **flags)
    names = [["experiment=compare_quick", f"name=e_{row}_3"] for row in ("rope", "tape")]
    assert [run[1:3] for run in found[:3:2]] == names
    assert found[1][-4:] == ["--data", "text", "--files", "github/"]
    assert given(found[1], "stride") == ["4096"]
    assert given(found[1], "lengths") == ["128", "256", "512"]
    assert given(found[-1], "baseline") == ["tape width=64"]
    assert given(found[-1], "out") == ["output/compare_e"]


def test_variables_of_the_suite(run_script):
    found = run_script("suite.sh", TASKS="copy s5", TYPES="rope", EVALUATION="--samples 5")
    assert len(found) == 5 * 2 * 2 + 1
    assert [*given(found[2], "data"), *given(found[2], "position")] == ["s5", "rope"]
    evaluated = ["--model", "output/suite_copy_rope_0", "--task", "synthetic"]
    assert found[1] == ["evaluate", *evaluated, "--samples", "5"]
    quick = run_script("suite.sh", "quick", "trainer.max_steps=999")
    assert len(quick) == 3 * 3 * 2 + 1 and "trainer.max_steps=999" in quick[0]
