"""What a command says that refuses its settings or files: one line, and nothing is left behind."""

import re

import pytest
from conftest import composed
from omegaconf import OmegaConf, open_dict

from tape.settings.composition import is_expected, parsed, refuse
from tape.settings.groups import options

NESTED = "[" * 100_000 + "]" * 100_000
QUANTIZED = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}


def line_of(work, *given):
    """The line with which a command ends that refuses to do this."""
    with pytest.raises(Exception) as refusal:
        work(*given)
    assert is_expected(refusal.value), refusal.value
    with pytest.raises(SystemExit) as end:
        refuse(refusal.value)
    assert "\n" not in end.value.code
    return end.value.code


def changed(cfg, words):
    """A configuration with other settings, as Hydra reads them."""
    with open_dict(cfg):
        for override in parsed(words):
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=True)
    return cfg


def configuration(words):
    """That of a run: groups of settings are composed, once for each choice, and others changed."""
    grouped = [word for word in words if options(word.partition("=")[0])]
    others = [word for word in words if word not in grouped]
    return changed(composed("experiment=quick", *grouped), others)


def files(folder):
    return {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def left_in(folder):
    return {path for path in folder.rglob("*") if path.name != ".lock" and not path.is_dir()}


def check_refusal(outcome, message, folder):
    """One line, which matches `message`, and nothing in `folder`."""
    assert outcome.status not in (0, None)
    assert "Traceback" not in outcome.err, outcome.err
    assert len(outcome.lines) == 1, outcome.err
    assert re.search(f"^error: .*?{message.removeprefix('^error: ')}", outcome.lines[0]), outcome
    assert not left_in(folder)
