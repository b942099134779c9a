"""The release: its version, and the commands of the mission from a wheel of its sdist, far from the
checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from commands import ROOT

import tape

CHANGES = (ROOT / "CHANGELOG.md").read_text()
LEGAL = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"


def run(*words, folder, path=""):
    command = [sys.executable, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_commands_of_the_mission_run(tmp_path):
    """From a folder with the content of the wheel, and not from this checkout. The wheel is built
    from the sdist, so both are complete."""
    for name in ("tape", "arithmetic", "scrolls", "config"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source")
    build = "from setuptools.build_meta import build_sdist as build; print(build('.'))"
    archive = run("-c", build, folder=tmp_path / "source").split()[-1]
    assert archive == f"tape-{tape.__version__}.tar.gz"
    how = ["--no-deps", "--no-build-isolation", "-q", "--target", "site", f"./source/{archive}"]
    run("-m", "pip", "install", *how, folder=tmp_path)
    site = tmp_path / "site"
    assert {"tape", "arithmetic", "scrolls"} <= {path.name for path in site.iterdir()}
    shipped = {path.relative_to(site / "tape") for path in site.glob("tape/config/**/*.yaml")}
    assert shipped == {path.relative_to(ROOT) for path in ROOT.glob("config/**/*.yaml")}

    def installed(*words):
        return run("-m", "tape.cli", *words, folder=tmp_path, path=site)

    assert installed("--version") == f"tape {tape.__version__}\n"
    (tmp_path / "texts").mkdir()
    for n in range(60):
        text = LEGAL.read_text().replace("the", f"the {n}")
        (tmp_path / "texts" / f"{n}.txt").write_text(text)
    data = ["data=text", "data.files=texts", "data.validation_fraction=0.2"]
    installed("train", "experiment=quick", "name=trial", *data)
    out = tmp_path / "output" / "trial" / "compare" / "perplexity.csv"
    scored = ["--data", "text", "--files", "texts", "--max_tokens", "1000", "--lengths", "64"]
    installed("perplexity", "--model", "output/trial", *scored, "--out", out)
    assert "| tape |" in installed("compare", "output/trial", "--out", "table")
    installed("report", "output/trial", "--out", "page")
    assert (tmp_path / "page" / "index.html").is_file()
    for command in ("scrolls-score", "evaluate", "sweep"):
        assert "--" in installed(command, "--help")


def test_the_version_is_written_once():
    """And named by the changelog and the citation, which the recipe of a tag tells to edit."""
    (first,) = re.findall(
        r"\A# .*?^## \[Unreleased\].*?^## \[(\S+)\]", CHANGES, re.DOTALL | re.MULTILINE
    )
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert first == cited["version"] == tape.__version__
    assert f"## [{first}] - {cited['date-released']}\n" in CHANGES
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tape.__version__"}


def test_every_package_and_data_file_is_listed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    tops = ("tape", "arithmetic", "scrolls")
    files = [path for top in tops for path in (ROOT / top).rglob("[!.]*") if path.is_file()]
    code = [path for path in files if path.suffix == ".py"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in code}
    assert {*listed["packages"]} - {"tape.config"} == found
    data = {str(path.relative_to(ROOT)) for path in files if not path.suffix.startswith(".py")}
    told = listed["package-data"].items()
    assert data == {f"{top}/{file}" for top, names in told if top in tops for file in names}
