"""Arguments of the commands that compare runs."""

import argparse
from pathlib import Path

from tape.core.command import (
    Distinct,
    Existing,
    Parser,
    folder_name,
    model_folder,
    result_folder,
)


def of_runs(name: str, description: str, out: str | None, number: str = "+") -> Parser:
    """Returns the parser of a command on finished runs; `out` is the default of --out."""
    parser = Parser(name, description)
    about = "folders of runs, or of saved results"
    parser.add_argument("folders", type=Path, nargs=number, action=Existing, help=about)
    parser.add_argument("--out", type=result_folder, default=out, help="for the results")
    about = "folders of runs that failed: named, but not read"
    parser.add_argument("--failed", type=Path, nargs="+", default=[], help=about)
    return parser


def compare(given: list[str]) -> argparse.Namespace:
    """Runs over seeds: table, statistics, figures."""
    parser = of_runs("compare", "Compare finished runs over seeds.", "output/comparison")
    add = parser.add_argument
    add("--name", type=folder_name, help="their evaluation (default: the one that all have)")
    add("--baseline", help="the row, or one of its runs, that the others are compared with")
    across = "settings that may differ, such as 'model.*'"
    add("--across", nargs="+", action="extend", default=[], help=across)
    add("--within", nargs="+", default=[], help="settings that may differ in a row: 'base_*'")
    add("--only", nargs="+", default=["*"], help="names of runs to take, such as 'add_rope_*'")
    return parser.parse_args(given)


def suite(given: list[str]) -> argparse.Namespace:
    """Encodings on synthetic tasks: table, heat maps."""
    parser = of_runs("suite", "All encodings on all tasks.", "output/suite")
    add = parser.add_argument
    about = "predictions to test: task:longer:shorter"
    add("--contrasts", nargs="*", action=Distinct, default=[], help=about)
    return parser.parse_args(given)


def leaderboard(given: list[str]) -> argparse.Namespace:
    """All encodings by all committed results."""
    parser = of_runs("leaderboard", "All encodings by all committed results.", None, "*")
    arguments = parser.parse_args(given)
    arguments.out = arguments.out or Path("output/leaderboard" if arguments.folders else "docs")
    return arguments


def rates(given: list[str]) -> argparse.Namespace:
    """Choose each encoding's learning rate by validation loss."""
    parser = of_runs("rates", "Choose learning rates by validation loss.", "output/rates")
    parser.add_argument("--into", type=Path, help="a file of config/rates to write as well")
    return parser.parse_args(given)


def report(given: list[str]) -> argparse.Namespace:
    """Write all results on one HTML page."""
    parser = Parser("report", "All results on one page of html.")
    add = parser.add_argument
    add("folders", type=model_folder, nargs="+", help="with results: output, scrolls")
    add("--out", type=Path, default=Path("report"), help="a folder (default: report)")
    return parser.parse_args(given)
