"""Figures as files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from tape.files import write_bytes


def write_figure(figure: Figure, target: Path, kinds: Sequence[str] = ("png", "svg")) -> None:
    """Writes the picture as target.png and target.svg."""
    with matplotlib.rc_context({"svg.hashsalt": "tape"}):  # the same picture is the same file
        for kind in kinds:
            content = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else None
            how = {"format": kind, "metadata": metadata, "dpi": 150}
            figure.savefig(content, bbox_inches="tight", **how)  # with all of its labels
            write_bytes(target.with_name(f"{target.name}.{kind}"), content.getvalue())
