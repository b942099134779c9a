"""Every command in the documents works: it is run at a tiny size, or its arguments are checked.

A command line goes to bash in a copy of the project, where `python` and the other programs only
note how they are called: scripts run, globs and loops expand. What was called is then run in this
process, with more arguments that make it tiny (RULES). Where it takes a GPU, the hub or hours, and
where a script starts several runs, only the arguments are checked, by the command's own parser.
"""

import argparse
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from accelerate.commands.launch import launch_command_parser
from commands import ROOT, run_command
from conftest import composed
from results import lay_out
from scrolls_data import write_task
from shards import write_shards
from torch.distributed.run import get_args_parser

import tape.commands.__main__ as cli
from tape.commands import train
from tape.results.report import experiments
from tape.results.runs import read_saved

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES += sorted(ROOT.glob("docs/*.md"))
PROGRAMS = ("python", "torchrun", "accelerate", "hf")
NAMED = rf"(?:\.venv/bin/)?tape (?:{'|'.join(cli.TARGETS)})"
BEGINS = rf"(?:[A-Za-z_]+=(?:\"[^\"]*\"|\S*) )*(?:{'|'.join(PROGRAMS)}|{NAMED}|bash|srun) "
# What a page leaves to its reader, and what is taken here.
PLACEHOLDERS = {
    "TYPE=...": "TYPE=rope",
    "NAME=...": "NAME=wide",
    " ...": "",
    " [settings]": "",
    "vary.position=[mine]": "vary.position=[fire]",
    "mine rope": "fire rope",
    ".venv/bin/tape perplexity --model output/trial": "tape perplexity --model output/adape_local",
    "path/or/hub/name": "output/rope_local",
    "/path/to/en": "shards",
}


def lines_of(block: str) -> list[str]:
    """The commands of a block: a line each, but for those that go on behind a backslash or up to
    `done`."""
    found, open_loops = [""], 0
    for line in block.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        open_loops += len(re.findall(r"\bdo\b", line)) - len(re.findall(r"\bdone\b", line))
        found[-1] += line + "\n"
        if not open_loops:
            found.append("")
    return [command.strip() for command in found if command.strip()]


def commands_of(page: str) -> list[str]:
    """Those of its bash and console blocks, of its indented blocks, and between backticks."""
    found = []

    def fenced(match: re.Match) -> str:
        if match[1] == "bash":
            found.extend(lines_of(match[2]))
        if match[1] == "console":
            found.extend(re.findall(r"^\$ (.*)", match[2], re.MULTILINE))
        return ""

    text = re.sub(r"^```(\w*)\n(.*?)^```$", fenced, page, flags=re.DOTALL | re.MULTILINE)
    for block in re.findall(r"(?:^|\n)\n((?: {4,}\S.*\n)+)", text):
        if re.match(BEGINS, block.lstrip()):
            found += lines_of(block)
    inline = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
    return found + [code for code in inline if re.match(BEGINS, code)]


COMMANDS = list(dict.fromkeys(code for page in PAGES for code in commands_of(page.read_text())))
SHOWN = [kind.command for experiment in experiments() for kind in experiment.kinds]  # in reports
COMMANDS += [code for code in dict.fromkeys(SHOWN) if code not in COMMANDS]


# ---- the folder that the documents assume

RECORDER = """#!/bin/sh
case "$1" in -c | -V) exec "$PYTHON" "$@" ;; esac
printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@" >>"$CALLS"
case "$1" in train.py | train) ;; *) exit 0 ;; esac
for word; do # later commands read a run's configuration
    case $word in
        name=*) run=output/${word#name=} ;;
        output_dir=*) run=${word#output_dir=} ;;
        *) continue ;;
    esac
    mkdir -p "$run"
    [ -f "$run/config.json" ] || cp base.json "$run/config.json"
done
"""
TINY_MODEL = [
    *("model.hidden_size=16", "model.intermediate_size=24", "model.num_hidden_layers=2"),
    *("model.num_attention_heads=2", "vocab_size=300"),
]
ONE_STEP = [
    *("eval_blocks=2", "report.tokens=64", "trainer.bf16=false"),
    *("trainer.max_steps=2", "trainer.save_steps=2", "trainer.logging_steps=1"),
    "trainer.warmup_steps=1",
    *("trainer.per_device_train_batch_size=1", "trainer.gradient_accumulation_steps=1"),
    "trainer.per_device_eval_batch_size=1",
]
TEXT = ["data=text", "data.files=corpus"]
DECAY = ["trainer.lr_scheduler_kwargs.num_decay_steps=1"]
PARITY = ["experiment=synthetic", "data=parity", "data.max_length=2", "length=4", "task.samples=1"]
CAPITALS = {"question": "Paris is the capital of", "choices": ["France", "Peru"], "answer": 0}


def lay_out_project(folder: Path) -> None:
    """The project's files: scripts and settings are copied, all else is linked."""
    linked = ("arithmetic", "benchmarks", "docs", "tape", "tests")
    for name in (*linked, "train.py", "sweep.py", "eval_retrieval.py", "eval_scrolls.py"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("config", "script", "scrolls"):
        shutil.copytree(ROOT / name, folder / name, ignore=lambda *_: ["__pycache__"])
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    for program in (*PROGRAMS, "tape"):
        recorder = folder / "venv" / "bin" / program
        recorder.parent.mkdir(parents=True, exist_ok=True)
        recorder.write_text(RECORDER)
        recorder.chmod(0o755)
    (folder / "venv" / "bin" / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (folder / "venv" / "bin" / "srun").chmod(0o755)
    (folder / "base.json").write_text(json.dumps({"max_position_embeddings": 256}))


def lay_out_texts(folder: Path) -> None:
    for name in ("corpus", "code", "github"):
        (folder / name).mkdir()
        rows = (f"line {n}: {n % 7} sheep and {n % 5} goats. " * 3 for n in range(1500))
        text = "".join(json.dumps({"text": row}) + "\n" for row in rows)
        (folder / name / "texts.jsonl").write_text(text)
    write_shards(folder / "shards", train=range(16))
    write_task(folder / "zips", "quality")
    answers = {f"quality-validation-{number}": "heron" for number in range(3)}
    (folder / "scrolls" / "quality").mkdir()
    (folder / "scrolls" / "quality" / "adape.json").write_text(json.dumps(answers))
    (np.arange(2000, dtype="<u2") % 250).tofile(folder / "pg19.bin")
    (folder / "output").mkdir()
    for name in ("problems", "prompts"):
        (np.arange(2072, dtype="<u2") % 10).tofile(folder / "output" / f"{name}.ids")
    page = (ROOT / "docs" / "zero_shot.md").read_text()
    (folder / "tasks").mkdir()
    task = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
    (folder / "tasks" / "capitals.yaml").write_text(task)
    (folder / "tasks" / "capitals.jsonl").write_text(json.dumps(CAPITALS) + "\n")


# Runs of several seeds, the run that they are copies of, and what is changed.
SEEDED = [
    ("encodings_rope", "rope_local", {}),
    ("encodings_adape", "adape_local", {}),
    ("text_adape", "adape_local", {}),
    ("bigrams_adape", "adape_local", {}),
    ("ablation_full", "adape_local", {"width": 8}),
    ("ablation_tensorial", "adape_local", {"equivariant": False}),
    ("checkpoints/all", "adape_local", {}),
    ("add_tape", "add_adape", {}),
    ("bases/adape", "llama_adape", {}),
]


def copy_run(run: Path, copy: Path, seed: int, changed: dict[str, object]) -> None:
    """The model of a run, as one of another seed and with other arguments of its encoding."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoint-*", "report", "perplex*"))
    trained = json.loads((copy / "trained.json").read_text())
    trained["position"] |= changed
    (copy / "trained.json").write_text(json.dumps(trained | {"seed": seed}))


# Of committed results, the folder of their runs and of the evaluations in these.
RUNS = {
    **{"addition": ("", None), "passkey": ("", None), "encodings": ("", None)},
    **{"extension": ("extend", "extend"), "checkpoints": ("checkpoints", "extend")},
}


def lay_out_results(folder: Path) -> None:
    """Some of the committed results as runs, where these were."""
    results = ROOT / "docs" / "results"
    for kind, places in RUNS.items():
        for run in read_saved(results / kind):
            if re.search(r"(adape|rope|_lora|all)_[01]$|^rope_c4$", run.folder.name):
                name = run.folder.name
                if kind == "encodings":  # the pages give them the script's own name
                    name = name.replace("text_", "encodings_")
                name = name.replace("rope_c4", "rope_local")  # its name since
                base = kind == "extension" and name in ("rope_local", "passkey_rope_0")
                lay_out(run, folder / ("" if base else places[0]) / name, places[1])
    shutil.copytree(folder / "add_adape_0", folder / "add_adape")
    (base,) = (x for x in read_saved(results / "extension") if x.folder.name == "passkey_rope_0")
    for of in ("addition", "keys"):
        for evaluation in read_saved(results / f"interventions_{of}"):
            *_, run, name = evaluation.folder.parts
            evaluation.settings.pop("intervention", None)
            if run == "adape_0":  # from the base that the other results have
                evaluation.settings["base_weights"] = base.asked["passkey"]["model"]
            if not run.startswith("passkey"):
                lay_out(evaluation, folder / ("bases" if "adape" in run else "") / run, name)
    for seed in range(2):
        for source, name, changed in (
            (f"add_adape_{seed}", f"add_wide_adape_{seed}", {"position.width": 64}),
            (f"encodings_adape_{seed}", f"mine_{seed}", {"position.width": 64}),
        ):
            shutil.copytree(folder / source, folder / name)
            trained = json.loads((folder / name / "trained.json").read_text())
            (folder / name / "trained.json").write_text(json.dumps(trained | changed))


@pytest.fixture(scope="session")
def layout(tmp_path_factory):
    """The project, texts, trained models in output/, and the results of docs/ in measured/."""
    folder = tmp_path_factory.mktemp("documented") / "project"
    folder.mkdir()
    lay_out_project(folder)
    lay_out_texts(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)

        def learn(name: str, *settings: str) -> None:
            train.run(composed(*ONE_STEP, f"name={name}", *settings))

        def done(*words: str) -> None:
            outcome = run_command(*words, folder=folder)
            assert outcome.status == 0, outcome.err

        for position in ("adape", "rope"):
            learn(f"{position}_local", *TEXT, *TINY_MODEL, f"position={position}")
        extended = ["experiment=llama_extend", "base_model=output/rope_local", "length=64"]
        for method in ("adape", "lora"):
            learn(f"llama_{method}", *extended, *TEXT, f"peft={method}", "frozen=null")
        drope = ["experiment=extend", "peft=drope", *extended[1:], *TEXT]
        learn("drope", *drope, "output_dir=output/extend/text_drope_0")
        for position in ("rope", "tape"):
            learn(
                f"passkey_{position}_0", "experiment=passkey", f"position={position}", *TINY_MODEL
            )
        learn("add_adape", "experiment=addition", *TINY_MODEL, "task.samples=1")
        learn("parity_tape", *PARITY, *TINY_MODEL)
        done(*EVALUATE, "output/parity_tape", "--task", "synthetic", "--samples", "1")
        for name in ("parity_adape", "suite_parity_tape_0"):
            shutil.copytree("output/parity_tape", f"output/{name}")
        quality = ["experiment=scrolls", "base_model=output/adape_local", "data.data_dir=zips"]
        learn("adape", *quality, "data.task=quality", "budget=demo")
        for shard in ("1/2", "2/2"):
            part = [f"shard={shard}", "name=grid_20", "max_length=2", "samples=1", "processes=1"]
            done(*EVALUATE, "output/add_adape", "--task", "addition", *part)
        for changed in (["name=grid"], ["name=grid_initial", "intervention=initial"]):
            small = ["max_length=2", "samples=1", "processes=1", *changed]
            done(*EVALUATE, "output/add_adape", "--task", "addition", *small)
        asked = ["--model", "output/llama_adape", "--tasks", "capitals", "--include_path", "tasks"]
        done("-m", "tape.evaluation.lm_eval", *asked)
        asked = ["--model", "output/rope_local", "--data", "pg19.bin", "--lengths", "64"]
        done("-m", "tape.evaluation.perplexity", *asked)
    for seed in range(6):
        for run, base, changed in SEEDED:
            copy_run(folder / "output" / base, folder / "output" / f"{run}_{seed}", seed, changed)
    lay_out_results(folder / "measured")
    tasks = (f"task_rates_rope_{task}_100" for task in ("copy", "counting"))
    rates = (
        "rates_rope_100",
        "bigrams_rates_rope_100",
        "needle_rates_rope_100",
        "bases_rates/lora_7",
    )
    for name in (*rates, *tasks, "scaling_tiny_rope_0"):
        (folder / "measured" / name).mkdir(parents=True)
    return folder


@pytest.fixture
def project(layout, undrawn, tmp_path, monkeypatch):
    """The layout with copies of the folders that commands write to. Figures are not drawn, and
    exports not loaded elsewhere."""
    monkeypatch.setattr("tape.export.verify", lambda *_: None)
    (tmp_path / "data").mkdir()
    for name in ("proof_pile", "pg19_test"):
        shutil.copy(layout / "pg19.bin", tmp_path / "data" / f"{name}.bin")
    (project := tmp_path / "project").mkdir()
    for entry in layout.iterdir():
        if entry.name in ("output", "measured", "scrolls", "cache"):
            unread = shutil.ignore_patterns("checkpoint-*")
            shutil.copytree(entry, project / entry.name, symlinks=True, ignore=unread)
        else:
            (project / entry.name).symlink_to(entry)
    return project


# ---- what is called


def called_by(command: str, project: Path) -> list[list[str]]:
    """The programs that bash calls for a command, with their arguments."""
    calls = project / "calls"
    calls.touch()
    done = subprocess.run(
        ["bash", "-c", f"set -e; shopt -s failglob\n{command}"],
        cwd=project,
        env={
            **os.environ,
            "PATH": f"{project / 'venv' / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(project / "venv"),
            "PYTHON": sys.executable,
            "CALLS": str(calls),
            **{"SEEDS": "0", "TASKS": "copy parity"},
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = iter(calls.read_text().split("\0")[:-1])
    return [list(itertools.islice(words, int(count))) for count in words]


def read_by(script: str, known: frozenset[str] = frozenset()) -> str:
    """The text of a script and of those that it calls or sources."""
    text = (ROOT / script).read_text()
    called = {f"script/{name}" for name in re.findall(r"[ /](\w+\.sh)\b", text)}
    called = {each for each in called - known - {script} if (ROOT / each).is_file()}
    return text + "".join(read_by(each, known | called | {script}) for each in called)


def check_variables(command: str) -> None:
    """Every variable that is set for a script is read there."""
    if found := re.match(r"(.*?)\b(?:srun )?bash (\S+)", command):
        text = read_by(found[2])
        for name in re.findall(r"(\w+)=", found[1]):
            assert re.search(rf"\$\{{?{name}\b|\b{name}:-", text), f"{found[2]} reads no {name}"


# ---- how it is made tiny

ARGUMENTS = None  # are checked, and nothing is run
CORPUS = ["--data", "text", "--files", "corpus"]
ALONE = ["--processes", "1"]
PROMPTS = ["--max_tokens", "300", "--interval", "300", "--num_tests", "1", "--depths", "1", *ALONE]
EVALUATE = ("-m", "tape.tasks.evaluate")
SMALL = ["--layers", "1", "--hidden", "24", "--heads", "12", "--mlp", "8", "--vocabulary", "16"]


def tiny_run(settings: list[str]) -> list[str] | None:
    """What makes a training run tiny, and independent of the hub and of earlier runs; of the many
    runs of a multirun the settings are checked."""
    if "-m" in settings:
        return ARGUMENTS
    given, new = " ".join(settings), ["output_dir=output/new"]
    extends = re.search(r"base_model=|experiment=(llama_)?extend\b", given)
    shape = [] if extends else TINY_MODEL
    if "experiment=addition" in given:
        problems = ["data.max_first=2", "data.max_second=2", "length=10", "task.samples=1"]
        return [*shape, *ONE_STEP, *problems, *new]
    if "experiment=synthetic" in given:
        return [*shape, *ONE_STEP, *PARITY[1:], *new]
    if "experiment=passkey" in given:
        return [*shape, *ONE_STEP, "task.samples=1", *new]
    if "experiment=scrolls" in given:
        return [*ONE_STEP, "data.data_dir=zips", "budget=demo", *new]
    text = ["length=64", *([] if "experiment=c4" in given else TEXT)]
    if "experiment=c4" in given:
        window = ["data.window=2", "data.tokenizer_documents=50", "data.validation_documents=20"]
        text += ["data.dir=shards", *window]
    if "experiment=llama_extend" in given:
        text += ["base_model=output/rope_local", "frozen=null"]
    if "schedule=wsd" in given:
        text += DECAY
    return [*shape, *ONE_STEP, *text, *new]


@dataclass(frozen=True)
class Rule:
    """How a program is run here.

    Attributes:
        tiny: more arguments, or a function from those given; ARGUMENTS: it is not run.
        needs: it cannot be called without arguments; where a page does so, it names it.
    """

    tiny: list[str] | Callable[[list[str]], list[str] | None] | None = ARGUMENTS
    needs: bool = False


def tiny_perplexity(given: list[str]) -> list[str] | None:
    if {"--choose", "--keys"} & {*given}:  # of an evaluator that uses long contexts
        return ARGUMENTS
    if "--plot" in given:
        return []
    return [*ALONE, *(CORPUS if "local" in given else ["--lengths", "64", "128"])]


def tiny_evaluation(given: list[str]) -> list[str]:
    small = {
        "addition": ["--max_length", "2", "--samples", "1", *ALONE],
        "passkey": PROMPTS,
        "synthetic": ["--samples", "1", "--name", "new", *ALONE],
    }
    return small[given[given.index("--task") + 1]] if "--task" in given else []


def tiny_lm_eval(given: list[str]) -> list[str] | None:
    """Other tasks fetch their questions, or have hundreds of long ones."""
    return [] if {"capitals", "--table"} & {*given} else ARGUMENTS


FILES = {  # of the commands that one starts as files
    "tape.commands.train": "train.py",
    "tape.commands.sweep": "sweep.py",
    "scrolls.score": "eval_scrolls.py",
}
RULES = {
    "train.py": Rule(tiny_run),
    "sweep.py": Rule(),
    "tape.evaluation.perplexity": Rule(tiny_perplexity),
    "tape.evaluation.lm_eval": Rule(tiny_lm_eval),
    "eval_retrieval.py": Rule(PROMPTS),
    "tape.analysis.stability": Rule(
        [*CORPUS, "--length", "16", "--windows", "1", "--shifts", "2", "--dtypes", "float32"]
    ),
    "tape.analysis.visualize": Rule([*CORPUS, "--length", "16", "--windows", "1", "--heads", "1"]),
    "tape.analysis.state": Rule(
        lambda given: (
            [] if "output/problems.ids" in given else [*CORPUS, "--lengths", "16", "--windows", "2"]
        )
    ),
    "tape.analysis.gallery": Rule(["--length", "8"]),
    "tape.analysis.cost": Rule([*SMALL, "--length", "8"]),
    "benchmarks/speed.py": Rule(
        lambda given: [
            *("--shape", "tiny", "--lengths", "8", "--backends", "sdpa", "--new", "2"),
            *("--work", "training", "--rounds", "7"),
            *("--methods", "lora" if "adapters" in given else "rope"),
        ]
    ),
    "tape.commands.new_encoding": Rule(),  # which writes to this checkout
    "tape.results.report": Rule([]),
    "tape.export": Rule([], needs=True),
    "tape.tasks.evaluate": Rule(tiny_evaluation, needs=True),
    "tape.tasks.synthetic.suite": Rule([], needs=True),
    "tape.results.compare": Rule([], needs=True),
    "tape.results.rates": Rule(),
    "tape.results.heatmap": Rule([]),
    "eval_scrolls.py": Rule(["--data_dir", "zips"]),
    "scrolls.show": Rule(["--data_dir", "zips"], needs=True),
    "scrolls.generate": Rule(["data_dir=zips", "processes=1", "output=new.json"], needs=True),
    "tests/crash.py": Rule(),
    "benchmarks/trace.py": Rule([]),
}


def check_call(program: str, words: list[str], project: Path, whole: bool) -> None:
    """One call: of a program of others by its own parser, of ours also by running it, if it is the
    `whole` of a command."""
    if program == "hf":
        check_hf(words)
    elif program == "tape":
        name, *given = words
        check_ours(["-m", cli.TARGETS[name], *given], project, whole)
    elif program == "accelerate":
        found = launch_command_parser().parse_args(words[1:])
        check_call("python", [found.training_script, *found.training_script_args], project, False)
    elif program == "torchrun" or words[0] == "script/torchrun.py":
        found = get_args_parser().parse_args(words if program == "torchrun" else words[1:])
        check_call("python", [found.training_script, *found.training_script_args], project, False)
    elif words[:2] == ["-m", "pip"]:
        extras = words[-1].removeprefix(".").strip("[]")
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert {*filter(None, extras.split(","))} <= known["optional-dependencies"].keys()
    elif words[0] == "-m" and not (ROOT / words[1].split(".")[0]).is_dir():
        assert importlib.util.find_spec(words[1]), words
    else:
        check_ours(words, project, whole)


def check_hf(words: list[str]) -> None:
    command = [sys.executable, "-m", "huggingface_hub.cli.hf", *words, "--help"]
    subprocess.run(command, check=True, capture_output=True)


def check_ours(words: list[str], project: Path, whole: bool) -> None:
    if words[0] == "-m":
        file = FILES.get(words[1], f"{words[1].replace('.', '/')}.py")
        words = [file, *words[2:]] if file in RULES else words
    name, *given = words[1:] if words[0] == "-m" else words
    if name == "sweep.py" and "--help" not in given:  # its commands
        outcome = run_command(name, "dry_run=true", *given, folder=project)
        assert outcome.status == 0, outcome.err
        for line in outcome.out.splitlines():
            program, *words = shlex.split(line)
            check_call(program, words, project, False)
        return
    assert name in RULES, f"no rule for {name}: say how it is made tiny"
    rule = RULES[name]
    more = rule.tiny(given) if callable(rule.tiny) else rule.tiny
    if rule.needs and not given:
        words, more = [*words, "--help"], []
    if more is ARGUMENTS or not whole:
        # Seeds are alike.
        check_arguments(tuple(re.sub(r"(seed=|_)\d$", r"\g<1>0", word) for word in words))
    else:
        outcome = run_command(*words, *more, folder=project)
        assert outcome.status == 0, outcome.err


@cache
def check_arguments(words: tuple[str, ...]) -> None:
    """By the parser of the program, which does not go on; or by Hydra."""
    if words[0] == "train.py" or "scrolls.generate" in words:
        for settings in single_runs(words):
            outcome = run_command(*settings, "--cfg", "job", "--resolve", folder=ROOT)
            assert outcome.status == 0, outcome.err
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self, *given):
        parse(self, *given)
        sys.exit(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patch.setattr("tape.command.check_model_folder", lambda folder: None)
        outcome = run_command(*words, folder=ROOT)
    assert outcome.status == 0, outcome.err


def single_runs(words: tuple[str, ...]) -> list[list[str]]:
    """Those of a Hydra multirun, one by one."""
    program, *settings = words
    if program == "-m" or "-m" not in settings:
        return [[*words]]
    choices = [word.partition("=") for word in settings if word != "-m"]
    runs = ([f"{key}={value}" for value in values.split(",")] for key, _, values in choices)
    return [[program, *each] for each in itertools.product(*runs)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()))
def test_a_documented_command_works(command, project):
    check_variables(command)
    for shown, taken in PLACEHOLDERS.items():
        command = command.replace(shown, taken)
    if re.search(r"-m tape\.results\.(compare|rates|heatmap)", command):
        (project / "output").rename(project / "trained")
        (project / "measured").rename(project / "output")
    # Those have their own base.
    if "-m tape.results.compare output/rope_local output/checkpoints" in command:
        shutil.rmtree(project / "output" / "rope_local")
        base = project / "output" / "checkpoints" / "rope_local"
        shutil.copytree(base, project / "output" / "rope_local")
    calls = called_by(command, project)
    ours = [words for words in calls if words[1:3] != ["-m", "pip"]]
    assert calls
    for program, *words in calls:
        check_call(program, words, project, whole=len(ours) == 1)


def test_no_rule_is_stale():
    scripts = (ROOT / "script").rglob("*.sh")
    texts = "\n".join([*COMMANDS, *map(Path.read_text, scripts)])
    assert not [name for name in RULES if name not in texts]
