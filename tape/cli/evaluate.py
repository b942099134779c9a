"""Arguments of the commands that evaluate a model; nothing here imports torch, which is slow."""

import argparse
from pathlib import Path
from typing import Any

from tape.analysis import INTERVENTIONS
from tape.core.command import (
    SEVERAL,
    Defaults,
    Distinct,
    Parser,
    folder_name,
    integer,
    model_folder,
    with_dashes,
)
from tape.core.run_folder import folder_for_results
from tape.evaluation import (
    BATCH_TOKENS,
    CONVENTIONS,
    DTYPES,
    EXTENSIONS,
    LENGTHS,
    SPLITS,
    TEXTS,
    TOKEN_DTYPES,
)
from tape.evaluation.task import tasks_by_name


def add_extension(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--extend", choices=EXTENSIONS, help="read longer texts (docs/context_extension.md)")
    add("--factor", type=float, help="multiple of the trained length (default: 4; string: 1)")


def add_chat(parser: argparse.ArgumentParser) -> None:
    about = "give each prompt as a message in the model's chat template"
    parser.add_argument("--chat", action="store_true", help=about)


def add_text(parser: argparse.ArgumentParser, **how: Any) -> None:
    """Adds the options that name a text."""
    add = parser.add_argument
    about = "a file of token ids, the held-out text of the run itself (run), or of "
    add("--data", help=about + ", ".join(TEXTS[1:]), **how)
    add("--files", nargs="+", help="the files for --data text, or the folder for --data c4")
    add(
        "--split",
        choices=SPLITS,
        default=SPLITS[0],
        help="of a corpus; only english has a test split",
    )
    add("--whole", action="store_true", help="read all of --files instead of the validation split")
    about = "dtype of a file of token ids (default: as recorded beside it, or uint16)"
    add("--token_dtype", choices=TOKEN_DTYPES, help=about)


def perplexity(given: list[str]) -> argparse.Namespace:
    """Measure the perplexity of a text by length."""
    parser = Parser("perplexity", "Perplexity of a model on a text, with windows of some lengths.")
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="a folder: a model of ours, or a Llama")
    add_text(parser, required=True)
    add("--lengths", type=integer(2), nargs="+", default=LENGTHS, help="tokens in a window")
    add("--convention", choices=CONVENTIONS, default="sliding")
    add(
        "--stride",
        type=integer(1),
        help="tokens between the starts of windows (default: see docs/perplexity.md)",
    )
    about = "tokens that convention spread scores at each length (default: 16,384 or all)"
    add("--scored_tokens", type=integer(1), help=about)
    add("--batch_tokens", type=integer(1), default=BATCH_TOKENS, help="tokens in a batch")
    add("--max_tokens", type=integer(1), help="read only this many tokens of the text")
    add("--dtype", choices=DTYPES, default="float32")
    add(
        "--out",
        type=Path,
        help="table to add rows to (default: in the run's folder, or in output/)",
    )
    add("--shard", default="1/1", help="i/n: do the i-th of n shares of the work")
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
    """Measure accuracy: addition, pass keys, synthetic tasks, SCROLLS.

    The first word is the folder of the model, as is the value of --model
    and --base_model; `samples=10` is short for `--samples=10`."""
    words = with_dashes(given)
    if words and not words[0].startswith("-"):
        words.insert(0, "--model")
    tasks = tasks_by_name()
    how = {"formatter_class": Defaults, "add_help": False}
    parser = Parser("evaluate RUN", "Accuracy on a generated task.", **how)
    add = parser.add_argument
    add("--task", choices=tasks, help="the task; --task NAME --help shows its options")
    chosen, others = parser.parse_known_args(words)
    task = tasks.get(chosen.task)
    if task and task.arguments:
        return task.arguments(others)
    add("-h", "--help", action="help", help="show this message")
    add("--model", "--base_model", dest="run", type=model_folder, required=True)
    add(
        "--name",
        type=folder_name,
        help="name of the folder of results, in the run's folder or in output/",
    )
    add("--seed", type=integer(0), default=0, help="seed of the questions")
    add("--intervention", choices=INTERVENTIONS, help="a change of TAPE's state (docs/inside.md)")
    add_extension(parser)
    add_chat(parser)
    add("--dtype", choices=DTYPES, help="dtype of the model (default: the one it was saved in)")
    add(
        "--processes",
        type=integer(1),
        help="number of processes (default: one per torch thread; on a GPU 1)",
    )
    add(
        "--shard",
        default="1/1",
        help="i/n: do the i-th of n shards; the last one writes the results",
    )
    add("--wrong", type=integer(0), default=3, help="number of wrong answers to keep of each cell")
    add("--context_size", type=integer(1), help="most tokens of a prompt and its answer")
    if task:
        option, usual = task.batches
        add(
            f"--{option}",
            type=integer(1),
            default=usual,
            help="size of a batch; a GPU can take more",
        )
        task.options(parser)
    arguments = parser.parse_args(words)
    if task is None:
        parser.error(f"give --task, one of {', '.join(tasks)}")
    return arguments


def lm_eval(given: list[str]) -> argparse.Namespace:
    """Run tasks of lm-eval: MMLU, ARC, RULER, your own."""
    parser = Parser("lm-eval", "Tasks of the Language Model Evaluation Harness (lm-eval).")
    add = parser.add_argument
    add("--model", type=model_folder, required=True, help="a folder: a model of ours, or a Llama")
    add("--tasks", type=lambda text: text.split(","), action=Distinct, required=True, help="a,b,c")
    add("--include_path", type=Path, help="a folder with yaml files of more tasks")
    add("--num_fewshot", type=integer(0), default=0, help="examples before a question (default: 0)")
    add("--batch_size", type=integer(1), default=8)
    tokens = integer(2, 10**7)
    add(
        "--max_length",
        type=tokens,
        help="most tokens of a prompt and its answer (default: the model's)",
    )
    add("--lengths", type=tokens, help="prompt lengths of RULER or BABILong, in tokens", **SEVERAL)
    add("--limit", type=integer(1), help="ask only this many questions of each task")
    add("--dtype", choices=DTYPES, default="float32")
    add_extension(parser)
    add_chat(parser)
    out = "results (default: a file of these settings, lm_eval/*.json in the run's folder)"
    add("--out", type=Path, help=out)
    arguments = parser.parse_args(given)
    arguments.folder = folder_for_results(arguments.model) / "lm_eval"
    return arguments
