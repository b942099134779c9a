"""The wheel: what it installs, and commands of the mission from it, far from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from commands import ROOT

LEGAL = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"


def run(*words, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment with the wheel and the dependencies, but without this checkout."""
    made = tmp_path_factory.mktemp("wheel")
    for name in ("tape", "arithmetic", "scrolls", "config"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, made / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made / "source")
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", made, "./source", folder=made)
    venv.create(made / "env", with_pip=False)
    (site,) = (made / "env").glob("lib/python*/site-packages")
    (made / "dependencies").mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "tape" not in path.name and path.suffix != ".pth":
            (made / "dependencies" / path.name).symlink_to(path)
    (site / "dependencies.pth").write_text(f"{made / 'dependencies'}\n")
    (wheel,) = made.glob("tape-*.whl")
    python = made / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "-q", wheel, folder=made)
    return site


@pytest.mark.slow
def test_commands_of_the_mission_run(installed, tmp_path):
    tape = installed.parents[2] / "bin" / "tape"
    (tmp_path / "texts").mkdir()
    for n in range(60):
        text = LEGAL.read_text().replace("the", f"the {n}")
        (tmp_path / "texts" / f"{n}.txt").write_text(text)
    data = ["data=text", "data.files=texts", "data.validation_fraction=0.2"]
    run(tape, "train", "experiment=quick", "name=trial", *data, folder=tmp_path)
    out = tmp_path / "output" / "trial" / "compare" / "perplexity.csv"
    scored = ["--data", "text", "--files", "texts", "--max_tokens", "1000", "--lengths", "64"]
    run(tape, "perplexity", "--model", "output/trial", *scored, "--out", out, folder=tmp_path)
    assert "| tape |" in run(tape, "compare", "output/trial", "--out", "table", folder=tmp_path)
    for command in ("scrolls-score", "evaluate", "sweep"):
        assert "--" in run(tape, command, "--help", folder=tmp_path)


@pytest.mark.slow
def test_it_installs_three_packages(installed):
    found = {path.name for path in installed.iterdir() if "dist-info" not in path.name}
    assert found == {"tape", "arithmetic", "scrolls", "dependencies.pth"}
    shipped = {
        path.relative_to(installed / "tape") for path in installed.glob("tape/config/**/*.yaml")
    }
    assert shipped == {path.relative_to(ROOT) for path in ROOT.glob("config/**/*.yaml")}


def test_every_package_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    tops = ("tape", "arithmetic", "scrolls")
    files = (path for top in tops for path in (ROOT / top).rglob("__init__.py"))
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in files}
    assert {*listed} - {"tape.config"} == found
