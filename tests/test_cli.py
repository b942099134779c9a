"""The console command `tape`: its table names every command, and each of them answers `--help`."""

import os
import re
import subprocess
import sys

import pytest
from commands import ROOT, run_command
from hydra._internal.config_repository import CachingConfigRepository
from test_commands import COMMANDS

import tape.commands.__main__ as cli
from tape.settings.groups import options


def test_help_lists_the_commands_without_heavy_imports():
    code = """
import sys
import tape.commands.__main__ as cli
cli.main()
sys.exit(bool({"torch", "hydra"} & {*sys.modules}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name, target in cli.TARGETS.items():
        assert re.search(rf"^  {name} +\S.* \({re.escape(target)}\)$", done.stdout, re.MULTILINE)
    assert all(f"\n{task}:\n" in done.stdout for task in cli.COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "train --help"])
def test_a_closed_pipe_is_no_error(words):
    command = f"{sys.executable} -m tape.commands {words} | true"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""


def test_help_of_settings_is_composed_once(tmp_path, monkeypatch):
    made = []
    begin = CachingConfigRepository.__init__
    monkeypatch.setattr(
        CachingConfigRepository, "__init__", lambda *given: made.append(1) or begin(*given)
    )
    text = run_command("train.py", "--help", "position=fire", folder=tmp_path).out
    assert len(made) < 10
    for group in ("position", "experiment", "ablation"):
        assert f"\n{group}: {', '.join(sorted(options(group)))}\n" in text
    assert "\n  name: fire\n" in text and "\n  logging_steps: 10\n" in text
    wrong = run_command("train.py", "--help", "position=fier", folder=tmp_path)
    assert wrong.status == 1 and "did you mean 'fire'" in wrong.err


@pytest.mark.parametrize("name", cli.TARGETS)
def test_a_command_answers_help(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # of their own first import
    outcome = run_command("tape/commands/__main__.py", name, "--help", folder=tmp_path)
    assert outcome.status == 0 and len(outcome.out.splitlines()) > 2, outcome.err


INSTALLED = f"""
import sys
sys.path[0] = {str(ROOT)!r}
import tape.commands.__main__ as cli
cli.main()
"""


def test_commands_are_those_of_the_checkout_that_one_is_in(tmp_path):
    (tmp_path / "tape" / "commands").mkdir(parents=True)
    (tmp_path / "tape" / "__init__.py").touch()
    (tmp_path / "tape" / "commands" / "__init__.py").touch()
    (tmp_path / "tape" / "commands" / "__main__.py").write_text("print('here')")
    for name in ("train", "perplexity"):
        command = [sys.executable, "-c", INSTALLED, name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert set(done.stdout.split()) == {"here"}, done.stderr


@pytest.mark.parametrize("name", ["train", "perplexity"])
def test_a_command_gets_its_arguments(name, tmp_path):
    """As its file or module does."""
    target = cli.TARGETS[name]
    for argument in ("--help", "--wrong"):
        direct = run_command("-m", target, argument, folder=tmp_path)
        assert run_command("tape/commands/__main__.py", name, argument, folder=tmp_path) == direct


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("zzz", "tape --help lists the commands"),
    ],
)
def test_an_unknown_command_is_refused_in_one_line(word, hint, tmp_path):
    outcome = run_command("tape/commands/__main__.py", word, folder=tmp_path)
    assert outcome.status == 1 and outcome.lines == [f"error: unknown command '{word}'; {hint}"]


def test_the_documentation_lists_the_names():
    page = (ROOT / "docs" / "commands.md").read_text()
    rows = "".join(f"| `{target}` | `{name}` |\n" for name, target in cli.TARGETS.items())
    assert f"|---|---|\n{rows}" in page


def test_the_table_names_every_documented_command():
    ours = {path.name for path in ROOT.iterdir()}
    modules = {
        module
        for command in COMMANDS
        for module in re.findall(r"python -m ([\w.]+)", command)
        if module.partition(".")[0] in ours
    }
    assert modules and modules <= {*cli.TARGETS.values()}


def test_the_table_names_every_command_of_the_project():
    """Every file that runs as a program, but for those that other commands or developers call."""
    internal = {"tape/commands/__main__.py", "scrolls/official_files.py", "tape/export/check.py"}
    internal |= {"benchmarks/trace.py"}
    rooms = ("tape", "arithmetic", "scrolls", "benchmarks")
    programs = {
        str(path.relative_to(ROOT))
        for path in (path for room in rooms for path in (ROOT / room).rglob("*.py"))
        if '\nif __name__ == "__main__":' in path.read_text()
    }
    assert {file_of(target) for target in cli.TARGETS.values()} == programs - internal


def file_of(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__main__.py" if (ROOT / path).is_dir() else f"{path}.py"


# A line of every command that takes a folder with a model or a run, which does not exist.
WITHOUT_A_FOLDER = (
    "train base_model=output/no",
    "perplexity --data local --model no",
    "perplexity --model=no --data local --keys keys.json",
    "evaluate no --task addition",
    "evaluate --task passkey --base_model no --max_tokens 99",
    "lm-eval --model no --tasks mmlu",
    "scrolls-generate task=quality model=no output=answers.json",
    *(f"{name} no --out x" for name in ("export", "compare", "suite", "rates", "report")),
    "heatmap no",
    *(f"{name} --model . no --out x" for name in ("stability", "visualize", "state")),
)
REFUSED = """
import shlex, sys
import tape.commands.__main__ as cli
for line in sys.argv[1:]:
    sys.argv = ["tape", *shlex.split(line)]
    try:
        cli.main()
    except SystemExit as end:
        print(end.code)
sys.exit("torch" in sys.modules)
"""


def test_a_missing_folder_is_refused_before_slow_imports(tmp_path):
    command = [sys.executable, "-c", REFUSED, *WITHOUT_A_FOLDER]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    train, *others = done.stdout.splitlines()
    assert train.startswith("error: base_model=output/no: there is no such folder")
    refused = "error: no is not a folder: give that of a model or a run"
    assert others == [refused] * (len(WITHOUT_A_FOLDER) - 1)
    assert not [*tmp_path.iterdir()]


PARSERS = [line for line in WITHOUT_A_FOLDER if "model no" in line or "model . no" in line]


@pytest.mark.parametrize("line", PARSERS)
def test_a_module_refuses_a_missing_folder_at_once(line, tmp_path):
    name, *arguments = line.split()
    outcome = run_command("-m", cli.TARGETS[name], *arguments, folder=tmp_path)
    assert outcome.status == 2
    refused = r"error: --\w*model: no is not a folder: give that of a model or a run"
    assert re.fullmatch(refused, outcome.err.strip())
