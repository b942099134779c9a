"""Arguments of the commands, a function each: `tape` parses them here before the command's own
module imports torch, which takes seconds. Hydra parses those of `tape train` and `tape sweep`."""

import argparse
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from tape.core.command import (
    Distinct,
    Existing,
    Parser,
    folder_name,
    integer,
    model_folder,
    result_folder,
)
from tape.core.files import names_in
from tape.core.run_folder import folder_for_results

Shape = dict[str, int | None]
SEVERAL: dict[str, Any] = {"nargs": "+", "action": Distinct}


# ---- evaluate

DTYPES = names_in("tape/evaluation/scoring.py", "DTYPES")
CONVENTIONS = names_in("tape/evaluation/windows.py", "CONVENTIONS")
TOKEN_DTYPES = ("uint16", "uint32")  # of files of token ids
CORPORA = ("run", "local", "text", "c4", "bigrams")  # that have a validation split
BATCH_TOKENS = 2048  # of windows, to run at once
LENGTHS = [1024, 2048, 4096, 8192]
EXTENSIONS = [*names_in("tape/encodings/pieces.py", "METHODS"), "ntk", "yarn", "linear"]


def add_extension(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--extend", choices=EXTENSIONS, help="to longer texts (docs/context_extension.md)")
    add("--factor", type=float, help="of the trained length (default: 4; of string: 1)")


def add_chat(parser: argparse.ArgumentParser) -> None:
    about = "prompts are messages in the model's chat template"
    parser.add_argument("--chat", action="store_true", help=about)


def add_text(parser: argparse.ArgumentParser, **how: Any) -> None:
    """Adds the options that name a text."""
    add = parser.add_argument
    about = "a file of token ids, or the validation split of its own text (run), "
    add("--data", help=about + ", ".join(CORPORA[1:]), **how)
    add("--files", nargs="+", help="of --data text, or the folder of --data c4")
    add("--whole", action="store_true", help="all of --files, not only the validation split")
    about = "of a file of token ids (default: as recorded beside it, or uint16)"
    add("--token_dtype", choices=TOKEN_DTYPES, help=about)


def perplexity(given: list[str]) -> argparse.Namespace:
    parser = Parser("perplexity", "Perplexity of a model on a text, with windows of some lengths.")
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="a folder: a model of ours, or a Llama")
    add_text(parser, required=True)
    add("--lengths", type=integer(2), nargs="+", default=LENGTHS, help="tokens of the windows")
    add("--convention", choices=CONVENTIONS, default="sliding")
    add("--stride", type=integer(1), help="tokens between windows (default: docs/perplexity.md)")
    about = "of convention spread, at each length (default: 16,384, or all of a short text)"
    add("--scored_tokens", type=integer(1), help=about)
    add("--batch_tokens", type=integer(1), default=BATCH_TOKENS, help="run at once")
    add("--max_tokens", type=integer(1), help="of the text, from its beginning")
    add("--dtype", choices=DTYPES, default="float32")
    add("--out", type=Path, help="table to add to (default: in the run's folder, or in output/)")
    add("--shard", default="1/1", help="i/n: the i-th of n shares of the work")
    add_extension(parser)
    arguments = parser.parse_args(given)
    if arguments.scored_tokens and arguments.convention != "spread":
        what = f"--scored_tokens goes with --convention spread, not {arguments.convention}"
        parser.error(f"{what}: give --max_tokens to score less of a text")
    # perplexity.csv of a run holds one measurement of it.
    name = "extended.csv" if arguments.extend else "perplexity.csv"
    arguments.out = arguments.out or folder_for_results(arguments.model) / name
    arguments.lengths = sorted({*arguments.lengths})
    return arguments


def evaluate(given: list[str]) -> argparse.Namespace:
    """Parses a command line. The first word is the folder of the model, as is the value of --model
    and --base_model; `samples=10` is short for `--samples=10`."""
    words = with_dashes(given)
    if words and not words[0].startswith("-"):
        words.insert(0, "--model")
    how = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter, "add_help": False}
    parser = Parser("evaluate RUN", "Accuracy on a generated task.", **how)
    add = parser.add_argument
    add("--task", choices=[*TASKS, SCROLLS], help="what is asked: each has options of its own")
    found, others = parser.parse_known_args(words)
    if (name := found.task) == SCROLLS:
        return resolve_name("scrolls.parsers:evaluate")(others)
    add("-h", "--help", action="help", help="show this message")
    add("--model", "--base_model", dest="run", type=model_folder, required=True)
    add("--name", type=folder_name, help="name of the results folder, in the run's or in output/")
    add("--seed", type=integer(0), default=0, help="seed of the questions")
    changes = names_in("tape/analysis/state.py", "LEFT_OUT", "ROTATED_BY")
    add("--intervention", choices=changes, help="a change of TAPE's state (docs/inside.md)")
    add_extension(parser)
    add_chat(parser)
    add("--dtype", choices=DTYPES, help="of the model; by default the one that it was saved in")
    add("--processes", type=integer(1), help="workers; one per torch thread, on a GPU one in all")
    add("--shard", default="1/1", help="i/n: the i-th of n shards; the last one writes the results")
    add("--wrong", type=integer(0), default=3, help="wrong answers of each cell to keep")
    add("--context_size", type=integer(1), help="tokens available for prompt and answer")
    if name is not None:
        option, usual = BATCHING[name]
        add(f"--{option}", type=integer(1), default=usual, help="of a batch; a GPU takes more")
        TASKS[name](parser)
    arguments = parser.parse_args(words)
    if name is None:
        parser.error(f"give --task, one of {', '.join((*TASKS, SCROLLS))}")
    return arguments


def with_dashes(words: list[str]) -> list[str]:
    """Returns words with `--samples=10` for `samples=10`, which is no file."""
    return [f"--{x}" if re.match(r"\w+=", x) and not Path(x).exists() else x for x in words]


def add_addition(parser: argparse.ArgumentParser) -> None:
    add, whole = parser.add_argument, integer(1)
    add("--max_length", type=whole, help="digits of operands; twice those of the training")
    add("--samples", type=whole, default=100, help="problems of each pair of lengths")


def add_passkey(parser: argparse.ArgumentParser) -> None:
    add, whole = parser.add_argument, integer(1)
    add("--max_tokens", type=whole, help="tokens of the longest prompts")
    add("--interval", type=whole, help="prompts have 1, 2, ... times this number of tokens")
    add("--num_tests", type=whole, default=20, help="prompts per length and depth")
    add("--depths", type=whole, default=11, help="number of depths from 0 to 1")
    add("--keys", type=whole, help="number of names with pass keys; one is asked for")
    add("--values", type=whole, help="pass keys per name; all are asked for")
    add("--original", action="store_true", help="lengths, depths and scoring of the original code")


def add_synthetic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max_length", type=integer(0), help="of problems: the suite's, or 4 times the trained")
    add("--samples", type=integer(1), default=100, help="problems per length")
    parser.set_defaults(processes=1)


# The options of each task, and that of its batches (of `Questions.plan`) with its default.
TASKS = {"addition": add_addition, "passkey": add_passkey, "synthetic": add_synthetic}
SCROLLS = "scrolls"
BATCHING = dict.fromkeys(TASKS, ("batch_tokens", 16_384)) | {"addition": ("batch_size", 256)}


def lm_eval(given: list[str]) -> argparse.Namespace:
    parser = Parser("lm-eval", "Tasks of the Language Model Evaluation Harness (lm-eval).")
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="a folder: a model of ours, or a Llama")
    add("--tasks", type=lambda text: text.split(","), action=Distinct, required=True, help="a,b,c")
    add("--include_path", type=Path, help="a folder with more tasks, yaml files")
    add("--num_fewshot", type=integer(0), default=0, help="examples before a question (default: 0)")
    add("--batch_size", type=integer(1), default=8)
    tokens = integer(2, 10**7)
    add("--max_length", type=tokens, help="of a prompt and its answer (default: the model's)")
    add("--lengths", type=tokens, help="tokens of prompts of RULER or BABILong", **SEVERAL)
    add("--limit", type=integer(1), help="ask this many of each task, for a try")
    add("--dtype", choices=DTYPES, default="float32")
    add_extension(parser)
    add_chat(parser)
    out = "results (default: a file of these settings, lm_eval/*.json in the run's folder)"
    add("--out", type=Path, help=out)
    arguments = parser.parse_args(given)
    arguments.folder = folder_for_results(arguments.model) / "lm_eval"
    return arguments


# ---- compare


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
    parser = of_runs("suite", "All encodings on all tasks.", "output/suite")
    add = parser.add_argument
    about = "predictions to test: task:longer:shorter"
    add("--contrasts", nargs="*", action=Distinct, default=[], help=about)
    return parser.parse_args(given)


def leaderboard(given: list[str]) -> argparse.Namespace:
    parser = of_runs("leaderboard", "All encodings by all committed results.", None, "*")
    arguments = parser.parse_args(given)
    arguments.out = arguments.out or Path("output/leaderboard" if arguments.folders else "docs")
    return arguments


def rates(given: list[str]) -> argparse.Namespace:
    parser = of_runs("rates", "Choose learning rates by validation loss.", "output/rates")
    parser.add_argument("--into", type=Path, help="a file of config/rates to write as well")
    return parser.parse_args(given)


def report(given: list[str]) -> argparse.Namespace:
    parser = Parser("report", "All results on one page of html.")
    add = parser.add_argument
    add("folders", type=model_folder, nargs="+", help="with results: output, scrolls")
    add("--out", type=Path, default=Path("report"), help="a folder (default: report)")
    return parser.parse_args(given)


# ---- analyse


def of_models(name: str, description: str, windows: int, least: int = 1) -> Parser:
    """Returns the parser of a command on models and a text, with the default and the least number
    of --windows."""
    parser = Parser(name, description)
    add = parser.add_argument
    add("--model", type=model_folder, nargs="+", required=True, help="folders of models")
    add_text(parser, default="local")
    add("--out", type=result_folder, default=f"output/{name}", help="a folder")
    about = "number of windows per length"
    add("--windows", type=integer(least, 10**6), default=windows, help=about)
    return parser


def stability(given: list[str]) -> argparse.Namespace:
    about = "Changes in attention and positions when a text is shifted (Table 8)."
    parser = of_models("stability", about, windows=16)
    add, types = parser.add_argument, ["float32", "bfloat16"]
    add("--length", type=integer(2), default=128, help="tokens per window")
    add("--shifts", type=integer(1, 10**6), default=[3, 10, 100, 1000], **SEVERAL)
    add("--dtypes", choices=DTYPES, default=types, **SEVERAL)
    return parser.parse_args(given)


def visualize(given: list[str]) -> argparse.Namespace:
    parser = of_models("visualize", "Figures of attention and positions (Fig. 7).", windows=8)
    add = parser.add_argument
    add("--length", type=integer(8), default=256, help="tokens per window")
    add("--heads", type=integer(1), default=4, help="heads to show per layer")
    return parser.parse_args(given)


def state(given: list[str]) -> argparse.Namespace:
    about = "How TAPE's learned state differs from RoPE's, and what it is for."
    parser = of_models("state", about, windows=64, least=2)  # one has the state of another
    about = "of windows (default: 1, 2 and 4 times the trained one)"
    parser.add_argument("--lengths", type=integer(4), help=about, **SEVERAL)
    return parser.parse_args(given)


def gallery(given: list[str]) -> argparse.Namespace:
    parser = Parser("gallery", "Pictures of what every encoding adds to scores before training.")
    known = names_in("tape/encodings/__init__.py", "ENCODINGS", "ALIASES")
    every = names_in("tape/encodings/__init__.py", "ENCODINGS")
    every.remove("mixed")  # each of its layers has the encoding of an entry
    add, how = parser.add_argument, {"nargs": "+", "metavar": "NAME", "choices": known}
    add("--encodings", default=every, help="names; default: all", **how)
    add("--length", type=integer(8, 4096), default=128, help="tokens (default: 128)")
    add("--out", type=result_folder, default="output/gallery", help="a folder")
    return parser.parse_args(given)


# Of `tape cost`: the paper's model trained from scratch, and the sequence length of its Table 3.
SHAPE: Shape = {
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "kv_heads": None,
    "mlp": 3072,
    "vocabulary": 32000,
    "length": 1024,
}


def cost(given: list[str]) -> argparse.Namespace:
    parser = Parser("cost", "Cost of every encoding: arithmetic, parameters and memory.")
    for name, default in SHAPE.items():
        about = f"default: {default or 'as many as heads'}"
        parser.add_argument(f"--{name}", type=integer(1, 10**7), default=default, help=about)
    parser.add_argument("--out", type=result_folder, default="output/cost", help="a folder")
    return parser.parse_args(given)


# ---- models


def import_(given: list[str]) -> argparse.Namespace:
    parser = Parser("import", "Import a model as a checkpoint, a folder that all commands take.")
    add = parser.add_argument
    known = ", ".join(names_in("tape/imports/named.py", "NAMED"))
    add("source", help=f"a .gguf file, a folder, a name on the hub, or {known}")
    add("--out", type=Path, required=True, help="new folder to write")
    return parser.parse_args(given)


def verify(given: list[str]) -> argparse.Namespace:
    parser = Parser(
        "verify", "Compare a checkpoint's logits with those of transformers' own class."
    )
    add = parser.add_argument
    add("folder", type=model_folder, help="a checkpoint of a family, or an equal model of ours")
    about = "the most to compute with; spread over longer lengths (default: 1024)"
    add("--tokens", type=integer(16), default=1024, help=about)
    add("--dtype", choices=DTYPES, default="float32")
    return parser.parse_args(given)


# ---- develop


def new_encoding(given: list[str]) -> argparse.Namespace:
    parser = Parser("new-encoding", "Makes the files of a new encoding (CONTRIBUTING.md).")
    parser.add_argument("name", help="lower-case letters, digits and _: that of position=NAME")
    return parser.parse_args(given)


FORMATS = ("tape", "llama", "mistral", "qwen2", "qwen3", "smollm3")  # `families.WRITTEN`


def export(given: list[str]) -> argparse.Namespace:
    parser = Parser("export", "Export a model to a folder that loads without this package.")
    add = parser.add_argument
    add("folder", type=model_folder, help="a run, one of its checkpoints, or a saved model")
    add("--out", type=Path, required=True, help="new folder to write")
    about = "tape (default): with its code; others: as a model of transformers, for equal encodings"
    add("--format", choices=FORMATS, default="tape", help=about)
    return parser.parse_args(given)
