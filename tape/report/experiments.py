"""The experiments, in the order of the page."""

from __future__ import annotations

from importlib import import_module

from tape.report import analyses, perplexity, zero_shot
from tape.report.experiment import Experiment
from tape.report.other import other


def of_package(name: str) -> Experiment:
    """That of a package on top of this one, which it must not depend on: by name."""
    return import_module(f"{name}.section").EXPERIMENT


def experiments() -> list[Experiment]:
    found = [
        of_package("pretraining"),
        of_package("arithmetic"),
        of_package("scrolls"),
        of_package("extension"),
        perplexity.EXPERIMENT,
        of_package("retrieval"),
        zero_shot.EXPERIMENT,
        analyses.STABILITY,
        analyses.PICTURES,
        analyses.FAULTS,
        analyses.EFFICIENCY,
    ]
    return [*found, other(found)]
