"""The release: its version, and its wheel, which works in an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import tape

CHANGES = (ROOT / "CHANGELOG.md").read_text()
LEGAL = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "max_position_embeddings": 512}


def run(*words, folder):
    """Returns what a command prints, started in `folder` without the packages of this process."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [*map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the sdist by the installer, so both are complete."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("tape", "arithmetic", "scrolls", "config"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    build = "from setuptools.build_meta import build_sdist as build; print(build('.'))"
    archive = run(sys.executable, "-c", build, folder=folder / "source").split()[-1]
    assert archive == f"tape-{tape.__version__}.tar.gz"
    pip = sys.executable, "-m", "pip"
    run(*pip, "wheel", "-q", "--no-deps", f"./source/{archive}", folder=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_has_every_package_and_setting(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"tape", "arithmetic", "scrolls"} <= {name.split("/")[0] for name in names}
    found = {name for name in names if re.match(r"tape/config/.*\.yaml$", name)}
    assert found == {f"tape/{path.relative_to(ROOT)}" for path in ROOT.glob("config/**/*.yaml")}


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    """The commands of the mission, by a Python that has only the wheel and what it requires."""
    run(sys.executable, "-m", "venv", "empty", folder=tmp_path)
    programs = tmp_path / "empty" / "bin"
    versions = ["--constraint", ROOT / "constraints.txt"]
    run(programs / "python", "-m", "pip", "install", "-q", *versions, wheel, folder=tmp_path)

    def installed(*words):
        return run(programs / "tape", *words, folder=tmp_path)

    assert installed("--version") == f"tape {tape.__version__}\n"
    (tmp_path / "texts").mkdir()
    for n in range(60):
        text = LEGAL.read_text().replace("the", f"the {n}")
        (tmp_path / "texts" / f"{n}.txt").write_text(text)
    data = ["data=text", "data.files=texts", "data.validation_fraction=0.2"]
    installed("train", "experiment=quick", "name=trial", *data)
    trial = tmp_path / "output" / "trial"
    out = trial / "compare" / "perplexity.csv"
    scored = ["--data", "text", "--files", "texts", "--max_tokens", "1000", "--lengths", "64"]
    installed("perplexity", "--model", trial, *scored, "--out", out)
    tokenizer = AutoTokenizer.from_pretrained(trial)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **TINY))
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "llama")
    assert "imported" in installed("import", "llama", "--out", "imported")
    prompts = ["--max_tokens", "512", "--interval", "512", "--num_tests", "1", "--depths", "1"]
    for evaluated in ("imported", trial):
        installed("evaluate", evaluated, "--task", "passkey", *prompts)
    assert "| tape |" in installed("compare", trial, "--name", "compare", "--out", "table")
    installed("report", trial, "--out", "page")
    assert "passkey" in (tmp_path / "page" / "index.html").read_text()
    for command in ("scrolls-score", "sweep"):
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
