"""The console command `tape`: its table names every command, and each of them answers `--help`."""

import subprocess
import sys

import pytest
from commands import ROOT, run_command

import tape.commands.__main__ as cli
from tape import parsers
from tape.settings.groups import options

# Ends at the first command that does not end as it should, or that imports torch.
ENDED_AT_ONCE = """
import contextlib, io, sys
import tape.commands.__main__ as cli
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
    if not ended or {"torch", "transformers"} & {*sys.modules}:
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
"""


def test_help_and_refusals_do_not_wait_for_torch():
    refused = REFUSED.strip().splitlines()
    assert {*cli.TARGETS} == {line.split()[0] for line in refused}
    tasks = [f"evaluate --task {task} --help" for task in (*parsers.TASKS, parsers.SCROLLS)]
    words = ["--help", "trian", *tasks, *(f"{name} --help" for name in cli.TARGETS), *refused]
    command = [sys.executable, "-c", ENDED_AT_ONCE]
    done = subprocess.run(command, cwd=ROOT, input="\n".join(words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m tape.commands train --help | true"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""


def test_help_lists_groups_and_composed_settings(tmp_path):
    text = run_command("train.py", "--help", "position=fire", folder=tmp_path).out
    for group in ("position", "experiment", "ablation"):
        assert f"\n{group}: {', '.join(sorted(options(group)))}\n" in text
    assert "\n  name: fire\n" in text and "\n  logging_steps: 10\n" in text


INSTALLED = f"""
import sys
sys.path[0] = {str(ROOT)!r}
import tape.commands.__main__ as cli
cli.main()
"""


def test_commands_are_those_of_the_checkout_that_one_is_in(tmp_path):
    (package := tmp_path / "tape" / "commands").mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text("print('here')")
    command = [sys.executable, "-c", INSTALLED, "train"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"here"}, done.stderr


def test_the_documentation_calls_commands_by_their_names():
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert not [name for name in cli.TARGETS if f"tape {name}" not in pages]
    assert not [target for target in cli.TARGETS.values() if f"-m {target}" in pages]


def test_the_table_names_every_command_of_the_project():
    programs = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for room in ("tape", "arithmetic", "scrolls", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text()
    }
    assert {*cli.TARGETS.values()} == programs - {"tape.commands"}
