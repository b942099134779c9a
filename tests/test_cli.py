"""The console command `tape`, and every command in the documents, whose arguments it takes.

A command line goes to bash in a copy of the project, where `python` and the other programs only
note how they are called: scripts run, globs and loops expand. The arguments of what was called meet
the parser of the command, or Hydra. What the commands do is tested by room.
"""

import argparse
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pandas as pd
import pytest
from accelerate.commands.launch import launch_command_parser
from commands import ROOT, run_command
from pages import DOCS
from script_folder import lay_out
from torch.distributed.run import get_args_parser

import tape.cli.__main__ as cli
from tape.cli.commands import all_commands
from tape.cli.settings.composition import compose_run
from tape.cli.settings.groups import options
from tape.evaluation.task import tasks_by_name

BY_NAME = all_commands()
TARGETS = {command.module for command in BY_NAME.values()}
# Ends at the first command that does not end as it should, or that imports torch.
ENDED_AT_ONCE = """
import contextlib, io, sys
import tape.cli.__main__ as cli
for words in sys.stdin.read().splitlines():
    sys.argv[1:] = words.split()
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            cli.main()
            end = 0
        except SystemExit as stop:
            end = stop.code
    text = f"{end} {streams[0].getvalue()} {streams[1].getvalue()}"
    ended = not end if "--help" in words else "error: " in text
    if not ended or {"torch", "transformers", "evaluate"} & {*sys.modules}:
        sys.exit(f"{words}: {text}")
"""
REFUSED = """
train position=nonsense
sweep sweep=nonsense
sweep sweep=passkey vary.position=[nope] baseline=nonsense
perplexity --model missing --data local
perplexity --model . --data local --dtype float64
evaluate missing --task addition
evaluate . --task passkey --depth many
lm-eval --model missing --tasks mmlu
lm-eval --model .
scrolls-generate --model missing --task quality --output x.json
scrolls-score --all --predictions missing --metrics_output_dir x
compare missing
suite missing
leaderboard missing
ladder missing
rates missing
report missing
stability --model missing
visualize --model missing
state --model missing
gallery --encodings nonsense
cost --layers none
speed --methods nonsense
new-encoding 5x
export missing --out x
import --out x
verify missing
"""


def test_help_and_refusals_do_not_wait_for_torch():
    refused = REFUSED.strip().splitlines()
    assert {*BY_NAME} == {line.split()[0] for line in refused}
    tasks = [f"evaluate --task {task} --help" for task in tasks_by_name()]
    words = ["--help", "trian", *tasks, *(f"{name} --help" for name in BY_NAME), *refused]
    command = [sys.executable, "-c", ENDED_AT_ONCE]
    done = subprocess.run(command, cwd=ROOT, input="\n".join(words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_lists_groups_and_composed_settings(tmp_path):
    text = run_command("train.py", "--help", "position=fire", folder=tmp_path).out
    for group in ("position", "experiment", "ablation"):
        assert f"\n{group}: {', '.join(sorted(options(group)))}\n" in text
    assert "\n  name: fire\n" in text and "\n  logging_steps: 40\n" in text


INSTALLED = f"""import sys
sys.path[0] = {str(ROOT)!r}
import tape.cli.__main__ as cli
cli.main()
"""


def test_commands_are_those_of_the_checkout_that_one_is_in(tmp_path):
    (package := tmp_path / "tape" / "cli").mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text("print('here')")
    command = [sys.executable, "-c", INSTALLED, "train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"here"}, done.stderr


def test_a_command_that_is_started_several_times_is_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun does
    with pytest.raises(SystemExit, match=r"perplexity is one process, .*with --shard i/n"):
        cli.main("perplexity", "--model", "none")


def test_the_documentation_calls_commands_by_their_names():
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *DOCS])
    assert not [name for name in BY_NAME if f"tape {name}" not in pages]
    assert not [target for target in TARGETS if f"-m {target}" in pages]


def test_the_table_names_every_command_of_the_project():
    programs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for room in ("tape", "arithmetic", "scrolls")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"^def main\(", path.read_text(), re.MULTILINE)
    }
    assert programs - {"tape.cli.__main__"} == TARGETS


PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES += DOCS
PROGRAMS = ("python", "torchrun", "accelerate", "hf")
NAMED = "|".join((*PROGRAMS, rf"(?:\.venv/bin/)?tape (?:{'|'.join(BY_NAME)})", "bash|srun"))
BEGINS = rf"(?:[A-Za-z_]+=(?:\"[^\"]*\"|\S*) )*(?:{NAMED}) "
# What a page leaves to its reader, and what is taken here.
PLACEHOLDERS = {
    "TYPE=...": "TYPE=rope",
    "NAME=...": "NAME=wide",
    " ...": "",
    " [settings]": "",
    "vary.position=[mine]": "vary.position=[fire]",
    "mine, rope": "fire, rope",
    "mine rope": "fire rope",
    "TYPES=mine ": "TYPES=fire ",
    ".venv/bin/tape ": "tape ",
    "path/or/hub/name": "output/rope_local",
    "/path/to/en": "shards",
}


def lines_of(block: str) -> list[str]:
    """The commands of a block; some go on behind a backslash or up to `done`."""
    found, open_loops = [""], 0
    for line in block.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        open_loops += len(re.findall(r"\bdo\b", line)) - len(re.findall(r"\bdone\b", line))
        found[-1] += line + "\n"
        if not open_loops:
            found.append("")
    return [command.strip() for command in found if command.strip()]


def commands_of(page: str) -> list[str]:
    """Those in bash and console blocks, in indented blocks, and between backticks."""
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


RECORDER = """#!/bin/sh
case "$1" in -c | -V) exec "$PYTHON" "$@" ;; esac
printf '%s\\0' "$(($# + 1))" "${0##*/}" "$@" >>"$CALLS"
"""
# Runs that globs of the documents find.
GLOBBED = """
adape_local/perplexity.csv extend/text_lora_0 checkpoints/all_0
encodings_rope_0 mine_0 suite_parity_tape_0 passkey_adape_0 passkey_rope_0/extend
add_adape/grid add_adape_0 add_wide_adape_0 add_tape_3/grid add_tape_3/grid_initial
bases/adape_0/extend bases/adape_0/extend_initial bases_rates/lora_7 rates_rope_100
ladder_1_mine_0 bigrams_rates_rope_100 needle_rates_rope_100 task_rates_rope_copy_100
task_rates_rope_counting_100
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    """The project with folders that commands name, beside LongLoRA's files; its programs note how
    they are called."""
    beside = tmp_path_factory.mktemp("documented")
    (beside / "data").mkdir()
    for name in ("proof_pile", "pg19_test"):
        (beside / "data" / f"{name}.bin").touch()
    (folder := beside / "project").mkdir()
    lay_out(folder)
    for name in ("docs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("pyproject.toml", "constraints.txt", "script/setup.sh"):
        shutil.copy(ROOT / name, folder / name)
    programs = dict.fromkeys((*PROGRAMS, "tape"), RECORDER) | {"srun": '#!/bin/sh\nexec "$@"\n'}
    for name, text in programs.items():
        program = folder / "venv" / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    for name in ("corpus", "code", "shards", *(f"output/{name}" for name in GLOBBED.split())):
        (folder / name).mkdir(parents=True)
    for name in ("corpus/a.txt", "code/a.py"):
        (folder / name).write_text("a sheep")
    (texts := folder / "output" / "smollm2_free" / "texts").mkdir(parents=True)
    for name in pd.read_csv(ROOT / "docs/results/smollm2_free/documents.csv")["document"]:
        (texts / name).touch()  # not downloaded again
    return folder


def called_by(command: str, project: Path) -> list[list[str]]:
    (calls := project / "calls").write_text("")
    if "script/setup.sh" in command:  # installs again
        (project / "venv" / ".tape-installed").unlink(missing_ok=True)
    shutil.rmtree(project / "output" / "gpu_rehearsal", ignore_errors=True)  # finished parts
    environment = os.environ | {"SEEDS": "0", "TASKS": "copy parity"}
    environment |= {"PATH": f"{project}/venv/bin:{os.environ['PATH']}", "CALLS": str(calls)}
    environment |= {"VIRTUAL_ENV": f"{project}/venv", "PYTHON": sys.executable}
    words = ["bash", "-c", f"set -e; shopt -s failglob\n{command}"]
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    words = iter(calls.read_text().split("\0")[:-1])
    return [list(itertools.islice(words, int(count))) for count in words]


SCRIPTS = "".join(path.read_text() for path in ROOT.glob("script/**/*.sh"))


def check_call(program: str, words: list[str], project: Path) -> None:
    if program == "hf":
        return
    launchers = {"accelerate": launch_command_parser, "torchrun": get_args_parser}
    if words[0] == "script/torchrun.py":
        program, words = "torchrun", words[1:]
    if program in launchers:
        found = launchers[program]().parse_args(words[program == "accelerate" :])
        words = [found.training_script, *found.training_script_args]
    if words[:2] == ["-m", "tape.cli"]:
        program, words = "tape", words[2:]
    if program == "tape":
        file = f"{words[0]}.py"  # of `tape train` and `tape sweep`
        words[:1] = [file] if (ROOT / file).is_file() else ["-m", "tape.cli", words[0]]
    if words[0] == "-m" and not (ROOT / words[1].split(".")[0]).is_dir():
        # find_spec("pip") would take setuptools' distutils from torch.compile.
        assert words[1] in packages_distributions(), words
    else:
        check_ours(words, project)


def check_ours(words: list[str], project: Path) -> None:
    name, *given = words[1:] if words[0] == "-m" else words
    if name == "sweep.py" and "--help" not in given:  # its commands
        outcome = run_command(name, "dry_run=true", *given, folder=project, succeeds=True)
        lines = (line for line in outcome.out.splitlines() if line.startswith("tape "))
        for program, *words in map(shlex.split, lines):
            if words[0] != "train":  # composed by the sweep
                check_call(program, words, project)
        return
    # Without arguments, a page only names the command. Seeds are alike.
    words = words if given else [*words, "--help"]
    check_arguments(tuple(re.sub(r"(seed=|_)\d$", r"\g<1>0", word) for word in words))


@cache
def check_arguments(words: tuple[str, ...]) -> None:
    """By the parser of the program, which does not go on; or by Hydra."""
    if words[0] == "train.py" and not {"--help", "-h"} & {*words}:
        # Of a Hydra multirun each, but not what sets up Hydra itself.
        settings = [word for word in words[1:] if not re.search("^-|hydra", word)]
        several = ([word] for word in settings)
        if "-m" in words:
            pairs = (word.split("=") for word in settings)
            several = ([f"{key}={value}" for value in values.split(",")] for key, values in pairs)
        for each in itertools.product(*several):
            compose_run([*each])
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self, *given):
        parse(self, *given)
        sys.exit(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        for module in ("analyse", "compare", "evaluate", "models"):
            patch.setattr(f"tape.cli.{module}.model_folder", Path, raising=False)
        patch.setattr("scrolls.commands.model_folder", Path)
        patch.setattr("tape.core.command.Existing.__call__", argparse._StoreAction.__call__)
        run_command(*words, folder=ROOT, succeeds=True)


# To compose each takes time. Those of the front page are always checked.
MANY_RUNS = re.compile(r"sweep=|compare\.sh|suite\.sh|gpu/all\.sh|train\.py -m ")
FRONT_PAGE = commands_of((ROOT / "README.md").read_text())
SLOW = {each for each in COMMANDS if MANY_RUNS.search(each)} - {*FRONT_PAGE}


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in COMMANDS],
    ids=lambda command: " ".join(command.split()),
)
def test_a_documented_command_has_these_arguments(command, project):
    given_to_script = re.match(r"(.*?)\b(?:srun )?bash \S+|", command)[1] or ""
    for name in re.findall(r"(\w+)=", given_to_script):
        assert re.search(rf"\$\{{?{name}\b|\b{name}:-", SCRIPTS), f"no script reads {name}"
    for shown, taken in PLACEHOLDERS.items():
        command = command.replace(shown, taken)
    calls = called_by(command, project)
    assert calls
    for program, *words in calls:
        check_call(program, words, project)
