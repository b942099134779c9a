"""transformers' own tests of its models, out of its source distribution, on this decoder."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import transformers

TESTS = Path(__file__).parent
CACHE = Path(os.environ.get("TAPE_CACHE", TESTS.parent / "cache"))
NAME = f"transformers-{transformers.__version__}"

# Tests that fail, and why they do not apply.
ALL = {
    "test_can_set_attention_dynamically": "an unknown name is refused in words of our own",
    "test_causal_lm_loss_honors_shift_labels": "no sequence is split over processes",
    "test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions": "sdpa has no weights "
    "to show: refused",
    "test_generation_tester_mixin_inheritance": "tests of generation are not in the distribution",
    "test_model_rope_scaling_from_config_1_dynamic": "cached keys would be turned anew: refused",
}
ROTARY = {
    "test_model_rope_scaling_from_config_0_linear": "rope_parameters mean nothing to FIRE",
    "test_model_rope_scaling_from_config_2_yarn": "rope_parameters mean nothing to FIRE",
}


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    outcome = subprocess.run(command, capture_output=True, text=True)
    if outcome.returncode:
        pytest.skip(f"pip {arguments[0]} failed: {outcome.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def library():
    """The folder of the distribution, beside what its tests import."""
    folder = CACHE / "library_tests"
    if not (folder / "parameterized").is_dir():
        pip("install", "--no-deps", f"--target={folder}", "parameterized==0.9.0")
    if not (folder / NAME).is_dir():
        only = ["--no-deps", f"--dest={folder}", "--no-binary=transformers"]
        pip("download", *only, NAME.replace("-", "=="))
        with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / NAME


@pytest.mark.manual
@pytest.mark.parametrize(
    ("position", "excepted"), [("rope", ALL), ("tape", ALL), ("fire", ALL | ROTARY)]
)
def test_passes_the_librarys_common_tests(position, excepted, library):
    path = os.pathsep.join([str(TESTS.parent), str(library.parent)])
    outcome = subprocess.run(
        [sys.executable, str(TESTS / "library.py"), str(library), position],
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout.splitlines()[-1])
    failed = {name: trace for name, trace in found.items() if trace}
    assert failed.keys() == excepted.keys(), "\n".join(failed.values())
    assert len([name for name, trace in found.items() if trace == ""]) > 95
