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
    parser.add_argument("--out", type=result_folder, default=out, help="folder for the results")
    about = "folders of failed runs, which the table names and does not read"
    parser.add_argument("--failed", type=Path, nargs="+", default=[], help=about)
    return parser


def compare(given: list[str]) -> argparse.Namespace:
    """Compare runs over seeds: table, statistics, figures."""
    parser = of_runs("compare", "Compare finished runs over seeds.", "output/comparison")
    add = parser.add_argument
    add(
        "--name",
        type=folder_name,
        help="name of the evaluation (default: the one that all runs have)",
    )
    add("--baseline", help="a row, or one of its runs; the others are compared with it")
    across = "settings that may differ, such as 'model.*'"
    add("--across", nargs="+", action="extend", default=[], help=across)
    add(
        "--within",
        nargs="+",
        default=[],
        help="settings that may differ within a row, such as 'base_*'",
    )
    add("--only", nargs="+", default=["*"], help="names of runs to take, such as 'add_rope_*'")
    return parser.parse_args(given)


def suite(given: list[str]) -> argparse.Namespace:
    """Tabulate encodings on synthetic tasks, with heat maps."""
    parser = of_runs("suite", "Tabulate encodings on synthetic tasks.", "output/suite")
    add = parser.add_argument
    about = "predictions to test: task:longer:shorter"
    add("--contrasts", nargs="*", action=Distinct, default=[], help=about)
    return parser.parse_args(given)


def leaderboard(given: list[str]) -> argparse.Namespace:
    """Show all encodings with all committed results."""
    parser = of_runs("leaderboard", "Show all encodings with all committed results.", None, "*")
    arguments = parser.parse_args(given)
    arguments.out = arguments.out or Path("output/leaderboard" if arguments.folders else "docs")
    return arguments


def ladder(given: list[str]) -> argparse.Namespace:
    """Show losses at several sizes, and gains in compute."""
    parser = Parser("ladder", "Show losses at several sizes, and gains in compute.")
    add, about = parser.add_argument, "folders of runs of sweep=ladder, beside the committed ones"
    add("folders", type=Path, nargs="*", action=Existing, help=about)
    about = "folder for the results"
    add("--out", type=result_folder, default="output/ladder", help=about)
    return parser.parse_args(given)


def rates(given: list[str]) -> argparse.Namespace:
    """Choose the learning rate of each encoding by validation loss."""
    parser = of_runs("rates", "Choose learning rates by validation loss.", "output/rates")
    parser.add_argument(
        "--into", type=Path, help="also write the rates to this file of config/rates"
    )
    return parser.parse_args(given)


def report(given: list[str]) -> argparse.Namespace:
    """Write all results on one HTML page."""
    parser = Parser("report", "Write all results to one HTML page.")
    add = parser.add_argument
    add(
        "folders",
        type=model_folder,
        nargs="+",
        help="folders with results, such as output and scrolls",
    )
    add("--out", type=Path, default=Path("report"), help="a folder (default: report)")
    return parser.parse_args(given)
